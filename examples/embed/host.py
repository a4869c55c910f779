"""Stands for a program that has been there all along: a window, and a loop that owns the main thread.

    python3 examples/embed/host.py [--v2] [-- COMMAND ...]     # default: the echo agent

It knows nothing of acp. What it gives to its plug-in (plugin.py, where to read on) is what every such program has in
some form: `post(job)` runs a function in the main thread soon; `show(text)` and `choose(question, answers)` are for the
main thread alone. Enter sends the line, Escape cancels, Ctrl-D quits.
"""
import contextlib
import curses
import os
import queue
import re
import select
import sys
import textwrap

from plugin import Plugin

ENTER, ESCAPE, CTRL_D = ("\n", "\r", curses.KEY_ENTER), "\x1b", "\x04"
ESCAPES = re.compile("\x1b\\[[0-?]*[ -/]*[@-~]|\x1b[]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)")
BACKSPACE = "\x7f", "\b", curses.KEY_BACKSPACE


class Host:
    def __init__(self):
        self.jobs = queue.SimpleQueue()
        self.bell, self.ring = os.pipe()  # wakes the loop, which waits for keys and for this
        os.set_blocking(self.ring, False)
        self.shown, self.typed, self.question, self.going = "", "", "", True

    def post(self, job):
        """Run this in the main thread, after what was posted before. From any thread; returns at once."""
        self.jobs.put(job)
        with contextlib.suppress(BlockingIOError):  # so full that it rings anyway
            os.write(self.ring, b"!")

    def show(self, text):
        """More text in the window, without what would control the terminal."""
        text = "".join(each for each in ESCAPES.sub("", text) if each.isprintable() or each == "\n")
        self.shown = (self.shown + text)[-20_000:]

    def choose(self, question, answers):
        """A modal dialog, in which the loop runs on: the number of the answer, or None."""
        before, self.question = self.question, question + "".join(
            f"\n  {number}  {answer}" for number, answer in enumerate(answers, 1))
        try:
            while self.going:
                key = self.step()
                if key == ESCAPE:
                    return None
                if isinstance(key, str) and key.isdecimal() and 1 <= int(key) <= len(answers):
                    return int(key) - 1
        finally:
            self.question = before

    def run(self, screen, *options):
        screen.nodelay(True)
        self.screen, self.plugin = screen, Plugin(self, *options)
        try:
            while self.going:
                key = self.step()
                if key == ESCAPE:
                    self.plugin.cancel()
                elif key in ENTER and self.typed:
                    line, self.typed = self.typed, ""
                    self.show(f"\n> {line}\n")
                    self.plugin.ask(line)
                elif key in BACKSPACE:
                    self.typed = self.typed[:-1]
                elif isinstance(key, str) and key.isprintable():
                    self.typed += key
        finally:
            self.plugin.close()

    def step(self):
        """Once round the loop: paint, wait, run what was posted. Returns the key that was hit, or None."""
        self.paint()
        ready = select.select([sys.stdin, self.bell], [], [])[0]
        if self.bell in ready:
            os.read(self.bell, 4096)
            for _ in range(self.jobs.qsize()):
                with contextlib.suppress(queue.Empty):  # a dialog in one of them has run the others
                    self.jobs.get_nowait()()
        key = None
        if sys.stdin in ready:
            with contextlib.suppress(curses.error):
                key = self.screen.get_wch()
            self.going = self.going and key != CTRL_D
        return key

    def paint(self):
        height, width = self.screen.getmaxyx()
        lines = [line for each in (self.shown + "\n" + self.question).split("\n")
                 for line in textwrap.wrap(each, width - 1) or [""]]
        self.screen.erase()
        with contextlib.suppress(curses.error):  # the window is tiny
            for row, line in enumerate([*lines[1 - height:], "> " + self.typed[3 - width:]]):
                self.screen.addstr(row, 0, line)
        self.screen.refresh()


def main(words):
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        sys.exit("host.py: it is a window, and needs a terminal")
    end = words.index("--") if "--" in words else len(words)
    os.environ.setdefault("ESCDELAY", "25")  # milliseconds after which Escape is the key, not the start of another
    with contextlib.suppress(KeyboardInterrupt):
        curses.wrapper(Host().run, 2 if "--v2" in words[:end] else 1, words[end + 1:])


if __name__ == "__main__":
    main(sys.argv[1:])

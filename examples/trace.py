"""Writes down what an editor and an agent say to each other:

    python3 examples/trace.py FILE [--full] -- COMMAND ...

An editor starts it in place of the agent. Where its settings say `"command": "gemini", "args": ["--acp"]`, write
`"command": "python3", "args": ["/path/to/examples/trace.py", "/tmp/acp.log", "--", "gemini", "--acp"]`. Every byte goes
through as it is and as it comes, also of what is no message; FILE gets a line of JSON for each message, with its time,
direction, method, id and size in bytes; an answer names the method that it answers and the seconds that took, and a
line that is no message is `odd`. With --full it has the message too, in which the values of `env` and `headers` are
masked. All else that was said is there, so the file is made readable by you alone. One that exists is added to.

Standard error is the agent's, as is the exit status; signals and the end of either side are passed on. The traffic
never waits for the file: what cannot be written is left out, and standard error says so.
"""
import collections
import contextlib
import datetime
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time

TO_AGENT, TO_EDITOR = "to agent", "to editor"
MOST = 64 << 20  # bytes that wait to be logged, and that a line may have to be looked into
LEAVING = 2  # seconds that the log may still take when all else is over


def masked(value, secret=False, shown=()):
    """The same without the values of environments and headers, be they objects or lists of {name, value}."""
    if isinstance(value, list):
        return [masked(each, secret, ("name",)) for each in value]
    if isinstance(value, dict):
        return {key: each if secret and key in shown else masked(each, secret or key.lower() in ("env", "headers"))
                for key, each in value.items()}
    return "***" if secret and value is not None else value


def short(value):
    """A method, an id or a code; what is none of them is not written out."""
    return value[:200] if isinstance(value, str) else value if isinstance(value, (int, float, type(None))) else "odd"


class Log:
    """Makes lines of JSON of pieces of bytes, in a thread of its own, so that nobody waits for the file."""

    def __init__(self, path, full):
        self.path, self.full, self.file, self.told = path, full, None, False
        self.pieces = queue.SimpleQueue()  # (direction, two times, bytes; or how many are lost), None at the end
        self.came = {TO_AGENT: 0, TO_EDITOR: 0}  # bytes; each is changed by the thread of its direction only
        self.lost, self.done = dict(self.came), 0  # bytes not taken; bytes that are through
        self.partial, self.size = {TO_AGENT: [], TO_EDITOR: []}, dict(self.came)  # of a line that is not at its end
        self.asked = collections.OrderedDict()  # (direction of the answer, type of the id, id) -> method, time
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def put(self, direction, data):
        """Some more bytes, from the thread of this direction. Never waits."""
        if sum(self.came.values()) - self.done > MOST:  # the file is slower than the traffic
            self.lost[direction] += len(data)
            return
        if self.lost[direction]:
            self.pieces.put((direction, time.time(), time.monotonic(), self.lost[direction]))
            self.lost[direction] = 0
        self.came[direction] += len(data)
        self.pieces.put((direction, time.time(), time.monotonic(), data))

    def close(self):
        self.pieces.put(None)
        self.thread.join(LEAVING)
        if self.thread.is_alive():
            self.complain("the end is left out")

    def run(self):
        for direction, *times, data in iter(self.pieces.get, None):
            if isinstance(data, int):  # what is there of this line, and what comes of it, are parts
                self.partial[direction], self.size[direction] = None, 0
                self.write(direction, times[0], {"lost": data})
                continue
            *lines, rest = data.split(b"\n")
            for line in lines:
                self.line(direction, times, line)
            self.grow(direction, rest)
            self.done += len(data)
        for direction in self.partial:
            self.line(direction, (time.time(), time.monotonic()), b"")

    def grow(self, direction, piece):
        self.size[direction] += len(piece)
        if self.partial[direction] is not None:
            self.partial[direction].append(piece)
            if self.size[direction] > MOST:
                self.partial[direction].clear()

    def line(self, direction, times, rest):
        self.grow(direction, rest)
        pieces, size = self.partial[direction], self.size[direction]
        self.partial[direction], self.size[direction] = [], 0
        line, message = b"".join(pieces or ()), None
        if pieces is None or (not line.strip() and size <= MOST):
            return
        with contextlib.suppress(ValueError, RecursionError):
            message = json.loads(line.decode("utf-8-sig"))
        try:
            entry = self.entry(direction, times[1], message)
            if self.full and message is not None:
                entry["message"] = masked(message)
            elif self.full and b'"env"' not in line and b'"headers"' not in line:
                entry["text"] = line[:500].decode("utf-8", "replace")
            self.write(direction, times[0], {**entry, "size": size})
        except RecursionError:
            self.write(direction, times[0], {"odd": True, "size": size})

    def entry(self, direction, now, message):
        if not isinstance(message, dict):
            return {"odd": True}
        entry, id = {key: short(message[key]) for key in ("method", "id") if key in message}, message.get("id")
        if "method" in message:
            if "id" in message:
                back = TO_EDITOR if direction == TO_AGENT else TO_AGENT
                self.asked[back, type(id), str(id)] = entry["method"], now
                if len(self.asked) > 10_000:  # some are never answered
                    self.asked.popitem(last=False)
            return entry
        method, then = self.asked.pop((direction, type(id), str(id)), (None, now))
        error = message.get("error")
        return {**entry, "answers": method, "seconds": round(now - then, 4),
                **({"error": short(error.get("code"))} if isinstance(error, dict) else {})}

    def write(self, direction, now, entry):
        stamp = datetime.datetime.fromtimestamp(now, datetime.timezone.utc).isoformat(timespec="milliseconds")
        try:
            if self.file is None:
                self.file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            data = json.dumps({"time": stamp, "direction": direction, **entry}).encode() + b"\n"
            while data:
                data = data[os.write(self.file, data):]
        except OSError as error:
            if not self.told:
                self.complain(f"{error.strerror}; that is left out")
            self.told = True

    def complain(self, what):
        with contextlib.suppress(OSError, ValueError):
            print(f"trace.py: {self.path}: {what}", file=sys.stderr, flush=True)


class Pump(threading.Thread):
    """Carries bytes from one descriptor to another until either end is closed, which closes the other."""

    def __init__(self, source, target, direction, log):
        super().__init__(daemon=True)
        self.source, self.target, self.direction, self.log = source, target, direction, log
        self.moved, self.writing = 0, False
        self.start()

    def run(self):
        with contextlib.suppress(OSError):
            while True:
                data = os.read(self.source, 1 << 16)
                if not data:
                    break
                self.log.put(self.direction, data)
                self.writing = True
                while data:
                    data = data[os.write(self.target, data):]
                self.writing, self.moved = False, self.moved + 1
        self.writing = False
        nothing = os.open(os.devnull, os.O_RDWR)  # closed, but the numbers stay taken
        for end in self.source, self.target:
            os.dup2(nothing, end, inheritable=False)

    def finish(self):
        """Wait for the rest: until its end, or until nothing comes although the other side takes what there is."""
        while self.is_alive():
            before = self.moved
            self.join(0.5)
            if self.moved == before and not self.writing:
                return


def from_terminal():
    """Whether the terminal sends its signals to us, and so to the agent too."""
    with contextlib.suppress(OSError, AttributeError), open("/dev/tty", "rb") as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False


def main(words):
    end = words.index("--") if "--" in words else len(words)
    options, command = words[:end], words[end + 1:]
    full, paths = "--full" in options, [word for word in options if word != "--full"]
    if len(paths) != 1 or paths[0].startswith("-") or not command:
        print("usage: trace.py FILE [--full] -- COMMAND ...", file=sys.stderr)
        return 2
    agent, early = None, []

    def pass_on(number, frame):
        if agent is None:
            early.append(number)
        elif number not in (signal.SIGINT, getattr(signal, "SIGQUIT", None)) or not from_terminal():
            agent.send_signal(number)

    for name in "SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2":
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) is not signal.SIG_IGN:
            signal.signal(getattr(signal, name), pass_on)
    try:
        agent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except (OSError, ValueError) as error:
        print(f"trace.py: {command[0]} cannot be started: {error}", file=sys.stderr)
        return 127
    for number in early:
        agent.send_signal(number)
    if hasattr(signal, "pthread_sigmask"):  # a signal that another thread took would wake nobody here
        unmasked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    log = Log(paths[0], full)
    Pump(0, agent.stdin.fileno(), TO_AGENT, log)
    answers = Pump(agent.stdout.fileno(), 1, TO_EDITOR, log)
    waiting = threading.Thread(target=agent.wait, daemon=True)
    waiting.start()
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, unmasked)
    while waiting.is_alive():
        waiting.join(1)  # one that comes right before the wait is handled after it
    status = agent.returncode
    answers.finish()
    log.close()
    if status < 0:  # by a signal, and so are we
        with contextlib.suppress(ImportError, ValueError):
            import resource
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
        status = 128 - status
    os._exit(status)  # not by way of the interpreter's end, where a thread that reads could be in the way


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A chat with any agent, in the terminal:

    python3 examples/chat.py [--v2] [--cwd DIR] [--allow reads|all] [--auth METHOD] [--trace FILE] [-- COMMAND ...]

    python3 examples/chat.py -- gemini --acp
    echo "what does this folder hold?" | python3 examples/chat.py --allow reads -- opencode acp

Without a command it talks to the echo agent beside it. What is typed goes to the agent, but for the commands that
/help lists; a line that ends in a backslash goes on. Ctrl-C cancels the turn and, pressed again, quits; at the prompt
it clears the line, and twice it quits, as Ctrl-D does. What the agent does while nothing is typed is shown at once,
else after Enter.

The agent is offered the files below the folder DIR (default: the current one), and to run commands there; it is the
agent that asks for permission before it writes or runs something. `--allow reads` grants what only reads or searches,
`--allow all` everything; the rest is asked on the terminal. `--trace` appends each message to FILE, a JSON object a
line.

Where standard input or output is no terminal, each line of the input is a prompt, the answers go to standard output
and all else to standard error; what would have to be asked is refused, and without `--allow all` no writing and no
commands are offered. Exit status: 0 the end, 1 the agent answered with an error (at the start, or to any line of such
an input), 2 wrong use, 3 it could not be started or was lost, 130 Ctrl-C.
"""
import argparse
import contextlib
import datetime
import itertools
import json
import logging
import math
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import unicodedata

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))  # acp.py is one folder up
import acp  # noqa: E402

try:
    import readline
    import select
    import termios
    import tty
except ImportError:  # Windows, or a Python without it: then what comes while the prompt waits is shown after Enter
    readline = None

ERROR, LOST, INTERRUPTED = 1, 3, 130
LEAVE = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
ON_TERMINAL = sys.stdin.isatty() and sys.stdout.isatty()
ANSI = ON_TERMINAL and os.environ.get("TERM") != "dumb"
COLOURS = ANSI and not os.environ.get("NO_COLOR")
BOLD, DIM, RED, GREEN, YELLOW, CYAN = "1", "2", "31", "32", "33", "36"
STATUS = {"in_progress": YELLOW, "completed": GREEN, "failed": RED}
YES_NO = {"y": True, "yes": True, "on": True, "true": True, "n": False, "no": False, "off": False, "false": False}
STEPS = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]", "cancelled": "[-]"}
LINES = 12  # of the output of a tool or a command, the last ones
CONTROL = re.compile(  # whole escape sequences; then what broken ones leave, and what turns the direction of text
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b[]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)"
    "|[\0-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def plain(text):
    """Text of an agent as it may go to a terminal: without control sequences; newline and tab stay."""
    return CONTROL.sub("", str(text))


def one_line(*texts):
    """Texts of an agent, as many as there are, in one line."""
    return " ".join(" ".join(plain(text) for text in texts if text).split())


def styled(style, text):
    return f"\x1b[{style}m{text}\x1b[0m" if COLOURS and style else text


def fold(text, columns):
    """The rows in which a terminal of so many columns shows the text; broken at spaces where that is possible."""
    def cells(row):
        return sum(0 if unicodedata.category(each) in ("Mn", "Me", "Cf") else
                   2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in row)

    rows = [""]
    for each in text.expandtabs(4):
        if cells(rows[-1] + each) > columns:
            head, _, tail = rows[-1].rpartition(" ")
            rows[-1:] = [head, tail] if head.strip() and each != " " else [rows[-1], ""]
        rows[-1] += each
    return [rows[0], *(row.lstrip() for row in rows[1:])]


def said(block):
    """A content block as text."""
    if isinstance(block, acp.TextContent):
        return block.text
    resource = getattr(block, "resource", block)
    name = getattr(resource, "uri", None) or getattr(block, "mime_type", None) or "of a kind unknown here"
    return getattr(resource, "text", None) or f"[{one_line(getattr(block, 'type', 'content'), name)}]"


def tail(text):
    """The end of what a tool or a command has printed, as lines for `Screen.status`."""
    lines = plain(text).rstrip().split("\n")
    if len(lines) > LINES:
        lines[:-LINES] = [f"... {len(lines) - LINES} lines"]
    return [("  " + line, DIM) for line in lines if lines != [""]]


def shown(value):
    """The value of an option or a field as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else str(value)


class Screen:
    """Shows a session as it goes on. Whatever goes out passes `plain`, so that no agent steers the terminal."""

    def __init__(self):
        self.aside = sys.stdout if ON_TERMINAL else sys.stderr  # where all goes but the answer
        self.writing, self.ended = None, True  # the message being written: its id and its kind; its line has an end
        self.texts = {}  # message -> the pieces of its text so far
        self.calls, self.diffs = {}, {}  # by tool call id: the merged call, the diffs shown
        self.shown = {}  # by key: the lines shown last
        self.live, self.size = {}, None  # what ends the screen and can be rewritten: rows by key; for this size

    def text(self, writing, text):
        """More text of a message; agents like to begin with nothing or with empty lines."""
        kind, file = writing[1], sys.stdout if writing[1] == "message" else self.aside
        text = text if self.writing == writing else text.lstrip("\n")
        if not text:
            return
        if self.writing != writing:
            self.finish()
            text = {"user": "> ", "thought": "" if COLOURS else "[thought] "}.get(kind, "") + text
        self.live, self.writing, self.ended = {}, writing, text.endswith("\n")
        print(styled({"user": BOLD, "thought": DIM}.get(kind), plain(text)), end="", file=file, flush=True)

    def finish(self):
        """End the line of a message."""
        if not self.ended:
            print(file=sys.stdout if self.writing[1] == "message" else self.aside, flush=True)
        self.writing, self.ended = None, True

    def line(self, text, style=None):
        """A line, or lines."""
        self.finish()
        self.live = {}
        print(styled(style, plain(text)), file=self.aside, flush=True)

    def status(self, key, *lines):
        """Lines, each a text and its style, that tell how something stands: where nothing else was written since they
        were shown they are rewritten, else written anew."""
        if self.shown.get(key) == lines:
            return
        self.finish()
        self.shown[key], size = lines, shutil.get_terminal_size()
        rows = [styled(style, row) for text, style in lines
                for row in fold(plain(text).replace("\n", " "), size.columns - 1 if ANSI else sys.maxsize)]
        height = len([*itertools.chain(*self.live.values())]) if self.size == size and ANSI else 0
        if not height or height + len(rows) >= size.lines:
            self.live, height = {}, 0
        self.live[key], self.size = rows, size
        shown = [*itertools.chain(*self.live.values())] if ANSI else rows
        print((f"\x1b[{height}A\r\x1b[J" if height else "") + "\n".join(shown), file=self.aside, flush=True)

    def update(self, session, update, replay):
        """Show an update; what is not named here is of no interest on a terminal. What the user said is shown only in a
        replay."""
        if isinstance(update, acp.ContentChunk):
            kind = {acp.AgentMessageChunk: "message", acp.UserMessageChunk: "user"}.get(type(update), "thought")
            if kind != "user" or replay:
                self.texts.setdefault((update.message_id, kind), []).append(said(update.content))
                self.text((update.message_id, kind), said(update.content))
        elif isinstance(update, acp.UserMessage):  # or AgentMessage or AgentThought: a whole one, or a better one
            writing = update.message_id, "message" if update.role == "assistant" else update.role
            text = "".join(map(said, update.content or []))
            if text and text != "".join(self.texts.get(writing, [])) and (update.role != "user" or replay):
                self.finish()
                self.texts[writing] = [text]
                self.text(writing, text)
        elif isinstance(update, acp.ToolCallUpdate):
            self.tool(update)
        elif isinstance(update, acp.ToolCallContentChunk):
            call = self.calls.get(update.tool_call_id)
            self.tool(acp.ToolCallUpdate(update.tool_call_id, content=[*(call and call.content or ()), update.content]))
        elif isinstance(update, acp.TerminalUpdate):
            self.terminal(session.state.terminals.get(update.terminal_id) or update)
        elif isinstance(update, acp.PlanUpdate) and isinstance(update.plan, acp.PlanItems):
            steps = [("  " + one_line(STEPS.get(each.status, "[ ]"), each.content), STATUS.get(each.status))
                     for each in update.plan.entries]
            self.status(("plan", update.plan.plan_id), ("Plan:", BOLD), *steps)
        elif isinstance(update, acp.Notice):
            self.line(one_line(f"[{update.severity}]", update.title, update.description),
                      {"error": RED, "warning": YELLOW}.get(update.severity))
        elif isinstance(update, acp.CompactionUpdate):
            self.status(("compaction", update.compaction_id),
                        (one_line("[compaction]", update.status, update.error or None), DIM))

    def tool(self, patch):
        """A tool call: its status, at the end with its output; each diff once."""
        key = patch.tool_call_id
        call = self.calls[key] = acp.apply_patch(self.calls.get(key), patch)
        status, content, diffs = call.status or "pending", call.content or [], self.diffs.setdefault(key, [])
        title, printed = one_line(call.title or call.name or key), []
        if status in ("completed", "failed", "cancelled"):
            printed = tail("\n".join(said(each.content) for each in content if isinstance(each, acp.Content)))
        self.status(("tool", key), (f"* {title}: {status.replace('_', ' ')}", STATUS.get(status, DIM)), *printed)
        for diff in content:
            if isinstance(diff, acp.Diff) and diff not in diffs:
                diffs.append(diff)
                self.diff(diff)

    def diff(self, diff):
        if diff.patch is None:
            for each in diff.changes:
                self.line("  " + one_line(each.operation, each.old_path, each.path))
            return
        inside = False  # a hunk
        for line in diff.patch.text.rstrip("\n").split("\n"):
            inside = line.startswith("@@") or (inside and not line.startswith("diff "))
            self.line("  " + line, {"+": GREEN, "-": RED, "@": CYAN}.get(line[:1]) if inside else BOLD)

    def terminal(self, terminal):
        """A command that runs, or has ended; then with its output."""
        status, end, style, printed = terminal.exit_status, "running", YELLOW, []
        if status:
            end = status.signal or ("ended" if status.exit_code is None else f"exit {status.exit_code}")
            style, printed = GREEN if status.exit_code == 0 else RED, tail(getattr(terminal, "text", ""))
        self.status(("terminal", terminal.terminal_id), (one_line("$", terminal.command) + f": {plain(end)}", style),
                    *printed)


class Chat:
    """The one conversation. The main thread owns the terminal: it reads, shows and asks. What blocks runs in a thread
    of its own, and the library hands over as jobs what it would call back (`dispatch`)."""

    def __init__(self, options, command):
        self.options, self.command, self.cwd = options, command, os.path.abspath(options.cwd)
        self.jobs, self.post = (jobs := queue.Queue()), jobs.put
        self.screen, self.session, self.turn, self.settings, self.listed = Screen(), None, None, {}, []
        self.typed = False  # the user has typed something at the last prompt

    def run(self):
        """Start the agent, and go on until the user quits; returns the exit status."""
        status, trace, trusted = 0, self.options.trace, ON_TERMINAL or self.options.allow == "all"
        with acp.Client(
                self.command, version=2 if self.options.v2 else 1, name="chat", permission=self.permission,
                files=acp.LocalFiles(self.cwd, write=trusted), terminals=acp.LocalTerminals() if trusted else None,
                elicitation=self.elicitation if ON_TERMINAL else None, auth_terminal=ON_TERMINAL, on_update=self.update,
                extension_notification=self.notified, on_message=trace and trace.message,
                dispatch=self.post) as self.client, contextlib.ExitStack() as end:
            end.callback(ignore_signals)
            threading.Thread(target=self.watch, daemon=True).start()
            if self.options.auth and not self.do_login(self.options.auth):
                return ERROR
            if not self.begin(lambda: self.client.new_session(self.cwd)):
                return ERROR
            if ON_TERMINAL:
                info = self.client.agent_info
                self.screen.line(one_line(info.title or info.name, info.version, "on version") +
                                 f" {self.client.version} of the protocol; /help tells what can be typed", DIM)
            for line in iter(self.prompt, None):
                word, _, rest = line.strip().partition(" ")
                own = getattr(self, "do_" + word[1:], None) if word.startswith("/") else None
                if word == "/quit":
                    break
                elif own is not None:
                    own(rest.strip())
                elif word and self.ask(line[word.startswith("//"):]) is False and not ON_TERMINAL:
                    status = ERROR
            return status

    # ---- the main thread and the others -----------------------------------------------------------------------------

    def wait_for(self, call, *args, cancel=None):
        """What a blocking call returns or raises; meanwhile what the agent says and asks is served here. Ctrl-C gives
        it up, or runs `cancel`, and the second one quits."""
        ended, interrupted = [], False

        def run():
            try:
                result = call(*args), None
            except BaseException as error:
                result = None, error
            self.post(lambda: ended.append(result))

        threading.Thread(target=run, daemon=True).start()
        while not ended:
            try:
                self.serve(0.5)
            except KeyboardInterrupt:
                if cancel is None:
                    raise acp.Cancelled("given up") from None
                if interrupted:
                    raise
                interrupted = True
                cancel()
                self.screen.line("(cancelling; Ctrl-C again quits)", DIM)
        result, error = ended[0]
        if error is not None:
            raise error
        return result

    def serve(self, seconds):
        """Do the next thing that the library hands over; False where none came in time."""
        try:
            job = self.jobs.get(timeout=seconds)  # a limit also lets Windows see a Ctrl-C
        except queue.Empty:
            return False
        job()
        return True

    def watch(self):
        """In a thread: the end of the agent is told at once, not at the next prompt."""
        self.client.connection.wait_closed()
        self.post(lambda: self.client.notify("_chat/are_you_there"))  # raises what ended it

    def attempt(self, call, *args):
        """What the call returns, after a login where the agent asks for one. False where it failed; that is shown."""
        while True:
            try:
                return call(*args)
            except acp.AuthRequired as error:
                self.screen.line(f"The agent wants a login: {error.message}", YELLOW)
                if not self.do_login(""):
                    return False
            except acp.ConnectionClosed:
                raise
            except (acp.Error, ValueError) as error:
                self.screen.line(f"chat.py: {error}", RED)
                return False

    def read(self, prompt, withdrawn):
        """A line from the user. None once `withdrawn()` holds, which is looked at until the first key. Raises EOFError,
        KeyboardInterrupt."""
        self.typed = False
        self.screen.finish()
        self.screen.live = {}
        if not ON_TERMINAL:
            if line := sys.stdin.readline():
                return line.rstrip("\r\n")
            raise EOFError
        if readline is None:
            return input(prompt)
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
        try:
            tty.setcbreak(terminal, termios.TCSADRAIN)  # so that the first key is seen, not only the line
            mode = termios.tcgetattr(terminal)
            mode[3] |= termios.ECHO  # without it readline would not show what is typed
            print(prompt, end="", flush=True)
            while not select.select([sys.stdin], [], [], 0.1)[0]:
                if withdrawn():
                    print(end="\r\x1b[K" if ANSI else "\n", flush=True)
                    return None
            self.typed = True
            termios.tcsetattr(terminal, termios.TCSANOW, mode)
            print(end="\r", flush=True)  # where readline writes the prompt anew
            return input(prompt)
        except termios.error:  # the terminal is gone
            raise EOFError from None
        except (EOFError, KeyboardInterrupt):
            print(flush=True)
            raise
        finally:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(terminal, termios.TCSADRAIN, before)

    def prompt(self):
        """What the user says next, or None at the end; until he types, what the agent does by itself is shown."""
        lines, interrupted, line = [], False, ""
        while True:
            try:
                while self.serve(0.2 if line is None else 0):  # an answer that streams is not cut by prompts
                    pass
                line = self.read("... " if lines else "> ", lambda: not self.jobs.empty())
            except EOFError:
                return None
            except KeyboardInterrupt:
                if interrupted and not self.typed:
                    raise
                lines, interrupted, line = [], True, ""
                self.screen.line("(Ctrl-C again, or Ctrl-D, quits)", DIM)
                continue
            if line is None:
                continue
            lines.append(line[:-1] if line.endswith("\\") else line)
            if not line.endswith("\\"):
                if readline is not None and ON_TERMINAL and line:
                    readline.add_history(line)
                return "\n".join(lines)

    # ---- what the agent says and asks -------------------------------------------------------------------------------

    def update(self, session, update):
        if self.session in (None, session):  # none: one is being made or resumed, and this is its
            self.screen.update(session, update, replay=self.turn is None)
            if isinstance(update, acp.ConfigOptionUpdate):
                self.changes()

    def changes(self, show=True):
        """Show which config options have another value than before."""
        before, self.settings = self.settings, {
            one_line(each.name): one_line(shown(each.current_value))
            for each in self.session.state.config_options if not isinstance(each, acp.Unknown)} if self.session else {}
        for name, value in self.settings.items():
            if show and before.get(name) != value:
                self.screen.line(f"({name}: {value})", DIM)

    def notified(self, method, params):
        if method == "elicitation/complete":
            self.screen.line("(the page has done its work)", DIM)

    def permission(self, request):
        """Which of its options the agent gets."""
        screen, command = self.screen, getattr(request.subject, "command", None)
        if isinstance(request.subject, acp.ToolCallPermissionSubject):
            screen.tool(request.subject.tool_call)
        screen.line(one_line("Permission:", request.title), BOLD)
        for text in request.description, command and f"$ {command}\nin {request.subject.cwd}":
            if text:
                screen.line("  " + plain(text).replace("\n", "\n  "))
        allow = {"reads": acp.allow_reads, "all": acp.allow_once}.get(self.options.allow, acp.reject)
        if allow(request):
            screen.line("  allowed, as --allow says", DIM)
            return True
        if not ON_TERMINAL:
            screen.line("  rejected: there is no terminal to ask on (see --allow)", DIM)
            return False
        with contextlib.suppress(EOFError):
            chosen = self.choose([option.name for option in request.options], lambda: request.cancelled)
            return None if chosen is None else request.options[chosen]
        return False

    def choose(self, names, withdrawn=lambda: False):
        """The index of the name that the user chooses; None once it is withdrawn. Raises EOFError."""
        for number, name in enumerate(names, 1):
            self.screen.line(f"  {number}  {one_line(name)}")
        while (typed := self.read("  number: ", withdrawn)) is not None:
            if typed.strip().isdecimal() and 0 < int(typed) <= len(names):
                return int(typed) - 1
        self.screen.line("  (no longer asked)", DIM)

    def elicitation(self, request):
        """A form that is filled in, or a page that the user visits."""
        self.screen.line("Question: " + request.message, BOLD)
        try:
            if request.mode == "form":
                return self.form(request)
            self.screen.line("  " + one_line(request.url), CYAN)
            chosen = self.choose(["I visit this page", "no"], lambda: request.cancelled)
            return None if chosen is None else chosen == 0
        except EOFError:
            return False
        except ValueError as error:  # no answer of the user's can be right
            self.screen.line(f"  declined: {error}", RED)
            return False

    def form(self, request):
        schema, content = request.schema, {}
        for text in schema.title, schema.description:
            if text:
                self.screen.line("  " + one_line(text))
        self.screen.line("  (Ctrl-D declines)", DIM)
        for name, field in (schema.properties or {}).items():
            if isinstance(field, acp.Unknown):
                continue
            needed, choices, value = name in (schema.required or ()), self.ask_for(name, field), None
            while (typed := self.read("  = ", lambda: request.cancelled)) is not None:
                try:
                    value = parse(field, typed.strip(), choices) if typed.strip() else field.default
                    if value is not None:
                        acp.ElicitationSchema({name: field}, required=[name]).check({name: value})
                        content[name] = value
                    elif needed:
                        raise ValueError("this one is needed")
                    break
                except ValueError as error:
                    self.screen.line(f"  {error}", RED)
            if typed is None:
                return self.screen.line("  (no longer asked)", DIM)
        schema.check(content)
        return content

    def ask_for(self, name, field):
        """Show what a field of a form wants; returns its choices, (value, title), where it has some."""
        hints = [{"array": "some, with commas between", "boolean": "yes or no"}.get(field.type, field.type)]
        for word in "min_length max_length pattern format minimum maximum min_items max_items".split():
            if getattr(field, word, None) is not None:
                hints.append(f"{word.replace('_', ' ')} {getattr(field, word)}")
        if field.default is not None:
            hints.append(f"default {shown(field.default)}")
        self.screen.line("  " + one_line(f"{field.title or name}:", field.description, f"({', '.join(hints)})"))
        items = getattr(field, "items", field)
        titled, words = getattr(items, "one_of", None) or getattr(items, "any_of", None), getattr(items, "enum", None)
        choices = [(each.const, one_line(each.title, each.description)) for each in titled or ()] or [
            (word, word) for word in words or ()]
        for number, (_, title) in enumerate(choices, 1):
            self.screen.line(f"    {number}  {one_line(title)}")
        return choices

    # ---- what the user can do ---------------------------------------------------------------------------------------

    def ask(self, text):
        """A turn."""
        def ask():
            self.turn = self.session.prompt(text)
            return self.wait_for(self.turn.wait, cancel=self.turn.cancel)

        usage, reason = self.session.state.usage, self.attempt(ask)
        self.turn, now = None, self.session.state.usage
        if reason not in (False, "end_turn"):
            self.screen.line(one_line(f"(the turn ended: {reason})"), YELLOW)
        if now is not None and now != usage:
            share = f", {now.used / now.size:.0%}" if now.size else ""
            cost = f", {now.cost.amount:.4g} {one_line(now.cost.currency)}" if now.cost else ""
            self.screen.line(f"({now.used} of {now.size} tokens{share}{cost})", DIM)
        self.screen.finish()
        return reason

    def begin(self, call):
        """Make or take up a session by this call. False where that failed; then all is as before."""
        before = self.screen, self.session
        self.screen, self.session = Screen(), None
        made = self.attempt(self.wait_for, call)
        self.screen, self.session = (self.screen, made) if made else before
        self.changes(show=False)
        return bool(made)

    def do_help(self, rest):
        """/help: what can be typed"""
        own = [each.__doc__ for name, each in sorted(vars(Chat).items()) if name.startswith("do_")]
        self.screen.line("\n".join([*own, "/quit: end", "//COMMAND: a command of the agent that has such a name"]))
        for each in self.session.state.commands:
            if isinstance(each, acp.Command):
                hint = getattr(each.input, "hint", None)
                self.screen.line(one_line(f"/{each.name}", hint and f"[{hint}]") + one_line(": ", each.description))

    def do_set(self, rest):
        """/set [ID VALUE]: show the options and modes of the session, or set one"""
        options = [each for each in self.session.state.config_options if not isinstance(each, acp.Unknown)]
        config_id, _, value = rest.partition(" ")
        for each in options:
            select, now = isinstance(each, acp.SessionConfigSelect), each.current_value
            if value and each.config_id == config_id:
                if select:  # a name will do
                    value = next((v.value for v in each.values() if value.lower() == v.name.lower()), value)
                else:
                    value = YES_NO.get(value.lower(), value)
                if self.attempt(self.wait_for, self.session.set_config_option, config_id, value) is not False:
                    self.changes()
                return
            if not value and config_id in ("", each.config_id):
                self.screen.line(one_line(each.config_id, "=", shown(now), f"({each.name})", each.description), BOLD)
                for v in each.values() if select else ():
                    self.screen.line(f"  {'*' if v.value == now else ' '} " + one_line(
                        v.value, v.name if v.name != v.value else None, v.description and f"({v.description})"))
        if value or not options:
            self.screen.line(f"there is no option {config_id}" if value else "there are no options", RED)

    def do_sessions(self, rest):
        """/sessions [all]: list the agent's sessions of this folder, or all of them"""
        listed = self.attempt(self.wait_for, lambda: list(itertools.islice(
            self.client.list_sessions(None if rest == "all" else self.cwd), 100)))
        self.listed = listed or []
        for number, each in enumerate(self.listed, 1):
            self.screen.line(f"  {number}  " + one_line(each.title or "(no title)", each.updated_at, each.session_id))
        if listed == []:
            self.screen.line("there are none")

    def do_resume(self, rest):
        """/resume NUMBER|ID: take up a session of the list, with what was said in it where the agent can tell that"""
        listed = rest.isdecimal() and 0 < int(rest) <= len(self.listed)
        if not rest:
            return self.do_sessions("")
        info = self.listed[int(rest) - 1] if listed else acp.SessionInfo(rest, self.cwd)
        replay = self.client.offers("load")
        if self.begin(lambda: self.client.resume_session(info.session_id, info.cwd, replay=replay)):
            self.screen.line(f"(resumed: {one_line(info.title or info.session_id)})", DIM)

    def do_new(self, rest):
        """/new: begin a new session"""
        if self.begin(lambda: self.client.new_session(self.cwd)):
            self.screen.line("(a new session)", DIM)

    def do_login(self, rest):
        """/login [METHOD]: log in"""
        methods = {each.method_id: each for each in self.client.auth_methods if not isinstance(each, acp.Unknown)}
        if rest not in methods and not (methods and ON_TERMINAL):
            ways = "--auth " + " or ".join(methods) if methods else "the agent offers no way"
            self.screen.line(f"no login: {ways}", RED)
            return False
        try:
            if rest not in methods:
                self.screen.line("Ways to log in:")
                rest = [*methods][self.choose([one_line(each.name, each.description and f"({each.description})")
                                               for each in methods.values()])]
            method = methods[rest]
            if isinstance(method, acp.AuthMethodTerminal):
                env = {**os.environ, **{each.name: each.value for each in method.env or ()}}
                done = subprocess.call([*self.command, *(method.args or ())], env=env) == 0
            else:
                done = self.attempt(self.wait_for, self.client.login, rest) is not False
        except (EOFError, KeyboardInterrupt):
            return False
        self.screen.line("(logged in)" if done else "the login failed", DIM if done else RED)
        return done

    def do_logout(self, rest):
        """/logout: log out"""
        if self.attempt(self.wait_for, self.client.logout) is not False:
            self.screen.line("(logged out)", DIM)

    def complete(self, text, number):
        """For readline: the commands that begin so."""
        own = ["/quit", *("/" + name[3:] for name in sorted(vars(Chat)) if name.startswith("do_"))]
        theirs = ["/" + plain(getattr(each, "name", "")) for each in self.session.state.commands]
        return dict(enumerate(word for word in own + theirs if text and word.startswith(text))).get(number)


def parse(field, typed, choices):
    """What the user typed as the value of a field. Raises ValueError."""
    def chosen(word):
        if word.isdecimal() and 0 < int(word) <= len(choices):
            return choices[int(word) - 1][0]
        return next((value for value, title in choices if word.lower() in (value.lower(), title.lower())), word)

    if field.type == "array":
        return [chosen(word.strip()) for word in typed.split(",") if word.strip()]
    if field.type == "boolean":
        return YES_NO.get(typed.lower(), typed)
    if field.type in ("integer", "number"):
        with contextlib.suppress(ValueError):
            return int(typed)
        with contextlib.suppress(ValueError):
            return float(typed) if math.isfinite(float(typed)) else typed
    return chosen(typed)


class Trace:
    """Writes down each message, in whatever thread it comes."""

    def __init__(self, path):
        self.file, self.lock = open(path, "a", encoding="utf-8"), threading.Lock()

    def message(self, direction, message):
        with self.lock:
            now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
            self.file.write(json.dumps({"time": now, "direction": direction, "message": message}) + "\n")
            self.file.flush()


class Log(logging.Handler):
    """What the library logs is shown as all else is, not in the midst of it."""

    def __init__(self, chat):
        super().__init__(logging.WARNING)
        self.chat = chat

    def emit(self, record):
        text = self.format(record)
        self.chat.post(lambda: self.chat.screen.line(f"({text})", DIM))


def leave(number, frame):
    """The terminal was closed, or so: the agent has to end too."""
    ignore_signals()
    sys.exit(128 + number)


def ignore_signals():
    """From now on nothing disturbs the client's end, which takes some seconds where the agent does not want to end."""
    for number in signal.SIGINT, *LEAVE:
        signal.signal(number, signal.SIG_IGN)


def main(words):
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # an answer may hold what the terminal cannot show
    end = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(usage="chat.py [options] [-- COMMAND ...]")
    parser.add_argument("--v2", action="store_true", help="speak the draft of version 2 if the agent does")
    parser.add_argument("--cwd", metavar="DIR", default=".", help="the folder to work in")
    parser.add_argument("--allow", choices=["reads", "all"], help="permissions that are given without asking")
    parser.add_argument("--auth", metavar="METHOD", help="log in by this method of the agent first")
    parser.add_argument("--trace", metavar="FILE", help="append each message to this file")
    options = parser.parse_args(words[:end])
    if not os.path.isdir(options.cwd):
        parser.error(f"no such folder: {options.cwd}")
    try:
        options.trace = options.trace and Trace(options.trace)
    except OSError as error:
        parser.error(f"{options.trace}: {error.strerror}")
    chat = Chat(options, words[end + 1:] or [sys.executable, os.path.join(HERE, "echo_agent.py")])
    if ON_TERMINAL:
        logging.getLogger("acp").addHandler(Log(chat))
    if ON_TERMINAL and readline is not None:
        readline.set_auto_history(False)  # answers to questions are none
        readline.set_completer(chat.complete)
        readline.set_completer_delims(" ")
        readline.parse_and_bind("bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete")
    if ANSI and os.name == "nt":
        os.system("")  # lets the console of Windows take escape sequences
    for number in LEAVE:  # the latter when the terminal is closed
        signal.signal(number, leave)
    try:
        return chat.run()
    except KeyboardInterrupt:
        chat.screen.finish()
        return INTERRUPTED
    except acp.Error as error:
        chat.screen.line(f"chat.py: {error}", RED)
        return LOST


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

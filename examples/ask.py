"""One prompt to any agent, from the terminal:

    python3 examples/ask.py [--v2] [--yes] [--auth METHOD] PROMPT [-- COMMAND ...]

    python3 examples/ask.py "hello"
    python3 examples/ask.py "what does this folder hold?" -- gemini --acp

Without a command it asks the echo agent beside it. The answer goes to standard output as it comes; thoughts, tool
calls, diffs, the plan and questions go to standard error. Permission is asked on the terminal; where standard input is
none, nothing is allowed. The agent works in the current folder, and is offered no files and no terminals.

Exit status: 0 the turn ended well, 1 the agent answered with an error, 2 wrong use, 3 the agent could not be started or
the connection was lost, 4 cancelled, 5 refusal, 6 max_tokens, 7 max_turn_requests, 8 a reason unknown here, 130 Ctrl-C.
"""
import argparse
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))  # acp.py is one folder up
import acp  # noqa: E402

ERROR, LOST, UNKNOWN, INTERRUPTED = 1, 3, 8, 130
STATUS = {"end_turn": 0, "error": ERROR, "cancelled": 4, "refusal": 5, "max_tokens": 6, "max_turn_requests": 7}
CONTROL = re.compile(  # whole escape sequences; then what broken ones leave, and what turns the direction of text
    "\x1b\\[[0-?]*[ -/]*[@-~]|\x1b[]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)"
    "|[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plain(text):
    """Text of an agent as it may go to a terminal: without control sequences; newline and tab stay."""
    return CONTROL.sub("", text)


class Screen:
    """Writes what the agent does, as it comes."""

    def __init__(self):
        self.writing = None  # the message whose text is being written: its id, and whether it is a thought
        self.said = {}  # message -> the pieces of its text so far
        self.calls = {}  # tool call id -> the merged call, the line shown last, the diffs shown

    def text(self, message_id, thought, text):
        """More text of a message."""
        file = sys.stderr if thought else sys.stdout
        if self.writing != (message_id, thought):
            self.finish()
            print("[thought] " if thought else "", end="", file=file)
        self.writing = message_id, thought
        self.said.setdefault(self.writing, []).append(text)
        print(plain(text), end="", file=file, flush=True)

    def finish(self):
        """End the line of a message."""
        if self.writing is not None:
            print(file=sys.stderr if self.writing[1] else sys.stdout, flush=True)
        self.writing = None

    def line(self, text):
        """A line, or lines, beside the answer."""
        self.finish()
        print(plain(text), file=sys.stderr, flush=True)

    def update(self, update):
        """Show an update of the session; what is not named here is of no interest on a terminal."""
        thought = isinstance(update, (acp.AgentThoughtChunk, acp.AgentThought))
        if isinstance(update, (acp.AgentMessageChunk, acp.AgentThoughtChunk)):
            text = update.content.text if isinstance(update.content, acp.TextContent) else "[not text]"
            self.text(update.message_id, thought, text)
        elif isinstance(update, (acp.AgentMessage, acp.AgentThought)):  # a whole message, or a better one
            if update.text and update.text != "".join(self.said.pop((update.message_id, thought), [])):
                self.finish()
                self.text(update.message_id, thought, update.text)
        elif isinstance(update, acp.ToolCallUpdate):
            self.tool(update, update.content or [])
        elif isinstance(update, acp.ToolCallContentChunk):
            self.tool(acp.ToolCallUpdate(update.tool_call_id), [update.content])
        elif isinstance(update, acp.PlanUpdate) and isinstance(update.plan, acp.PlanItems):
            self.line("\n".join(["[plan]"] + [f"  {each.status}: {each.content}" for each in update.plan.entries]))
        elif isinstance(update, acp.Notice):
            self.line(f"[{update.severity}] {update.title} {update.description or ''}".rstrip())

    def tool(self, patch, content):
        """A tool call: a line when its title or status changes, each diff once."""
        call, shown, diffs = self.calls.get(patch.tool_call_id, (None, "", []))
        call = acp.apply_patch(call, patch)
        line = f"[tool] {call.title or call.name or call.tool_call_id}: {call.status or 'pending'}"
        if line != shown:
            self.line(line)
        for diff in content:
            if isinstance(diff, acp.Diff) and diff not in diffs:
                diffs.append(diff)
                changes = "\n".join(f"{each.operation} {each.path or ''}" for each in diff.changes)
                self.line(diff.patch.text.rstrip("\n") if diff.patch else changes)
        self.calls[patch.tool_call_id] = call, line, diffs

    def permission(self, request):
        """Ask on the terminal which option to take."""
        if request.tool_call is not None:
            self.tool(request.tool_call, request.tool_call.content or [])
        more = [request.description, getattr(request.subject, "command", None)]
        self.line("\n  ".join([f"[permission] {request.title}"] + [each for each in more if each]))
        if not sys.stdin.isatty():
            self.line("  rejected: there is no terminal to ask on (--yes allows)")
            return False
        for number, option in enumerate(request.options, 1):
            self.line(f"  {number}  {option.name}")
        answer = None
        while answer not in range(1, len(request.options) + 1):
            print("  number: ", end="", file=sys.stderr, flush=True)
            typed = sys.stdin.readline()
            if not typed:  # end of input
                self.line("")
                return False
            answer = int(typed) if typed.strip().isdecimal() else None
        return request.options[answer - 1]


def ask(options, command, screen):
    """The one turn; returns its stop reason."""
    permission = acp.allow_once if options.yes else screen.permission
    with acp.Client(command, version=2 if options.v2 else 1, name="ask", permission=permission) as client:
        if options.auth is not None:
            client.login(options.auth)
        with client.new_session(cwd=".").prompt(options.prompt) as turn:  # left by Ctrl-C, it cancels
            for update in turn:
                screen.update(update)
        screen.finish()
        return turn.stop_reason


def main(words):
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # an answer may hold what the terminal cannot show
    end = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(usage="ask.py [--v2] [--yes] [--auth METHOD] PROMPT [-- COMMAND ...]")
    parser.add_argument("prompt", metavar="PROMPT")
    parser.add_argument("--v2", action="store_true", help="speak the draft of version 2 if the agent does")
    parser.add_argument("--yes", action="store_true", help="allow whatever the agent asks for, each time once")
    parser.add_argument("--auth", metavar="METHOD", help="log in by this method of the agent first")
    options = parser.parse_args(words[:end])
    screen = Screen()
    try:
        reason = ask(options, words[end + 1:] or [sys.executable, os.path.join(HERE, "echo_agent.py")], screen)
    except KeyboardInterrupt:
        screen.finish()
        return INTERRUPTED
    except acp.Error as error:
        screen.line(f"ask.py: {error}")
        if isinstance(error, acp.AuthRequired):
            methods = [getattr(each, "method_id", "a method unknown here") for each in error.auth_methods]
            screen.line("log in with --auth METHOD: " + ", ".join(methods))
        answered = isinstance(error, acp.RequestError) and not isinstance(error, acp.UnsupportedVersion)
        return ERROR if answered else LOST
    if reason != "end_turn":
        screen.line(f"ask.py: the turn ended with {reason}")
    return STATUS.get(reason, UNKNOWN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

from test_acp import *  # noqa: F403

# =====================================================================================================================
# examples/chat.py
#
# It runs on a terminal of its own, a pseudo-terminal whose screen `ChatTerminal` keeps as a terminal would: what is
# asserted is what a person would see. The agent beside it plays the scene that the prompt names, and waits at
# a `gate` where the test has to look or type in between.
# =====================================================================================================================

CHAT = os.path.join(HERE, "examples", "chat.py")
CHAT_OPTIONS = {1: [], 2: ["--v2"]}
CHAT_NASTY = "\x1b]0;title\x07\x1b[5m\x9b2J\x1b\u202e\x08"  # none of which examples/chat.py or readline writes itself


class ChatTerminal:
    """A program on a terminal: what it wrote, what stands on the screen, and the keys."""

    def __init__(self, command, folder, columns=300, rows=400, **env):
        import fcntl
        import pty
        import termios

        # The pseudo-terminal has to be the controlling terminal, so that typing Ctrl-C reaches the command.
        script = ("import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
                  "os.execv(sys.argv[1], sys.argv[1:])")
        self.fd, inside = pty.openpty()
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, rows.to_bytes(2, sys.byteorder) + columns.to_bytes(2, sys.byteorder)
                    + bytes(4))
        kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        kept.update({"PYTHONPATH": HERE, "TERM": "xterm", "INPUTRC": os.devnull, "PYTHONIOENCODING": "utf-8", **env})
        self.process = subprocess.Popen([sys.executable, "-c", script, *command], cwd=str(folder), env=kept,
                                        stdin=inside, stdout=inside, stderr=inside, start_new_session=True)
        os.close(inside)
        self.columns, self.raw, self.cells, self.row, self.column, self.rest = columns, "", [[]], 0, 0, b""

    def read(self, timeout):
        """What it writes next; False where nothing came or it has ended."""
        if not select.select([self.fd], [], [], timeout)[0]:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # how Linux tells that the other end is closed
            data = b""
        text, self.rest = (self.rest + data).decode("utf-8", "ignore"), b""
        whole = self.raw + text
        if re.search("\x1b(\\[[0-9;?]*)?$", whole):  # an escape sequence that is cut: with the rest of it
            self.rest = whole[whole.rindex("\x1b"):].encode()
            text = text[:len(text) - len(self.rest)]
        self.raw += text
        for each in re.findall("\x1b\\[[0-9;?]*[a-zA-Z]|\x1b.|.", text, re.S):
            self.put(each)
        return bool(data)

    def put(self, each):
        """A character or an escape sequence comes to the screen."""
        number = int("".join(re.findall("[0-9]", each[2:])) or 0) if each[0] == "\x1b" else 0
        line = self.cells[self.row]
        if each in ("\r", "\b"):
            self.column = 0 if each == "\r" else max(0, self.column - 1)
        elif each == "\n" or (each >= " " and self.column >= self.columns):
            self.row, self.column = self.row + 1, 0
            self.cells += [[] for _ in range(self.row + 1 - len(self.cells))]
            if each != "\n":
                self.put(each)
        elif each[-1] == "A" and each[0] == "\x1b":
            self.row = max(0, self.row - (number or 1))
        elif each[-1] in "JK" and each[0] == "\x1b":
            del line[self.column:]
            if each[-1] == "J":
                del self.cells[self.row + 1:]
        elif each >= " ":
            wide = 2 if "\u1100" <= each <= "\ud7ff" or each > "\uffff" else 1
            line += [" "] * (self.column - len(line))
            line[self.column:self.column + wide] = [each] + [""] * (wide - 1)
            self.column += wide

    @property
    def lines(self):
        """The lines of the screen."""
        return ["".join(line).rstrip() for line in self.cells]

    def until(self, wanted):
        """Read until `wanted()` holds, or this stands in a line."""
        holds = wanted if callable(wanted) else lambda: any(wanted in line for line in self.lines)
        deadline = time.monotonic() + WAIT
        while not holds():
            left = deadline - time.monotonic()
            if left < 0 or not self.read(left):
                print("\n".join(self.lines))
                pytest.fail(f"it did not come: {wanted}")

    def at(self, prompt):
        """Whether it waits at this prompt with nothing typed."""
        return "".join(self.cells[self.row]).rstrip() == prompt and self.row == len(self.cells) - 1

    def ready(self, prompt=">"):
        self.until(lambda: self.at(prompt))

    def type(self, text, prompt=">"):
        """Once it waits at a prompt, type a line; returns when it is on the screen."""
        self.ready(prompt)
        row = self.row
        os.write(self.fd, text.encode() + b"\n")
        self.until(lambda: self.row > row and (prompt + " " + text).rstrip() in self.lines[row:])

    def ask(self, text):
        """Type a prompt or command; the lines that come before the next prompt."""
        self.ready()
        row = self.row
        self.type(text)
        self.ready()
        return self.lines[row + 1:-1]

    def press(self, *keys):
        os.write(self.fd, b"".join(keys))

    def interrupt(self):
        """Press Ctrl-C, once it waits: Python's readline sleeps on where a signal comes just before it begins to."""
        stat = f"/proc/{self.process.pid}/stat"
        if os.path.exists(stat):
            def waits():
                with open(stat) as file:
                    return file.read().rpartition(")")[2].split()[0] == "S"

            eventually(waits)
        self.press(b"\x03")

    def end(self):
        """Read to the end; the exit status."""
        deadline = time.monotonic() + WAIT
        while self.read(max(0, deadline - time.monotonic())):
            pass
        return self.process.wait(WAIT)

    def close(self):
        print("\n".join(self.lines))
        self.process.kill()
        self.process.wait()
        os.close(self.fd)


CHAT_AGENT = '''
import functools, json, os, sys, threading, time
import acp

NASTY = %r
HERE = sys.argv[1]

def gate(name):
    """Wait until the test has made this file."""
    deadline = time.monotonic() + 20
    while not os.path.exists(os.path.join(HERE, name)) and time.monotonic() < deadline:
        time.sleep(0.005)

class Actor(acp.Agent):
    name, title, version, versions = "actor", "The " + NASTY + "Actor", "7", (1, 2)
    loads = False

    def new_session(self, session):
        session.commands = [acp.Command("poem" + NASTY, "writes a " + NASTY + "poem", acp.TextCommandInput("subject"))]
        option = acp.SessionConfigSelectOption
        session.config_options = [
            acp.SessionConfigSelect("mode", "Mode", "ask", category="mode", options=[
                option("ask", "Ask first"), option("auto", "All" + NASTY + " alone", "asks nothing")]),
            acp.SessionConfigBoolean("web", "Web", False)]
        session.title = "Act " + NASTY + str(len(self.sessions))

    def resume_session(self, session, replay):
        if session.id not in self.sessions:
            raise acp.NotFound("no session of this name")

    def prompt(self, turn):
        return getattr(self, turn.text.split()[0].replace("/", "") if turn.text.split() else "other", self.other)(turn)

    def other(self, turn):
        turn.say("heard " + json.dumps(turn.text))
'''


@pytest.fixture
def chat(tmp_path):
    """Start examples/chat.py on a terminal against an agent whose scenes these methods are."""
    made = []

    def make(version, scenes, *options, **more):
        command = chat_command(tmp_path, scenes)
        words = [sys.executable, CHAT, *CHAT_OPTIONS[version], *options, "--", *command]
        made.append(ChatTerminal(words, tmp_path, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def chat_command(folder, scenes):
    """The command of an agent with these scenes."""
    path = folder / "actor.py"
    path.write_text(CHAT_AGENT % CHAT_NASTY + textwrap.indent(textwrap.dedent(scenes), "    ")
                    + "\nActor().run() if sys.argv[2:] == [] else sys.exit(Actor().by_hand())\n", encoding="utf-8")
    return [sys.executable, str(path), str(folder)]


def chat_lines(folder, version, scenes, *options, input):
    """Run examples/chat.py without a terminal; what it came to."""
    return subprocess.run(
        [sys.executable, CHAT, *CHAT_OPTIONS[version], *options, "--", *chat_command(folder, scenes)], cwd=str(folder),
        input=input, capture_output=True, timeout=30, encoding="utf-8", env=dict(os.environ, PYTHONPATH=HERE))


@NEEDS_TERMINALS
@BOTH
def test_chat_shows_a_turn_as_it_goes_on(chat, tmp_path, version):
    terminal = chat(version, '''
        def act(self, turn):
            turn.say("")
            turn.think("\\n\\n")
            turn.think("let me " + NASTY + "see")
            turn.plan(["look", acp.PlanEntry("write", status="in_progress")])
            with turn.tool("Look" + NASTY, kind="read") as look, turn.tool("Find", kind="search") as find:
                look.update(status="in_progress")
                find.update(status="in_progress")
                gate("looked")
                look.add("\\n".join(f"line {n}" for n in range(20)))
            turn.say("so ")
            gate("said")
            turn.say(NASTY + "far")
            with turn.tool("Write" + NASTY, kind="edit") as tool:
                path = os.path.join(turn.session.cwd, "made.txt")
                tool.diff(path, "new " + NASTY + "\\n", "old\\n")
                tool.update(status="in_progress")
                if tool.ask_permission(options=[acp.PermissionOption("y", "Yes" + NASTY, "allow_once"),
                                                acp.PermissionOption("n", "No", "reject_once")]):
                    turn.write_text_file(path, "new")
            turn.usage(50, 200, acp.Cost(0.25, "E" + NASTY + "UR"))
            return "refusal"

        def command(self, turn):
            script = "import os; print('in', os.getcwd()); print(" + repr(NASTY) + " + os.environ['WHO'])"
            for command, args in (sys.executable, ["-c", script, NASTY]), ("false", []):
                with turn.tool("Run", kind="execute") as tool:
                    with tool.terminal(command, args, env={"WHO": "me"}) as terminal:
                        turn.say(f"exit {terminal.wait().exit_code}")
    ''', "--trace", str(tmp_path / "trace"))
    terminal.type("act")
    terminal.until("* Find: in progress")
    assert terminal.lines[6:8] == ["* Look: in progress", "* Find: in progress"]  # each where it was first shown
    (tmp_path / "looked").touch()
    terminal.until("so")
    assert terminal.lines[2:-1] == [
        "let me see", "Plan:", "  [ ] look", "  [>] write", "* Look: completed", "  ... 8 lines",
        *(f"  line {number}" for number in range(8, 20)), "* Find: completed"]
    (tmp_path / "said").touch()
    terminal.type("9", "  number:")
    terminal.type("x", "  number:")
    assert not (tmp_path / "made.txt").exists()
    terminal.type("1", "  number:")
    terminal.ready()
    shown = terminal.lines[terminal.lines.index("so far"):]
    assert [line.replace(str(tmp_path), "") for line in shown if not line.startswith("  diff")] == [
        "so far", "* Write: in progress", "  --- /made.txt", "  +++ /made.txt", "  @@ -1,1 +1,1 @@", "  -old", "  +new",
        "Permission: Write", "  1  Yes", "  2  No", "  number: 9", "  number: x", "  number: 1", "* Write: completed",
        "(the turn ended: refusal)", "(50 of 200 tokens, 25%, 0.25 EUR)", ">"]
    assert (tmp_path / "made.txt").read_text() == "new"
    for styled in ("\x1b[2mlet me ", "\x1b[32m  +new", "\x1b[31m  -old", "\x1b[32m* Write", "\x1b[33m* Look"):
        assert styled in terminal.raw
    shown = terminal.ask("command")
    ends = [number for number, line in enumerate(shown) if re.match(r"\$ .*: exit [01]", line)]
    assert [shown[number][-1] for number in ends] == ["0", "1"]  # each once
    assert shown[ends[0] + 1:ends[0] + 3] == [f"  in {tmp_path}", "  me"]
    assert {"exit 0", "exit 1", "* Run: completed"} <= set(shown)
    assert ('"terminal/create"' in (tmp_path / "trace").read_text()) == (version == 1)
    terminal.press(b"\x04")
    assert terminal.end() == 0
    assert not [nasty for nasty in ("\x1b]", "\x1b[5m", "\x9b", "\u202e") if nasty in terminal.raw]


CHAT_FORM = '''
    def form(self, turn):
        titled = [acp.EnumOption("py", "Python"), acp.EnumOption("c", "C" + NASTY, "the language")]
        schema = acp.ElicitationSchema({
            "name": acp.StringPropertySchema(title="Your " + NASTY + "name", min_length=2),
            "mail": acp.StringPropertySchema(format="email", description="if you" + NASTY + " like"),
            "size": acp.StringPropertySchema(enum=["small", "large"], default="small"),
            "tongue": acp.StringPropertySchema(one_of=titled),
            "age": acp.IntegerPropertySchema(minimum=18),
            "height": acp.NumberPropertySchema(maximum=3),
            "sure": acp.BooleanPropertySchema(default=False),
            "plain": acp.MultiSelectPropertySchema(acp.StringMultiSelectItems(["a", "b", "c"]), max_items=2),
            "all": acp.MultiSelectPropertySchema(acp.TitledMultiSelectItems(titled), default=["py"]),
            "later": acp.Unknown("colour", {"type": "colour"}),
        }, required=["name", "age"], title="Who " + NASTY + "are you?")
        answer = turn.elicit("Please " + NASTY + "fill in", schema)
        turn.say(f"{answer.action} {json.dumps(answer.content)}")

    def page(self, turn):
        answer = turn.elicit_url("Log in" + NASTY, "https://example.com/" + NASTY + "x")
        answer.complete()
        turn.say(answer.action)
'''


@NEEDS_TERMINALS
def test_chat_asks_again_for_what_is_wrong_in_a_form(chat):
    terminal = chat(1, CHAT_FORM)
    terminal.type("form")
    for typed in ("", "x", "Eve", "nobody", "eve@example.com", "huge", "2", "c", "old", "17", "18.5", "18", "tall",
                  "nan", "inf", "4", "1.7", "maybe", "yes", "a,b,c", "a, 4", "1,c", ""):
        terminal.type(typed, "  =")
    terminal.ready()
    wanted = {"name": "Eve", "mail": "eve@example.com", "size": "large", "tongue": "c", "age": 18, "height": 1.7,
              "sure": True, "plain": ["a", "c"], "all": ["py"]}
    assert json.loads(terminal.lines[-2].partition("accept ")[2]) == wanted
    shown = "\n".join(terminal.lines)
    for line in ("Question: Please fill in", "  Who are you?", "  Your name: (string, min length 2)", "    1  small",
                 "  mail: if you like (string, format email)", "  size: (string, default small)",
                 "    2  C the language", "  this one is needed", "  age: (integer, minimum 18)",
                 "  sure: (yes or no, default no)", "  all: (some, with commas between, default py)"):
        assert "\n" + line + "\n" in shown
    assert terminal.raw.count("\x1b[31m  ") == 14  # as many wrong answers
    terminal.type("form")
    terminal.type("Eve", "  =")
    terminal.ready("  =")
    terminal.press(b"\x04")
    terminal.ready()
    assert terminal.lines[-2] == "decline {}"
    for typed, action in ("1", "accept"), ("2", "decline"):
        terminal.type("page")
        terminal.type(typed, "  number:")
        terminal.until(lambda: "(the page has done its work)" in terminal.lines[-4:])  # in no order with the answer
        terminal.ready()
        assert terminal.lines[-8:-3] == [
            "Question: Log in", "  https://example.com/x", "  1  I visit this page", "  2  no", "  number: " + typed]
        assert sorted(terminal.lines[-3:-1]) == ["(the page has done its work)", action]
    terminal.process.send_signal(signal.SIGHUP)  # as when the window is closed; it ends the agent first
    assert terminal.end() == 128 + signal.SIGHUP


@NEEDS_TERMINALS
@BOTH
def test_chat_has_commands_of_its_own_and_sends_the_others_to_the_agent(chat, tmp_path, version):
    terminal = chat(version, "", "--trace", str(tmp_path / "trace"))
    assert terminal.ask("/poem on tabs") == ['heard "/poem on tabs"']
    shown = terminal.ask("/help")
    assert "/set [ID VALUE]: show the options and modes of the session, or set one" in shown
    assert shown[-1] == "/poem [subject]: writes a poem"
    assert terminal.ask("//help me") == ['heard "/help me"']
    assert terminal.ask("") == []
    terminal.type("one\\")
    terminal.type("two", "...")
    terminal.ready()
    assert terminal.lines[-2] == 'heard "one\\ntwo"'
    options = ["mode = ask (Mode)", "  * ask Ask first", "    auto All alone (asks nothing)", "web = no (Web)"]
    assert terminal.ask("/set") == options
    assert terminal.ask("/set mode auto") == ["(Mode: auto)"]
    assert terminal.ask("/set mode ask FIRST") == ["(Mode: ask)"]
    assert terminal.ask("/set web on") == ["(Web: yes)"]
    assert terminal.ask("/set web") == ["web = yes (Web)"]
    assert "-32602" in terminal.ask("/set mode none")[0]
    assert terminal.ask("/set size 3") == ["there is no option size"]
    assert terminal.ask("/new") == ["(a new session)"]
    first, second = terminal.ask("/sessions all")
    assert [re.sub("session-.*", "ID", line) for line in (first, second)] == ["  1  Act 0 ID", "  2  Act 1 ID"]
    assert "no session of this name" in terminal.ask("/resume nothing")[0]
    assert terminal.ask("/resume 1") == [
        "> /poem on tabs", 'heard "/poem on tabs"', "> /help me", 'heard "/help me"', "> one", "two",
        'heard "one\\ntwo"', "(resumed: Act 0)"]
    assert terminal.ask("on we go") == ['heard "on we go"']
    terminal.ask("/set mode auto")
    assert len(terminal.ask("/sessions")) == 2
    terminal.press(b"/qu\t\r")
    assert terminal.end() == 0
    with open(tmp_path / "trace", encoding="utf-8") as file:
        trace = [json.loads(line) for line in file]
    assert [sorted(each) for each in trace] == [["direction", "message", "time"]] * len(trace)
    methods = [each["message"].get("method") for each in trace if each["direction"] == "out"]
    assert methods[:3] == ["initialize", "session/new", "session/prompt"]
    assert methods.count("session/set_config_option") == 5 and methods.count("session/prompt") == 4
    calls = [each["message"]["id"] for each in trace if each["direction"] == "out"]
    assert calls == [each["message"]["id"] for each in trace if "method" not in each["message"]]
    assert sorted(each["time"] for each in trace) == [each["time"] for each in trace]


@NEEDS_TERMINALS
@BOTH
def test_chat_cancels_the_turn_at_ctrl_c_and_quits_at_the_second(chat, tmp_path, version):
    terminal = chat(version, """
        def long(self, turn):
            turn.say("at work")
            turn.wait(20)
        def asking(self, turn):
            turn.say("yes" if turn.ask_permission("May I?") else "no")
        def stubborn(self, turn):
            turn.say("at work again")
            gate("never")
    """)
    terminal.type("long")
    terminal.until("at work")
    terminal.interrupt()
    terminal.ready()
    assert terminal.lines[-3:-1] == ["(cancelling; Ctrl-C again quits)", "(the turn ended: cancelled)"]
    terminal.type("asking")
    terminal.ready("  number:")
    terminal.interrupt()
    terminal.ready()
    assert terminal.lines[-2] == "(the turn ended: cancelled)"
    terminal.type("stubborn")
    terminal.until("at work again")
    terminal.interrupt()
    terminal.until(lambda: terminal.raw.count("cancelling") == 3)
    (tmp_path / "never").touch()
    terminal.interrupt()
    assert terminal.end() == 130
    assert "Traceback" not in terminal.raw


@NEEDS_TERMINALS
def test_chat_clears_the_line_at_ctrl_c_and_quits_at_the_second_in_a_row(chat):
    terminal = chat(1, "")
    terminal.ready()
    for typed in "half a li", "another":  # what was typed in between begins the count anew
        terminal.press(typed.encode())
        terminal.until("> " + typed)
        terminal.interrupt()
        terminal.ready()
        assert terminal.lines[-3:-1] == ["> " + typed, "(Ctrl-C again, or Ctrl-D, quits)"]
    assert terminal.ask("whole") == ['heard "whole"']
    terminal.interrupt()
    terminal.until(lambda: terminal.lines[-2:] == ["(Ctrl-C again, or Ctrl-D, quits)", ">"])
    terminal.interrupt()
    assert terminal.end() == 130
    assert "Traceback" not in terminal.raw


CHAT_LOGIN = """
    def __init__(self):
        self.file = os.path.join(HERE, "login")
        self.auth_methods = [
            acp.AuthMethodAgent("key", "A " + NASTY + "key"), acp.AuthMethodAgent("card", "A card", "of the bank"),
            acp.AuthMethodTerminal("shell", "In a shell", args=["--login"], env=[acp.EnvVariable("TOKEN", "gold")])]
    def login(self, method_id):
        if method_id == "card":
            raise acp.RequestError(-32603, "the card has " + NASTY + "expired")
        open(self.file, "w").close()
    def by_hand(self):
        if input("token: ") != os.environ["TOKEN"]:
            return 1
        self.login("by hand")
    def logout(self):
        os.remove(self.file)
    def prompt(self, turn):
        if not os.path.exists(self.file):
            raise acp.AuthRequired("who are " + NASTY + "you?")
        turn.say("welcome")
"""


@NEEDS_TERMINALS
def test_chat_logs_in_where_the_agent_asks_for_it(chat):
    terminal = chat(2, CHAT_LOGIN)
    terminal.type("hello")
    terminal.type("2", "  number:")
    terminal.ready()
    assert terminal.lines[2:-3] == ["The agent wants a login: who are you?", "Ways to log in:", "  1  A key",
                                    "  2  A card (of the bank)", "  3  In a shell", "  number: 2"]
    assert "the card has expired" in terminal.lines[-3] and terminal.lines[-2] == "the login failed"
    terminal.type("hello again")
    terminal.type("3", "  number:")
    terminal.type("gold", "token:")
    terminal.ready()
    assert terminal.lines[-3:-1] == ["(logged in)", "welcome"]
    assert terminal.ask("/logout") == ["(logged out)"]
    assert terminal.ask("/login key") == ["(logged in)"]
    assert terminal.ask("hello") == ["welcome"]


def test_chat_without_a_terminal_logs_in_only_as_it_is_told_to(tmp_path):
    refused = chat_lines(tmp_path, 1, CHAT_LOGIN, input="hello\n")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.splitlines() == ["The agent wants a login: who are you?", "no login: --auth key or card"]
    done = chat_lines(tmp_path, 1, CHAT_LOGIN, "--auth", "key", input="hello\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "welcome\n", "(logged in)\n")


@pytest.mark.parametrize("version, options, allowed", [
    (1, [], []), (2, [], []), (1, ["--allow", "reads"], ["read"]), (2, ["--allow", "all"], ["read", "edit"])])
def test_chat_without_a_terminal_takes_prompts_in_lines_and_allows_what_it_is_told(tmp_path, version, options, allowed):
    done = chat_lines(tmp_path, version, """
        def act(self, turn):
            turn.think("hm")
            turn.plan(["do"])
            said = []
            for kind in "read", "edit":
                with turn.tool(kind + NASTY, kind=kind) as tool:
                    said += [kind] if tool.ask_permission() else []
            turn.say(NASTY + repr(said))
        def fail(self, turn):
            raise acp.RequestError(-32603, "too " + NASTY + "hot")
    """, *options, input="act\n\nfail\nlast")
    assert (done.returncode, done.stdout) == (1, f"{allowed}\nheard \"last\"\n")
    ends = {True: "completed", False: "failed" if version == 1 else "cancelled"}
    answers = {True: "  allowed, as --allow says", False: "  rejected: there is no terminal to ask on (see --allow)"}
    assert done.stderr.splitlines()[:-1] == [
        "[thought] hm", "Plan:", "  [ ] do", *[line for kind in ("read", "edit") for line in (
            f"* {kind}: pending", f"Permission: {kind}", answers[kind in allowed],
            *([f"* {kind}: in progress"] if kind in allowed else []), f"* {kind}: {ends[kind in allowed]}")]]
    assert "too hot" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("words, status, said", [
    (["--", sys.executable, "-c", "import sys; sys.exit('out of paper')"], 3, "out of paper"),
    (["--", "no-such-command-anywhere"], 3, "no-such-command-anywhere"), (["hello"], 2, "usage:"), ([], 0, "")])
def test_chat_tells_by_its_exit_status_why_it_ended(tmp_path, words, status, said):
    done = run_program([sys.executable, CHAT, *words], tmp_path, stdin=None, input="hi\n")
    assert (done.returncode, done.stdout) == (status, "" if status else "You said: hi\n")
    assert said in done.stderr and "Traceback" not in done.stderr


CHAT_BESIDE = """
    def begin(self, turn):
        turn.say("begun")
        threading.Thread(target=self.beside, args=(turn.session,)).start()

    def beside(self, session):
        gate("speak")
        session.send(acp.AgentMessageChunk("m1", acp.TextContent("by " + NASTY)))
        session.send(acp.AgentMessageChunk("m1", acp.TextContent("the way")))
        gate("ask")
        options = [acp.PermissionOption("y", "Yes", "allow_once"), acp.PermissionOption("n", "No", "reject_once")]
        request = acp.RequestPermissionRequest(session.id, "May I too?", options, subject=acp.ToolCallPermissionSubject(
            acp.ToolCallUpdate("beside", title="May I too?")))
        ask = functools.partial(session.peer.request, "session/request_permission",
                                acp.to_wire(request, session.peer.version))
        outcome = ask()["outcome"]
        session.send(acp.AgentMessage("m2", [acp.TextContent("you said " + outcome["optionId"])]))
        gate("withdraw")
        try:
            ask(timeout=0.3)
        except acp.Timeout:
            pass
        gate("end")
        os._exit(7)
"""


@NEEDS_TERMINALS
@BOTH
def test_chat_shows_and_asks_what_comes_between_the_turns(chat, tmp_path, version):
    terminal = chat(version, CHAT_BESIDE, "--trace", str(tmp_path / "trace"))
    assert terminal.ask("begin") == ["begun"]
    (tmp_path / "speak").touch()
    terminal.until("by the way")  # at once, where nothing is typed
    terminal.ready()
    terminal.press(b"half a line")
    terminal.until("> half a line")
    (tmp_path / "ask").touch()
    eventually(lambda: "request_permission" in (tmp_path / "trace").read_text())
    terminal.press(b", whole\r")  # what is typed is not disturbed: it is asked behind it
    terminal.type("2", "  number:")
    terminal.until("you said n")
    terminal.ready()
    assert terminal.lines[1:5] == ["> begin", "begun", "by the way", "> half a line, whole"]
    asked = terminal.lines.index("* May I too?: pending")
    assert terminal.lines[asked + 1:asked + 5] == ["Permission: May I too?", "  1  Yes", "  2  No", "  number: 2"]
    assert {'heard "half a line, whole"', "you said n"} <= set(terminal.lines)
    (tmp_path / "withdraw").touch()
    terminal.ready("  number:")
    terminal.ready()
    assert terminal.lines[-2] == "  (no longer asked)"
    (tmp_path / "end").touch()
    assert terminal.end() == 3
    assert "status 7" in terminal.lines[-2]


@NEEDS_TERMINALS
def test_chat_rewrites_a_status_also_where_it_takes_several_rows(chat, tmp_path):
    terminal = chat(1, """
        def act(self, turn):
            with turn.tool("\u5199\u6587\u4ef6 " * 6 + "and that is all") as tool, turn.tool("short") as other:
                tool.update(status="in_progress")
                gate("go")
                other.update(status="in_progress")
    """, columns=30)
    terminal.type("act")
    terminal.until("* short: pending")
    (tmp_path / "go").touch()
    terminal.ready()
    start = terminal.lines.index("> act")
    word = "\u5199\u6587\u4ef6"
    assert terminal.lines[start + 1:-1] == [
        f"* {word} {word} {word} {word}", f"{word} {word} and that is", "all: completed", "* short: completed"]


@NEEDS_TERMINALS
def test_chat_makes_do_without_readline_and_without_colours(chat, tmp_path):
    (tmp_path / "readline.py").write_text("raise ImportError('there is none')")
    terminal = chat(1, CHAT_BESIDE, TERM="dumb", PYTHONPATH=os.pathsep.join([str(tmp_path), HERE]))
    assert terminal.ask("begin") == ["begun"]
    (tmp_path / "speak").touch()
    eventually(lambda: terminal.ask("") and terminal.lines[-2].endswith("the way"))  # after Enter, then
    terminal.press(b"\x04")
    assert terminal.end() == 0
    assert "\x1b" not in terminal.raw

import fcntl
import pty
import struct
import termios

from test_acp import *  # noqa: F403

# == The probe ========================================================================================================
#
# examples/probe.py as a real process, against good, bad, hanging and dying agents. All are started at once, since they
# mostly wait; what the probe says is read from its --json.

PROBE_GOOD = '''
import os, sys
sys.path.insert(0, here)
import acp
class Good(acp.Agent):
    name, title, version, versions = "good", "Good \\x1b[31mone", "7", (1, 2)
    auth_methods = [acp.AuthMethodAgent("key", "By key")]
    ready = False
    def login(self, method_id):
        self.ready = True
    def logout(self):
        self.ready = False
    def new_session(self, session):
        if not self.ready:
            raise acp.AuthRequired("first the key")
        session.commands = [acp.Command("again", "do it again")]
        modes = [acp.SessionConfigSelectOption("ask", "Ask"), acp.SessionConfigSelectOption("code", "Code")]
        session.config_options = [
            acp.SessionConfigSelect("mode", "Mode", category="mode", current_value="ask", options=modes)]
    def prompt(self, turn):
        os.abort()  # the probe never prompts
Good().run()
'''
PROBE_BAD = '''
print("Welcome!", flush=True)
for line in sys.stdin.buffer:
    try:
        request = json.loads(line)
    except ValueError:
        continue
    if isinstance(request, list):
        continue
    method, params = request.get("method"), request.get("params")
    if method is None:
        continue
    elif "id" not in request:
        write({"jsonrpc": "2.0", "id": None, "error": {"code": -32601, "message": "what?"}})
    elif method == "initialize" and form == 1:
        answer(request, {"protocolVersion": params["protocolVersion"],
                         "agentCapabilities": {"sessionCapabilities": {"list": {}, "close": {}}},
                         "authMethods": [{"type": "terminal", "id": "t", "name": "T"}]})
    elif method == "initialize":
        answer(request, {"protocolVersion": 2, "info": {"name": "bad"}, "capabilities": {"session": {}}})
    elif method == "session/new":
        write(update("s", {"sessionUpdate": "agent_message_chunk", "content": {"type": "text"}}))
        answer(request, {"sessionId": "s", "configOptions": [{"id": "o"}]})
        write({"jsonrpc": "2.0", "id": 77, "method": "fs/read_text_file", "params": {"path": "/x"}})
    elif method in ("session/list", "session/close"):
        error(request, -32603)
    else:
        answer({"id": str(request["id"]) if request["id"] in (0, 1234567) else request["id"]}, {})
time.sleep(60)
'''
PROBE_ODD = '''
hello()
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], **({} if held else {
    name: subprocess.DEVNULL for name in ("stdin", "stdout", "stderr")}))
with open(pids, "a") as file:
    file.write(f"{child.pid} ")
new()
exec(deed)
'''
PROBE_DEEDS = {  # what the agent does once it has made a session, and what the probe says of it
    "exits": ("sys.exit(7)", "it ended with exit status 7"),
    "is killed": ("os.kill(os.getpid(), 9)", "it ended with exit status -9"),
    "closes its stdout": ("os.close(1); time.sleep(60)", "it closed its stdout"),
    "closes its stdin": ("os.close(0); time.sleep(60)", "it closed its stdin"),
    "nests": ("write(b'{\"a\":' * 900 + b'1' + b'}' * 900 + b'\\n'); sys.exit(1)", "1 other lines, the first "),
    "hangs": ("time.sleep(60)", "no answer within 3 s"),
    "floods with lines": ("while True: os.write(1, b'noise\\n' * 1000)", "it floods its stdout"),
    "floods with updates": ("while True: write(*[chunk('s', 'x' * 1000)] * 100)", "it floods its stdout"),
    "floods with bytes": ("while True: os.write(1, bytes(65536))", "it floods its stdout")}


@pytest.fixture(scope="module")
def probe_environment(tmp_path_factory):
    """An environment in which processes share what they have compiled: acp.py is large, and many of them import it."""
    return dict(os.environ, PYTHONDONTWRITEBYTECODE="", PYTHONPYCACHEPREFIX=str(tmp_path_factory.mktemp("compiled")))


@pytest.fixture(scope="module")
def probes(tmp_path_factory, probe_environment):
    """The folder, and the running probes by name."""
    folder, started = tmp_path_factory.mktemp("probes"), {}

    def start(name, command, *options):
        line = [sys.executable, os.path.join(HERE, "examples", "probe.py"), *options, "--", *command]
        started[name] = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
            env=probe_environment, cwd=folder)

    def agent(name, source, **values):
        path = folder / f"{name}.py"
        path.write_text("".join(f"{key} = {value!r}\n" for key, value in values.items()) + source)
        return [sys.executable, str(path)]

    for name, (deed, _) in PROBE_DEEDS.items():
        source = agent(name, PRELUDE + PROBE_ODD, deed=deed, held=name in ("exits", "is killed"),
                       pids=str(folder / (name + ".pids")))
        start(name, source, "--json", "--timeout", "3")
    for form in 1, 2:
        start(f"bad {form}", agent(f"bad {form}", PRELUDE + PROBE_BAD, form=form), "--json", "--timeout", "20")
    good = agent("good", PROBE_GOOD, here=HERE)
    start("good", good, "--json", "--auth", "key")
    start("no login", good)
    yield folder, started
    for process in started.values():
        process.kill()
        process.communicate()


def probe_told(probes, name, status):
    """What this probe has printed, which ends with this status: (of, rule) -> (outcome, what came), and all of it."""
    process = probes[1][name]
    out, errors = process.communicate(timeout=WAIT * 10)
    print(out, errors)
    assert process.returncode == status and errors == ""
    told = json.loads(out)
    return {(each["of"], each["rule"]): (each["result"], each["came"]) for each in told["rules"]}, told


def probe_outcomes(rules, of):
    """The rules of this start, by outcome."""
    found = collections.defaultdict(list)
    for (each, rule), (outcome, _) in rules.items():
        if each == of:
            found[outcome].append(rule)
    return found


PROBE_HELLO = "initialize is answered with a version that it speaks"
PROBE_STARTS = "asked for 99", "asked for 0", "before initialize"


def test_a_probe_of_a_good_agent_finds_all_rules_kept(probes):
    rules, told = probe_told(probes, "good", 0)
    assert {outcome for outcome, _ in rules.values()} == {"passed"} and len(rules) == 46
    assert told["count"] == {"passed": 46}
    assert told["versions"]["1"]["session"]["modes"]["currentModeId"] == "ask"
    assert [each["name"] for version in "12" for each in told["versions"][version]["commands"]] == ["again", "again"]


def test_a_probe_without_a_login_leaves_out_what_needs_one(probes):
    process = probes[1]["no login"]
    out, errors = process.communicate(timeout=WAIT * 10)
    print(out, errors)
    assert process.returncode == 0 and "\x1b" not in out
    for line in ("  agent          Good  one good 7", "  auth methods   key", "  modes          none",
                 "  not applicable session/new makes a session: a login is needed",
                 "  passed         ids come back as they are, integers and strings"):
        assert out.splitlines().count(line) == 2, line
    assert out.splitlines()[-1] == "36 passed, 0 failed, 0 advice, 8 not applicable"


def test_a_probe_of_a_bad_agent_finds_each_broken_rule(probes):
    rules, _ = probe_told(probes, "bad 1", 1)
    first = probe_outcomes(rules, "asked for 1")
    assert first["passed"] == [
        PROBE_HELLO, "session/new makes a session", "it stays until the end of its stdin, and does not flood"]
    assert first["advice"] == [
        "a relative cwd is refused with -32602",
        "a prompt to an unknown session is refused with -32002 and its sessionId", "it exits at the end of its stdin"]
    assert len(first["failed"]) == 13 and not first["not applicable"]
    came = {rule: what for (of, rule), (outcome, what) in rules.items() if of == "asked for 1"}
    assert came["ids come back as they are, integers and strings"].startswith("asked with the id 0, it answered {")
    assert came["nothing but messages on stdout"] == "1 other lines, the first not JSON: Welcome!"
    assert "content.text" in came["its updates are well-formed, and it asks for nothing that was not offered"]
    assert came["an array is refused with one -32600 and the id null, and the next line served"] == "nothing came"
    assert rules["asked for 2", PROBE_HELLO] == ("failed", "it answered 2 in the form of version 1")
    assert [outcome for (of, _), (outcome, _) in rules.items() if of in PROBE_STARTS] == ["failed", "failed", "advice"]


def test_a_probe_finds_the_broken_rules_of_version_2(probes):
    rules, _ = probe_told(probes, "bad 2", 1)
    assert rules["asked for 1", PROBE_HELLO] == ("failed", "it answered protocolVersion 2")
    assert rules["asked for 2", PROBE_HELLO] == ("failed", "info.version: required, but missing")
    assert {"an unknown transport of an MCP server is refused with -32602",
            "an unknown replayFrom is refused with -32602", "an unknown config option is refused with -32602",
            "a prompt to an unknown session is refused with -32002 and its sessionId",
            "session/resume tells the state before it answers"} < set(probe_outcomes(rules, "asked for 2")["failed"])
    assert [outcome for (of, _), (outcome, _) in rules.items() if of in PROBE_STARTS] == ["passed", "failed", "failed"]


@pytest.mark.parametrize("name", PROBE_DEEDS)
def test_a_probe_survives_an_agent_that(probes, name):
    rules, _ = probe_told(probes, name, 1)
    assert rules["asked for 1", "session/new makes a session"] == ("passed", None)
    assert any((what or "").startswith(PROBE_DEEDS[name][1]) for _, what in rules.values())
    for pid in (probes[0] / (name + ".pids")).read_text().split():  # nothing of its process group is left
        eventually(lambda pid=pid: probe_is_dead(pid))


def probe_is_dead(pid):
    """A zombie counts: whoever inherited it has not collected it yet."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"
    return True


@pytest.mark.parametrize("command, why", [
    (["/there/is/no/such/agent"], "cannot be started"), ([], "usage: probe.py [--json]"),
    ([sys.executable, "-c", "import sys; sys.exit('no \x1b[1mkey')"], "ended with exit status 1\n  no  key"),
    ([sys.executable, "-c", "import time; time.sleep(60)"], "no answer within 0.3 s")],
    ids=["is missing", "is not named", "is dead", "is mute"])
def test_a_probe_says_why_there_is_no_agent(probe_environment, command, why):
    line = [sys.executable, os.path.join(HERE, "examples", "probe.py"), "--timeout", "0.3", "--", *command]
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=WAIT * 3, stdin=subprocess.DEVNULL, env=probe_environment)
    assert done.returncode == 2 and done.stdout == "" and why in done.stderr


# == The trace ========================================================================================================
#
# examples/trace.py as a real process. The test is the editor; the agent is a short script, or one that writes back what
# it reads.

TRACE_MIRROR = """
    import os
    while True:
        data = os.read(0, 1 << 20)
        if not data:
            break
        while data:
            data = data[os.write(1, data):]
    """


class Traced:
    """A running trace, whose standard streams the test holds, and its log."""

    def __init__(self, folder, code, *options, file="trace.log"):
        self.file = folder / file
        command = [sys.executable, "-c", textwrap.dedent(code)]
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "examples", "trace.py"), str(self.file), *options, "--", *command],
            bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def read(self, size=None, until=None):
        """So many bytes of what comes out, or up to these, or all."""
        data = b""
        while len(data) != size and not (until and data.endswith(until)):
            assert select.select([self.process.stdout], [], [], WAIT)[0], "nothing came"
            piece = self.process.stdout.read(1 if until else size - len(data) if size else 1 << 20)
            if not piece:
                assert size is until is None, "the end came"
                break
            data += piece
        return data

    def entries(self):
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []

    def close(self):
        self.process.kill()
        self.process.wait()
        for stream in self.process.stdin, self.process.stdout, self.process.stderr:
            stream.close()


@pytest.fixture
def traced(tmp_path):
    """Start a trace; all are ended after the test."""
    started = []

    def start(code, *options, **file):
        started.append(Traced(tmp_path, code, *options, **file))
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_a_trace_passes_every_byte_as_it_comes(traced):
    trace = traced(TRACE_MIRROR)
    for piece in (b"{", b'"half a line', b"\r\n\r\n", b"\xff\xfe\x00 no JSON \x1b[31m\n", b'["an array"]\n', b"\n \n",
                  "\u2028\ufeff".encode(), b"the end, without its newline"):
        trace.process.stdin.write(piece)
        assert trace.read(len(piece)) == piece  # there before the line's end
    trace.process.stdin.close()
    assert trace.read() == b"" and trace.process.wait(WAIT) == 0
    assert trace.process.stderr.read() == b""
    assert [(each["direction"], each["odd"]) for each in trace.entries() if each["direction"] == "to agent"] == [
        ("to agent", True)] * 4


def test_a_trace_passes_huge_lines_both_ways_at_once(traced):
    trace, sent = traced(TRACE_MIRROR), random.Random(5).randbytes(1 << 20) * 6 + b"\n"
    writing = threading.Thread(target=lambda: (trace.process.stdin.write(sent[:-1]), trace.process.stdin.write(b"\n")))
    writing.start()
    assert trace.read(len(sent)) == sent
    writing.join(WAIT)


def test_a_trace_logs_methods_ids_sizes_and_what_an_answer_answers(traced):
    script = """
        import sys, time
        sys.stdin.readline()
        for line in ('{"jsonrpc":"2.0","method":"session/update","params":{}}', '{"id":7,"method":"fs/read_text_file"}',
                     '{"id":1,"result":{}}', '{"id":"1","error":{"code":-32601,"message":"no"}}'):
            print(line, flush=True)
        sys.stdin.readline()
        """
    trace = traced(script)
    asked = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}\n'
    trace.process.stdin.write(asked)
    trace.read(until=b"no\"}}\n")
    trace.process.stdin.write(b'{"id":7,"result":{"content":"text"}}\n')
    assert trace.process.wait(WAIT) == 0
    told = {(each["direction"], each.get("method") or each.get("answers"), each.get("id"), each.get("error")): each
            for each in trace.entries()}
    assert set(told) == {
        ("to agent", "initialize", 1, None), ("to editor", "session/update", None, None),
        ("to editor", "fs/read_text_file", 7, None), ("to editor", "initialize", 1, None),
        ("to editor", None, "1", -32601), ("to agent", "fs/read_text_file", 7, None)}
    assert told["to agent", "initialize", 1, None]["size"] == len(asked) - 1
    assert 0 <= told["to editor", "initialize", 1, None]["seconds"] < WAIT
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", each["time"]) for each in told.values())
    assert "content" not in trace.file.read_text() and trace.file.stat().st_mode & 0o777 == 0o600


def test_a_trace_of_whole_messages_masks_environments_and_headers(traced):
    trace = traced(TRACE_MIRROR, "--full")
    message = {"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": {"cwd": "/here", "mcpServers": [
        {"name": "a", "command": "run", "env": [{"name": "KEY", "value": "s3cret"}, "K=s3cret"]},
        {"name": "b", "headers": [{"name": "Authorization", "value": "s3cret", "_meta": {"name": "s3cret"}}]},
        {"name": "c", "env": {"name": "s3cret", "value": "s3cret", "deep": [{"x": "s3cret"}]}, "Env": "s3cret"}]}}
    torn = b'{"env": {"KEY": "s3cret"\n{"headers": ["s3cret"]\njunk\n'
    odd = b'{"id": {"env": "s3cret"}, "method": {"env": "s3cret"}}\n{"id": [], "error": {"code": {"env": "s3cret"}}}\n'
    for line in json.dumps(message).encode() + b"\n", torn, odd:
        trace.process.stdin.write(line)
        trace.read(len(line))
    trace.process.stdin.close()
    assert trace.process.wait(WAIT) == 0
    first, *others = [each for each in trace.entries() if each["direction"] == "to editor"]
    assert "s3cret" not in trace.file.read_text()
    servers = first["message"]["params"]["mcpServers"]
    assert servers[0]["env"] == [{"name": "KEY", "value": "***"}, "***"] and servers[0]["command"] == "run"
    assert servers[2]["env"] == {"name": "***", "value": "***", "deep": [{"x": "***"}]}
    assert [each.get("text") for each in others] == [None, None, "junk", None, None]


@pytest.mark.parametrize("code, status", [
    ("import sys; sys.exit(7)", 7), ("import os; os.kill(os.getpid(), 15)", -15),
    ("import os; os.kill(os.getpid(), 9)", -9),
    ("import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3)']); sys.exit(3)", 3)],
    ids=["exits", "is terminated", "is killed", "leaves a child with its stdout"])
def test_a_trace_ends_as_the_agent_that(traced, code, status):
    with within(WAIT):
        assert traced(code).process.wait(WAIT) == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_trace_passes_signals_on_and_leaves_nothing_behind(traced, number):
    script = """
        import os, signal, sys, time
        def ended(number, frame):
            print("caught", number, flush=True)
            sys.exit(number)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, ended)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        print(os.getpid(), flush=True)
        while True:
            time.sleep(0.05)  # a signal that comes right before it is handled after it
        """
    trace = traced(script)
    pid = trace.read(until=b"\n").strip().decode()
    for before in *[signal.SIGUSR1] * 10, number:  # those that go before must not hold it up
        trace.process.send_signal(before)
    assert trace.read(until=b"\n") == b"caught %d\n" % number
    assert trace.process.wait(WAIT) == number
    assert probe_is_dead(pid)


def test_a_trace_leaves_ctrl_c_to_the_terminal(tmp_path):
    script = """
        import os, signal, sys, time
        caught = []
        signal.signal(signal.SIGINT, lambda number, frame: (caught.append(number), print("caught", flush=True)))
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(len(caught)))
        print("ready", flush=True)
        while True:
            time.sleep(0.05)
        """
    pid, terminal = pty.fork()
    if pid == 0:
        trace = os.path.join(HERE, "examples", "trace.py")
        os.execv(sys.executable, [sys.executable, trace, str(tmp_path / "log"), "--", sys.executable, "-c",
                                  textwrap.dedent(script)])
    with open(terminal, "r+b", buffering=0) as screen:
        for key, shown in (b"", b"ready"), (b"\x03", b"caught"):
            screen.write(key)
            said = b""
            while shown not in said:
                assert select.select([screen], [], [], WAIT)[0], said
                said += screen.read(1000)
        os.kill(pid, signal.SIGTERM)
        ends = []
        eventually(lambda: ends.append(os.waitpid(pid, os.WNOHANG)) or ends[-1][0] == pid)
        assert ends[-1][1] == 1 << 8  # one, not one more from the trace


def test_a_trace_passes_the_end_of_each_stream_on(traced):
    out = traced("""
        import os, sys
        print("hi", flush=True)
        sys.stdin.readline()
        os.close(1)
        sys.stderr.write("closed")
        sys.stdin.read()
        """)
    out.process.stdin.write(b"go\n")
    assert out.read() == b"hi\n" and out.process.stderr.read(6) == b"closed"
    assert out.process.poll() is None
    out.process.stdin.close()
    assert out.process.wait(WAIT) == 0
    into = traced("import os, sys, time; os.close(0); print('hi', flush=True); time.sleep(60)")
    assert into.read(3) == b"hi\n"
    with pytest.raises(BrokenPipeError):
        for _ in range(int(WAIT / 0.01)):
            into.process.stdin.write(b"x")
            time.sleep(0.01)
    reader = traced("""
        import os
        try:
            while True:
                print("x" * 1000, flush=True)
        except BrokenPipeError:
            os._exit(5)
        """)
    assert reader.read(3) == b"xxx"
    reader.process.stdout.close()
    assert reader.process.wait(WAIT) == 5


def test_a_trace_without_a_log_says_so_and_goes_on(traced, tmp_path):
    for file, what in ("no/such/folder", b"No such file or directory"), ("/dev/full", b"No space left on device"):
        trace = traced(TRACE_MIRROR, file=file)
        for _ in range(3):
            trace.process.stdin.write(b'{"method":"a"}\n')
            assert trace.read(15) == b'{"method":"a"}\n'
        trace.process.stdin.close()
        assert trace.process.wait(WAIT) == 0
        said = trace.process.stderr.read()
        assert what in said and said.count(b"\n") == 1
    os.mkfifo(tmp_path / "pipe")  # opening it waits for a reader that never comes
    stuck = traced(TRACE_MIRROR, file="pipe")
    stuck.process.stdin.write(b'{"method":"a"}\n')
    assert stuck.read(15) == b'{"method":"a"}\n'
    stuck.process.stdin.close()
    assert stuck.process.wait(WAIT) == 0 and b"the end is left out" in stuck.process.stderr.read()


@pytest.mark.parametrize("words", [
    [], ["log"], ["log", "--full", "--"], ["--other", "--", "cat"], ["a", "b", "--", "cat"]])
def test_a_trace_that_is_started_wrongly_says_how_to_use_it(words):
    done = subprocess.run([sys.executable, os.path.join(HERE, "examples", "trace.py"), *words], capture_output=True,
                          text=True, timeout=WAIT * 3, stdin=subprocess.DEVNULL)
    assert done.returncode == 2 and done.stderr.startswith("usage: trace.py FILE [--full]")


@BOTH
def test_a_client_and_an_agent_do_not_notice_a_trace_between_them(tmp_path, probe_environment, version):
    command = [sys.executable, os.path.join(HERE, "examples", "trace.py"), str(tmp_path / "log"), "--",
               sys.executable, os.path.join(HERE, "examples", "echo_agent.py")]
    with acp.Client(command, version=version, env=probe_environment) as client:
        assert client.new_session("/").ask("hi") == "You said: hi"
        assert client.version == version
    entries = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [each["answers"] for each in entries if "answers" in each] == ["initialize", "session/new", "session/prompt"]


# == The host that owns the main thread ===============================================================================
#
# examples/embed as a real process on a pseudo-terminal. The test types, and reads a record of what came to the window
# and in which thread, since curses paints no more of a text than what differs.

EMBED_RECORDED = '''
import json, sys, threading
sys.path.insert(0, folder)
import host, plugin

def recorded(cls, name):
    function = getattr(cls, name)
    def call(self, *args):
        what, where = args[0] if name == "choose" else args[-1], threading.current_thread()
        with open(file, "a") as record:
            record.write(json.dumps([name, str(what), where is threading.main_thread()]) + "\\n")
        return function(self, *args)
    setattr(cls, name, call)

for cls, name in (host.Host, "show"), (host.Host, "choose"), (plugin.Plugin, "update"), (plugin.Plugin, "permission"):
    recorded(cls, name)
host.main(sys.argv[1:])
'''
EMBED_AGENT = '''
import os, sys, threading
sys.path.insert(0, here)
import acp
class Asks(acp.Agent):
    name, versions = "asks", (1, 2)
    def prompt(self, turn):
        turn.say("You said:\x1b[1m " + turn.text)
        if turn.text == "wait":
            turn.wait(60)
        with turn.tool("Look", kind="read") as tool:
            threading.Timer(0.2, turn.say, ["meanwhile"]).start()
            turn.say("allowed" if tool.ask_permission("May I?") else "refused")
with open(pids, "w") as file:
    file.write(str(os.getpid()))
Asks().run()
'''


class Embedded:
    """The program on its terminal."""

    def __init__(self, folder, env, *words):
        self.record, self.screen = folder / "record", b""
        driver = folder / "driver.py"
        driver.write_text(f"folder, file = {os.path.join(HERE, 'examples', 'embed')!r}, {str(self.record)!r}\n"
                          + EMBED_RECORDED)
        self.terminal, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, str(driver), *words], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env=dict(env, TERM="xterm"))
        os.close(theirs)
        self.reading = threading.Thread(target=self.read, daemon=True)
        self.reading.start()

    def read(self):
        with contextlib.suppress(OSError):  # the other end is closed
            while data := os.read(self.terminal, 65536):
                self.screen += data

    def type(self, keys):
        os.write(self.terminal, keys.encode())

    def calls(self):
        text = self.record.read_text() if self.record.exists() else ""
        return [json.loads(line) for line in text.splitlines(True) if line.endswith("\n")]

    def comes(self, name, text, times=1):
        """Wait until this was called with such a text."""
        eventually(lambda: [each[0] == name and text in each[1] for each in self.calls()].count(True) >= times)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.reading.join(WAIT)
        os.close(self.terminal)


@pytest.fixture
def embedded(tmp_path, probe_environment):
    """Start the program; it is ended after the test, which shows the screen if it fails."""
    started = []

    def start(*words):
        started.append(Embedded(tmp_path, probe_environment, *words))
        return started[-1]

    yield start
    for each in started:
        each.close()
        print(each.screen.decode("utf-8", "replace"), each.calls())


@BOTH
def test_an_embedded_client_is_called_back_in_the_main_thread_of_its_host(embedded, tmp_path, version):
    agent = tmp_path / "asks.py"
    agent.write_text(f"here, pids = {HERE!r}, {str(tmp_path / 'pid')!r}\n" + EMBED_AGENT)
    host = embedded(*["--v2"] * (version == 2), "--", sys.executable, str(agent))
    host.comes("show", "[asks is ready]")
    host.type("hi\r")
    host.comes("choose", "")
    host.comes("show", "meanwhile")  # the loop turns while the dialog is open
    host.type("1")
    host.comes("show", "allowed")
    host.comes("show", "[end_turn]")
    host.type("again\r")
    host.comes("choose", "", times=2)
    host.type("2")
    host.comes("show", "refused")
    host.comes("show", "[end_turn]", times=2)
    host.type("wait\r")
    host.comes("update", "wait")
    host.type("\x1b")
    host.comes("show", "[cancelled]")
    pid = (tmp_path / "pid").read_text()
    host.type("\x04")
    assert host.process.wait(WAIT) == 0
    assert {name for name, _, _ in host.calls()} == {"show", "choose", "update", "permission"}
    assert all(main for _, _, main in host.calls())
    assert b"[asks is ready]" in host.screen and b"[1m" not in host.screen
    assert probe_is_dead(pid)


def test_an_embedded_client_starts_without_holding_its_host_up(embedded):
    host = embedded("--", sys.executable, "-c", "import time; time.sleep(60)")
    eventually(lambda: b">" in host.screen)  # painted, while the agent has not answered
    host.type("hi\r")
    host.comes("show", "[not ready]")
    host.type("\x04")
    assert host.process.wait(WAIT) == 0
    lost = embedded("--", "/there/is/no/such/agent")
    lost.comes("show", "[no agent: ")
    lost.type("\x04")
    assert lost.process.wait(WAIT) == 0

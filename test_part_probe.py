from test_acp import *  # noqa: F403

# == The probe ========================================================================================================
#
# examples/probe.py as a real process, against good, bad, hanging and dying agents. All of them are started at once, since
# most of their time is waiting; what the probe says is read from its --json.

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
        session.config_options = [acp.SessionConfigSelect("mode", "Mode", category="mode", current_value="ask", options=[
            acp.SessionConfigSelectOption("ask", "Ask"), acp.SessionConfigSelectOption("code", "Code")])]
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
        answer(request, {"protocolVersion": params["protocolVersion"], "agentCapabilities": {
            "sessionCapabilities": {"list": {}, "close": {}}}, "authMethods": [{"type": "terminal", "id": "t", "name": "T"}]})
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
    "hangs": ("time.sleep(60)", "no answer within 2 s"),
    "floods with lines": ("while True: os.write(1, b'noise\\n' * 1000)", "it floods its stdout"),
    "floods with updates": ("while True: write(*[chunk('s', 'x' * 1000)] * 100)", "it floods its stdout"),
    "floods with bytes": ("while True: os.write(1, bytes(65536))", "it floods its stdout")}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """An environment in which processes share what they have compiled: acp.py is large, and many of them import it."""
    return dict(os.environ, PYTHONDONTWRITEBYTECODE="", PYTHONPYCACHEPREFIX=str(tmp_path_factory.mktemp("compiled")))


@pytest.fixture(scope="module")
def probes(tmp_path_factory, compiled):
    """The folder, and the running probes by name."""
    folder, started = tmp_path_factory.mktemp("probes"), {}

    def start(name, command, *options):
        line = [sys.executable, os.path.join(HERE, "examples", "probe.py"), *options, "--", *command]
        started[name] = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
            env=compiled, cwd=folder)

    def agent(name, source, **values):
        path = folder / f"{name}.py"
        path.write_text("".join(f"{key} = {value!r}\n" for key, value in values.items()) + source)
        return [sys.executable, str(path)]

    for name, (deed, _) in PROBE_DEEDS.items():
        source = agent(name, PRELUDE + PROBE_ODD, deed=deed, held=name in ("exits", "is killed"),
                       pids=str(folder / (name + ".pids")))
        start(name, source, "--json", "--timeout", "2")
    for form in 1, 2:
        start(f"bad {form}", agent(f"bad {form}", PRELUDE + PROBE_BAD, form=form), "--json", "--timeout", "5")
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
    out, errors = process.communicate(timeout=WAIT * 3)
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
    out, errors = process.communicate(timeout=WAIT * 3)
    print(out, errors)
    assert process.returncode == 0 and "\x1b" not in out
    for line in ("  agent          Good  [31mone good 7", "  auth methods   key", "  modes          none",
                 "  not applicable session/new makes a session: a login is needed",
                 "  passed         ids come back as they are, integers and strings"):
        assert out.splitlines().count(line) == 2, line
    assert out.splitlines()[-1] == "36 passed, 0 failed, 0 advice, 8 not applicable"


def test_a_probe_of_a_bad_agent_finds_each_broken_rule(probes):
    rules, _ = probe_told(probes, "bad 1", 1)
    first = probe_outcomes(rules, "asked for 1")
    assert first["passed"] == [
        PROBE_HELLO, "session/new makes a session", "it stays until the end of its stdin, and does not flood"]
    assert first["advice"] == ["a relative cwd is refused with -32602", "it exits at the end of its stdin"]
    assert len(first["failed"]) == 14 and not first["not applicable"]
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
    ([sys.executable, "-c", "import sys; sys.exit('no \x1b[1mkey')"], "ended with exit status 1\n  no  [1mkey"),
    ([sys.executable, "-c", "import time; time.sleep(60)"], "no answer within 0.3 s")],
    ids=["is missing", "is not named", "is dead", "is mute"])
def test_a_probe_says_why_there_is_no_agent(compiled, command, why):
    line = [sys.executable, os.path.join(HERE, "examples", "probe.py"), "--timeout", "0.3", "--", *command]
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=WAIT, stdin=subprocess.DEVNULL, env=compiled)
    assert done.returncode == 2 and done.stdout == "" and why in done.stderr

"""Says what an agent is, and whether it keeps the rules of the protocol:

    python3 examples/probe.py [--json] [--auth METHOD] [--cwd DIR] [--timeout S] -- COMMAND ...

    python3 examples/probe.py -- gemini --acp

COMMAND is started five times: asked for version 1 and for the draft of version 2, and where it speaks that, the rules
are checked on its raw lines; asked for versions 99 and 0; and spoken to before initialize. It is offered no files, no
terminals; a session is made in DIR (default: the current folder), and no prompt reaches a model. --auth logs in first.
An answer is waited for S seconds (default 60); once one has not come, a tenth of that. However the agent misbehaves,
it is told of and the agent is ended.

A rule is passed, failed, not applicable (a login is needed, say), or there is advice: what came is not what is
recommended, but the specification does not demand it. Exit status: 0 all kept, 1 some broken, 2 wrong use, or the agent
could not be started or did not answer initialize.
"""
import argparse
import collections
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # acp.py is one folder up
import acp  # noqa: E402

CONTROL = re.compile(  # whole escape sequences; then what broken ones leave, and what turns the direction of text
    "\x1b\\[[0-?]*[ -/]*[@-~]|\x1b[]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)|[\0-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+")
MOST_BYTES, MOST_LINES = 4 << 20, 10_000  # on stdout; more than that, unasked, is a flood
GRACE = 0.2  # seconds after which nothing more comes that was sent before the answer of a later request
LEAVING = 5  # seconds in which an agent should be gone at the end of its stdin, if answers may take as long
NOBODY = "probe-no-such-thing"  # a session, an option, a method that is not there


class Verdict(Exception):
    """How a rule came out, and what came. A check that just returns has passed."""
class Failed(Verdict): result = "failed"
class Advice(Verdict): result = "advice"
class Moot(Verdict): result = "not applicable"
class Silent(Failed):
    """No answer came."""


def plain(text, limit=300):
    """Text of an agent as one line for a terminal: no control characters, and not endless."""
    text = CONTROL.sub(" ", text if isinstance(text, str) else json.dumps(text, ensure_ascii=False))
    return text if len(text) <= limit else text[:limit] + " ..."


def part(value, *keys):
    """What lies under these keys, however odd the agent's answer is; else None."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def items(value, *keys):
    """The objects of a list that lies there."""
    found = part(value, *keys)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def deep(value, left=100):
    """Whether it is nested so deeply that to look into it could exhaust the stack."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return not left or any(deep(each, left - 1) for each in inner)


def fault(message):
    """What is wrong with this as a message of JSON-RPC 2.0, or None."""
    if not isinstance(message, dict):
        return "not a JSON object"
    if deep(message):
        return "nested too deeply"
    if message.get("jsonrpc") != "2.0":
        return "jsonrpc is not 2.0"
    if isinstance(message.get("id"), bool) or not isinstance(message.get("id"), (str, int, type(None))):
        return "the id is no string and no integer"
    if "method" in message:
        return None if isinstance(message["method"], str) else "the method is no string"
    if "id" not in message or ("result" in message) == ("error" in message):
        return "no method, and not a response either"
    error = message.get("error", {"code": 0, "message": ""})
    good = type(part(error, "code")) is int and isinstance(part(error, "message"), str)
    return None if good else "the error has no code or no message"


class Peer:
    """A started agent, in raw lines. Whatever it does, no call takes much longer than the time it is given."""

    def __init__(self, command, timeout):
        self.timeout = self.patience = timeout
        self.changed = threading.Condition()  # guards what follows
        self.answers = {}  # type and value of an id -> the response, None while it is waited for
        self.strays = []  # responses that nobody asked for
        self.messages, self.noise, self.logged, self.tail = [], [], 0, b""  # tail: the end of its stderr
        self.over = None  # why nothing more comes
        self.ids = iter(range(1, 1 << 30))
        self.process = subprocess.Popen(
            [shutil.which(command[0]) or command[0], *command[1:]], bufsize=0, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with contextlib.suppress(AttributeError, OSError):  # what is written fits into a pipe; never wait for it
            os.set_blocking(self.process.stdin.fileno(), False)
        self.reading, self.draining, watching = (
            threading.Thread(target=work, daemon=True) for work in (self.read, self.drain, self.watch))
        for thread in self.reading, self.draining, watching:
            thread.start()

    # ---- what it writes ---------------------------------------------------------------------------------------------

    def read(self):
        data, pieces, size, lines = b"more", [], 0, 0
        while data and size <= MOST_BYTES and lines <= MOST_LINES:
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            size, lines = size + len(data), lines + data.count(b"\n")
            pieces.append(data)
            if b"\n" in data or not data:
                *whole, rest = b"".join(pieces).split(b"\n")
                pieces = [rest]
                for line in whole if data else [rest]:
                    self.take(line)
        if data:
            self.ended(f"it floods its stdout: {lines} lines, {size >> 10} KiB")
            self.kill()
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1)
                return
            self.ended("it closed its stdout")

    def watch(self):  # the end of its stdout alone does not tell: a child of it may hold that open
        status = self.process.wait()
        for thread in self.reading, self.draining:
            thread.join(1)
        self.ended(f"it ended with exit status {status}")

    def ended(self, why):
        with self.changed:
            self.over = self.over or why
            self.changed.notify_all()

    def take(self, line):
        if not line.strip():
            return
        try:
            message = json.loads(line.decode(), parse_constant=lambda word: int("not JSON"))
            wrong = fault(message)
        except (ValueError, RecursionError):
            wrong = "not JSON"
        with self.changed:
            if wrong:
                self.noise.append(f"{wrong}: {plain(line[:150].decode('utf-8', 'replace'))}")
            elif "method" in message:
                self.messages.append(message)
            else:
                key = type(message["id"]), message["id"]
                if self.answers.get(key, 0) is None:
                    self.answers[key] = message
                else:
                    self.strays.append(message)
            self.changed.notify_all()
        if not wrong and "method" in message and "id" in message:  # nothing was offered
            with contextlib.suppress(OSError, ValueError):
                error = {"code": -32601, "message": "method not found", "data": {"method": message["method"]}}
                self.send({"jsonrpc": "2.0", "id": message["id"], "error": error})

    def drain(self):
        for data in iter(lambda: os.read(self.process.stderr.fileno(), 1 << 16), b""):
            self.logged, self.tail = self.logged + data.count(b"\n"), (self.tail + data)[-2000:]

    # ---- what it is told --------------------------------------------------------------------------------------------

    def send(self, message):
        data = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
        return self.process.stdin.write(data) == len(data)

    def write(self, message):
        try:
            if not self.send(message):
                raise Silent("it does not read its stdin")
        except (OSError, ValueError):
            with self.changed:
                self.changed.wait_for(lambda: self.over, 2)  # why it has no stdin
            self.ended("it closed its stdin")
            raise Silent(self.over) from None

    def ask(self, method, params=None, id=None):
        """The response to a request; raises Silent, or Failed where it came under another id."""
        id = next(self.ids) if id is None else id
        key, limit = (type(id), id), self.patience
        with self.changed:
            self.answers[key], mark = None, len(self.strays)
        self.write({"jsonrpc": "2.0", "id": id, "method": method, "params": {} if params is None else params})
        with self.changed:
            self.changed.wait_for(lambda: self.answers[key] or self.over or self.strays[mark:], limit)
            stray = self.strays[mark:]
            if stray and not self.answers[key]:  # under another id, or to something before
                self.changed.wait_for(lambda: self.answers[key] or self.over, GRACE)
            if self.answers[key]:
                return self.answers[key]
            if stray:
                raise Failed(f"asked with the id {json.dumps(id)}, it answered {plain(stray[0], 150)}")
            self.patience = min(self.patience, max(0.2, self.timeout / 10))
            raise Silent(self.over or f"no answer within {limit:g} s")

    def exchange(self, data):
        """What comes back for what is no request: all that comes before the answer of a request right behind it."""
        mark = len(self.strays)
        self.write(data)
        try:
            self.ask(NOBODY)
        except Silent as error:
            if self.over or self.strays[mark:]:
                raise
            raise Moot(f"it cannot be told: {error}") from None
        except Failed:  # what has come for `data` is told below
            pass
        with self.changed:
            self.changed.wait_for(lambda: self.strays[mark:], GRACE)
            found, self.strays[mark:] = self.strays[mark:], []
        return found

    def kill(self):
        """Nothing of it is left."""
        with contextlib.suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        self.process.wait()


RULES = []  # (the rule, its check, from which version on, is it about sessions, can it be told of a dead agent too)


def rule(words, since=1, sessions=False, afterwards=False):
    """The method below checks this. What it raises is the outcome."""
    def keep(check):
        RULES.append((words, check, since, sessions, afterwards))
        return check
    return keep


def refused(answer, code, strict):
    """The answer has to be an error; where not `strict`, this code is only recommended."""
    came = part(answer, "error", "code")
    if came is None:
        raise Failed(f"it answered with a result: {plain(answer['result'], 150)}")
    if came == -32000:
        raise Moot("a login is needed")
    if came != code:
        raise (Failed if strict else Advice)(f"it answered {plain(answer['error'])}")


def result(answer):
    """The answer must not be an error."""
    if part(answer, "error", "code") == -32000:
        raise Moot("a login is needed")
    if "error" in answer:
        raise Failed(plain(answer["error"]))
    return answer["result"]


def hello(asked):
    """The parameters of initialize; beyond version 1 in its words too, since the agent may answer 1."""
    ours = acp.InitializeRequest(2, acp.Implementation("probe", "1"))
    return {**acp.to_wire(ours, 1), **(acp.to_wire(ours, 2) if asked != 1 else {}), "protocolVersion": asked}


class Checked(Peer):
    """An agent, and the rules of the version that it speaks, in the order in which they are checked."""

    version, session = None, None  # the one spoken, and the id of the one made
    hello, made = {}, {}  # the results of initialize and session/new

    def well_formed(self, cls, data):
        try:
            acp.from_wire(cls, data, self.version)
        except acp.MalformedMessage as error:
            raise Failed(str(error)) from None

    def begin(self, asked):
        answer = self.ask("initialize", hello(asked))
        if part(answer, "error", "code") == -32022:
            return
        told = self.hello = result(answer)
        version = part(told, "protocolVersion")
        if type(version) is not int or not 1 <= version <= min(asked, 2):
            raise Failed(f"it answered protocolVersion {plain(version)}")
        form = 2 if "agentCapabilities" not in told and "info" in told else 1
        if version != form:
            raise Failed(f"it answered {version} in the form of version {form}")
        self.version = version
        self.well_formed(acp.InitializeResponse, told)

    def commands(self):
        found = items(self.made, "availableCommands")
        for message in list(self.messages):
            found = items(message, "params", "update", "availableCommands") or found
        return found

    @property
    def id(self):
        if self.session is None:
            raise Moot("there is no session")
        return self.session

    @rule("session/new makes a session", sessions=True)
    def new(self):
        made = result(self.ask("session/new", self.setup))
        if isinstance(part(made, "sessionId"), str):
            self.session, self.made = made["sessionId"], made
        self.well_formed(acp.NewSessionResponse, made)
        if self.version == 1:  # its commands follow in an update
            with self.changed:
                self.changed.wait_for(lambda: self.commands() or self.over, GRACE)

    @rule("an unknown method is answered with -32601")
    def unknown_method(self):
        for method in NOBODY, "_" + NOBODY:
            refused(self.ask(method), -32601, strict=True)

    @rule("an unknown notification is not answered")
    def unknown_notification(self):
        for answer in self.exchange({"jsonrpc": "2.0", "method": NOBODY, "params": {}}):
            raise Failed(plain(answer))

    @rule("$/cancel_request of nothing is not answered")
    def cancel_of_nothing(self):
        for answer in self.exchange({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": NOBODY}}):
            raise Failed(plain(answer))

    @rule("ids come back as they are, integers and strings")
    def ids_come_back(self):
        for id in 0, 1234567, "0", "", "id-\u00e9":
            self.ask(NOBODY, id=id)

    @rule("parameters of a wrong type are refused with -32602", sessions=True)
    def wrong_params(self):
        refused(self.ask("session/new", {**self.setup, "cwd": 5}), -32602, strict=False)

    @rule("a relative cwd is refused with -32602", sessions=True)
    def relative_path(self):
        answer = self.ask("session/new", {**self.setup, "cwd": "."})
        if "result" in answer:
            raise Advice("it made a session there")
        refused(answer, -32602, strict=False)

    @rule("a prompt to an unknown session is refused with -32002 and its sessionId", sessions=True)
    def unknown_session(self):
        answer = self.ask("session/prompt", {"sessionId": NOBODY, "prompt": [{"type": "text", "text": "hello"}]})
        if part(answer, "error", "code") == -32000:
            raise Moot("a login is needed")
        if (part(answer, "error", "code"), part(answer, "error", "data", "sessionId")) != (-32002, NOBODY):
            raise (Failed if self.version == 2 else Advice)(f"it answered {plain(answer)}")  # version 1 recommends it

    @rule("an unknown config option is refused with -32602", sessions=True)
    def unknown_option(self):
        value = {"value": "x", **({"type": "id"} if self.version == 2 else {})}
        params = {"sessionId": self.id, "configId": NOBODY, **value}
        if not items(self.made, "configOptions"):
            raise Moot("it has no config options")
        refused(self.ask("session/set_config_option", params), -32602, strict=self.version == 2)

    @rule("an unknown transport of an MCP server is refused with -32602", since=2, sessions=True)
    def unknown_transport(self):
        servers = [{"type": "_probe", "name": "nobody"}]
        refused(self.ask("session/new", {**self.setup, "mcpServers": servers}), -32602, strict=True)

    @rule("session/resume tells the state before it answers", since=2, sessions=True)
    def resume(self):
        seen = len(self.messages)
        result(self.ask("session/resume", {**self.setup, "sessionId": self.id}))
        if "state_update" not in [part(each, "params", "update", "sessionUpdate") for each in self.messages[seen:]]:
            raise Failed("no state_update came")

    @rule("an unknown replayFrom is refused with -32602", since=2, sessions=True)
    def unknown_replay(self):
        params = {**self.setup, "sessionId": self.id, "replayFrom": {"type": "_probe"}}
        refused(self.ask("session/resume", params), -32602, strict=True)

    @rule("session/list gives a list", sessions=True)
    def listing(self):
        self.offered("list")
        self.well_formed(acp.ListSessionsResponse, result(self.ask("session/list")))

    @rule("session/close closes the session", sessions=True)
    def closing(self):
        self.offered("close")
        result(self.ask("session/close", {"sessionId": self.id}))

    def offered(self, name):
        if self.version == 1 and part(self.hello, "agentCapabilities", "sessionCapabilities", name) is None:
            raise Moot("it is not offered")

    @rule("a line that is not JSON is answered with -32700 and the id null, and the next one served")
    def bad_json(self):
        self.no_request(b'{"jsonrpc": "2.0", "id": "torn", "method\n', -32700)

    @rule("an array is refused with one -32600 and the id null, and the next line served")
    def array(self):
        self.no_request(b'[{"jsonrpc": "2.0", "id": "inside", "method": "%s"}]\n' % NOBODY.encode(), -32600)

    def no_request(self, data, code):
        answers = self.exchange(data)
        if [(each["id"], part(each, "error", "code")) for each in answers] != [(None, code)]:
            raise Failed(", ".join(map(plain, answers)) or "nothing came")
        self.ask(NOBODY)

    @rule("it stays until the end of its stdin, and does not flood", afterwards=True)
    def staying(self):
        if self.over:
            raise Failed(self.over)

    @rule("it exits at the end of its stdin")
    def leaving(self):
        limit = min(LEAVING, self.patience)
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise Advice(f"it was still there {limit:g} s later") from None

    @rule("its updates are well-formed, and it asks for nothing that was not offered", afterwards=True)
    def updates(self):
        for message in self.messages:
            if message["method"] == "session/update":
                self.well_formed(acp.UpdateSessionNotification, message.get("params"))
            elif message["method"].startswith(("fs/", "terminal/", "elicitation/")):
                raise Failed(f"it sent {plain(message['method'])}")
        if any(each.get("type") == "terminal" for each in items(self.hello, "authMethods")):
            raise Failed("it has an auth method of type terminal")

    @rule("each request is answered once, and nothing else is", afterwards=True)
    def once(self):
        for answer in self.strays:
            raise Failed(plain(answer))

    @rule("nothing but messages on stdout", afterwards=True)
    def noise_on_stdout(self):
        if self.noise:
            raise Failed(f"{len(self.noise)} other lines, the first {self.noise[0]}")


class Probe:
    """All of it: starts the agent time and again, and keeps what comes out."""

    def __init__(self, command, options):
        self.command, self.options = command, options
        self.setup = {"cwd": os.path.abspath(options.cwd), "mcpServers": []}
        self.rules = []  # (of which start, the rule, its outcome, what came)
        self.versions = {}  # version -> what the agent says of itself in it

    @contextlib.contextmanager
    def started(self):
        peer = Checked(self.command, self.options.timeout)
        peer.setup = self.setup
        try:
            yield peer
        finally:
            peer.kill()

    def check(self, of, rule, check, *args):
        """Returns what it raised, None where the rule is kept."""
        verdict = None
        try:
            check(*args)
        except Verdict as error:
            verdict = error
        self.rules.append((of, rule, verdict.result if verdict else "passed", str(verdict) if verdict else None))
        return verdict

    def speak(self, asked):
        """Ask for this version and check all its rules. Returns why there was no answer at all."""
        of = f"asked for {asked}"
        with self.started() as peer:
            verdict = self.check(of, "initialize is answered with a version that it speaks", peer.begin, asked)
            if isinstance(verdict, Silent):
                return "\n  ".join([str(verdict), *map(plain, peer.tail.decode("utf-8", "replace").splitlines()[-5:])])
            if peer.version != asked:
                return None
            if self.options.auth is not None:
                method = "authenticate" if asked == 1 else "auth/login"
                self.check(of, f"{method} logs in", lambda: result(peer.ask(method, {"methodId": self.options.auth})))
            for words, check, since, sessions, afterwards in RULES:
                if asked < since:
                    continue
                elif peer.over and not afterwards:
                    self.rules.append((of, words, Moot.result, peer.over))
                elif sessions and asked == 2 and part(peer.hello, "capabilities", "session") is None:
                    self.rules.append((of, words, Moot.result, "it offers no sessions"))
                else:
                    self.check(of, words, check, peer)
            self.versions[asked] = {"initialize": peer.hello, "session": peer.made, "commands": peer.commands(),
                                    "stderrLines": peer.logged}
        return None

    def newest(self):
        with self.started() as peer:
            answer = peer.ask("initialize", hello(99))
            if part(answer, "result", "protocolVersion") != max(self.versions):
                raise Failed(plain(answer))

    def oldest(self):
        with self.started() as peer:
            answer = peer.ask("initialize", hello(0))
            supported = part(answer, "error", "data", "supported")
            good = part(answer, "error", "code") == -32022 and isinstance(supported, list) and 2 in supported
            if not (good if 2 in self.versions else part(answer, "result", "protocolVersion") == 1):
                raise Failed(plain(answer))

    def early(self):
        strict = 2 in self.versions
        with self.started() as peer:
            answer = peer.ask("session/new", self.setup)
            if "result" not in peer.ask("initialize", hello(max(self.versions))):
                raise Failed("initialize was refused afterwards")
            if part(answer, "error", "code") != -32600:
                raise (Failed if strict else Advice)(f"it answered {plain(answer)}")

    def run(self):
        """Returns why the agent cannot be probed, None where it can."""
        lost = self.speak(1) or self.speak(2)
        if self.versions:
            self.check("asked for 99", "it answers its newest", self.newest)
            self.check("asked for 0", "-32022 and what it supports, if it speaks 2; else its newest", self.oldest)
            self.check("before initialize", "session/new is refused with -32600, initialize then served", self.early)
        return None if self.versions else lost


# ---- the table ------------------------------------------------------------------------------------------------------

def leaves(value, path=""):
    """The capabilities that are there, by their path on the wire."""
    inner = {key: each for key, each in value.items() if each not in (None, False)} if isinstance(value, dict) else {}
    if not inner:
        return [] if not path else [path] if value in (True, {}) or isinstance(value, dict) else [f"{path}={value}"]
    return [leaf for key, each in inner.items() for leaf in leaves(each, f"{path}.{key}" if path else key)]


def named(objects, *keys, current=None):
    """What these are called; a star for the current one."""
    found = [next((str(each[key]) for key in keys if key in each), "?") for each in objects]
    return ", ".join(each + "*" * (each == current) for each in found)


def table(about, version):
    """The rows of what the agent says of itself."""
    told, session = about["initialize"], about["session"]
    info = part(told, "info" if version == 2 else "agentInfo") or {}
    yield "agent", " ".join(str(part(info, key)) for key in ("title", "name", "version") if part(info, key))
    yield "capabilities", ", ".join(leaves(part(told, "capabilities" if version == 2 else "agentCapabilities")))
    yield "auth methods", named(items(told, "authMethods"), "methodId", "id")
    now = part(session, "modes", "currentModeId")
    yield "modes", named(items(session, "modes", "availableModes"), "id", current=now)
    for option in items(session, "configOptions"):
        values = [value for each in items(option, "options") for value in items(each, "options") or [each]]
        now = option.get("currentValue")
        yield "config option", f"{named([option], 'configId', 'id')}: {named(values, 'value', current=now) or now}"
    yield "commands", named(about["commands"], "name")
    yield "stderr", f"{about['stderrLines']} lines"


def main(words):
    for stream in sys.stdout, sys.stderr:
        stream.reconfigure(errors="replace")
    end = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        usage="probe.py [--json] [--auth METHOD] [--cwd DIR] [--timeout S] -- COMMAND ...")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--auth", metavar="METHOD", help="log in by this method of the agent first")
    parser.add_argument("--cwd", default=".", metavar="DIR", help="the folder of the session")
    parser.add_argument("--timeout", type=float, default=60, metavar="S", help="seconds that an answer may take")
    options, command = parser.parse_args(words[:end]), words[end + 1:]
    if not command:
        parser.error("there is no command")
    probe = Probe(command, options)
    try:
        lost = probe.run()
    except (OSError, ValueError) as error:
        lost = f"cannot be started: {error}"
    except KeyboardInterrupt:
        return 130
    if lost is not None:
        print(f"probe.py: {plain(command[0])}: {lost}", file=sys.stderr)
        return 2
    count = collections.Counter(outcome for *_, outcome, _ in probe.rules)
    if options.json:
        rules = [dict(zip(("of", "rule", "result", "came"), rule)) for rule in probe.rules]
        print(json.dumps({"command": command, "versions": probe.versions, "rules": rules, "count": count}, indent=2))
    else:
        for version, about in probe.versions.items():
            print(f"version {version}")
            for name, text in table(about, version):
                print(f"  {name:14} {plain(text, 1000) or 'none'}")
        shown = None
        for of, rule, outcome, came in probe.rules:
            if of != shown:
                print(of)
            shown = of
            print(f"  {outcome:14} {rule}" + (f": {plain(came)}" if came else ""))
        print(f"{count['passed']} passed, {count['failed']} failed, {count['advice']} advice, "
              f"{count['not applicable']} not applicable")
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

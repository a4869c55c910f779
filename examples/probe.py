"""Says what an agent is, and whether it keeps the rules of the protocol:

    python3 examples/probe.py [--json] [--auth METHOD] [--cwd DIR] [--timeout S] -- COMMAND ...

    python3 examples/probe.py -- gemini --acp

COMMAND is started five times: asked for version 1 and for the draft of version 2, with the rules checked on its raw
lines in whichever it speaks; asked for versions 99 and 0; and spoken to before initialize. It is offered no files and no
terminals, a session is made in DIR (default: the current folder), and no prompt reaches a model. --auth logs in first.
Each answer is waited for at most S seconds (default 30); once one has not come, a tenth of that. It may hang, flood or
die: then the rules say so.

Each rule has passed, has failed, is not applicable (a login is needed, say), or is advice: what came is not what the
specification recommends, but it does not demand it. Exit status: 0 all kept, 1 some broken, 2 wrong use, or the agent
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
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # acp.py is one folder up
import acp  # noqa: E402

CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+")  # also what turns the direction of text
MOST_BYTES, MOST_LINES = 16 << 20, 20_000  # on stdout; more than that, unasked, is a flood
GRACE = 0.2  # seconds after which nothing more comes that was sent before the answer of a later request
LEAVING = 5  # seconds in which an agent should be gone at the end of its stdin
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


def fault(message):
    """What is wrong with this as a message of JSON-RPC 2.0, or None."""
    if not isinstance(message, dict):
        return "not a JSON object"
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
        self.version, self.hello, self.session, self.about = None, {}, None, {}
        self.changed = threading.Condition()  # guards what follows
        self.answers = {}  # type and value of an id -> the response, None while it is waited for
        self.strays = []  # responses that nobody asked for
        self.messages, self.noise, self.logged, self.tail = [], [], 0, b""  # tail: the end of its stderr
        self.over = None  # why nothing more comes
        self.ids = iter(range(1, 1 << 30))
        self.process = subprocess.Popen(
            [shutil.which(command[0]) or command[0], *command[1:]], bufsize=0, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with contextlib.suppress(AttributeError, OSError):  # all that the probe writes fits into a pipe; if not, so be it
            os.set_blocking(self.process.stdin.fileno(), False)
        for work in self.read, self.drain:
            threading.Thread(target=work, daemon=True).start()

    # ---- what it writes ---------------------------------------------------------------------------------------------

    def read(self):
        pieces, size, lines = [], 0, 0
        while True:
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            size, lines = size + len(data), lines + data.count(b"\n")
            if not data or size > MOST_BYTES or lines > MOST_LINES:
                break
            pieces.append(data)
            if b"\n" in data:
                *whole, rest = b"".join(pieces).split(b"\n")
                pieces = [rest]
                for line in whole:
                    self.take(line)
        self.take(b"".join(pieces)[:1 << 20])
        if data:
            why = f"it floods its stdout: {lines} lines, {size >> 10} KiB"
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):  # it may have closed its stdout only
                self.process.wait(1)
            status = self.process.poll()
            why = "it closed its stdout" if status is None else f"it ended with exit status {status}"
        with self.changed:
            self.over = why
            self.changed.notify_all()
        if data:
            self.kill()

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
            with contextlib.suppress(Silent):
                error = {"code": -32601, "message": "method not found", "data": {"method": message["method"]}}
                self.write({"jsonrpc": "2.0", "id": message["id"], "error": error})

    def drain(self):
        while True:
            data = os.read(self.process.stderr.fileno(), 1 << 16)
            if not data:
                return
            self.logged, self.tail = self.logged + data.count(b"\n"), (self.tail + data)[-2000:]

    # ---- what it is told --------------------------------------------------------------------------------------------

    def write(self, message):
        data = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
        try:
            if self.process.stdin.write(data) != len(data):
                raise Silent("it does not read its stdin")
        except (OSError, ValueError):
            raise Silent(self.over or "it closed its stdin") from None

    def ask(self, method, params=None, id=None, patience=None):
        """The response to a request; what came instead is raised as Failed."""
        id = next(self.ids) if id is None else id
        key, limit = (type(id), id), self.patience if patience is None else patience
        with self.changed:
            self.answers[key], mark = None, len(self.strays)
        self.write({"jsonrpc": "2.0", "id": id, "method": method, "params": {} if params is None else params})
        with self.changed:
            self.changed.wait_for(lambda: self.answers[key] or self.over or self.strays[mark:], limit)
            stray = self.strays[mark:]
            if stray and not self.answers[key]:  # another id than that of the request: or else an odd answer from before
                self.changed.wait_for(lambda: self.answers[key] or self.over, GRACE)
            if self.answers[key]:
                return self.answers[key]
            if stray:
                raise Failed(f"asked with the id {json.dumps(id)}, it answered {plain(stray[0], 150)}")
            self.patience = min(self.patience, max(0.5, self.timeout / 10))
            raise Silent(self.over or f"no answer within {limit:g} s")

    def exchange(self, data):
        """What comes back for what is no request: all that comes before the answer of a request right behind it."""
        mark = len(self.strays)
        self.write(data)
        try:
            self.ask(NOBODY)
        except Silent:
            if self.over:
                raise
        except Failed:  # what has come for `data` is told below
            pass
        with self.changed:
            self.changed.wait_for(lambda: self.strays[mark:], GRACE)
            found, self.strays[mark:] = self.strays[mark:], []
        return found

    def leave(self):
        """Close its stdin; the seconds that it takes to go, or None where it does not."""
        begin = time.monotonic()
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(LEAVING)
            return time.monotonic() - begin

    def kill(self):
        """Nothing of it is left."""
        with contextlib.suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        self.process.wait()


# ---- the rules ------------------------------------------------------------------------------------------------------
#
# Each is a function of the peer; its docstring is the rule. `strict` says that the specification demands the very code;
# any other error is else a matter of advice.

def refused(answer, code, strict):
    """This answer has to be an error."""
    if "result" in answer:
        raise Failed(f"it answered with a result: {plain(answer['result'], 150)}")
    if answer["error"]["code"] == -32000 != code:
        raise Moot("a login is needed")
    if answer["error"]["code"] != code:
        raise (Failed if strict else Advice)(f"it answered {plain(answer['error'], 200)}")


def result(answer):
    """This answer has to be none."""
    if "error" in answer:
        raise (Moot if answer["error"]["code"] == -32000 else Failed)(
            "a login is needed" if answer["error"]["code"] == -32000 else plain(answer["error"]))
    return answer["result"]


def hello(asked):
    """The parameters of initialize; from version 2 on in the words of version 1 too, as the agent may fall back to it."""
    ours = acp.InitializeRequest(2, acp.Implementation("probe", "1"))
    return {**acp.to_wire(ours, 1), **(acp.to_wire(ours, 2) if asked != 1 else {}), "protocolVersion": asked}


def begin(peer, asked):
    """Initialize; `peer.version` is then the version that is spoken, or None."""
    answer = peer.ask("initialize", hello(asked))
    told = peer.hello = answer.get("result", {})
    if part(answer, "error", "code") == -32022:
        return
    version = part(result(answer), "protocolVersion")
    if version not in range(1, min(asked, 2) + 1):
        raise Failed(f"it answered protocolVersion {plain(version)}")
    if (version == 2) != ("agentCapabilities" not in told and "info" in told) and (version == 2 or "info" in told):
        raise Failed(f"it answered {version} in the form of version {3 - version}")
    peer.version = version
    well_formed(acp.InitializeResponse, told, version)


def well_formed(cls, data, version):
    try:
        acp.from_wire(cls, data, version)
    except acp.MalformedMessage as error:
        raise Failed(str(error)) from None


def unknown_method(peer):
    """an unknown method is answered with -32601"""
    for method in NOBODY, "_" + NOBODY:
        refused(peer.ask(method), -32601, strict=True)


def unknown_notification(peer):
    """an unknown notification is not answered"""
    for answer in peer.exchange({"jsonrpc": "2.0", "method": NOBODY, "params": {}}):
        raise Failed(plain(answer))


def cancel_of_nothing(peer):
    """$/cancel_request of nothing is not answered"""
    for answer in peer.exchange({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": NOBODY}}):
        raise Failed(plain(answer))


def ids(peer):
    """ids come back as they are, integers and strings"""
    for id in 0, 1234567, "0", "", "id-\u00e9":
        peer.ask(NOBODY, id=id)


def bad_json(peer):
    """a line that is not JSON is answered with -32700 and the id null, and the next one served"""
    no_request(peer, b'{"jsonrpc": "2.0", "id": "torn", "method\n', -32700)


def array(peer):
    """an array is refused with one -32600 and the id null, and the next line served"""
    no_request(peer, b'[{"jsonrpc": "2.0", "id": "inside", "method": "%s"}]\n' % NOBODY.encode(), -32600)


def no_request(peer, data, code):
    answers = peer.exchange(data)
    if [(each["id"], part(each, "error", "code")) for each in answers] != [(None, code)]:
        raise Failed(", ".join(map(plain, answers)) or "nothing came")
    peer.ask(NOBODY)


def new_session(peer):
    """session/new gives a session"""
    answer = result(peer.ask("session/new", peer.setup, patience=peer.timeout))
    if isinstance(part(answer, "sessionId"), str):
        peer.session, peer.about = answer["sessionId"], answer
    well_formed(acp.NewSessionResponse, answer, peer.version)


def wrong_params(peer):
    """parameters of a wrong type are refused with -32602"""
    refused(peer.ask("session/new", {**peer.setup, "cwd": 5}), -32602, strict=False)


def relative_path(peer):
    """a relative cwd is refused with -32602"""
    answer = peer.ask("session/new", {**peer.setup, "cwd": "."})
    if "result" in answer:
        raise Advice("it made a session there")
    refused(answer, -32602, strict=False)


def unknown_session(peer):
    """a prompt to an unknown session is refused with -32002 and its sessionId"""
    prompt = {"sessionId": NOBODY, "prompt": [{"type": "text", "text": "hello"}]}
    answer = peer.ask("session/prompt", prompt)
    refused(answer, -32002, strict=peer.version == 2)
    if part(answer, "error", "data", "sessionId") != NOBODY:
        raise (Failed if peer.version == 2 else Advice)(plain(answer["error"]))


def unknown_option(peer):
    """an unknown config option is refused with -32602"""
    if not items(peer.about, "configOptions"):
        raise Moot("it has no config options" if peer.session else "there is no session")
    value = {"value": "x", **({"type": "id"} if peer.version == 2 else {})}
    answer = peer.ask("session/set_config_option", {"sessionId": peer.session, "configId": NOBODY, **value})
    refused(answer, -32602, strict=peer.version == 2)


def unknown_transport(peer):
    """an unknown transport of an MCP server is refused with -32602"""
    setup = {**peer.setup, "mcpServers": [{"type": "_probe", "name": "nobody"}]}
    refused(peer.ask("session/new", setup, patience=peer.timeout), -32602, strict=True)


def resume(peer):
    """session/resume tells the state before it answers"""
    seen = len(peer.messages)
    result(peer.ask("session/resume", {**peer.setup, "sessionId": needed(peer)}, patience=peer.timeout))
    kinds = [part(each, "params", "update", "sessionUpdate") for each in peer.messages[seen:]]
    if "state_update" not in kinds:
        raise Failed("no state_update came")


def unknown_replay(peer):
    """an unknown replayFrom is refused with -32602"""
    setup = {**peer.setup, "sessionId": needed(peer), "replayFrom": {"type": "_probe"}}
    refused(peer.ask("session/resume", setup, patience=peer.timeout), -32602, strict=True)


def session_list(peer):
    """session/list gives a list"""
    if peer.version == 1 and not isinstance(part(peer.hello, "agentCapabilities", "sessionCapabilities", "list"), dict):
        raise Moot("it is not offered")
    answer = result(peer.ask("session/list", patience=peer.timeout))
    if not isinstance(part(answer, "sessions"), list):
        raise Failed(plain(answer))
    well_formed(acp.ListSessionsResponse, answer, peer.version)


def session_close(peer):
    """session/close closes the session"""
    if peer.version == 1 and not isinstance(part(peer.hello, "agentCapabilities", "sessionCapabilities", "close"), dict):
        raise Moot("it is not offered")
    result(peer.ask("session/close", {"sessionId": needed(peer)}, patience=peer.timeout))


def needed(peer):
    if peer.session is None:
        raise Moot("there is no session")
    return peer.session


def leaving(peer):
    """it exits at the end of its stdin"""
    if peer.leave() is None:
        raise Advice(f"it was still there {LEAVING} s later")


def updates(peer):
    """its updates are well-formed, and it asks for nothing that was not offered"""
    for message in peer.messages:
        if message["method"] == "session/update":
            well_formed(acp.UpdateSessionNotification, message.get("params"), peer.version)
        elif message["method"].startswith(("fs/", "terminal/", "elicitation/")):
            raise Failed(f"it sent {plain(message['method'])}")
    if any(each.get("type") == "terminal" for each in items(peer.hello, "authMethods")):
        raise Failed("an auth method of type terminal")


def strays(peer):
    """each request is answered once, and nothing else is"""
    for answer in peer.strays:
        raise Failed(plain(answer))


def noise(peer):
    """nothing but messages on stdout"""
    if peer.noise:
        raise Failed(f"{len(peer.noise)} other lines, the first {peer.noise[0]}")
    if (peer.over or "").startswith("it floods"):
        raise Failed(peer.over)


RULES = (new_session, unknown_method, unknown_notification, cancel_of_nothing, ids, wrong_params, relative_path,
         unknown_session, unknown_option, session_list, session_close, bad_json, array, leaving, updates, strays, noise)
RULES_2 = (*RULES[:9], unknown_transport, resume, unknown_replay, *RULES[9:])
AFTERWARDS = (leaving, updates, strays, noise)  # these can be told of one that has ended


class Probe:
    """All of it: starts the agents one after the other, and keeps what comes out."""

    def __init__(self, command, options):
        self.command, self.options = command, options
        self.setup = {"cwd": os.path.abspath(options.cwd), "mcpServers": []}
        self.rules = []  # (of what, rule, result, what came)
        self.versions = {}  # version -> what the agent says of itself in it
        self.lost = []  # why initialize was not answered

    def check(self, of, rule, check, *args):
        try:
            came = None
            check(*args)
            outcome = "passed"
        except Verdict as verdict:
            outcome, came = verdict.result, str(verdict)
        self.rules.append((of, rule, outcome, came))

    @contextlib.contextmanager
    def started(self):
        peer = Peer(self.command, self.options.timeout)
        peer.setup = self.setup
        try:
            yield peer
        finally:
            peer.kill()

    def speak(self, asked):
        """Asked for this version, all the rules of it."""
        of = f"asked for {asked}"
        with self.started() as peer:
            self.check(of, "initialize is answered with a version that it speaks", begin, peer, asked)
            if not peer.hello and self.rules[-1][2] == "failed":
                self.lost.append((self.rules[-1][3], peer.tail))
            if peer.version != asked:
                return
            if self.options.auth is not None:
                method = "authenticate" if asked == 1 else "auth/login"
                self.check(of, f"{method} logs in", lambda: result(peer.ask(
                    method, {"methodId": self.options.auth}, patience=peer.timeout)))
            for rule in RULES if asked == 1 else RULES_2:
                if peer.over and rule not in AFTERWARDS:
                    self.rules.append((of, rule.__doc__, "not applicable", peer.over))
                else:
                    self.check(of, rule.__doc__, rule, peer)
                if rule is new_session and peer.session is not None and asked == 1:  # commands follow in an update
                    with peer.changed:
                        peer.changed.wait_for(lambda: commands(peer) or peer.over, GRACE)
        self.versions[asked] = {
            "initialize": peer.hello, "session": peer.about, "commands": commands(peer), "stderrLines": peer.logged}

    def newest(self):
        """it answers its newest"""
        with self.started() as peer:
            answer = peer.ask("initialize", hello(99))
            if part(answer, "result", "protocolVersion") != max(self.versions):
                raise Failed(plain(answer))

    def oldest(self):
        """one that speaks 2 answers -32022 and what it supports, any other its newest"""
        with self.started() as peer:
            answer = peer.ask("initialize", hello(0))
            if 2 not in self.versions:
                good = part(answer, "result", "protocolVersion") == 1
            else:
                supported = part(answer, "error", "data", "supported")
                good = part(answer, "error", "code") == -32022 and isinstance(supported, list) and 2 in supported
            if not good:
                raise Failed(plain(answer))

    def early(self):
        """a request is refused with -32600, and initialize afterwards served"""
        with self.started() as peer:
            answer = peer.ask("session/new", self.setup)
            asked = max(self.versions)
            if "result" not in peer.ask("initialize", hello(asked)):
                raise Failed("initialize was refused afterwards")
            if "result" in answer and asked == 1:
                raise Advice("it made a session")
            if part(answer, "error", "code") == -32000:
                raise (Failed if asked == 2 else Advice)(plain(answer["error"]))
            refused(answer, -32600, strict=asked == 2)

    def run(self):
        self.speak(1)
        self.speak(2)
        if self.versions:
            self.check("asked for 99", self.newest.__doc__, self.newest)
            self.check("asked for 0", self.oldest.__doc__, self.oldest)
            self.check("before initialize", self.early.__doc__, self.early)


def commands(peer):
    """The newest list of commands."""
    found = items(peer.about, "availableCommands")
    for message in list(peer.messages):
        found = items(message, "params", "update", "availableCommands") or found
    return found


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
    yield "modes", named(items(session, "modes", "availableModes"), "id", current=part(session, "modes", "currentModeId"))
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
    parser.add_argument("--timeout", type=float, default=30, metavar="S", help="seconds that an answer may take")
    options, command = parser.parse_args(words[:end]), words[end + 1:]
    if not command:
        parser.error("there is no command")
    probe = Probe(command, options)
    try:
        probe.run()
    except (OSError, ValueError) as error:
        print(f"probe.py: {plain(command[0])} cannot be started: {plain(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if len(probe.lost) == 2:
        why, tail = probe.lost[0]
        print(f"probe.py: initialize was not answered: {plain(why)}", file=sys.stderr)
        for line in tail.decode("utf-8", "replace").splitlines()[-5:]:
            print(f"  {plain(line)}", file=sys.stderr)
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

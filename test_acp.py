"""The tests of acp.py: `pytest` alone. In the order and under the banners of the file under test; then the examples."""
import ast
import atexit
import base64
import bisect
import collections
import contextlib
import copy
import dataclasses
import functools
import gc
import glob
import http.server
import inspect
import io
import itertools
import json
import linecache
import logging
import os
import pydoc
import queue
import random
import re
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import types
import xml.etree.ElementTree

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import acp  # noqa: E402

with contextlib.suppress(ImportError):  # Windows has no pseudo-terminals
    import fcntl
    import pty
    import termios

# Processes compile acp.py once for all of them, and leave nothing beside it.
os.environ["PYTHONPYCACHEPREFIX"] = COMPILED = tempfile.mkdtemp(prefix="acp-compiled-")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
atexit.register(shutil.rmtree, COMPILED, ignore_errors=True)

WAIT = 10.0  # seconds that a test waits for what has to come; far above what it takes
SOON = 1.0  # seconds in which something has to happen that promises to be prompt
BOTH = pytest.mark.parametrize("version", [1, 2])
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job; children would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


# == 1. Helpers and fake peers ========================================================================================
# What all sections use: waits with a deadline, the two ends that a test holds in its own hands, and the agents between.
# What goes over a wire is printed when a test fails.

# ---- waiting --------------------------------------------------------------------------------------------------------

@contextlib.contextmanager
def within(seconds):
    """What is inside takes at most this long."""
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < seconds


def eventually(condition, timeout=WAIT):
    """Wait until the condition holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.005)


class Background:
    """A function that runs in a thread of its own."""

    def __init__(self, function, *arguments, **options):
        self.value = self.error = None
        self.thread = threading.Thread(target=self._run, args=(function, arguments, options), daemon=True)
        self.thread.start()

    def _run(self, function, arguments, options):
        try:
            self.value = function(*arguments, **options)
        except BaseException as error:
            self.error = error

    @property
    def running(self):
        return self.thread.is_alive()

    def result(self, timeout=WAIT):
        """What it returned or raised, when it has ended."""
        self.thread.join(timeout)
        assert not self.running, "it hangs"
        if self.error is not None:
            raise self.error
        return self.value


def timed(function):
    """What it returns, and the seconds that it took."""
    begin = time.monotonic()
    return function(), time.monotonic() - begin


def process_state(pid):
    """The letter that Linux has for what a process does: S it sleeps, Z it is a zombie. None: not there to be seen."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def running(pid):
    """Whether a process runs. A zombie does not: whoever inherited it has not collected it yet."""
    if os.path.exists("/proc/self/stat"):
        return process_state(pid) not in (None, "Z")
    with contextlib.suppress(OSError):
        os.kill(int(pid), 0)
        return True
    return False


def until_it_waits(process):
    """For a Ctrl-C: where one comes just before Python's `input` begins to wait, it sleeps on. Linux lets us see it."""
    eventually(lambda: process_state(process.pid) in (None, "S"))


# ---- words of the wire ----------------------------------------------------------------------------------------------

A_TEXT = {"type": "text", "text": "hi"}
AN_IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}


def text_block(text):
    """A block of text."""
    return {"type": "text", "text": text}


def text_update(update):
    """The text of a message chunk on the wire, else None."""
    return update["content"]["text"] if update["sessionUpdate"] == "agent_message_chunk" else None


def texts_of(updates):
    """The agent's text in updates on the wire."""
    return [update["content"]["text"] for update in updates if update["sessionUpdate"] == "agent_message_chunk"]


def notification(update, session="s"):
    """An update as a message of the agent."""
    return {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": update}}


def said(text, id=None, kind="agent_message_chunk"):
    """A chunk of a message."""
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}, **({"messageId": id} if id else {})}


def state(word, **more):
    """A state update, version 2."""
    return {"sessionUpdate": "state_update", "state": word, **more}


def echo(request, id):
    """The user message of a prompt, version 2."""
    return {"sessionUpdate": "user_message", "messageId": id, "content": request["params"]["prompt"]}


def wire_call(id="c", tag="tool_call_update", **fields):
    """A tool call, or what changes of it."""
    return {"sessionUpdate": tag, "toolCallId": id, **fields}


def wire_text(text):
    """Text as the content of a tool call."""
    return {"type": "content", "content": text_block(text)}


def shown_text(text):
    """Text as the content of a tool call, typed."""
    return acp.Content(acp.TextContent(text))


def prompt_message(id, session, text):
    """A prompt as a message of the client."""
    return {"jsonrpc": "2.0", "id": id, "method": "session/prompt", "params": {
        "sessionId": session, "prompt": [{"type": "text", "text": text}]}}


def cancel_message(session):
    """A session/cancel as a message of the client."""
    return {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}


RAW_INFO = {"name": "me", "version": "1"}


def greeting(version, **more):
    """The parameters of an initialize that asks for exactly this version."""
    return {"protocolVersion": version, **({"clientInfo": RAW_INFO} if version == 1 else {"info": RAW_INFO}), **more}


def permission_params(version):
    """The parameters of a permission request in session s."""
    return {"sessionId": "s", "options": [{"optionId": "a", "name": "a", "kind": "allow_once"}],
            **({"toolCall": {"toolCallId": "t"}} if version == 1 else {"title": "t"})}


HELLO = {
    1: {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}},
    2: {"protocolVersion": 2, "info": {"name": "test", "version": "0"}, "capabilities": {"session": {}},
        "authMethods": []},
}
OPTIONS = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"},
           {"optionId": "no", "name": "No", "kind": "reject_once"}]
SELECTED_YES = {"outcome": "selected", "optionId": "yes"}
CANCELLED = {"outcome": "cancelled"}


def as_json(values):
    """Values as text, so that 1, 1.0 and true differ."""
    return [json.dumps(value) for value in values]


# ---- the client's end of an agent under test, in lines: in process, or over the pipes of a real process -------------

class Raw:
    """The client's end of an agent under test, in raw lines."""

    def __init__(self, target, env=None):
        self.process = None
        self.seen = []  # every message and junk line that came, in order
        if isinstance(target, acp.Agent):
            ours, theirs = socket.socketpair()
            self.serving = threading.Thread(target=target.run, args=(theirs,), daemon=True)
            self.serving.start()
            self.write, self.read, self.socket = ours.sendall, lambda: ours.recv(65536), ours
        else:
            self.process = subprocess.Popen(
                target, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, cwd=HERE,
                env=dict(os.environ, PYTHONPATH=HERE, **(env or {})))
            self.write, self.read = self._write_all, lambda: os.read(self.process.stdout.fileno(), 65536)
            self.errors = []
            self.draining = threading.Thread(target=self._drain, daemon=True)
            self.draining.start()
        self.lines = queue.Queue()
        self.ids = itertools.count(1000)
        self.pump = threading.Thread(target=self._pump, daemon=True)
        self.pump.start()

    def _write_all(self, data):
        view = memoryview(data)
        while view:
            view = view[os.write(self.process.stdin.fileno(), view):]

    def _drain(self):
        for line in self.process.stderr:
            self.errors.append(line.decode("utf-8", "replace"))

    def _pump(self):
        buffer = b""
        while True:
            try:
                data = self.read()
            except (OSError, ValueError):
                data = b""
            if not data:
                self.lines.put(None)
                return
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                self.lines.put(line)

    def send(self, *messages):
        """Objects, or bytes as they are, in one write."""
        lines = [m if isinstance(m, bytes) else json.dumps(m).encode() + b"\n" for m in messages]
        for line in lines:
            print(">", line[:300])
        self.write(b"".join(lines))

    def request(self, method, params=None, id=None):
        """Send a request, return its id."""
        id = next(self.ids) if id is None else id
        self.send({"jsonrpc": "2.0", "id": id, "method": method, "params": {} if params is None else params})
        return id

    def notify(self, method, params=None):
        self.send({"jsonrpc": "2.0", "method": method, "params": {} if params is None else params})

    def answer(self, request, result):
        self.send({"jsonrpc": "2.0", "id": request["id"], "result": result})

    def next(self, timeout=WAIT):
        """The next message; fails when none comes or the agent ended."""
        try:
            line = self.lines.get(timeout=timeout)
        except queue.Empty:
            pytest.fail("no message came")
        assert line is not None, "the agent closed the connection"
        print("<", line[:300])
        message = json.loads(line.decode("utf-8"), parse_constant=lambda word: pytest.fail("not JSON: " + word))
        self.seen.append(message)
        return message

    def nothing(self, seconds=0.2):
        """No message comes for a while."""
        try:
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            return
        pytest.fail(f"unexpected: {line!r}")

    def until(self, wanted, timeout=WAIT):
        """Messages up to the first that `wanted(message)` holds for; that one last."""
        deadline, found = time.monotonic() + timeout, []
        while True:
            found.append(self.next(max(0.01, deadline - time.monotonic())))
            if wanted(found[-1]):
                return found

    def response(self, id, timeout=WAIT):
        """The response to a request; what comes before it stays in `seen`."""
        return self.until(lambda m: "method" not in m and type(m.get("id")) is type(id) and m["id"] == id, timeout)[-1]

    def call(self, method, params=None, timeout=WAIT):
        """The result of a request."""
        answer = self.response(self.request(method, params), timeout)
        assert "error" not in answer, answer
        return answer["result"]

    def refused(self, method, params=None, timeout=WAIT):
        """The error of a request."""
        answer = self.response(self.request(method, params), timeout)
        assert "result" not in answer, answer
        return answer["error"]

    def asked(self, method, timeout=WAIT):
        """The next request or notification of the agent with this method."""
        return self.until(lambda m: m.get("method") == method, timeout)[-1]

    def updates(self):
        """All updates so far."""
        return [m["params"]["update"] for m in self.seen if m.get("method") == "session/update"]

    def start(self, version=1, capabilities=None, **new):
        """Initialize and make a session; returns its id."""
        if version == 1:
            hello = {"protocolVersion": 1, "clientCapabilities": capabilities or {}}
        else:
            hello = {"protocolVersion": 2, "info": {"name": "raw", "version": "0"}, "capabilities": capabilities or {}}
        self.hello = self.call("initialize", hello)
        self.session = self.call("session/new", {"cwd": "/", "mcpServers": [], **new})
        return self.session["sessionId"]

    def prompt(self, session_id, text="hi", **more):
        """Send a prompt, return the request's id."""
        return self.request("session/prompt", {
            "sessionId": session_id, "prompt": [{"type": "text", "text": text}], **more})

    def turn_end(self, version, id, timeout=WAIT):
        """The stop reason with which the turn of prompt `id` ends, on either version."""
        if version == 1:
            return self.response(id, timeout)["result"]["stopReason"]
        idle = self.until(lambda m: m.get("method") == "session/update"
                          and m["params"]["update"].get("state") == "idle", timeout)[-1]
        return idle["params"]["update"]["stopReason"]

    def close(self):
        """Be done with the agent, whatever it does. No descriptor is closed while a thread may still read it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for thread, stream in ((self.pump, self.process.stdout), (self.draining, self.process.stderr)):
                thread.join(WAIT)
                stream.close()
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        else:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)
            self.pump.join(WAIT)
            self.serving.join(WAIT)
            self.socket.close()

    def end(self, timeout=WAIT):
        """Close the agent's input; returns its exit status (None in process)."""
        if self.process is None:
            self.socket.shutdown(socket.SHUT_WR)
            self.serving.join(timeout)
            assert not self.serving.is_alive(), "the agent goes on"
            return None
        self.process.stdin.close()
        status = self.process.wait(timeout)
        self.draining.join(timeout)
        return status


@pytest.fixture
def raw():
    """Make Raw ends; all of them are closed after the test."""
    made = []

    def make(target, env=None):
        made.append(Raw(target, env))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def agent_process(tmp_path, raw):
    """Run the source of an agent as a real process, speak to it in lines."""

    def make(source, **env):
        path = tmp_path / f"agent{len(list(tmp_path.iterdir()))}.py"
        path.write_text("import acp\n" + textwrap.dedent(source), encoding="utf-8")
        return raw([sys.executable, str(path)], env)

    return make


def next_ends(wire, version, count):
    """The stop reasons of the turns that end next."""
    ends = []
    while len(ends) < count:
        message = wire.next()
        if version == 1 and "method" not in message:
            ends.append(message["result"]["stopReason"])
        elif version == 2 and message.get("params", {}).get("update", {}).get("state") == "idle":
            ends.append(message["params"]["update"]["stopReason"])
    return ends


def states(wire):
    """The states that were told, version 2."""
    return [update["state"] for update in wire.updates() if update["sessionUpdate"] == "state_update"]


def told(wire):
    """The updates so far, but for states and the echoes of prompts."""
    return [update for update in wire.updates() if update["sessionUpdate"] not in ("user_message", "state_update")
            or update.get("messageId") == "u"]


def statuses(updates):
    """The statuses that were told of tool calls, in order."""
    return [update["status"] for update in updates if update.get("status")]


FORMS = {"elicitation": {"form": {}, "url": {}}}


def one_turn(raw, version, handler, capabilities=None, **attributes):
    """What one turn of this handler sends, but for states and the echo."""
    wire = raw(Handler(handler, **attributes))
    assert wire.turn_end(version, wire.prompt(wire.start(version, capabilities))) == "end_turn"
    return told(wire)


# ---- agents under test ----------------------------------------------------------------------------------------------

class Handler(acp.Agent):
    """An agent with this function as its prompt handler; hooks and attributes may be given too."""
    versions = (1, 2)

    def __init__(self, handler=lambda turn: None, **attributes):
        self.handler = handler
        vars(self).update(attributes)

    def prompt(self, turn):
        return self.handler(turn)


def fault_agent(prompt=None, **members):
    """An agent of both versions with these members and this prompt handler; it returns a stop reason, or nothing of
    meaning."""

    def run(self, turn):
        result = prompt(turn)
        return result if isinstance(result, str) else None

    if prompt is not None:
        members["prompt"] = run
    return type("FaultAgent", (acp.Agent,), {"versions": (1, 2), **members})()


def say_request(turn):
    """A prompt handler: it says what it was asked."""
    turn.say(turn.text)


class Taker(acp.Agent):
    """An agent that takes everything, and keeps what its hooks were given."""

    name, version, title, versions = "taker", "1.2", "The taker", (1, 2)
    prompt_capabilities = acp.PromptCapabilities(image=True)
    mcp_capabilities = acp.McpCapabilities(stdio=True, http=True)

    def __init__(self):
        self.peers, self.made, self.prompts = [], [], []

    def initialize(self, peer):
        self.peers.append(peer)

    def new_session(self, session):
        self.made.append(session)

    def prompt(self, turn):
        self.prompts.append(turn)
        turn.say("taken")


def speaking(*versions, **fields):
    """An agent that answers in these versions."""
    agent = Taker()
    vars(agent).update(versions=versions, **fields)
    return agent


def mode_option(current="ask"):
    """A config option with two values, of the category that version 1 knows as modes."""
    return acp.SessionConfigSelect("how", "How", current, [
        acp.SessionConfigSelectOption("ask", "Ask"), acp.SessionConfigSelectOption("code", "Code")], category="mode")


class ReturnsNothing(acp.Agent):
    """Overrides everything and returns nothing."""

    versions = (1, 2)
    auth_methods = [acp.AuthMethodAgent("a", "A")]

    def login(self, method_id): pass
    def logout(self): pass
    def new_session(self, session): session.config_options = [mode_option()]
    def resume_session(self, session, replay): pass
    def close_session(self, session): pass
    def delete_session(self, session_id): pass
    def set_config_option(self, session, config_id, value): pass
    def extension(self, peer, method, params): pass


class Configured(Taker):
    """It has two options: a mode and a boolean."""

    def new_session(self, session):
        super().new_session(session)
        session.config_options = [mode_option(), acp.SessionConfigBoolean("loud", "Loud", False)]

    def set_config_option(self, session, config_id, value):
        if value == "code" and getattr(self, "refuses", False):
            raise acp.InvalidParams("not today")


BOOLEANS = {"session": {"configOptions": {"boolean": {}}}}


class Asking(acp.Agent):
    """Asks for a permission, then says what came of it; on the word `form` it asks for an elicitation."""
    versions = (1, 2)

    def prompt(self, turn):
        if turn.text == "form":
            turn.say(turn.elicit("Name?", {"name": acp.StringPropertySchema()}).action)
        else:
            with turn.tool("Do it") as tool:
                turn.say("granted" if tool.ask_permission() else "refused")


class Waiting(acp.Agent):
    """Waits until it is cancelled; on the word `quick` it does not."""
    versions = (1, 2)

    def __init__(self):
        self.begun = []

    def prompt(self, turn):
        self.begun.append(turn.text)
        if turn.text != "quick":
            turn.wait(WAIT)


class Slow(acp.Agent):
    """Takes its time in the hooks that others wait for."""
    versions = (1, 2)

    def __init__(self):
        self.calls = []
        self.gate = threading.Event()

    def _pass(self, name):
        self.calls.append(name)
        assert self.gate.wait(WAIT)

    def initialize(self, peer):
        if peer.info.name == "slow":
            self._pass("initialize")

    def resume_session(self, session, replay):
        self._pass("resume")

    def close_session(self, session):
        self._pass("close")

    def delete_session(self, session_id):
        self._pass("delete")

    def prompt(self, turn):
        self.calls.append("prompt")


# ---- scripts that are the agent of a client under test: a process, or a thread where no process is needed -----------

PRELUDE = '''
import json, os, sys, time
def read():
    """The next message of the client, or exit at the end."""
    line = sys.stdin.buffer.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)
def write(*items):
    """Messages, or bytes as they are, in one write."""
    os.write(1, b"".join(i if isinstance(i, bytes) else json.dumps(i).encode() + b"\\n" for i in items))
def answer(request, result):
    write({"jsonrpc": "2.0", "id": request["id"], "result": result})
def error(request, code, message="no", **more):
    write({"jsonrpc": "2.0", "id": request["id"], "error": {"code": code, "message": message, **more}})
def update(session, update):
    return {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": update}}
def chunk(session, text, id=None, kind="agent_message_chunk"):
    more = {"messageId": id} if id else {}
    return update(session, {"sessionUpdate": kind, "content": {"type": "text", "text": text}, **more})
def state(session, state, **more):
    return update(session, {"sessionUpdate": "state_update", "state": state, **more})
def hello(version=1, **more):
    """Answer initialize; returns the request."""
    request = read()
    assert request["method"] == "initialize", request
    if version == 1:
        answer(request, {"protocolVersion": 1, "agentCapabilities": {}, **more})
    else:
        info = {"name": "fake", "version": "0"}
        answer(request, {"protocolVersion": 2, "info": info, "capabilities": {"session": {}}, "authMethods": [],
                         **more})
    return request
def new(session="s"):
    """Answer session/new; returns the request."""
    request = read()
    assert request["method"] == "session/new", request
    answer(request, {"sessionId": session})
    return request
def prompt(version=1, session="s", id="m1"):
    """Take a prompt; on version 2 accept it, echo it and start to run. Returns the request."""
    request = read()
    assert request["method"] == "session/prompt", request
    if version == 2:
        answer(request, {"messageId": id})
        echo = {"sessionUpdate": "user_message", "messageId": id, "content": request["params"]["prompt"]}
        write(update(session, echo), state(session, "running"))
    return request
def end(version, request, reason="end_turn", session="s"):
    """End the turn of this prompt."""
    if version == 1:
        answer(request, {"stopReason": reason})
    else:
        write(state(session, "idle", stopReason=reason))
'''


@pytest.fixture
def fake_agent(tmp_path):
    """The command of an agent that runs a script (see PRELUDE for its words)."""

    def make(script, **values):
        path = tmp_path / f"fake{len(list(tmp_path.iterdir()))}.py"
        head = "".join(f"{name} = {value!r}\n" for name, value in values.items())
        path.write_text(PRELUDE + head + textwrap.dedent(script), encoding="utf-8")
        return [sys.executable, str(path)]

    return make


PRELUDE_CODE = compile(PRELUDE, "the words of a script", "exec")


class ScriptedAgent:
    """An agent that runs a script with the words of PRELUDE in a thread: `socket` for the client, `seen` what came."""

    def __init__(self, script, values):
        self.socket, self._end = socket.socketpair()
        self._lines = self._end.makefile("rb")
        self.seen, self.failure, self._shown = [], None, sys.stdout
        self._words = {}
        exec(PRELUDE_CODE, self._words)
        self._words.update(values, read=self._read, write=self._write, junk=self._end.sendall)
        self.thread = threading.Thread(target=self._run, args=(textwrap.dedent(script),), daemon=True)
        self.thread.start()

    def _read(self):
        line = self._lines.readline()
        if not line:
            sys.exit(0)
        print("agent <", line[:300], file=self._shown)
        self.seen.append(json.loads(line))
        return self.seen[-1]

    def _write(self, *items):
        lines = [item if isinstance(item, bytes) else json.dumps(item).encode() + b"\n" for item in items]
        print("agent >", *[line[:300] for line in lines], file=self._shown)
        self._end.sendall(b"".join(lines))

    def _run(self, script):
        try:
            exec(script, self._words)
        except (SystemExit, OSError):
            pass
        except BaseException as error:
            self.failure = error
        finally:
            with contextlib.suppress(OSError):
                self._end.shutdown(socket.SHUT_RDWR)

    def methods(self):
        """The methods of what came."""
        return [message.get("method") for message in self.seen]

    def params(self, method):
        """The parameters of the messages with this method."""
        return [message["params"] for message in self.seen if message.get("method") == method]


@pytest.fixture
def scripted_agent():
    """Like fake_agent, without a process: give its `.socket` to the client. A script that fails fails the test."""
    made = []

    def make(script, **values):
        made.append(ScriptedAgent(script, values))
        return made[-1]

    yield make
    for each in made:
        with contextlib.suppress(OSError):
            each.socket.shutdown(socket.SHUT_RDWR)
        each.thread.join(WAIT)
        assert not each.thread.is_alive(), "the script goes on"
        each.socket.close()
        each._lines.close()
        each._end.close()
        assert each.failure is None, f"the script failed: {each.failure!r}"


# What an agent's script goes on with: it tells on request what it has read since it last told.
RECORD = '''
seen = globals().get("seen", [])
while True:
    seen.append(read())
    if seen[-1].get("method") == "_seen":
        answer(seen.pop(), {"seen": seen})
        seen = []
'''


def recording(script):
    """A script that goes on to tell what it reads (see RECORD)."""
    return textwrap.dedent(script) + RECORD


TABLE_SCRIPT = """
    hello(V, **HELLO)
    answer(read(), {"sessionId": "s", **SETUP})
    request = prompt(V)
    write(*[update("s", each) for each in UPDATES])
    end(V, request)
    while True:
        request = read()
        if "id" in request:
            answer(request, ANSWER)
"""


@contextlib.contextmanager
def table_client(scripted_agent, version, updates=(), hello=None, setup=None, answer=None, **options):
    """A client of a scripted agent that sends these updates in its one turn: the session and the typed updates."""
    agent = scripted_agent(TABLE_SCRIPT, V=version, UPDATES=list(updates), HELLO=hello or {}, SETUP=setup or {},
                         ANSWER=answer or {})
    with acp.Client(agent.socket, version=version, **options) as client:
        session = client.new_session("/")
        yield session, list(session.prompt("hi"))


def table_heard(scripted_agent, version, updates, **options):
    """The session's state and the typed updates, but for states and the user's message."""
    with table_client(scripted_agent, version, updates, **options) as (session, seen):
        assert (session.state.state, session.state.stop_reason) == ("idle", "end_turn")
        return session.state, [each for each in seen if not isinstance(each, acp.StateUpdate)
                               and type(each) is not acp.UserMessage]


def sent_into(messages):
    """An on_message that keeps what the client sends."""
    return lambda way, message: messages.append(message) if way == "out" else None


# ---- the agent's end of a client under test, and bare connections, line by line -------------------------------------

class LineEnd(Raw):
    """The other end of what is connected to `theirs`, or to this socket, in the test's own hands."""

    def __init__(self, link=None, ids=None):
        self.socket, self.theirs = (link, None) if link is not None else socket.socketpair()
        self.process, self.seen = None, []
        self.write, self.read = self.socket.sendall, lambda: self.socket.recv(65536)
        self.lines, self.ids = queue.Queue(), ids or itertools.count(1000)
        self.pump = threading.Thread(target=self._pump, daemon=True)
        self.pump.start()

    def close(self):
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.pump.join(WAIT)
        self.socket.close()


class AgentEnd(LineEnd):
    """The agent's end of a client under test."""

    def __init__(self, version=1, hello=None, **options):
        super().__init__()
        self.version, self.prompts = version, itertools.count(1)
        starting = Background(acp.Client, self.theirs, version=version, **options)
        self.answer(self.asked("initialize"), hello or HELLO[version])
        self.client = starting.result()
        self.session = self.new_session()

    def new_session(self, id="s"):
        making = Background(self.client.new_session, "/")
        self.answer(self.asked("session/new"), {"sessionId": id})
        return making.result()

    def tell(self, *updates, session="s"):
        """Updates, in one write."""
        self.send(*[notification(each, session) for each in updates])

    def settled(self):
        """The client has taken, and merged, all that was sent so far."""
        self.refused("_settle")

    def accept(self):
        """Take the next prompt; on version 2 answer it, echo it and run. Returns the request."""
        request = self.asked("session/prompt")
        if self.version == 2:
            id, session = f"m{next(self.prompts)}", request["params"]["sessionId"]
            self.answer(request, {"messageId": id})
            self.tell(echo(request, id), state("running"), session=session)
        return request

    def finish(self, request, reason="end_turn"):
        """End the turn of this prompt."""
        if self.version == 1:
            self.answer(request, {"stopReason": reason})
        else:
            self.tell(state("idle", stopReason=reason), session=request["params"]["sessionId"])

    def ask(self, session="s", tool="t"):
        """Ask for a permission about a tool call; returns the request's id."""
        call = {"toolCallId": tool, "title": "Ask"}
        more = {"toolCall": call} if self.version == 1 else {
            "title": "Ask", "subject": {"type": "tool_call", "toolCall": call}}
        return self.request("session/request_permission", {"sessionId": session, "options": OPTIONS, **more})

    def elicit(self):
        """Ask for a form; returns the request's id."""
        return self.request("elicitation/create", {
            "sessionId": "s", "message": "?", "mode": "form", "requestedSchema": {"type": "object", "properties": {}}})

    def outcome(self, id, timeout=WAIT):
        """What the client answered to a permission request."""
        return self.response(id, timeout)["result"]["outcome"]

    def sent(self, method):
        """The messages with this method that the client has sent until now."""
        self.settled()
        return [message for message in self.seen if message.get("method") == method]


@pytest.fixture
def agent_end():
    """Make AgentEnds; their clients are closed after the test."""
    made = []

    def make(version=1, **options):
        made.append(AgentEnd(version, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
        each.client.close()


@pytest.fixture
def connected():
    """Two ends of a connection, each with a handler and options; both are closed after the test."""
    made = []

    def make(first=None, second=None, **options):
        ours, theirs = socket.socketpair()
        made.append(acp.Connection(ours, ours, first, **options).start())
        made.append(acp.Connection(theirs, theirs, second).start())
        return made[-2:]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def lines_to():
    """A connection under test and the other end in lines."""
    made = []

    def make(handler=None, **options):
        wire = LineEnd()
        made.append((acp.Connection(wire.theirs, wire.theirs, handler, **options).start(), wire))
        return made[-1]

    yield make
    for connection, wire in made:
        wire.close()
        connection.close()


def deaf(wire):
    """From now on this end does not read, but for one piece; returns what lets it read again."""
    gate, read = threading.Event(), wire.read
    wire.read = lambda: gate.wait(WAIT) and read()
    return gate


def until_stuck(connection):
    """Its senders wait: more is unsent than they may leave behind, and it gets no less."""
    sizes = []

    def stuck():
        sizes.append(connection._outbox.size)
        return len(sizes) > 10 and len(set(sizes[-10:])) == 1 and sizes[-1] > acp.HIGH_WATER

    eventually(stuck)


class Stream:
    """A binary stream that gives what it holds in pieces of one size, with `read` alone, and keeps what is written."""

    def __init__(self, data, size):
        self.pieces = (data[at:at + size] for at in range(0, len(data), size))
        self.written, self.release = [], threading.Event()

    def read(self, size):
        piece = next(self.pieces, b"")
        if not piece:
            self.release.wait(WAIT)
        return piece

    def write(self, data):
        self.written.append(bytes(data))
        return len(data)


def hanging_permission():
    """A callback that allows once its gate is open: the gate, the requests that came to it, and the callback."""
    gate, requests = threading.Event(), []

    def permission(request):
        requests.append(request)
        gate.wait(WAIT)
        return True

    return gate, requests, permission


WAYS_TO_WAIT = {
    "ask": lambda session, text: session.ask(text),
    "wait": lambda session, text: session.prompt(text).wait(),
    "iterate": lambda session, text: list(session.prompt(text)),
    "stream": lambda session, text: "".join(session.stream(text)),
}
WAYS = pytest.mark.parametrize("way", sorted(WAYS_TO_WAIT))


# ---- real processes, and what is left behind ------------------------------------------------------------------------

class Alive:
    """Whether any process of an agent lives: they all hold the writing end of a pipe that has a name."""

    WORDS = '''
        held = os.open(alive, os.O_WRONLY)
        os.write(held, b"!")
    '''

    def __init__(self, folder):
        self.path = str(folder / "alive")
        os.mkfifo(self.path)
        self.reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        self.began = 0

    def __call__(self):
        try:
            data = os.read(self.reader, 100)
        except BlockingIOError:
            return True
        self.began += len(data)
        return bool(data)

    def wait_begun(self, count=1):
        eventually(lambda: self() is not None and self.began >= count)


@pytest.fixture
def alive(tmp_path):
    """One Alive for the processes of a test."""
    if not hasattr(os, "mkfifo"):
        pytest.skip("needs pipes with names")
    folder = tmp_path / "pipe"
    folder.mkdir()
    made = Alive(folder)
    yield made
    os.close(made.reader)


def python(source, *args):
    """The command that runs this source."""
    return [sys.executable, "-c", textwrap.dedent(source), *args]


def warnings_of(caplog):
    """What the library logged, but for what is of interest to its authors alone."""
    return [record for record in caplog.records if record.name == "acp" and record.levelno >= logging.INFO]


@pytest.fixture
def no_stray_traceback(monkeypatch):
    """No exception may leave a thread."""
    stray = []
    monkeypatch.setattr(threading, "excepthook", stray.append)
    yield
    assert not stray


POSIX = pytest.mark.skipif(os.name == "nt", reason="files, groups, signals and terminals of POSIX")


@pytest.fixture
def impatient(monkeypatch):
    """Processes that do not end by themselves are ended sooner, in this process."""
    monkeypatch.setattr(acp, "GRACE_LEAVING", 0.3)
    monkeypatch.setattr(acp, "GRACE_TERMINATED", 0.2)


# ---- programs and the README ----------------------------------------------------------------------------------------

with open(os.path.join(HERE, "README.md"), encoding="utf-8") as _file:
    README = _file.read()
README_PYTHON = re.findall(r"^```python\n(.*?)^```$", README, re.S | re.M)
ECHO_PROGRAM, IN_PROCESS_PROGRAM = (
    next(block for block in README_PYTHON if block.startswith(start))
    for start in ("import acp\n\nclass Echo", "# the same agent"))
CLIENT_PROGRAMS = re.findall(r"^```python\n(.*?)^```$", README[README.index("## A client\n"):], re.S | re.M)[:3]

# `python3` is the Python that runs the tests
README_PATH = os.path.dirname(os.path.abspath(sys.executable)) + os.pathsep + os.environ.get("PATH", "")


def run_program(command, folder, **more):
    """Run a command to its end, away from the repository; what it wrote is text, or bytes where `text` is false."""
    options = {"stdin": subprocess.DEVNULL, "text": True, "encoding": "utf-8", "timeout": 60, **more}
    if not options["text"]:
        del options["encoding"]
    environment = dict(os.environ, PATH=README_PATH, PYTHONPATH=HERE, PYTHONIOENCODING="utf-8")
    done = subprocess.run(command, cwd=str(folder), env=environment, capture_output=True, **options)
    print(done.stdout, done.stderr)
    return done


def run_here(main, *words):
    """Call the main function of an example in this process; what came of it, as of `run_program`."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(list(words))
        except SystemExit as end:  # argparse, of wrong words
            status = end.code
    out.flush(), err.flush()
    done = types.SimpleNamespace(returncode=status, stdout=out.buffer.getvalue().decode("utf-8"),
                                 stderr=err.buffer.getvalue().decode("utf-8"))
    print(done.stdout, done.stderr)
    return done


def example(name):
    """The names in the file of an example."""
    return runpy.run_path(os.path.join(HERE, "examples", name))


@pytest.fixture
def readme_folder(tmp_path):
    """A folder with what the README's programs count on: the echo agent, and a package with a vendored copy."""
    (tmp_path / "echo.py").write_text(ECHO_PROGRAM, encoding="utf-8")
    vendor = tmp_path / "mytool" / "_vendor"
    vendor.mkdir(parents=True)
    shutil.copy(os.path.join(HERE, "acp.py"), str(vendor / "acp.py"))
    return tmp_path


# == 2. Errors ========================================================================================================
# Their ancestors and codes, and messages for the reader: who failed, which method, which field.

def test_the_errors_have_the_promised_ancestors():
    for cls in (acp.RequestError, acp.ConnectionClosed, acp.Timeout, acp.Cancelled, acp.Unsupported):
        assert issubclass(cls, acp.Error)
    for cls, code in ((acp.AuthRequired, -32000), (acp.NotFound, -32002), (acp.InvalidParams, -32602),
                      (acp.MethodNotFound, -32601), (acp.RequestCancelled, -32800), (acp.UnsupportedVersion, -32022)):
        assert issubclass(cls, acp.RequestError) and cls().code == code
    assert issubclass(acp.ConnectionClosed, ConnectionError) and issubclass(acp.Timeout, TimeoutError)


def test_the_message_of_an_error_names_the_place_and_what_was_expected():
    with pytest.raises(ValueError) as caught:
        acp.from_wire(acp.PromptRequest, {"sessionId": "s", "prompt": [{"type": "text", "text": 3}]}, 2)
    assert str(caught.value) == "prompt[0].text: expected a string, got 3"
    with pytest.raises(ValueError) as caught:
        acp.from_wire(acp.NewSessionRequest, {"cwd": "/", "mcpServers": [
            {"name": "a", "command": "/a"}, {"name": "b", "command": None}]}, 1)
    assert str(caught.value) == "mcpServers[1].command: expected a string, got null"


# == 3. Messages ======================================================================================================
# Equality and printing, patches as git writes them, the values that never show, forms.

def test_unset_is_false_and_neither_none_nor_false():
    assert not acp.UNSET and acp.UNSET is not None and acp.UNSET != False  # noqa: E712
    assert repr(acp.UNSET) == "UNSET"


def test_messages_are_equal_by_value_and_print_what_is_set():
    assert acp.TextContent("a") == acp.TextContent("a") != acp.TextContent("b")
    assert acp.AgentMessageChunk("m", acp.TextContent("a")) != acp.UserMessageChunk("m", acp.TextContent("a"))
    assert repr(acp.ToolCallUpdate("c", title=None)) == "ToolCallUpdate(tool_call_id='c', title=None)"


def test_unknown_fields_are_there_to_read_and_belong_to_equality():
    read = acp.from_wire(acp.ContentBlock, {**A_TEXT, "mood": "good"}, 2)
    assert read.unknown_fields == {"mood": "good"} and read != acp.TextContent("hi")
    assert "mood" in repr(read)


WORDS = [each for each in vars(acp).values() if isinstance(each, type) and issubclass(each, acp.Words)]


@pytest.mark.parametrize("words", WORDS, ids=lambda words: words.__name__)
def test_the_words_of_an_enum_are_plain_strings_under_their_own_names(words):
    assert words.__name__ in acp.__all__
    members = {name: value for name, value in vars(words).items() if not name.startswith("_")}
    assert bool(members) == (words is not acp.Words)
    assert all(type(value) is str for value in members.values())
    assert list(members) == [value.upper().replace("-", "_") for value in members.values()]


def test_a_word_of_an_enum_goes_to_the_wire_as_it_is():
    update = acp.ToolCallUpdate("t", status=acp.ToolCallStatus.PAUSED)
    assert update == acp.ToolCallUpdate("t", status="paused")
    assert acp.to_wire(update, 2) == wire_call("t", status="paused")


# ---- tool calls, terminals, diffs -----------------------------------------------------------------------------------

def test_a_diff_with_known_texts_is_whole_on_version_1_and_a_patch_on_version_2():
    diff = acp.Diff.of("/p/f", "one\ntwo\n", "one\n")
    assert acp.to_wire(diff, 1) == {"type": "diff", "path": "/p/f", "oldText": "one\n", "newText": "one\ntwo\n"}
    written = acp.to_wire(diff, 2)
    assert written["changes"] == [{"operation": "modify", "path": "/p/f"}]
    assert written["patch"] == {"format": "git_patch", "text": (
        "diff --git /p/f /p/f\n--- /p/f\n+++ /p/f\n@@ -1,1 +1,2 @@\n one\n+two\n")}
    read = acp.from_wire(acp.ToolCallContent, acp.to_wire(diff, 1), 1)
    assert read.changes == diff.changes and read.patch == diff.patch
    assert acp.to_wire(acp.Diff.of("/p/f", "a"), 2)["changes"] == [{"operation": "add", "path": "/p/f"}]
    assert acp.to_wire(acp.Diff([acp.DiffChange("modify", "/p/f")], diff.patch), 1) == {
        "type": "content", "content": {"type": "text", "text": diff.patch.text}}


MODIFIED = "diff --git /p/f /p/f\n--- /p/f\n+++ /p/f\n"
PATCHES = {  # old text (None: new file), new text, the patch behind its first lines
    "add": (None, "a\nb\n", "@@ -0,0 +1,2 @@\n+a\n+b\n"),
    "modify": ("a\nb\nc\n", "a\nB\nc\n", "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"),
    "three lines around": ("".join(f"{n}\n" for n in range(20)), "".join(f"{n}\n" for n in range(20) if n != 10),
                           "@@ -8,7 +8,6 @@\n 7\n 8\n 9\n-10\n 11\n 12\n 13\n"),
    "two places": ("".join(f"{n}\n" for n in range(30)),
                   "".join("x\n" if n in (3, 25) else f"{n}\n" for n in range(30)),
                   "@@ -1,7 +1,7 @@\n 0\n 1\n 2\n-3\n+x\n 4\n 5\n 6\n"
                   "@@ -23,7 +23,7 @@\n 22\n 23\n 24\n-25\n+x\n 26\n 27\n 28\n"),
    "emptied": ("a\nb\n", "", "@@ -1,2 +0,0 @@\n-a\n-b\n"),
    "filled": ("", "a\nb\n", "@@ -0,0 +1,2 @@\n+a\n+b\n"),
    "no newline at the end": (
        "a\nb", "a\nc", "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n"),
    "newline added at the end": ("a\nb", "a\nb\n", "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n"),
    "newline taken at the end": ("a\nb\n", "a\nb", "@@ -1,2 +1,2 @@\n a\n-b\n+b\n\\ No newline at end of file\n"),
    "crlf": ("a\r\nb\r\n", "a\r\nc\r\n", "@@ -1,2 +1,2 @@\n a\r\n-b\r\n+c\r\n"),
    "line ends change": ("a\r\nb\r\n", "a\nb\n", "@@ -1,2 +1,2 @@\n-a\r\n-b\r\n+a\n+b\n"),
    "unicode": ("é\nx\u2028y\x85\x0b\n", "é\nß\u2028y\n", "@@ -1,2 +1,2 @@\n é\n-x\u2028y\x85\x0b\n+ß\u2028y\n"),
    "blank lines": ("\n\na\n", "\n\nb\n", "@@ -1,3 +1,3 @@\n \n \n-a\n+b\n"),
}


@pytest.mark.parametrize("name", sorted(PATCHES))
def test_the_git_patch_of_a_text_is_exact(name):
    old, new, hunks = PATCHES[name]
    diff = acp.Diff.of("/p/f", new, old)
    head = MODIFIED if old is not None else "diff --git /p/f /p/f\nnew file mode 100644\n--- /dev/null\n+++ /p/f\n"
    assert diff.patch == acp.DiffPatch("git_patch", head + hunks)
    assert diff.changes == [acp.DiffChange("add" if old is None else "modify", "/p/f")]


def patched(old, patch):
    """What a patch makes of a text, by the rules of unified diffs; every number in it is checked."""
    lines, out, position = re.findall(".*\n|.+", old), [], 0
    for head, body in re.findall(r"(@@ .* @@)\n((?:[ +\\-].*\n)+)", patch):
        start, count, to, more = [int(number) for number in re.findall(r"\d+", head)]
        out += lines[position:start - bool(count)]
        position, before = start - bool(count), len(out)
        assert before == to - bool(more)
        body = body.replace("\n\\ No newline at end of file\n", "\0").replace("\n", "\n\0").rstrip("\0").split("\0")
        for line in body:
            if line[0] != "+":
                assert lines[position] == line[1:]
                position += 1
            if line[0] != "-":
                out.append(line[1:])
        assert (position - (start - bool(count)), len(out) - before) == (count, more)
    return "".join(out + lines[position:])


def test_any_git_patch_makes_the_new_text_of_the_old():
    dice = random.Random(4)
    for _ in range(300):
        old = [dice.choice("abcde") + dice.choice(["\n", "\n", "\r\n"]) for _ in range(dice.randrange(40))]
        new = [line for line in old if dice.random() > 0.1]
        for _ in range(dice.randrange(4)):
            new.insert(dice.randrange(len(new) + 1), dice.choice("xyz") + "\n")
        old, new = ("".join(lines)[:None if dice.random() < 0.7 else -1] for lines in (old, new))
        assert patched(old, acp.Diff.of("/p/f", new, old).patch.text) == new
    old, new = ("".join(f"{letter}{n}\n" for n in range(6000)) for letter in "ab")
    begin = time.thread_time()
    assert patched("same\n" + old, acp.Diff.of("/p/f", "same\n" + new, "same\n" + old).patch.text) == "same\n" + new
    assert time.thread_time() - begin < 1  # difflib by itself would be at it for long


# ---- initialize and authentication ----------------------------------------------------------------------------------

SECRET_VALUE = "hunter2"


@BOTH
def test_values_of_variables_and_headers_never_show(version):
    tagged = {"type": "stdio"} if version == 2 else {}
    read = acp.from_wire(acp.NewSessionRequest, {"cwd": "/", "mcpServers": [
        {**tagged, "name": "a", "command": "/a", "args": [], "env": [{"name": "TOKEN", "value": SECRET_VALUE}]},
        {"type": "http", "name": "b", "url": "http://b", "headers": [
            {"name": "Authorization", "value": SECRET_VALUE, "also": SECRET_VALUE, "_meta": {"x": SECRET_VALUE}}]}]},
                version)
    assert SECRET_VALUE not in repr(read) and "TOKEN" in repr(read) and "Authorization" in repr(read)
    env = {"TOKEN": SECRET_VALUE} if version == 1 else [{"name": "TOKEN", "value": SECRET_VALUE}]
    key = "id" if version == 1 else "methodId"
    read = acp.from_wire(acp.AuthMethod, {"type": "terminal", key: "t", "name": "T", "env": env}, version)
    assert SECRET_VALUE not in repr(read) and read.env[0].value == SECRET_VALUE


# ---- permissions and elicitation ------------------------------------------------------------------------------------

def wrong(schema, value):
    """Where and what is wrong with a value of one property, or None."""
    try:
        return acp.ElicitationSchema({"p": schema}).check({"p": value})
    except acp.MalformedMessage as error:
        assert error.place == "p"
        return str(error)


def test_the_answer_to_a_form_is_checked_property_by_property():
    text, number, whole = acp.StringPropertySchema, acp.NumberPropertySchema, acp.IntegerPropertySchema
    some, one = acp.MultiSelectPropertySchema, acp.EnumOption
    good = [
        (text(), ""), (text(min_length=1, max_length=2), "éé"), (text(pattern="^a"), "ab"),
        (text(pattern="(?<bad"), "x"),
        (text(format="email"), "a@b.c"), (text(format="uri"), "x:y"), (text(format="date"), "2026-11-30"),
        (text(format="date-time"), "2026-11-30T01:02:03Z"), (text(format="_other"), "x"), (text(enum=["a"]), "a"),
        (text(one_of=[one("a", "A")]), "a"), (number(), 1), (number(minimum=0, maximum=0.5), 0.5), (number(), -1e9),
        (whole(minimum=-1, maximum=3), 3), (acp.BooleanPropertySchema(), False),
        (some(acp.StringMultiSelectItems(["a"])), []),
        (some(acp.TitledMultiSelectItems([one("a", "A"), one("b", "B")]), max_items=2), ["a", "b"]),
        (some(acp.Unknown("_x", {"type": "_x"})), ["z"]), (acp.Unknown("_x", {"type": "_x"}), {"any": "thing"})]
    assert [(schema, wrong(schema, value)) for schema, value in good if wrong(schema, value)] == []
    bad = [
        (text(), 1), (text(), None), (text(min_length=1), ""), (text(max_length=2), "abc"), (text(pattern="^a"), "ba"),
        (text(format="email"), "a"), (text(format="uri"), "x"), (text(format="date"), "30.11.2026"),
        (text(format="date"), "2026-11-30\n"), (text(format="date-time"), "2026-11-30"), (text(enum=["a"]), "b"),
        (text(one_of=[one("a", "A")]), "A"), (number(), "1"), (number(), True), (number(maximum=0.5), 0.6),
        (number(minimum=0), -1), (whole(), 1.5), (whole(), False), (whole(maximum=3), 4),
        (acp.BooleanPropertySchema(), 0),
        (some(acp.StringMultiSelectItems(["a"])), "a"), (some(acp.StringMultiSelectItems(["a"])), ["b"]),
        (some(acp.StringMultiSelectItems(["a"])), [["a"]]), (some(acp.StringMultiSelectItems(["a"]), min_items=1), [])]
    assert [(schema, value) for schema, value in bad if not wrong(schema, value)] == []
    form = acp.ElicitationSchema({"p": text()}, required=["p"])
    for content, place in ((None, ""), ([], ""), ({}, "p")):
        with pytest.raises(acp.MalformedMessage) as caught:
            form.check(content)
        assert caught.value.place == place
    form.check({"p": "x", "more": 1})


@pytest.mark.parametrize("pattern", ["a{99999999999}", "(" * 5000 + ")" * 5000, "(?<js>a)"])
def test_a_pattern_that_python_does_not_take_is_not_checked(pattern):
    acp.ElicitationSchema({"a": acp.StringPropertySchema(pattern=pattern)}).check({"a": "text"})


# ---- how a message is made ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("values, named, why", [
    ((), {}, "missing a required argument: 'text'"), (("a", None, None, 4), {}, "too many positional arguments"),
    (("a",), {"text": "b"}, "multiple values for argument 'text'"), ((), {"txt": "a"}, "'text'"),
    (("a",), {"txt": "b"}, "unexpected keyword argument 'txt'")])
def test_a_message_made_with_wrong_arguments_names_its_class_and_the_argument(values, named, why):
    with pytest.raises(TypeError, match="TextContent: .*" + why):
        acp.TextContent(*values, **named)


def test_a_message_never_takes_what_is_no_field_of_it():
    with pytest.raises(TypeError, match="AgentMessage: got an unexpected keyword argument 'text'"):
        acp.AgentMessage("m", text="a property")


def test_messages_are_dataclasses_for_those_who_ask():
    assert dataclasses.is_dataclass(acp.TextContent) and dataclasses.is_dataclass(acp.IdleStateUpdate("x"))
    names = [each.name for each in dataclasses.fields(acp.ImageContent)]
    assert names == ["data", "mime_type", "uri", "annotations", "meta"]
    assert dataclasses.replace(acp.ToolCallUpdate("t", title="a"), title="b") == acp.ToolCallUpdate("t", title="b")
    assert dataclasses.asdict(acp.Content(acp.TextContent("a"))) == {
        "content": {"text": "a", "annotations": None, "meta": None}, "meta": None}
    assert acp.TextContent.__match_args__ == ("text", "annotations", "meta")


def test_help_shows_the_arguments_of_a_message_and_nothing_private():
    shown = pydoc.plain(pydoc.render_doc(acp.ToolCallUpdate))
    words = re.sub(r"\s+", " ", shown.replace("\n |", "\n"))
    assert re.search(r"ToolCallUpdate\( ?tool_call_id: '?str'?, name: '?Patch\[str\]'? = UNSET", words)
    assert not re.search(r"\b_(parts|tags|v1|count|texts|check)\b", shown)


def test_importing_the_file_imports_nothing_that_takes_long(tmp_path):
    done = run_program(python("""
        import sys
        before = {*sys.modules}
        import acp
        print({"logging", "dataclasses", "inspect", "subprocess", "socket"} & sys.modules.keys() - before)
    """), tmp_path)
    assert done.stdout == "set()\n"


# == 4. Codec =========================================================================================================
# One table of what goes over the wire, of either version: read, and written again as it was.

A_CONTENT = {"type": "content", "content": A_TEXT}
ALLOW = {"optionId": "a", "name": "Allow", "kind": "allow_once"}
UNHEARD_OF = {"type": "_acme.com/thing", "x-future": [1, None, {"deep": 0.5}], "text": 3}
IN_V1, IN_V2, IN_BOTH = (1,), (2,), (1, 2)

# Version(s), type, value: decodes, and encodes to the same JSON. With only what is required, and with all there is.
WIRE_VALUES = [(version, name, value) for versions, name, value in [
    # content
    (IN_BOTH, "ContentBlock", A_TEXT),
    (IN_BOTH, "ContentBlock", {**A_TEXT, "text": "", "annotations": {
        "audience": ["user", "robots"], "lastModified": "2026-11-01T12:30:00Z", "priority": 0}}),
    (IN_V1, "ContentBlock", {**A_TEXT, "annotations": {"priority": -1.5}}),
    (IN_BOTH, "ContentBlock", AN_IMAGE),
    (IN_BOTH, "ContentBlock", {**AN_IMAGE, "uri": "file:///a%20b.png", "annotations": {}}),
    (IN_BOTH, "ContentBlock", {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}),
    (IN_BOTH, "ContentBlock", {"type": "resource_link", "name": "a", "uri": "urn:isbn:1"}),
    (IN_V2, "ContentBlock", {
        "type": "resource_link", "name": "a", "uri": "urn:isbn:1", "title": "A", "description": "", "size": 0,
        "mimeType": "text/plain", "icons": [{"src": "a.png"}, {"src": "b", "theme": "dusk", "sizes": ["any"]}]}),
    (IN_V1, "ContentBlock", {"type": "resource_link", "name": "a", "uri": "urn:isbn:1", "size": -1}),
    (IN_BOTH, "ContentBlock", {"type": "resource", "resource": {"text": "", "uri": "file:///a"}}),
    (IN_BOTH, "ContentBlock", {"type": "resource", "resource": {
        "blob": "aGk=", "uri": "file:///a", "mimeType": "application/x"}}),
    (IN_BOTH, "ContentBlock", UNHEARD_OF),
    # tool calls
    (IN_BOTH, "ToolCallContent", A_CONTENT),
    (IN_BOTH, "ToolCallContent", {"type": "content", "content": UNHEARD_OF}),
    (IN_BOTH, "ToolCallContent", {"type": "terminal", "terminalId": "t"}),
    (IN_BOTH, "ToolCallContent", UNHEARD_OF),
    (IN_V1, "ToolCallContent", {"type": "diff", "path": "/a", "newText": ""}),
    (IN_V1, "ToolCallContent", {"type": "diff", "path": "C:\\a", "oldText": "", "newText": "b\r\n"}),
    (IN_V2, "ToolCallContent", {"type": "diff", "changes": []}),
    (IN_V2, "ToolCallContent", {"type": "diff", "patch": {"format": "_own", "text": ""}, "changes": [
        {"operation": "add", "path": "/a", "fileType": "text", "mimeType": "text/x"},
        {"operation": "move", "oldPath": "/a", "path": "/b"}, {"operation": "_rotate", "angle": 90}]}),
    (IN_BOTH, "SessionUpdate", {"sessionUpdate": "tool_call_update", "toolCallId": "c"}),
    (IN_V1, "SessionUpdate", {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "", "content": []}),
    (IN_V1, "SessionUpdate", {
        "sessionUpdate": "tool_call", "toolCallId": "c", "title": "T", "kind": "juggle", "status": "waiting",
        "name": "n", "content": [A_CONTENT], "locations": [{"path": "/a", "line": 0}], "rawInput": [], "rawOutput": 0}),
    (IN_BOTH, "SessionUpdate", {
        "sessionUpdate": "tool_call_update", "toolCallId": "c", "name": "", "title": "", "kind": "read",
        "status": "failed", "content": [], "locations": [{"path": "/a", "line": 1}], "rawInput": False,
        "rawOutput": ""}),
    (IN_V2, "SessionUpdate", {
        "sessionUpdate": "tool_call_update", "toolCallId": "c", "name": None, "title": None, "kind": None,
        "status": None, "content": None, "locations": None, "rawInput": None, "rawOutput": None, "capabilities": None}),
    (IN_V2, "SessionUpdate", {"sessionUpdate": "tool_call_update", "toolCallId": "c", "capabilities": {"cancel": {}}}),
    (IN_V2, "SessionUpdate", {"sessionUpdate": "tool_call_content_chunk", "toolCallId": "c", "content": A_CONTENT}),
    (IN_V2, "SessionUpdate", {"sessionUpdate": "terminal_update", "terminalId": "t"}),
    (IN_V2, "SessionUpdate", {
        "sessionUpdate": "terminal_update", "terminalId": "t", "command": "ls", "cwd": "/", "output": {"data": "aGk="},
        "exitStatus": {"exitCode": 0}, "size": {"cols": 1, "rows": 65535}, "capabilities": {"cancel": {}}}),
    (IN_V2, "SessionUpdate", {
        "sessionUpdate": "terminal_update", "terminalId": "t", "command": None, "output": None, "exitStatus": None}),
    (IN_V2, "SessionUpdate", {"sessionUpdate": "terminal_output_chunk", "terminalId": "t", "data": ""}),
    # messages, states and the other updates
    (IN_BOTH, "SessionUpdate", {"sessionUpdate": "agent_message_chunk", "messageId": "m", "content": A_TEXT}),
    (IN_V1, "SessionUpdate", {"sessionUpdate": "agent_thought_chunk", "content": UNHEARD_OF}),
    (IN_V1, "SessionUpdate", {"sessionUpdate": "user_message_chunk", "content": AN_IMAGE}),
    (IN_V2, "SessionUpdate", {"sessionUpdate": "user_message", "messageId": "m"}),
    (IN_V2, "SessionUpdate", {"sessionUpdate": "agent_message", "messageId": "m", "content": [A_TEXT, UNHEARD_OF]}),
    (IN_V2, "SessionUpdate", {"sessionUpdate": "agent_thought", "messageId": "m", "content": None}),
    (IN_V2, "SessionUpdate", {"sessionUpdate": "state_update", "state": "running"}),
    (IN_V2, "SessionUpdate", {"sessionUpdate": "state_update", "state": "requires_action", "background": []}),
    (IN_V2, "SessionUpdate", {"sessionUpdate": "state_update", "state": "idle"}),
    (IN_V2, "SessionUpdate", {"sessionUpdate": "state_update", "state": "idle", "stopReason": "end_turn",
        "background": [
        {"type": "terminal", "terminalId": "t"}, {"type": "tool_call", "toolCallId": "c"}, {"type": "_x"}]}),
    (IN_V2, "SessionUpdate", {"sessionUpdate": "state_update", "state": "idle", "stopReason": "_paused", "until": 3}),
    (IN_V2, "SessionUpdate", {"sessionUpdate": "state_update", "state": "idle", "stopReason": "error", "error": {
        "code": -32603, "message": "no", "data": [None]}}),
    (IN_V2, "SessionUpdate", {"sessionUpdate": "state_update", "state": "_dreaming", "of": "sheep", "background": [7]}),
    (IN_V1, "SessionUpdate", {"sessionUpdate": "plan", "entries": []}),
    (IN_V1, "SessionUpdate", {"sessionUpdate": "plan", "entries": [
        {"content": "", "priority": "high", "status": "pending"},
            {"content": "a", "priority": "urgent", "status": "x"}]}),
    (IN_V2, "SessionUpdate", {"sessionUpdate": "plan_update", "plan": {"type": "items", "planId": "p", "entries": [
        {"content": "a", "priority": "low", "status": "cancelled"}, {"content": "", "priority": "x", "status": "y"}]}}),
    (IN_V2, "SessionUpdate", {"sessionUpdate": "plan_update", "plan": {"type": "_graph", "planId": "p", "nodes": []}}),
    (IN_BOTH, "SessionUpdate", {"sessionUpdate": "available_commands_update", "availableCommands": []}),
    (IN_V1, "SessionUpdate", {"sessionUpdate": "available_commands_update", "availableCommands": [
        {"name": "a", "description": ""}, {"name": "b", "description": "B", "input": {"hint": ""}}]}),
    (IN_V2, "SessionUpdate", {"sessionUpdate": "available_commands_update", "availableCommands": [
        {"type": "command", "name": "a", "description": "", "input": {"type": "text", "hint": ""}},
        {"type": "command", "name": "b", "description": "B", "input": {"type": "_form", "fields": []}},
        {"type": "_macro", "name": "c", "description": "C"}]}),
    (IN_V1, "SessionUpdate", {"sessionUpdate": "current_mode_update", "currentModeId": "ask"}),
    (IN_V1, "SessionUpdate", {"sessionUpdate": "config_option_update", "configOptions": [
        {"type": "select", "id": "m", "name": "M", "currentValue": "x", "options": []},
        {"type": "select", "id": "n", "name": "N", "currentValue": "x", "category": "mode", "description": "",
         "options": [{"group": "g", "name": "G", "options": [{"value": "x", "name": "X", "description": "d"}]}]},
        {"type": "boolean", "id": "b", "name": "B", "currentValue": False}]}),
    (IN_V2, "SessionUpdate", {"sessionUpdate": "config_option_update", "configOptions": [
        {"type": "select", "configId": "m", "name": "M", "currentValue": "x", "options": [{"value": "x", "name": "X"}]},
        {"type": "select", "configId": "n", "name": "N", "currentValue": "x", "category": "mode", "description": "",
         "options": [{"groupId": "g", "name": "G", "options": [{"value": "x", "name": "X", "description": "d"}]}]},
        {"type": "boolean", "configId": "b", "name": "B", "currentValue": False},
        {"type": "_slider", "configId": "s", "name": "S", "at": 3}]}),
    (IN_BOTH, "SessionUpdate", {"sessionUpdate": "session_info_update"}),
    (IN_BOTH, "SessionUpdate", {"sessionUpdate": "session_info_update", "title": None, "updatedAt": ""}),
    (IN_BOTH, "SessionUpdate", {"sessionUpdate": "usage_update", "used": 0, "size": 2 ** 60}),
    (IN_BOTH, "SessionUpdate", {"sessionUpdate": "usage_update", "used": 1, "size": 1, "cost": {
        "amount": -0.5, "currency": "EUR"}}),
    (IN_V2, "SessionUpdate", {"sessionUpdate": "usage_update", "used": 1, "size": 1, "cost": None}),
    (IN_BOTH, "SessionUpdate", {"sessionUpdate": "notice", "severity": "_calm", "title": "t", "description": ""}),
    (IN_BOTH, "SessionUpdate", {
        "sessionUpdate": "compaction_update", "compactionId": "k", "status": "_x", "summary": [A_TEXT], "error": ""}),
    (IN_V2, "SessionUpdate", {
        "sessionUpdate": "compaction_update", "compactionId": "k", "status": "failed", "summary": None, "error": None}),
    (IN_BOTH, "SessionUpdate", {"sessionUpdate": "compaction_summary_chunk", "compactionId": "k", "content": A_TEXT}),
    (IN_BOTH, "SessionUpdate", {"sessionUpdate": "_acme.com/dance", "steps": [1, None]}),
    (IN_BOTH, "UpdateSessionNotification", {"sessionId": "s", "update": {
        "sessionUpdate": "agent_message_chunk", "messageId": "m", "content": A_TEXT}}),
    # initialize and authentication
    (IN_V1, "InitializeRequest", {"protocolVersion": 0}),
    (IN_V2, "InitializeRequest", {"protocolVersion": 65535, "info": {"name": "a", "version": ""}}),
    (IN_V1, "InitializeRequest", {
        "protocolVersion": 1, "clientInfo": {"name": "a", "version": "1", "title": "A"}, "clientCapabilities": {
            "fs": {"readTextFile": True, "writeTextFile": False}, "terminal": True, "auth": {"terminal": True},
            "elicitation": {"form": {}, "url": {}},
            "session": {"configOptions": {"boolean": {}}, "notices": {}, "compaction": {}}}}),
    (IN_V2, "InitializeRequest", {"protocolVersion": 2, "info": {"name": "a", "version": "1", "title": ""},
        "capabilities": {
        "auth": {"terminal": {}}, "elicitation": {"form": {}, "url": {}}}}),
    (IN_V1, "InitializeResponse", {"protocolVersion": 1}),
    (IN_V1, "InitializeResponse", {
        "protocolVersion": 1, "agentInfo": {"name": "a", "version": "1"}, "authMethods": [
            {"id": "a", "name": "A"}, {"type": "terminal", "id": "t", "name": "T", "args": ["--login"],
                                       "env": {"TOKEN": "x"}}],
        "agentCapabilities": {
            "loadSession": True, "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
            "mcpCapabilities": {"http": True, "sse": False}, "auth": {"logout": {}}, "sessionCapabilities": {
                "list": {}, "delete": {}, "resume": {}, "close": {}, "additionalDirectories": {}}}}),
    (IN_V2, "InitializeResponse", {
        "protocolVersion": 2, "info": {"name": "a", "version": "1"}, "authMethods": [
            {"type": "agent", "methodId": "a", "name": "A", "description": ""},
            {"type": "terminal", "methodId": "t", "name": "T", "args": [], "env": [{"name": "TOKEN", "value": "x"}]},
            {"type": "_card", "methodId": "c", "name": "C", "slot": 1}],
        "capabilities": {"auth": {}, "session": {
            "prompt": {"image": {}, "audio": {}, "embeddedContext": {}}, "mcp": {"stdio": {}, "http": {}},
            "delete": {}, "additionalDirectories": {}}}}),
    (IN_BOTH, "LoginAuthRequest", {"methodId": ""}),
    (IN_BOTH, "EmptyResponse", {}),
    # sessions and prompts
    (IN_V1, "NewSessionRequest", {"cwd": "/", "mcpServers": []}),
    (IN_V2, "NewSessionRequest", {"cwd": "/"}),
    (IN_V1, "NewSessionRequest", {"cwd": "/", "additionalDirectories": ["/a"], "mcpServers": [
        {"name": "a", "command": "/a", "args": [], "env": []},
        {"name": "b", "command": "/b", "args": [""], "env": [{"name": "TOKEN", "value": ""}]},
        {"type": "http", "name": "c", "url": "http://c", "headers": [{"name": "Authorization", "value": "x"}]},
        {"type": "sse", "name": "d", "url": "http://d", "headers": []}, {"type": "_pipe", "name": "e"}]}),
    (IN_V2, "NewSessionRequest", {"cwd": "/", "additionalDirectories": [], "mcpServers": [
        {"type": "stdio", "name": "a", "command": "/a"},
        {"type": "stdio", "name": "b", "command": "/b", "args": [""], "env": [{"name": "TOKEN", "value": ""}]},
        {"type": "http", "name": "c", "url": "http://c", "headers": [{"name": "Authorization", "value": "x"}]},
        {"type": "_pipe", "name": "e"}]}),
    (IN_V1, "NewSessionResponse", {"sessionId": "s", "modes": {"currentModeId": "a", "availableModes": [
        {"id": "a", "name": "A"}, {"id": "b", "name": "B", "description": ""}]}}),
    (IN_V2, "NewSessionResponse", {"sessionId": "s", "configOptions": [], "availableCommands": [
        {"type": "command", "name": "a", "description": "A"}]}),
    (IN_V1, "ResumeSessionRequest", {"sessionId": "s", "cwd": "/"}),
    (IN_V2, "ResumeSessionRequest", {"sessionId": "s", "cwd": "/", "replayFrom": {"type": "start"}}),
    (IN_V2, "ResumeSessionRequest", {"sessionId": "s", "cwd": "/", "replayFrom": {"type": "_cursor", "at": 3}}),
    (IN_BOTH, "ListSessionsRequest", {}),
    (IN_BOTH, "ListSessionsRequest", {"cwd": "/", "cursor": ""}),
    (IN_BOTH, "ListSessionsResponse", {"sessions": []}),
    (IN_BOTH, "ListSessionsResponse", {"nextCursor": "", "sessions": [{"sessionId": "s", "cwd": "/"}, {
        "sessionId": "r", "cwd": "/", "title": "", "updatedAt": "2026-11-01T12:30:00Z", "additionalDirectories": []}]}),
    (IN_V1, "SetSessionConfigOptionRequest", {"sessionId": "s", "configId": "m", "value": ""}),
    (IN_V1, "SetSessionConfigOptionRequest", {"sessionId": "s", "configId": "m", "type": "id", "value": "x"}),
    (IN_V2, "SetSessionConfigOptionRequest", {"sessionId": "s", "configId": "m", "type": "id", "value": ""}),
    (IN_BOTH, "SetSessionConfigOptionRequest", {
        "sessionId": "s", "configId": "b", "type": "boolean", "value": False}),
    (IN_V2, "SetSessionConfigOptionRequest", {"sessionId": "s", "configId": "n", "type": "_number", "value": 0}),
    (IN_V1, "SetSessionModeRequest", {"sessionId": "s", "modeId": ""}),
    (IN_BOTH, "PromptRequest", {"sessionId": "s", "prompt": [A_TEXT, AN_IMAGE, UNHEARD_OF]}),
    (IN_V1, "PromptRequest", {"sessionId": "s", "prompt": []}),
    (IN_V1, "PromptResponse", {"stopReason": "_bored"}),
    (IN_V2, "PromptResponse", {"messageId": "m"}),
    (IN_V2, "PromptResponse", {}),
    (IN_V2, "CancelToolCallRequest", {"sessionId": "s", "toolCallId": "c"}),
    (IN_V2, "CancelTerminalRequest", {"sessionId": "s", "terminalId": "t"}),
    # permissions and elicitation
    (IN_V1, "RequestPermissionRequest", {"sessionId": "s", "toolCall": {"toolCallId": "c"}, "options": []}),
    (IN_V1, "RequestPermissionRequest", {"sessionId": "s", "options": [ALLOW, {**ALLOW, "kind": "_x"}], "toolCall": {
        "toolCallId": "c", "title": "T", "kind": "edit", "content": [{"type": "diff", "path": "/a", "newText": "b"}]}}),
    (IN_V2, "RequestPermissionRequest", {"sessionId": "s", "title": "", "options": [ALLOW]}),
    (IN_V2, "RequestPermissionRequest", {
        "sessionId": "s", "title": "T", "description": "", "options": [ALLOW], "subject": {
            "type": "tool_call", "toolCall": {"toolCallId": "c", "title": None, "content": [A_CONTENT]}}}),
    (IN_V2, "RequestPermissionRequest", {"sessionId": "s", "title": "T", "options": [ALLOW], "subject": {
        "type": "command", "command": "ls", "cwd": "/", "toolCallId": "c", "terminalId": "t"}}),
    (IN_V2, "RequestPermissionRequest", {"sessionId": "s", "title": "T", "options": [ALLOW], "subject": UNHEARD_OF}),
    (IN_BOTH, "RequestPermissionResponse", {"outcome": {"outcome": "selected", "optionId": ""}}),
    (IN_BOTH, "RequestPermissionResponse", {"outcome": {"outcome": "cancelled"}}),
    (IN_BOTH, "RequestPermissionResponse", {"outcome": {"outcome": "_later", "optionId": "a"}}),
    (IN_BOTH, "CreateElicitationRequest", {
        "message": "", "mode": "form", "sessionId": "s", "toolCallId": "c", "requestedSchema": {
            "type": "object", "title": "", "description": "", "required": ["a"], "properties": {
                "a": {"type": "string", "title": "A", "minLength": 0, "maxLength": 9, "pattern": "^a", "format": "_x",
                      "default": ""},
                "b": {"type": "string", "oneOf": [{"const": "", "title": ""}], "enum": [""]},
                "c": {"type": "number", "minimum": -0.5, "maximum": 1, "default": 0},
                "d": {"type": "integer", "minimum": -1, "maximum": 1, "default": 0},
                "e": {"type": "boolean", "default": False},
                "f": {"type": "array", "items": {"type": "string", "enum": ["x"]}, "minItems": 0, "default": []},
                "g": {"type": "array", "items": {"anyOf": [{"const": "x", "title": "X", "description": ""}]}},
                "h": {"type": "_colour", "wheel": True}, "": {"type": "boolean"}}}}),
    (IN_V1, "CreateElicitationRequest", {"message": "", "mode": "form", "requestId": None, "requestedSchema": {}}),
    (IN_BOTH, "CreateElicitationRequest", {
        "message": "", "mode": "url", "requestId": 0, "elicitationId": "e", "url": "https://x"}),
    (IN_BOTH, "CreateElicitationRequest", {"message": "", "mode": "_voice", "requestId": "1", "tone": "low"}),
    (IN_V1, "CreateElicitationRequest", {
        "message": "", "mode": "url", "sessionId": "s", "requestId": 1, "elicitationId": "e", "url": "https://x"}),
    (IN_BOTH, "CreateElicitationResponse", {"action": "accept", "content": {"a": "", "b": 0, "c": False, "d": ["x"]}}),
    (IN_BOTH, "CreateElicitationResponse", {"action": "_later", "when": 3}),
    (IN_BOTH, "CancelRequestNotification", {"requestId": 0}),
    (IN_BOTH, "CancelRequestNotification", {"requestId": ""}),
    (IN_V1, "CancelRequestNotification", {"requestId": None}),
    # files and terminals of the client
    (IN_V1, "ReadTextFileRequest", {"sessionId": "s", "path": "/a", "line": 0, "limit": 0}),
    (IN_V1, "WriteTextFileRequest", {"sessionId": "s", "path": "/a", "content": ""}),
    (IN_V1, "CreateTerminalRequest", {"sessionId": "s", "command": "ls"}),
    (IN_V1, "CreateTerminalRequest", {
        "sessionId": "s", "command": "ls", "args": [], "env": [{"name": "A", "value": ""}], "cwd": "/",
        "outputByteLimit": 0}),
    (IN_V1, "TerminalOutputResponse", {"output": "", "truncated": False, "exitStatus": {"signal": "SIGTERM"}}),
    (IN_V1, "WaitForTerminalExitResponse", {"exitCode": 0}),
] for version in versions]


def wire_ids(rows):
    """Names for the cases of a table."""
    return [f"v{row[0]}-{row[1]}-{row[2].get('sessionUpdate', '') if isinstance(row[2], dict) else ''}{index}"
            for index, row in enumerate(rows)]


def wire_round_trip(version, name, value):
    """What is left of a wire value after decoding and encoding; decoding must not change its input."""
    before = json.dumps(value)
    message = acp.from_wire(getattr(acp, name), value, version)
    again = json.loads(json.dumps(acp.to_wire(message, version)))
    assert json.dumps(value) == before
    return again


def wire_objects(value, name):
    """Every object inside a wire value that stands for a message: not the maps from names to something."""
    if isinstance(value, list):
        for item in value:
            yield from wire_objects(item, name)
    elif isinstance(value, dict):
        yield value
        for key, item in value.items():
            if key in ("properties", "env") or (key == "content" and name == "CreateElicitationResponse"):
                item = list(item.values()) if isinstance(item, dict) else item
            yield from wire_objects(item, name)


def wire_nulls(value):
    """How many nulls there are in a JSON value."""
    return value is None or (sum(map(wire_nulls, value.values() if isinstance(value, dict) else value))
                             if isinstance(value, (dict, list)) else 0)


@pytest.mark.parametrize("version, name, value", WIRE_VALUES, ids=wire_ids(WIRE_VALUES))
def test_a_value_of_the_wire_is_read_and_written_again_as_it_was(version, name, value):
    assert wire_round_trip(version, name, value) == value


@pytest.mark.parametrize("version, name, value", WIRE_VALUES, ids=wire_ids(WIRE_VALUES))
def test_metadata_survives_on_every_object(version, name, value):
    value = json.loads(json.dumps(value))
    for place in list(wire_objects(value, name)):
        place["_meta"] = {"a/b": {"n": [1, None]}, "": ""}
    assert wire_round_trip(version, name, value) == value


@pytest.mark.parametrize("version, name, value", WIRE_VALUES, ids=wire_ids(WIRE_VALUES))
def test_unknown_fields_survive_on_every_object(version, name, value):
    value = json.loads(json.dumps(value))
    for place in list(wire_objects(value, name)):
        place["futureField"] = {"n": [1, None, {"": 0}]}
    assert wire_round_trip(version, name, value) == value


# ---- what is forgiven, and what is not ------------------------------------------------------------------------------

# Version, type, value, what is left of it: the schema forgives these.
WIRE_LENIENT = [
    (1, "ContentBlock", {**A_TEXT, "annotations": 7}, A_TEXT),
    (2, "ContentBlock", {**A_TEXT, "annotations": {"priority": 2, "audience": ["user", 3], "lastModified": 1.5}}, {
        **A_TEXT, "annotations": {"audience": ["user"]}}),
    (2, "ContentBlock", {"type": "resource_link", "name": "a", "uri": "u", "size": -1, "icons": [{"src": "s"}, {}]}, {
        "type": "resource_link", "name": "a", "uri": "u", "icons": [{"src": "s"}]}),
    (1, "SessionUpdate", {"sessionUpdate": "tool_call_update", "toolCallId": "c", "title": 3, "content": [
        A_CONTENT, 7, {"type": "content"}, {"type": "diff", "path": "/a"}]}, {
            "sessionUpdate": "tool_call_update", "toolCallId": "c", "content": [A_CONTENT]}),
    (2, "SessionUpdate", {"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": 0, "kind": [], "content": [
        A_CONTENT, 7, {"type": "content"}, {"type": "diff", "changes": None}], "locations": [
            {"path": "/a", "line": 0}, {"line": 1}, {"path": "/b", "line": "1"}], "_meta": 7}, {
                "sessionUpdate": "tool_call_update", "toolCallId": "c", "content": [A_CONTENT],
                "locations": [{"path": "/a"}, {"path": "/b"}]}),
    (1, "ToolCallContent", {"type": "diff", "path": "/a", "oldText": 7, "newText": "b"}, {
        "type": "diff", "path": "/a", "newText": "b"}),
    (2, "ToolCallContent", {"type": "diff", "changes": [
        {"operation": "add"}, 7, {"operation": "copy", "path": "/a"},
            {"operation": "delete", "path": "/a", "fileType": 3}]},
     {"type": "diff", "changes": [{"operation": "delete", "path": "/a"}]}),
    (1, "SessionUpdate", {"sessionUpdate": "plan", "entries": None}, {"sessionUpdate": "plan", "entries": []}),
    (1, "SessionUpdate", {"sessionUpdate": "available_commands_update", "availableCommands": [
        {"name": "a", "description": "A", "input": {}}, {"name": "b"}]}, {
            "sessionUpdate": "available_commands_update", "availableCommands": [{"name": "a", "description": "A"}]}),
    (2, "SessionUpdate", {"sessionUpdate": "available_commands_update", "availableCommands": [
        {"name": "august", "description": "A"}, {"type": "_macro", "name": "c"}, 7]}, {
            "sessionUpdate": "available_commands_update", "availableCommands": [
                {"type": "command", "name": "august", "description": "A"}]}),
    (2, "SessionUpdate", {"sessionUpdate": "plan_update", "plan": {"type": "items", "planId": "p", "entries": [
        {"content": "a"}, {"content": "b", "priority": "low", "status": "pending"}]}}, {
            "sessionUpdate": "plan_update", "plan": {"type": "items", "planId": "p", "entries": [
                {"content": "b", "priority": "low", "status": "pending"}]}}),
    (2, "SessionUpdate", {"sessionUpdate": "state_update", "state": "idle", "stopReason": 7, "background": [
        {"type": "terminal", "terminalId": "t"}, {"type": "terminal"}]},
            {"sessionUpdate": "state_update", "state": "idle"}),
    (2, "SessionUpdate", {"sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": {"amount": "1"}}, {
        "sessionUpdate": "usage_update", "used": 1, "size": 2}),
    (1, "InitializeRequest", {"protocolVersion": 1, "clientInfo": "me", "clientCapabilities": {
        "fs": {"readTextFile": "yes"}, "terminal": 1}}, {"protocolVersion": 1, "clientCapabilities": {"fs": {}}}),
    (2, "InitializeResponse", {"protocolVersion": 2, "info": {"name": "a", "version": "1"}, "capabilities": [],
        "authMethods": [
        {"type": "agent", "methodId": "a", "name": "A"}, {"type": "agent"}, {"type": "_x", "name": "X"}, 7]}, {
            "protocolVersion": 2, "info": {"name": "a", "version": "1"}, "authMethods": [
                {"type": "agent", "methodId": "a", "name": "A"}]}),
    (1, "NewSessionRequest", {"cwd": "/", "mcpServers": None, "additionalDirectories": None},
        {"cwd": "/", "mcpServers": []}),
    (1, "NewSessionRequest", {"cwd": "/"}, {"cwd": "/", "mcpServers": []}),
    (2, "NewSessionRequest", {"cwd": "/", "mcpServers": [
        {"type": "stdio", "name": "a", "command": "/a", "args": None, "env": None},
        {"type": "http", "name": "b", "url": "u", "headers": None}]}, {"cwd": "/", "mcpServers": [
            {"type": "stdio", "name": "a", "command": "/a"}, {"type": "http", "name": "b", "url": "u"}]}),
    (2, "NewSessionResponse", {"sessionId": "s", "configOptions": 7, "availableCommands": None}, {"sessionId": "s"}),
    (2, "ListSessionsResponse", {}, {"sessions": []}),
    (1, "ListSessionsResponse", {"sessions": [{"sessionId": "s"}, {"sessionId": "r", "cwd": "/", "title": 3}],
        "nextCursor": 3},
     {"sessions": [{"sessionId": "r", "cwd": "/"}]}),
    (1, "SetSessionConfigOptionResponse", {"configOptions": None}, {"configOptions": []}),
    (2, "RequestPermissionRequest", {"sessionId": "s", "title": "T", "description": 0, "options": [ALLOW],
        "subject": None},
     {"sessionId": "s", "title": "T", "options": [ALLOW]}),
    (1, "TerminalOutputResponse", {"output": "", "truncated": True, "exitStatus": {"exitCode": -1, "signal": "x"}}, {
        "output": "", "truncated": True, "exitStatus": {"signal": "x"}}),
]


@pytest.mark.parametrize("version, name, value, left", WIRE_LENIENT, ids=wire_ids(WIRE_LENIENT))
def test_what_the_schema_forgives_is_read_as_what_is_left(version, name, value, left):
    def filled(value):
        """Without empty lists, which stand for absent ones."""
        if isinstance(value, dict):
            return {key: filled(item) for key, item in value.items() if item != []}
        return [filled(item) for item in value] if isinstance(value, list) else value

    assert filled(wire_round_trip(version, name, value)) == filled(left)


A_FORM = {"message": "", "mode": "form", "sessionId": "s"}

# Version, type, value, the place that the error names: these are refused.
WIRE_INVALID = [
    (1, "PromptRequest", {"sessionId": "s", "prompt": [{"type": "text", "text": 3}]}, "prompt[0].text"),
    (2, "PromptRequest", {"sessionId": "s", "prompt": [A_TEXT, {"type": "image", "data": "aGk="}]},
        "prompt[1].mimeType"),
    (2, "PromptRequest", {"sessionId": "s", "prompt": []}, "prompt"),
    (2, "PromptRequest", {"sessionId": "s", "prompt": None}, "prompt"),
    (1, "PromptRequest", {"sessionId": None, "prompt": [A_TEXT]}, "sessionId"),
    (1, "PromptRequest", {"prompt": [A_TEXT]}, "sessionId"),
    (1, "ContentBlock", {"text": "hi"}, "type"),
    (2, "ContentBlock", {"type": None, "text": "hi"}, "type"),
    (2, "ContentBlock", {"type": "resource", "resource": {"uri": "u"}}, "resource"),
    (1, "ContentBlock", {"type": "resource", "resource": {"uri": "u", "text": 3}}, "resource.text"),
    (1, "ToolCallContent", {"type": "diff", "path": "/a"}, "newText"),
    (2, "ToolCallContent", {"type": "diff", "changes": None}, "changes"),
    (2, "DiffChange", {"operation": "move", "path": "/a"}, "oldPath"),
    (2, "DiffChange", {"operation": "modify"}, "path"),
    (1, "SessionUpdate", {"sessionUpdate": "tool_call", "toolCallId": "c"}, "title"),
    (1, "SessionUpdate", {"sessionUpdate": "current_mode_update"}, "currentModeId"),
    (2, "SessionUpdate", {"sessionUpdate": "agent_message_chunk", "content": A_TEXT}, "messageId"),
    (2, "SessionUpdate", {"sessionUpdate": "plan_update", "plan": {"type": "items", "planId": "p", "entries": None}},
     "plan.entries"),
    (2, "SessionUpdate", {"sessionUpdate": "plan_update", "plan": {"type": "_graph"}}, "plan.planId"),
    (2, "SessionUpdate", {"sessionUpdate": "available_commands_update", "availableCommands": None},
        "availableCommands"),
    (2, "SessionUpdate", {"sessionUpdate": "config_option_update", "configOptions": {}}, "configOptions"),
    (2, "SessionUpdate", {"sessionUpdate": "state_update"}, "state"),
    (2, "SessionUpdate", {"sessionUpdate": "notice", "severity": "info", "title": ""}, "title"),
    (2, "AvailableCommand", {"type": "_macro", "name": "a"}, "description"),
    (2, "AuthMethod", {"type": "_card", "name": "C"}, "methodId"),
    (1, "AuthMethod", {"name": "C"}, "id"),
    (1, "McpServer", {"type": "http", "name": "a", "command": "/a"}, "url"),
    (1, "McpServer", {"name": "a", "url": "http://a"}, "command"),
    (2, "McpServer", {"name": "a", "command": "/a"}, "type"),
    (2, "SessionConfigOption", {"type": "select", "configId": "m", "name": "M", "currentValue": "x", "options": [
        {"value": "x", "name": "X"}, {"groupId": "g", "name": "G", "options": [{"value": "y", "name": "Y"}]}]},
            "options"),
    (2, "SessionConfigOption", {"type": "select", "configId": "m", "name": "M", "currentValue": "x", "options": []},
        "options"),
    (1, "SessionConfigOption", {"type": "boolean", "id": "b", "name": "B", "currentValue": "true"}, "currentValue"),
    (1, "NewSessionRequest", {"cwd": "/", "mcpServers": 3}, "mcpServers"),
    (2, "NewSessionRequest", {"cwd": "/", "additionalDirectories": ["/a", 3]}, "additionalDirectories[1]"),
    (1, "NewSessionRequest", {"cwd": "/", "mcpServers": [{"name": "a", "command": "/a", "args": "x"}]},
        "mcpServers[0].args"),
    (2, "ResumeSessionRequest", {"sessionId": "s", "cwd": "/", "replayFrom": 3}, "replayFrom"),
    (2, "ListSessionsRequest", {"cwd": 3}, "cwd"),
    (1, "ListSessionsRequest", {"cursor": 3}, "cursor"),
    (2, "ListSessionsResponse", {"sessions": [], "nextCursor": 3}, "nextCursor"),
    (2, "SetSessionConfigOptionRequest", {"sessionId": "s", "configId": "b", "value": "x"}, "type"),
    (2, "SetSessionConfigOptionRequest", {"sessionId": "s", "configId": "b", "type": "id", "value": True}, "value"),
    (1, "SetSessionConfigOptionRequest", {"sessionId": "s", "configId": "b", "type": "boolean", "value": "x"}, "value"),
    (1, "SetSessionConfigOptionRequest", {"sessionId": "s", "configId": "b", "value": True}, "value"),
    (2, "SetSessionConfigOptionResponse", {"configOptions": None}, "configOptions"),
    (2, "RequestPermissionRequest", {"sessionId": "s", "title": "T", "options": []}, "options"),
    (1, "RequestPermissionRequest", {"sessionId": "s", "options": [ALLOW]}, "toolCall"),
    (2, "RequestPermissionRequest", {"sessionId": "s", "title": "T", "options": [ALLOW],
        "subject": {"type": "command"}},
     "subject.command"),
    (2, "RequestPermissionResponse", {"outcome": {"outcome": "selected"}}, "outcome.optionId"),
    (1, "RequestPermissionResponse", {"outcome": "allow_once"}, "outcome"),
    (2, "CreateElicitationRequest", {"message": "", "mode": "url", "elicitationId": "e", "url": "u"}, "sessionId"),
    (2, "CreateElicitationRequest", {**A_FORM, "requestId": 1, "requestedSchema": {"type": "object", "properties": {}}},
     "requestId"),
    (2, "CreateElicitationRequest", A_FORM, "requestedSchema"),
    (1, "CreateElicitationRequest", {**A_FORM, "mode": "url", "url": "u"}, "elicitationId"),
    (2, "CreateElicitationRequest", {**A_FORM, "requestedSchema": {"type": "object", "properties": {
        "a": {"type": "string", "minLength": -1}}}}, "requestedSchema.properties.a.minLength"),
    (2, "CreateElicitationRequest", {**A_FORM, "requestedSchema": {"type": "array", "properties": {}}},
        "requestedSchema.type"),
    (2, "CreateElicitationRequest", {**A_FORM, "requestedSchema": {"type": "object", "properties": {
        "a": {"type": "array", "items": {"type": "string", "enum": []}}}}}, "requestedSchema.properties.a.items.enum"),
    (2, "CreateElicitationRequest", {"message": "", "mode": "_voice"}, "sessionId"),
    (1, "CreateElicitationResponse", {"action": "accept", "content": {"a": {}}}, "content.a"),
    (1, "ReadTextFileRequest", {"sessionId": "s", "path": "/a", "line": -1}, "line"),
    (1, "ReadTextFileRequest", {"sessionId": "s", "path": "/a", "limit": "1"}, "limit"),
    (1, "CreateTerminalRequest", {"sessionId": "s", "command": "ls", "cwd": 3}, "cwd"),
    (1, "CreateTerminalRequest", {"sessionId": "s", "command": "ls", "outputByteLimit": 1.5}, "outputByteLimit"),
    (1, "PromptResponse", {}, "stopReason"),
    *[(version, "UsageUpdate", {"used": bad, "size": 1}, "used") for version in (1, 2) for bad in (True, -1, 1.5, "1",
        None)],
    *[(2, "TerminalSize", {"cols": bad, "rows": 1}, "cols") for bad in (0, 65536, True, 1.5, "80")],
    *[(version, "InitializeRequest", {"protocolVersion": bad, "info": {"name": "a", "version": "1"}}, "protocolVersion")
      for version in (1, 2) for bad in (-1, 65536, True, 1.5, "1", None)],
    (2, "InitializeRequest", {"protocolVersion": 2, "info": {"name": "a"}}, "info.version"),
    (2, "InitializeRequest", {"protocolVersion": 2, "info": None}, "info"),
    (2, "ToolCallUpdate", [], ""),
]


@pytest.mark.parametrize("version, name, value, place", WIRE_INVALID, ids=wire_ids(WIRE_INVALID))
def test_what_the_schema_does_not_forgive_is_refused_with_its_place(version, name, value, place):
    with pytest.raises(acp.MalformedMessage) as caught:
        acp.from_wire(getattr(acp, name), value, version)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, acp.Error)
    assert caught.value.place == place or caught.value.place.startswith(place + ".")
    assert str(caught.value).startswith(caught.value.place)


# ---- null, absent, empty --------------------------------------------------------------------------------------------

def wire_sample(kind):
    """A value of an annotated type, with nothing in it but what is required."""
    args = getattr(kind, "__args__", ())
    if isinstance(kind, type) and issubclass(kind, acp.Message):
        return wire_smallest(kind)
    if getattr(kind, "__origin__", None) is list:
        return [wire_sample(args[0])]
    return {str: "x", int: 1, float: 0.5, bool: True}.get(kind, "x") if not args else wire_sample(args[0])


def wire_smallest(cls):
    """A message of this class, made with its required arguments only."""
    parameters = inspect.signature(cls).parameters.items()
    required = [name for name, parameter in parameters if parameter.default is parameter.empty]
    return cls(*[wire_sample(eval(cls.__dataclass_fields__[name].type, vars(acp))) for name in required])


WIRE_CLASSES = sorted({cls for cls in vars(acp).values() if isinstance(cls, type) and issubclass(cls, acp.Message)
                       and cls not in (acp.Message, acp.Unknown, acp.CreateElicitationRequest)},
                           key=lambda cls: cls.__name__)


@BOTH
@pytest.mark.parametrize("cls", WIRE_CLASSES)
def test_a_message_with_only_required_fields_has_no_null_on_the_wire(cls, version):
    made = wire_smallest(cls)
    if cls is acp.DiffChange:
        made.path = "/a"
    if version == 1 and cls is acp.PromptResponse:
        made.stop_reason = "end_turn"
    if cls is acp.ElicitationSchema:
        made.properties = {}
    if version == 1 and cls is acp.RequestPermissionRequest:
        made.subject = acp.ToolCallPermissionSubject(acp.ToolCallUpdate("c"))
    try:
        wire = acp.to_wire(made, version)
    except acp.Unsupported:
        assert version == 1
        return
    assert not wire_nulls(wire)
    assert not {"_meta", "annotations"} & set(wire)


def test_false_zero_and_empty_are_values_that_are_sent():
    assert acp.to_wire(acp.ToolCallUpdate("", title="", content=[], raw_input=0, raw_output=False), 2) == {
        "sessionUpdate": "tool_call_update", "toolCallId": "", "title": "", "content": [], "rawInput": 0,
            "rawOutput": False}
    assert acp.to_wire(acp.UsageUpdate(0, 0), 1) == {"sessionUpdate": "usage_update", "used": 0, "size": 0}
    assert acp.to_wire(acp.SetSessionConfigOptionRequest("s", "b", False, "boolean"), 1)["value"] is False
    assert acp.to_wire(acp.NewSessionRequest("/", [], []), 2) == {"cwd": "/", "additionalDirectories": [],
        "mcpServers": []}


def test_omitted_null_and_a_value_are_three_things_in_a_patch():
    read = acp.from_wire(acp.ToolCallUpdate, {"toolCallId": "c", "title": None, "kind": "read"}, 2)
    assert (read.name, read.title, read.kind) == (acp.UNSET, None, "read")
    assert acp.to_wire(acp.SessionInfoUpdate(), 2) == {"sessionUpdate": "session_info_update"}
    assert acp.to_wire(acp.SessionInfoUpdate(None), 2) == {"sessionUpdate": "session_info_update", "title": None}
    assert acp.to_wire(acp.SessionInfoUpdate("t"), 2) == {"sessionUpdate": "session_info_update", "title": "t"}
    assert acp.to_wire(acp.AgentMessage("m", meta=None), 2)["_meta"] is None
    assert "_meta" not in acp.to_wire(acp.AgentMessage("m"), 2)


def test_outside_patches_none_is_omitted_and_null_is_read_as_omitted():
    read = acp.from_wire(acp.ContentBlock, {**A_TEXT, "annotations": None, "_meta": None}, 2)
    assert read == acp.TextContent("hi") and acp.to_wire(read, 2) == A_TEXT
    read = acp.from_wire(acp.InitializeResponse, {"protocolVersion": 1, "agentInfo": None, "agentCapabilities": None,
                                                  "authMethods": None}, 1)
    assert (read.info, read.auth_methods or []) == (None, [])


@pytest.mark.parametrize("field", ["name", "title", "kind", "status", "content", "locations", "rawInput", "rawOutput",
    "_meta"])
def test_null_in_a_tool_call_update_of_version_1_means_unchanged(field):
    read = acp.from_wire(acp.SessionUpdate, {"sessionUpdate": "tool_call_update", "toolCallId": "c", field: None}, 1)
    assert read == acp.ToolCallUpdate("c")


# ---- what is unknown or wrong ---------------------------------------------------------------------------------------

def test_an_unknown_variant_keeps_its_tag_and_the_whole_object():
    for version in (1, 2):
        block = acp.from_wire(acp.ContentBlock, UNHEARD_OF, version)
        assert isinstance(block, acp.Unknown) and (block.tag, block.data) == (UNHEARD_OF["type"], UNHEARD_OF)
        assert acp.to_wire(block, version) == UNHEARD_OF
    state = acp.from_wire(acp.SessionUpdate, {"sessionUpdate": "state_update", "state": "_x", "background": [7]}, 2)
    assert isinstance(state, acp.Unknown) and state.data["background"] == [7]


def test_writing_a_field_of_the_wrong_type_names_it():
    for message, place in ((acp.TextContent(3), "text"), (acp.PromptRequest("s", [acp.TextContent("a"), "b"]),
        "prompt[1]"),
                           (acp.UsageUpdate(True, 1), "used"), (acp.ToolCallUpdate(None), "toolCallId")):
        with pytest.raises(acp.MalformedMessage) as caught:
            acp.to_wire(message, 2)
        assert caught.value.place == place


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("message, place", [
    (acp.InitializeRequest(1, capabilities="all"), {1: "clientCapabilities", 2: "capabilities"}),
    (acp.InitializeRequest(1, info=acp.TextContent("x")), {1: "clientInfo", 2: "info"}),
    (acp.ToolCallUpdate("c", locations=[acp.ToolCallLocation("/a"), "/b"]), "locations[1]"),
    (acp.AgentMessageChunk("m", acp.TextContent("x", annotations=acp.Icon("i"))), "content.annotations"),
])
def test_a_field_of_one_class_refuses_all_others_by_its_place(version, message, place):
    with pytest.raises(acp.MalformedMessage) as caught:
        acp.to_wire(message, version)
    assert caught.value.place == (place if isinstance(place, str) else place[version])
    assert "expected a message of type" in str(caught.value)


@pytest.mark.parametrize("made, place", [
    (acp.ToolCallUpdate("c", locations=[acp.ToolCallLocation("/a", 0)]), "locations[0].line"),
    (acp.TextContent("x", acp.Annotations(priority=2)), "annotations.priority"),
    (acp.ResourceLink("n", "u", size=-1), "size"),
    (acp.StringPropertySchema(enum=[]), "enum"),
    (acp.ConfigOptionUpdate([acp.SessionConfigSelect("m", "M", "a", [])]), "configOptions[0].options"),
    (acp.ConfigOptionUpdate(["not an option"]), "configOptions[0]")])
def test_what_a_program_made_itself_still_raises(made, place):
    with pytest.raises(acp.MalformedMessage) as caught:
        acp.to_wire(made, 2)
    assert caught.value.place == place


def test_codecs_made_by_many_threads_at_once_agree():
    program = ("import sys, threading\nimport acp\nsys.setswitchinterval(1e-6)\n"
               "update = {'sessionUpdate': 'tool_call_update', 'toolCallId': 'c', 'status': 'completed',\n"
               "          'content': [{'type': 'content', 'content': {'type': 'text', 'text': 'x'}}]}\n"
               "begin, good = threading.Barrier(8), []\n"
               "def once():\n"
               "    begin.wait(10)\n"
               "    good.append(acp.to_wire(acp.from_wire(acp.SessionUpdate, update, 2), 2) == update)\n"
               "threads = [threading.Thread(target=once) for _ in range(8)]\n"
               "for thread in threads: thread.start()\n"
               "for thread in threads: thread.join(10)\n"
               "print(good == [True] * 8)\n")
    done = run_program([sys.executable, "-c", program], HERE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


# == 5. Patches and state =============================================================================================
# What updates add up to, and that a stored snapshot says the same.

def state_of(version, *wires):
    """The state that updates of the wire add up to."""
    return acp.SessionState([acp.from_wire(acp.SessionUpdate, wire, version) for wire in wires])


def stored_call():
    """A tool call with something in it, made anew each time."""
    return acp.ToolCallUpdate(
        "c", name="n", title="t", kind="read", status="pending", content=[acp.Content(acp.TextContent("a"))],
        raw_input={"a": 1}, meta={"x": {"deep": 1}, "y": 2})


# ---- patches --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("patch, field, value", [
    (dict(status="completed"), "status", "completed"),
    (dict(title=None), "title", None),
    (dict(title=""), "title", ""),
    (dict(content=[]), "content", []),
    (dict(content=None), "content", None),
    (dict(content=[acp.Terminal("t")]), "content", [acp.Terminal("t")]),
    (dict(raw_input=False), "raw_input", False),
    (dict(raw_input={"b": 1}), "raw_input", {"b": 1}),
    (dict(kind=None), "kind", "other"),
    (dict(status=None), "status", "pending"),
    (dict(meta=None), "meta", None),
    (dict(meta={}), "meta", {"x": {"deep": 1}, "y": 2}),
    (dict(meta={"y": None, "z": 0}), "meta", {"x": {"deep": 1}, "z": 0}),
    (dict(meta={"x": {"other": 2}}), "meta", {"x": {"other": 2}, "y": 2}),
    (dict(), "meta", {"x": {"deep": 1}, "y": 2}),
], ids=repr)
def test_a_patch_changes_what_it_says_and_nothing_else(patch, field, value):
    stored, update = stored_call(), acp.ToolCallUpdate("c", **patch)
    before = repr(update)
    made = acp.apply_patch(stored, update)
    assert getattr(made, field) == value
    for name in ("tool_call_id", "name", "title", "kind", "status", "content", "raw_input", "meta"):
        if name != field:
            assert getattr(made, name) == getattr(stored_call(), name)
    assert stored == stored_call() and repr(update) == before and made is not stored


def test_a_patch_of_nothing_creates_with_the_defaults():
    made = acp.apply_patch(None, acp.ToolCallUpdate("c", title="t"))
    assert (made.tool_call_id, made.title, made.kind, made.status) == ("c", "t", "other", "pending")
    assert not made.content and not made.locations and acp.UNSET not in vars(made).values()


def test_unknown_fields_of_a_patch_follow_the_same_rule():
    stored = acp.from_wire(acp.ToolCallUpdate, {"toolCallId": "c", "mood": "good", "hat": "red"}, 2)
    patch = acp.from_wire(acp.ToolCallUpdate, {"toolCallId": "c", "hat": None, "shoes": 2}, 2)
    assert acp.apply_patch(stored, patch).unknown_fields == {"mood": "good", "shoes": 2}
    assert acp.apply_patch(stored, acp.ToolCallUpdate("c")).unknown_fields == {"mood": "good", "hat": "red"}
    assert stored.unknown_fields == {"mood": "good", "hat": "red"}


def test_lists_in_a_patched_entity_are_not_shared_with_the_patch():
    content = [acp.Terminal("t")]
    made = acp.apply_patch(None, acp.ToolCallUpdate("c", content=content))
    content.append(acp.Terminal("u"))
    assert made.content == [acp.Terminal("t")]


# ---- the state, update by update ------------------------------------------------------------------------------------

def test_messages_are_built_by_chunks_replaced_whole_and_continued():
    state = state_of(2, said("a", "m"), said("b", "n", "agent_thought_chunk"), said("c", "m"))
    assert [(key, message.role, message.text) for key, message in state.messages.items()] == [
        ("m", "assistant", "ac"), ("n", "thought", "b")]
    for wire, text in (({"content": [A_TEXT, AN_IMAGE]}, "hi"), ({}, "hi"), (None, "hi!"), ({"content": None}, ""),
                       (None, "!"), ({"content": []}, "")):
        state.apply(acp.from_wire(acp.SessionUpdate, said("!", "m") if wire is None else {
            "sessionUpdate": "agent_message", "messageId": "m", **wire}, 2))
        assert state.messages["m"].text == text
    state.apply(acp.UserMessage("u", [acp.TextContent("q")], meta={"a": 1}))
    state.apply(acp.UserMessage("u", meta={"a": None, "b": 2}))
    assert (state.messages["u"].role, state.messages["u"].text, state.messages["u"].meta) == ("user", "q", {"b": 2})
    assert state.timeline == ["m", "n", "u"]


def test_a_tool_call_is_built_by_patches_and_chunks():
    state = acp.SessionState()
    for update, shown in (
            (acp.ToolCallContentChunk("c", acp.Content(acp.TextContent("1"))), ["1"]),
            (acp.ToolCallUpdate("c", title="t", content=[acp.Content(acp.TextContent("2"))]), ["2"]),
            (acp.ToolCallContentChunk("c", acp.Content(acp.TextContent("3"))), ["2", "3"]),
            (acp.ToolCallUpdate("c", status="completed"), ["2", "3"]),
            (acp.ToolCallUpdate("c", content=None), []),
            (acp.ToolCallContentChunk("c", acp.Content(acp.TextContent("4"))), ["4"]),
            (acp.ToolCallUpdate("c", content=[]), [])):
        state.apply(update)
        call = state.tool_calls["c"]
        assert [item.content.text for item in call.content] == shown
    assert (call.title, call.status, call.kind) == ("t", "completed", "other")


def base64_of(data):
    return base64.b64encode(data).decode("ascii")


def test_each_chunk_of_a_terminal_is_decoded_by_itself_and_the_text_across_them():
    state = acp.SessionState()
    whole = "aä€😀".encode() + b"\xffz\xe2\x82"
    for index in range(len(whole)):
        state.apply(acp.TerminalOutputChunk("t", base64_of(whole[index:index + 1])))
        assert state.terminals["t"].data == whole[:index + 1]
    assert state.terminals["t"].text == "aä€😀\ufffdz\ufffd"
    state.apply(acp.TerminalOutputChunk("t", base64_of(b"\xac!")))
    assert state.terminals["t"].text == "aä€😀\ufffdz€!"
    state.apply(acp.TerminalUpdate("t", command="ls", exit_status=acp.TerminalExitStatus(0)))
    assert state.terminals["t"].text.endswith("€!") and state.terminals["t"].command == "ls"
    state.apply(acp.TerminalUpdate("t", output=acp.TerminalOutput(base64_of(b"new"))))
    state.apply(acp.TerminalOutputChunk("t", base64_of(b"er")))
    assert (state.terminals["t"].data, state.terminals["t"].exit_status.exit_code) == (b"newer", 0)
    state.apply(acp.TerminalUpdate("t", output=None, exit_status=None))
    assert (state.terminals["t"].data, state.terminals["t"].text, state.terminals["t"].exit_status) == (b"", "", None)


def test_bytes_that_are_no_base64_are_refused_and_change_nothing():
    state = acp.SessionState([acp.TerminalOutputChunk("t", base64_of(b"a"))])
    before = state.snapshot()
    for update in (acp.TerminalOutputChunk("t", "!"), acp.TerminalOutputChunk("new", "YQ"),
                   acp.TerminalUpdate("t", command="x", output=acp.TerminalOutput("?"))):
        with pytest.raises(acp.MalformedMessage):
            state.apply(update)
        assert state.snapshot() == before


def test_plans_are_replaced_by_their_id():
    state = acp.SessionState()
    for plan_id, steps in (("p", ["a"]), ("q", ["b"]), ("p", ["c", "d"])):
        state.apply(acp.PlanUpdate(acp.PlanItems(plan_id, [acp.PlanEntry(step) for step in steps])))
    assert {key: [entry.content for entry in plan.entries] for key, plan in state.plans.items()} == {
        "p": ["c", "d"], "q": ["b"]}
    state.apply(acp.from_wire(acp.SessionUpdate, {"sessionUpdate": "plan_update", "plan": {
        "type": "_graph", "planId": "q", "nodes": [1]}}, 2))
    assert state.plans["q"].data["nodes"] == [1] and state.timeline == ["p", "q"]


def test_the_facts_beside_the_conversation_are_kept_current():
    state = state_of(
        2, {"sessionUpdate": "session_info_update", "title": "t", "updatedAt": "then"},
        {"sessionUpdate": "session_info_update", "updatedAt": None},
        {"sessionUpdate": "usage_update", "used": 1, "size": 9, "cost": {"amount": 1, "currency": "EUR"}},
        {"sessionUpdate": "usage_update", "used": 2, "size": 9},
        {"sessionUpdate": "available_commands_update", "availableCommands": [
            {"type": "command", "name": "a", "description": "A"}]},
        {"sessionUpdate": "config_option_update", "configOptions": [
            {"type": "boolean", "configId": "b", "name": "B", "currentValue": True}]},
        {"sessionUpdate": "_acme.com/dance", "steps": 3})
    assert (state.title, state.updated_at) == ("t", None)
    assert (state.usage.used, state.usage.cost.amount) == (2, 1)
    assert [command.name for command in state.commands] == ["a"]
    assert [option.current_value for option in state.config_options] == [True]
    assert [update.data["steps"] for update in state.unknown] == [3]
    state.apply(acp.UsageUpdate(3, 9, cost=None))
    assert (state.usage.used, state.usage.cost) == (3, None)
    state.apply(acp.SessionInfoUpdate(None))
    assert state.title is None


def test_a_compaction_is_patched_and_its_summary_appended():
    state = acp.SessionState([
        acp.CompactionUpdate("k", "in_progress", summary=[acp.TextContent("a")]),
        acp.CompactionSummaryChunk("k", acp.TextContent("b")), acp.CompactionUpdate("k", "failed", error="full")])
    made = state.compactions["k"]
    assert (made.status, made.error, [block.text for block in made.summary]) == ("failed", "full", ["a", "b"])
    state.apply(acp.CompactionUpdate("k", "completed", summary=None, error=None))
    assert (state.compactions["k"].error, state.compactions["k"].summary or []) == (None, [])


def test_the_state_knows_how_the_last_turn_ended():
    state = acp.SessionState()
    seen = []
    for more in ({"state": "running"}, {"state": "requires_action"}, {"state": "running"},
                 {"state": "idle", "stopReason": "end_turn"}, {"state": "idle"}, {"state": "running"},
                 {"state": "idle", "stopReason": "error", "error": {"code": 5, "message": "no"}},
                     {"state": "_dreaming"}):
        state.apply(acp.from_wire(acp.SessionUpdate, {"sessionUpdate": "state_update", **more}, 2))
        seen.append((state.state, state.stop_reason, state.error and state.error.code))
    assert seen == [
        ("running", None, None), ("requires_action", None, None), ("running", None, None), ("idle", "end_turn", None),
        ("idle", "end_turn", None), ("running", None, None), ("idle", "error", 5), ("_dreaming", None, None)]


def test_only_the_stop_reason_error_has_an_error():
    wire = {"sessionUpdate": "state_update", "state": "idle", "stopReason": "end_turn",
        "error": {"code": 5, "message": "no"}}
    assert state_of(2, wire).error is None
    assert wire_round_trip(2, "SessionUpdate", wire) == wire


def test_background_work_stays_until_it_is_reported_anew():
    state = acp.SessionState()
    assert state.background is None
    for background, known in (([acp.BackgroundTerminal("t")], [acp.BackgroundTerminal("t")]),
                              (None, [acp.BackgroundTerminal("t")]), ([], [])):
        state.apply(acp.RunningStateUpdate(background=background))
        assert state.background == known


def test_chunks_of_version_1_without_an_id_are_one_message_per_run_of_one_role():
    def piece(text, role="agent_message_chunk", **more):
        return {"sessionUpdate": role, "content": {"type": "text", "text": text}, **more}

    state = state_of(1, piece("a"), piece("b", messageId=None), piece("c", "agent_thought_chunk"), piece("d"),
                     {"sessionUpdate": "usage_update", "used": 1, "size": 2}, piece("e"),
                     {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "t"}, piece("f"),
                     piece("g", messageId="own"), piece("h"), piece("i", "user_message_chunk"))
    assert [(each.role, each.text) for each in state.messages.values()] == [
        ("assistant", "ab"), ("thought", "c"), ("assistant", "de"), ("assistant", "f"), ("assistant", "g"),
        ("assistant", "h"), ("user", "i")]
    assert len(state.timeline) == 8 and state.timeline[3] == "c" and state.timeline[5] == "own"


def test_the_mode_of_version_1_patches_the_option_of_that_category():
    option = acp.SessionConfigSelect("x", "X", "ask", [
        acp.SessionConfigSelectOption("ask", "Ask"), acp.SessionConfigSelectOption("code", "Code")], category="mode")
    for field in ("currentModeId", "modeId"):
        state = acp.SessionState([acp.ConfigOptionUpdate([option])])
        state.apply(acp.from_wire(acp.SessionUpdate, {"sessionUpdate": "current_mode_update", field: "code"}, 1))
        assert state.config_options[0].current_value == "code" and option.current_value == "ask"


def test_the_metadata_of_a_chunk_stays_with_the_chunk():
    state = acp.SessionState([
        acp.AgentMessageChunk("m", acp.TextContent("a"), meta={"k": 1}),
        acp.AgentMessageChunk("m", acp.TextContent("b")),
        acp.ToolCallContentChunk("c", shown_text("x"), meta={"k": 2}),
        acp.CompactionSummaryChunk("z", acp.TextContent("s"), meta={"k": 3})])
    assert not state.messages["m"].meta and not state.tool_calls["c"].meta and not state.compactions["z"].meta
    kept = {getattr(each, "message_id", type(each)): each.meta for each in state.snapshot() if each.meta}
    assert kept == {"m": {"k": 1}, acp.ToolCallContentChunk: {"k": 2}, acp.CompactionSummaryChunk: {"k": 3}}
    state.apply(acp.AgentMessage("m", meta={"k": 4}))
    assert state.messages["m"].meta == {"k": 4} and state.messages["m"].text == "ab"


def test_null_resets_what_has_a_default_and_is_the_end_of_the_rest():
    call = {"kind": "edit", "status": "completed", "title": "t", "content": [wire_text("x")], "rawInput": 0}
    both = [acp.SessionState([acp.from_wire(acp.SessionUpdate, each, version) for each in (
        wire_call(tag="tool_call" if version == 1 else "tool_call_update", **call), wire_call(**dict.fromkeys(call)))])
        for version in (1, 2)]
    kept, cleared = [state.tool_calls["c"] for state in both]
    assert (kept.kind, kept.status, kept.title, kept.raw_input) == ("edit", "completed", "t", 0) and kept.content
    assert (cleared.kind, cleared.status, cleared.title, cleared.raw_input) == ("other", "pending", None, None)
    assert not cleared.content


def test_a_repeated_idle_snapshot_keeps_how_the_turn_ended():
    state, wrong = acp.SessionState(), acp.ErrorObject(7, "no")
    for update in (acp.RunningStateUpdate(), acp.IdleStateUpdate(stop_reason="error", error=wrong),
                   acp.IdleStateUpdate(), acp.IdleStateUpdate(background=[])):
        state.apply(update)
        assert state.error == (None if state.state == "running" else wrong)
    state.apply(acp.RunningStateUpdate())
    assert (state.stop_reason, state.error, state.background) == (None, None, [])


# ---- snapshots ------------------------------------------------------------------------------------------------------

def full_state():
    """A state with something of everything."""
    return state_of(
        2, {"sessionUpdate": "user_message", "messageId": "u", "content": [A_TEXT], "_meta": {"a": 1}}, said("a", "m"),
        {**said("b", "m"), "_meta": {"b": 2}}, said("c", "m"), said("d", "n", "agent_thought_chunk"),
        {"sessionUpdate": "tool_call_update", "toolCallId": "c", "title": "t", "mood": "good"},
        {"sessionUpdate": "tool_call_content_chunk", "toolCallId": "c",
            "content": {"type": "terminal", "terminalId": "t"}},
        {"sessionUpdate": "terminal_output_chunk", "terminalId": "t", "data": base64_of(b"\xe2\x82")},
        {"sessionUpdate": "terminal_output_chunk", "terminalId": "t", "data": base64_of(b"\xac\xff")},
        {"sessionUpdate": "plan_update", "plan": {"type": "items", "planId": "p", "entries": []}},
        {"sessionUpdate": "compaction_update", "compactionId": "k", "status": "completed", "summary": [A_TEXT]},
        {"sessionUpdate": "session_info_update", "title": "t"}, {"sessionUpdate": "usage_update", "used": 1, "size": 2},
        {"sessionUpdate": "available_commands_update", "availableCommands": [
            {"type": "command", "name": "a", "description": "A"}]},
        {"sessionUpdate": "config_option_update", "configOptions": [
            {"type": "boolean", "configId": "b", "name": "B", "currentValue": False}]},
        {"sessionUpdate": "_acme.com/dance", "steps": 3},
        {"sessionUpdate": "state_update", "state": "running"},
        {"sessionUpdate": "state_update", "state": "idle", "stopReason": "refusal", "background": [
            {"type": "terminal", "terminalId": "t"}]})


def test_a_snapshot_stored_as_json_builds_the_same_state_again():
    state = full_state()
    stored = json.dumps(acp.to_wire(state.snapshot(), 2))
    again = state_of(2, *json.loads(stored))
    assert again == state
    assert json.dumps(acp.to_wire(again.snapshot(), 2)) == stored
    for name in ("messages", "tool_calls", "terminals", "plans", "compactions", "config_options", "commands", "title",
                 "updated_at", "usage", "state", "stop_reason", "error", "background", "timeline", "unknown"):
        assert getattr(again, name) == getattr(state, name), name
    assert again.terminals["t"].text == state.terminals["t"].text == "€\ufffd"
    assert again.messages["m"].text == "abc"


def test_a_snapshot_keeps_the_stop_reason_behind_a_later_idle():
    state = state_of(2, {"sessionUpdate": "state_update", "state": "idle", "stopReason": "refusal"},
                     {"sessionUpdate": "state_update", "state": "idle"})
    again = acp.SessionState(state.snapshot())
    assert (again.state, again.stop_reason) == ("idle", "refusal")


def test_collections_of_a_state_are_copies():
    state = full_state()
    before = state.snapshot()
    for name in ("messages", "tool_calls", "terminals", "plans", "compactions", "config_options", "commands",
        "timeline",
                 "background", "unknown"):
        found = getattr(state, name)
        assert found, name
        found.clear()
    state.messages["m"].content.clear()
    state.tool_calls["c"].content.clear()
    state.snapshot().clear()
    assert state.snapshot() == before


def random_updates(dice):
    """Updates of any kind, in any order, about a few entities."""
    def some(*values):
        return dice.choice(values)

    def meta():
        return some(acp.UNSET, acp.UNSET, {"a": 1}, {"a": None, "b": [1]}, None)

    def chunk_meta():
        return some(None, None, {"chunk": dice.randrange(9)})

    def block():
        return some(acp.TextContent("x"), acp.TextContent("ß", meta={"t": 0}), CHART,
                    acp.ImageContent("YQ==", "image/png"))

    def blocks():
        return some(acp.UNSET, None, [], [block()], [block(), block()])

    def item():
        return some(acp.Content(block()), acp.Diff.of("/f", "b\n", "a\n"), acp.Terminal("t1"), CHART)

    def data(size):
        return base64.b64encode(bytes(dice.randrange(256) for _ in range(size))).decode()

    background = some(None, [], [acp.BackgroundTerminal("t1"), acp.Unknown("_w", {"type": "_w"})])
    roles = {"u": (acp.UserMessageChunk, acp.UserMessage), "a": (acp.AgentMessageChunk, acp.AgentMessage),
             "h": (acp.AgentThoughtChunk, acp.AgentThought)}
    role = some(*roles)
    message = role + str(dice.randrange(2))
    made = [
        lambda: roles[role][0](message, block(), meta=chunk_meta()),
        lambda: roles[role][0](message, block(), meta=chunk_meta()),
        lambda: roles[role][1](message, blocks(), meta=meta()),
        lambda: acp.ToolCallUpdate(
            some("c", "d"), name=some(acp.UNSET, None, "n"), title=some(acp.UNSET, None, "t"), meta=meta(),
            kind=some(acp.UNSET, None, "edit", "_odd"), status=some(acp.UNSET, None, "paused"),
            content=some(acp.UNSET, None, [item()]),
            locations=some(acp.UNSET, None, [], [acp.ToolCallLocation("/f", 1)]),
            raw_input=some(acp.UNSET, None, 0, {"a": None}), raw_output=some(acp.UNSET, None, False, "o"),
            capabilities=some(acp.UNSET, None, acp.ToolCallCapabilities(acp.Marker()))),
        lambda: acp.ToolCallContentChunk(some("c", "d"), item(), meta=chunk_meta()),
        lambda: acp.TerminalUpdate(
            some("t1", "c"), some(acp.UNSET, None, "ls"), some(acp.UNSET, "/"), meta=meta(),
            output=some(acp.UNSET, None, acp.TerminalOutput(data(3))),
            size=some(acp.UNSET, None, acp.TerminalSize(1, 2)),
            exit_status=some(acp.UNSET, None, acp.TerminalExitStatus(0), acp.TerminalExitStatus(None, "KILL"))),
        lambda: acp.TerminalOutputChunk(some("t1", "c"), data(2)),
        lambda: acp.PlanUpdate(some(acp.PlanItems(some("p", "c"), [acp.PlanEntry("e")]),
                                    acp.Unknown("_tree", {"type": "_tree", "planId": "p"})), meta=chunk_meta()),
        lambda: acp.CompactionUpdate(some("k", "c"), some("in_progress", "failed"), blocks(),
                                     some(acp.UNSET, None, "e"), meta=meta()),
        lambda: acp.CompactionSummaryChunk(some("k", "c"), block(), meta=chunk_meta()),
        lambda: acp.SessionInfoUpdate(some(acp.UNSET, None, "T"), some(acp.UNSET, None, "2026"), meta=meta()),
        lambda: acp.UsageUpdate(1, 2, some(acp.UNSET, None, acp.Cost(1.5, "EUR")), meta=meta()),
        lambda: acp.ConfigOptionUpdate(table_options()[dice.randrange(3):]),
        lambda: acp.AvailableCommandsUpdate([acp.Command("a", "A")][dice.randrange(2):]),
        lambda: acp.RunningStateUpdate(background=background),
        lambda: acp.RequiresActionStateUpdate(),
        lambda: acp.IdleStateUpdate(stop_reason=some(None, "end_turn", "_odd"), background=background),
        lambda: acp.IdleStateUpdate(stop_reason="error", error=acp.ErrorObject(1, "no", some(None, [1]))),
        lambda: acp.Unknown("_dreaming", {"sessionUpdate": "state_update", "state": "_dreaming", "of": 1}),
        lambda: acp.Unknown("_dance", {"sessionUpdate": "_dance", "steps": dice.randrange(9)}),
    ]
    return dice.choice(made)()


STATE_NAMES = ("messages", "tool_calls", "terminals", "plans", "compactions", "config_options", "commands", "title",
               "updated_at", "usage", "state", "stop_reason", "error", "background", "timeline", "unknown")


def test_a_stored_snapshot_of_any_session_makes_an_equal_state():
    dice = random.Random(4)
    for _ in range(150):
        updates = [random_updates(dice) for _ in range(dice.randrange(60))]
        state = acp.SessionState(updates)
        stored = json.dumps(acp.to_wire(state.snapshot(), 2))
        again = acp.SessionState([acp.from_wire(acp.SessionUpdate, each, 2) for each in json.loads(stored)])
        for name in STATE_NAMES:
            assert getattr(again, name) == getattr(state, name), (name, updates)
        assert again == state, updates
        assert json.dumps(acp.to_wire(again.snapshot(), 2)) == stored, updates


def test_what_a_session_holds_is_the_same_over_the_wire_of_version_2():
    dice = random.Random(5)
    updates = [random_updates(dice) for _ in range(400)]
    there = acp.SessionState(acp.from_wire(acp.SessionUpdate, json.loads(json.dumps(acp.to_wire(each, 2))), 2)
                             for each in updates)
    assert there == acp.SessionState(updates)


# ---- time in proportion ---------------------------------------------------------------------------------------------

def test_the_time_for_large_chunks_grows_in_proportion():
    def seconds(count):
        gc.collect()
        gc.disable()  # it would look at all that the tests before have left, too
        state, begin = acp.SessionState(), time.thread_time()
        for _ in range(count):
            state.apply(acp.ToolCallContentChunk("c", acp.Content(acp.TextContent("x" * 1024))))
            state.apply(acp.AgentMessageChunk("m", acp.TextContent("x" * 1024)))
            state.apply(acp.TerminalOutputChunk("t", base64_of(b"x" * 1024)))
        gc.enable()
        assert len(state.tool_calls["c"].content) == count == len(state.terminals["t"].data) // 1024
        return time.thread_time() - begin

    deadline = time.monotonic() + 6 * WAIT
    once, four = seconds(750), seconds(3000)
    while four > 6 * once + 0.02 and time.monotonic() < deadline:  # the best of several: other work only ever adds
        once, four = min(once, seconds(750)), min(four, seconds(3000))
    assert four <= 6 * once + 0.02


@pytest.mark.parametrize("make", [
    lambda: acp.AgentMessageChunk("m", acp.TextContent("x")), lambda: acp.ToolCallContentChunk("c", shown_text("x")),
    lambda: acp.TerminalOutputChunk("t", "eHh4")], ids=["message", "tool call", "terminal"])
def test_the_time_for_small_chunks_grows_in_proportion(make):
    def seconds(count):
        state, chunk = acp.SessionState(), make()
        gc.collect()
        begin = time.thread_time()
        for _ in range(count):
            state.apply(chunk)
        return time.thread_time() - begin

    deadline = time.monotonic() + 6 * WAIT
    once, four = seconds(20_000), seconds(80_000)
    while four > 6 * once and time.monotonic() < deadline:  # the best of several: other work only ever adds
        once, four = min(once, seconds(20_000)), min(four, seconds(80_000))
    assert four <= 6 * once  # it would be sixteen times as much, were it quadratic


# == 6. The v1 adapter ================================================================================================
# One vocabulary, two wires: every row of what the canonical form becomes on version 1, and back. Rows are data.

# What version 1 says, and what it is in canonical form; both ways.
CANONICAL = [
    ("AuthMethod", {"id": "a", "name": "A"}, lambda: acp.AuthMethodAgent("a", "A")),
    ("AuthMethod", {"type": "terminal", "id": "t", "name": "T", "env": {"A": "b"}},
     lambda: acp.AuthMethodTerminal("t", "T", env=[acp.EnvVariable("A", "b")])),
    ("McpServer", {"name": "a", "command": "/a", "args": [], "env": []}, lambda: acp.McpServerStdio("a", "/a", [], [])),
    ("AvailableCommand", {"name": "a", "description": "A", "input": {"hint": "h"}},
     lambda: acp.Command("a", "A", acp.TextCommandInput("h"))),
    ("SessionConfigOption", {"type": "select", "id": "m", "name": "M", "currentValue": "x", "options": [
        {"group": "g", "name": "G", "options": [{"value": "x", "name": "X"}]}]},
     lambda: acp.SessionConfigSelect("m", "M", "x", [
         acp.SessionConfigSelectGroup("g", "G", [acp.SessionConfigSelectOption("x", "X")])])),
    ("SessionUpdate", {"sessionUpdate": "plan", "entries": [{"content": "a", "priority": "low",
        "status": "completed"}]},
     lambda: acp.PlanUpdate(acp.PlanItems("plan", [acp.PlanEntry("a", "low", "completed")]))),
    ("InitializeResponse", {"protocolVersion": 1, "agentInfo": {"name": "a", "version": "1"}, "agentCapabilities": {
        "loadSession": True, "promptCapabilities": {"image": True}, "sessionCapabilities": {"list": {}}}},
     lambda: acp.InitializeResponse(1, acp.Implementation("a", "1"), acp.AgentCapabilities(acp.SessionCapabilities(
         prompt=acp.PromptCapabilities(image=acp.Marker()), list=acp.Marker(), load=acp.Marker())))),
]


@pytest.mark.parametrize("name, wire, make", CANONICAL, ids=[row[0] for row in CANONICAL])
def test_version_1_is_read_into_the_words_of_version_2_and_back(name, wire, make):
    assert acp.to_wire(make(), 1) == wire
    assert acp.from_wire(getattr(acp, name), wire, 1) == make()


@pytest.mark.parametrize("message, wire", [
    (acp.ToolCallUpdate("c", status="cancelled"), {"status": "failed"}),
    (acp.ToolCallUpdate("c", status="paused"), {"status": "pending"}),
    (acp.ToolCallUpdate("c", status="_odd", kind="_odd"), {"status": "in_progress", "kind": "other"}),
    (acp.ToolCallUpdate("c", content=None, locations=None, kind=None, status=None),
     {"content": [], "locations": [], "kind": "other", "status": "pending"}),
    (acp.PlanEntry("a", "_odd", "cancelled"), {"priority": "medium", "status": "completed"}),
    (acp.PlanEntry("a", "low", "_odd"), {"priority": "low", "status": "in_progress"}),
    (acp.PermissionOption("a", "A", "_odd"), {"kind": "reject_once"}),
    (acp.PromptResponse(stop_reason="_odd"), {"stopReason": "end_turn"}),
], ids=repr)
def test_words_that_version_1_lacks_become_the_nearest_it_has(message, wire):
    written = acp.to_wire(message, 1)
    assert {key: written.get(key) for key in wire} == wire


def test_a_command_as_the_subject_of_a_permission_is_a_tool_call_on_version_1():
    written = acp.to_wire(acp.RequestPermissionRequest(
        "s", "May I?", [acp.PermissionOption("a", "A", "allow_once")],
            subject=acp.CommandPermissionSubject("rm x", "/")), 1)
    assert (written["toolCall"]["kind"], written["toolCall"]["title"]) == ("execute", "rm x")
    written = acp.to_wire(acp.RequestPermissionRequest("s", "May I?", [acp.PermissionOption("a", "A", "allow_once")]),
        1)
    assert written["toolCall"]["title"] == "May I?" and "title" not in written


def test_a_default_that_version_1_left_out_reaches_version_2_and_not_version_1():
    wire = {"sessionId": "s", "configId": "c", "value": "v"}
    read = acp.from_wire(acp.SetSessionConfigOptionRequest, wire, 1)
    assert read.type == "id" and acp.to_wire(read, 1) == wire
    assert acp.to_wire(read, 2) == {**wire, "type": "id"}


def test_an_unknown_variant_of_version_1_goes_to_version_2_in_its_words():
    for kind, wire, name in ((acp.SessionConfigOption, {"type": "slider", "id": "o", "name": "O", "at": 5}, "configId"),
                             (acp.AuthMethod, {"type": "x", "id": "m", "name": "N", "_meta": {"a": 1}}, "methodId")):
        made = acp.from_wire(kind, wire, 1)
        assert acp.to_wire(made, 1) == wire
        words = {name if key == "id" else key: value for key, value in wire.items()}
        assert acp.to_wire(made, 2) == made.data == words
        assert acp.to_wire(acp.from_wire(kind, words, 2), 2) == words


# ---- updates of an agent --------------------------------------------------------------------------------------------

ODD = {"type": "_chart", "points": [1]}  # content of a type that nobody knows, without a text
ODD_TEXT = {"type": "_chart", "points": [1], "text": "rising"}  # and with one
WHOLE_CALL = {"name": "rm", "title": "Remove", "kind": "delete", "status": "pending", "rawInput": {"a": None},
              "locations": [{"path": "/a", "line": 3}], "content": [wire_text("x")], "_meta": {"k": 1}}
CREATED = acp.ToolCallUpdate("c", title="t")
CREATED_1, CREATED_2 = wire_call(tag="tool_call", title="t"), wire_call(title="t")

# What it is, what a handler sends, the wire of version 1 (None: as on version 2), the wire of version 2.
TABLE_OUT = [
    ("chunks carry their message id",
     [acp.AgentMessageChunk("m", acp.TextContent("a")), acp.AgentThoughtChunk("n", acp.TextContent("b")),
      acp.UserMessageChunk("u", acp.TextContent("c"))],
     None, [said("a", "m"), said("b", "n", "agent_thought_chunk"),
            said("c", "u", "user_message_chunk")]),
    ("a whole message becomes chunks",
     [acp.AgentMessage("m", [acp.TextContent("a"), acp.TextContent("b")]),
      acp.AgentThought("n", [acp.TextContent("c")]), acp.UserMessage("u", [acp.TextContent("d")])],
     [said("a", "m"), said("b", "m"), said("c", "n", "agent_thought_chunk"),
      said("d", "u", "user_message_chunk")],
     [{"sessionUpdate": "agent_message", "messageId": "m", "content": [text_block("a"), text_block("b")]},
      {"sessionUpdate": "agent_thought", "messageId": "n", "content": [text_block("c")]},
      {"sessionUpdate": "user_message", "messageId": "u", "content": [text_block("d")]}]),
    ("a message without content says nothing",
     [acp.AgentMessage("m"), acp.AgentMessage("n", None), acp.AgentMessage("o", [])], [],
     [{"sessionUpdate": "agent_message", "messageId": "m"},
      {"sessionUpdate": "agent_message", "messageId": "n", "content": None},
      {"sessionUpdate": "agent_message", "messageId": "o", "content": []}]),
    ("content of an unknown type in a message is its text or left out",
     [acp.AgentMessageChunk("m", acp.Unknown("_chart", ODD_TEXT)),
      acp.AgentMessageChunk("m", acp.Unknown("_chart", ODD)), acp.AgentMessageChunk("m", acp.TextContent("!"))],
     [said("rising", "m"), said("!", "m")],
     [{**said("", "m"), "content": ODD_TEXT}, {**said("", "m"), "content": ODD}, said("!", "m")]),
    ("content of an unknown type in a whole message is its text or left out",
     [acp.AgentMessage("m", [acp.TextContent("a"), acp.Unknown("_chart", ODD), acp.Unknown("_chart", ODD_TEXT)])],
     [said("a", "m"), said("rising", "m")],
     [{"sessionUpdate": "agent_message", "messageId": "m", "content": [text_block("a"), ODD, ODD_TEXT]}]),
    ("the first of a tool call is a tool_call",
     [acp.ToolCallUpdate("c", name="rm", title="Remove", kind="delete", status="pending", raw_input={"a": None},
                         locations=[acp.ToolCallLocation("/a", 3)], content=[shown_text("x")], meta={"k": 1})],
     [wire_call(tag="tool_call", **WHOLE_CALL)], [wire_call(**WHOLE_CALL)]),
    ("its title falls back to the name", [acp.ToolCallUpdate("c", name="rm", kind="delete")],
     [wire_call(tag="tool_call", name="rm", title="rm", kind="delete")],
     [wire_call(name="rm", kind="delete")]),
    ("to the kind", [acp.ToolCallUpdate("c", kind="delete")],
     [wire_call(tag="tool_call", title="delete", kind="delete")],
     [wire_call(kind="delete")]),
    ("and to the id", [acp.ToolCallUpdate("c"), acp.ToolCallUpdate("d", title=None)],
     [wire_call("c", "tool_call", title="c"), wire_call("d", "tool_call", title="d")],
     [wire_call("c"), wire_call("d", title=None)]),
    ("later ones are updates with what changed",
     [CREATED, acp.ToolCallUpdate("c", status="completed", raw_output=0), acp.ToolCallUpdate("c", title="u")],
     [CREATED_1, wire_call(status="completed", rawOutput=0), wire_call(title="u")],
     [CREATED_2, wire_call(status="completed", rawOutput=0), wire_call(title="u")]),
    ("what is cleared is an empty list or the default",
     [CREATED, acp.ToolCallUpdate("c", content=None, locations=None), acp.ToolCallUpdate("c", kind=None, status=None)],
     [CREATED_1, wire_call(content=[], locations=[]), wire_call(status="pending", kind="other")],
     [CREATED_2, wire_call(content=None, locations=None), wire_call(status=None, kind=None)]),
    ("the first of a tool call may be a piece of its content",
     [acp.ToolCallContentChunk("c", shown_text("x")), acp.ToolCallUpdate("c", title="late")],
     [wire_call(tag="tool_call", title="c", content=[wire_text("x")]), wire_call(title="late")],
     [wire_call(tag="tool_call_content_chunk", content=wire_text("x")), wire_call(title="late")]),
    ("tool statuses that version 1 lacks",
     [CREATED, *[acp.ToolCallUpdate("c", status=each) for each in ("in_progress", "paused", "_odd", "cancelled")]],
     [CREATED_1, *[wire_call(status=each) for each in ("in_progress", "pending", "in_progress", "failed")]],
     [CREATED_2, *[wire_call(status=each) for each in ("in_progress", "paused", "_odd", "cancelled")]]),
    ("tool kinds that version 1 lacks", [CREATED, acp.ToolCallUpdate("c", kind="_dance")],
     [CREATED_1, wire_call(kind="other")], [CREATED_2, wire_call(kind="_dance")]),
    ("content of an unknown type in a tool call is its text or left out",
     [CREATED, acp.ToolCallUpdate("c", content=[
         acp.Unknown("_chart", ODD), acp.Unknown("_chart", ODD_TEXT), acp.Content(acp.Unknown("_chart", ODD)),
         acp.Content(acp.Unknown("_chart", ODD_TEXT)), shown_text("x")])],
     [CREATED_1, wire_call(content=[wire_text("rising"), wire_text("rising"), wire_text("x")])],
     [CREATED_2, wire_call(content=[ODD, ODD_TEXT, {"type": "content", "content": ODD},
                                    {"type": "content", "content": ODD_TEXT}, wire_text("x")])]),
    ("plan statuses and priorities that version 1 lacks",
     [acp.PlanUpdate(acp.PlanItems("p", [acp.PlanEntry("a", "high", "cancelled"), acp.PlanEntry("b", "_odd", "_odd"),
                                         acp.PlanEntry("c", "low", "completed")]))],
     [{"sessionUpdate": "plan", "entries": [
         {"content": "a", "priority": "high", "status": "completed"},
         {"content": "b", "priority": "medium", "status": "in_progress"},
         {"content": "c", "priority": "low", "status": "completed"}]}],
     [{"sessionUpdate": "plan_update", "plan": {"type": "items", "planId": "p", "entries": [
         {"content": "a", "priority": "high", "status": "cancelled"},
         {"content": "b", "priority": "_odd", "status": "_odd"},
         {"content": "c", "priority": "low", "status": "completed"}]}}]),
    ("the newest plan is the one that version 1 has, of a type that it knows",
     [acp.PlanUpdate(acp.PlanItems("p", [acp.PlanEntry("a")])), acp.PlanUpdate(acp.PlanItems("q", [])),
      acp.PlanUpdate(acp.Unknown("_tree", {"type": "_tree", "planId": "r"}))],
     [{"sessionUpdate": "plan", "entries": [{"content": "a", "priority": "medium", "status": "pending"}]},
      {"sessionUpdate": "plan", "entries": []}],
     [{"sessionUpdate": "plan_update", "plan": {"type": "items", "planId": "p", "entries": [
         {"content": "a", "priority": "medium", "status": "pending"}]}},
      {"sessionUpdate": "plan_update", "plan": {"type": "items", "planId": "q", "entries": []}},
      {"sessionUpdate": "plan_update", "plan": {"type": "_tree", "planId": "r"}}]),
    ("a diff whose texts are known",
     [CREATED, acp.ToolCallUpdate("c", content=[acp.Diff.of("/f", "b\n", "a\n"), acp.Diff.of("/g", "b\n")])],
     [CREATED_1, wire_call(content=[{"type": "diff", "path": "/f", "oldText": "a\n", "newText": "b\n"},
                                    {"type": "diff", "path": "/g", "newText": "b\n"}])],
     [CREATED_2, wire_call(content=[
         {"type": "diff", "changes": [{"operation": "modify", "path": "/f"}],
          "patch": {"format": "git_patch", "text": acp.Diff.of("/f", "b\n", "a\n").patch.text}},
         {"type": "diff", "changes": [{"operation": "add", "path": "/g"}],
          "patch": {"format": "git_patch", "text": acp.Diff.of("/g", "b\n").patch.text}}])]),
    ("a diff whose texts are not",
     [CREATED, acp.ToolCallUpdate("c", content=[acp.Diff(
         [acp.DiffChange("move", "/b", "/a")], acp.DiffPatch("git_patch", "the patch\n"))])],
     [CREATED_1, wire_call(content=[wire_text("the patch\n")])],
     [CREATED_2, wire_call(content=[{
         "type": "diff", "changes": [{"operation": "move", "path": "/b", "oldPath": "/a"}],
         "patch": {"format": "git_patch", "text": "the patch\n"}}])]),
    ("usage with its cost, set, kept and cleared",
     [acp.UsageUpdate(1, 2, acp.Cost(0.5, "EUR")), acp.UsageUpdate(0, 2), acp.UsageUpdate(3, 4, None)], None,
     [{"sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": {"amount": 0.5, "currency": "EUR"}},
      {"sessionUpdate": "usage_update", "used": 0, "size": 2},
      {"sessionUpdate": "usage_update", "used": 3, "size": 4, "cost": None}]),
    ("the title, set and cleared",
     [acp.SessionInfoUpdate("T", "2026-11-30T00:00:00Z"), acp.SessionInfoUpdate(None)], None,
     [{"sessionUpdate": "session_info_update", "title": "T", "updatedAt": "2026-11-30T00:00:00Z"},
      {"sessionUpdate": "session_info_update", "title": None}]),
    ("states say nothing on version 1", [acp.Unknown("_x", {"sessionUpdate": "state_update", "state": "_x"})],
     [], []),
]


@BOTH
@pytest.mark.parametrize("updates, first, second", [row[1:] for row in TABLE_OUT], ids=[row[0] for row in TABLE_OUT])
def test_each_update_of_an_agent_in_the_words_of_the_version(raw, version, updates, first, second):
    def handler(turn):
        for update in updates:
            turn.send(update)

    assert one_turn(raw, version, handler) == (second if version == 2 or first is None else first)


def test_a_replaced_message_is_a_new_message_on_version_1_and_goes_on_there(raw):
    def handler(turn):
        turn.send(acp.AgentMessageChunk("m", acp.TextContent("draft")))
        turn.send(acp.AgentMessage("m", [acp.TextContent("fi"), acp.TextContent("nal")]))
        turn.send(acp.AgentMessageChunk("m", acp.TextContent("!")))
        turn.send(acp.AgentMessageChunk("n", acp.TextContent("other")))
        turn.send(acp.AgentMessage("m", [acp.TextContent("last")]))

    sent = one_turn(raw, 1, handler)
    groups = [(id, "".join(each["content"]["text"] for each in group))
              for id, group in itertools.groupby(sent, lambda each: each["messageId"])]
    assert [text for _, text in groups] == ["draft", "final!", "other", "last"]
    assert groups[0][0] == "m" and groups[2][0] == "n" and len({id for id, _ in groups}) == 4


# ---- updates that a client hears ------------------------------------------------------------------------------------

# What it is, the version (0: both), what the agent says, what the client yields.
CHART = acp.Unknown("_chart", ODD)
TABLE_IN = [
    ("chunks with ids", 0, [said("a", "m"), said("b", "n", "agent_thought_chunk"),
                            said("c", "u", "user_message_chunk")],
     [acp.AgentMessageChunk("m", acp.TextContent("a")), acp.AgentThoughtChunk("n", acp.TextContent("b")),
      acp.UserMessageChunk("u", acp.TextContent("c"))]),
    ("whole messages and their replacement", 2, [
        {"sessionUpdate": "agent_message", "messageId": "m", "content": [text_block("a")]},
        {"sessionUpdate": "agent_message", "messageId": "m", "content": None},
        {"sessionUpdate": "agent_thought", "messageId": "n"}],
     [acp.AgentMessage("m", [acp.TextContent("a")]), acp.AgentMessage("m", None), acp.AgentThought("n")]),
    ("tool_call", 1, [wire_call(tag="tool_call", title="t", rawInput=[], content=[wire_text("x")])],
     [acp.ToolCallUpdate("c", title="t", raw_input=[], content=[shown_text("x")])]),
    ("null means unchanged", 1,
     [CREATED_1, wire_call(**{key: None for key in ("title", "name", "status", "content", "locations", "rawInput",
                                                    "rawOutput", "_meta")})], [CREATED, acp.ToolCallUpdate("c")]),
    ("null clears", 2,
     [CREATED_2, wire_call(title=None, name=None, status=None, content=None, locations=None, rawInput=None)],
     [CREATED, acp.ToolCallUpdate("c", title=None, name=None, status=None, content=None, locations=None,
                                  raw_input=None)]),
    ("values beyond the enums are as they are", 0,
     [wire_call(status="_odd", kind="_odd")], [acp.ToolCallUpdate("c", status="_odd", kind="_odd")]),
    ("content beyond the types is as it is", 0, [{**said("", "m"), "content": ODD}, wire_call(content=[
        ODD, {"type": "content", "content": ODD}])],
     [acp.AgentMessageChunk("m", CHART), acp.ToolCallUpdate("c", content=[CHART, acp.Content(CHART)])]),
    ("a plan", 1, [{"sessionUpdate": "plan", "entries": [{"content": "a", "priority": "_odd", "status": "_odd"}]},
                   {"sessionUpdate": "plan", "entries": []}],
     [acp.PlanUpdate(acp.PlanItems("plan", [acp.PlanEntry("a", "_odd", "_odd")])),
      acp.PlanUpdate(acp.PlanItems("plan", []))]),
    ("plans by their id, of any type", 2, [
        {"sessionUpdate": "plan_update", "plan": {"type": "items", "planId": "p", "entries": [
            {"content": "a", "priority": "low", "status": "cancelled"}]}},
        {"sessionUpdate": "plan_update", "plan": {"type": "_tree", "planId": "q"}}],
     [acp.PlanUpdate(acp.PlanItems("p", [acp.PlanEntry("a", "low", "cancelled")])),
      acp.PlanUpdate(acp.Unknown("_tree", {"type": "_tree", "planId": "q"}))]),
    ("diffs with their texts", 1, [wire_call(content=[
        {"type": "diff", "path": "/f", "oldText": "a\n", "newText": "b\n"},
        {"type": "diff", "path": "/g", "oldText": None, "newText": "b\n"}])],
     [acp.ToolCallUpdate("c", content=[acp.Diff.of("/f", "b\n", "a\n"), acp.Diff.of("/g", "b\n")])]),
    ("diffs as patches", 2, [wire_call(content=[{"type": "diff", "changes": [{"operation": "delete", "path": "/f"}],
                                                 "patch": {"format": "_ed", "text": "d"}}])],
     [acp.ToolCallUpdate("c", content=[acp.Diff([acp.DiffChange("delete", "/f")], acp.DiffPatch("_ed", "d"))])]),
    ("a terminal", 0, [wire_call(content=[{"type": "terminal", "terminalId": "t"}])],
     [acp.ToolCallUpdate("c", content=[acp.Terminal("t")])]),
    ("a display terminal and a piece of content", 2, [
        {"sessionUpdate": "terminal_update", "terminalId": "t", "command": "ls", "exitStatus": {"exitCode": 0}},
        {"sessionUpdate": "terminal_output_chunk", "terminalId": "t", "data": "YQ=="},
        wire_call(tag="tool_call_content_chunk", content=wire_text("x"))],
     [acp.TerminalUpdate("t", "ls", exit_status=acp.TerminalExitStatus(0)), acp.TerminalOutputChunk("t", "YQ=="),
      acp.ToolCallContentChunk("c", shown_text("x"))]),
    ("notices and compaction", 0, [
        {"sessionUpdate": "notice", "severity": "_odd", "title": "N", "description": "d"},
        {"sessionUpdate": "compaction_update", "compactionId": "k", "status": "in_progress"},
        {"sessionUpdate": "compaction_summary_chunk", "compactionId": "k", "content": text_block("short")},
        {"sessionUpdate": "compaction_update", "compactionId": "k", "status": "completed"}],
     [acp.Notice("_odd", "N", "d"), acp.CompactionUpdate("k", "in_progress"),
      acp.CompactionSummaryChunk("k", acp.TextContent("short")), acp.CompactionUpdate("k", "completed")]),
    ("usage and title", 0, [
        {"sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": {"amount": 1, "currency": "EUR"}},
        {"sessionUpdate": "session_info_update", "title": "T"},
        {"sessionUpdate": "session_info_update", "title": None}],
     [acp.UsageUpdate(1, 2, acp.Cost(1, "EUR")), acp.SessionInfoUpdate("T"), acp.SessionInfoUpdate(None)]),
    ("commands", 1, [{"sessionUpdate": "available_commands_update", "availableCommands": [
        {"name": "a", "description": "A", "input": {"hint": "h"}}, {"name": "b", "description": "B", "input": None}]}],
     [acp.AvailableCommandsUpdate([acp.Command("a", "A", acp.TextCommandInput("h")), acp.Command("b", "B")])]),
    ("commands with a type, and without", 2, [{"sessionUpdate": "available_commands_update", "availableCommands": [
        {"type": "command", "name": "a", "description": "A", "input": {"type": "text", "hint": "h"}},
        {"name": "b", "description": "B"}]}],
     [acp.AvailableCommandsUpdate([acp.Command("a", "A", acp.TextCommandInput("h")), acp.Command("b", "B")])]),
    ("updates beyond the table", 0, [{"sessionUpdate": "_dance", "steps": 3}],
     [acp.Unknown("_dance", {"sessionUpdate": "_dance", "steps": 3})]),
]


@pytest.mark.parametrize("version, said, typed", [
    pytest.param(version, *row[2:], id=f"{row[0]}-{version}") for row in TABLE_IN for version in (1, 2)
    if row[1] in (0, version)])
def test_each_update_that_a_client_hears_in_canonical_form(scripted_agent, version, said, typed):
    state, seen = table_heard(scripted_agent, version, said)
    assert seen == typed
    expected = acp.SessionState(typed)
    for name in ("tool_calls", "plans", "terminals", "compactions", "usage", "title", "commands", "unknown"):
        assert getattr(state, name) == getattr(expected, name), name
    assert {id: state.messages[id] for id in expected.messages} == expected.messages


# ---- turns and states -----------------------------------------------------------------------------------------------

TWO_QUESTIONS = """
    hello(V); new(); request = prompt(V)
    subject = {"toolCall": {"toolCallId": "c", "title": "t"}}
    if V == 2:
        subject = {"title": "t", "subject": {"type": "tool_call", **subject}}
        write(state("s", "requires_action"))
    options = [{"optionId": "y", "name": "Y", "kind": "allow_once"}]
    write(*[{"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": {
        "sessionId": "s", "options": options, **subject}} for id in ("one", "two")], chunk("s", "asked", "q"))
    read(); read()
    if V == 2:
        write(state("s", "running"))
    write(chunk("s", "done", "m"))
    end(V, request, REASON)
    read()
"""


@BOTH
@pytest.mark.parametrize("reason", ["refusal", "_odd"])
def test_states_follow_the_prompt_and_its_questions_alike_on_both_versions(scripted_agent, version, reason):
    inside = []

    def permission(request):
        eventually(lambda: "q" in request.session.state.messages)  # so both questions are open
        inside.append((request.session.state.state, request.session.state.stop_reason))
        return True

    with acp.Client(scripted_agent(TWO_QUESTIONS, V=version, REASON=reason).socket, version=version,
                    permission=permission) as client:
        session = client.new_session("/")
        assert session.state.state is None
        seen = list(session.prompt("hi"))
        assert [(type(each), each.state) for each in seen if isinstance(each, acp.StateUpdate)] == [
            (acp.RunningStateUpdate, "running"), (acp.RequiresActionStateUpdate, "requires_action"),
            (acp.RunningStateUpdate, "running"), (acp.IdleStateUpdate, "idle")]
        assert inside == [("requires_action", None)] * 2
        assert (session.state.state, session.state.stop_reason, seen[-1].stop_reason) == ("idle", reason, reason)
        assert type(seen[0]) is acp.UserMessage and seen[0].content == [acp.TextContent("hi")]
        assert list(session.state.messages)[0] == seen[0].message_id


FAILS = """
    hello(V); new(); request = prompt(V)
    write(chunk("s", "half", "m"))
    wrong = {"code": 7, "message": "broke", "data": {"why": [1]}}
    if V == 1:
        write({"jsonrpc": "2.0", "id": request["id"], "error": wrong})
    else:
        write(state("s", "idle", stopReason="error", error=wrong))
    end(V, prompt(V, id="m2"))
    read()
"""


@BOTH
def test_an_error_while_a_turn_runs_is_an_idle_state_with_the_error_on_both_versions(scripted_agent, version):
    with acp.Client(scripted_agent(FAILS, V=version).socket, version=version) as client:
        session = client.new_session("/")
        turn, seen = session.prompt("hi"), []
        with pytest.raises(acp.RequestError) as raised:
            for each in turn:
                seen.append(each)
        assert (raised.value.code, raised.value.message, raised.value.data) == (7, "broke", {"why": [1]})
        wrong = acp.ErrorObject(7, "broke", {"why": [1]})
        assert seen[-1] == acp.IdleStateUpdate(stop_reason="error", error=wrong)
        assert (session.state.state, session.state.stop_reason, session.state.error) == ("idle", "error", wrong)
        assert (turn.text, turn.stop_reason) == ("half", "error")
        assert session.prompt("again").wait() == "end_turn" and session.state.error is None


@BOTH
@pytest.mark.parametrize("outcome, code", [
    ("error", -32603), (acp.RequestError(7, "broke", [1]), 7), (ValueError("secret"), -32603)], ids=repr)
def test_a_turn_that_fails_is_told_as_the_version_tells_it(raw, version, outcome, code):
    def handler(turn):
        turn.say("half")
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    wire = raw(Handler(handler))
    prompt = wire.prompt(wire.start(version))
    if version == 1:
        error = wire.response(prompt)["error"]
        assert not [each for each in wire.updates() if each["sessionUpdate"] == "state_update"]
    else:
        idle = wire.until(lambda m: m.get("params", {}).get("update", {}).get("state") == "idle")[-1]
        assert set(idle["params"]["update"]) == {"sessionUpdate", "state", "stopReason", "error"}
        assert idle["params"]["update"]["stopReason"] == "error"
        error = idle["params"]["update"]["error"]
    assert error["code"] == code and "secret" not in json.dumps(error)
    if code == 7:
        assert error == {"code": 7, "message": "broke", "data": [1]}
    assert [text_update(each) for each in told(wire)] == ["half"]


def test_states_and_the_echo_never_reach_the_wire_of_version_1(raw):
    def handler(turn):
        for update in (acp.RunningStateUpdate(background=[acp.BackgroundTerminal("t")]),
                       acp.RequiresActionStateUpdate(), acp.IdleStateUpdate(stop_reason="refusal")):
            turn.send(update)
        turn.ask_permission("May I?")

    wire = raw(Handler(handler))
    prompt = wire.prompt(wire.start(1))
    wire.answer(wire.asked("session/request_permission"), {"outcome": {"outcome": "cancelled"}})
    assert wire.response(prompt)["result"] == {"stopReason": "end_turn"}
    assert wire.updates() == []


# ---- the content of tool calls that grows ---------------------------------------------------------------------------

def growth(sent):
    """By mark: what content the client of version 1 knows of the tool call at the time."""
    known, found = [], []
    for each in sent:
        assert each["sessionUpdate"] in ("tool_call", "tool_call_update", "agent_message_chunk"), each
        known = each["content"] if "toolCallId" in each and "content" in each else known
        if "toolCallId" not in each:
            found.append(known)
    return found


def test_merged_content_is_sent_when_it_has_grown_by_a_quarter_and_at_a_change_of_status(raw):
    def handler(turn):
        with turn.tool("run") as tool:
            for _ in range(300):
                tool.add("x" * 100)
                turn.say(".")
            tool.update(status="in_progress")
            turn.say(".")
            tool.add("y")
            turn.say(".")

    sent = one_turn(raw, 1, handler)
    lengths = [len(known) for known in growth(sent)]
    assert all(count <= known * 1.25 + 1 for count, known in enumerate(lengths[:300], 1))
    assert lengths[300] == 300  # at a change of status, all of it
    times = [len(each["content"]) for each in sent if "toolCallId" in each and "content" in each]
    assert times == sorted(set(times)) and len(times) < 40  # never once per chunk, never the same again
    assert sent[-1]["status"] == "completed" and times[-1] == 301
    assert [item["content"]["text"] for item in sent[-1]["content"]] == ["x" * 100] * 300 + ["y"]
    assert len(json.dumps(sent)) < 9 * len(json.dumps(sent[-1]))  # in proportion to what there is


BIG = "".join(f"line {number}\n" for number in range(1000))
GROWS = {  # what is added to a tool call that already shows 2,000 characters, and what proves that it is there
    "text": (lambda: acp.TextContent(BIG), "line 999"),
    "diff": (lambda: acp.Diff.of("/f", BIG, "old\n"), "line 999"),
    "patch": (lambda: acp.Diff([acp.DiffChange("delete", "/f")], acp.DiffPatch("git_patch", BIG)), "line 999"),
    "image": (lambda: acp.ImageContent("QUJD" * 2500 + "WFla", "image/png"), "WFla"),
    "resource": (lambda: acp.EmbeddedResource(acp.TextResourceContents(BIG, "file:///f")), "line 999"),
    "terminal": (lambda: acp.Terminal("t"), "line 999"),
}


@pytest.mark.parametrize("what", sorted(GROWS))
def test_every_kind_of_content_counts_with_its_size(raw, what):
    make, proof = GROWS[what]

    def handler(turn):
        turn.send(acp.TerminalUpdate("t", output=acp.TerminalOutput(base64.b64encode(BIG.encode()).decode())))
        with turn.tool("run") as tool:
            tool.add("x" * 2000)
            tool.add(make())
            turn.say("mark")  # it has grown fivefold, so it was sent
            for _ in range(1500):
                tool.add("z")

    sent = one_turn(raw, 1, handler)
    assert proof in json.dumps(growth(sent)[0])
    assert len(json.dumps(sent)) < 8 * (2000 + 11000 + 1500 * 64)  # and it does not go out again and again


def test_a_display_terminal_is_its_transcript_on_version_1(raw):
    halves = "é".encode()

    def handler(turn):
        turn.send(acp.TerminalUpdate("t", "make", "/"))
        with turn.tool("r", tool_call_id="run") as tool, turn.tool("l", tool_call_id="look") as other:
            tool.add(acp.Terminal("t"))
            for piece in (b"a", halves[:1], halves[1:], b"\xff"):
                turn.send(acp.TerminalOutputChunk("t", base64.b64encode(piece).decode()))
            tool.update(status="paused")
            other.add("x")
            other.add(acp.Terminal("t"))
            turn.send(acp.TerminalUpdate("t", output=acp.TerminalOutput(base64.b64encode(b"anew").decode()),
                                         exit_status=acp.TerminalExitStatus(0)))

    sent = one_turn(raw, 1, handler)
    assert all(each["sessionUpdate"] in ("tool_call", "tool_call_update") for each in sent)
    run, look = [[each for each in sent if each["toolCallId"] == id] for id in ("run", "look")]
    paused = [each for each in run if each.get("status") == "pending"][-1]
    assert paused["content"] == [wire_text("aé\ufffd")]
    assert [each["content"] for each in look if "content" in each][-1] == [wire_text("x"), wire_text("anew")]
    assert [each["content"] for each in run if "content" in each][-1] == [wire_text("anew")]


def test_the_transcript_grows_by_the_same_rule(raw):
    def handler(turn):
        turn.send(acp.TerminalUpdate("t", "make"))
        with turn.tool("run") as tool:
            tool.add(acp.Terminal("t"))
            for _ in range(300):
                turn.send(acp.TerminalOutputChunk("t", base64.b64encode(b"x" * 100).decode()))
                turn.say(".")

    sent = one_turn(raw, 1, handler)
    lengths = [len(known[0]["content"]["text"]) for known in growth(sent)]
    assert all(count * 100 <= known * 1.25 + 100 for count, known in enumerate(lengths, 1))
    times = [len(each["content"][0]["content"]["text"]) for each in sent if "toolCallId" in each and "content" in each]
    assert times == sorted(set(times)) and len(times) < 40 and times[-1] == 30_000
    assert sent[-1]["status"] == "completed"


def test_a_display_terminal_stays_one_on_version_2(raw):
    def handler(turn):
        turn.send(acp.TerminalUpdate("t", "make", "/", size=acp.TerminalSize(80, 24)))
        turn.send(acp.TerminalOutputChunk("t", "YQ=="))
        turn.send(acp.ToolCallUpdate("c", content=[acp.Terminal("t")]))
        turn.send(acp.TerminalUpdate("t", exit_status=acp.TerminalExitStatus(None, "SIGKILL"), size=None))

    assert one_turn(raw, 2, handler) == [
        {"sessionUpdate": "terminal_update", "terminalId": "t", "command": "make", "cwd": "/",
         "size": {"cols": 80, "rows": 24}},
        {"sessionUpdate": "terminal_output_chunk", "terminalId": "t", "data": "YQ=="},
        wire_call(content=[{"type": "terminal", "terminalId": "t"}]),
        {"sessionUpdate": "terminal_update", "terminalId": "t", "exitStatus": {"signal": "SIGKILL"}, "size": None}]


def test_a_terminal_of_the_client_itself_stays_a_terminal_on_version_1(raw):
    def handler(turn):
        made = turn.session.request("terminal/create", {"command": "make"})["terminalId"]
        with turn.tool("run") as tool:
            tool.add(acp.Terminal(made))

    wire = raw(Handler(handler))
    prompt = wire.prompt(wire.start(1, {"terminal": True}))
    asked = wire.asked("terminal/create")
    assert asked["params"] == {"sessionId": wire.session["sessionId"], "command": "make"}
    wire.answer(asked, {"terminalId": "own"})
    assert wire.turn_end(1, prompt) == "end_turn"
    assert [each["content"] for each in told(wire) if "content" in each][-1] == [
        {"type": "terminal", "terminalId": "own"}]


@BOTH
def test_bytes_that_are_no_base64_raise_in_the_handler_and_nothing_goes_out(raw, version):
    def handler(turn):
        for update in (acp.TerminalOutputChunk("t", "no base64!"),
                       acp.TerminalUpdate("t", output=acp.TerminalOutput("no base64!"))):
            with pytest.raises(ValueError):
                turn.send(update)
        turn.say("on")

    assert [text_update(each) for each in one_turn(raw, version, handler)] == ["on"]


def test_a_diff_of_version_1_goes_back_as_it_came(scripted_agent):
    said = [{"type": "diff", "path": "/f", "oldText": "a", "newText": "b", "_meta": {"k": 1}, "more": 2},
            {"type": "diff", "path": "/f", "newText": ""}]
    state, _ = table_heard(scripted_agent, 1, [wire_call(content=said)])
    assert acp.to_wire(state.tool_calls["c"].content, 1) == said
    changed = acp.to_wire(state.tool_calls["c"].content, 2)[0]
    assert (changed["changes"], changed["_meta"], changed["more"]) == (
        [{"operation": "modify", "path": "/f"}], {"k": 1}, 2)


# ---- permissions ----------------------------------------------------------------------------------------------------

CALL = acp.ToolCallUpdate("c", title="Remove", kind="delete")
WIRE_CALL = {"toolCallId": "c", "title": "Remove", "kind": "delete"}
ASKED = [  # subject, description, what version 1 is asked, what version 2
    (acp.ToolCallPermissionSubject(CALL), "Really", {"toolCall": WIRE_CALL},
     {"title": "May I?", "description": "Really", "subject": {"type": "tool_call", "toolCall": WIRE_CALL}}),
    (acp.CommandPermissionSubject("rm x", "/", "c"), None,
     {"toolCall": {"toolCallId": "c", "title": "rm x", "kind": "execute"}},
     {"title": "May I?", "subject": {"type": "command", "command": "rm x", "cwd": "/", "toolCallId": "c"}}),
    (acp.CommandPermissionSubject("rm x", "/"), None, {"toolCall": {"title": "rm x", "kind": "execute"}},
     {"title": "May I?", "subject": {"type": "command", "command": "rm x", "cwd": "/"}}),
    (acp.Unknown("_moon", {"type": "_moon"}), None, {"toolCall": {"title": "May I?"}},
     {"title": "May I?", "subject": {"type": "_moon"}}),
    (None, None, {"toolCall": {"title": "May I?"}}, {"title": "May I?"}),
]


@BOTH
@pytest.mark.parametrize("subject, description, first, second", ASKED, ids=[repr(row[0])[:40] for row in ASKED])
def test_a_permission_is_asked_about_its_subject(raw, version, subject, description, first, second):
    options = [acp.PermissionOption("y", "Y", "allow_once"), acp.PermissionOption("o", "O", "_odd")]
    wire = raw(Handler(lambda turn: turn.say(str(bool(turn.ask_permission(
        "May I?", options=options, subject=subject, description=description))))))
    prompt = wire.prompt(wire.start(version))
    asked = wire.asked("session/request_permission")
    params = asked["params"]
    assert [each["kind"] for each in params.pop("options")] == ["allow_once", "reject_once" if version == 1 else "_odd"]
    assert params.pop("sessionId") == wire.session["sessionId"]
    if version == 1 and "toolCallId" not in first["toolCall"]:
        assert params["toolCall"].pop("toolCallId")
    assert params == (first if version == 1 else second)
    wire.answer(asked, {"outcome": {"outcome": "selected", "optionId": "y"}})
    assert wire.turn_end(version, prompt) == "end_turn"
    assert [text_update(each) for each in told(wire)] == ["True"]


TABLE_OFFERED = [{"optionId": "y", "name": "Y", "kind": "_odd"}]
QUESTIONS = {  # version, the params, title, description, kind of the merged tool call (None: no tool call)
    "tool call": (1, {"toolCall": {"toolCallId": "c", "title": "New", "kind": "edit"}}, "New", None, "edit"),
    "tool call without title": (1, {"toolCall": {"toolCallId": "c", "title": None}}, "Old", None, "read"),
    "tool call by its id alone": (1, {"toolCall": {"toolCallId": "c"}}, "Old", None, "read"),
    "subject": (2, {"title": "T", "description": "D", "subject": {"type": "tool_call", "toolCall": {
        "toolCallId": "c", "kind": "edit"}}}, "T", "D", "edit"),
    "command": (2, {"title": "T", "subject": {"type": "command", "command": "rm", "cwd": "/"}}, "T", None, None),
    "command of a tool call": (2, {"title": "T", "subject": {
        "type": "command", "command": "rm", "cwd": "/", "toolCallId": "c"}}, "T", None, "read"),
    "no subject": (2, {"title": "T"}, "T", None, None),
    "unknown subject": (2, {"title": "T", "subject": {"type": "_moon"}}, "T", None, None),
}
ASKS = """
    hello(V); new(); request = prompt(V)
    write(update("s", {"sessionUpdate": "tool_call" if V == 1 else "tool_call_update", "toolCallId": "c",
                       "title": "Old", "kind": "read"}))
    write({"jsonrpc": "2.0", "id": 0, "method": "session/request_permission", "params": {"sessionId": "s", **PARAMS}})
    write(chunk("s", json.dumps(read()["result"]), "m"))
    end(V, request)
    read()
"""


@pytest.mark.parametrize("case", sorted(QUESTIONS))
def test_a_client_is_asked_with_title_subject_and_merged_tool_call(scripted_agent, case):
    version, params, title, description, kind = QUESTIONS[case]
    asked = []

    def permission(request):
        asked.append((request.title, request.description, request.tool_call and request.tool_call.kind,
                      request.options[0].kind))
        return request.options[0]

    agent = scripted_agent(ASKS, V=version, PARAMS={"options": TABLE_OFFERED, **params})
    with acp.Client(agent.socket, version=version, permission=permission) as client:
        answer = client.new_session("/").ask("hi")
    assert asked == [(title, description, kind, "_odd")]
    assert json.loads(answer) == {"outcome": {"outcome": "selected", "optionId": "y"}}


# ---- notices and compaction -----------------------------------------------------------------------------------------

TAKES_ALL = {"session": {"notices": {}, "compaction": {}, "configOptions": {"boolean": {}}}}


@pytest.mark.parametrize("version, capabilities", [(1, TAKES_ALL), (2, None)])
def test_compaction_and_notices_go_out_as_they_are_to_clients_that_take_them(raw, version, capabilities):
    def handler(turn):
        turn.send(acp.CompactionUpdate("k", "in_progress", error=None))
        turn.send(acp.CompactionSummaryChunk("k", acp.TextContent("short")))
        turn.send(acp.CompactionUpdate("k", "completed", [acp.TextContent("shorter")]))
        turn.send(acp.Notice("_odd", "N", "D"))

    assert one_turn(raw, version, handler, capabilities) == [
        {"sessionUpdate": "compaction_update", "compactionId": "k", "status": "in_progress", "error": None},
        {"sessionUpdate": "compaction_summary_chunk", "compactionId": "k", "content": text_block("short")},
        {"sessionUpdate": "compaction_update", "compactionId": "k", "status": "completed",
         "summary": [text_block("shorter")]},
        {"sessionUpdate": "notice", "severity": "_odd", "title": "N", "description": "D"}]


@pytest.mark.parametrize("takes", [{}, {"notices": {}}, {"compaction": {}}], ids=json.dumps)
def test_what_a_client_of_version_1_does_not_take_is_dropped_said_or_refused(raw, takes):
    raised = []

    def handler(turn):
        turn.send(acp.Notice("info", "dropped"))
        turn.notice("said", description="why", say=True)
        for update in (acp.CompactionUpdate("k", "completed"),
                       acp.CompactionSummaryChunk("k", acp.TextContent("short"))):
            try:
                turn.send(update)
            except acp.Unsupported:
                raised.append(update)
        turn.say("on")

    sent = one_turn(raw, 1, handler, {"session": takes})
    kinds = [each["sessionUpdate"] for each in sent]
    assert kinds == ((["notice"] * 2 if "notices" in takes else ["agent_message_chunk"])
                     + (["compaction_update", "compaction_summary_chunk"] if "compaction" in takes else [])
                     + ["agent_message_chunk"])
    assert len(raised) == (0 if "compaction" in takes else 2)
    if "notices" not in takes:
        assert "said" in sent[0]["content"]["text"] and "why" in sent[0]["content"]["text"]
        assert sent[0]["messageId"] != sent[-1]["messageId"]


# ---- initialize and logins ------------------------------------------------------------------------------------------


OFFERS = {  # what an agent says of itself, by version, and what of it the client knows
    1: {"agentInfo": {"name": "a", "version": "1", "title": "A"}, "agentCapabilities": {
        "loadSession": True, "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
        "mcpCapabilities": {"http": True, "sse": False},
        "sessionCapabilities": {"list": {}, "delete": {}, "close": None}, "auth": {"logout": {}}}},
    2: {"info": {"name": "a", "version": "1", "title": "A"}, "capabilities": {
        "session": {"prompt": {"image": {}, "embeddedContext": {}}, "mcp": {"http": {}}, "delete": {}}}},
}


@BOTH
def test_a_client_knows_what_the_agent_offers_by_presence(scripted_agent, version):
    with table_client(scripted_agent, version, hello=OFFERS[version]) as (session, _):
        client = session.client
        assert client.agent_info == acp.Implementation("a", "1", "A")
        offered = client.capabilities.session
        assert all((offered.prompt.image, offered.prompt.embedded_context, offered.mcp.http, offered.delete))
        assert not any((offered.prompt.audio, offered.mcp.sse, offered.mcp.stdio, offered.additional_directories))
        if version == 1:
            assert offered.load and offered.list and not offered.close and not offered.resume
            with pytest.raises(acp.Unsupported):
                session.close()
        with pytest.raises(acp.Unsupported):
            session.prompt(acp.AudioContent("YQ==", "audio/wav"))
        session.prompt(acp.ImageContent("YQ==", "image/png"))  # raises nothing


TABLE_LOGINS = [acp.AuthMethodAgent("in", "In", "by browser"),
          acp.AuthMethodTerminal("sh", "Shell", args=["login"], env=[acp.EnvVariable("A", "b")])]
WIRE_LOGINS = {
    1: [{"id": "in", "name": "In", "description": "by browser"},
        {"type": "terminal", "id": "sh", "name": "Shell", "args": ["login"], "env": {"A": "b"}}],
    2: [{"type": "agent", "methodId": "in", "name": "In", "description": "by browser"},
        {"type": "terminal", "methodId": "sh", "name": "Shell", "args": ["login"],
         "env": [{"name": "A", "value": "b"}]}],
}


@BOTH
def test_logins_in_the_words_of_the_version_both_ways(raw, scripted_agent, version):
    wire = raw(Handler(auth_methods=TABLE_LOGINS))
    wire.start(version, {"auth": {"terminal": True if version == 1 else {}}})
    assert wire.hello["authMethods"] == WIRE_LOGINS[version]
    sent = []
    hello = {"authMethods": WIRE_LOGINS[version], **({} if version == 2 else {
        "agentCapabilities": {"auth": {"logout": {}}}})}
    with table_client(scripted_agent, version, hello=hello, on_message=sent_into(sent)) as (session, _):
        assert session.client.auth_methods == TABLE_LOGINS
        session.client.login("in")
        session.client.logout()
    names = ("authenticate", "logout") if version == 1 else ("auth/login", "auth/logout")
    assert [(each["method"], each["params"]) for each in sent[-2:]] == [(names[0], {"methodId": "in"}), (names[1], {})]


# ---- config options and modes ---------------------------------------------------------------------------------------

def choice(value, name, **more):
    return acp.SessionConfigSelectOption(value, name, **more)


def table_options(mode="ask", loud=False):
    """Two selects, of which one is the mode and one grouped, and a boolean."""
    return [
        acp.SessionConfigSelect("model", "Model", "big", [
            acp.SessionConfigSelectGroup("g", "G", [choice("big", "Big", description="slow")]),
            acp.SessionConfigSelectGroup("h", "H", [choice("small", "Small")])], category="model"),
        acp.SessionConfigSelect("how", "How", mode, [choice("ask", "Ask"), choice("code", "Code", description="C")],
                                "what it may do", "mode"),
        acp.SessionConfigBoolean("loud", "Loud", loud)]


def wire_options(version, mode="ask", loud=False):
    id, group = ("id", "group") if version == 1 else ("configId", "groupId")
    return [
        {"type": "select", id: "model", "name": "Model", "currentValue": "big", "category": "model", "options": [
            {group: "g", "name": "G", "options": [{"value": "big", "name": "Big", "description": "slow"}]},
            {group: "h", "name": "H", "options": [{"value": "small", "name": "Small"}]}]},
        {"type": "select", id: "how", "name": "How", "currentValue": mode, "description": "what it may do",
         "category": "mode", "options": [{"value": "ask", "name": "Ask"},
                                         {"value": "code", "name": "Code", "description": "C"}]},
        {"type": "boolean", id: "loud", "name": "Loud", "currentValue": loud}]


WIRE_MODES = {"currentModeId": "ask", "availableModes": [
    {"id": "ask", "name": "Ask"}, {"id": "code", "name": "Code", "description": "C"}]}


def configured(session):
    session.config_options = table_options()


@pytest.mark.parametrize("version, takes_booleans", [(1, False), (1, True), (2, True)])
def test_options_go_out_with_modes_and_with_booleans_only_for_clients_that_take_them(raw, version, takes_booleans):
    def handler(turn):
        turn.session.config_options = table_options("code", True)

    capabilities = TAKES_ALL if version == 1 and takes_booleans else None
    count = 3 if takes_booleans else 2
    wire = raw(Handler(handler, new_session=configured))
    s = wire.start(version, capabilities)
    assert wire.session["configOptions"] == wire_options(version)[:count]
    assert wire.session.get("modes") == (WIRE_MODES if version == 1 else None)
    assert wire.turn_end(version, wire.prompt(s)) == "end_turn"
    update = {"sessionUpdate": "config_option_update", "configOptions": wire_options(version, "code", True)[:count]}
    mode = {"sessionUpdate": "current_mode_update", "currentModeId": "code"}
    assert told(wire) == ([update, mode] if version == 1 else [update])
    kind = {} if version == 1 else {"type": "id"}
    result = wire.call("session/set_config_option", {"sessionId": s, "configId": "model", "value": "small", **kind})
    wanted = wire_options(version, "code", True)[:count]
    wanted[0]["currentValue"] = "small"
    assert result == {"configOptions": wanted}


@pytest.mark.parametrize("how", ["session/set_mode", "session/set_config_option", "assigning", "another option"])
def test_the_modes_of_version_1_and_the_option_of_that_category_stay_in_step(raw, how):
    def handler(turn):
        turn.session.config_options = table_options("code")

    agent = Handler(handler, new_session=configured)
    wire = raw(agent)
    s = wire.start(1)
    if how == "session/set_mode":
        assert wire.refused(how, {"sessionId": s, "modeId": "sing"})["code"] == -32602
        assert wire.call(how, {"sessionId": s, "modeId": "code"}) == {}
    elif how == "assigning":
        assert wire.turn_end(1, wire.prompt(s)) == "end_turn"
    else:
        option = {"configId": "how", "value": "code"} if "set" in how else {"configId": "model", "value": "small"}
        answer = wire.call("session/set_config_option", {"sessionId": s, **option})["configOptions"]
        assert option["value"] in [each["currentValue"] for each in answer]
    wire.call("session/list")  # what was on its way is here
    modes = [each["currentModeId"] for each in wire.updates() if each["sessionUpdate"] == "current_mode_update"]
    told = [each["configOptions"] for each in wire.updates() if each["sessionUpdate"] == "config_option_update"]
    assert modes == ([] if how == "another option" else ["code"])
    assert told == [wire_options(1, "code")[:2]] * len(told) or how == "another option"
    assert told or "set_config" in how or how == "another option"  # a client that knows only options learns it too
    assert agent.sessions[s].config_options[1].current_value == ("ask" if how == "another option" else "code")


MODES_ONLY = """
    request = hello(1, agentCapabilities={"loadSession": True})
    request = read()
    answer(request, {"sessionId": "s", **SETUP} if request["method"] == "session/new" else SETUP)
    request = read()
    write(chunk("s", json.dumps(request)))
    answer(request, {} if request["method"] == "session/set_mode" else {"configOptions": CHANGED})
    request = prompt(1)
    for field in ("currentModeId", "modeId"):
        write(update("s", {"sessionUpdate": "current_mode_update", field: "ask", "_meta": {"field": field}}),
              update("s", {"sessionUpdate": "current_mode_update", field: "code"}))
    end(1, request)
    read()
"""


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("setup", ["modes", "options and modes"])
def test_the_modes_of_an_agent_are_an_option_of_the_session(scripted_agent, setup, resumed):
    given = {"modes": WIRE_MODES}
    if setup != "modes":
        given["configOptions"] = wire_options(1)
    sent = []
    agent = scripted_agent(MODES_ONLY, SETUP=given, CHANGED=wire_options(1, "code"))
    with acp.Client(agent.socket, on_message=sent_into(sent)) as client:
        session = client.resume_session("s", "/") if resumed else client.new_session("/")
        if setup == "modes":
            option, = session.state.config_options
            assert (option.config_id, option.category, option.current_value) == ("mode", "mode", "ask")
            assert option.options == [choice("ask", "Ask"), choice("code", "Code", description="C")]
            session.set_config_option("mode", "code")
            setting = ("session/set_mode", {"sessionId": "s", "modeId": "code"})
        else:
            assert session.state.config_options == table_options()
            session.set_config_option("how", "code")
            setting = ("session/set_config_option", {"sessionId": "s", "configId": "how", "value": "code"})
        assert (sent[-1]["method"], sent[-1]["params"]) == setting

        def mode():
            return next(each.current_value for each in session.state.config_options if each.category == "mode")

        assert mode() == "code"
        updates = [each for each in session.prompt("hi") if not isinstance(each, (acp.UserMessage, acp.StateUpdate))]
        assert [type(each) for each in updates] == [acp.ConfigOptionUpdate] * 4
        told = [next(option.current_value for option in each.config_options if option.category == "mode")
                for each in updates]
        assert told == ["ask", "code"] * 2 and mode() == "code"
        assert [each.meta for each in updates] == [
            {"field": "currentModeId"}, None, {"field": "modeId"}, None]
        assert len(session.state.config_options) == (1 if setup == "modes" else 3)


@BOTH
def test_a_client_reads_and_sets_options_in_the_words_of_the_version(scripted_agent, version):
    sent = []
    update = {"sessionUpdate": "config_option_update", "configOptions": wire_options(version, loud=True)}
    with table_client(scripted_agent, version, [update], setup={"configOptions": wire_options(version)},
                      answer={"configOptions": wire_options(version, "code", True)},
                      on_message=sent_into(sent)) as (session, seen):
        assert [each for each in seen if isinstance(each, acp.ConfigOptionUpdate)] == [
            acp.ConfigOptionUpdate(table_options(loud=True))]
        assert session.state.config_options == table_options(loud=True)
        session.set_config_option("how", "code")
        kind = {} if version == 1 else {"type": "id"}
        assert sent[-1]["params"] == {"sessionId": "s", "configId": "how", "value": "code", **kind}
        assert session.state.config_options == table_options("code", True)
        session.set_config_option("loud", True)
        assert sent[-1]["params"] == {"sessionId": "s", "configId": "loud", "value": True, "type": "boolean"}


RICH_MODES = {**WIRE_MODES, "_meta": {"from": "modes"}, "mood": {"deep": [1]}}
MODEL_OPTION = wire_options(1)[0]


def own_mode(id="how", current="ask"):
    """A mode option that an agent of version 1 reports itself."""
    return {**wire_options(1, current)[1], "id": id}


MODES_AND_MODEL = """
    hello(1, agentCapabilities={"loadSession": True})
    request = read()
    setup = {"modes": MODES, "configOptions": GIVEN}
    answer(request, {"sessionId": "s", **setup} if request["method"] == "session/new" else setup)
    while True:
        request = read()
        if request["method"] == "session/prompt":
            write(*[update("s", each) for each in UPDATES])
            end(1, request)
        else:
            answer(request, {} if request["method"] == "session/set_mode" else {"configOptions": CHANGED})
"""


def mode_client(scripted_agent, updates=(), given=(MODEL_OPTION,), changed=(MODEL_OPTION,), **options):
    agent = scripted_agent(MODES_AND_MODEL, MODES=RICH_MODES, GIVEN=given, CHANGED=list(changed), UPDATES=list(updates))
    return acp.Client(agent.socket, **options)


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("given", [None, [], [MODEL_OPTION]], ids=["no options", "empty options", "an option"])
def test_what_an_agent_says_of_its_modes_stands_on_the_option(scripted_agent, given, resumed):
    with mode_client(scripted_agent, given=given) as client:
        session = client.resume_session("s", "/") if resumed else client.new_session("/")
        *others, option = session.state.config_options
        assert len(others) == len(given or []) and option.config_id == option.category == "mode"
        assert option.meta == {"from": "modes"} and option.unknown_fields == {"mood": {"deep": [1]}}


def test_what_an_option_for_modes_says_stands_on_the_modes(raw):
    def new_session(session):
        option = mode_option()
        option.meta, option.unknown_fields = {"from": "option"}, {"mood": 1}
        session.config_options = [option]

    wire = raw(Handler(new_session=new_session))
    s = wire.start(1)
    assert wire.session["modes"]["_meta"] == {"from": "option"} and wire.session["modes"]["mood"] == 1
    assert wire.session["configOptions"][0]["_meta"] == {"from": "option"}
    assert wire.call("session/set_mode", {"sessionId": s, "modeId": "code"}) == {}


@pytest.mark.parametrize("resumed", [False, True])
def test_the_option_made_of_modes_outlives_reports_of_the_others(scripted_agent, resumed):
    small, sent, seen = {**MODEL_OPTION, "currentValue": "small"}, [], []
    updates = [{"sessionUpdate": "config_option_update", "configOptions": [small], "_meta": {"n": 1}},
               {"sessionUpdate": "current_mode_update", "currentModeId": "ask"},
               {"sessionUpdate": "config_option_update", "configOptions": []}]
    with mode_client(scripted_agent, updates, on_message=sent_into(sent),
                     on_update=lambda session, update: seen.append(update)) as client:
        session = client.resume_session("s", "/") if resumed else client.new_session("/")

        def told():
            return [(each.config_id, each.current_value) for each in session.state.config_options]

        assert told() == [("model", "big"), ("mode", "ask")]
        session.set_config_option("mode", "code")
        assert (sent[-1]["method"], sent[-1]["params"]) == ("session/set_mode", {"sessionId": "s", "modeId": "code"})
        assert told() == [("model", "big"), ("mode", "code")]
        session.set_config_option("model", "big")
        assert sent[-1]["params"] == {"sessionId": "s", "configId": "model", "value": "big"}
        assert told() == [("model", "big"), ("mode", "code")]
        seen.clear()
        session.prompt("hi").wait()
        reports = [each for each in seen if isinstance(each, acp.ConfigOptionUpdate)]
        assert [[(option.config_id, option.current_value) for option in each.config_options] for each in reports] == [
            [("model", "small"), ("mode", "code")], [("model", "small"), ("mode", "ask")], [("mode", "ask")]]
        assert [each.meta for each in reports] == [{"n": 1}, None, None]
        assert told() == [("mode", "ask")] and session.state.config_options[0].meta == {"from": "modes"}
        session.set_config_option("mode", "code")
        assert sent[-1]["method"] == "session/set_mode" and told() == [("mode", "code")]


@pytest.mark.parametrize("id", ["how", "mode"])
@pytest.mark.parametrize("told_by", ["update", "answer"])
def test_an_agents_own_option_for_modes_takes_the_place_of_the_one_made_of_them(scripted_agent, id, told_by):
    sent, reported = [], [own_mode(id)]
    updates = [{"sessionUpdate": "config_option_update", "configOptions": reported}]
    with mode_client(scripted_agent, updates if told_by == "update" else [], changed=reported,
                     on_message=sent_into(sent)) as client:
        session = client.new_session("/")
        if told_by == "update":
            session.prompt("hi").wait()
        else:
            session.set_config_option("model", "small")
        option, = session.state.config_options
        assert (option.config_id, option.meta) == (id, None)
        session.set_config_option(id, "code")
        assert sent[-1]["method"] == "session/set_config_option" and sent[-1]["params"]["configId"] == id


def test_an_agents_option_called_mode_is_not_doubled(scripted_agent):
    sent, given = [], {**own_mode("mode")}
    del given["category"]
    with mode_client(scripted_agent, given=[given], on_message=sent_into(sent)) as client:
        session = client.new_session("/")
        assert [each.config_id for each in session.state.config_options] == ["mode"]
        session.set_config_option("mode", "code")
        assert sent[-1]["method"] == "session/set_config_option"


# ---- MCP servers ----------------------------------------------------------------------------------------------------

SERVERS = [acp.McpServerStdio("a", "/a"), acp.McpServerStdio("b", "/b", ["-x"], [acp.EnvVariable("K", "v")]),
           acp.McpServerHttp("c", "http://c", [acp.HttpHeader("H", "v")]), acp.McpServerSse("d", "http://d")]
WIRE_SERVERS = {
    1: [{"name": "a", "command": "/a", "args": [], "env": []},
        {"name": "b", "command": "/b", "args": ["-x"], "env": [{"name": "K", "value": "v"}]},
        {"type": "http", "name": "c", "url": "http://c", "headers": [{"name": "H", "value": "v"}]},
        {"type": "sse", "name": "d", "url": "http://d", "headers": []}],
    2: [{"type": "stdio", "name": "a", "command": "/a"},
        {"type": "stdio", "name": "b", "command": "/b", "args": ["-x"], "env": [{"name": "K", "value": "v"}]},
        {"type": "http", "name": "c", "url": "http://c", "headers": [{"name": "H", "value": "v"}]}],
}


@BOTH
def test_servers_in_the_words_of_the_version_both_ways(raw, version):
    count, sent = 5 - version, []
    agent = Handler(mcp_capabilities=acp.McpCapabilities(stdio=True, http=True, sse=True))
    wire = raw(agent)
    s = wire.start(version, mcpServers=WIRE_SERVERS[version])
    given = agent.sessions[s].mcp_servers
    assert [type(each) for each in given] == [type(each) for each in SERVERS[:count]]
    assert [each.name for each in given] == ["a", "b", "c", "d"][:count]
    assert (given[1].args, given[1].env, given[2].headers) == (
        ["-x"], [acp.EnvVariable("K", "v")], [acp.HttpHeader("H", "v")])
    with acp.Client(Handler(mcp_capabilities=agent.mcp_capabilities), version=version,
                    on_message=sent_into(sent)) as client:
        client.new_session("/", mcp_servers=SERVERS[:count])
        assert sent[-1]["params"] == {"cwd": "/", "mcpServers": WIRE_SERVERS[version]}
        client.new_session("/")
        assert sent[-1]["params"].get("mcpServers", []) == [] and (version == 2 or "mcpServers" in sent[-1]["params"])
        if version == 2:
            with pytest.raises(acp.Unsupported):
                client.new_session("/", mcp_servers=SERVERS[3:])
            assert len([message for message in sent if message["method"] == "session/new"]) == 2


# ---- elicitation ----------------------------------------------------------------------------------------------------

FORM = {  # every type of property
    "name": acp.StringPropertySchema("Name", "of you", 1, 9, "^a", "email", "a@b"),
    "size": acp.StringPropertySchema(enum=["s", "l"]),
    "color": acp.StringPropertySchema(one_of=[acp.EnumOption("r", "Red", "like blood"), acp.EnumOption("g", "Green")]),
    "share": acp.NumberPropertySchema(minimum=0, maximum=0.5, default=0.25),
    "count": acp.IntegerPropertySchema("Count", minimum=-1, maximum=3, default=0),
    "sure": acp.BooleanPropertySchema(default=False),
    "days": acp.MultiSelectPropertySchema(acp.StringMultiSelectItems(["mo", "tu"]), min_items=0, max_items=2,
                                          default=[]),
    "tags": acp.MultiSelectPropertySchema(acp.TitledMultiSelectItems([acp.EnumOption("x", "X")])),
    "odd": acp.Unknown("_color", {"type": "_color", "depth": 8}),
}
WIRE_FORM = {
    "name": {"type": "string", "title": "Name", "description": "of you", "minLength": 1, "maxLength": 9,
             "pattern": "^a", "format": "email", "default": "a@b"},
    "size": {"type": "string", "enum": ["s", "l"]},
    "color": {"type": "string", "oneOf": [{"const": "r", "title": "Red", "description": "like blood"},
                                          {"const": "g", "title": "Green"}]},
    "share": {"type": "number", "minimum": 0, "maximum": 0.5, "default": 0.25},
    "count": {"type": "integer", "title": "Count", "minimum": -1, "maximum": 3, "default": 0},
    "sure": {"type": "boolean", "default": False},
    "days": {"type": "array", "items": {"type": "string", "enum": ["mo", "tu"]}, "minItems": 0, "maxItems": 2,
             "default": []},
    "tags": {"type": "array", "items": {"anyOf": [{"const": "x", "title": "X"}]}},
    "odd": {"type": "_color", "depth": 8},
}
VALUES = {"name": "a@b", "share": 0.5, "count": 2, "sure": True, "days": ["mo"], "tags": []}


@BOTH
def test_a_form_with_every_type_of_property_goes_and_comes(raw, scripted_agent, version):
    schema = acp.ElicitationSchema(FORM, "Title", "Description", ["name", "days"])
    wire = raw(Handler(lambda turn: turn.say(json.dumps(turn.elicit("Fill in", schema).content))))
    prompt = wire.prompt(wire.start(version, {"elicitation": {"form": {}}}))
    asked = wire.asked("elicitation/create")
    params = {"sessionId": wire.session["sessionId"], "message": "Fill in", "mode": "form", "requestedSchema": {
        "type": "object", "title": "Title", "description": "Description", "required": ["name", "days"],
        "properties": WIRE_FORM}}
    assert asked["params"] == params
    wire.answer(asked, {"action": "accept", "content": VALUES})
    assert wire.turn_end(version, prompt) == "end_turn"
    assert [json.loads(text_update(each)) for each in told(wire)] == [VALUES]
    forms = []
    with acp.Client(scripted_agent(ASKS.replace("session/request_permission", "elicitation/create"), V=version,
                               PARAMS={**params, "sessionId": "s"}).socket, version=version,
                    elicitation=lambda request: forms.append(request) or VALUES) as client:
        session = client.new_session("/")
        assert json.loads(session.ask("hi")) == {"action": "accept", "content": VALUES}
    assert (forms[0].session, forms[0].message, forms[0].mode) == (session, "Fill in", "form")
    assert forms[0].schema == schema


PAGES = """
    hello(V); new(); request = prompt(V)
    for id in ("one", "two"):
        write({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": {
            "sessionId": "s", "message": "Visit", "mode": "url", "elicitationId": id,
            "url": "https://example.org/" + id}})
        write(chunk("s", json.dumps(read()["result"]) + ";", "m"))
    write({"jsonrpc": "2.0", "method": "elicitation/complete", "params": {"elicitationId": "one"}})
    end(V, request)
    read()
"""


@BOTH
def test_a_page_is_consented_to_and_its_completion_can_be_heard(scripted_agent, version):
    asked, heard = [], []

    def elicitation(request):
        asked.append((request.mode, request.url, request.elicitation_id, request.schema))
        return len(asked) == 1

    with acp.Client(scripted_agent(PAGES, V=version).socket, version=version, elicitation=elicitation,
                    extension_notification=lambda method, params: heard.append(method)) as client:
        answers = client.new_session("/").ask("hi").split(";")
        eventually(lambda: heard == ["elicitation/complete"])
    assert asked == [("url", "https://example.org/" + id, id, None) for id in ("one", "two")]
    assert [json.loads(each) for each in answers[:2]] == [{"action": "accept"}, {"action": "decline"}]


# ---- what version 1 allows and version 2 refuses --------------------------------------------------------------------

def foreign_text(**annotations):
    return {"type": "text", "text": "x", "annotations": annotations}


def foreign_update(**more):
    return {"sessionUpdate": "tool_call_update", "toolCallId": "c", **more}


FOREIGN = [  # type, version 1's wire, version 2's
    ("ContentBlock", foreign_text(priority=1.5, audience=["user"]), foreign_text(audience=["user"])),
    ("ContentBlock", foreign_text(priority=-1), foreign_text()),
    ("ContentBlock", foreign_text(priority=1), foreign_text(priority=1)),
    ("ContentBlock", {"type": "resource_link", "name": "n", "uri": "u", "size": -1},
     {"type": "resource_link", "name": "n", "uri": "u"}),
    ("SessionUpdate", foreign_update(locations=[{"path": "/a", "line": 0, "_meta": {"k": 1}}, {"path": "/b"}]),
     foreign_update(locations=[{"path": "/a", "_meta": {"k": 1}}, {"path": "/b"}])),
    ("SessionUpdate", foreign_update(content=[{"type": "content", "content": foreign_text(priority=2)}]),
     foreign_update(content=[{"type": "content", "content": foreign_text()}])),
    ("ElicitationPropertySchema", {"type": "string", "title": "t", "enum": [], "oneOf": []},
     {"type": "string", "title": "t"}),
    ("SessionUpdate", {"sessionUpdate": "config_option_update", "configOptions": [
        {**own_mode(), "options": []}, MODEL_OPTION, {**MODEL_OPTION, "options": [
            {"group": "g", "name": "G", "options": []}]}]},
     {"sessionUpdate": "config_option_update", "configOptions": wire_options(2)[:1]}),
    ("NewSessionResponse", {"sessionId": "s", "configOptions": [{**own_mode(), "options": []}]},
     {"sessionId": "s", "configOptions": []}),
    ("SetSessionConfigOptionResponse", {"configOptions": [{**own_mode(), "options": []}, MODEL_OPTION]},
     {"configOptions": wire_options(2)[:1]}),
]


@pytest.mark.parametrize("name, given, wanted", FOREIGN)
def test_what_only_version_1_allows_is_left_out_for_version_2(name, given, wanted):
    message = acp.from_wire(getattr(acp, name), given, 1)
    assert acp.to_wire(message, 2) == wanted
    assert acp.to_wire(message, 1) == given  # and version 1 hears it as it was
    acp.from_wire(getattr(acp, name), wanted, 2)


@pytest.mark.parametrize("name, given", [
    ("SessionConfigOption", {**own_mode(), "options": []}),
    ("RequestPermissionRequest", {"sessionId": "s", "toolCall": {"toolCallId": "c"}, "options": []}),
    ("ElicitationPropertySchema", {"type": "array", "items": {"type": "string", "enum": []}})])
def test_what_version_2_cannot_do_without_is_refused_though_version_1_allows_it(name, given):
    with pytest.raises(acp.MalformedMessage):
        acp.to_wire(acp.from_wire(getattr(acp, name), given, 1), 2)


def test_what_a_program_adds_to_a_message_of_version_1_still_raises():
    update = acp.from_wire(acp.ConfigOptionUpdate, {"configOptions": [MODEL_OPTION]}, 1)
    update.config_options.append(acp.SessionConfigSelect("m", "M", "a", []))
    assert len(acp.to_wire(update, 1)["configOptions"]) == 2
    with pytest.raises(acp.MalformedMessage) as caught:
        acp.to_wire(update, 2)
    assert caught.value.place == "configOptions[1].options"
    update.config_options[1] = 5
    for version in 1, 2:
        with pytest.raises(acp.MalformedMessage):
            acp.to_wire(update, version)


# ---- whole conversations, and their replay --------------------------------------------------------------------------

def conversation(turn):
    """A turn with something of everything that both versions say in full."""
    turn.think("hm")
    turn.say("I ")
    turn.say("will")
    turn.plan(["one", acp.PlanEntry("two", "high", "in_progress")])
    turn.session.title = "Title"
    turn.session.config_options = table_options("code", True)
    turn.session.commands = [acp.Command("go", "Go", acp.TextCommandInput("where"))]
    with turn.tool("Edit", kind="edit", name="edit", tool_call_id="c", locations=["/f"],
                   raw_input={"a": [None]}) as tool:
        if tool.ask_permission():
            tool.add("shown")
            tool.diff("/f", "new\n", "old\n")
            tool.add(acp.ImageContent("YQ==", "image/png", meta={"k": 1}))
            tool.update(raw_output=0)
    with turn.tool("Fails", tool_call_id="d") as tool:
        tool.fail("because")
    turn.usage(1, 200, acp.Cost(0.5, "EUR"))
    turn.usage(2, 200)
    turn.notice("Careful")
    turn.send(acp.CompactionUpdate("k", "completed", [acp.TextContent("short")]))
    turn.plan(["three"])
    turn.say("done")
    return "max_tokens"


def without_ids(state):
    """A snapshot as JSON, with ids that were made up replaced by their place in the timeline."""
    text = json.dumps(acp.to_wire(state.snapshot(), 2), sort_keys=True)
    for index, id in enumerate(state.timeline):
        if id.startswith("message-"):
            text = text.replace(id, f"message {index}")
    return json.loads(text)


def test_one_conversation_gives_the_same_state_on_both_versions_live_and_replayed():
    states = {}
    for version in (1, 2):
        agent = TableArchive(conversation)
        with acp.Client(agent, version=version, permission=acp.allow_once) as client:
            session = client.new_session("/")
            assert session.prompt("hi").wait() == "max_tokens"
            assert without_ids(session.state) == without_ids(agent.sessions[session.id].state)
            states[version] = session.state
            agent.remembered = agent.sessions[session.id].state
        with acp.Client(agent, version=version) as client:
            session = client.resume_session("old", "/", replay=True)
            client.request("session/list", {})  # version 1 tells the commands behind the answer
            for name in ("plans", "tool_calls", "title", "usage", "config_options", "commands", "compactions"):
                assert getattr(session.state, name) == getattr(states[version], name), name
            assert [(each.role, each.text) for each in session.state.messages.values()] == [
                (each.role, each.text) for each in states[version].messages.values()]
            assert len(session.state.timeline) == len(states[version].timeline)
    assert without_ids(states[1]) == without_ids(states[2])
    assert [each.text for each in states[1].messages.values()] == ["hi", "hm", "I will", "done"]
    assert {id: call.status for id, call in states[1].tool_calls.items()} == {"c": "completed", "d": "failed"}
    assert states[1].config_options == table_options("code", True) and states[1].usage.cost.amount == 0.5


class TableArchive(Handler):
    """Resumes any session from `remembered`."""

    def resume_session(self, session, replay):
        return self.remembered


def on_version_1(items, terminals):
    """Content of a tool call, as version 1 shows it."""
    for item in items or ():
        if isinstance(item, acp.Terminal):
            yield shown_text(terminals[item.terminal_id].text if item.terminal_id in terminals else "")
        elif CHART not in (item, getattr(item, "content", None)):
            yield item


def test_any_session_can_be_loaded_by_a_client_of_version_1_that_takes_nothing(raw):
    dice, agent = random.Random(6), TableArchive()
    wire = raw(agent)
    wire.call("initialize", {"protocolVersion": 1})
    for number in range(60):
        agent.remembered = acp.SessionState([random_updates(dice) for _ in range(dice.randrange(40))])
        before, wire.seen = agent.remembered, []
        wire.call("session/load", {"sessionId": f"old{number}", "cwd": "/", "mcpServers": []})
        heard = acp.SessionState(acp.from_wire(acp.SessionUpdate, each, 1) for each in wire.updates())
        shown = [(each.role, [block for block in each.content or () if block != CHART])
                 for each in before.messages.values()]
        assert [(each.role, each.content) for each in heard.messages.values()] == [each for each in shown if each[1]]
        assert list(heard.tool_calls) == list(before.tool_calls)
        for id, call in before.tool_calls.items():
            assert heard.tool_calls[id].title == (call.title or call.name or call.kind)
            assert heard.tool_calls[id].content == list(on_version_1(call.content, before.terminals)), id
        assert (heard.title, heard.compactions, heard.terminals) == (before.title, {}, {})


def test_what_is_replayed_is_whole_before_the_answer(raw):
    agent = TableArchive(remembered=[acp.ToolCallUpdate("c", title="t", status="completed"), *[
        acp.ToolCallContentChunk("c", shown_text(str(number))) for number in range(50)]])
    wire = raw(agent)
    wire.call("initialize", {"protocolVersion": 1})
    wire.call("session/load", {"sessionId": "old", "cwd": "/", "mcpServers": []})
    assert [item["content"]["text"] for item in wire.updates()[-1]["content"]] == [str(number) for number in range(50)]


def test_a_live_session_that_is_loaded_is_told_from_its_beginning(raw):
    def handler(turn):
        turn.say("hello")
        with turn.tool("run", tool_call_id="c") as tool:
            tool.add("shown")

    wire = raw(Handler(handler, resume_session=lambda session, replay: None))
    s = wire.start(1)
    assert wire.turn_end(1, wire.prompt(s)) == "end_turn"
    for _ in range(2):
        wire.seen.clear()
        wire.call("session/load", {"sessionId": s, "cwd": "/", "mcpServers": []})
        kinds = [each["sessionUpdate"] for each in wire.updates()]
        assert kinds == ["user_message_chunk", "agent_message_chunk", "tool_call"]
        assert wire.updates()[-1]["content"] == [wire_text("shown")]


def test_what_only_version_1_says_never_reaches_the_wire_of_version_2(raw):
    def handler(turn):
        with contextlib.suppress(acp.Unsupported):
            turn.send(acp.CurrentModeUpdate("code"))
        turn.say("on")

    kinds = [each["sessionUpdate"] for each in one_turn(raw, 2, handler, new_session=configured)]
    assert kinds in (["agent_message_chunk"], ["config_option_update", "agent_message_chunk"])


# == 7. Connection ====================================================================================================
# Messages in order, each on one line, each request answered once; what a slow, loud or broken peer costs.

# ---- workers and lanes: order, and no deadlock ----------------------------------------------------------------------

@BOTH
def test_requests_of_one_session_start_in_wire_order(raw, version):
    started = []

    class Counting(acp.Agent):
        versions = (1, 2)

        def extension(self, peer, method, params):
            started.append(params["number"])
            time.sleep(0.001)

    wire = raw(Counting())
    session = wire.start(version)
    for _ in range(5):
        ids = [next(wire.ids) for _ in range(40)]
        wire.send(*[{"jsonrpc": "2.0", "id": id, "method": "_count", "params": {"sessionId": session, "number": id}}
                    for id in ids])
        eventually(lambda: len(started) == 40)
        assert started == ids
        started.clear()


@pytest.mark.parametrize("version, method, name, then", [
    (1, "session/load", "resume", "served"), (1, "session/resume", "resume", "served"),
    (2, "session/resume", "resume", "served"), (1, "session/close", "close", -32002),
    (2, "session/close", "close", -32002), (1, "session/delete", "delete", -32002),
    (2, "session/delete", "delete", -32002)])
def test_a_prompt_behind_a_request_that_changes_its_session_waits_for_that_answer(raw, version, method, name, then):
    agent = Slow()
    wire = raw(agent)
    session = wire.start(version)
    other = wire.call("session/new", {"cwd": "/", "mcpServers": []})["sessionId"]
    first, second, third = next(wire.ids), next(wire.ids), next(wire.ids)
    target = "elsewhere" if name == "resume" else session
    params = {"sessionId": target, "cwd": "/", "mcpServers": []}
    wire.send({"jsonrpc": "2.0", "id": first, "method": method, "params": params},
              prompt_message(second, target, "hi"), prompt_message(third, other, "hi"))
    assert "result" in wire.response(third)  # another session goes on
    eventually(lambda: sorted(agent.calls) == sorted([name, "prompt"]))
    agent.gate.set()
    answers = [message for message in wire.until(lambda m: m.get("id") == second) if "id" in message]
    assert [message["id"] for message in answers] == [first, second] and "result" in answers[0]
    if then == "served":
        assert "result" in answers[1]
    else:
        assert answers[1]["error"]["code"] == then


@BOTH
def test_notifications_reach_the_agent_in_order(raw, version):
    got, busy = [], threading.Event()

    def extension(self, peer, method, params):
        assert busy.wait(WAIT)

    def extension_notification(self, peer, method, params):
        time.sleep(random.choice([0, 0, 0.002]))
        got.append(params["number"])

    wire = raw(fault_agent(extension=extension, extension_notification=extension_notification))
    wire.start(version)
    slow = wire.request("_slow")  # a request that blocks holds no notification back
    wire.send(*[{"jsonrpc": "2.0", "method": "_n", "params": {"number": number}} for number in range(200)])
    eventually(lambda: len(got) == 200)
    busy.set()
    wire.response(slow)
    assert got == list(range(200))


def test_handlers_call_each_other_to_any_depth(connected):
    ends = []

    def handler(method, params):
        depth, side = params["depth"], params["side"]
        return [depth] if depth == 0 else [depth] + ends[side].request(method, {"depth": depth - 1, "side": 1 - side})

    ends.extend(connected(handler, handler))
    with within(5):
        assert ends[0].request("deeper", {"depth": 40, "side": 1}, timeout=5) == list(range(40, -1, -1))


@BOTH
def test_every_hook_of_an_agent_may_wait_for_the_client(raw, version):
    answers = []

    class Asking(acp.Agent):
        versions = (1, 2)

        def initialize(self, peer):
            answers.append(peer.request("_initialize", timeout=WAIT))

        def new_session(self, session):
            answers.append(session.request("_new", timeout=WAIT))

        def prompt(self, turn):
            answers.append(bool(turn.ask_permission("May I?")))
            answers.append(turn.session.request("_prompt", timeout=WAIT))

        def close_session(self, session):
            answers.append(session.request("_close", timeout=WAIT))

        def extension(self, peer, method, params):
            return peer.request("_extension", timeout=WAIT)

    wire = raw(Asking())
    with within(4 * SOON):
        hello = wire.request("initialize", greeting(version))
        wire.answer(wire.asked("_initialize"), {"n": 1})
        wire.response(hello)
        new = wire.request("session/new", {"cwd": "/", "mcpServers": []})
        wire.answer(wire.asked("_new"), {"n": 2})
        session = wire.response(new)["result"]["sessionId"]
        prompt = wire.prompt(session)
        question = wire.asked("session/request_permission")
        allow = next(each["optionId"] for each in question["params"]["options"] if each["kind"] == "allow_once")
        wire.answer(question, {"outcome": {"outcome": "selected", "optionId": allow}})
        wire.answer(wire.asked("_prompt"), {"n": 4})
        assert wire.turn_end(version, prompt) == "end_turn"
        extension = wire.request("_x")
        wire.answer(wire.asked("_extension"), {"n": 5})
        assert wire.response(extension)["result"] == {"n": 5}
        close = wire.request("session/close", {"sessionId": session})
        wire.answer(wire.asked("_close"), {"n": 6})
        assert wire.response(close)["result"] == {}
    assert answers == [{"n": 1}, {"n": 2}, True, {"n": 4}, {"n": 6}]


def test_a_prompt_handler_may_read_and_write_the_clients_files(raw):
    def prompt(turn):
        turn.write_text_file("/f", turn.read_text_file("/f").upper())

    wire = raw(fault_agent(prompt))
    turn = wire.prompt(wire.start(1, {"fs": {"readTextFile": True, "writeTextFile": True}}))
    with within(SOON):
        wire.answer(wire.asked("fs/read_text_file"), {"content": "text"})
        written = wire.asked("fs/write_text_file")
        wire.answer(written, None)
        assert wire.turn_end(1, turn) == "end_turn"
    assert written["params"]["content"] == "TEXT"


@BOTH
def test_many_sessions_proceed_while_others_wait_for_the_client(raw, version):
    def prompt(turn):
        if turn.text == "ask":
            turn.ask_permission("May I?")

    wire = raw(fault_agent(prompt))
    wire.start(version)
    sessions = [wire.call("session/new", {"cwd": "/", "mcpServers": []})["sessionId"] for _ in range(40)]
    for session in sessions:
        wire.prompt(session, "ask")
    questions = [wire.asked("session/request_permission") for _ in sessions]
    other = wire.call("session/new", {"cwd": "/", "mcpServers": []})["sessionId"]
    assert wire.turn_end(version, wire.prompt(other)) == "end_turn"
    for question in questions:
        wire.answer(question, {"outcome": {"outcome": "cancelled"}})
    assert next_ends(wire, version, 40) == ["end_turn"] * 40


@BOTH
def test_every_callback_of_a_client_may_wait_for_the_agent(scripted_agent, version):
    agent = scripted_agent("""
        hello(version)
        new()
        request = prompt(version)
        def question(id, method, **params):
            write({"jsonrpc": "2.0", "id": id, "method": method, "params": {**params, "sessionId": "s"}})
            inner = read()
            assert inner["method"] == "_inner", inner
            answer(inner, {"asked": method})
            result = read()
            assert result["id"] == id and "result" in result, result
        question(5, "session/request_permission", **params)
        question(6, "elicitation/create", mode="form", message="?",
                 requestedSchema={"type": "object", "properties": {}})
        question(7, "_extension")
        write(chunk("s", "update", "m"))
        answer(read(), {"asked": "session/update"})
        end(version, request)
        read()
    """, version=version, params=permission_params(version))
    asked = []

    def callback(*arguments):
        if len(arguments) < 2 or isinstance(arguments[1], (dict, acp.AgentMessageChunk)):
            asked.append(client.request("_inner", timeout=WAIT)["asked"])
        return {}

    with acp.Client(agent.socket, version=version, permission=callback, elicitation=callback, extension=callback,
                    on_update=callback) as client:
        with within(2 * SOON):
            assert client.new_session("/").ask("hi", timeout=WAIT) == "update"
    assert asked == ["session/request_permission", "elicitation/create", "_extension", "session/update"]


@BOTH
def test_cancels_and_answers_do_not_queue_behind_handlers_that_hang(raw, version):
    gate = threading.Event()

    class Hanging(acp.Agent):
        versions = (1, 2)

        def extension(self, peer, method, params):
            gate.wait(WAIT)

        def prompt(self, turn):
            turn.say("granted" if turn.ask_permission("May I?") else "refused")
            turn.wait(WAIT)

    wire = raw(Hanging())
    session = wire.start(version)
    for _ in range(30):
        wire.request("_hang", {"sessionId": session})
    prompt = wire.prompt(session)
    asked = wire.asked("session/request_permission")
    with within(SOON):
        wire.answer(asked, {"outcome": {"outcome": "selected", "optionId": asked["params"]["options"][0]["optionId"]}})
        wire.until(lambda m: m.get("method") == "session/update" and text_update(m["params"]["update"]) == "granted")
        wire.notify("session/cancel", {"sessionId": session})
        assert wire.turn_end(version, prompt) == "cancelled"
    gate.set()


def test_limits_of_time_hold_while_on_update_hangs(agent_end):
    gate = threading.Event()
    wire = agent_end(on_update=lambda session, update: gate.wait(WAIT))
    wire.tell(said("x", "a"))
    for call in (lambda: wire.session.set_config_option("o", "v", timeout=0.1),
                 lambda: wire.session.ask("x", timeout=0.1), lambda: list(wire.session.prompt("x", timeout=0.1))):
        with within(SOON), pytest.raises(acp.Timeout):
            call()
    gate.set()


# ---- writing: whole lines, and senders that wait --------------------------------------------------------------------

def test_messages_of_many_threads_are_neither_glued_nor_torn():
    threads, each, sizes = 16, 500, [10, 100, 1000, 3000]
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    connection = acp.Connection(ours, ours, lambda method, params: {"text": "y" * params["size"]}).start()
    seen, replies, held, got = collections.defaultdict(list), {}, [], threading.Event()

    def peer():
        """Reads slowly, asks, and answers all but one request at once."""
        lines = theirs.makefile("rb", 4096)
        for index in range(200):
            theirs.sendall(json.dumps({"jsonrpc": "2.0", "id": f"q{index}", "method": "_size", "params": {
                "size": 200_000 if index % 50 == 0 else index}}).encode() + b"\n")
        for line in lines:
            message = json.loads(line)
            if "method" not in message:
                replies[message["id"]] = len(message["result"]["text"])
            else:
                params = message["params"]
                if message["method"] == "_hold":
                    held.append(message["id"])
                    continue
                assert len(params["text"]) == params["size"]
                seen[params["thread"]].append(params["index"])
                if "id" in message:
                    theirs.sendall(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": params["index"]}
                                              ).encode() + b"\n")
            if len(replies) == 200 and sum(map(len, seen.values())) == threads * each:
                got.set()

    def send(thread):
        for index in range(each):
            size = 200_000 if index == 250 else sizes[index % len(sizes)]
            params = {"thread": thread, "index": index, "size": size, "text": ("é\u2028" * size)[:size]}
            if index % 25 == 7:
                assert connection.request("_take", params, timeout=WAIT * 3) == index
            else:
                connection.notify("_take", params)
            if index % 100 == 50:
                with pytest.raises((TypeError, ValueError)):
                    connection.notify("_take", {"thread": thread, "bad": object()})
                with pytest.raises((TypeError, ValueError)):
                    connection.notify("_take", {"thread": thread, "bad": float("nan")})

    failures = []

    def run(function, *args):
        try:
            function(*args)
        except BaseException as error:
            failures.append(error)
            got.set()

    waiting = connection.begin_call("_hold")  # nothing else waits for the answer to this one
    working = [threading.Thread(target=run, args=(send, index), daemon=True) for index in range(threads)]
    working.append(threading.Thread(target=run, args=(peer,), daemon=True))
    for thread in working:
        thread.start()
    assert got.wait(WAIT * 3)
    for thread in working[:-1]:
        thread.join(WAIT)
    assert failures == []
    theirs.sendall(json.dumps({"jsonrpc": "2.0", "id": held[0], "result": "late"}).encode() + b"\n")
    assert waiting.wait(time.monotonic() + WAIT) == "late"
    assert dict(seen) == {thread: list(range(each)) for thread in range(threads)}
    assert replies == {f"q{index}": 200_000 if index % 50 == 0 else index for index in range(200)}
    connection.close()
    working[-1].join(WAIT)
    ours.close()
    theirs.close()


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\r\nb", "a\u2028b", "a\u0085b", "a\x0bb\x0cc\x1cd", "\x00"])
def test_no_text_breaks_a_line(lines_to, text):
    connection, wire = lines_to()
    connection.notify("_x", {"text": text})
    line = wire.lines.get(timeout=WAIT)
    assert json.loads(line.decode("utf-8"))["params"] == {"text": text}
    connection.notify("_y")
    assert wire.next()["method"] == "_y"


def test_a_lone_surrogate_goes_out_as_the_replacement_character(lines_to):
    connection, wire = lines_to()
    connection.notify("_x", {"text": "a\ud800b", "\udfff": "\U0001f600"})
    line = wire.lines.get(timeout=WAIT)
    assert b"\\ud" not in line.lower()
    assert json.loads(line.decode("utf-8"))["params"] == {"text": "a\ufffdb", "\ufffd": "\U0001f600"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}, b"bytes"], ids=str)
def test_what_is_not_json_raises_in_its_caller_and_sends_nothing(lines_to, value):
    connection, wire = lines_to()
    for send in (connection.notify, connection.request):
        with pytest.raises((ValueError, TypeError)):
            send("_x", {"before": "text", "value": value})
    connection.notify("_y")
    assert wire.next()["method"] == "_y"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}], ids=["nan", "inf", "object", "set"])
@BOTH
def test_a_value_that_is_not_json_raises_in_the_agents_handler_and_writes_nothing(raw, version, value):
    def prompt(turn):
        with turn.tool("count") as tool:
            for send in (lambda: tool.update(raw_output=[value]),
                         lambda: turn.session.notify("_n", {"value": value}),
                         lambda: turn.session.request("_r", {"value": value})):
                with pytest.raises((ValueError, TypeError)):
                    send()

    wire = raw(fault_agent(prompt))
    session = wire.start(version)
    assert wire.turn_end(version, wire.prompt(session)) == "end_turn"
    assert all("rawOutput" not in update for update in wire.updates())
    assert all(message.get("method") in (None, "session/update") for message in wire.seen)
    kinds = [update["status"] for update in wire.updates() if update["sessionUpdate"].startswith("tool_call")]
    assert kinds == ["pending", "completed"]


@BOTH
def test_a_value_that_is_not_json_raises_in_the_clients_caller_and_writes_nothing(scripted_agent, version):
    agent = scripted_agent(recording("""
        hello(version)
        new()
    """), version=version)
    with acp.Client(agent.socket, version=version) as client:
        session = client.new_session("/")
        for send in (lambda: client.request("_x", {"value": float("nan")}), lambda: session.prompt(
                "hi", meta={"value": float("inf")}), lambda: client.notify("_x", {"value": -float("inf")})):
            with pytest.raises(ValueError):
                send()
        with pytest.raises((ValueError, TypeError)):
            client.request("_x", {"value": object()})
        assert client.request("_seen", timeout=WAIT) == {"seen": []}


@BOTH
def test_a_client_and_an_agent_that_write_at_once_do_not_block_each_other(scripted_agent, version):
    agent = scripted_agent("""
        hello(version)
        new()
        for number in range(80):  # 5 MiB, while the client writes 5 MiB
            write(chunk("s", "x" * 65536, "early"))
        for number in range(200):
            write({"jsonrpc": "2.0", "id": number, "method": "_unknown", "params": {"x": "x" * 65536}})
        got = [read() for _ in range(201)]
        request = next(each for each in got if "method" in each)
        refused = [each["id"] for each in got if each.get("error", {}).get("code") == -32601]
        if version == 2:
            answer(request, {"messageId": "m1"})
            write(state("s", "running"))
        write(chunk("s", "%d %s" % (len(request["params"]["prompt"][0]["text"]), refused == list(range(200))), "m"))
        end(version, request)
        read()
    """, version=version)
    with acp.Client(agent.socket, version=version) as client:
        session = client.new_session("/", timeout=WAIT)
        turn = session.prompt("y" * (5 << 20), timeout=WAIT)
        assert turn.wait() == "end_turn"
        assert session.state.messages["m"].text == f"{5 << 20} True"
        assert len(session.state.messages["early"].text) == 80 * 65536


@BOTH
def test_an_agent_reads_on_while_its_client_does_not(raw, version):
    def prompt(turn):
        if turn.text == "talk":
            for _ in range(80):
                turn.say("x" * 65536)

    wire = raw(fault_agent(prompt))
    talking = wire.start(version)
    other = wire.call("session/new", {"cwd": "/", "mcpServers": []})["sessionId"]
    reading, read = threading.Event(), wire.read
    wire.read = lambda: (reading.wait(), read())[1]  # from the next answer on
    wire.socket.settimeout(WAIT)  # writing fails when nobody reads
    first = wire.prompt(talking, "talk")
    second = wire.prompt(other, "y" * (5 << 20))
    for number in range(200):
        wire.request("_unknown", {"x": "x" * 65536}, id=number)
    wire.socket.settimeout(None)
    reading.set()
    answers, idles = {}, 0
    while len(answers) < 202 or idles < (2 if version == 2 else 0):
        message = wire.next()
        if "method" not in message:
            answers[message["id"]] = message
        elif message["params"]["update"].get("state") == "idle":
            idles += 1
    assert all(answers[number]["error"]["code"] == -32601 for number in range(200))
    assert "result" in answers[first] and "result" in answers[second]
    assert sum(len(text) for text in texts_of(wire.updates())) == 80 * 65536


def test_two_peers_that_write_large_messages_at_once_do_not_block_each_other(connected):
    one, other = connected(lambda method, params: len(params["text"]), lambda method, params: len(params["text"]))
    text = "x" * (3 << 20)
    calls = [Background(end.request, "take", {"text": text}) for end in (one, other) for _ in range(4)]
    assert [call.result(20) for call in calls] == [len(text)] * 8


def test_a_sender_waits_for_a_peer_that_does_not_read_and_goes_on_when_it_reads(lines_to):
    connection, wire = lines_to()
    gate = deaf(wire)

    def flood():
        for number in range(200):
            connection.notify("_x", {"number": number, "text": "x" * 50_000})

    flooding = Background(flood)
    until_stuck(connection)
    assert flooding.running  # 10 MB did not go into memory
    gate.set()
    flooding.result()
    assert [wire.asked("_x")["params"]["number"] for _ in range(200)] == list(range(200))


@pytest.mark.parametrize("how", ["timeout", "closed", "cancelled"])
def test_a_sender_that_waits_is_released_and_has_sent_nothing(raw, lines_to, how):
    got = queue.Queue()

    def flood(send):
        try:
            for number in itertools.count():
                send(number, "x" * 50_000)
        except Exception as error:
            got.put((number, error))

    if how == "cancelled":
        class Flooding(acp.Agent):
            def prompt(self, turn):
                flood(lambda number, text: turn.say(f"{number} {text}"))

        agent = Flooding()
        wire = raw(agent)
        session = wire.start()
        prompt = wire.prompt(session)
        gate = deaf(wire)
        until_stuck(agent.sessions[session].peer)
        assert got.empty()
        wire.notify("session/cancel", {"sessionId": session})
        number, error = got.get(timeout=SOON)
        assert isinstance(error, acp.Cancelled)
        gate.set()
        assert wire.turn_end(1, prompt) == "cancelled"
        assert len(wire.updates()) == number
        return
    connection, wire = lines_to()
    gate = deaf(wire)
    flooding = Background(flood, lambda number, text: connection.notify("_x", {"text": text}))
    until_stuck(connection)
    if how == "timeout":
        with within(SOON), pytest.raises(acp.Timeout):
            connection.request("_never", timeout=0.1)
        gate.set()
        connection.close()  # when all is sent
        while (line := wire.lines.get(timeout=WAIT)) is not None:
            assert json.loads(line)["method"] == "_x"
    else:
        assert flooding.running
        wire.socket.shutdown(socket.SHUT_RDWR)
        assert isinstance(got.get(timeout=SOON)[1], acp.ConnectionClosed)
        gate.set()


def test_a_sender_whose_connection_broke_learns_why_as_soon_as_it_is_known(lines_to, monkeypatch):
    monkeypatch.setattr(acp, "_deadline", lambda timeout: time.monotonic() + WAIT)  # what is late is so late
    connection, _ = lines_to()
    assert connection._outbox.close(acp.ConnectionClosed("writing failed"))
    sending = Background(connection.notify, "_x")
    eventually(lambda: connection._outbox.changed._waiters)
    connection.fail_calls(acp.ConnectionClosed("the agent ended"), sending=True)  # as an agent does: it still answers
    with pytest.raises(acp.ConnectionClosed, match="the agent ended"):
        sending.result(WAIT / 2)


def test_cancels_and_answers_go_out_without_waiting_for_a_peer_that_does_not_read(agent_end):
    wire = agent_end(permission=acp.allow_once)
    turn = wire.session.prompt("go")
    wire.accept()
    gate = deaf(wire)
    flooding = Background(lambda: [wire.client.notify("_x", {"text": "x" * 50_000}) for _ in range(100)])
    until_stuck(wire.client.connection)
    assert flooding.running
    with within(SOON):
        wire.ask()
        turn.cancel()
        wire.session.cancel()
    gate.set()
    wire.asked("session/cancel")
    flooding.result()


# ---- limits of what is kept -----------------------------------------------------------------------------------------

@BOTH
def test_input_that_nobody_takes_ends_the_client_above_its_limit(agent_end, version):
    wire = agent_end(version, max_queued_bytes=400_000)
    turn = wire.session.prompt("go")
    wire.accept()
    with contextlib.suppress(OSError):
        wire.tell(*[said("x" * 50_000, "a")] * 20)
    eventually(lambda: wire.client.connection.closed)
    with pytest.raises(acp.ConnectionClosed, match="max_queued_bytes"):
        turn.wait()


@BOTH
@pytest.mark.parametrize("how", ["wait", "iterate", "left", "collected", "between turns"])
def test_updates_that_nobody_keeps_do_not_count_to_the_limit(agent_end, version, how):
    wire = agent_end(version, max_queued_bytes=400_000)
    turn = wire.session.prompt("go")
    request = wire.accept()
    waiting = None
    if how == "wait":
        waiting = Background(turn.wait)
    elif how == "iterate":
        waiting = Background(list, turn)
    elif how == "left":
        wire.tell(said("x", "a"))
        for _ in turn:
            break
    elif how == "collected":
        del turn
        gc.collect()
    else:
        wire.finish(request)
        turn.wait()
    for _ in range(20):
        wire.tell(*[said("x" * 20_000, "a")] * 4)
        wire.settled()
        eventually(lambda: waiting is None or (waiting.running and not turn._entries))  # it keeps up
    if how != "between turns":
        wire.finish(request)
    if waiting is not None:
        waiting.result()
    wire.settled()
    assert not wire.client.connection.closed


def test_callbacks_that_lag_behind_end_the_client_above_its_limit(agent_end):
    gate = threading.Event()
    wire = agent_end(max_queued_bytes=400_000, on_update=lambda session, update: gate.wait(WAIT))
    with contextlib.suppress(OSError):
        wire.tell(*[said("x" * 50_000, "a")] * 20)
    eventually(lambda: wire.client.connection.closed)
    with pytest.raises(acp.ConnectionClosed, match="max_queued_bytes"):
        wire.client.request("_any", timeout=5)
    gate.set()


LARGE_QUESTIONS = {  # large ones of the agent, each as a request
    "permission": lambda wire: wire.ask(tool="t" * 50_000),
    "form": lambda wire: wire.request("elicitation/create", {
        "sessionId": "s", "message": "?" * 50_000, "mode": "form",
        "requestedSchema": {"type": "object", "properties": {}}}),
}


@BOTH
@pytest.mark.parametrize("dispatched", [False, True])
@pytest.mark.parametrize("kind", sorted(LARGE_QUESTIONS))
def test_open_questions_end_the_client_above_its_limit(agent_end, version, kind, dispatched):
    gate, _, callback = hanging_permission()
    wire = agent_end(version, max_queued_bytes=400_000, permission=callback, elicitation=callback,
                     dispatch=[].append if dispatched else None)
    turn = wire.session.prompt("go")
    wire.accept()
    with contextlib.suppress(OSError):
        for _ in range(12):
            LARGE_QUESTIONS[kind](wire)
    eventually(lambda: wire.client.connection.closed)
    with pytest.raises(acp.ConnectionClosed, match="max_queued_bytes"):
        turn.wait()
    gate.set()


@BOTH
@pytest.mark.parametrize("dispatched", [False, True])
@pytest.mark.parametrize("kind", sorted(LARGE_QUESTIONS))
def test_questions_count_to_the_limit_until_they_are_answered(agent_end, version, kind, dispatched):
    jobs = []
    gate, _, callback = hanging_permission()
    wire = agent_end(version, max_queued_bytes=400_000, permission=callback, elicitation=callback,
                     dispatch=jobs.append if dispatched else None)
    connection = wire.client.connection
    for _ in range(4):  # in all, more than may be open
        questions = {LARGE_QUESTIONS[kind](wire) for _ in range(3)}
        wire.settled()
        assert 150_000 < connection._queued < 400_000
        eventually(lambda: len(jobs) == 3 * dispatched)
        gate.set()
        while jobs:
            jobs.pop(0)()
        while questions:
            questions.discard(wire.next().get("id"))
        eventually(lambda: not connection._queued)
        gate.clear()
    assert not connection.closed


def test_answers_that_the_client_does_not_read_end_the_agent_above_its_limit(raw):
    class Small(acp.Agent):
        max_queued_bytes = 300_000

        def extension(self, peer, method, params):
            return {"text": "x" * 50_000}

    wire = raw(Small())
    wire.start()
    gate = deaf(wire)
    with contextlib.suppress(OSError):
        for _ in range(40):
            wire.request("_large")
    wire.serving.join(WAIT)
    assert not wire.serving.is_alive()
    gate.set()


def test_prompts_held_by_an_agent_end_it_above_its_limit(raw):
    class Small(acp.Agent):
        versions = (1, 2)
        max_queued_bytes = 300_000

        def prompt(self, turn):
            turn.wait(WAIT)

    wire = raw(Small())
    session = wire.start(2)
    with contextlib.suppress(OSError):
        for _ in range(12):
            wire.prompt(session, "x" * 50_000)
    wire.serving.join(WAIT)
    assert not wire.serving.is_alive()


# ---- reading: lines of any size and shape ---------------------------------------------------------------------------

LONG_SIZES = [70_000, 1 << 20, 20 << 20]
LONG_OF_EACH = [(1, size) for size in LONG_SIZES] + [(2, size) for size in LONG_SIZES[:2]]


@pytest.mark.parametrize("version, size", LONG_OF_EACH)
def test_long_lines_reach_the_agent_unchanged_and_the_next_one_is_handled(raw, version, size):
    got = []
    takes = acp.PromptCapabilities(image=True)
    wire = raw(fault_agent(lambda turn: got.extend(turn.prompt), prompt_capabilities=takes))
    session = wire.start(version)
    data = base64.b64encode(bytes(range(256)) * (size // 340)).decode("ascii")
    prompt = wire.request("session/prompt", {
        "sessionId": session, "prompt": [{"type": "image", "mimeType": "image/png", "data": data}]})
    assert wire.turn_end(version, prompt) == "end_turn"
    assert wire.turn_end(version, wire.prompt(session, "small")) == "end_turn"
    assert got[0].data == data and got[1].text == "small"


@pytest.mark.parametrize("size", LONG_SIZES[:2])
def test_a_long_file_reaches_the_agent_unchanged(raw, size):
    content, got = "äb\n" * (size // 4), []
    wire = raw(fault_agent(lambda turn: got.extend([turn.read_text_file("/f"), turn.read_text_file("/g")])))
    prompt = wire.prompt(wire.start(1, {"fs": {"readTextFile": True}}))
    wire.answer(wire.asked("fs/read_text_file"), {"content": content})
    wire.answer(wire.asked("fs/read_text_file"), {"content": "small"})
    assert wire.turn_end(1, prompt) == "end_turn"
    assert got == [content, "small"]


@pytest.mark.parametrize("version, size", LONG_OF_EACH)
def test_long_updates_reach_the_client_unchanged_and_the_next_one_is_handled(scripted_agent, version, size):
    agent = scripted_agent("""
        hello(version)
        new()
        request = prompt(version)
        write(chunk("s", "äb\\n" * (size // 4), "m"), chunk("s", "small", "m"))
        end(version, request)
        read()
    """, version=version, size=size)
    with acp.Client(agent.socket, version=version) as client:
        answer = client.new_session("/").ask("hi")
        assert answer == "äb\n" * (size // 4) + "small"


def test_a_long_file_of_the_client_reaches_the_agent_unchanged(scripted_agent, tmp_path):
    class Files:
        def read_text_file(params):
            with open(params.path, encoding="utf-8", newline="") as file:
                return acp.ReadTextFileResponse(file.read())

    path, content = tmp_path / "long.txt", "äb\n" * (1 << 20)
    path.write_bytes(content.encode())
    agent = scripted_agent("""
        hello()
        new()
        request = prompt()
        write({"jsonrpc": "2.0", "id": 5, "method": "fs/read_text_file", "params": {"sessionId": "s", "path": path}})
        content = read()["result"]["content"]
        write(chunk("s", str(content == "äb\\n" * (1 << 20))))
        end(1, request)
        read()
    """, path=str(path))
    with acp.Client(agent.socket, files=Files) as client:
        assert client.new_session("/").ask("hi") == "True"


@BOTH
@pytest.mark.parametrize("pieces", [1, 7])
def test_a_line_over_the_agents_limit_is_refused_alone(raw, version, pieces):
    called = []
    wire = raw(fault_agent(
        max_message_bytes=10_000, extension=lambda self, peer, method, params: called.append(method)))
    wire.start(version)
    line = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "_long", "params": {"x": "x" * 20_000}}).encode() + b"\n"
    step = len(line) // pieces + 1
    for begin in range(0, len(line), step):
        wire.send(line[begin:begin + step])
    error = wire.next()
    assert error["id"] is None and error["error"]["code"] == -32700
    wire.send({"jsonrpc": "2.0", "id": 8, "method": "_fits", "params": {"x": "x" * 9_000}})
    assert wire.next() == {"jsonrpc": "2.0", "id": 8, "result": {}}
    assert called == ["_fits"]


@BOTH
def test_a_line_over_the_clients_limit_costs_itself_and_the_call_it_answers(scripted_agent, version, caplog):
    agent = scripted_agent(recording("""
        hello(version)
        request = read()
        write({"jsonrpc": "2.0", "method": "_log", "params": {"text": "secret" * 5_000}})
        answer(request, {"text": "small"})
        answer(read(), {"text": "secret" * 5_000})
        request = read()
        write({"jsonrpc": "2.0", "result": {"text": "secret" * 5_000}, "id": request["id"]})
        answer(read(), {"text": "y" * 9_000})
    """), version=version)
    with acp.Client(agent.socket, version=version, max_message_bytes=10_000) as client:
        assert client.request("_one", timeout=WAIT) == {"text": "small"}
        for method in ("_two", "_three"):
            with within(SOON), pytest.raises(acp.Error, match=method + ".*max_message_bytes") as caught:
                client.request(method, timeout=WAIT)
            assert not isinstance(caught.value, (acp.RequestError, acp.Timeout, acp.ConnectionClosed))
        assert client.request("_four", timeout=WAIT) == {"text": "y" * 9_000}
        assert client.request("_seen", timeout=WAIT) == {"seen": []}
    assert "secret" not in caplog.text


# Characters at which text splitters split but bytes do not: as they are, or escaped where JSON wants that.
SPLITTERS = "a\u2028b\u2029c\u0085d\x1ce\x0bf\x0cg\nh\ri\r\nj"


@BOTH
def test_only_a_line_feed_byte_ends_a_line_of_the_agent(raw, version):
    wire = raw(fault_agent(say_request))
    session = wire.start(version)
    wire.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": {
        "sessionId": session, "prompt": [{"type": "text", "text": SPLITTERS}]}}, ensure_ascii=False).encode() + b"\n")
    assert wire.turn_end(version, 1) == "end_turn"
    assert texts_of(wire.updates()) == [SPLITTERS]
    wire.nothing(0.05)


@BOTH
def test_only_a_line_feed_byte_ends_a_line_of_the_client(scripted_agent, version):
    agent = scripted_agent(recording("""
        hello(version)
        new()
        request = prompt(version)
        assert request["params"]["prompt"][0]["text"] == text
        write(json.dumps(chunk("s", text, "m"), ensure_ascii=False).encode() + b"\\n")
        end(version, request)
    """), version=version, text=SPLITTERS)
    with acp.Client(agent.socket, version=version) as client:
        assert client.new_session("/").ask(SPLITTERS) == SPLITTERS
        assert client.request("_seen") == {"seen": []}


@BOTH
def test_an_agent_tolerates_blank_lines_crlf_a_bom_and_a_last_line_without_its_end(raw, version):
    wire = raw(fault_agent())
    wire.start(version)
    wire.send(b"\n", b"  \t \n", b"\r\n", b'\xef\xbb\xbf{"jsonrpc": "2.0", "id": 1, "method": "_bom"}\n',
              b'{"jsonrpc": "2.0", "id": 2, "method": "_crlf"}\r\n', b'{"jsonrpc": "2.0", "id": 3, "method": "_last"}')
    wire.end()
    assert [(answer["id"], answer["error"]["code"]) for answer in (wire.next(), wire.next(), wire.next())] == [
        (1, -32601), (2, -32601), (3, -32601)]
    assert wire.lines.get(timeout=WAIT) is None


@pytest.mark.parametrize("size, short", [(1, 30_000), (7, 200_000), (4096, 3_000_000)])
def test_pieces_of_any_size_make_the_same_messages_in_linear_time(size, short):
    took = []
    for length in (short, 8 * short):
        got = queue.Queue()
        params = {"text": "é\u2028" * (length // 5)}
        line = json.dumps({"jsonrpc": "2.0", "method": "_x", "params": params}, ensure_ascii=False).encode()
        stream = Stream(line + b'\n{"jsonrpc":"2.0","method":"_y"}\n', size)
        begin = time.monotonic()
        connection = acp.Connection(stream, stream, lambda *message, got=got: got.put(message)).start()
        method, found = got.get(timeout=WAIT)
        took.append(time.monotonic() - begin)
        assert method == "_x" and found == params
        assert got.get(timeout=WAIT) == ("_y", {})
        stream.release.set()
        connection.close()
    assert took[1] < 8 * 4 * took[0] + 0.5  # twice the bytes would take four times as long, were it quadratic


@pytest.mark.parametrize("data", [
    b'\xef\xbb\xbf{"jsonrpc":"2.0","method":"_x","params":{}}\n', b'{"jsonrpc":"2.0","method":"_x"}\r\n',
    b'\n\r\n  \n{"jsonrpc":"2.0","method":"_x"}\n', b'{"jsonrpc":"2.0","method":"_x"}',
    b'  {"method":"_x","params":{},"jsonrpc":"2.0"}  \n'])
def test_odd_but_readable_lines_are_tolerated(data):
    got = queue.Queue()
    stream = Stream(data, 4096)
    stream.release.set()
    connection = acp.Connection(stream, stream, lambda *message: got.put(message)).start()
    assert got.get(timeout=WAIT) == ("_x", {})
    connection.close()
    assert not stream.written


@BOTH
def test_noise_around_the_frames_of_an_agent_disturbs_nothing(
        fake_agent, version, tmp_path, caplog, no_stray_traceback):
    command = fake_agent("""
        hello(version)
        new()
        request = prompt(version)
        write(b"Welcome to secret agent 7\\n", b"\\x1b[31msecret red\\x1b[0m\\n", b"\\n", b"   \\n",
              b"\\xef\\xbb\\xbf", chunk("s", "one ", "m"),
              json.dumps(chunk("s", "two", "m")).encode() + b"\\r\\n")
        last = {"jsonrpc": "2.0", "id": request["id"], "result": {"stopReason": "end_turn"}}
        if version == 2:
            last = state("s", "idle", stopReason="end_turn")
        write(json.dumps(last).encode())
        os.close(1)
        got = sys.stdin.buffer.read()
        open(report, "wb").write(got)
    """, version=version, report=str(tmp_path / "report"))
    with acp.Client(command, version=version) as client:
        turn = client.new_session("/").prompt("hi")
        assert turn.wait(WAIT) == "end_turn" and turn.text == "one two"
    assert (tmp_path / "report").read_bytes() == b""  # nothing went back because of the noise
    assert len(warnings_of(caplog)) == 2 and "secret" not in caplog.text


# ---- envelopes: what is no message, and ids -------------------------------------------------------------------------


NOT_MESSAGES = [
    b'"hi"', b"42", b"null", b"true", b"[]", b'{"level": "info", "id": ID}', b'{"jsonrpc": "2.0", "id": ID}']
NOT_JSON = [
    b'{"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": {"sessionUpdate": '
    b'"agent_message_chunk", "content": {"type": "text", "text": "secret \xff\xfe"}}}}',
    b'{"jsonrpc": "2.0", "id": ID, "result": {"secret": NaN}}', b'{"jsonrpc": "2.0", "id": ID, "result": {"secret": ',
    b"[" * 100_000]


@BOTH
def test_what_is_no_message_is_not_taken_for_the_agents_response_or_update(scripted_agent, version, caplog):
    agent = scripted_agent(recording("""
        hello(version)
        request = read()
        write(*[line.replace(b"ID", json.dumps(request["id"]).encode()) + b"\\n" for line in lines])
        answer(request, {"real": 1})
    """), version=version, lines=NOT_MESSAGES + NOT_JSON)
    updates = []
    with acp.Client(agent.socket, version=version, on_update=lambda session, update: updates.append(update)) as client:
        assert client.request("_x", timeout=WAIT) == {"real": 1}
        assert client.request("_seen", timeout=WAIT) == {"seen": []}
    assert len(warnings_of(caplog)) == len(NOT_MESSAGES + NOT_JSON) and "secret" not in caplog.text
    assert updates == []


@BOTH
def test_json_that_is_no_message_is_not_taken_for_the_clients_response(raw, version):
    wire = raw(fault_agent(extension=lambda self, peer, method, params: peer.request("_back")))
    wire.start(version)
    wire.request("_x", id=1)
    back = wire.asked("_back")
    own = json.dumps(back["id"]).encode()
    wire.send(*[line.replace(b"ID", own) + b"\n" for line in NOT_MESSAGES])
    errors = [wire.next() for _ in NOT_MESSAGES]
    assert [(each["id"], each["error"]["code"]) for each in errors] == [(None, -32600)] * 5 + [(back["id"], -32600)] * 2
    wire.answer(back, {"real": 1})
    assert wire.next() == {"jsonrpc": "2.0", "id": 1, "result": {"real": 1}}


SECRET = "sekret-7f3a"


LIST_REQUEST = {"jsonrpc": "2.0", "id": 5, "method": "session/list", "params": {}}
HIDDEN_PAYLOAD = "payload-of-the-line"

# A line, the code of its one answer, the id of that.
ENVELOPES = [
    ({**LIST_REQUEST, "jsonrpc": "1.0"}, -32600, 5), ({**LIST_REQUEST, "jsonrpc": 2.0, "id": "a"}, -32600, "a"),
    ({"id": 6, "method": "session/list"}, -32600, 6), ({"id": 1.5, "method": "session/list"}, -32600, None),
    ({"jsonrpc": "2.0", "id": 7}, -32600, 7), ({"jsonrpc": "2.0", "id": "b", "params": {}}, -32600, "b"),
    ({"jsonrpc": "2.0", "id": {}}, -32600, None), ({"jsonrpc": "2.0", "id": True}, -32600, None),
    *[({**LIST_REQUEST, "id": bad}, -32600, None) for bad in (True, False, {}, {"a": 1}, [], [5], 1.5, -0.5)],
    *[({**LIST_REQUEST, "method": bad}, -32600, 5) for bad in (3, None, ["session/list"], True)],
    *[({**LIST_REQUEST, "params": bad}, -32602, 5) for bad in ([], [{}], 3, "x", True, False, 0, "")],
    ([], -32600, None), ([LIST_REQUEST], -32600, None), ([LIST_REQUEST, LIST_REQUEST, 3], -32600, None),
    ("hi", -32600, None), (42, -32600, None), (None, -32600, None), (True, -32600, None),
    (b"{", -32700, None), (b"hello " + HIDDEN_PAYLOAD.encode(), -32700, None),
        (b'{"jsonrpc":"2.0","id":5,"x":NaN}', -32700, None),
    *[(b'{"jsonrpc":"2.0","id":5,"method":"_x","params":{"x":%s}}' % word, -32700, None)
      for word in (b"Infinity", b"-Infinity", b'"\xed\xa0\x80"')],
    (b'{"jsonrpc":"2.0","id":5,"method":"_x\xc3"}', -32700, None), (b"[" * 100_000, -32700, None),
    (b'{"jsonrpc":"2.0","id":5,"method":"session/list","params":{"x":"\xff\xfe"}}', -32700, None),
    (b'{"jsonrpc":"2.0","id":5}{"jsonrpc":"2.0","id":6}', -32700, None),
]


@BOTH
@pytest.mark.parametrize("line, code, id", ENVELOPES, ids=[str(index) for index in range(len(ENVELOPES))])
def test_a_line_that_is_no_request_gets_one_error_and_costs_nothing_else(raw, version, line, code, id, caplog):
    caplog.set_level(logging.DEBUG, "acp")
    wire = raw(speaking(1, 2))
    wire.start(version)
    if isinstance(line, dict):
        line = {**line, "_meta": HIDDEN_PAYLOAD}
    wire.send(line if isinstance(line, bytes) else json.dumps(line).encode(), b"\n", {**LIST_REQUEST, "id": 9})
    first, second = sorted((wire.next(), wire.next()), key=lambda message: "result" in message)
    assert (first["error"]["code"], first["id"], type(first["id"])) == (code, id, type(id))
    assert set(first["error"]) == {"code", "message"} and first["jsonrpc"] == "2.0"
    assert second["id"] == 9 and "result" in second
    before = len(wire.seen)
    wire.call("session/list")
    assert len(wire.seen) == before + 1, "the line was answered twice"
    assert HIDDEN_PAYLOAD not in caplog.text and HIDDEN_PAYLOAD not in json.dumps(first)


@BOTH
def test_a_client_only_logs_such_lines_and_nothing_goes_back(scripted_agent, version, caplog):
    lines = [line if isinstance(line, bytes) else json.dumps(
        {**line, "_meta": HIDDEN_PAYLOAD} if isinstance(line, dict) else line).encode()
             for line, code, _ in ENVELOPES if code != -32602]
    agent = scripted_agent("""
        hello(V)
        request = read()
        junk(b"\\n".join(lines) + b"\\n")
        answer(request, "yes")
        read()
    """, V=version, lines=lines)
    with acp.Client(agent.socket, version=version) as client:
        assert client.request("_acme.com/x", {}) == "yes"
    assert agent.methods() == ["initialize", "_acme.com/x"]
    assert len(caplog.records) == len(lines) and HIDDEN_PAYLOAD not in caplog.text


GOOD_IDS = ["abc", "1", 1, 0, "", -5, 2 ** 53 + 1, 2 ** 63, -10 ** 30, 10 ** 40, "ä\u2028\n", "x" * 5000,
            "00000000-0000-4000-8000-000000000000"]
BAD_IDS = [True, False, 1.5, 1.0, {}, []]


@BOTH
def test_an_agent_echoes_every_id_with_its_type(raw, version):
    wire = raw(fault_agent(extension=lambda self, peer, method, params: params))
    wire.start(version)
    for id in GOOD_IDS:
        wire.request("_echo", {"own": id}, id=id)
        answer = wire.next()
        assert as_json([answer["id"], answer["result"]["own"]]) == as_json([id, id])
        wire.request("session/prompt", {}, id=id)  # an error answer echoes it too
        answer = wire.next()
        assert answer["error"]["code"] == -32602 and as_json([answer["id"]]) == as_json([id])
        wire.send({"method": "session/list", "jsonrpc": "2.0", "id": id})  # wherever it stands, and without params
        answer = wire.next()
        assert len(answer["result"]["sessions"]) == 1 and as_json([answer["id"]]) == as_json([id])
    assert len(wire.seen) == 2 + 3 * len(GOOD_IDS)


@BOTH
def test_ids_that_python_takes_for_equal_stay_apart_in_flight(raw, version):
    both = threading.Barrier(2)

    def extension(self, peer, method, params):
        both.wait(WAIT)
        return params

    wire = raw(fault_agent(extension=extension))
    wire.start(version)
    wire.request("_echo", {"own": 1}, id=1)
    wire.request("_echo", {"own": "1"}, id="1")
    answers = [wire.next(), wire.next()]
    assert sorted(as_json(m["id"] for m in answers)) == sorted(as_json([1, "1"]))
    assert all(as_json([m["id"]]) == as_json([m["result"]["own"]]) for m in answers)


@BOTH
def test_an_id_of_a_wrong_type_is_refused_with_a_null_id(raw, version):
    called = []
    wire = raw(fault_agent(extension=lambda self, peer, method, params: called.append(method)))
    wire.start(version)
    for id in BAD_IDS + [None] * (version == 2):
        wire.send({"jsonrpc": "2.0", "id": id, "method": "_x", "params": {}})
        answer = wire.next()
        assert answer["error"]["code"] == -32600 and answer["id"] is None, id
    assert called == []


@BOTH
def test_a_client_echoes_every_id_with_its_type(scripted_agent, version):
    agent = scripted_agent(recording("""
        hello(version)
        for id in ids:
            write({"method": "_echo", "params": {"own": id}, "jsonrpc": "2.0", "id": id})
    """), version=version, ids=BAD_IDS + GOOD_IDS + [None] * (version == 1))
    with acp.Client(agent.socket, version=version, extension=lambda method, params: params) as client:
        seen, wanted = [], GOOD_IDS + [None] * (version == 1)
        eventually(lambda: len(seen) >= len(wanted) or seen.extend(client.request("_seen")["seen"]))
        assert sorted(as_json(m["id"] for m in seen)) == sorted(as_json(wanted))
        assert all(as_json([m["id"]]) == as_json([m["result"]["own"]]) for m in seen)


def test_a_null_id_is_served_on_version_1_and_refused_on_version_2(raw):
    wire = raw(speaking(1, 2))
    wire.start(1)
    wire.send({"jsonrpc": "2.0", "id": None, "method": "session/list"})
    answer = wire.next()
    assert answer["id"] is None and len(answer["result"]["sessions"]) == 1
    wire = raw(speaking(1, 2))
    wire.start(2)
    wire.send({"jsonrpc": "2.0", "id": None, "method": "session/list"})
    answer = wire.next()
    assert answer["id"] is None and answer["error"]["code"] == -32600
    wire.nothing(0.1)


ORPHANS = [  # responses that no call waits for; ID is that of a call that was answered
    b'{"jsonrpc": "2.0", "id": 99999, "result": {"secret": 1}}',
    b'{"jsonrpc": "2.0", "id": ID, "result": {"secret": 1}}',
    b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "secret"}}',
    b'{"jsonrpc": "2.0", "id": "ID", "error": {"code": -1, "message": "secret"}}',
    b'{"jsonrpc": "2.0", "id": [], "result": {}}',
    b'{"jsonrpc": "2.0", "id": {}, "result": {}}',
    b'{"jsonrpc": "2.0", "id": {"token": "secret"}, "result": {}}',
    b'{"jsonrpc": "2.0", "id": ["secret"], "result": {}}',
    b'{"jsonrpc": "2.0", "id": "secret", "result": {}}',
    b'{"jsonrpc": "2.0", "id": 99999, "result": {}, "error": {"code": -1, "message": "both"}}',
    b'{"jsonrpc": "2.0", "result": {}}',
]


@BOTH
def test_a_client_ignores_responses_that_no_call_waits_for(scripted_agent, version, caplog):
    agent = scripted_agent(recording("""
        hello(version)
        new()
        request = prompt(version)
        for orphan in orphans:
            write(orphan.replace(b"ID", json.dumps(request["id"] - 1).encode()) + b"\\n")
        write(chunk("s", "text", "m"))
        end(version, request)
    """), version=version, orphans=ORPHANS)
    with acp.Client(agent.socket, version=version) as client:
        assert client.new_session("/").ask("hi", timeout=WAIT) == "text"
        assert client.request("_seen") == {"seen": []}
    assert len(warnings_of(caplog)) == len(ORPHANS) and "secret" not in caplog.text


@BOTH
def test_an_agent_ignores_responses_that_no_call_waits_for(raw, version, caplog):
    wire = raw(fault_agent(extension=lambda self, peer, method, params: peer.request("_back")))
    wire.start(version)
    wire.request("_x", id=1)
    back = wire.asked("_back")
    wire.answer(back, {"first": 1})
    wire.response(1)
    wire.send(*[orphan.replace(b"ID", json.dumps(back["id"]).encode()) + b"\n" for orphan in ORPHANS])
    wire.nothing(0.1)
    wire.request("_x", id=2)
    wire.answer(wire.asked("_back"), {"second": 2})
    assert wire.response(2)["result"] == {"second": 2}
    assert len(warnings_of(caplog)) == len(ORPHANS) and "secret" not in caplog.text


@BOTH
def test_an_answer_whose_id_has_another_type_is_not_the_answer(scripted_agent, version):
    agent = scripted_agent("""
        hello(version)
        request = read()
        number = request["id"]
        for wrong in (str(number), float(number), number == 1 or [number], {"id": number}):
            write({"jsonrpc": "2.0", "id": wrong, "result": {"wrong": 1}})
        write(b'{"jsonrpc": "2.0", "id": true, "result": {"wrong": 1}}\\n')
        answer(request, {"right": 1})
        read()
    """, version=version)
    with acp.Client(agent.socket, version=version) as client:
        assert client.request("_x", timeout=WAIT) == {"right": 1}


@BOTH
def test_a_malformed_response_fails_the_call_that_waits_for_it(scripted_agent, version):
    responses = [{"result": {}, "error": {"code": -1, "message": "both"}}, {"error": "text"},
                 {"error": {"message": "no code"}}]
    agent = scripted_agent("""
        hello(version)
        for response in responses:
            write({"jsonrpc": "2.0", "id": read()["id"], **response})
        answer(read(), {"next": 1})
        read()
    """, version=version, responses=responses)
    with acp.Client(agent.socket, version=version) as client:
        for _ in responses:
            with within(SOON), pytest.raises(acp.Error, match="_x") as caught:
                client.request("_x", timeout=WAIT)
            assert not isinstance(caught.value, (acp.RequestError, acp.Timeout, acp.ConnectionClosed))
        assert client.request("_y", timeout=WAIT) == {"next": 1}


# ---- requests: one answer each, and errors --------------------------------------------------------------------------

def test_each_request_gets_exactly_one_answer_and_a_notification_none(raw):
    errors = [ValueError("x"), SystemExit(3), KeyboardInterrupt(), acp.RequestError(7, "x")]

    class Any(Slow):
        def extension(self, peer, method, params):
            if "raise" in params:
                raise errors[params["raise"]]
            return params.get("result")

        def extension_notification(self, peer, method, params):
            raise ValueError("nobody is told")

    agent = Any()
    agent.gate.set()
    wire = raw(agent)
    session = wire.start()
    random.seed(7)
    ids, messages = [], []
    for id in itertools.chain(range(60), map(str, range(60)), [None, "", -5, 2 ** 53 + 1, 10 ** 30]):
        method, params = random.choice([
            ("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "x"}]}),
            ("session/prompt", {}), ("session/list", {}), ("_any", {}), ("_any", {"raise": 0}), ("_any", {"raise": 1}),
            ("_any", {"raise": 2}), ("_any", {"raise": 3}), ("_any", {"result": [1]}),
            ("session/load", {"sessionId": "x", "cwd": "/"}),
            ("session/close", {"sessionId": "unknown"}), ("session/new", {"cwd": "relative"}), ("session/cancel", {})])
        ids.append(id)
        messages.append({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        messages.append({"jsonrpc": "2.0", "method": random.choice([method, "_event", "unknown/event"]), "params": {}})
        if random.random() < 0.3:
            messages.append({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": id}})
    wire.send(*messages)
    answered = []
    while len(answered) < len(ids):
        message = wire.next()
        if "method" not in message:
            assert ("result" in message) != ("error" in message)
            answered.append(message["id"])
    assert sorted(map(repr, answered)) == sorted(map(repr, ids))
    wire.nothing(0.06)


HOOK_EXCEPTIONS = [
    ValueError("/secret/path"), OSError(2, "secret", "/secret/path"), acp.Cancelled("secret"), SystemExit("secret"),
    KeyboardInterrupt("secret"), GeneratorExit("secret"), StopIteration("secret"), RecursionError("secret"),
    AssertionError("secret"), acp.ConnectionClosed("secret")]
BY_ITS_KIND = {"ids": lambda error: type(error).__name__}


@BOTH
@pytest.mark.parametrize("error", HOOK_EXCEPTIONS, **BY_ITS_KIND)
def test_what_a_hook_raises_becomes_one_error_without_details(raw, version, error):
    def extension(self, peer, method, params):
        if method == "_fail":
            raise error
        return {}

    wire = raw(fault_agent(extension=extension))
    wire.start(version)
    answer = wire.response(wire.request("_fail"))
    assert answer["error"]["code"] == -32603 and "_fail" in answer["error"]["message"]
    assert "secret" not in json.dumps(answer) and "Traceback" not in json.dumps(answer)
    wire.nothing(0.03)
    assert wire.call("_works") == {}


@BOTH
@pytest.mark.parametrize("error", HOOK_EXCEPTIONS, **BY_ITS_KIND)
def test_a_turn_whose_handler_raises_fails_and_the_session_goes_on(raw, version, error):
    def prompt(turn):
        if turn.text == "fail":
            turn.say("begun")
            raise error

    wire = raw(fault_agent(prompt))
    session = wire.start(version)
    id = wire.prompt(session, "fail")
    if version == 1:
        failure = wire.response(id)["error"]
    else:
        assert wire.turn_end(2, id) == "error"
        failure = wire.updates()[-1]["error"]
    assert failure["code"] == -32603 and "secret" not in json.dumps(failure) and "Traceback" not in json.dumps(failure)
    assert texts_of(wire.updates()) == ["begun"]
    assert wire.turn_end(version, wire.prompt(session)) == "end_turn"


HOOK_ERRORS = [  # what a handler raises, and the error object that goes out
    (acp.RequestError(12, "mine", {"a": [None, 1]}), {"code": 12, "message": "mine", "data": {"a": [None, 1]}}),
    (acp.RequestError(-5, "no data"), {"code": -5, "message": "no data"}),
    (acp.RequestError(7, "", "text"), {"code": 7, "message": "", "data": "text"}),
    (acp.RequestError(7, "falsy", 0), {"code": 7, "message": "falsy", "data": 0}),
    (acp.AuthRequired("log in", {"why": 1}), {"code": -32000, "message": "log in", "data": {"why": 1}}),
    (acp.NotFound("gone"), {"code": -32002, "message": "gone"}),
    (acp.InvalidParams("bad"), {"code": -32602, "message": "bad"}),
]


@BOTH
@pytest.mark.parametrize("error,wire_error", HOOK_ERRORS)
def test_a_request_error_of_a_hook_is_the_answer_unchanged(raw, version, error, wire_error):
    def fail(*_):
        raise error

    wire = raw(fault_agent(fail, extension=fail, new_session=lambda self, session: session.cwd == "/no" and fail()))
    session = wire.start(version)
    assert wire.refused("_x") == wire_error
    assert wire.refused("session/new", {"cwd": "/no", "mcpServers": []}) == wire_error
    id = wire.prompt(session)
    if version == 1:
        assert wire.response(id)["error"] == wire_error
    else:
        assert wire.turn_end(2, id) == "error" and wire.updates()[-1]["error"] == wire_error


@BOTH
def test_error_data_that_is_not_json_still_gives_one_answer(raw, version):
    def extension(self, peer, method, params):
        raise acp.RequestError(1, "no", {"value": object()})

    def prompt(turn):
        if turn.text != "fine":
            raise acp.RequestError(1, "no", {"value": object()})

    wire = raw(fault_agent(prompt, extension=extension))
    session = wire.start(version)
    assert wire.refused("_x")["code"] in (1, -32603)
    id = wire.prompt(session)
    if version == 1:
        assert "error" in wire.response(id)
    else:
        assert wire.turn_end(2, id) == "error"
    wire.nothing(0.05)
    assert wire.turn_end(version, wire.prompt(session, "fine")) == "end_turn"


@BOTH
@pytest.mark.parametrize("result", [object(), float("nan"), {"a": {1, 2}}], ids=["object", "nan", "set"])
def test_a_result_that_is_not_json_gives_one_error(raw, version, result):
    wire = raw(fault_agent(extension=lambda self, peer, method, params: result if method == "_bad" else {}))
    wire.start(version)
    assert wire.refused("_bad")["code"] == -32603
    wire.nothing(0.03)
    assert wire.call("_good") == {}


WRONG_PARAMS = [  # a method, its params beside the session, and what the message names
    ("session/prompt", {"prompt": [{"type": "text", "text": 3}]}, "params.prompt[0].text: expected a string, got 3"),
    ("session/prompt", {"prompt": "hi"}, "params.prompt: "),
    ("session/prompt", {"prompt": [{"text": "hi"}]}, "params.prompt[0]"),
    ("session/prompt", {}, "params.prompt: "),
    ("session/new", {"cwd": 7, "mcpServers": []}, "params.cwd: expected a string, got 7"),
    ("session/new", {"mcpServers": []}, "params.cwd: "),
    ("session/new", {"cwd": "relative", "mcpServers": []}, "params.cwd: "),
    ("session/list", {"cursor": 5}, "params.cursor: expected a string, got 5"),
    ("session/close", {"sessionId": None}, "params.sessionId: expected a string, got null"),
    ("session/set_config_option", {"configId": [], "value": "a"}, "params.configId: expected a string, got an array"),
]


@BOTH
@pytest.mark.parametrize("method,params,named", WRONG_PARAMS)
def test_wrong_params_are_refused_by_the_name_of_their_place(raw, version, method, params, named):
    ran = []
    wire = raw(fault_agent(ran.append, new_session=lambda self, session: ran.append(session.cwd)))
    session = wire.start(version)
    error = wire.refused(method, {"sessionId": session, **params})
    assert error["code"] == -32602 and named in error["message"]
    assert ran == ["/"]
    assert wire.turn_end(version, wire.prompt(session)) == "end_turn"


@BOTH
def test_the_clients_error_does_not_silently_become_the_agents_answer(raw, version):
    wire = raw(fault_agent(lambda turn: turn.session.peer.request("_back"),
                           extension=lambda self, peer, method, params: peer.request("_back")))
    session = wire.start(version)
    for send in (lambda: wire.request("_x"), lambda: wire.prompt(session)):
        id = send()
        back = wire.asked("_back")
        wire.send({"jsonrpc": "2.0", "id": back["id"], "error": {"code": -32000, "message": "locked", "data": "key"}})
        wire.until(lambda m: "error" in m or "error" in m.get("params", {}).get("update", {}))
        error = wire.seen[-1].get("error") or wire.updates()[-1]["error"]
        assert error["code"] == -32603 and "_back" in error["message"] and "data" not in error
        assert "method" in wire.seen[-1] or wire.seen[-1]["id"] == id


@BOTH
def test_the_callers_exception_has_the_code_message_and_data(scripted_agent, version):
    agent = scripted_agent("""
        hello(version)
        for data in ({"a": [1]}, {"a": 0}, ["a", None], "text", None):
            error(read(), 77, "no way", data=data)
        error(read(), -5)
        for code in (-32601, -32602, -32800, -32000, -32002, -32022):
            error(read(), code, "known", data={"code": code})
        read()
    """, version=version)
    with acp.Client(agent.socket, version=version) as client:
        for data in ({"a": [1]}, {"a": 0}, ["a", None], "text", None):
            with pytest.raises(acp.RequestError, match="_x.*77.*no way") as caught:
                client.request("_x")
            assert (caught.value.code, caught.value.message, caught.value.data) == (77, "no way", data)
        with pytest.raises(acp.RequestError) as caught:
            client.request("_x")
        assert (caught.value.code, caught.value.message, caught.value.data) == (-5, "no", None)
        for kind in (acp.MethodNotFound, acp.InvalidParams, acp.RequestCancelled, acp.AuthRequired, acp.NotFound,
                     acp.UnsupportedVersion):
            with pytest.raises(kind) as caught:
                client.request("_x")
            assert caught.value.data == {"code": caught.value.code} and caught.value.message == "known"


@BOTH
def test_what_a_clients_callback_raises_becomes_one_error(scripted_agent, version, no_stray_traceback):
    raised = HOOK_EXCEPTIONS + [acp.RequestError(9, "mine", {"d": 1})]
    agent = scripted_agent(recording("""
        hello(version)
        request, seen = read(), []
        for number in range(count):
            for method in ("_fail", "_work"):
                write({"jsonrpc": "2.0", "id": method + str(number), "method": method, "params": {"number": number}})
                seen.append(read())
        answer(request, {"sessionId": "s"})
    """), version=version, count=len(raised))

    def extension(method, params):
        if method == "_fail":
            raise raised[params["number"]]

    with acp.Client(agent.socket, version=version, extension=extension) as client:
        client.new_session("/", timeout=WAIT)
        seen = client.request("_seen", timeout=WAIT)["seen"]
    assert [message["id"] for message in seen[::2]] == [f"_fail{number}" for number in range(len(raised))]
    assert seen[1::2] == [{"jsonrpc": "2.0", "id": f"_work{number}", "result": {}} for number in range(len(raised))]
    errors = [message["error"] for message in seen[::2]]
    assert errors.pop() == {"code": 9, "message": "mine", "data": {"d": 1}}
    assert {error["code"] for error in errors} == {-32603} and "secret" not in json.dumps(errors)


def raising(error):
    def handler(method, params):
        raise error
    return handler


@pytest.mark.parametrize("error, code, message, data", [
    (acp.RequestError(-12, "mine", {"a": [1, None]}), -12, "mine", {"a": [1, None]}),
    (acp.RequestError(7, "mine", "text"), 7, "mine", "text"),
    (acp.AuthRequired("log in", {"how": 1}), -32000, "log in", {"how": 1}),
    (acp.NotFound("gone"), -32002, "gone", None), (acp.InvalidParams("place"), -32602, "place", None),
    (acp.RequestCancelled("stop"), -32800, "stop", None)])
def test_a_request_error_raised_by_a_handler_is_its_answer(lines_to, error, code, message, data):
    connection, wire = lines_to(raising(error))
    answer = wire.refused("_x")
    assert answer == {"code": code, "message": message, **({} if data is None else {"data": data})}
    calling = Background(connection.request, "_y")
    wire.send({"jsonrpc": "2.0", "id": wire.asked("_y")["id"], "error": answer})
    with pytest.raises(type(error)) as caught:
        calling.result()
    assert (caught.value.code, caught.value.message, caught.value.data) == (code, message, data)
    assert "_y" in str(caught.value) and "peer" in str(caught.value)


def test_messages_of_errors_say_who_failed_with_method_and_id(agent_end):
    wire = agent_end()
    calling = Background(wire.client.request, "_slow", timeout=0.1)
    request = wire.asked("_slow")
    with pytest.raises(acp.Timeout, match=f"_slow.*{request['id']}"):
        calling.result()
    calling = Background(wire.client.request, "_open")
    request = wire.asked("_open")
    wire.socket.shutdown(socket.SHUT_RDWR)
    with pytest.raises(acp.ConnectionClosed, match=f"_open.*{request['id']}"):
        calling.result()


@BOTH
def test_the_error_that_the_peer_answered_says_the_id_of_the_call(agent_end, version):
    wire = agent_end(version)
    for method, call in (("_x", lambda: wire.client.request("_x")), ("session/prompt", lambda: wire.session.ask("go"))):
        calling = Background(call)
        request = wire.asked(method)
        wire.send({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32002, "message": "gone"}})
        with pytest.raises(acp.NotFound) as caught:
            calling.result()
        told = f"{method} (id {request['id']}): the peer answered with error -32002: gone"
        assert (str(caught.value), caught.value.method, caught.value.id) == (told, method, request["id"])
    for made in (acp.RequestError(-1, "mine"), acp.NotFound("mine")):
        assert (made.method, made.id, str(made)) == (None, None, f"mine ({made.code})")


def test_a_malformed_result_names_the_call_and_the_place(agent_end):
    wire = agent_end()
    calling = Background(wire.client.new_session, "/")
    wire.answer(wire.asked("session/new"), {"sessionId": 5})
    with pytest.raises(acp.Error, match="session/new.*sessionId"):
        calling.result()


# ---- methods that nobody serves, and those of a vendor --------------------------------------------------------------

UNKNOWN_NOTIFICATIONS = ["_vendor/x", "future/x", "$/y", "session/unheard_of"]


@BOTH
@pytest.mark.parametrize("fails", [False, True])
def test_a_notification_to_an_agent_is_never_answered(raw, version, fails):
    called = []

    def extension_notification(self, peer, method, params):
        called.append(method)
        raise ValueError("no")

    members = {"extension_notification": extension_notification} if fails else {}
    agent = fault_agent(say_request, **members)
    wire = raw(agent)
    session = wire.start(version)
    for method in UNKNOWN_NOTIFICATIONS:
        wire.notify(method, {"sessionId": session})
    prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "hi"}]}
    for method, params in (("session/prompt", prompt), ("session/new", {"cwd": "/", "mcpServers": []}),
                           ("initialize", greeting(version)), ("session/cancel", {}), ("session/cancel", prompt),
                           ("session/prompt", {"prompt": 7}), ("session/cancel", {"sessionId": 5})):
        wire.notify(method, params)
    wire.send({"jsonrpc": "2.0", "method": "_vendor/list", "params": [1]})
    if fails:
        eventually(lambda: len(called) == len(UNKNOWN_NOTIFICATIONS))
    wire.nothing(0.15)
    assert list(agent.sessions) == [session]
    assert wire.turn_end(version, wire.prompt(session)) == "end_turn"


@BOTH
@pytest.mark.parametrize("fails", [False, True])
def test_a_notification_to_a_client_is_never_answered(scripted_agent, version, fails, no_stray_traceback):
    known = [("session/request_permission", permission_params(version)),
             ("fs/read_text_file", {"sessionId": "s", "path": "/f"}),
             ("session/update", {"sessionId": "s"}), ("session/update", {}), ("elicitation/create", {}),
             ("elicitation/complete", {"elicitationId": "unheard of"})]
    agent = scripted_agent(recording("""
        hello(version)
        new()
        for method, params in notifications:
            write({"jsonrpc": "2.0", "method": method, "params": params})
        write({"jsonrpc": "2.0", "method": "_vendor/list", "params": [1]}, chunk("s", "last", "m"))
    """), version=version, notifications=[(method, {}) for method in UNKNOWN_NOTIFICATIONS] + known)
    called, asked, last = [], [], threading.Event()

    def extension_notification(method, params):
        called.append(method)
        raise ValueError("no")

    def on_update(session, update):
        last.set()
        raise ValueError("no")

    more = {"extension_notification": extension_notification} if fails else {}
    with acp.Client(agent.socket, version=version, permission=asked.append, on_update=on_update, **more) as client:
        session = client.new_session("/")
        assert last.wait(WAIT)
        if fails:
            eventually(lambda: called[:4] == UNKNOWN_NOTIFICATIONS)
        time.sleep(0.1)  # for what should not come
        assert client.request("_seen") == {"seen": []}
        assert session.state.messages["m"].text == "last" and asked == []


@BOTH
def test_a_client_refuses_requests_that_it_does_not_serve_at_once(scripted_agent, version):
    agent = scripted_agent("""
        hello(version)
        new()
        request = prompt(version)
        best = dict.fromkeys(methods, 9)
        for id, method in enumerate(methods * 4, 100):
            begin = time.monotonic()
            write({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
            got = read()
            best[method] = min(best[method], time.monotonic() - begin)
            assert got["id"] == id and got["error"]["code"] == -32601, got
            assert got["error"]["data"] == {"method": method}, got
        write(chunk("s", json.dumps(best), "m"))
        end(version, request)
        read()
    """, version=version,
        params={"sessionId": "s", "path": "/f", "content": "", "command": "ls", "terminalId": "t", "mode": "form",
                "message": "?", "requestedSchema": {"type": "object", "properties": {}}},
        methods=["_vendor/drain", "vendor/drain", "fs/read_text_file", "fs/write_text_file", "terminal/create",
                 "terminal/output", "elicitation/create", "session/prompt", "initialize"])
    with acp.Client(agent.socket, version=version) as client:
        best = json.loads(client.new_session("/").ask("hi", timeout=WAIT))
    assert len(best) == 9 and max(best.values()) < 0.1


@BOTH
def test_an_agent_refuses_requests_that_it_does_not_serve_at_once(raw, version):
    release = threading.Event()
    wire = raw(fault_agent(lambda turn: release.wait(WAIT)))
    session = wire.start(version)
    prompt = wire.prompt(session)  # a busy handler does not delay them
    for method in ("_vendor/drain", "vendor/drain", "fs/read_text_file", "terminal/create",
                   "session/request_permission", "session/fork", "auth/login" if version == 1 else "authenticate"):
        times = []
        for _ in range(4):
            begin = time.monotonic()
            error = wire.refused(method, {"sessionId": session})
            times.append(time.monotonic() - begin)
            assert error["code"] == -32601 and error["data"] == {"method": method}
        assert min(times) < 0.1
    release.set()
    assert wire.turn_end(version, prompt) == "end_turn"


VENDOR = ["vendor/plain", "_vendor/x", "session/fork", "$/vendor"]


@BOTH
def test_an_agent_with_extensions_serves_a_vendor_by_name(raw, version):
    notified = queue.Queue()

    class Extended(Taker):
        def extension(self, peer, method, params):
            return {"version": peer.version, "method": method, "params": params}

        def extension_notification(self, peer, method, params):
            notified.put((peer.version, method, params))

    wire = raw(Extended())
    wire.start(version)
    for method in VENDOR:
        assert wire.call(method, {"a": 1}) == {"version": version, "method": method, "params": {"a": 1}}
        wire.notify(method, {"b": 2})
        assert notified.get(timeout=WAIT) == (version, method, {"b": 2})
    wire.nothing(0.1)


@BOTH
@pytest.mark.parametrize("handled", [False, True])
def test_a_client_refuses_or_serves_a_vendor_by_name(scripted_agent, version, handled):
    agent = scripted_agent("""
        hello(V)
        for index, name in enumerate(names):
            write({"jsonrpc": "2.0", "method": name, "params": {"b": index}},
                  {"jsonrpc": "2.0", "id": index, "method": name, "params": {"a": index}})
            read()
        read()
    """, V=version, names=VENDOR)
    notified = []
    handlers = dict(extension=lambda method, params: [method, params],
                    extension_notification=lambda method, params: notified.append((method, params))) if handled else {}
    with acp.Client(agent.socket, version=version, **handlers):
        eventually(lambda: len(agent.seen) > len(VENDOR))
        eventually(lambda: len(notified) == (len(VENDOR) if handled else 0))
    assert notified == [(method, {"b": index}) for index, method in enumerate(VENDOR)] * handled
    for index, (method, answer) in enumerate(zip(VENDOR, agent.seen[1:])):
        assert answer["id"] == index
        if handled:
            assert answer["result"] == [method, {"a": index}]
        else:
            assert (answer["error"]["code"], answer["error"]["data"]) == (-32601, {"method": method})


# ---- calls: limits of time, and cancel ------------------------------------------------------------------------------

@pytest.mark.parametrize("late", [
    {"result": {"late": True}}, {"error": {"code": -32800, "message": "cancelled"}}], ids=str)
def test_a_callers_timeout_cancels_the_request_and_swallows_the_late_answer(agent_end, caplog, late):
    wire = agent_end()
    calling = Background(wire.client.request, "_slow", {"a": 1}, timeout=0.1)
    request = wire.asked("_slow")
    with within(SOON), pytest.raises(acp.Timeout):
        calling.result()
    assert wire.asked("$/cancel_request")["params"] == {"requestId": request["id"]}
    caplog.clear()
    wire.send({"jsonrpc": "2.0", "id": request["id"], **late})
    wire.settled()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    calling = Background(wire.client.request, "_quick")
    wire.answer(wire.asked("_quick"), {"ok": 1})
    assert calling.result() == {"ok": 1}


def test_an_agents_timeout_cancels_its_request_too(raw):
    class Calling(acp.Agent):
        def extension(self, peer, method, params):
            try:
                peer.request("_never", timeout=0.1)
            except acp.Timeout:
                return {"timeout": True}

    wire = raw(Calling())
    wire.start()
    id = wire.request("_call")
    asked = wire.asked("_never")
    assert wire.asked("$/cancel_request")["params"] == {"requestId": asked["id"]}
    assert wire.response(id)["result"] == {"timeout": True}


@BOTH
def test_a_cancel_of_a_request_that_has_begun_gives_one_answer(raw, version):
    begun, release = threading.Event(), threading.Event()

    def extension(self, peer, method, params):
        begun.set()
        assert release.wait(WAIT)
        return {"done": True}

    wire = raw(fault_agent(lambda turn: turn.wait(0.3 if version == 2 else WAIT), extension=extension))
    session = wire.start(version)
    slow = wire.request("_slow")
    assert begun.wait(WAIT)
    wire.notify("$/cancel_request", {"requestId": slow})
    release.set()
    answer = wire.response(slow)
    assert answer.get("result") == {"done": True} or answer["error"]["code"] == -32800
    prompt = wire.prompt(session)
    if version == 2:  # it has been answered on insertion: too late
        wire.response(prompt)
    wire.notify("$/cancel_request", {"requestId": prompt})
    if version == 2:
        assert wire.turn_end(2, prompt) == "end_turn"
    else:
        answer = wire.response(prompt)
        assert answer.get("result") == {"stopReason": "cancelled"} or answer["error"]["code"] == -32800
    wire.nothing(0.1)


def test_a_cancelled_request_behind_initialize_does_not_begin(raw):
    release, made = threading.Event(), []

    class Slow(acp.Agent):
        def initialize(self, peer):
            assert release.wait(WAIT)

        def new_session(self, session):
            made.append(session.cwd)

    wire = raw(Slow())
    wire.request("initialize", greeting(1), id=1)
    wire.request("session/new", {"cwd": "/two", "mcpServers": []}, id=2)
    wire.request("session/new", {"cwd": "/three", "mcpServers": []}, id=3)
    wire.notify("$/cancel_request", {"requestId": "3"})
    wire.notify("$/cancel_request", {"requestId": 2})
    wire.send(b"not json\n")
    wire.until(lambda m: m.get("id", 0) is None)  # so all of it has been read
    release.set()
    eventually(lambda: {1, 2, 3} <= {m["id"] for m in wire.seen} or wire.next() is None)
    wire.nothing(0.1)
    answers = {m["id"]: m for m in wire.seen}
    assert len(wire.seen) == 4  # one of them to the line that is not JSON
    assert answers[2]["error"]["code"] == -32800 and "result" in answers[3] and made == ["/three"]


def test_a_cancelled_prompt_of_version_1_ends_once_and_ids_match_by_type(raw):
    wire = raw(Waiting())
    session = wire.start()
    wire.send(prompt_message(1, session, "go"))
    for wrong in ("1", True, 1.0, 2, None, [1]):
        wire.notify("$/cancel_request", {"requestId": wrong})
    wire.nothing(0.06)
    wire.notify("$/cancel_request", {"requestId": 1})
    wire.notify("$/cancel_request", {"requestId": 1})
    answer = wire.response(1)
    assert answer.get("error", {}).get("code") == -32800 or answer["result"] == {"stopReason": "cancelled"}
    wire.notify("$/cancel_request", {"requestId": 1})
    wire.nothing(0.06)


def test_a_request_that_was_cancelled_before_it_began_does_not_begin(raw):
    agent = Slow()
    wire = raw(agent)
    session = wire.start()
    close, prompt = next(wire.ids), next(wire.ids)
    wire.send({"jsonrpc": "2.0", "id": close, "method": "session/load", "params": {
        "sessionId": "x", "cwd": "/", "mcpServers": []}}, prompt_message(prompt, "x", "go"))
    wire.notify("$/cancel_request", {"requestId": prompt})
    wire.call("session/list")  # the cancel was read
    eventually(lambda: agent.calls)
    agent.gate.set()
    assert "result" in wire.response(close)
    answer = wire.response(prompt)
    assert answer.get("error", {}).get("code") == -32800 or answer["result"]["stopReason"] == "cancelled"
    assert agent.calls == ["resume"] and session


# ---- the end --------------------------------------------------------------------------------------------------------

@BOTH
def test_calls_of_a_handler_fail_at_once_when_the_client_is_gone(raw, version):
    raised = queue.Queue()

    def prompt(turn):
        for _ in range(2):  # the one that waits, and a new one
            try:
                turn.session.request("_never")
            except acp.Error as error:
                raised.put(error)

    wire = raw(fault_agent(prompt))
    session = wire.start(version)
    wire.prompt(session)
    wire.asked("_never")
    with within(SOON):
        wire.socket.shutdown(socket.SHUT_WR)
        assert [type(raised.get(timeout=WAIT)) for _ in range(2)] == [acp.ConnectionClosed] * 2


@pytest.mark.parametrize("kind", ["socket", "buffered pipes", "unbuffered pipes", "raw pipes"])
def test_a_connection_serves_on_any_binary_streams(kind):
    if kind == "socket":
        one, other = socket.socketpair()
        pairs = (one, one), (other, other)
    else:
        (r1, w1), (r2, w2) = os.pipe(), os.pipe()
        opening = {"buffered pipes": lambda fd, mode: os.fdopen(fd, mode + "b"),
                   "unbuffered pipes": lambda fd, mode: os.fdopen(fd, mode + "b", buffering=0),
                   "raw pipes": lambda fd, mode: io.FileIO(fd, mode)}[kind]
        pairs = (opening(r1, "r"), opening(w2, "w")), (opening(r2, "r"), opening(w1, "w"))
    ends = [acp.Connection(reader, writer, lambda method, params: params).start() for reader, writer in pairs]
    params = {"text": "é\u2028" * 100_000}
    with within(5):
        assert [end.request("_echo", params, timeout=5) for end in ends] == [params, params]
    for end in ends:
        with within(3):
            end.close()
    if kind == "socket":
        assert pairs[0][0].fileno() >= 0 and pairs[0][0].recv(1) == b""  # shut down
    for _, writer in pairs:
        writer.close()


def test_a_client_and_an_agent_on_pairs_of_streams_leave_stdout_alone():
    stdout, seen = sys.stdout, []

    class Looking(acp.Agent):
        def prompt(self, turn):
            seen.append(sys.stdout)

    (r1, w1), (r2, w2) = os.pipe(), os.pipe()
    serving = Background(Looking().run, os.fdopen(r1, "rb"), os.fdopen(w2, "wb"))
    writer = os.fdopen(w1, "wb")
    with acp.Client((os.fdopen(r2, "rb"), writer)) as client:
        client.new_session("/").ask("go")
    assert seen == [stdout]
    writer.close()
    serving.result()


def test_a_text_stream_is_refused():
    with pytest.raises(TypeError):
        acp.Connection(io.StringIO(), io.BytesIO())
    with pytest.raises(TypeError):
        acp.Connection(io.BytesIO(), io.StringIO())


def test_close_returns_though_the_reader_cannot_be_woken():
    stream = Stream(b"", 1)
    connection = acp.Connection(stream, stream).start()
    calling = Background(connection.request, "_x")
    eventually(lambda: stream.written)
    with within(3):
        connection.close()
        connection.close()
    with pytest.raises(acp.ConnectionClosed):
        calling.result()
    with pytest.raises(acp.ConnectionClosed):
        connection.notify("_y")


def test_the_library_adds_no_log_handler():
    assert logging.getLogger("acp").handlers == []


@BOTH
def test_the_log_tells_methods_but_never_payloads(raw, caplog, version):
    caplog.set_level(logging.DEBUG, "acp")

    class Leaky(Asking):
        auth_methods = [acp.AuthMethodAgent("key", "Key")]

        def login(self, method_id):
            raise ValueError(SECRET)

    with acp.Client(Leaky(), version=version, permission=lambda request: SECRET, name=SECRET,
                    capabilities_meta={"k": SECRET}) as client:
        session = client.new_session("/" + SECRET, meta={"k": SECRET}, mcp_servers=[acp.McpServerStdio(
            "m", "/bin/m", [SECRET], [acp.EnvVariable("TOKEN", SECRET)])] if version == 1 else [])
        session.ask(SECRET)
        with pytest.raises(acp.RequestError):
            client.request("_unknown", {"k": SECRET})
        with pytest.raises(acp.RequestError):
            client.request("session/prompt", {"sessionId": SECRET})
    assert "session/prompt" in caplog.text
    assert SECRET not in "\n".join(record.getMessage() for record in caplog.records)


# ---- processes ------------------------------------------------------------------------------------------------------

@POSIX
@BOTH
def test_what_a_handler_starts_can_be_terminated(raw, version):
    class Starts(acp.Agent):
        versions = (1, 2)

        def prompt(self, turn):
            sleep = "print(flush=True); import time; time.sleep(60)"
            child = subprocess.Popen([sys.executable, "-I", "-S", "-c", sleep], stdout=subprocess.PIPE)
            child.stdout.readline()
            child.terminate()
            try:
                turn.say(str(child.wait(2)))
            finally:
                child.kill()
                child.wait()
                child.stdout.close()

    wire = raw(Starts())
    session = wire.start(version)
    assert wire.turn_end(version, wire.prompt(session)) == "end_turn"
    assert str(-signal.SIGTERM) in [text_update(update) for update in wire.updates()]


@POSIX
def test_the_exit_of_a_command_is_told_behind_its_last_output_however_slowly_that_is_taken(monkeypatch):
    shown, taking, gate, joins, spawn = [], threading.Event(), threading.Event(), [], acp._spawn

    def show(update):
        if isinstance(update, acp.TerminalOutputChunk):
            taking.set()
            assert gate.wait(WAIT)
        shown.append(update)

    def spawn_impatient(name, *work, **more):
        thread = spawn(name, *work, **more)
        if name == "terminal":  # whoever waits for the thread that reads waits for moments, not for half seconds
            join = thread.join
            thread.join = lambda timeout: joins.append(timeout) or join(0.005)
        return thread

    monkeypatch.setattr(acp, "_spawn", spawn_impatient)
    process = acp.CommandProcess(acp.CreateTerminalRequest("s", "sh", ["-c", "printf end; exit 3"]), show)
    process.begin()
    assert taking.wait(WAIT) and process.exited.wait(WAIT)
    eventually(lambda: len(joins) > 3 or process.ended.is_set())
    assert process.status is None and not process.ended.is_set()
    gate.set()
    assert process.ended.wait(WAIT)
    assert shown[1:] == [
        acp.TerminalOutputChunk(process.id, base64.b64encode(b"end").decode()),
        acp.TerminalUpdate(process.id, exit_status=acp.TerminalExitStatus(3), capabilities=None)]


@POSIX
def test_the_end_of_a_command_that_was_killed_waits_for_nobody_to_take_its_output():
    taking, gate = threading.Event(), threading.Event()

    def show(update):
        if isinstance(update, acp.TerminalOutputChunk):
            taking.set()
            gate.wait(WAIT)

    process = acp.CommandProcess(acp.CreateTerminalRequest("s", "sh", ["-c", "echo; exec sleep 300"]), show)
    process.begin()
    assert taking.wait(WAIT)
    process.kill()
    assert process.ended.wait(SOON) and process.status == acp.TerminalExitStatus(signal="SIGTERM")
    gate.set()


# == 8. Agent =========================================================================================================
# A `Raw` end drives an agent of ours: what it says, in which order, and how it ends.

# ---- run: the streams -----------------------------------------------------------------------------------------------

def test_prints_of_the_handler_its_loggers_and_its_children_go_to_stderr(agent_process):
    wire = agent_process("""
        import logging, os, subprocess, sys

        logging.basicConfig(stream=sys.stdout, level="INFO", format="stray %(message)s")

        class Noisy(acp.Agent):
            def prompt(self, turn):
                print("stray print", flush=True)
                logging.info("early logger")
                late = logging.StreamHandler(sys.stdout)
                late.emit(logging.makeLogRecord({"msg": "stray late logger"}))
                sys.__stdout__.write("stray original\\n")
                sys.__stdout__.flush()
                os.write(1, b"stray write\\n")
                subprocess.run([sys.executable, "-c", "print('stray child')"])
                turn.say("clean")

        before = sys.stdout
        Noisy().run()
        print("put back", sys.stdout is before, flush=True)
    """)
    session = wire.start()
    assert wire.turn_end(1, wire.prompt(session)) == "end_turn"
    assert texts_of(wire.updates()) == ["clean"]
    assert wire.end() == 0
    assert [wire.lines.get(timeout=WAIT) for _ in range(2)] == [b"put back True", None]
    stray = [line.rstrip() for line in wire.errors if line.startswith("stray")]
    assert sorted(stray) == sorted(["stray print", "stray early logger", "stray late logger", "stray original",
                                    "stray write", "stray child"])


@POSIX
def test_an_agent_that_was_left_takes_nothing_from_files_opened_later(agent_process):
    wire = agent_process("""
        import os, select, signal, sys, time

        class Leaving(acp.Agent):
            def extension(self, peer, method, params):
                os.kill(os.getpid(), signal.SIGUSR1)

        signal.signal(signal.SIGUSR1, lambda *_: sys.exit("leave"))
        try:
            Leaving().run()
        except SystemExit:
            pass
        pipes = [os.pipe() for _ in range(10)]
        print("left", flush=True)
        time.sleep(0.3)  # meanwhile the input that comes wakes the reader that was left behind
        for _, end in pipes:
            os.write(end, b"mine")
        time.sleep(0.1)
        print(sum(bool(select.select([begin], [], [], 0)[0]) for begin, _ in pipes), flush=True)
    """)
    wire.start()
    wire.request("_leave")
    eventually(lambda: wire.lines.get(timeout=WAIT) == b"left")
    wire.send(b"one\n")
    assert wire.lines.get(timeout=WAIT) == b"10"


def test_a_child_of_the_handler_has_no_part_in_the_agents_streams(agent_process):
    wire = agent_process("""
        import subprocess, sys, time

        CHILD = '''
        import os, stat, sys
        print(repr(sys.stdin.read()))
        for number in range(3, 100):
            try:
                if not stat.S_ISREG(os.fstat(number).st_mode):
                    print("inherited", number)
            except OSError:
                pass
        '''

        class Starting(acp.Agent):
            def prompt(self, turn):
                import textwrap
                done = subprocess.run([sys.executable, "-c", textwrap.dedent(CHILD)], stdout=subprocess.PIPE,
                                      close_fds=False, timeout=10)
                turn.say(done.stdout.decode().strip())

            def extension(self, peer, method, params):
                return {"reached": method}

        Starting().run()
    """)
    session = wire.start()
    id = wire.prompt(session)
    other = wire.request("_other", id=5)
    assert wire.response(other)["result"] == {"reached": "_other"}
    assert wire.turn_end(1, id) == "end_turn"
    assert texts_of(wire.updates()) == ["''"]
    assert wire.end() == 0


def test_after_run_the_signal_handlers_and_stdout_are_as_before(agent_process):
    before = "before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), sys.stdout"
    after = """
import os
assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), sys.stdout) == before
print("printed")
sys.stdout.flush()
os.write(1, b"written\\n")
sys.exit(6)"""
    wire = agent_process(serving("pass", before=before, after=after))
    wire.start()
    assert wire.end() == 6, wire.errors
    assert [wire.lines.get(timeout=WAIT) for _ in range(3)] == [b"printed", b"written", None]


@BOTH
def test_what_a_handler_writes_to_the_stdout_that_its_module_has_kept_is_no_part_of_the_wire(
        agent_process, monkeypatch, version):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    wire = agent_process(serving('OUT.write("stray\\n"); turn.say("said")', before="OUT = sys.stdout"))
    prompt = wire.prompt(wire.start(version))
    assert wire.turn_end(version, prompt) == "end_turn"
    assert wire.end() == 0, wire.errors
    assert wire.lines.get(timeout=WAIT) is None  # the end: nothing came at the exit either
    assert texts_of(wire.updates()) == ["begun", "said"] and "stray\n" in wire.errors


@pytest.mark.parametrize("before", [
    "sys.stdout = None", "sys.stderr = None", "sys.stdout = sys.stderr = sys.stdin = None",
    "import io; sys.stdout = io.StringIO()", "import io; sys.stderr = io.StringIO()"])
def test_an_agent_on_stdio_copes_with_streams_that_are_missing_or_strange(agent_process, before):
    wire = agent_process(serving("print('stray')", before=before))
    prompt = begun(wire, 1)
    assert wire.turn_end(1, prompt) == "end_turn"
    assert wire.end() == 0


@POSIX
@pytest.mark.parametrize("closed", ["0<&-", "1>&-"])
def test_a_closed_stdin_or_stdout_is_told_in_one_line(tmp_path, closed):
    path = tmp_path / "agent.py"
    path.write_text("import acp\ntry:\n    acp.Agent().run()\nexcept acp.Error as error:\n    "
                    "import os; os.write(2, str(error).encode())\n", encoding="utf-8")
    done = subprocess.run(["sh", "-c", f'exec "{sys.executable}" "{path}" {closed}'], stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=WAIT, env=dict(os.environ, PYTHONPATH=HERE))
    assert b"closed" in done.stderr and done.stderr.count(b"\n") == 0 and b"Traceback" not in done.stderr


@POSIX
def test_an_agent_serves_without_a_stderr(raw, tmp_path):
    path = tmp_path / "agent.py"
    path.write_text("import acp\n" + serving("print('stray'); __import__('os').system('echo child')"), encoding="utf-8")
    wire = raw(["sh", "-c", f'exec "{sys.executable}" "{path}" 2>&-'])
    prompt = begun(wire, 1)
    assert wire.turn_end(1, prompt) == "end_turn"
    assert wire.end() == 0


# ---- run: the end of the input, and signals -------------------------------------------------------------------------

ENDS_OF_A_PROCESS = {  # how it ends: what its source ends with, the signal that it gets, the exit status
    "main returns": ("threading.Thread(target=agent.run, daemon=True).start()\nleave.wait()\nsys.exit(5)", None,
                     (5,)),
    "exit in a signal handler": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nagent.run()", signal.SIGTERM, (7,)),
    "interrupt": ("agent.run()", signal.SIGINT, (-signal.SIGINT, 130)),
    "terminate": ("agent.run()", signal.SIGTERM, (-signal.SIGTERM, 143)),
}


@POSIX
@pytest.mark.parametrize("way", ENDS_OF_A_PROCESS)
def test_an_agent_whose_input_stays_open_ends_cleanly_every_time(agent_process, way):
    ending, number, statuses = ENDS_OF_A_PROCESS[way]
    source = "\n".join([
        "import signal, sys, threading", "leave = threading.Event()", "class Plain(acp.Agent):",
        "    def extension(self, peer, method, params):", "        leave.set()", "agent = Plain()", ending])
    wires = [agent_process(source) for _ in range(3)]
    for wire in wires:
        wire.call("initialize", greeting(1), 6 * WAIT)  # they all start at once
    with within(5):
        for wire in wires:
            wire.process.send_signal(number) if number else wire.request("_leave")
        for wire in wires:
            assert wire.process.wait(WAIT) in statuses
    for wire in wires:
        wire.draining.join(WAIT)
        assert "Fatal Python error" not in "".join(wire.errors)
        if way != "interrupt":
            assert "Traceback" not in "".join(wire.errors), wire.errors


HANDLER = '''
import time, threading, sys, signal
class Script(acp.Agent):
    versions = (1, 2)
    def prompt(self, turn):
        turn.say("begun")
        {0}
'''


def serving(handler, before="", after=""):
    """The source of an agent with this handler; `before` and `after` run() in the script."""
    return HANDLER.format(textwrap.indent(textwrap.dedent(handler), " " * 8).strip()) + (
        f"{before}\nScript().run()\n{after}\n")


def begun(wire, version):
    """Start, prompt, wait for the first word; returns the prompt's id."""
    session = wire.start(version)
    prompt = wire.prompt(session)
    wire.until(lambda m: "params" in m and text_update(m["params"]["update"]) == "begun")
    return prompt


def last_words(wire, version, prompt):
    """The texts after `begun` and the end of the turn, from what comes until the end of the stream."""
    while True:
        line = wire.lines.get(timeout=WAIT)
        if line is None:
            break
        wire.seen.append(json.loads(line.decode("utf-8")))
    texts = texts_of(wire.updates())
    if version == 1:
        ends = [message.get("result", message.get("error")) for message in wire.seen if message.get("id") == prompt]
    else:
        ends = [update for update in wire.updates() if update.get("state") == "idle"]
    assert len(ends) == 1, ends
    return texts[1:], ends[0].get("stopReason", ends[0].get("code"))


LAST = [  # a handler, what it still says when its input has ended, and the end of its turn
    ("turn.wait(0.1); turn.say('done')", ["done"], "end_turn"),  # it gets its 300 ms
    ("turn.wait(60)", [], "cancelled"),
    ("time.sleep(60)", [], "cancelled"),  # given up
    ("turn.ask_permission('May I?')", [], "cancelled"),  # it ends by the closing
    ("""
     try:
         turn.ask_permission('May I?')
     except acp.ConnectionClosed:
         turn.say('still sending')
     """, ["still sending"], "end_turn"),
]


# The most that an agent may take to end, which its handlers, of a minute, do not hold up: it gives them 1.3 seconds,
# and a busy machine may take some.
GIVEN_UP = 5.0


def test_at_the_end_of_its_input_an_agent_reports_its_turns_and_exits_with_0(agent_process, raw):
    cases, wires = [(version, *case) for version in (1, 2) for case in LAST], []
    for index, (_, handler, _, _) in enumerate(cases):
        if index % 2:  # each handler as a process once, for its status
            wires.append(agent_process(serving(handler)))
        else:
            names = {"acp": acp}
            exec(HANDLER.format(textwrap.indent(textwrap.dedent(handler), " " * 8).strip()), names)
            wires.append(raw(names["Script"]()))
    prompts = [begun(wire, version) for wire, (version, *_) in zip(wires, cases)]
    for wire, (_, handler, _, _) in zip(wires, cases):
        if "ask_permission" in handler:
            wire.asked("session/request_permission")
    endings = [Background(timed, wire.end) for wire in wires]  # all at once, since some take their time
    for wire, prompt, ending, (version, handler, texts, reason) in zip(wires, prompts, endings, cases):
        status, seconds = ending.result()
        assert status == (None if wire.process is None else 0) and seconds < GIVEN_UP, handler
        assert last_words(wire, version, prompt) == (texts, reason), handler
        assert wire.process is None or "Fatal Python error" not in "".join(wire.errors)


@BOTH
def test_at_the_end_of_its_input_an_agent_answers_held_prompts_too(agent_process, version):
    wire = agent_process(serving("turn.wait(60)"))
    prompt = begun(wire, version)
    wire.send(prompt_message(1, wire.session["sessionId"], "held"))
    status, seconds = timed(wire.end)
    assert status == 0 and seconds < GIVEN_UP
    assert last_words(wire, version, prompt) == ([], "cancelled")
    held = [message for message in wire.seen if message.get("id") == 1]
    assert len(held) == 1
    if version == 1:
        assert held[0]["result"] == {"stopReason": "cancelled"}
    else:
        assert held[0]["error"]["code"] == -32800


def test_an_agent_answers_what_was_accepted_before_the_end_and_exits_with_0(agent_process):
    wire = agent_process("""
        import time
        class Script(acp.Agent):
            def new_session(self, session):
                time.sleep(0.2)
            def extension(self, peer, method, params):
                if method == "_hang":
                    time.sleep(60)
                return {"slow": time.sleep(0.2)}
        Script().run()
    """)
    wire.send({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}},
              {"jsonrpc": "2.0", "id": 2, "method": "session/new", "params": {"cwd": "/"}},
              {"jsonrpc": "2.0", "id": 3, "method": "_slow"}, {"jsonrpc": "2.0", "id": 4, "method": "_hang"})
    wire.response(1)
    with within(GIVEN_UP):
        assert wire.end() == 0
    answers = {}
    while True:
        line = wire.lines.get(timeout=WAIT)
        if line is None:
            break
        message = json.loads(line.decode())
        assert answers.setdefault(message["id"], message) is message
    assert "result" in answers[2] and "result" in answers[3] and answers[4]["error"]["code"] == -32603


@BOTH
def test_what_waits_behind_a_slow_resume_and_is_given_up_at_the_end_does_not_begin(raw, monkeypatch, version):
    for grace in "GRACE_FINISHING", "GRACE_CANCELLING":
        monkeypatch.setattr(acp, grace, 0.02)
    threads, spawn = [], acp._spawn
    monkeypatch.setattr(acp, "_spawn", lambda *what, **more: threads.append(spawn(*what, **more)) or threads[-1])

    class Extended(Slow):
        def extension(self, peer, method, params):
            self.calls.append(method)

        def extension_notification(self, peer, method, params):
            self.calls.append(method)

    agent = Extended()
    wire = raw(agent)
    session = wire.start(version)
    resume = wire.request("session/resume", {"sessionId": session, "cwd": "/", "mcpServers": []})
    behind = [wire.prompt(session), wire.request("_x", {"sessionId": session})]
    wire.notify("_n", {"sessionId": session})
    wire.end()
    while (line := wire.lines.get(timeout=WAIT)) is not None:
        wire.seen.append(json.loads(line))
    assert {message["id"]: message["error"]["code"] for message in wire.seen if "error" in message} == dict.fromkeys(
        [resume, *behind], -32603)
    agent.gate.set()
    eventually(lambda: not any(thread.is_alive() for thread in threads))
    assert agent.calls == ["resume"]


@BOTH
def test_a_prompt_that_begins_in_the_last_grace_is_cancelled_and_reported_too(raw, monkeypatch, version):
    monkeypatch.setattr(acp, "GRACE_FINISHING", 0.02)
    monkeypatch.setattr(acp, "GRACE_CANCELLING", 0.3)
    ending, wait_served = threading.Event(), acp.Connection.wait_served

    def waits(connection, deadline):  # the second time all that ran was cancelled
        if ending.is_set():
            agent.gate.set()
        ending.set()
        wait_served(connection, deadline)

    class Waits(Slow):
        def prompt(self, turn):
            self.calls.append("prompt")
            self.calls.append(turn.wait(WAIT))

    monkeypatch.setattr(acp.Connection, "wait_served", waits)
    agent = Waits()
    wire = raw(agent)
    session = wire.start(version)
    resume = wire.request("session/resume", {"sessionId": session, "cwd": "/", "mcpServers": []})
    prompt = wire.prompt(session)
    wire.end()
    while (line := wire.lines.get(timeout=WAIT)) is not None:
        wire.seen.append(json.loads(line))
    assert {message["id"] for message in wire.seen if "result" in message} >= {resume, prompt}
    assert '"stopReason": "cancelled"' in json.dumps(wire.seen[-1])  # and nothing behind it
    eventually(lambda: agent.calls[-1] is True)
    assert [each for each in agent.calls if each != "resume"] == ["prompt", True]


@pytest.mark.parametrize("source", ["acp.Agent().run()", "import threading\nthread = threading.Thread("
                                    "target=acp.Agent().run)\nthread.start()\nthread.join()"])
def test_an_agent_with_an_empty_input_exits_with_0(tmp_path, source):
    path = tmp_path / "agent.py"
    path.write_text("import acp\n" + source, encoding="utf-8")
    done = subprocess.run([sys.executable, str(path)], stdin=subprocess.DEVNULL, capture_output=True, timeout=WAIT,
                          env=dict(os.environ, PYTHONPATH=HERE))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@POSIX
def test_a_signal_ends_an_agent_the_conventional_way_after_the_same_steps(agent_process):
    cases = [(1, signal.SIGTERM, "turn.wait(60)"), (2, signal.SIGINT, "turn.wait(60)"),
             (2, signal.SIGTERM, "time.sleep(60)"), (1, signal.SIGINT, "time.sleep(60)")]
    wires = [agent_process(serving(handler)) for _, _, handler in cases]
    prompts = [begun(wire, version) for wire, (version, *_) in zip(wires, cases)]
    endings = []
    for wire, (_, number, _) in zip(wires, cases):
        wire.process.send_signal(number)
        endings.append(Background(timed, lambda wire=wire: wire.process.wait(WAIT)))
    for wire, prompt, ending, (version, number, handler) in zip(wires, prompts, endings, cases):
        status, seconds = ending.result()
        assert status == -number and seconds < GIVEN_UP, handler
        assert last_words(wire, version, prompt) == ([], "cancelled"), handler
        assert "Fatal Python error" not in "".join(wire.errors) and "Traceback" not in "".join(wire.errors)


@POSIX
def test_a_signal_handler_of_the_script_is_left_alone_and_system_exit_keeps_its_status(agent_process):
    wire = agent_process(serving("turn.wait(60)", before="signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))"))
    begun(wire, 1)
    wire.process.send_signal(signal.SIGTERM)
    assert wire.process.wait(3) == 7
    assert "Fatal Python error" not in "".join(wire.errors)


# ---- initialize -----------------------------------------------------------------------------------------------------

ASKS_FORMS = {"elicitation": {"form": {}}}


@pytest.mark.parametrize("versions, asked, answered", [
    *[((1, 2), asked, min(asked, 2)) for asked in (1, 2, 3, 99, 65535)],
        *[((2, 1), asked, min(asked, 2)) for asked in (1, 2, 3)],
    *[((1,), asked, 1) for asked in (0, 1, 2, 3, 65535)], *[((2,), asked, 2) for asked in (2, 3)]])
def test_the_agent_answers_the_highest_version_not_above_the_asked_in_its_shape(raw, versions, asked, answered):
    agent = speaking(*versions)
    wire = raw(agent)
    hello = wire.call("initialize", {"protocolVersion": asked, "info": RAW_INFO})
    assert type(hello["protocolVersion"]) is int and hello["protocolVersion"] == answered == agent.peers[0].version
    info, capabilities = ("agentInfo", "agentCapabilities") if answered == 1 else ("info", "capabilities")
    assert hello[info] == {"name": "taker", "version": "1.2", "title": "The taker"}
    assert isinstance(hello[capabilities], dict)
    assert not {"agentInfo", "agentCapabilities", "info", "capabilities"} - {info, capabilities} & set(hello)
    assert "sessionId" in wire.call("session/new", {"cwd": "/"})


def test_nothing_at_or_below_the_asked_version_is_an_error_that_lists_what_there_is(raw):
    for versions, asked in (((1, 2), 0), ((2,), 0), ((2,), 1)):
        wire = raw(speaking(*versions))
        error = wire.refused("initialize", {"protocolVersion": asked, "info": RAW_INFO})
        assert error["code"] == -32022 and error["data"] == {"requested": asked, "supported": list(versions)}
        assert wire.call("initialize", {"protocolVersion": 2, "info": RAW_INFO})["protocolVersion"] == 2


@pytest.mark.parametrize("versions, asked", [((1, 2), 3), ((1, 2), 65535), ((2,), 3), ((1,), 2), ((1,), 3)])
@pytest.mark.parametrize("given, name, asks", [
    ({"info": RAW_INFO, "capabilities": ASKS_FORMS}, "me", True),
    ({"clientInfo": RAW_INFO, "clientCapabilities": ASKS_FORMS}, "me", True),
    ({"clientInfo": RAW_INFO, "capabilities": ASKS_FORMS}, "me", True),
    ({"info": RAW_INFO}, "me", False), ({"capabilities": ASKS_FORMS}, "unknown", True), ({}, "unknown", False),
    ({"info": {"name": 5}, "capabilities": ASKS_FORMS}, "unknown", True),
        ({"info": None, "capabilities": ASKS_FORMS}, "unknown", True),
    ({"info": RAW_INFO, "capabilities": 7}, "me", False), ({"info": [], "capabilities": None}, "unknown", False),
], ids=json.dumps)
def test_an_initialize_for_a_newer_version_is_read_with_what_can_be_understood(raw, versions, asked, given, name, asks):
    agent = speaking(*versions)
    wire = raw(agent)
    wire.call("initialize", {"protocolVersion": asked, "future": True, **given})
    peer = agent.peers[0]
    assert (peer.info.name, peer.info.version) == (name, "1" if name == "me" else "unknown")
    assert bool(peer.capabilities.elicitation and peer.capabilities.elicitation.form) == asks


@pytest.mark.parametrize("versions, asked, winner", [((1, 2), 1, "old"), ((1, 2), 2, "new"), ((1, 2), 3, "new"),
    ((1,), 2, "old")])
def test_of_both_names_in_one_initialize_that_of_the_negotiated_version_wins(raw, versions, asked, winner):
    agent = speaking(*versions)
    raw(agent).call("initialize", {
        "protocolVersion": asked, "info": {"name": "new", "version": "1"},
            "clientInfo": {"name": "old", "version": "1"},
        "capabilities": {"_meta": {"name": "new"}}, "clientCapabilities": {"_meta": {"name": "old"}}})
    assert agent.peers[0].info.name == winner == agent.peers[0].capabilities.meta["name"]


@pytest.mark.parametrize("params, place", [
    ({}, "params.info"), ({"info": None}, "params.info"), ({"info": "me"}, "params.info"),
    ({"info": {"name": "me"}}, "params.info.version"), ({"info": {"name": 5, "version": "1"}}, "params.info.name")])
def test_asked_for_exactly_version_2_the_client_has_to_say_who_it_is(raw, params, place):
    agent = speaking(1, 2)
    wire = raw(agent)
    error = wire.refused("initialize", {"protocolVersion": 2, "capabilities": {}, **params})
    assert error["code"] == -32602 and place in error["message"] and agent.peers == []
    assert wire.refused("session/new", {"cwd": "/"})["code"] == -32600
    assert wire.call("initialize", greeting(2))["protocolVersion"] == 2


@pytest.mark.parametrize("params", [{}, *[{"protocolVersion": bad} for bad in (None, "1", "2026-11-01", True, 1.5, -1,
    65536, [1], {})]],
                         ids=json.dumps)
def test_a_version_that_is_none_is_refused_and_a_later_good_initialize_works(raw, params):
    wire = raw(speaking(1, 2))
    error = wire.refused("initialize", {"info": RAW_INFO, "clientInfo": RAW_INFO, **params})
    assert error["code"] == -32602 and "params.protocolVersion" in error["message"]
    assert wire.call("initialize", greeting(2))["protocolVersion"] == 2


def test_before_initialize_requests_are_refused_and_notifications_ignored(raw):
    agent = speaking(1, 2)
    wire = raw(agent)
    for method in ("session/new", "session/prompt", "session/list", "authenticate", "auth/login", "_acme.com/x",
        "fs/read_text_file"):
        assert wire.refused(method, {"sessionId": "s", "cwd": "/", "prompt": [A_TEXT]})["code"] == -32600
        wire.notify(method, {"sessionId": "s"})
    for method in ("session/cancel", "$/cancel_request", "session/update", "initialize", *UNKNOWN_NOTIFICATIONS):
        wire.notify(method, {"sessionId": "s", "requestId": 1000, "protocolVersion": 1})
    wire.nothing()
    assert wire.call("initialize", greeting(2))["protocolVersion"] == 2 and agent.made == []


@BOTH
def test_requests_behind_initialize_in_one_write_are_handled_in_order(raw, version):
    gate = threading.Event()

    class Slow(Taker):
        def initialize(self, peer):
            assert gate.wait(WAIT)

        def new_session(self, session):
            session.id = "mine"

    wire = raw(Slow())
    wire.send(*[{"jsonrpc": "2.0", "id": id, "method": method, "params": params} for id, (method, params) in enumerate([
        ("initialize", greeting(version)), ("session/new", {"cwd": "/"}), ("session/list", {}), ("_acme.com/x", {})])])
    wire.nothing(0.06)
    gate.set()
    answers = {}
    while len(answers) < 4:
        message = wire.next()
        if "id" in message:
            answers[message["id"]] = message
    assert next(iter(answers)) == 0
    assert answers[0]["result"]["protocolVersion"] == version and answers[1]["result"] == {"sessionId": "mine"}
    assert "result" in answers[2] and answers[3]["error"]["code"] == -32601


@BOTH
def test_initialize_may_be_repeated_until_the_first_other_request(raw, version):
    agent = speaking(1, 2)
    wire = raw(agent)
    wire.call("initialize", greeting(version))
    wire.notify("session/cancel", {"sessionId": "s"})
    name = "clientInfo" if version == 1 else "info"
    hello = wire.call("initialize", greeting(version, **{name: {"name": "again", "version": "2"}}))
    assert hello["protocolVersion"] == version
    s = wire.call("session/new", {"cwd": "/"})["sessionId"]
    assert agent.made[0].peer.info.name == "again" == agent.peers[-1].info.name
    for asked in (1, 2, 3):
        assert wire.refused("initialize", {"protocolVersion": asked, "info": RAW_INFO})["code"] == -32600
    assert len(agent.peers) == 2 and wire.turn_end(version, wire.prompt(s)) == "end_turn"


def test_a_request_that_was_refused_ends_the_time_for_repeating_initialize_too(raw):
    for version in (1, 2):
        wire = raw(speaking(1, 2))
        wire.call("initialize", greeting(version))
        assert wire.refused("_acme.com/x")["code"] == -32601
        assert wire.refused("initialize", greeting(version))["code"] == -32600


def test_a_repeated_initialize_does_not_lead_back_from_version_2(raw):
    wire = raw(speaking(1, 2))
    wire.call("initialize", greeting(2))
    assert wire.call("initialize", {"protocolVersion": 3, "info": RAW_INFO})["protocolVersion"] == 2
    answer = wire.response(wire.request("initialize", greeting(1)))
    assert "error" in answer, answer
    s = wire.call("session/new", {"cwd": "/"})["sessionId"]
    assert wire.call("session/resume", {"sessionId": s, "cwd": "/"}) == {}  # only version 2 has it without a hook


def test_a_client_that_introduces_itself_not_at_all_is_served(raw):
    agent = Taker()
    wire = raw(agent)
    for nothing in ({}, {"clientCapabilities": None, "clientInfo": None}):
        wire.call("initialize", {"protocolVersion": 1, **nothing})
        assert (agent.peers[-1].info.name, agent.peers[-1].info.version) == ("unknown", "unknown")


# ---- what it offers -------------------------------------------------------------------------------------------------

def test_a_bare_agent_offers_what_it_can_do_without_a_line(raw):
    class Bare(acp.Agent):
        versions = (1, 2)

        def prompt(self, turn):
            pass

    wire = raw(Bare())
    wire.start(1)
    offered = wire.hello["agentCapabilities"]
    assert not offered.get("loadSession") and offered["sessionCapabilities"] == {"list": {}, "close": {}}
    assert not wire.hello.get("authMethods")
    for method in ("session/load", "session/resume", "session/delete", "logout"):
        assert wire.refused(method, {"sessionId": "s", "cwd": "/"})["code"] == -32601
    wire = raw(Bare())
    s = wire.start(2)
    assert wire.hello["capabilities"]["session"] == {} and not wire.hello.get("authMethods")
    assert wire.call("session/resume", {"sessionId": s, "cwd": "/"}) == {}
    for method in ("session/delete", "session/load", "session/set_mode"):
        assert wire.refused(method, {"sessionId": s, "cwd": "/", "modeId": "x"})["code"] == -32601


def test_what_is_overridden_or_set_is_what_is_offered(raw):
    class Rich(ReturnsNothing):
        prompt_capabilities = acp.PromptCapabilities(image=True, audio=True, embedded_context=True)
        mcp_capabilities = acp.McpCapabilities(stdio=True, http=True, sse=True)
        additional_directories = True
        capabilities_meta = {"acme.com/deep": {"a": [1, None]}}

    wire = raw(Rich())
    wire.start(1)
    assert wire.hello["agentCapabilities"] == {
        "loadSession": True, "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True},
        "mcpCapabilities": {"http": True, "sse": True}, "auth": {"logout": {}},
        "sessionCapabilities": {"list": {}, "close": {}, "resume": {}, "delete": {}, "additionalDirectories": {}},
        "_meta": {"acme.com/deep": {"a": [1, None]}}}
    wire = raw(Rich())
    wire.start(2)
    assert wire.hello["capabilities"] == {
        "session": {"prompt": {"image": {}, "audio": {}, "embeddedContext": {}}, "mcp": {"stdio": {}, "http": {}},
                    "delete": {}, "additionalDirectories": {}}, "_meta": {"acme.com/deep": {"a": [1, None]}}}


@BOTH
def test_custom_capabilities_of_either_side_reach_the_other(version):
    agent = speaking(1, 2, capabilities_meta={"from": "agent"})
    with acp.Client(agent, version=version, capabilities_meta={"from": "client"}) as client:
        assert client.capabilities.meta == {"from": "agent"}
        assert agent.peers[0].capabilities.meta == {"from": "client"}


# ---- logging in -----------------------------------------------------------------------------------------------------

@BOTH
@pytest.mark.parametrize("raised, wanted", [
    (acp.AuthRequired("log in", {"why": [1]}), {"code": -32000, "message": "log in", "data": {"why": [1]}}),
    (acp.RequestError(-32000, "log in"), {"code": -32000, "message": "log in"}),
    (acp.NotFound("no project"), {"code": -32002, "message": "no project"}),
    (PermissionError("/etc/shadow"), {"code": -32603}),
    (acp.RequestError(-31999, "odd", False), {"code": -31999, "message": "odd", "data": False}),
], ids=repr)
def test_only_a_missing_login_is_told_as_one(raw, version, raised, wanted):
    class Guarded(Taker):
        def new_session(self, session):
            raise raised

    wire = raw(Guarded())
    wire.call("initialize", {"protocolVersion": version, "info": {"name": "a", "version": "1"}})
    error = wire.refused("session/new", {"cwd": "/"})
    assert {key: error.get(key) for key in wanted} == wanted
    assert ("data" in error) == ("data" in wanted) and "shadow" not in json.dumps(error)


class Lockable(Taker):
    auth_methods = [acp.AuthMethodAgent("in", "In"), acp.AuthMethodTerminal("shell", "Shell", args=["--login"], env=[
        acp.EnvVariable("TOKEN", SECRET_VALUE)])]

    def login(self, method_id):
        self.logged = method_id


@pytest.mark.parametrize("version, declared, offered", [
    (1, {}, ["in"]), (1, {"auth": {"terminal": False}}, ["in"]), (1, {"auth": {"terminal": True}}, ["in", "shell"]),
    (2, {}, ["in"]), (2, {"auth": {}}, ["in"]), (2, {"auth": {"terminal": {}}}, ["in", "shell"])])
def test_a_login_in_a_terminal_is_offered_to_clients_that_can_run_it(raw, version, declared, offered):
    agent = Lockable()
    wire = raw(agent)
    wire.start(version, declared)
    key, login = ("id", "authenticate") if version == 1 else ("methodId", "auth/login")
    assert [method[key] for method in wire.hello["authMethods"]] == offered
    for wrong in ("shell", "out", ""):
        assert wire.refused(login, {"methodId": wrong})["code"] == -32602
    assert not hasattr(agent, "logged")
    wire.call(login, {"methodId": "in"})
    assert agent.logged == "in"


def test_logins_of_version_2_come_with_logout_and_those_of_version_1_say_so(raw):
    wire = raw(Lockable())
    wire.start(2)
    assert wire.call("auth/logout") == {}
    wire = raw(Lockable())
    wire.start(1)
    assert "logout" not in wire.hello["agentCapabilities"].get("auth", {})
    assert wire.refused("logout")["code"] == -32601
    wire = raw(ReturnsNothing())
    wire.start(1)
    assert wire.hello["agentCapabilities"]["auth"]["logout"] == {}


# ---- sessions -------------------------------------------------------------------------------------------------------

class Resuming(Taker):
    additional_directories = True

    def __init__(self):
        super().__init__()
        self.resumed, self.listed = [], []

    def resume_session(self, session, replay):
        self.resumed.append(session)

    def list_sessions(self, cwd):
        self.listed.append(cwd)
        return []


WINDOWS = ["C:\\Users\\x", "c:/x", "\\\\host\\share"]


@pytest.mark.parametrize("version, method", [
    (1, "session/new"), (1, "session/resume"), (1, "session/load"), (2, "session/new"), (2, "session/resume")])
def test_relative_paths_are_refused_and_nothing_is_made(raw, version, method):
    agent = Resuming()
    wire = raw(agent)
    wire.call("initialize", greeting(version))
    for bad in (".", "a/b", "", "~/x", "file:///x", "C:x"):
        error = wire.refused(method, {"sessionId": "old", "cwd": bad})
        assert error["code"] == -32602 and "params.cwd" in error["message"]
        error = wire.refused(method, {"sessionId": "old", "cwd": "/", "additionalDirectories": ["/a", bad]})
        assert error["code"] == -32602 and "params.additionalDirectories[1]" in error["message"]
    assert agent.made == [] == agent.resumed
    for good in WINDOWS:
        wire.call(method, {"sessionId": "old" + good, "cwd": good, "additionalDirectories": [good]})
        assert (agent.made + agent.resumed)[-1].additional_directories == [good]


@BOTH
def test_a_list_is_filtered_by_an_absolute_path_only(raw, version):
    agent = Resuming()
    wire = raw(agent)
    wire.call("initialize", greeting(version))
    for bad in (".", "a", ""):
        error = wire.refused("session/list", {"cwd": bad})
        assert error["code"] == -32602 and "params.cwd" in error["message"]
    assert agent.listed == []
    for good in ("/x", *WINDOWS, None):
        wire.call("session/list", {"cwd": good})
    assert agent.listed == ["/x", *WINDOWS, None]


@BOTH
def test_a_resume_may_name_another_folder_and_brings_the_complete_lists(raw, version):
    agent = Resuming()
    wire = raw(agent)
    first, second = [{"type": "http", "name": name, "url": "http://x", "headers": []} for name in ("first", "second")]
    s = wire.start(version, mcpServers=[first], additionalDirectories=["/a"])
    wire.call("session/resume", {"sessionId": s, "cwd": "/other", "mcpServers": [second],
        "additionalDirectories": ["/b"]})
    session = agent.sessions[s]
    assert [server.name for server in session.mcp_servers] == ["second"] and session.additional_directories == ["/b"]


def server_of(kind, version, name="a"):
    body = {"stdio": {"command": "/a", "args": [], "env": []}}.get(kind, {"url": "http://a", "headers": []})
    return {**({} if kind == "stdio" and version == 1 else {"type": kind}), "name": name, **body}


@BOTH
@pytest.mark.parametrize("offered, kinds", [
    (None, []), (acp.McpCapabilities(stdio=True), ["stdio"]), (acp.McpCapabilities(http=True), ["http"]),
    (acp.McpCapabilities(stdio=True, http=True, sse=True), ["stdio", "http", "sse"])], ids=str)
def test_servers_by_a_transport_that_was_not_offered_are_refused(raw, version, offered, kinds):
    agent = speaking(1, 2, mcp_capabilities=offered)
    wire = raw(agent)
    wire.start(version)
    taken = ({"stdio", *kinds} if version == 1 else {*kinds} - {"sse"})
    for kind in ("stdio", "http", "sse", "_pipe"):
        params = {"cwd": "/", "mcpServers": [server_of(kind, version)]}
        if kind in taken:
            wire.call("session/new", params)
        else:
            error = wire.refused("session/new", params)
            assert (error["code"], error["data"]) == (-32602, {"type": kind})
    assert len(agent.made) == 1 + len(taken)


@BOTH
@pytest.mark.parametrize("method", ["session/new", "session/resume"])
def test_a_server_name_twice_is_refused(raw, version, method):
    agent = Resuming()
    wire = raw(agent)
    s = wire.start(version)
    error = wire.refused(method, {"cwd": "/", "sessionId": s, "mcpServers": [
        server_of("http", version, "x"), server_of("stdio", version, "y"), server_of("stdio", version, "x")]})
    assert (error["code"], error["data"]) == (-32602, {"name": "x"})
    assert len(agent.made) == 1 and agent.resumed == []


@BOTH
@pytest.mark.parametrize("servers", [{}, {"mcpServers": None}, {"mcpServers": []}], ids=["absent", "null", "empty"])
def test_a_session_without_a_list_of_servers_is_served(raw, version, servers):
    agent = Taker()
    wire = raw(agent)
    info = {"info": {"name": "a", "version": "1"}} if version == 2 else {}
    wire.call("initialize", {"protocolVersion": version, **info})
    s = wire.call("session/new", {"cwd": "/", **servers})["sessionId"]
    session = agent.made[0]
    assert (session.id, session.mcp_servers, session.additional_directories) == (s, [], [])
    offered = agent.peers[0].capabilities
    assert not offered.fs and not offered.terminal and not offered.elicitation and not offered.auth
    assert wire.turn_end(version, wire.prompt(s)) == "end_turn"


def test_a_server_without_type_is_stdio_on_version_1(raw):
    agent = Taker()
    wire = raw(agent)
    wire.start(1, mcpServers=[{"name": "a", "command": "/a", "args": ["-x"], "env": [{"name": "TOKEN", "value": "v"}]}])
    assert agent.made[0].mcp_servers == [acp.McpServerStdio("a", "/a", ["-x"], [acp.EnvVariable("TOKEN", "v")])]


@BOTH
def test_a_malformed_server_is_named_and_nothing_is_made(raw, version):
    agent = Taker()
    wire = raw(agent)
    wire.start(version)
    good = {"type": "http", "name": "a", "url": "http://a", "headers": []}
    error = wire.refused("session/new", {"cwd": "/", "mcpServers": [good, {"type": "http", "name": "b", "url": 3}]})
    assert error["code"] == -32602 and "params.mcpServers[1].url" in error["message"]
    assert len(agent.made) == 1


@BOTH
@pytest.mark.parametrize("bad", [31337, [31337], {"x": 31337}, 31337.5, True, None])
def test_a_wrong_value_of_a_variable_or_header_is_refused_without_showing_it(raw, version, bad, caplog):
    wire = raw(Taker())
    wire.start(version)
    tagged = {"type": "stdio"} if version == 2 else {}
    for server, place in (
            ({**tagged, "name": "a", "command": "/a", "args": [], "env": [{"name": "TOKEN", "value": bad}]},
                "env[0].value"),
            ({"type": "http", "name": "b", "url": "http://b", "headers": [{"name": "K", "value": bad}]},
                "headers[0].value")):
        error = wire.refused("session/new", {"cwd": "/", "mcpServers": [server]})
        assert error["code"] == -32602 and "params.mcpServers[0]." + place in error["message"]
        assert "31337" not in json.dumps(error) and "true" not in error["message"].lower()
    assert "31337" not in caplog.text


@BOTH
def test_replay_comes_before_the_response_of_load_and_resume(raw, version):
    def resume_session(self, session, replay):
        return [acp.UserMessage("m1", [acp.TextContent("question")]),
                acp.AgentMessage("m2", [acp.TextContent("answer")])] if replay else None

    wire = raw(fault_agent(resume_session=resume_session))
    wire.start(version)
    wire.seen.clear()
    load = {"sessionId": "old", "cwd": "/", "mcpServers": []}
    wire.call(*(("session/load", load) if version == 1 else (
        "session/resume", {**load, "replayFrom": {"type": "start"}})))
    updates = [update["sessionUpdate"] for update in wire.updates()]
    assert updates == (["user_message_chunk", "agent_message_chunk"] if version == 1 else [
        "user_message", "agent_message", "state_update"])
    wire.nothing(0.05)


def broken_updates():
    yield acp.AgentMessage("m", [acp.TextContent("told")])
    raise ValueError("no more")


FAULTY_RESUMES = {  # what goes wrong: what the hook returns, and the `_meta` that it gives the answer
    "a malformed update": ([acp.UsageUpdate(used="x", size=1)], None),
    "updates that raise": (broken_updates, None),
    "an answer that is not JSON": ([], {"x": object()}),
}


@pytest.mark.parametrize("fault", FAULTY_RESUMES)
@pytest.mark.parametrize("version, method", [(1, "session/load"), (2, "session/resume")])
def test_a_resume_that_fails_behind_its_hook_leaves_no_live_session(raw, version, method, fault):
    def resume_session(session, replay):
        given, session.response_meta = FAULTY_RESUMES[fault] if faulty else (None, None)
        return given() if callable(given) else given

    agent = Handler(resume_session=resume_session)
    wire = raw(agent)
    session = wire.start(version)
    load = {"sessionId": "old", "cwd": "/", "mcpServers": [], "replayFrom": {"type": "start"}}
    prompt = {"sessionId": "old", "prompt": [text_block("x")]}
    for faulty in True, False, True:
        if faulty:
            assert wire.refused(method, load)["code"] == -32603
        else:
            assert wire.refused("session/prompt", prompt)["code"] == -32002
            assert set(agent.sessions) == {session}
            wire.call(method, load)
    assert set(agent.sessions) == {session, "old"}  # one that was live stays so
    assert wire.turn_end(version, wire.prompt("old")) == "end_turn"


@BOTH
def test_a_new_session_whose_answer_fails_is_not_live(raw, version):
    agent = Handler(new_session=lambda session: setattr(session, "response_meta", {"x": object()}))
    wire = raw(agent)
    wire.call("initialize", greeting(version))
    assert wire.refused("session/new", {"cwd": "/"})["code"] == -32603
    assert not agent.sessions and wire.call("session/list") == {"sessions": []}


@BOTH
def test_what_a_hook_sends_for_a_new_session_goes_out_after_the_answer_but_requests_at_once(raw, version):
    class Early(acp.Agent):
        versions = (1, 2)

        def new_session(self, session):
            session.send(acp.AgentMessage("m", [acp.TextContent("welcome")]))
            session.title = "Title"
            self.heard = session.request("_hello", timeout=5)
            session.send(acp.SessionInfoUpdate(title="Later"))

    agent = Early()
    wire = raw(agent)
    hello = {"protocolVersion": version, "info": {"name": "raw", "version": "0"}, "capabilities": {}}
    wire.call("initialize", hello)
    id = wire.request("session/new", {"cwd": "/", "mcpServers": []})
    question = wire.next()
    assert question["method"] == "_hello"
    wire.nothing(0.06)
    wire.answer(question, {"hi": 1})
    answer = wire.next()
    assert answer["id"] == id and answer["result"]["sessionId"] == question["params"]["sessionId"]
    updates = [wire.next()["params"]["update"] for _ in range(3)]
    assert [update.get("title") for update in updates] == [None, "Title", "Later"]
    assert updates[0]["sessionUpdate"] == ("agent_message_chunk" if version == 1 else "agent_message")
    assert agent.heard == {"hi": 1}


@pytest.mark.parametrize("version, method, params", [
    (1, "authenticate", {"methodId": "a"}), (1, "logout", {}), (2, "auth/login", {"methodId": "a"}),
        (2, "auth/logout", {}),
    (1, "session/set_mode", {"modeId": "code"}),
    *[(version, method, {}) for version in (1, 2) for method in ("session/close", "session/delete", "_acme.com/x")],
    (1, "session/load", {"sessionId": "old", "cwd": "/"}), (1, "session/resume", {"sessionId": "old", "cwd": "/"}),
    (2, "session/resume", {"sessionId": "old", "cwd": "/"})])
def test_a_hook_that_returns_nothing_answers_an_empty_object(raw, version, method, params):
    wire = raw(ReturnsNothing())
    s = wire.start(version)
    assert wire.call(method, {"sessionId": s, **params}) == {}


@pytest.mark.parametrize("nothing", [None, {}], ids=["null", "empty"])
def test_null_and_an_empty_object_both_settle_a_call_of_the_agent(raw, nothing):
    class Writer(acp.Agent):
        def prompt(self, turn):
            turn.write_text_file("/a", "text")
            for method in ("terminal/kill", "terminal/release"):
                turn.session.request(method, {"terminalId": "t"})
            turn.say("done")

    wire = raw(Writer())
    p = wire.prompt(wire.start(1, {"fs": {"writeTextFile": True}, "terminal": True}))
    for method in ("fs/write_text_file", "terminal/kill", "terminal/release"):
        wire.answer(wire.asked(method), nothing)
    assert wire.turn_end(1, p) == "end_turn"
    assert text_update(wire.updates()[-1]) == "done"


@BOTH
def test_a_session_made_by_the_agent_itself_is_live(raw, version):
    class Forking(Handler):
        def extension(self, peer, method, params):
            made = self.create_session("/fork", params.get("id"))
            made.note = "attached"
            return {"id": made.id}

    agent = Forking(lambda turn: turn.say(turn.session.note))
    wire = raw(agent)
    wire.start(version)
    assert wire.call("_fork", {"id": "own"}) == {"id": "own"}
    made = wire.call("_fork")["id"]
    assert {"own", made} < set(agent.sessions)
    outside = agent.create_session("/outside")
    listed = {each["sessionId"]: each["cwd"] for each in wire.call("session/list")["sessions"]}
    assert listed["own"] == listed[made] == "/fork" and listed[outside.id] == "/outside"
    assert wire.turn_end(version, wire.prompt("own")) == "end_turn"
    assert [text_update(update) for update in told(wire)] == ["attached"]


@BOTH
def test_one_instance_serves_several_connections_with_sessions_of_their_own(raw, version):
    both_run = threading.Barrier(2, timeout=WAIT)

    def handler(turn):
        both_run.wait()
        turn.say(turn.session.peer.info.name)

    agent = Handler(handler)
    one, other = raw(agent), raw(agent)
    sessions = [one.start(version), other.start(3 - version)]
    assert set(agent.sessions) == set(sessions)
    prompts = [one.prompt(sessions[0]), other.prompt(sessions[1])]
    assert one.turn_end(version, prompts[0]) == "end_turn" and other.turn_end(3 - version, prompts[1]) == "end_turn"
    assert one.refused("session/prompt", {"sessionId": sessions[1], "prompt": [{"type": "text", "text": "x"}]})[
        "code"] == -32002
    assert [each["sessionId"] for each in one.call("session/list")["sessions"]] == [sessions[0]]
    other.end()
    eventually(lambda: set(agent.sessions) == {sessions[0]})
    one.call("session/list")


@pytest.mark.parametrize("history", [True, False])
def test_replay_works_without_a_line_unless_history_is_off(raw, history):
    def handler(turn):
        with turn.tool("Tool"):
            turn.say("answer")

    agent = Handler(handler, history=history)
    wire = raw(agent)
    session = wire.start(2)
    assert wire.turn_end(2, wire.prompt(session, "question")) == "end_turn"
    wire.seen.clear()
    wire.call("session/resume", {"sessionId": session, "cwd": "/", "mcpServers": [], "replayFrom": {"type": "start"}})
    kinds = [update["sessionUpdate"] for update in wire.updates()]
    assert kinds[-1] == "state_update"
    if history:
        assert sorted(kinds[:-1]) == ["agent_message", "tool_call_update", "user_message"]
        assert [message.text for message in agent.sessions[session].state.messages.values()] == ["question", "answer"]
    else:
        assert not {"agent_message", "tool_call_update", "user_message", "agent_message_chunk"} & set(kinds)
        assert not agent.sessions[session].state.messages and not agent.sessions[session].state.tool_calls


# ---- lists, and the end of sessions ---------------------------------------------------------------------------------

class Listing(Taker):
    def list_sessions(self, cwd):
        return (acp.SessionInfo(f"s{index}", cwd or "/", title=f"T{index}") for index in range(250))


@BOTH
def test_any_iterable_of_sessions_is_paged_and_foreign_cursors_are_refused(raw, version):
    wire = raw(Listing())
    wire.call("initialize", greeting(version))
    seen, cursor, first = [], {}, 0  # first: how many stand on the first page
    while cursor is not None:
        page = wire.call("session/list", {"cwd": "/x", **cursor})
        assert page["sessions"] and all(session["cwd"] == "/x" for session in page["sessions"])
        seen += [session["sessionId"] for session in page["sessions"]]
        cursor = {"cursor": page["nextCursor"]} if "nextCursor" in page else None
        first = first or len(seen)
    assert seen == [f"s{index}" for index in range(250)] and first < 250
    given = wire.call("session/list")["nextCursor"]
    for foreign in ("", "x", "0", given + "0", "x" + given, given[:-1], "page-0.100", "-1", "ä"):
        error = wire.refused("session/list", {"cursor": foreign})
        assert error["code"] == -32602 and "params.cursor" in error["message"]
    assert wire.call("session/list", {"cursor": given})["sessions"][0]["sessionId"] == seen[first]


@BOTH
def test_a_closed_session_is_listed_only_where_the_agent_lists_it_itself(raw, version):
    class Remembering(Taker):
        def list_sessions(self, cwd):
            return [acp.SessionInfo(session.id, session.cwd) for session in self.made]

    for agent, left in ((Taker(), ["/b"]), (Remembering(), ["/a", "/b"])):
        wire = raw(agent)
        wire.call("initialize", greeting(version))
        first, second = [wire.call("session/new", {"cwd": cwd})["sessionId"] for cwd in ("/a", "/b")]
        assert [session["cwd"] for session in wire.call("session/list")["sessions"]] == ["/a", "/b"]
        assert [session["sessionId"] for session in wire.call("session/list", {"cwd": "/a"})["sessions"]][:1] == [first]
        wire.call("session/close", {"sessionId": first})
        assert [session["cwd"] for session in wire.call("session/list")["sessions"]] == left


@BOTH
@pytest.mark.parametrize("method", ["session/close", "session/delete"])
def test_closing_a_session_ends_its_turn_first_and_sends_nothing_after_its_answer(raw, version, method):
    hooks = []

    class Forgetful(Handler):
        def close_session(self, session):
            hooks.append(session.id)

        def delete_session(self, session_id):
            hooks.append(session_id)

    def handler(turn):
        with turn.tool("Open"):
            turn.wait(WAIT)
        hooks.append("ended")

    agent = Forgetful(handler)
    wire = raw(agent)
    session = wire.start(version)
    kept = agent.sessions[session]
    prompt, held = wire.prompt(session), wire.prompt(session, "held")
    wire.until(lambda m: "params" in m and m["params"]["update"].get("toolCallId"))
    closing = wire.request(method, {"sessionId": session})
    assert wire.turn_end(version, prompt) == "cancelled"
    assert statuses(told(wire)) == ["pending", "failed" if version == 1 else "cancelled"]
    assert wire.response(closing)["result"] == {} and session not in agent.sessions
    assert hooks[0] == "ended" and session in hooks
    answer = next(message for message in wire.seen if message.get("id") == held)
    if version == 1:
        assert answer["result"] == {"stopReason": "cancelled"}
    else:
        assert answer["error"]["code"] == -32800
    with contextlib.suppress(acp.Error):
        kept.send(acp.SessionInfoUpdate(title="late"))
    wire.nothing(0.06)
    assert wire.refused("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "x"}]})[
        "code"] == -32002
    assert wire.call(method, {"sessionId": "unknown"}) == {}


@BOTH
@pytest.mark.parametrize("method", ["session/close", "session/delete"])
def test_closing_withdraws_the_open_question_of_the_running_turn_and_ends_it(raw, version, method):
    deleted = []
    agent = Handler(lambda turn: turn.say(str(turn.ask_permission("May I?"))), delete_session=deleted.append)
    wire = raw(agent)
    s = wire.start(version)
    prompt, held = wire.prompt(s), wire.prompt(s)
    asked = wire.asked("session/request_permission")
    closing = wire.request(method, {"sessionId": s})
    seen = wire.until(lambda m: m.get("id") == closing and "method" not in m)
    assert seen[-1]["result"] == {} and deleted == ([s] if method == "session/delete" else [])
    assert [m["params"] for m in seen if m.get("method") == "$/cancel_request"] == [{"requestId": asked["id"]}]
    answers = {m["id"]: m.get("result", m.get("error")) for m in seen[:-1] if "method" not in m}
    if version == 1:
        assert answers == {prompt: {"stopReason": "cancelled"}, held: {"stopReason": "cancelled"}}
    else:
        assert list(answers) == [held] and answers[held]["code"] == -32800
        assert [m["params"]["update"].get("stopReason") for m in seen
                if m.get("params", {}).get("update", {}).get("state") == "idle"] == ["cancelled"]
    assert not any(text_update(each) for each in told(wire))
    wire.answer(asked, {"outcome": {"outcome": "selected", "optionId": "allow"}})
    assert wire.refused("session/prompt", {"sessionId": s, "prompt": [text_block("x")]})["code"] == -32002
    assert wire.call(method, {"sessionId": s}) == {} and wire.call("session/list") == {"sessions": []}
    wire.nothing(0.05)


@BOTH
@pytest.mark.parametrize("method", ["session/resume", "session/delete"])
def test_a_not_found_of_the_hooks_own_call_is_not_the_answer_to_the_client(raw, version, method):
    peers = []
    agent = Handler(initialize=peers.append, delete_session=lambda session_id: peers[0].request("_lookup"),
                    resume_session=lambda session, replay: session.request("_lookup"))
    wire = raw(agent)
    wire.call("initialize", greeting(version))
    id = wire.request(method, {"sessionId": "x", **({"cwd": "/", "mcpServers": []} if "resume" in method else {})})
    wire.send({"jsonrpc": "2.0", "id": wire.asked("_lookup")["id"], "error": {"code": -32002, "message": "no row"}})
    error = wire.response(id)["error"]
    assert error["code"] == -32603 and "_lookup" in error["message"]


# ---- config options and commands ------------------------------------------------------------------------------------

def current_values(options):
    """The current values of config options on the wire, in order."""
    return [option["currentValue"] for option in options]


@BOTH
@pytest.mark.parametrize("params", [
    {"configId": "none", "value": "ask"}, {"configId": "how", "value": "sing"}, {"configId": "how", "value": ""},
    {"configId": "how", "value": True, "type": "boolean"}, {"configId": "loud", "value": "true"},
    {"configId": "loud", "value": "x", "type": "boolean"}, {"configId": "how", "value": 3},
        {"configId": "how", "value": None},
    {"configId": "how"}, {"value": "ask"}, {"configId": "how", "value": 3, "type": "_number"}], ids=json.dumps)
def test_an_unknown_option_or_value_is_refused_and_changes_nothing(raw, version, params):
    agent = Configured()
    wire = raw(agent)
    s = wire.start(version, BOOLEANS)
    kind = {} if version == 1 else {"type": "id"}
    assert wire.refused("session/set_config_option", {"sessionId": s, **kind, **params})["code"] == -32602
    wire.call("session/list")
    assert wire.updates() == []
    assert [option.current_value for option in agent.made[0].config_options] == ["ask", False]
    result = wire.call("session/set_config_option", {"sessionId": s, "configId": "loud", "value": True,
        "type": "boolean"})
    assert current_values(result["configOptions"]) == ["ask", True]


def test_an_unknown_kind_of_value_is_refused_on_version_2(raw):
    agent = Configured()
    wire = raw(agent)
    s = wire.start(2)
    for kind in ("_number", "future"):
        error = wire.refused("session/set_config_option", {"sessionId": s, "configId": "how", "type": kind,
            "value": "code"})
        assert error["code"] == -32602
    assert agent.made[0].config_options[0].current_value == "ask"


@BOTH
def test_the_answer_and_every_update_carry_all_options(raw, version):
    agent = Configured()
    wire = raw(agent)
    s = wire.start(version, BOOLEANS)
    assert current_values(wire.session["configOptions"]) == ["ask", False]
    kind = {} if version == 1 else {"type": "id"}
    result = wire.call("session/set_config_option", {"sessionId": s, "configId": "how", "value": "code", **kind})
    assert current_values(result["configOptions"]) == ["code", False]
    assert all(len(update["configOptions"]) == 2 for update in wire.updates() if "configOptions" in update)
    agent.made[0].config_options = [mode_option(), acp.SessionConfigBoolean("loud", "Loud", True)]
    wire.until(lambda message: "configOptions" in message.get("params", {}).get("update", {}))
    update = wire.updates()[-1]
    assert update["sessionUpdate"] == "config_option_update"
    assert current_values(update["configOptions"]) == ["ask", True]
    agent.refuses = True
    error = wire.refused("session/set_config_option", {"sessionId": s, "configId": "how", "value": "code", **kind})
    assert error == {"code": -32602, "message": "not today"}
    assert agent.made[0].config_options[0].current_value == "ask"


def test_the_hook_may_assign_other_options_and_the_answer_carries_them(raw):
    class Growing(Configured):
        def set_config_option(self, session, config_id, value):
            session.config_options = [mode_option(value), acp.SessionConfigBoolean("deep", "Deep", True)]

    for version in (1, 2):
        wire = raw(Growing())
        s = wire.start(version, BOOLEANS)
        result = wire.call("session/set_config_option", {
            "sessionId": s, "configId": "how", "value": "code", **({} if version == 1 else {"type": "id"})})
        assert [option["name"] for option in result["configOptions"]] == ["How", "Deep"]
        assert current_values(result["configOptions"]) == ["code", True]


@BOTH
def test_commands_and_a_title_that_the_hook_of_an_option_assigns_are_told(raw, version):
    class Telling(Configured):
        def set_config_option(self, session, config_id, value):
            session.commands = [acp.Command("go", "Go")]
            session.title = "Coding"

    wire = raw(Telling())
    s = wire.start(version, BOOLEANS)
    result = wire.call("session/set_config_option", {
        "sessionId": s, "configId": "how", "value": "code", **({} if version == 1 else {"type": "id"})})
    assert current_values(result["configOptions"]) == ["code", False]
    found = {update["sessionUpdate"]: update for update in wire.updates()}
    assert [each["name"] for each in found["available_commands_update"]["availableCommands"]] == ["go"]
    assert found["session_info_update"]["title"] == "Coding"


@BOTH
def test_of_two_values_for_an_option_that_come_at_once_each_answer_has_its_own(raw, version):
    begun, gates = [], {"code": threading.Event(), "ask": threading.Event()}

    class Slowly(Configured):
        def set_config_option(self, session, config_id, value):
            begun.append(value)
            assert gates[value].wait(WAIT)

    agent = Slowly()
    wire = raw(agent)
    s = wire.start(version, BOOLEANS)
    ids = {value: wire.request("session/set_config_option", {
        "sessionId": s, "configId": "how", "value": value, **({} if version == 1 else {"type": "id"})})
        for value in gates}
    eventually(lambda: set(begun) == set(gates))
    for value in ids:
        gates[value].set()
        assert current_values(wire.response(ids[value])["result"]["configOptions"]) == [value, False]
    assert agent.made[0].config_options[0].current_value == "ask"


WRONG_OPTIONS = [
    acp.SessionConfigSelect("m", "M", "x", []),
    acp.SessionConfigSelect("m", "M", "y", [acp.SessionConfigSelectOption("x", "X")]),
    acp.SessionConfigSelect("m", "M", "x", [acp.SessionConfigSelectOption("x", "X"), acp.SessionConfigSelectOption("x",
        "Y")]),
    acp.SessionConfigSelect("m", "M", "x", [
        acp.SessionConfigSelectGroup("g", "G", [acp.SessionConfigSelectOption("x", "X")]),
        acp.SessionConfigSelectGroup("h", "H", [acp.SessionConfigSelectOption("x", "X")])]),
]


@BOTH
@pytest.mark.parametrize("wrong", WRONG_OPTIONS, ids=["no value", "current not among", "twice", "twice in groups"])
def test_options_that_contradict_themselves_raise_in_the_handler(raw, version, wrong):
    raised = []

    class Wrong(Taker):
        def new_session(self, session):
            super().new_session(session)
            if session.cwd == "/bad":
                session.config_options = [wrong]

        def prompt(self, turn):
            try:
                turn.session.config_options = [mode_option(), wrong]
            except Exception as error:
                raised.append(error)

    agent = Wrong()
    wire = raw(agent)
    s = wire.start(version)
    assert wire.turn_end(version, wire.prompt(s)) == "end_turn"
    assert len(raised) == 1 and not any("configOptions" in update for update in wire.updates())
    assert agent.made[0].config_options == []
    assert wire.refused("session/new", {"cwd": "/bad"})["code"] == -32603
    assert [session["sessionId"] for session in wire.call("session/list")["sessions"]] == [s]


class Commanding(Taker):
    def new_session(self, session):
        super().new_session(session)
        session.commands = [acp.Command("go", "Go"), acp.Command("say", "Say", acp.TextCommandInput("what"))]


def test_commands_go_into_the_answer_on_version_2_and_right_behind_it_on_version_1(raw):
    told = {1: [{"name": "go", "description": "Go"}, {"name": "say", "description": "Say", "input": {"hint": "what"}}],
            2: [{"type": "command", "name": "go", "description": "Go"},
                {"type": "command", "name": "say", "description": "Say", "input": {"type": "text", "hint": "what"}}]}
    for version in (1, 2):
        agent = Commanding()
        wire = raw(agent)
        s = wire.start(version)
        if version == 2:
            assert wire.session["availableCommands"] == told[2]
            assert wire.call("session/resume", {"sessionId": s, "cwd": "/"})["availableCommands"] == told[2]
            wire.nothing(0.05)
        else:
            assert "availableCommands" not in wire.session
            update = wire.next()["params"]
            assert update == {"sessionId": s, "update": {
                "sessionUpdate": "available_commands_update", "availableCommands": told[1]}}
        agent.made[0].commands = agent.made[0].commands[:1]
        update = wire.asked("session/update")["params"]["update"]
        assert update == {"sessionUpdate": "available_commands_update", "availableCommands": told[version][:1]}


def test_commands_stand_behind_the_answer_of_resume_and_load_on_version_1(raw):
    class Resumed(Commanding):
        def resume_session(self, session, replay):
            session.commands = [acp.Command("go", "Go")]

    for method in ("session/resume", "session/load"):
        wire = raw(Resumed())
        wire.call("initialize", greeting(1))
        wire.call(method, {"sessionId": "old", "cwd": "/", "mcpServers": []})
        assert wire.updates() == []
        assert wire.next()["params"]["update"]["availableCommands"] == [{"name": "go", "description": "Go"}]


# ---- prompts --------------------------------------------------------------------------------------------------------

BLOCKS = {
    "text": A_TEXT, "resource_link": {"type": "resource_link", "name": "a", "uri": "file:///a"}, "image": AN_IMAGE,
    "audio": {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
    "resource": {"type": "resource", "resource": {"text": "a", "uri": "file:///a"}}, "_acme.com/thing": UNHEARD_OF,
}


@BOTH
@pytest.mark.parametrize("offered, kinds", [
    (None, []), (acp.PromptCapabilities(image=True), ["image"]), (acp.PromptCapabilities(audio=True), ["audio"]),
    (acp.PromptCapabilities(embedded_context=True), ["resource"])], ids=str)
def test_content_that_was_not_offered_is_refused_and_not_inserted(raw, version, offered, kinds):
    agent = speaking(1, 2, prompt_capabilities=offered)
    wire = raw(agent)
    s = wire.start(version)
    for kind, block in BLOCKS.items():
        if kind not in ("text", "resource_link", *kinds):
            error = wire.refused("session/prompt", {"sessionId": s, "prompt": [A_TEXT, block]})
            assert error["code"] == -32602 and "params.prompt[1]" in error["message"]
    assert wire.refused("session/prompt", {"sessionId": s, "prompt": []})["code"] == -32602
    wire.nothing(0.05)
    assert agent.prompts == [] and wire.updates() == []
    for kind in ("text", "resource_link", *kinds):
        p = wire.request("session/prompt", {"sessionId": s, "prompt": [BLOCKS[kind]]})
        assert wire.turn_end(version, p) == "end_turn"
    assert [turn.prompt[0].type for turn in agent.prompts] == ["text", "resource_link", *kinds]


class Doorkeeper(acp.Agent):
    """Lets in what its gate lets in."""

    versions = (1, 2)

    def __init__(self):
        self.gate, self.ran = threading.Event(), []

    def accept(self, turn):
        turn.on_cancel(self.gate.set)
        assert self.gate.wait(WAIT)
        if turn.text == "bad":
            raise acp.InvalidParams("params.prompt: not this")
        turn.message_id = "mine"

    def prompt(self, turn):
        self.ran.append(turn.text)
        turn.say(turn.text)


@BOTH
def test_an_agent_may_refuse_a_prompt_or_name_its_message_before_it_begins(raw, version):
    agent = Doorkeeper()
    wire = raw(agent)
    session = wire.start(version)
    first, bad, last = (wire.prompt(session, text) for text in ("one", "bad", "two"))
    wire.nothing()
    agent.gate.set()
    assert wire.response(bad)["error"] == {"code": -32602, "message": "params.prompt: not this"}
    if version == 2:
        wire.until(lambda m: m.get("id") == last)
        answers = {m["id"]: m["result"] for m in wire.seen if m.get("id") in (first, last)}
        assert answers == {first: {"messageId": "mine"}, last: {"messageId": "mine"}}
        wire.until(lambda m: m.get("method") == "session/update" and m["params"]["update"].get("state") == "idle")
        states = [each.get("state") or each["sessionUpdate"] for each in wire.updates()]
        assert states[:4] == ["user_message", "running", "agent_message_chunk", "idle"] and states.count("running") == 2
    else:
        assert wire.response(last)["result"] == {"stopReason": "end_turn"}
    assert agent.ran == ["one", "two"]


@BOTH
@pytest.mark.parametrize("how", ["session/cancel", "$/cancel_request", "session/close"])
def test_a_cancel_reaches_a_prompt_that_is_not_yet_let_in(raw, version, how):
    agent = Doorkeeper()
    wire = raw(agent)
    session = wire.start(version)
    ids = [wire.prompt(session), wire.prompt(session)]
    if how == "$/cancel_request":
        for id in reversed(ids):  # the held one first: the other's end opens the gate
            wire.notify(how, {"requestId": id})
    elif how == "session/close":
        wire.request(how, {"sessionId": session})
    else:
        wire.notify(how, {"sessionId": session})
    wire.until(lambda m: m.get("id") == ids[0] or m.get("id") == ids[1])
    wire.until(lambda m: m.get("id") == ids[0] or m.get("id") == ids[1])
    for answer in [m for m in wire.seen if m.get("id") in ids]:
        assert answer.get("result") == {"stopReason": "cancelled"} or answer["error"]["code"] == -32800
    assert agent.gate.wait(WAIT) and agent.ran == []
    if how != "session/close":
        assert wire.turn_end(version, wire.prompt(session)) == "end_turn"


@BOTH
@pytest.mark.parametrize("id", [5, None, ["a"]])
def test_a_message_id_that_is_no_text_fails_the_prompt(version, id):
    def accept(self, turn):
        turn.message_id = id if turn.text == "odd" else "mine"

    with acp.Client(fault_agent(say_request, accept=accept), version=version) as client:
        session = client.new_session("/")
        with pytest.raises(acp.RequestError, match="TypeError"):
            session.prompt("odd").wait(WAIT)
        assert session.ask("next", timeout=WAIT) == "next"


@BOTH
def test_a_turn_of_its_own_inside_accept_is_refused(version):
    def accept(self, turn):
        with pytest.raises(acp.Error, match="would wait for itself"):
            turn.session.turn()

    with acp.Client(fault_agent(say_request, accept=accept), version=version) as client:
        assert client.new_session("/").ask("hi", timeout=WAIT) == "hi"


@BOTH
def test_a_question_inside_accept_tells_no_state_of_a_turn_that_has_not_begun(version):
    def accept(self, turn):
        assert turn.ask_permission("may I?")

    states = []
    with acp.Client(fault_agent(say_request, accept=accept), version=version, permission=acp.allow_once,
                    on_message=lambda way, message: states.append(message)) as client:
        assert client.new_session("/").ask("hi", timeout=WAIT) == "hi"
    told = [message["params"]["update"].get("state") for message in states if message.get("method") == "session/update"]
    assert [each for each in told if each] == ([] if version == 1 else ["running", "idle"])


@BOTH
def test_what_stands_beside_a_returned_state_and_is_not_json_fails_the_turn(version):
    class Odd(acp.Agent):
        versions = (1, 2)

        def prompt(self, turn):
            end = acp.IdleStateUpdate(stop_reason="end_turn")
            end.beside = {"x": object()}
            return end

    with acp.Client(Odd(), version=version) as client:
        for _ in range(2):
            with pytest.raises(acp.RequestError, match="TypeError"):
                client.new_session("/").prompt("hi").wait(WAIT)


@BOTH
def test_a_turn_knows_its_prompt(raw, version):
    seen = {}

    def handler(turn):
        seen.update(text=turn.text, prompt=turn.prompt, meta=turn.meta, session=turn.session.id, id=turn.message_id,
                    cwd=turn.session.cwd, peer=turn.session.peer.version)

    wire = raw(Handler(handler))
    session = wire.start(version, cwd="/work")
    blocks = [{"type": "text", "text": "one"}, {"type": "resource_link", "name": "n", "uri": "file:///x"},
              {"type": "text", "text": "two"}]
    prompt = wire.request("session/prompt", {"sessionId": session, "prompt": blocks, "_meta": {"a": 1}})
    assert wire.turn_end(version, prompt) == "end_turn"
    assert seen["text"].split() in (["onetwo"], ["one", "two"]) and seen["meta"] == {"a": 1}
    assert (seen["session"], seen["cwd"], seen["peer"]) == (session, "/work", version)
    assert [type(block) for block in seen["prompt"]] == [acp.TextContent, acp.ResourceLink, acp.TextContent]
    if version == 2:
        answer = next(message["result"] for message in wire.seen if message.get("id") == prompt)
        echoed = next(update for update in wire.updates() if update["sessionUpdate"] == "user_message")
        assert answer["messageId"] == echoed["messageId"] == seen["id"] and echoed["content"] == blocks
    else:
        assert seen["id"] and not [update for update in wire.updates() if "user" in update["sessionUpdate"]]


@BOTH
@pytest.mark.parametrize("returned, reason", [(None, "end_turn"), ("refusal", "refusal"), ("max_tokens", "max_tokens"),
                                              ("max_turn_requests", "max_turn_requests"), ("_odd", "_odd"),
                                              (5, "error")])
def test_what_prompt_returns_is_the_stop_reason(raw, version, returned, reason):
    wire = raw(Handler(lambda turn: returned))
    prompt = wire.prompt(wire.start(version))
    if version == 1 and reason == "error":
        assert wire.response(prompt)["error"]["code"] == -32603
    else:
        assert wire.turn_end(version, prompt) == ("end_turn" if version == 1 and reason == "_odd" else reason)


@BOTH
def test_a_second_prompt_is_held_and_run_in_order(raw, version):
    gates, begun_texts = [threading.Event(), threading.Event()], []

    def handler(turn):
        begun_texts.append(turn.text)
        gates[int(turn.text)].wait(WAIT)
        turn.say(turn.text)

    wire = raw(Handler(handler))
    session = wire.start(version)
    first, second = wire.prompt(session, "0"), wire.prompt(session, "1")
    eventually(lambda: begun_texts)
    if version == 2:
        wire.response(first)
        wire.until(lambda m: "params" in m and m["params"]["update"].get("state") == "running")
    wire.nothing(0.06)
    assert begun_texts == ["0"]
    gates[0].set()
    assert wire.turn_end(version, first) == "end_turn"
    gates[1].set()
    if version == 2:
        wire.response(second)
    assert wire.turn_end(version, second) == "end_turn"
    assert [text_update(update) for update in told(wire)] == ["0", "1"]


# ---- sending --------------------------------------------------------------------------------------------------------

@BOTH
def test_assigning_to_a_session_reports_the_change(raw, version):
    def handler(turn):
        turn.session.title = "Title"
        turn.session.commands = [acp.Command("web", "Search")]
        turn.session.config_options = [acp.SessionConfigSelect("speed", "Speed", "slow", [
            acp.SessionConfigSelectOption("slow", "Slow"), acp.SessionConfigSelectOption("fast", "Fast")])]
        with pytest.raises(ValueError):
            turn.session.config_options = [acp.SessionConfigSelect("speed", "Speed", "none", [
                acp.SessionConfigSelectOption("slow", "Slow")])]
        assert turn.session.title == "Title" and turn.session.commands[0].name == "web"
        assert turn.session.config_options[0].current_value == "slow"

    title, commands, options = one_turn(raw, version, handler)
    assert title == {"sessionUpdate": "session_info_update", "title": "Title"}
    assert commands["availableCommands"][0]["name"] == "web"
    assert options["configOptions"][0]["id" if version == 1 else "configId"] == "speed"


@BOTH
def test_a_session_sends_asks_and_notifies_outside_a_turn(raw, version):
    agent = Handler()
    wire = raw(agent)
    id = wire.start(version, FORMS)
    session = agent.sessions[id]
    session.send(acp.AgentMessageChunk("m", acp.TextContent("by itself")))
    assert wire.asked("session/update")["params"] == {
        "sessionId": id, "update": {"sessionUpdate": "agent_message_chunk", "messageId": "m",
                                    "content": {"type": "text", "text": "by itself"}}}
    session.notify("_event", {"a": 1})
    assert wire.asked("_event")["params"] == {"sessionId": id, "a": 1}
    asking = Background(session.request, "_call", {"b": 2})
    asked = wire.asked("_call")
    assert asked["params"] == {"sessionId": id, "b": 2}
    wire.answer(asked, {"c": 3})
    assert asking.result() == {"c": 3}
    with pytest.raises(acp.Timeout):
        session.request("_never", timeout=0.05)
    asking = Background(session.elicit, "Name?", {"name": acp.StringPropertySchema()})
    wire.answer(wire.asked("elicitation/create"), {"action": "accept", "content": {"name": "x"}})
    assert asking.result().content == {"name": "x"}
    assert session.state.messages["m"].text == "by itself"


# ---- turns and states -----------------------------------------------------------------------------------------------

@BOTH
def test_all_updates_of_a_turn_are_on_the_wire_before_its_end(raw, version):
    def prompt(turn):
        threads = [threading.Thread(target=turn.say, args=(str(number),)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        turn.plan(["last"])

    wire = raw(fault_agent(prompt))
    session = wire.start(version)
    for _ in range(5):
        wire.seen.clear()
        assert wire.turn_end(version, wire.prompt(session)) == "end_turn"
        kinds = [update["sessionUpdate"] for update in wire.updates()]
        assert kinds.count("agent_message_chunk") == 20
        assert [kind for kind in kinds if kind != "state_update"][-1].startswith("plan")
    wire.nothing(0.05)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("question", ["permission", "form"])
def test_requires_action_is_told_while_the_turns_own_thread_waits_for_the_user(raw, own, question):
    def ask(turn):
        turn.ask_permission("May I?") if question == "permission" else turn.elicit("?", {})

    def handler(turn):
        ask(turn) if own else Background(ask, turn).result()
        turn.say("on")

    wire = raw(Handler(handler))
    prompt = wire.prompt(wire.start(2, FORMS))
    asked = wire.until(lambda m: "id" in m and "method" in m)[-1]
    assert states(wire) == (["running", "requires_action"] if own else ["running"])
    wire.answer(asked, {"outcome": {"outcome": "cancelled"}} if question == "permission" else {"action": "cancel"})
    assert wire.turn_end(2, prompt) == "end_turn"
    assert states(wire) == (["running", "requires_action", "running", "idle"] if own else ["running", "idle"])


def test_background_once_reported_is_on_every_later_state_update(raw):
    wire = raw(Handler(lambda turn: turn.send(acp.RunningStateUpdate(background=[acp.BackgroundToolCall("t")]))))
    session = wire.start(2)
    for _ in range(2):
        assert wire.turn_end(2, wire.prompt(session)) == "end_turn"
    reported = [update.get("background") for update in wire.updates() if update["sessionUpdate"] == "state_update"]
    assert reported == [None] + [[{"type": "tool_call", "toolCallId": "t"}]] * 5


@BOTH
def test_a_turn_has_one_end_and_nothing_of_it_comes_after(raw, version):
    def handler(turn):
        with turn.tool("Left open") as tool:
            tool.add("x" * 100)
        for number in range(50):
            turn.say(str(number))

    wire = raw(Handler(handler))
    session = wire.start(version)
    for _ in range(3):
        wire.turn_end(version, wire.prompt(session))
    assert len([update for update in told(wire) if text_update(update)]) == 150
    if version == 2:
        assert states(wire) == ["running", "idle"] * 3
        kinds = [(update["sessionUpdate"], update.get("state")) for update in wire.updates()]
        assert kinds[0] == ("user_message", None) and kinds[1] == ("state_update", "running")
    wire.nothing(0.06)


@pytest.mark.parametrize("version, kind", [(1, "thread"), (2, "unfinished tool")])
def test_what_outlives_its_turn_is_not_told(raw, version, kind):
    kept = []

    def handler(turn):
        tool = turn.tool("Open")
        tool.__enter__()
        kept.extend([turn, tool])

    wire = raw(Handler(handler))
    assert wire.turn_end(version, wire.prompt(wire.start(version))) == "end_turn"
    assert statuses(told(wire)) == ["pending", "completed"]
    with contextlib.suppress(acp.Error):
        kept[0].say("late") if kind == "thread" else kept[1].add("late")
    wire.nothing(0.06)


# ---- turns that the agent starts by itself --------------------------------------------------------------------------

@BOTH
def test_a_turn_of_the_agents_own_holds_prompts_meanwhile(raw, version):
    agent = Handler(lambda turn: turn.say("prompted"))
    wire = raw(agent)
    session = wire.start(version)
    with agent.sessions[session].turn() as turn:
        turn.say("by itself")
        prompt = wire.prompt(session)
        wire.until(lambda m: "params" in m and text_update(m["params"]["update"]) == "by itself")
        wire.nothing(0.06)
    if version == 2:
        assert wire.turn_end(2, prompt) == "end_turn"  # of the agent's own
    assert wire.turn_end(version, prompt) == "end_turn"
    assert [text_update(update) for update in told(wire)] == ["by itself", "prompted"]
    if version == 2:
        assert states(wire) == ["running", "idle"] * 2


@BOTH
def test_a_turn_of_the_agents_own_waits_for_the_running_prompt(raw, version):
    gate, started = threading.Event(), threading.Event()
    agent = Handler(lambda turn: started.set() or gate.wait(WAIT) and None)
    wire = raw(agent)
    session = wire.start(version)
    prompt = wire.prompt(session)
    assert started.wait(WAIT)

    def own():
        with agent.sessions[session].turn() as turn:
            turn.say("own")

    if version == 2:
        wire.response(prompt)
        wire.until(lambda m: "params" in m and m["params"]["update"].get("state") == "running")
    running = Background(own)
    wire.nothing(0.06)
    assert running.running
    gate.set()
    assert wire.turn_end(version, prompt) == "end_turn"
    running.result()
    wire.until(lambda m: "params" in m and text_update(m["params"]["update"]) == "own")


@BOTH
def test_a_cancel_reaches_a_turn_of_the_agents_own_and_one_that_waits(raw, version):
    agent = Handler()
    wire = raw(agent)
    session = wire.start(version)
    waiting = []

    def second():
        with pytest.raises(acp.Cancelled):
            agent.sessions[session].turn().__enter__()

    with contextlib.suppress(acp.Cancelled):
        with agent.sessions[session].turn() as turn:
            turn.say("x")
            waiting.append(Background(second))
            wire.until(lambda m: "params" in m and text_update(m["params"]["update"]) == "x")
            wire.nothing(0.06)
            wire.notify("session/cancel", {"sessionId": session})
            assert turn.wait(WAIT)
            turn.say("too late")
    waiting[0].result()
    if version == 2:
        idle = wire.until(lambda m: "params" in m and m["params"]["update"].get("state") == "idle")[-1]
        assert idle["params"]["update"]["stopReason"] == "cancelled"
    wire.nothing(0.06)
    assert [text_update(update) for update in told(wire)] == ["x"]
    assert wire.turn_end(version, wire.prompt(session)) == "end_turn"


@BOTH
def test_a_turn_of_the_agents_own_inside_a_prompt_raises(raw, version):
    raised = []

    def handler(turn):
        try:
            with turn.session.turn():
                pass
        except acp.Error as error:
            raised.append(error)

    wire = raw(Handler(handler))
    assert wire.turn_end(version, wire.prompt(wire.start(version)), 3) == "end_turn"
    assert len(raised) == 1


@BOTH
def test_a_turn_of_the_agents_own_is_entered_once(version):
    turns = []

    def extension(peer, method, params):
        with (session := agent.sessions[params["id"]]).turn() as turn:
            with pytest.raises(acp.Error, match="once"):
                session._enqueue(turn)
            turns.append(turn)
        with pytest.raises(acp.Error, match="once"), turn:
            pytest.fail("it began again")

    agent = Handler(extension=extension)
    with acp.Client(agent, version=version) as client:
        session = client.new_session(cwd="/")
        client.request("_go", {"id": session.id}, WAIT)
        assert turns[0].ended and session.prompt("go").wait(WAIT) == "end_turn"


@BOTH
def test_ctrl_c_while_a_turn_of_the_agents_own_waits_leaves_no_turn_behind(raw, monkeypatch, version):
    wait_for = acp.AgentSession._wait_for

    def interrupted(*given):
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return wait_for(*given)

    monkeypatch.setattr(acp.AgentSession, "_wait_for", interrupted)
    gate, started = threading.Event(), threading.Event()
    agent = Handler(lambda turn: started.set() or gate.wait(WAIT) and None)
    wire = raw(agent)
    session = wire.start(version)

    def own_turn():
        with pytest.raises(KeyboardInterrupt), agent.sessions[session].turn():
            pytest.fail("it began")

    prompts = [wire.prompt(session)]
    assert started.wait(WAIT)
    own_turn()  # it waits for the prompt
    prompts.append(wire.prompt(session))
    gate.set()
    assert [wire.turn_end(version, prompt) for prompt in prompts] == ["end_turn"] * 2
    eventually(lambda: not agent.sessions[session]._turns)
    own_turn()  # it has begun already
    if version == 2:
        assert wire.turn_end(version, None) == "cancelled"
    assert wire.turn_end(version, wire.prompt(session)) == "end_turn"
    assert states(wire) == (["running", "idle"] * 4 if version == 2 else [])


@BOTH
def test_an_exception_in_a_turn_of_the_agents_own_goes_on_and_ends_it(raw, version):
    agent = Handler()
    wire = raw(agent)
    session = wire.start(version)
    with pytest.raises(ValueError):
        with agent.sessions[session].turn():
            raise ValueError(SECRET)
    assert wire.turn_end(version, wire.prompt(session)) == ("error" if version == 2 else "end_turn")
    assert SECRET not in json.dumps(wire.seen)


def test_a_turn_of_the_agents_own_that_waits_ends_with_the_connection(raw):
    gate, started = threading.Event(), threading.Event()
    agent = Handler(lambda turn: started.set() or gate.wait(WAIT) and None)
    wire = raw(agent)
    wire.prompt(wire.start(2))
    assert started.wait(WAIT)
    session, = agent.sessions.values()
    waiting = Background(session.turn().__enter__)
    waiting.thread.join(0.1)
    assert waiting.running
    wire.socket.shutdown(socket.SHUT_RDWR)
    with pytest.raises(acp.Error):
        waiting.result(4)
    gate.set()


# ---- cancel ---------------------------------------------------------------------------------------------------------

@BOTH
def test_cancel_right_behind_the_prompt_cancels_it(raw, version):
    wire = raw(Waiting())
    session = wire.start(version)
    for id in range(20):
        wire.send(prompt_message(id, session, "go"), cancel_message(session))
        assert wire.turn_end(version, id, SOON) == "cancelled"


@BOTH
def test_a_cancel_when_nothing_runs_does_nothing_and_does_not_stick(raw, version):
    wire = raw(Waiting())
    session = wire.start(version)
    wire.send(cancel_message(session), cancel_message("unknown"), prompt_message(1, session, "quick"))
    assert wire.turn_end(version, 1) == "end_turn"
    wire.send(cancel_message(session))
    wire.send(prompt_message(2, session, "quick"))
    assert wire.turn_end(version, 2) == "end_turn"


@BOTH
def test_a_cancel_ends_the_running_turn_and_what_is_held_but_nothing_later(raw, version):
    agent = Waiting()
    wire = raw(agent)
    session = wire.start(version)
    wire.send(prompt_message(1, session, "running"), prompt_message(2, session, "held"),
              prompt_message(3, session, "held too"), cancel_message(session), prompt_message(4, session, "quick"))
    if version == 1:
        wire.response(4)
    else:
        wire.until(lambda m: "params" in m and m["params"]["update"].get("stopReason") == "end_turn")
    answers = {message["id"]: message for message in wire.seen if message.get("id") in (1, 2, 3, 4)}
    if version == 1:
        assert [answers[id]["result"]["stopReason"] for id in (1, 2, 3, 4)] == ["cancelled"] * 3 + ["end_turn"]
    else:
        assert [answers[id]["error"]["code"] for id in (2, 3)] == [-32800] * 2
        assert all("messageId" in answers[id]["result"] for id in (1, 4))
        assert [update["stopReason"] for update in wire.updates() if update.get("state") == "idle"] == [
            "cancelled", "end_turn"]
    assert "held" not in agent.begun and "held too" not in agent.begun and agent.begun[-1] == "quick"


@BOTH
def test_a_cancel_reaches_its_own_session_only(raw, version):
    release = threading.Event()

    def prompt(turn):
        eventually(lambda: turn.cancelled or release.is_set())

    wire = raw(fault_agent(prompt))
    sessions = [wire.start(version), wire.call("session/new", {"cwd": "/", "mcpServers": []})["sessionId"]]
    ids = [wire.prompt(session) for session in sessions]
    wire.notify("session/cancel", {"sessionId": "unknown"})
    wire.notify("session/cancel", {"sessionId": sessions[0]})
    assert wire.turn_end(version, ids[0]) == "cancelled"
    wire.nothing(0.1)  # neither an answer to a cancel nor the end of the other turn
    release.set()
    assert wire.turn_end(version, ids[1]) == "end_turn"


BLOCKED_QUESTIONS = [  # the version, the method, and what asks it
    (1, "session/request_permission", lambda turn: turn.ask_permission("May I?")),
    (2, "session/request_permission", lambda turn: turn.ask_permission("May I?")),
    (1, "elicitation/create", lambda turn: turn.elicit("Who?", {})),
    (2, "elicitation/create", lambda turn: turn.elicit("Who?", {})),
    (1, "fs/read_text_file", lambda turn: turn.read_text_file("/f")),
    (1, "fs/write_text_file", lambda turn: turn.write_text_file("/f", "")),
]


@pytest.mark.parametrize("version,method,ask", BLOCKED_QUESTIONS)
def test_a_cancel_ends_a_handlers_wait_for_the_client(raw, version, method, ask):
    raised = []

    def prompt(turn):
        try:
            ask(turn)
        except acp.Cancelled as error:
            raised.append(error)
            raise

    wire = raw(fault_agent(prompt))
    capabilities = {"elicitation": {"form": {}}}
    if version == 1:
        capabilities.update(fs={"readTextFile": True, "writeTextFile": True}, terminal=True)
    session = wire.start(version, capabilities)
    id = wire.prompt(session)
    question = wire.asked(method)
    with within(SOON):
        wire.notify("session/cancel", {"sessionId": session})
        assert wire.turn_end(version, id) == "cancelled"
    assert len(raised) == 1
    assert [m["params"] for m in wire.seen if m.get("method") == "$/cancel_request"] == [{"requestId": question["id"]}]
    wire.answer(question, {"outcome": {"outcome": "selected", "optionId": "allow"}})  # too late: swallowed
    wire.nothing(0.1)


@BOTH
def test_a_held_prompt_that_is_cancelled_does_not_begin(raw, version):
    release, begun = threading.Event(), []

    def prompt(turn):
        begun.append(turn.text)
        assert release.wait(WAIT)

    wire = raw(fault_agent(prompt))
    session = wire.start(version)
    first, second, third = 1, 2, 3
    for id, text in ((first, "one"), (second, "two"), (third, "three")):
        wire.request("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]}, id=id)
    for method, params in [
            ("$/cancel_request", {"requestId": "3"}), ("$/cancel_request", {"requestId": 3.0}),
            ("$/cancelRequest", {"requestId": 3}), ("$/cancelRequest", {"id": 3}),
            ("$/cancel_request", {"requestId": 99}), ("$/cancel_request", {"requestId": None}),
            ("$/cancel_request", {}), ("$/cancel_request", {"requestId": 2})]:
        wire.notify(method, params)
    answer = wire.response(second)
    assert answer["error"]["code"] == -32800
    release.set()
    assert next_ends(wire, version, 2) == ["end_turn", "end_turn"]
    assert begun == ["one", "three"]
    assert [m["id"] for m in wire.seen if m.get("id") == second] == [second]
    wire.notify("$/cancel_request", {"requestId": first})  # finished
    wire.nothing(0.1)


@BOTH
def test_wait_check_and_on_cancel_tell_a_handler_of_the_cancel(raw, version):
    told_of, begun_waiting = [], threading.Event()

    def handler(turn):
        turn.on_cancel(lambda: told_of.append("on_cancel"))
        told_of.append((turn.cancelled, turn.wait(0.01)))
        turn.check()
        begun_waiting.set()
        told_of.append((turn.wait(WAIT), turn.cancelled))
        eventually(lambda: "on_cancel" in told_of)
        turn.on_cancel(lambda: told_of.append("at once"))
        assert told_of[-1] == "at once"
        told_of.append(turn.wait(WAIT))
        with pytest.raises(acp.Cancelled):
            turn.check()
        told_of.append("checked")

    wire = raw(Handler(handler))
    session = wire.start(version)
    prompt = wire.prompt(session)
    assert begun_waiting.wait(WAIT)
    with within(SOON):
        wire.notify("session/cancel", {"sessionId": session})
        assert wire.turn_end(version, prompt) == "cancelled"
    told_of.remove("on_cancel")
    assert told_of == [(False, False), (True, True), "at once", True, "checked"]


@BOTH
@pytest.mark.parametrize("outcome", [
    "returns", "returns a reason", "raises Cancelled", "raises", "raises RequestError"])
def test_a_cancelled_turn_is_reported_as_cancelled_whatever_comes_out(raw, version, outcome):
    def handler(turn):
        turn.wait(WAIT if turn.text == "wait" else 0)
        if outcome == "returns a reason":
            return "max_tokens"
        if outcome != "returns":
            raise {"raises Cancelled": acp.Cancelled("stop"), "raises": ValueError("aborted"),
                   "raises RequestError": acp.RequestError(-1, "aborted")}[outcome]

    wire = raw(Handler(handler))
    session = wire.start(version)
    prompt = wire.prompt(session, "wait")
    wire.notify("session/cancel", {"sessionId": session})
    assert wire.turn_end(version, prompt) == "cancelled"
    prompt = wire.prompt(session, "without a cancel")
    if outcome.startswith("raises") and version == 1:
        error = wire.response(prompt)["error"]
    else:
        reasons = {"returns": "end_turn", "returns a reason": "max_tokens"}
        assert wire.turn_end(version, prompt) == reasons.get(outcome, "error")
        error = wire.updates()[-1].get("error") if version == 2 else None
    if outcome.startswith("raises"):
        assert error["code"] == (-1 if outcome == "raises RequestError" else -32603)


AFTER_CANCEL = {
    "say": lambda turn: turn.say("x"), "think": lambda turn: turn.think("x"), "plan": lambda turn: turn.plan(["x"]),
    "usage": lambda turn: turn.usage(1, 2), "send": lambda turn: turn.send(acp.SessionInfoUpdate(title="x")),
    "tool": lambda turn: turn.tool("x").__enter__(), "ask_permission": lambda turn: turn.tool("x").ask_permission(),
    "elicit": lambda turn: turn.elicit("?", {}),
    "elicit_url": lambda turn: turn.elicit_url("?", "https://example.org/"),
    "notice": lambda turn: turn.notice("x"), "check": lambda turn: turn.check(),
}


@BOTH
@pytest.mark.parametrize("call", sorted(AFTER_CANCEL))
def test_after_a_cancel_whatever_sends_or_asks_raises_but_tools_already_begun_can_end(raw, version, call):
    raised = []

    def handler(turn):
        with turn.tool("Begun") as tool:
            turn.wait(WAIT)
            try:
                AFTER_CANCEL[call](turn)
            except acp.Cancelled:
                raised.append(call)
            tool.update(title="Still told")

    wire = raw(Handler(handler))
    session = wire.start(version, {**FORMS, "session": {"notices": {}}})
    prompt = wire.prompt(session)
    wire.until(lambda m: "params" in m and m["params"]["update"].get("toolCallId"))
    wire.notify("session/cancel", {"sessionId": session})
    assert wire.turn_end(version, prompt) == "cancelled"
    assert raised == [call]
    updates = told(wire)
    assert [update.get("title") for update in updates if update.get("title")] == ["Begun", "Still told"]
    assert statuses(updates) == ["pending", "failed" if version == 1 else "cancelled"] and len(updates) == 3
    assert not [message for message in wire.seen if "method" in message and "id" in message]


@BOTH
def test_the_cancel_hook_is_called_beside_the_cancel_of_the_turn(raw, version):
    calls = []

    class Hooked(Handler):
        def cancel(self, session):
            calls.append(session.id)

    wire = raw(Hooked(lambda turn: turn.wait(WAIT)))
    session = wire.start(version)
    prompt = wire.prompt(session)
    wire.notify("session/cancel", {"sessionId": session})
    assert wire.turn_end(version, prompt) == "cancelled"
    eventually(lambda: calls == [session])


@pytest.mark.parametrize("version, by", [(1, "session/cancel"), (2, "session/cancel"), (1, "session/close")])
def test_a_handler_that_hangs_after_a_cancel_is_given_up(raw, monkeypatch, version, by):
    monkeypatch.setattr(acp, "GRACE_CANCELLED", 0.15)
    release, late = threading.Event(), []

    def handler(turn):
        if turn.text == "hang":
            with turn.tool("Open"):
                release.wait(WAIT)
                try:
                    turn.say("late")
                except acp.Error:
                    late.append("raised")
            late.append("ended")

    wire = raw(Handler(handler))
    session = wire.start(version)
    prompt = wire.prompt(session, "hang")
    wire.until(lambda m: "params" in m and m["params"]["update"].get("toolCallId"))
    begin = time.monotonic()
    if by == "session/cancel":
        wire.notify(by, {"sessionId": session})
        following = wire.prompt(session, "quick")
    else:
        following = wire.request(by, {"sessionId": session})
    assert wire.turn_end(version, prompt) == "cancelled"
    assert 0.1 < time.monotonic() - begin < 2
    assert statuses(told(wire)) == ["pending", "failed" if version == 1 else "cancelled"]
    if by == "session/cancel":
        assert wire.turn_end(version, following) == "end_turn"
    else:
        assert wire.response(following)["result"] == {}
    release.set()
    eventually(lambda: "ended" in late)
    wire.nothing(0.06)


@BOTH
def test_what_a_handler_does_in_a_session_that_was_closed_over_it_raises_cancelled(raw, monkeypatch, version):
    monkeypatch.setattr(acp, "GRACE_CANCELLED", 0.05)
    release, raised = threading.Event(), []

    def handler(turn):
        turn.say("begun")
        release.wait(WAIT)
        for late in (lambda: turn.say("x"), lambda: turn.ask_permission("May I?"), lambda: turn.tool("x").__enter__(),
                     lambda: turn.tool("x").ask_permission(), lambda: turn.elicit("?", {}), turn.check):
            try:
                raised.append(late())
            except acp.Error as error:
                raised.append(type(error))
        raised.append("all")

    wire = raw(Handler(handler))
    session = wire.start(version, FORMS)
    wire.prompt(session)
    wire.until(lambda m: "params" in m and text_update(m["params"]["update"]) == "begun")
    assert wire.call("session/close", {"sessionId": session}) == {}
    release.set()
    eventually(lambda: "all" in raised)
    assert raised == [acp.Cancelled] * 6 + ["all"]
    wire.nothing(0.03)


# ---- saying ---------------------------------------------------------------------------------------------------------

@BOTH
def test_consecutive_words_are_one_message_and_anything_in_between_begins_a_new_one(raw, version):
    def handler(turn):
        turn.say("a")
        turn.say(acp.TextContent("b"))
        turn.think("c")
        turn.think("d")
        turn.say("e")
        turn.plan(["step"])
        turn.say("f")
        turn.usage(1, 2)
        turn.say("g")

    updates = [update for update in one_turn(raw, version, handler) if "messageId" in update]
    groups = [(key[0], "".join(update["content"]["text"] for update in group)) for key, group in itertools.groupby(
        updates, lambda update: (update["sessionUpdate"], update["messageId"]))]
    message, thought = "agent_message_chunk", "agent_thought_chunk"
    assert groups == [(message, "ab"), (thought, "cd"), (message, "e"), (message, "f"), (message, "g")]
    assert len({update["messageId"] for update in updates}) == 5


@BOTH
@pytest.mark.parametrize("question, answer", [
    ("session/request_permission", {"outcome": CANCELLED}), ("elicitation/create", {"action": "decline"})])
def test_a_question_in_between_begins_a_new_message(raw, version, question, answer):
    def handler(turn):
        turn.say("a")
        turn.ask_permission("May I?") if "permission" in question else turn.elicit("?", {})
        turn.say("b")

    wire = raw(Handler(handler))
    prompt = wire.prompt(wire.start(version, FORMS))
    wire.answer(wire.asked(question), answer)
    assert wire.turn_end(version, prompt) == "end_turn"
    chunks = [update for update in told(wire) if text_update(update)]
    assert texts_of(chunks) == ["a", "b"] and len({update["messageId"] for update in chunks}) == 2


@BOTH
def test_plan_and_usage_on_the_wire(raw, version):
    def handler(turn):
        turn.plan(["one", acp.PlanEntry("two", "high", "in_progress")])
        turn.usage(10, 200, acp.Cost(0.5, "EUR"))
        turn.usage(0, 200)

    plan, usage, later = one_turn(raw, version, handler)
    entries = [{"content": "one", "priority": "medium", "status": "pending"},
               {"content": "two", "priority": "high", "status": "in_progress"}]
    assert plan == ({"sessionUpdate": "plan", "entries": entries} if version == 1 else {
        "sessionUpdate": "plan_update", "plan": {"type": "items", "planId": "plan", "entries": entries}})
    assert usage == {"sessionUpdate": "usage_update", "used": 10, "size": 200,
                     "cost": {"amount": 0.5, "currency": "EUR"}}
    assert later == {"sessionUpdate": "usage_update", "used": 0, "size": 200}


@pytest.mark.parametrize("version, capabilities, say, shown", [
    (1, None, False, []), (1, None, True, ["agent_message_chunk"]), (1, {"session": {"notices": {}}}, True, ["notice"]),
    (1, {"session": {"notices": {}}}, False, ["notice"]), (2, None, False, ["notice"]), (2, None, True, ["notice"])])
def test_a_notice_goes_to_clients_that_take_it_or_is_said(raw, version, capabilities, say, shown):
    def handler(turn):
        turn.notice("Careful", severity="warning", description="Hot", say=say)

    updates = one_turn(raw, version, handler, capabilities)
    assert [update["sessionUpdate"] for update in updates] == shown
    if shown == ["notice"]:
        assert updates[0] == {
            "sessionUpdate": "notice", "severity": "warning", "title": "Careful", "description": "Hot"}
    elif shown:
        assert "Careful" in updates[0]["content"]["text"]


@BOTH
def test_send_takes_any_update_and_says_it_in_the_words_of_the_version(raw, version):
    def handler(turn):
        turn.send(acp.AgentMessage("m", [acp.TextContent("whole")]))
        turn.send(acp.SessionInfoUpdate(title="T"))
        turn.send(acp.RunningStateUpdate())
        compaction = acp.CompactionUpdate("c", "in_progress")
        if version == 1:
            with pytest.raises(acp.Unsupported):
                turn.send(compaction)
        else:
            turn.send(compaction)

    kinds = [update["sessionUpdate"] for update in one_turn(raw, version, handler)]
    assert kinds == (["agent_message_chunk", "session_info_update"] if version == 1 else
                     ["agent_message", "session_info_update", "compaction_update"])


@BOTH
def test_a_chatty_command_costs_bytes_and_time_in_proportion(version):
    class Chatty(acp.Agent):
        versions = (1, 2)

        def prompt(self, turn):
            with turn.tool("run") as tool:
                for _ in range(int(turn.text)):
                    tool.add("x" * 1024)

    def measure(count):
        sizes = []
        with acp.Client(Chatty(), version=version, on_message=lambda direction, message: sizes.append(
                len(json.dumps(message))) if direction == "in" else None) as client:
            session = client.new_session("/")
            session.prompt(str(count)).wait()
            call, = session.state.tool_calls.values()
            assert call.status == "completed" and len(call.content) == count
            assert all(item.content.text == "x" * 1024 for item in call.content)
        return sum(sizes)

    for count in (200, 800):
        once, twice = measure(count), measure(2 * count)
        assert twice <= 2.5 * once
        assert twice <= 2 * count * 1024 * (2 if version == 2 else 8)


# ---- tools ----------------------------------------------------------------------------------------------------------

def raises_inside(turn, tool):
    raise ValueError("no")


TOOL_ENDS = {  # what happens inside the block, and the statuses of version 2
    "nothing": (lambda turn, tool: None, ["pending", "completed"]),
    "something is shown": (lambda turn, tool: tool.add("x"), ["pending", "in_progress", "completed"]),
    "an exception": (raises_inside, ["pending", "failed"]),
    "fail": (lambda turn, tool: tool.fail("no"), ["pending", "in_progress", "failed"]),
    "granted": (lambda turn, tool: tool.ask_permission(), ["pending", "in_progress", "completed"]),
    "refused": (lambda turn, tool: tool.ask_permission(), ["pending", "cancelled"]),
    "ended by hand": (lambda turn, tool: tool.update(status="completed"), ["pending", "completed"]),
    "cancelled": (lambda turn, tool: turn.wait(WAIT), ["pending", "cancelled"]),
    "cancelled and noticed": (lambda turn, tool: (turn.wait(WAIT), turn.check()), ["pending", "cancelled"]),
    "cancelled while asking": (lambda turn, tool: tool.ask_permission(), ["pending", "cancelled"]),
}


@BOTH
@pytest.mark.parametrize("inside", sorted(TOOL_ENDS))
def test_a_tool_call_tells_its_life_by_itself(raw, version, inside):
    happens, wanted = TOOL_ENDS[inside]

    def handler(turn):
        with turn.tool("Title", kind="edit") as tool:
            happens(turn, tool)

    wire = raw(Handler(handler))
    session = wire.start(version)
    prompt = wire.prompt(session)
    if inside in ("granted", "refused", "cancelled while asking"):
        asked = wire.asked("session/request_permission")
        assert [each["kind"] for each in asked["params"]["options"]] == ["allow_once", "reject_once"]
        kind = {"granted": "allow_once", "refused": "reject_once"}.get(inside)
        option = next((each["optionId"] for each in asked["params"]["options"] if each["kind"] == kind), None)
        if option:
            wire.answer(asked, {"outcome": {"outcome": "selected", "optionId": option}})
    else:
        wire.until(lambda m: "params" in m and m["params"]["update"].get("toolCallId"))
    if inside.startswith("cancelled"):
        wire.notify("session/cancel", {"sessionId": session})
    if inside == "an exception" and version == 1:
        assert wire.response(prompt)["error"]["code"] == -32603
    else:
        assert wire.turn_end(version, prompt) == (
            "cancelled" if inside.startswith("cancelled") else "error" if inside == "an exception" else "end_turn")
    if version == 1:
        wanted = ["failed" if status == "cancelled" else status for status in wanted]
    found = statuses(told(wire))
    assert (found[0], found[-1]) == (wanted[0], wanted[-1])
    assert found == wanted or (inside == "fail" and found == ["pending", "failed"])
    wire.nothing(0.03)


@BOTH
def test_a_tool_call_that_could_not_be_announced_is_announced_by_what_comes_next_of_it(raw, version):
    def handler(turn):
        with pytest.raises(ValueError):
            turn.tool("Wrong", tool_call_id="k", raw_input={"n": float("nan")}).__enter__()
        with turn.tool("Right", tool_call_id="k") as tool:
            tool.add("shown")

    first, *more = one_turn(raw, version, handler)
    assert (first["sessionUpdate"], first["title"]) == ("tool_call" if version == 1 else "tool_call_update", "Right")
    assert statuses([first, *more]) == ["pending", "in_progress", "completed"]


@BOTH
def test_a_tool_call_that_was_refused_and_then_allowed_completes_unless_the_client_has_ended_it(raw, version):
    def handler(turn):
        with turn.tool("Again", tool_call_id="again") as tool:
            results.append((bool(tool.ask_permission()), bool(tool.ask_permission()), tool.cancelled))
        with turn.tool("Ended", tool_call_id="ended", cancellable=True) as tool:
            results.append((bool(tool.ask_permission()), tool.cancelled))

    results = []
    wire = raw(Handler(handler, cancel_tool_call=lambda session, tool_call_id: None))
    session = wire.start(version)
    prompt = wire.prompt(session)
    for kind in ("reject_once", "allow_once", "allow_once"):
        asked = wire.asked("session/request_permission")
        if "ended" in json.dumps(asked) and version == 2:
            assert wire.call("tool_call/cancel", {"sessionId": session, "toolCallId": "ended"}) == {}
        option = next(each["optionId"] for each in asked["params"]["options"] if each["kind"] == kind)
        wire.answer(asked, {"outcome": {"outcome": "selected", "optionId": option}})
    assert wire.turn_end(version, prompt) == "end_turn"
    assert {update["toolCallId"]: update["status"] for update in told(wire) if update.get("status")} == {
        "again": "completed", "ended": "completed" if version == 1 else "cancelled"}
    assert results == [(False, True, False), (True, version == 2)]


@BOTH
def test_a_tool_call_carries_its_fields(raw, version):
    def handler(turn):
        with turn.tool("Title", kind="read", tool_call_id="own", locations=["/a", acp.ToolCallLocation("/b", 3)],
                       raw_input=0) as tool:
            tool.add("shown")
            tool.diff("/a", "new\n", "old\n")
            tool.update(title="Other", raw_output=[])

    updates = one_turn(raw, version, handler)
    assert updates[0]["sessionUpdate"] == ("tool_call" if version == 1 else "tool_call_update")
    first = {key: value for key, value in updates[0].items() if key != "sessionUpdate"}
    assert first == {"toolCallId": "own", "title": "Title", "kind": "read", "status": "pending", "rawInput": 0,
                     "locations": [{"path": "/a"}, {"path": "/b", "line": 3}]}
    assert all(update["toolCallId"] == "own" for update in updates)
    state = acp.SessionState(acp.from_wire(acp.SessionUpdate, update, version) for update in updates)
    call = state.tool_calls["own"]
    assert (call.title, call.raw_output, call.status) == ("Other", [], "completed")
    assert call.content[0].content.text == "shown" and isinstance(call.content[1], acp.Diff)


@BOTH
def test_after_fail_the_block_goes_on_and_the_end_is_told_once(raw, version):
    def handler(turn):
        with turn.tool("Title") as tool:
            tool.fail("it broke")
            turn.say("going on")

    updates = one_turn(raw, version, handler)
    assert statuses(updates)[-1] == "failed" and statuses(updates).count("failed") == 1
    assert "completed" not in statuses(updates)
    assert [text_update(update) for update in updates][-1] == "going on"
    assert "it broke" in json.dumps(updates)


def test_a_client_cancels_a_tool_call_that_was_declared_cancellable(raw):
    hooks = []

    class Cancelling(Handler):
        def cancel_tool_call(self, session, tool_call_id):
            hooks.append((session.id, tool_call_id))

    def handler(turn):
        with turn.tool("Fixed", tool_call_id="fixed"):
            with turn.tool("Loose", tool_call_id="loose", cancellable=True) as tool:
                eventually(lambda: tool.cancelled)
        turn.say("goes on")

    wire = raw(Cancelling(handler))
    session = wire.start(2)
    prompt = wire.prompt(session)
    wire.until(lambda m: "params" in m and m["params"]["update"].get("toolCallId") == "loose")
    for wrong in ("fixed", "unknown"):
        assert wire.refused("tool_call/cancel", {"sessionId": session, "toolCallId": wrong})["code"] == -32602
    assert wire.refused("tool_call/cancel", {"sessionId": "unknown", "toolCallId": "loose"})["code"] == -32002
    assert wire.call("tool_call/cancel", {"sessionId": session, "toolCallId": "loose"}) == {}
    assert wire.turn_end(2, prompt) == "end_turn"
    assert hooks == [(session, "loose")]
    assert {update["toolCallId"]: update["status"] for update in told(wire) if update.get("status")} == {
        "fixed": "completed", "loose": "cancelled"}


def test_a_tool_call_that_is_cancelled_as_soon_as_it_shows_is_cancelled(monkeypatch):
    over, send, found = threading.Event(), acp.Turn.send, []

    def send_and_linger(turn, update, *more, **options):
        send(turn, update, *more, **options)
        if getattr(update, "title", None) == "Long" and not turn._lock._is_owned():
            assert over.wait(WAIT)  # nothing holds the cancel up: it is over before the handler goes on

    def cancel(session, update):
        if getattr(update, "title", None) == "Long":
            session.cancel_tool_call(update.tool_call_id, timeout=WAIT)
            over.set()

    def handler(turn):
        with turn.tool("Long", cancellable=True) as tool:
            assert over.wait(WAIT)
            found.append(tool.cancelled)

    monkeypatch.setattr(acp.Turn, "send", send_and_linger)
    with acp.Client(Handler(handler), version=2, on_update=cancel) as client:
        session = client.new_session("/")
        session.ask("go", timeout=WAIT)
        assert found == [True]
        assert [call.status for call in session.state.tool_calls.values()] == ["cancelled"]


@BOTH
@pytest.mark.parametrize("status", [None, acp.UNSET], ids=repr)
def test_a_tool_call_whose_status_is_cleared_is_not_announced_again(raw, version, status):
    def handler(turn):
        with turn.tool("Title") as tool:
            tool.update(status=status, raw_output=1)
            tool.add("shown")

    updates = one_turn(raw, version, handler)
    assert ["title" in update for update in updates] == [True] + [False] * 4
    assert [update["sessionUpdate"] for update in updates].count("tool_call") == (version == 1)
    told_then = [update for update in updates if "rawOutput" not in update]  # version 1 says pending for null
    assert statuses(told_then) == ["pending", "in_progress", "completed"]


def test_a_display_terminal_that_was_declared_cancellable_can_be_cancelled(raw):
    hooks = []

    def handler(turn):
        able = acp.TerminalCapabilities(cancel=True)
        for update in (acp.TerminalUpdate("fixed"), acp.TerminalUpdate("loose", capabilities=able),
                       acp.TerminalUpdate("spent", capabilities=able), acp.TerminalUpdate("spent", capabilities=None)):
            turn.send(update)

    agent = Handler(handler, cancel_terminal=lambda session, id: hooks.append((session.id, id)))
    wire = raw(agent)
    s = wire.start(2)
    assert wire.turn_end(2, wire.prompt(s)) == "end_turn"
    assert [each.get("capabilities", "") for each in told(wire)] == ["", {"cancel": {}}, {"cancel": {}}, None]
    for session, terminal, code in ((s, "fixed", -32602), (s, "spent", -32602), (s, "none", -32602),
                                    ("none", "loose", -32002)):
        error = wire.refused("terminal/cancel", {"sessionId": session, "terminalId": terminal})
        assert error["code"] == code and (code != -32002 or error["data"] == {"sessionId": "none"})
    assert wire.call("terminal/cancel", {"sessionId": s, "terminalId": "loose"}) == {}
    assert hooks == [(s, "loose")]
    wire = raw(agent)
    s = wire.start(1)
    for method in ("terminal/cancel", "tool_call/cancel"):
        assert wire.refused(method, {"sessionId": s, "terminalId": "loose", "toolCallId": "c"})["code"] == -32601


# ---- questions ------------------------------------------------------------------------------------------------------

OFFERED = [acp.PermissionOption("yes", "Yes", "allow_once"), acp.PermissionOption("ever", "Ever", "allow_always"),
           acp.PermissionOption("no", "No", "reject_once"), acp.PermissionOption("odd", "Odd", "allowed?")]


def choice_of(option_id):
    return {"result": {"outcome": {"outcome": "selected", "optionId": option_id}}}


@BOTH
@pytest.mark.parametrize("answer, allowed", [
    (choice_of("yes"), True), (choice_of("ever"), True), (choice_of("no"), False), (choice_of("odd"), False),
    (choice_of("never offered"), False), (choice_of(""), False), (choice_of(None), False), (choice_of(["yes"]), False),
    ({"result": {"outcome": {"outcome": "cancelled", "optionId": "yes"}}}, False),
    ({"result": {"outcome": {"outcome": "allowed", "optionId": "yes"}}}, False),
    ({"result": {"outcome": {"optionId": "yes"}}}, False), ({"result": {"outcome": "allow_once"}}, False),
    ({"result": {"outcome": "selected", "optionId": "yes"}}, False), ({"result": {"outcome": None}}, False),
    ({"result": {}}, False), ({"result": None}, False), ({"result": True}, False), ({"result": "yes"}, False),
    ({"result": ["yes"]}, False), ({"error": {"code": -32603, "message": "yes"}}, False), ({"error": "yes"}, False),
    ({"error": {"code": 0, "message": ""}, **choice_of("yes")}, False),
], ids=lambda value: json.dumps(value) if isinstance(value, dict) else "")
def test_only_an_offered_option_that_allows_is_an_approval(raw, version, answer, allowed):
    class Careful(acp.Agent):
        versions = (1, 2)

        def prompt(self, turn):
            subject = acp.ToolCallPermissionSubject(acp.ToolCallUpdate("c", title="Delete"))
            turn.say(str(bool(turn.ask_permission("May I?", options=OFFERED, subject=subject))))

    wire = raw(Careful())
    p = wire.prompt(wire.start(version))
    request = wire.asked("session/request_permission")
    assert [option["optionId"] for option in request["params"]["options"]] == ["yes", "ever", "no", "odd"]
    wire.send({"jsonrpc": "2.0", "id": request["id"], **answer})
    assert wire.turn_end(version, p) == "end_turn"
    assert texts_of(wire.updates()) == [str(allowed)]


@BOTH
def test_a_lost_connection_is_no_approval(raw, version):
    outcome, over = [], threading.Event()

    class Careful(acp.Agent):
        versions = (1, 2)

        def prompt(self, turn):
            try:
                outcome.append(bool(turn.ask_permission("May I?", options=OFFERED,
                    subject=acp.ToolCallPermissionSubject(
                    acp.ToolCallUpdate("c", title="Delete")))))
            except Exception as error:
                outcome.append(error)
            over.set()

    wire = raw(Careful())
    wire.prompt(wire.start(version))
    wire.asked("session/request_permission")
    wire.socket.shutdown(socket.SHUT_RDWR)
    assert over.wait(WAIT)
    assert outcome[0] is False or isinstance(outcome[0], (acp.ConnectionClosed, acp.Cancelled))


@BOTH
def test_a_permission_without_a_tool_call_carries_its_title(raw, version):
    results = []
    options = [acp.PermissionOption("a", "Always", "allow_always"), acp.PermissionOption("n", "Never", "reject_always")]
    wire = raw(Handler(lambda turn: results.append(turn.ask_permission("May I?", options=options))))
    prompt = wire.prompt(wire.start(version))
    asked = wire.asked("session/request_permission", 2)
    assert (asked["params"]["toolCall"] if version == 1 else asked["params"])["title"] == "May I?"
    assert [option["optionId"] for option in asked["params"]["options"]] == ["a", "n"]
    wire.answer(asked, {"outcome": {"outcome": "selected", "optionId": "a"}})
    assert wire.turn_end(version, prompt) == "end_turn"
    assert results[0] and (results[0].option_id, results[0].outcome) == ("a", "selected")


@BOTH
def test_what_is_allowed_always_is_remembered_in_its_session(raw, version):
    results = []

    def handler(turn):
        with turn.tool("Write") as tool:
            results.append(bool(tool.ask_permission(remember="write")))

    wire = raw(Handler(handler))
    session = wire.start(version)
    for kind in ("allow_once", "allow_always"):
        prompt = wire.prompt(session)
        asked = wire.asked("session/request_permission")
        options = {option["kind"]: option["optionId"] for option in asked["params"]["options"]}
        assert set(options) == {"allow_once", "allow_always", "reject_once"}
        wire.answer(asked, {"outcome": {"outcome": "selected", "optionId": options[kind]}})
        assert wire.turn_end(version, prompt) == "end_turn"
    assert wire.turn_end(version, wire.prompt(session)) == "end_turn"  # it does not ask
    other = wire.call("session/new", {"cwd": "/", "mcpServers": []})["sessionId"]
    prompt = wire.prompt(other)
    wire.answer(wire.asked("session/request_permission"), {
        "outcome": {"outcome": "selected", "optionId": options[kind]}})
    assert wire.turn_end(version, prompt) == "end_turn"
    assert results == [True] * 4


@BOTH
def test_what_is_allowed_always_is_not_allowed_in_a_cancelled_turn(raw, version):
    results, begun = [], threading.Event()

    def handler(turn):
        if turn.text == "wait":
            begun.set()
            assert turn.wait(WAIT)
        try:
            results.append(bool(turn.ask_permission("May I?", remember="write")))
        except acp.Cancelled:
            results.append("cancelled")

    wire = raw(Handler(handler))
    session = wire.start(version)
    prompt = wire.prompt(session)
    asked = wire.asked("session/request_permission")
    always = next(each["optionId"] for each in asked["params"]["options"] if each["kind"] == "allow_always")
    wire.answer(asked, {"outcome": {"outcome": "selected", "optionId": always}})
    assert wire.turn_end(version, prompt) == "end_turn"
    prompt = wire.prompt(session, "wait")
    assert begun.wait(WAIT)
    wire.notify("session/cancel", {"sessionId": session})
    assert wire.turn_end(version, prompt) == "cancelled"
    assert wire.turn_end(version, wire.prompt(session)) == "end_turn"  # here it holds again
    assert results == [True, "cancelled", True]


@BOTH
@pytest.mark.parametrize("answer, accepted, content", [
    ({"action": "accept", "content": {"name": "x"}}, True, {"name": "x"}), ({"action": "accept"}, True, {}),
    ({"action": "decline"}, False, {}), ({"action": "cancel"}, False, {})], ids=str)
def test_elicit_asks_by_a_form(raw, version, answer, accepted, content):
    results = []
    wire = raw(Handler(lambda turn: results.append(turn.elicit("Name?", {"name": acp.StringPropertySchema()}))))
    session = wire.start(version, FORMS)
    prompt = wire.prompt(session)
    asked = wire.asked("elicitation/create")
    params = asked["params"]
    assert (params["message"], params["mode"], params["sessionId"]) == ("Name?", "form", session)
    assert params["requestedSchema"]["properties"] == {"name": {"type": "string"}}
    wire.answer(asked, answer)
    assert wire.turn_end(version, prompt) == "end_turn"
    assert (bool(results[0]), results[0].action, results[0].content) == (accepted, answer["action"], content)


def test_elicit_needs_a_form_and_elicit_url_a_page():
    errors = []

    def handler(turn):
        for ask in turn.elicit, turn.elicit_url, turn.session.elicit, turn.session.elicit_url:
            with pytest.raises(TypeError) as error:
                ask("Name?", None)
            errors.append(error)

    with acp.Client(Handler(handler), elicitation=acp.accept_defaults) as client:
        assert client.new_session(cwd="/").prompt("go").wait(WAIT) == "end_turn" and len(errors) == 4


@BOTH
def test_elicit_url_asks_for_a_page_and_complete_tells_its_end(raw, version):
    def handler(turn):
        result = turn.elicit_url("Log in", "https://example.org/")
        assert result and result.action == "accept"
        result.complete()

    wire = raw(Handler(handler))
    prompt = wire.prompt(wire.start(version, FORMS))
    asked = wire.asked("elicitation/create")
    assert (asked["params"]["mode"], asked["params"]["url"]) == ("url", "https://example.org/")
    wire.answer(asked, {"action": "accept"})
    assert wire.asked("elicitation/complete")["params"]["elicitationId"] == asked["params"]["elicitationId"]
    assert wire.turn_end(version, prompt) == "end_turn"


@BOTH
def test_complete_of_a_form_raises_and_sends_nothing(raw, version):
    raised = []

    def handler(turn):
        for ask in (turn.elicit, turn.session.elicit):
            with pytest.raises(acp.Error, match="page"):
                ask("Name?", {"name": acp.StringPropertySchema()}).complete()
            raised.append(ask)

    wire = raw(Handler(handler))
    prompt = wire.prompt(wire.start(version, FORMS))
    for action in ("accept", "decline"):
        wire.answer(wire.asked("elicitation/create"), {"action": action, "content": {}})
    assert wire.turn_end(version, prompt) == "end_turn"
    assert len(raised) == 2 and not [each for each in wire.seen if each.get("method") == "elicitation/complete"]


@BOTH
def test_what_the_client_did_not_offer_raises_unsupported_and_nothing_goes_out(raw, version):
    raised = []

    def handler(turn):
        for call in (lambda: turn.elicit("?", {}), lambda: turn.elicit_url("?", "https://example.org/"),
                     lambda: turn.session.elicit("?", {})):
            with pytest.raises(acp.Unsupported):
                call()
            raised.append(call)

    wire = raw(Handler(handler))
    assert wire.turn_end(version, wire.prompt(wire.start(version))) == "end_turn"
    assert len(raised) == 3 and not [message for message in wire.seen if message.get("method") == "elicitation/create"]


@BOTH
def test_an_answer_of_the_client_that_the_form_does_not_allow_raises_in_the_agent(raw, version):
    caught = []

    def job(turn):
        with pytest.raises(acp.InvalidResponse, match="content.n: expected a whole number to 3"):
            turn.elicit("How many?", ASK_FORM)
        caught.append(True)

    wire = raw(Handler(job))
    id = wire.prompt(wire.start(version, {"elicitation": {"form": {}}}))
    wire.answer(wire.asked("elicitation/create"), {"action": "accept", "content": {"n": 9}})
    assert wire.turn_end(version, id) == "end_turn" and caught == [True]


# ---- terminals and files of a turn ----------------------------------------------------------------------------------

EVERYWHERE = pytest.mark.parametrize("version, offered", [(1, False), (1, True), (2, False), (2, True)])


@contextlib.contextmanager
def running_agent(job, version, offered, **more):
    with acp.Client(Handler(job), version=version, terminals=acp.LocalTerminals() if offered else None,
                    **more) as client:
        yield client.new_session(cwd=".")


@POSIX
@EVERYWHERE
def test_a_command_of_a_turn_is_the_same_thing_everywhere(version, offered, tmp_path):
    seen = []

    def job(turn):
        with turn.tool("Run", kind="execute") as tool:
            with tool.terminal("sh", ["-c", 'printf "%s in %s" "$X" "$PWD"; echo; echo bad >&2; exit 4'],
                               env={"X": "é"}, cwd=os.path.realpath(tmp_path)) as terminal:
                seen.append(terminal.wait(WAIT))
                seen.append(terminal.output())
                seen.append(terminal.id)

    with running_agent(job, version, offered) as session:
        session.ask("go")
        text, status = f"é in {os.path.realpath(tmp_path)}\nbad\n", acp.TerminalExitStatus(4)
        assert seen[:2] == [status, acp.TerminalOutputResponse(text, False, status)]
        (call,) = session.state.tool_calls.values()
        assert call.status == "completed"
        if version == 1 and not offered:
            assert call.content == [acp.Content(acp.TextContent(text))]
        else:
            assert call.content == [acp.Terminal(seen[2])]
            shown = session.state.terminals[seen[2]]
            assert (shown.text, shown.exit_status) == (text, status)
            assert shown.command.startswith("sh -c ") and shown.cwd == os.path.realpath(tmp_path)


@POSIX
@EVERYWHERE
def test_a_wait_has_a_limit_and_a_kill_ends_the_command(version, offered):
    seen = []

    def job(turn):
        terminal = turn.terminal("sh", ["-c", "echo begun; exec sleep 300"])
        eventually(lambda: "begun" in terminal.output().output)
        with pytest.raises(acp.Timeout):
            terminal.wait(0.1)
        assert terminal.output().exit_status is None
        terminal.kill()
        seen.append(terminal.wait(WAIT))
        seen.append(terminal.output())
        terminal.release()
        terminal.release()

    with running_agent(job, version, offered) as session:
        session.ask("go")
    status = acp.TerminalExitStatus(signal="SIGTERM")
    assert seen == [status, acp.TerminalOutputResponse("begun\n", False, status)]


@POSIX
@EVERYWHERE
def test_a_cancel_wakes_the_wait_and_the_command_is_gone_before_the_turn_ends(version, offered, tmp_path):
    after, began = [], threading.Event()

    def job(turn):
        with turn.tool("Run") as tool, tool.terminal(*PRINTS_ITS_PID) as terminal:
            after.append(pid_from(terminal))
            began.set()
            try:
                terminal.wait()
            except acp.Cancelled:
                after.append(terminal.output().exit_status)
                terminal.kill()
                after.append(terminal.output().exit_status)
                raise

    with running_agent(job, version, offered) as session:
        turn = session.prompt("go")
        assert began.wait(WAIT)
        turn.cancel()
        assert turn.wait(WAIT) == "cancelled"
        assert after[1:] == [None, acp.TerminalExitStatus(signal="SIGTERM")]
        assert not running(after[0])
        (call,) = session.state.tool_calls.values()
        assert call.status == ("failed" if version == 1 else "cancelled")
        for shown in session.state.terminals.values():
            assert shown.exit_status == acp.TerminalExitStatus(signal="SIGTERM")


def test_a_cancel_that_crosses_the_answer_of_terminal_create_leaves_no_command(raw):
    def job(turn):
        with turn.terminal("sleep", ["60"]) as terminal:
            terminal.wait()

    wire = raw(Handler(job))
    session = wire.start(1, {"terminal": True})
    id = wire.prompt(session)
    create = wire.asked("terminal/create")
    wire.notify("session/cancel", {"sessionId": session})
    wire.call("session/list")  # the cancel was read
    wire.answer(create, {"terminalId": "t"})
    wire.answer(release := wire.asked("terminal/release"), {})
    assert release["params"] == {"sessionId": session, "terminalId": "t"}
    assert wire.response(id)["result"] == {"stopReason": "cancelled"}


@POSIX
@EVERYWHERE
def test_what_a_turn_leaves_running_ends_with_it(version, offered):
    pids = []

    def job(turn):
        pids.append(pid_from(turn.terminal(*PRINTS_ITS_PID)))

    with running_agent(job, version, offered) as session:
        session.ask("go")
        eventually(lambda: not running(pids[0]))
        for shown in session.state.terminals.values():
            eventually(lambda id=shown.terminal_id: session.state.terminals[id].exit_status is not None)
        session.ask("go")
    eventually(lambda: not running(pids[1]))


@POSIX
def test_an_agent_that_is_terminated_takes_its_commands_along(agent_process, tmp_path):
    wire = agent_process("""
        import time
        class Runs(acp.Agent):
            versions = (1, 2)
            def prompt(self, turn):
                with turn.terminal("sh", ["-c", "echo $$; trap '' TERM; while :; do sleep 300; done"]) as terminal:
                    while "\\n" not in terminal.output().output: time.sleep(0.01)
                    turn.say(terminal.output().output)
                    time.sleep(300)
        Runs().run()
    """)
    session = wire.start(2)
    wire.prompt(session)
    said = wire.until(lambda m: m.get("method") == "session/update"
                      and m["params"]["update"]["sessionUpdate"] == "agent_message_chunk")[-1]
    pid = int(said["params"]["update"]["content"]["text"])
    wire.process.terminate()
    assert wire.process.wait(WAIT) == -signal.SIGTERM
    eventually(lambda: not running(pid))


@POSIX
def test_a_display_terminal_goes_out_as_it_is_said_and_may_be_cancelled(raw):
    def job(turn):
        with turn.terminal("sh", ["-c", "printf out; exec sleep 300"]) as terminal:
            turn.say(str(terminal.wait(WAIT)))

    wire = raw(Handler(job))
    session = wire.start(2)
    id = wire.prompt(session)
    update = wire.until(lambda m: "terminalId" in str(m))[-1]["params"]["update"]
    terminal = update["terminalId"]
    assert update == {"sessionUpdate": "terminal_update", "terminalId": terminal, "cwd": "/",
                      "command": "sh -c 'printf out; exec sleep 300'", "capabilities": {"cancel": {}}}
    assert wire.until(lambda m: "terminalId" in str(m))[-1]["params"]["update"] == {
        "sessionUpdate": "terminal_output_chunk", "terminalId": terminal, "data": base64.b64encode(b"out").decode()}
    assert wire.call("terminal/cancel", {"sessionId": session, "terminalId": terminal}) == {}
    assert wire.turn_end(2, id) == "end_turn"
    assert [each for each in wire.updates() if each["sessionUpdate"] == "terminal_update"][1:] == [{
        "sessionUpdate": "terminal_update", "terminalId": terminal, "exitStatus": {"signal": "SIGTERM"},
        "capabilities": None}]
    assert wire.refused("terminal/cancel", {"sessionId": session, "terminalId": terminal})["code"] == -32602


@POSIX
def test_a_terminal_released_before_its_end_was_told_is_told_at_the_end_of_the_turn(raw, monkeypatch):
    monkeypatch.setattr(acp.CommandProcess, "kill", acp.Process.kill)  # which does not wait till the end is told
    shows, show = threading.Event(), acp.TurnTerminal._show

    def late(terminal, update):  # as where the client does not read
        if isinstance(update, acp.TerminalUpdate) and update.exit_status:
            assert shows.wait(WAIT)
        show(terminal, update)

    def job(turn):
        with turn.terminal("sleep", ["300"]):
            pass

    monkeypatch.setattr(acp.TurnTerminal, "_show", late)
    wire = raw(Handler(job))
    assert wire.turn_end(2, wire.prompt(wire.start(2))) == "end_turn"
    shows.set()
    ends = [each["exitStatus"] for each in wire.updates() if "exitStatus" in each]
    assert ends in ([{"signal": "SIGTERM"}], [{"signal": "SIGKILL"}])  # which of them, may not be known yet


@POSIX
def test_output_between_two_pieces_of_a_message_does_not_part_them(raw):
    def job(turn):
        turn.say("a")
        with turn.terminal("sh", ["-c", "echo x"]) as terminal:
            terminal.wait(WAIT)
        turn.say("b")

    for version, offered in ((2, False), (1, True)):
        with running_agent(job, version, offered) as session:
            session.ask("go")
            assert [m.text for m in session.state.messages.values()] == ["go", "ab"]


@EVERYWHERE
def test_a_command_that_cannot_be_started_raises_and_shows_nothing(version, offered):
    def job(turn):
        with pytest.raises(acp.Error, match="no such command"):
            turn.terminal("no-such-program-anywhere")

    with running_agent(job, version, offered) as session:
        assert session.ask("go") == "" and session.state.terminals == {}


@BOTH
def test_files_of_a_turn_come_from_the_client_or_from_the_disk(version, tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"a\nb\r\nc")

    def job(turn):
        turn.say(turn.read_text_file(str(path), 2, 1))
        turn.write_text_file(str(path), "new\r\n")

    for files in (None, acp.LocalFiles(str(tmp_path))):
        path.write_bytes(b"a\nb\r\nc")
        with acp.Client(Handler(job), version=version, files=files) as client:
            assert client.new_session(cwd=".").ask("go") == "b\r\n"
        assert path.read_bytes() == b"new\r\n"


# == 9. Client ========================================================================================================
# An `AgentEnd` or a script plays the agent: what the client sends, merges, asks and raises.

# ---- starting an agent ----------------------------------------------------------------------------------------------

@POSIX
def test_a_bare_command_is_looked_up_and_started_by_its_full_path(fake_agent, tmp_path, monkeypatch):
    python, script = fake_agent("""
        hello(agentInfo={"name": sys.argv[0], "version": " ".join(sys.argv[1:])})
        read()
    """)
    shim = tmp_path / "npx.cmd"
    with open(script, encoding="utf-8") as file:
        shim.write_text(f"#!{python}\n" + file.read(), encoding="utf-8")
    shim.chmod(0o755)
    asked = []

    def which(command, *arguments, **options):
        asked.append(command)
        return str(shim) if command == "npx" else None

    monkeypatch.setattr(shutil, "which", which)
    with acp.Client(["npx", "-y", "some agent"]) as client:
        assert client.agent_info.name == str(shim) and client.agent_info.version == "-y some agent"
    assert asked == ["npx"]


@pytest.mark.parametrize("command", ["no-such-agent-anywhere", "/no/such/agent", "./no-such-agent"])
def test_a_missing_command_gives_one_clear_error_and_leaves_nothing_behind(command):
    gc.collect()
    threads, files = threading.active_count(), len(os.listdir("/dev/fd")) if os.path.isdir("/dev/fd") else 0
    with pytest.raises(acp.Error) as caught:
        acp.Client([command, "--acp"])
    assert command in str(caught.value) and "\n" not in str(caught.value)
    assert not isinstance(caught.value, acp.ConnectionClosed)
    eventually(lambda: threading.active_count() <= threads)
    if files:
        assert len(os.listdir("/dev/fd")) <= files


def test_the_environment_given_is_added_to_the_inherited_one(fake_agent, monkeypatch):
    monkeypatch.setenv("FAULT_INHERITED", "yes")
    command = fake_agent("""
        hello()
        answer(read(), {name: os.environ.get(name) for name in ("X", "PATH", "FAULT_INHERITED")})
        read()
    """)
    with acp.Client(command, env={"X": "1"}) as client:
        assert client.request("_env") == {"X": "1", "PATH": os.environ["PATH"], "FAULT_INHERITED": "yes"}
    assert "X" not in os.environ


def test_an_agent_that_dies_at_the_start_says_why(fake_agent, no_stray_traceback):
    command = fake_agent("""
        read()
        print("no licence found", file=sys.stderr, flush=True)
        sys.exit(3)
    """)
    before = threading.active_count()
    with within(3 * SOON), pytest.raises(acp.ConnectionClosed) as caught:
        acp.Client(command)
    assert isinstance(caught.value, ConnectionError)
    assert caught.value.exit_code == 3 and caught.value.stderr == "no licence found\n"
    assert "3" in str(caught.value) and "no licence found" in str(caught.value)
    eventually(lambda: threading.active_count() <= before)


def test_an_agent_that_never_answers_initialize_is_ended_after_start_timeout(fake_agent, alive):
    command = fake_agent(textwrap.dedent(Alive.WORDS) + "while True: read()", alive=alive.path)
    with within(5), pytest.raises(acp.Timeout):
        acp.Client(command, start_timeout=0.5)
    alive.wait_begun()
    eventually(lambda: not alive(), SOON)


def test_an_agent_that_does_not_answer_initialize_is_given_up(scripted_agent):
    agent = scripted_agent("read()\nread()")
    with within(5), pytest.raises(acp.Timeout):
        acp.Client(agent.socket, start_timeout=0.1)
    agent.thread.join(WAIT)
    assert not agent.thread.is_alive()


# ---- initialize -----------------------------------------------------------------------------------------------------

OLD_SHAPE = {"agentInfo": {"name": "old", "version": "1"}, "agentCapabilities": {"loadSession": True}}
NEW_SHAPE = {"info": {"name": "new", "version": "1"}, "capabilities": {"session": {}}, "authMethods": []}


@pytest.mark.parametrize("asked, answer", [
    *[(asked, {"protocolVersion": told, **shape}) for asked in (1, 2) for shape in (OLD_SHAPE, NEW_SHAPE, {})
      for told in (7, 3, 0, -1, "1", "2", True, None, 1.5, [1], {})],
    *[(asked, answer) for asked in (1, 2) for answer in (OLD_SHAPE, NEW_SHAPE, {}, None, [], "1", 1, True)],
    (1, {"protocolVersion": 2, **NEW_SHAPE}),
    *[(asked, {"protocolVersion": 1, **NEW_SHAPE}) for asked in (1, 2)],
], ids=lambda value: json.dumps(value)[:60])
def test_a_client_that_cannot_speak_the_answer_says_so_and_closes(scripted_agent, asked, answer):
    agent = scripted_agent("""
        answer(read(), given)
        read()
    """, given=answer)
    with pytest.raises(acp.Error) as caught:
        acp.Client(agent.socket, version=asked)
    assert "initialize" in str(caught.value)
    agent.thread.join(WAIT)
    assert not agent.thread.is_alive() and agent.methods() == ["initialize"]


@pytest.mark.parametrize("asked, answer, bound", [
    (1, {"protocolVersion": 1, **OLD_SHAPE}, 1), (2, {"protocolVersion": 1, **OLD_SHAPE}, 1),
    (1, {"protocolVersion": 1}, 1), (2, {"protocolVersion": 1}, 1), (2, {"protocolVersion": 2, **NEW_SHAPE}, 2),
    (2, {"protocolVersion": 2, **OLD_SHAPE}, 1), (2, {"protocolVersion": 2, "agentCapabilities": {}}, 1),
    (2, {"protocolVersion": 2}, 1), (2, {"protocolVersion": 2, "authMethods": []}, 1),
    (1, {"protocolVersion": 2, **OLD_SHAPE}, 1), (1, {"protocolVersion": 2}, 1),
], ids=lambda value: json.dumps(value)[:60])
def test_the_shape_of_the_answer_binds_the_version_and_a_turn_works(scripted_agent, asked, answer, bound):
    agent = scripted_agent("""
        answer(read(), given)
        new()
        p = prompt(bound)
        write(chunk("s", "yes", "m"))
        end(bound, p)
        read()
    """, given=answer, bound=bound)
    with acp.Client(agent.socket, version=asked) as client:
        assert client.version == bound
        assert client.agent_info.name == ("new" if bound == 2 else "old" if "agentInfo" in answer else "unknown")
        assert client.new_session("/").ask("x") == "yes"
    assert "mcpServers" in agent.params("session/new")[0] or bound == 2


def test_the_error_of_an_agent_that_has_no_such_version_reaches_the_caller(scripted_agent):
    agent = scripted_agent("error(read(), -32022, 'no', data={'requested': 2, 'supported': [3]})\nread()")
    with pytest.raises(acp.UnsupportedVersion) as caught:
        acp.Client(agent.socket, version=2)
    assert caught.value.data == {"requested": 2, "supported": [3]}
    agent.thread.join(WAIT)
    assert agent.methods() == ["initialize"]


class OfferedFiles:
    """Something that offers files, for the capabilities."""

    write = True

    def read_text_file(self, params): return acp.ReadTextFileResponse("")
    def write_text_file(self, params): pass


@BOTH
def test_the_client_introduces_itself_in_the_words_of_every_version_it_may_get(scripted_agent, version):
    agent = scripted_agent("hello(V)\nread()", V=version)
    acp.Client(agent.socket, version=version, name="me", title="Me", client_version="3",
        capabilities_meta={"a/b": [1, None]},
               files=OfferedFiles(), elicitation=lambda request: None, auth_terminal=True).close()
    params = agent.params("initialize")[0]
    assert params["protocolVersion"] == version
    me = {"name": "me", "version": "3", "title": "Me"}
    assert params["clientInfo"] == me
    assert params["clientCapabilities"] == {
        "fs": {"readTextFile": True, "writeTextFile": True}, "auth": {"terminal": True},
            "elicitation": {"form": {}, "url": {}},
        "session": {"configOptions": {"boolean": {}}, "notices": {}, "compaction": {}}, "_meta": {"a/b": [1, None]}}
    if version == 2:
        assert params["info"] == me
        assert params["capabilities"] == {
            "auth": {"terminal": {}}, "elicitation": {"form": {}, "url": {}}, "_meta": {"a/b": [1, None]}}
    also = {"info", "capabilities"} if version == 2 else set()
    assert set(params) == {"protocolVersion", "clientInfo", "clientCapabilities"} | also


def test_a_client_that_was_given_nothing_declares_only_what_its_state_merges(scripted_agent):
    agent = scripted_agent("hello(1)\nread()")
    acp.Client(agent.socket).close()
    params = agent.params("initialize")[0]
    assert params["clientCapabilities"] == {"session": {"configOptions": {"boolean": {}}, "notices": {},
        "compaction": {}}}
    assert {key: type(value) for key, value in params["clientInfo"].items()} == {"name": str, "version": str}
    agent = scripted_agent("hello(2)\nread()")
    acp.Client(agent.socket, version=2).close()
    assert agent.params("initialize")[0].get("capabilities", {}) == {}


@pytest.mark.parametrize("answer", [
    {"protocolVersion": 1}, {"protocolVersion": 1, "agentInfo": None, "agentCapabilities": None, "authMethods": None}])
def test_an_agent_that_introduces_itself_not_at_all_is_used(scripted_agent, answer):
    agent = scripted_agent("""
        write({"jsonrpc": "2.0", "id": read()["id"], "result": given})
        new()
        p = prompt()
        write(chunk("s", "yes"))
        end(1, p)
        read()
    """, given=answer)
    with acp.Client(agent.socket) as client:
        assert (client.agent_info.name, client.agent_info.version) == ("unknown", "unknown")
        assert client.auth_methods == []
        session = client.new_session("/")
        for call in (lambda: client.resume_session("s", "/"), lambda: client.list_sessions(), lambda: session.close(),
                     lambda: client.delete_session("s"), lambda: client.logout(),
                     lambda: session.prompt(acp.ImageContent("aGk=", "image/png"))):
            with pytest.raises(acp.Unsupported):
                call()
        assert session.ask("x") == "yes"
    assert agent.methods() == ["initialize", "session/new", "session/prompt"]


def test_the_client_declares_terminal_logins_only_when_asked_to(scripted_agent):
    for version, wanted, told in ((1, False, None), (1, True, True), (2, False, None), (2, True, {})):
        agent = scripted_agent("hello(V)\nread()", V=version)
        acp.Client(agent.socket, version=version, auth_terminal=wanted).close()
        params = agent.params("initialize")[0]
        names = ["clientCapabilities"] if version == 1 else ["capabilities"]
        assert [params[name].get("auth", {}).get("terminal") for name in names] == [told]


# ---- logging in -----------------------------------------------------------------------------------------------------

LOGIN_METHODS = {1: [{"id": "in", "name": "In"}], 2: [{"type": "agent", "methodId": "in", "name": "In"}]}


@BOTH
def test_a_client_that_has_to_log_in_learns_how_and_can_go_on(scripted_agent, version):
    agent = scripted_agent("""
        hello(V, authMethods=methods)
        error(read(), -32000, "who are you?", data={"reason": "expired"})
        answer(read(), {})
        new()
        error(read(), -32000, "and again?", data=["late"])
        read()
    """, V=version, methods=LOGIN_METHODS[version])
    with acp.Client(agent.socket, version=version) as client:
        with pytest.raises(acp.AuthRequired) as caught:
            client.new_session("/")
        assert (caught.value.code, caught.value.message, caught.value.data) == (
            -32000, "who are you?", {"reason": "expired"})
        assert [method.method_id for method in caught.value.auth_methods] == ["in"]
        client.login(caught.value.auth_methods[0].method_id)
        with pytest.raises(acp.AuthRequired) as caught:
            client.new_session("/").ask("x")
        assert caught.value.data == ["late"] and caught.value.auth_methods == client.auth_methods
    assert agent.methods()[1:4] == ["session/new", "authenticate" if version == 1 else "auth/login", "session/new"]
    assert agent.seen[2]["params"] == {"methodId": "in"}


@BOTH
def test_without_a_way_to_log_in_nothing_is_tried_again(scripted_agent, version):
    agent = scripted_agent("hello(V)\nerror(read(), -32000)\nread()", V=version)
    with acp.Client(agent.socket, version=version) as client:
        with pytest.raises(acp.AuthRequired) as caught:
            client.new_session("/")
        assert list(caught.value.auth_methods) == []
    assert agent.methods() == ["initialize", "session/new"]


# ---- sessions -------------------------------------------------------------------------------------------------------

def test_empty_lists_that_version_1_requires_are_written(scripted_agent):
    agent = scripted_agent("""
        hello(agentCapabilities={"loadSession": True, "mcpCapabilities": {"http": True, "sse": True}})
        new("a")
        new("b")
        answer(read(), {})
        read()
    """)
    with acp.Client(agent.socket) as client:
        client.new_session("/")
        client.new_session("/", mcp_servers=[
            acp.McpServerStdio("x", "/x"), acp.McpServerHttp("y", "http://y"), acp.McpServerSse("z", "http://z")])
        client.resume_session("old", "/", replay=True)
    bare, served = agent.params("session/new")
    assert bare["mcpServers"] == [] == agent.params("session/load")[0]["mcpServers"]
    assert served["mcpServers"] == [
        {"name": "x", "command": "/x", "args": [], "env": []},
        {"type": "http", "name": "y", "url": "http://y", "headers": []},
        {"type": "sse", "name": "z", "url": "http://z", "headers": []}]


@BOTH
def test_an_extension_of_the_client_that_returns_nothing_answers_an_empty_object(scripted_agent, version):
    agent = scripted_agent("""
        hello(V)
        write({"jsonrpc": "2.0", "id": 7, "method": "_acme.com/x"})
        read()
        read()
    """, V=version)
    with acp.Client(agent.socket, version=version, extension=lambda method, params: None):
        eventually(lambda: len(agent.seen) > 1)
    assert agent.seen[1] == {"jsonrpc": "2.0", "id": 7, "result": {}}


@pytest.mark.parametrize("nothing", [None, {}], ids=["null", "empty"])
def test_null_and_an_empty_object_both_settle_a_call_of_the_client(scripted_agent, nothing):
    modes = {"currentModeId": "a", "availableModes": [{"id": "a", "name": "A"}, {"id": "b", "name": "B"}]}
    agent = scripted_agent("""
        hello(agentCapabilities={"loadSession": True, "auth": {"logout": {}}, "sessionCapabilities": {
            "close": {}, "delete": {}, "resume": {}}}, authMethods=[{"id": "in", "name": "In"}])
        answer(read(), {"sessionId": "s", "modes": modes})
        while True:
            answer(read(), nothing)
    """, nothing=nothing, modes=modes)
    with acp.Client(agent.socket) as client:
        session = client.new_session("/")
        client.login("in")
        client.logout()
        client.resume_session("other", "/")
        client.resume_session("other", "/", replay=True)
        session.set_config_option("mode", "b")
        assert session.state.config_options[0].current_value == "b"
        session.close()
        client.delete_session("s")
        assert client.request("_acme.com/x", {}) == nothing
    assert agent.methods()[2:] == ["authenticate", "logout", "session/resume", "session/load", "session/set_mode",
                                   "session/close", "session/delete", "_acme.com/x"]


@BOTH
def test_the_client_makes_its_own_folder_absolute_and_refuses_other_relative_paths(scripted_agent, version):
    agent = scripted_agent("""
        capabilities = {"loadSession": True, "sessionCapabilities": {"list": {}, "resume": {},
            "additionalDirectories": {}}}
        if V == 1:
            hello(1, agentCapabilities=capabilities)
        else:
            hello(2, capabilities={"session": {"additionalDirectories": {}}})
        while True:
            request = read()
            answer(request, {"sessionId": "s"} if request["method"] == "session/new" else {"sessions": []})
    """, V=version)
    with acp.Client(agent.socket, version=version) as client:
        for call in (lambda: client.new_session("a"), lambda: client.new_session("./a"), lambda: client.new_session(""),
                     lambda: client.resume_session("s", "a"),
                         lambda: client.new_session("/", additional_directories=["a"]),
                     lambda: list(client.list_sessions("a"))):
            with pytest.raises(ValueError):
                call()
        assert agent.methods() == ["initialize"]
        client.new_session(".")
        client.new_session(WINDOWS[0], additional_directories=["/a", WINDOWS[2]])
        client.resume_session("s", ".")
        assert list(client.list_sessions(".")) == []
    assert [message["params"]["cwd"] for message in agent.seen[1:]] == [os.getcwd(), WINDOWS[0], os.getcwd(),
        os.getcwd()]
    assert agent.seen[2]["params"]["additionalDirectories"] == ["/a", WINDOWS[2]]


@BOTH
def test_the_client_sends_only_what_was_offered(scripted_agent, version):
    agent = scripted_agent("hello(V)\nnew()\nread()", V=version)
    with acp.Client(agent.socket, version=version) as client:
        calls = [lambda: client.new_session("/", mcp_servers=[acp.McpServerHttp("a", "http://a")]),
                 lambda: client.new_session("/", additional_directories=["/a"]),
                 lambda: client.delete_session("s"), lambda: client.logout()]
        if version == 2:
            calls.append(lambda: client.new_session("/", mcp_servers=[acp.McpServerStdio("a", "/a")]))
        for call in calls:
            with pytest.raises(acp.Unsupported):
                call()
        assert agent.methods() == ["initialize"]
        session = client.new_session("/", mcp_servers=[acp.McpServerStdio("a", "/a")] if version == 1 else [])
        for block in (acp.ImageContent("aGk=", "image/png"), acp.AudioContent("aGk=", "audio/wav"),
                      acp.EmbeddedResource(acp.TextResourceContents("a", "file:///a"))):
            with pytest.raises(acp.Unsupported):
                session.prompt(["look", block])
        with pytest.raises(ValueError):
            session.prompt([])
        assert agent.methods() == ["initialize", "session/new"]


@BOTH
def test_the_client_lists_all_pages_and_an_empty_cursor_is_a_cursor(scripted_agent, version):
    agent = scripted_agent("""
        hello(V, **({} if V == 2 else {"agentCapabilities": {"sessionCapabilities": {"list": {}}}}))
        for name, more in (("a", {"nextCursor": ""}), ("b", {"nextCursor": "x"}), ("c", {"nextCursor": None})):
            answer(read(), {"sessions": [{"sessionId": name, "cwd": "/"}], **more})
        read()
    """, V=version)
    with acp.Client(agent.socket, version=version) as client:
        assert [info.session_id for info in client.list_sessions("/")] == ["a", "b", "c"]
    assert agent.params("session/list") == [{"cwd": "/"}, {"cwd": "/", "cursor": ""}, {"cwd": "/", "cursor": "x"}]


@BOTH
def test_meta_never_overrides_a_parameter(agent_end, version):
    wire = agent_end(version)
    meta = {"cwd": "/evil", "sessionId": "evil", "mcpServers": [1], "prompt": [], "a/b": {"n": [1, None]}}
    making = Background(wire.client.new_session, "/good", meta=meta)
    request = wire.asked("session/new")
    assert request["params"]["cwd"] == "/good" and request["params"]["_meta"] == meta
    assert request["params"]["mcpServers" if version == 1 else "cwd"] in ([], "/good")
    wire.answer(request, {"sessionId": "made"})
    session = making.result()
    assert session.id == "made" and session.cwd == "/good"
    session.prompt("text", meta=meta)
    params = wire.asked("session/prompt")["params"]
    assert params == {"sessionId": "made", "prompt": [{"type": "text", "text": "text"}], "_meta": meta}


@BOTH
def test_a_client_takes_what_comes_for_a_session_before_the_response_that_names_it(scripted_agent, version):
    agent = scripted_agent(recording("""
        hello(version)
        request = read()
        write(chunk("s", "early", "m"),
              {"jsonrpc": "2.0", "id": 5, "method": "session/request_permission", "params": params})
        permitted = read()
        write(chunk("s", "er", "m"), {"jsonrpc": "2.0", "id": request["id"], "result": {"sessionId": "s"}})
        seen = [permitted]
    """), version=version, params=permission_params(version))
    handled = []

    def on_update(session, update):
        if isinstance(update, acp.AgentMessageChunk):
            time.sleep(0.05)
            handled.append((session, update.content.text))

    with acp.Client(agent.socket, version=version, on_update=on_update, permission=acp.allow_once) as client:
        session = client.new_session("/", timeout=WAIT)
        assert [text for _, text in handled] == ["early", "er"] and all(each is session for each, _ in handled)
        assert session.state.messages["m"].text == "earlyer"
        assert client.request("_seen")["seen"][0]["result"] == {"outcome": {"outcome": "selected", "optionId": "a"}}


@BOTH
def test_replay_reaches_the_handler_before_resume_returns(scripted_agent, version):
    agent = scripted_agent("""
        hello(version, **({"agentCapabilities": {"loadSession": True}} if version == 1 else {}))
        request = read()
        assert request["method"] == ("session/load" if version == 1 else "session/resume"), request
        write(chunk("old", "question", "m1", "user_message_chunk"), chunk("old", "answer", "m2"),
              {"jsonrpc": "2.0", "id": request["id"], "result": {}})
        read()
    """, version=version)
    handled = []

    def on_update(session, update):
        time.sleep(0.03)
        handled.append((session.id, update.content.text))

    with acp.Client(agent.socket, version=version, on_update=on_update) as client:
        session = client.resume_session("old", "/", replay=True, timeout=WAIT)
        assert handled == [("old", "question"), ("old", "answer")]
        assert [message.text for message in session.state.messages.values()] == ["question", "answer"]


@BOTH
def test_the_client_knows_the_commands_whichever_way_they_come(version):
    agent = Commanding()
    with acp.Client(agent, version=version) as client:
        session = client.new_session("/")
        eventually(lambda: [command.name for command in session.state.commands] == ["go", "say"])
        assert session.state.commands[1] == acp.Command("say", "Say", acp.TextCommandInput("what"))


CANCELS_PARTS = """
    hello(V); new()
    while True:
        request = read()
        if "id" in request:
            bad = "gone" in request["params"].values()
            error(request, -32602, "not cancellable") if bad else answer(request, {})
"""


@BOTH
def test_a_client_cancels_one_tool_call_or_terminal_where_the_version_has_it(scripted_agent, version):
    sent = []
    agent = scripted_agent(CANCELS_PARTS, V=version)
    with acp.Client(agent.socket, version=version, on_message=sent_into(sent)) as client:
        session = client.new_session("/")
        for call, method, name in ((session.cancel_tool_call, "tool_call/cancel", "toolCallId"),
                                   (session.cancel_terminal, "terminal/cancel", "terminalId")):
            if version == 1:
                with pytest.raises(acp.Unsupported):
                    call("x")
            else:
                call("x")
                assert (sent[-1]["method"], sent[-1]["params"]) == (method, {"sessionId": "s", name: "x"})
                with pytest.raises(acp.InvalidParams):
                    call("gone")
        assert version == 2 or len(sent) == 2


CLOSES = """
    hello(V, **HELLO); new(); request = prompt(V)
    write(chunk("s", "half", "m"))
    closing = read()
    write(chunk("s", " done", "m"))
    end(V, request, "cancelled")
    answer(closing, None)
    gone = read()
    error(gone, -32002, "no such session")
    read()
"""


@BOTH
def test_a_client_closes_a_session_whose_turn_runs_and_deletes_what_is_gone(scripted_agent, version):
    hello = {"agentCapabilities": {"sessionCapabilities": {"close": {}, "delete": {}}}} if version == 1 else {
        "capabilities": {"session": {"delete": {}}}}
    with acp.Client(scripted_agent(CLOSES, V=version, HELLO=hello).socket, version=version) as client:
        session = client.new_session("/")
        turn = session.prompt("hi")
        eventually(lambda: turn.text == "half")
        session.close()
        assert turn.wait() == "cancelled" and turn.text == "half done"
        assert session.state.stop_reason == "cancelled"
        client.delete_session("s")  # -32002 is success


@BOTH
def test_a_client_lists_hundreds_of_sessions_page_by_page_as_they_are_asked_for(version):
    made, asked = [], []

    def listed(cwd):
        for number in range(450):
            made.append(number)
            yield acp.SessionInfo(f"s{number}", cwd or "/", title=str(number), updated_at="2026-11-30T00:00:00Z")

    with acp.Client(Handler(list_sessions=listed), version=version, on_message=lambda way, message: asked.append(
            message["params"]) if message.get("method") == "session/list" else None) as client:
        pages = client.list_sessions("/x")
        assert next(pages).session_id == "s0" and len(made) < 450  # neither side has looked at all of them
        rest = list(pages)
        assert [each.session_id for each in rest] == [f"s{number}" for number in range(1, 450)]
        assert rest[-1] == acp.SessionInfo("s449", "/x", title="449", updated_at="2026-11-30T00:00:00Z")
        assert len(asked) > 2 and all(each["cwd"] == "/x" for each in asked)
        assert len({each.get("cursor") for each in asked}) == len(asked) and len(made) == 450


# ---- prompts and turns ----------------------------------------------------------------------------------------------

@BOTH
def test_prompt_returns_at_once_and_iterating_yields_typed_updates_to_the_end(agent_end, version):
    wire = agent_end(version)
    turn = wire.session.prompt(["one", acp.ResourceLink("n", "file:///x")], meta={"a": 1})
    assert not turn.ended and turn.stop_reason is None
    request = wire.asked("session/prompt")
    assert request["params"] == {"sessionId": "s", "_meta": {"a": 1}, "prompt": [
        {"type": "text", "text": "one"}, {"type": "resource_link", "name": "n", "uri": "file:///x"}]}
    if version == 2:
        wire.answer(request, {"messageId": "m1"})
        wire.tell(echo(request, "m1"), state("running"))
    wire.tell({"sessionUpdate": "tool_call" if version == 1 else "tool_call_update", "toolCallId": "t", "title": "T"},
              said("a", "x"), said("b", "x"))
    wire.finish(request, "max_tokens")
    kinds = [type(update) for update in turn]
    assert kinds == [acp.UserMessage, acp.RunningStateUpdate, acp.ToolCallUpdate, acp.AgentMessageChunk,
                     acp.AgentMessageChunk, acp.IdleStateUpdate]
    assert (turn.text, turn.stop_reason, turn.wait()) == ("ab", "max_tokens", "max_tokens")
    assert wire.session.state.stop_reason == "max_tokens" and wire.session.state.state == "idle"
    assert wire.session.state.messages[turn.message_id].content == [acp.TextContent("one"),
                                                                   acp.ResourceLink("n", "file:///x")]
    assert list(turn) == []


@BOTH
@pytest.mark.parametrize("left", ["break", "next"])
@pytest.mark.parametrize("then", ["iterate", "wait"])
def test_an_iteration_that_was_left_keeps_the_rest_for_the_next_and_wait_drops_it(agent_end, version, left, then):
    wire = agent_end(version)
    turn, seen = wire.session.prompt("go"), []
    request = wire.accept()
    wire.tell(said("one", "a"), said("two", "a"))
    wire.settled()
    if left == "next":
        seen.append(next(iter(turn)))
    else:
        for update in turn:
            seen.append(update)
            if isinstance(update, acp.AgentMessageChunk):
                break
    wire.tell(said("three", "a"))
    wire.finish(request)
    wire.settled()
    assert turn.ended and wire.client.connection._queued > 0
    if then == "wait":
        assert turn.wait() == "end_turn" and list(turn) == []
    else:
        seen += turn
        assert [type(each) for each in seen] == [acp.UserMessage, acp.RunningStateUpdate,
                                                 *[acp.AgentMessageChunk] * 3, acp.IdleStateUpdate]
        assert [each.content.text for each in seen[2:5]] == ["one", "two", "three"]
    assert turn.text == "onetwothree" and wire.client.connection._queued == 0


@BOTH
def test_a_turn_whose_iteration_was_left_keeps_half_of_the_limit_at_most_and_the_connection_stays(agent_end, version):
    wire = agent_end(version, max_queued_bytes=400_000)
    turn = wire.session.prompt("go")
    request = wire.accept()
    assert type(next(iter(turn))) is acp.UserMessage
    for number in range(20):
        wire.tell(said(str(number) + "x" * 50_000, "a"))
    wire.finish(request)
    wire.settled()
    assert 200_000 < wire.client.connection._queued < 300_000 and not wire.client.connection.closed
    kept = [each.content.text.rstrip("x") for each in turn if isinstance(each, acp.AgentMessageChunk)]
    assert kept == ["0", "1", "2", "3"] and len(turn.text) > 1_000_000
    assert turn.wait() == "end_turn" and wire.client.connection._queued == 0


@BOTH
def test_ask_returns_the_whole_answer_and_stream_its_pieces(agent_end, version):
    wire = agent_end(version)
    for way in ("ask", "stream"):
        asking = Background(wire.session.ask if way == "ask" else lambda text: list(wire.session.stream(text)), "go")
        request = wire.accept()
        wire.tell(said("one ", "a"), said("thinking", "b", "agent_thought_chunk"), said("two", "c"))
        wire.finish(request)
        assert asking.result() == ("one two" if way == "ask" else ["one ", "two"])


@BOTH
def test_stream_sends_at_the_call_and_closing_it_early_cancels(agent_end, version):
    wire = agent_end(version)
    pieces = wire.session.stream("never begun")
    request = wire.accept()
    pieces.close()
    wire.asked("session/cancel")
    wire.finish(request, "cancelled")
    pieces = wire.session.stream("begun")
    request = wire.accept()
    wire.tell(said("x", "a"))
    assert next(pieces) == "x"
    pieces.close()
    wire.asked("session/cancel")
    wire.finish(request, "cancelled")
    pieces = wire.session.stream("to the end")
    wire.finish(wire.accept())
    assert list(pieces) == []
    pieces.close()
    assert len(wire.sent("session/cancel")) == 2


def test_stream_yields_a_whole_message_that_was_announced_without_content(agent_end):
    wire = agent_end(2)
    pieces = wire.session.stream("go")
    request = wire.accept()
    for content in [], [text_block("hello")], [text_block("not again")]:
        wire.tell({"sessionUpdate": "agent_message", "messageId": "a", "content": content})
    wire.finish(request)
    assert list(pieces) == ["hello"]


def test_the_text_of_a_turn_is_that_after_replacements(agent_end):
    wire = agent_end(2)
    turn = wire.session.prompt("go")
    request = wire.accept()
    wire.tell(said("draft", "a"), said("more", "b"),
              {"sessionUpdate": "agent_message", "messageId": "a", "content": [{"type": "text", "text": "final "}]})
    wire.finish(request)
    turn.wait()
    assert turn.text == "final more"


@BOTH
@WAYS
def test_a_failed_turn_raises_the_agents_error(agent_end, version, way):
    wire = agent_end(version)
    turns = []
    prompt = wire.session.prompt
    wire.session.prompt = lambda *arguments, **options: turns.append(prompt(*arguments, **options)) or turns[-1]
    asking = Background(WAYS_TO_WAIT[way], wire.session, "go")
    request = wire.accept()
    error = {"code": -32050, "message": "out of credit", "data": {"left": 0}}
    if version == 1:
        wire.send({"jsonrpc": "2.0", "id": request["id"], "error": error})
    else:
        wire.tell(state("idle", stopReason="error", error=error))
    with pytest.raises(acp.RequestError) as caught:
        asking.result()
    assert (caught.value.code, caught.value.message, caught.value.data) == (-32050, "out of credit", {"left": 0})
    assert turns[0].stop_reason == "error"


def test_a_version_2_prompt_that_is_refused_raises_too(agent_end):
    wire = agent_end(2)
    asking = Background(wire.session.ask, "go")
    wire.send({"jsonrpc": "2.0", "id": wire.asked("session/prompt")["id"], "error": {"code": -32602, "message": "no"}})
    with pytest.raises(acp.InvalidParams):
        asking.result()
    asking = Background(wire.session.ask, "again")
    wire.finish(wire.accept())
    assert asking.result() == ""


@pytest.mark.parametrize("version, end", [(1, "closed"), (1, "failed"), (2, "failed"), (1, "time"), (2, "time")])
def test_what_a_turn_raises_names_its_call_and_the_id(agent_end, version, end):
    wire = agent_end(version)
    turn = wire.session.prompt("go")
    request, error = wire.accept(), {"code": -32050, "message": "out of credit"}
    if end == "closed":
        wire.close()
    elif end == "failed" and version == 1:
        wire.send({"jsonrpc": "2.0", "id": request["id"], "error": error})
    elif end == "failed":
        wire.tell(state("idle", stopReason="error", error=error))
    with pytest.raises(acp.Error, match=re.escape(f"session/prompt (id {request['id']})")) as caught:
        turn.wait(0.01 if end == "time" else None)
    assert isinstance(caught.value, {
        "closed": acp.ConnectionClosed, "failed": acp.RequestError, "time": acp.Timeout}[end])


@BOTH
def test_updates_between_turns_reach_state_and_on_update_but_no_turn(agent_end, version):
    seen = []
    wire = agent_end(version, on_update=lambda session, update: seen.append((session.id, update)))
    wire.tell(said("before", "a"))
    wire.settled()
    turn = wire.session.prompt("go")
    request = wire.accept()
    wire.tell(said("during", "b"))
    wire.finish(request)
    assert turn.wait() == "end_turn" and turn.text == "during"
    wire.tell(said("after", "c"))
    wire.tell(said("elsewhere", "d"), session="never prompted")
    wire.settled()
    later = wire.session.prompt("go")
    request = wire.accept()
    wire.finish(request)
    later.wait()
    assert later.text == "" and turn.text == "during"
    messages = wire.session.state.messages
    assert [messages[key].text for key in "abc"] == ["before", "during", "after"]
    assert wire.client.session("never prompted").state.messages["d"].text == "elsewhere"
    eventually(lambda: "never prompted" in dict(seen))  # each session has a worker of its own
    chunks = [(id, update.content.text) for id, update in seen if isinstance(update, acp.AgentMessageChunk)]
    chunks.remove(("never prompted", "elsewhere"))
    assert chunks == [("s", "before"), ("s", "during"), ("s", "after")]


def test_chunks_without_an_id_make_one_message_per_turn_on_version_1(agent_end):
    wire = agent_end()
    for answer in ("first", "second"):
        asking = Background(wire.session.ask, "go")
        request = wire.accept()
        wire.tell(said(answer[:2]), said(answer[2:]))
        wire.finish(request)
        assert asking.result() == answer
    assert [message.text for message in wire.session.state.messages.values() if message.role == "assistant"] == [
        "first", "second"]


# ---- when a turn of version 2 is over -------------------------------------------------------------------------------

ECHO, ANSWER, AUGUST = "echo", "answer", "august answer"
IDLE, RUNNING = state("idle", stopReason="end_turn"), state("running")
TURNS = {  # what comes before the end, and what ends it
    "answer, then echo": ([ANSWER, ECHO, RUNNING, said("x", "a")], IDLE),
    "echo, then answer": ([ECHO, ANSWER, RUNNING, said("x", "a")], IDLE),
    "the answer comes last": ([ECHO, RUNNING, said("x", "a"), IDLE], ANSWER),
    "the answer comes last, without an echo of its own id": ([ECHO, RUNNING, IDLE], AUGUST),
    "no echo": ([ANSWER, RUNNING, said("x", "a")], IDLE),
    "August, with an echo": ([AUGUST, ECHO, RUNNING], IDLE),
    "August, the echo behind the state": ([AUGUST, RUNNING, ECHO], IDLE),
    "August, without an echo": ([AUGUST, RUNNING, said("x", "a")], IDLE),
    "never busy": ([ANSWER, ECHO, said("x", "a"), state("idle")], IDLE),
    "never busy, August": ([AUGUST, ECHO, said("x", "a"), state("idle")], IDLE),
    "idle snapshots before it runs": ([state("idle"), ANSWER, state("idle"), ECHO, RUNNING], IDLE),
    "an unknown state is busy": ([ANSWER, ECHO, state("_thinking"), said("x", "a")], IDLE),
    "an unknown state after running": ([ANSWER, ECHO, RUNNING, state("paused")], IDLE),
    "waiting for the user": ([ANSWER, ECHO, RUNNING, state("requires_action"), RUNNING], IDLE),
    "waiting for the user to the end": ([ANSWER, ECHO, RUNNING, state("requires_action")], IDLE),
    "without a stop reason": ([ANSWER, ECHO, RUNNING], state("idle")),
}


def step(wire, request, word, id="m1"):
    """One thing that the agent does with a prompt."""
    if word in (ANSWER, AUGUST):
        wire.answer(request, {"messageId": id} if word == ANSWER else {})
    else:
        wire.tell(echo(request, id) if word == ECHO else word)


@pytest.mark.parametrize("case", sorted(TURNS))
def test_when_a_turn_is_over(agent_end, case):
    before, end = TURNS[case]
    wire = agent_end(2)
    turn = wire.session.prompt("go")
    request = wire.asked("session/prompt")
    for word in before:
        step(wire, request, word)
        wire.settled()
        assert not turn.ended, word
    step(wire, request, end)
    reason = None if end == state("idle") else "end_turn"
    assert turn.wait(SOON) == reason
    assert turn.text == ("x" if said("x", "a") in before else "")
    if ANSWER in before or ECHO in before[:2]:
        assert turn.message_id == "m1"
    wire.tell(IDLE)
    wire.settled()
    assert turn.stop_reason == reason


@pytest.mark.parametrize("snapshot", [IDLE, state("idle")], ids=["with a stop reason", "without"])
def test_a_repeated_idle_snapshot_is_no_end(agent_end, snapshot):
    wire = agent_end(2)
    first = wire.session.prompt("go")
    wire.finish(wire.accept())
    first.wait()
    turn = wire.session.prompt("again")
    request = wire.asked("session/prompt")
    for word in (snapshot, ANSWER, snapshot, ECHO, snapshot, RUNNING):
        step(wire, request, word, "m2")
        wire.settled()
        assert not turn.ended
    step(wire, request, state("idle", stopReason="refusal"))
    assert turn.wait(SOON) == "refusal"


@pytest.mark.parametrize("words", [
    (ANSWER, ECHO, said("x", "a")), (said("own", "o"), IDLE, ANSWER, ECHO, RUNNING)],
    ids=["a busy state older than the prompt counts", "the end of the agent's own work does not end one that is held"])
def test_a_prompt_sent_while_the_agent_is_busy_by_itself_ends_with_the_idle_state_behind_it(agent_end, words):
    wire = agent_end(2)
    wire.tell(RUNNING)
    turn = wire.session.prompt("go")
    request = wire.asked("session/prompt")
    for word in words:
        step(wire, request, word)
        wire.settled()
        assert not turn.ended, word
    step(wire, request, IDLE)
    assert turn.wait(SOON) == "end_turn"


OUT_OF_CREDIT = {"code": -32050, "message": "out of credit", "data": {"left": 0}}


@pytest.mark.parametrize("own", [[RUNNING], [RUNNING, IDLE], [
    RUNNING, state("idle", stopReason="error", error={"code": -1, "message": "another"})]],
    ids=["goes on", "has ended", "has failed"])
@pytest.mark.parametrize("reason", ["refusal", "error"])
def test_the_agents_own_work_before_a_late_answer_does_not_change_how_the_turn_ended(agent_end, reason, own):
    wire = agent_end(2)
    turn = wire.session.prompt("go")
    request = wire.asked("session/prompt")
    end = state("idle", stopReason=reason, **({"error": OUT_OF_CREDIT} if reason == "error" else {}))
    for word in (ECHO, RUNNING, end, *own):
        step(wire, request, word)
        wire.settled()
        assert not turn.ended, word
    step(wire, request, ANSWER)
    if reason == "error":
        with pytest.raises(acp.RequestError) as caught:
            turn.wait(SOON)
        assert (caught.value.code, caught.value.message, caught.value.data) == (-32050, "out of credit", {"left": 0})
    else:
        assert turn.wait(SOON) == "refusal"
    assert turn.stop_reason == turn.end.stop_reason == reason


def test_a_second_prompt_goes_out_at_once_on_version_2_and_its_turn_has_only_its_own_text(agent_end):
    wire = agent_end(2)
    first, second = wire.session.prompt("one"), wire.session.prompt("two")
    one, two = wire.asked("session/prompt"), wire.asked("session/prompt")
    for word in (ANSWER, ECHO, RUNNING, said("1", "a"), IDLE):
        step(wire, one, word)
    assert first.wait(SOON) == "end_turn"
    assert not second.ended
    for word in (ANSWER, ECHO, RUNNING, said("2", "b")):
        step(wire, two, word, "m2")
    wire.settled()
    assert not second.ended
    step(wire, two, IDLE)
    assert second.wait(SOON) == "end_turn"
    assert (first.text, second.text) == ("1", "2")
    assert (first.message_id, second.message_id) == ("m1", "m2")


def test_prompts_inserted_into_the_running_work_end_with_it(agent_end):
    wire = agent_end(2)
    turns = [wire.session.prompt("one"), wire.session.prompt("two")]
    for id in ("m1", "m2"):
        request = wire.asked("session/prompt")
        wire.answer(request, {"messageId": id})
        wire.tell(echo(request, id), RUNNING)
    wire.tell(IDLE)
    assert [turn.wait(SOON) for turn in turns] == ["end_turn"] * 2


def test_background_work_goes_on_after_the_end(agent_end):
    wire = agent_end(2, permission=acp.allow_once)
    turn = wire.session.prompt("go")
    request = wire.accept()
    background = [{"type": "tool_call", "toolCallId": "b"}, {"type": "_moon", "phase": 1}]
    wire.tell({"sessionUpdate": "tool_call_update", "toolCallId": "b", "title": "B", "status": "in_progress"},
              state("idle", stopReason="end_turn", background=background))
    assert turn.wait(SOON) == "end_turn" and request
    wire.tell({"sessionUpdate": "tool_call_update", "toolCallId": "b", "status": "completed"})
    assert wire.outcome(wire.ask(tool="b"), 2) == SELECTED_YES
    assert wire.session.state.tool_calls["b"].status == "completed"
    assert wire.session.state.background == [
        acp.BackgroundToolCall("b"), acp.Unknown("_moon", {"type": "_moon", "phase": 1})]
    wire.tell(state("idle", background=[]))
    wire.settled()
    assert (wire.session.state.background, wire.session.state.stop_reason) == ([], "end_turn")


# ---- cancel ---------------------------------------------------------------------------------------------------------

def test_a_second_prompt_is_held_back_on_version_1_until_the_first_has_ended(agent_end):
    wire = agent_end()
    first, second = wire.session.prompt("one"), wire.session.prompt("two")
    request = wire.accept()
    wire.tell(said("1", "a"))
    wire.nothing(0.06)
    wire.finish(request)
    assert first.wait(SOON) == "end_turn"
    request = wire.accept()
    wire.tell(said("2", "b"))
    wire.finish(request)
    assert second.wait(SOON) == "end_turn"
    assert (first.text, second.text) == ("1", "2")


@pytest.mark.parametrize("how", ["turn.cancel", "session.cancel", "timeout", "idle_timeout", "left with"])
def test_a_prompt_that_is_held_back_is_dropped_unsent(agent_end, how):
    wire = agent_end()
    first = wire.session.prompt("one")
    request = wire.accept()
    options = {how: 0.2} if "timeout" in how else {}
    second, third = wire.session.prompt("two", **options), wire.session.prompt("three")
    if how == "turn.cancel":
        second.cancel()
    elif how == "session.cancel":
        wire.session.cancel()
        assert third.wait(SOON) == "cancelled"
    elif how == "left with":
        with second:
            pass
    else:
        with within(SOON), pytest.raises(acp.Timeout):
            second.wait()
    assert second.wait(SOON) == second.stop_reason == "cancelled" or "timeout" in how
    assert second.stop_reason == "cancelled"
    cancels = wire.sent("session/cancel")
    assert len(cancels) == (1 if how == "session.cancel" else 0) and not first.ended
    wire.finish(request)
    first.wait(SOON)
    if how != "session.cancel":
        request = wire.accept()
        assert request["params"]["prompt"][0]["text"] == "three"
        wire.finish(request)
        assert third.wait(SOON) == "end_turn"
    assert not [each for each in wire.sent("session/prompt") if each["params"]["prompt"][0]["text"] == "two"]


@pytest.mark.parametrize("answer", ["refused", "inserted all the same", "accepted by an August agent"])
def test_a_version_2_prompt_that_is_not_inserted_is_cancelled_by_its_request(agent_end, answer):
    wire = agent_end(2)
    turn = wire.session.prompt("go")
    request = wire.asked("session/prompt")
    if answer == "accepted by an August agent":
        step(wire, request, AUGUST)
        wire.settled()
    turn.cancel()
    turn.cancel()
    assert wire.asked("$/cancel_request")["params"] == {"requestId": request["id"]}
    wire.nothing(0.06)
    if answer == "refused":
        wire.send({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32800, "message": "cancelled"}})
    else:
        step(wire, request, ANSWER if answer == "inserted all the same" else ECHO)
        assert wire.asked("session/cancel")["params"] == {"sessionId": "s"}
        wire.tell(RUNNING, state("idle", stopReason="cancelled"))
    assert turn.wait(SOON) == "cancelled"
    assert len(wire.sent("$/cancel_request")) == 1
    assert len(wire.sent("session/cancel")) == (0 if answer == "refused" else 1)


@BOTH
@pytest.mark.parametrize("how", ["turn.cancel", "session.cancel", "left with", "left stream", "from another thread"])
def test_a_running_turn_is_cancelled_by_the_session_once(agent_end, version, how):
    wire = agent_end(version)
    stream = wire.session.stream("go") if how == "left stream" else None
    turn = wire.session.prompt("go") if stream is None else None
    request = wire.accept()
    wire.settled()
    waiting = None
    if how == "turn.cancel":
        turn.cancel()
        turn.cancel()
    elif how == "session.cancel":
        wire.session.cancel()
    elif how == "left with":
        with pytest.raises(ValueError), turn:
            raise ValueError
    elif how == "left stream":
        stream.close()
    else:
        waiting = Background(turn.wait)
        turn.cancel()
    cancel = wire.asked("session/cancel")
    assert cancel["params"] == {"sessionId": "s"} and "id" not in cancel
    wire.tell(said("last", "a"))
    wire.finish(request, "cancelled")
    if turn is not None:
        assert (waiting.result if waiting else turn.wait)() == "cancelled"  # no exception
        assert turn.text == "last"
    assert not wire.sent("$/cancel_request")
    assert len(wire.sent("session/cancel")) == 1


@BOTH
def test_a_cancel_after_the_end_sends_nothing(agent_end, version):
    wire = agent_end(version)
    turn = wire.session.prompt("go")
    wire.finish(wire.accept())
    assert turn.wait() == "end_turn"
    turn.cancel()
    with turn:
        pass
    assert not wire.sent("session/cancel") and not wire.sent("$/cancel_request")
    assert turn.stop_reason == "end_turn"


def test_cancelling_a_session_of_version_2_also_ends_the_prompts_that_the_agent_holds(agent_end):
    wire = agent_end(2)
    first, second = wire.session.prompt("one"), wire.session.prompt("two")
    wire.accept()
    held = wire.asked("session/prompt")
    wire.session.cancel()
    wire.asked("session/cancel")
    wire.send({"jsonrpc": "2.0", "id": held["id"], "error": {"code": -32800, "message": "cancelled"}})
    wire.tell(state("idle", stopReason="cancelled"))
    assert first.wait(SOON) == second.wait(SOON) == "cancelled"


@BOTH
@pytest.mark.parametrize("where", ["waiting thread", "worker"])
def test_a_cancel_answers_the_open_questions_of_the_turn_at_once(agent_end, version, where):
    gate, requests, permission = hanging_permission()
    wire = agent_end(version, permission=permission)
    turn = wire.session.prompt("go")
    request = wire.accept()
    waiting = Background(turn.wait) if where == "waiting thread" else None
    questions = [wire.ask(tool="one"), wire.ask(tool="two")]
    eventually(lambda: requests)
    turn.cancel()
    answers = {}
    for _ in questions:
        message = wire.until(lambda m: m.get("id") in questions)[-1]
        answers[message["id"]] = message["result"]["outcome"]
    assert answers == dict.fromkeys(questions, CANCELLED)
    assert wire.outcome(wire.ask(tool="crossed the cancel"), SOON) == CANCELLED
    assert requests[0].cancelled
    gate.set()
    wire.finish(request, "cancelled")
    assert (waiting.result if waiting else turn.wait)() == "cancelled"
    assert not [message for message in wire.seen if message.get("id") in questions][2:]


def test_a_cancel_of_version_2_spares_questions_of_background_work_and_those_outside_turns(agent_end):
    gate, requests = threading.Event(), []
    wire = agent_end(2, permission=lambda request: requests.append(request) or gate.wait(WAIT))
    outside = wire.ask(tool="outside")
    wire.settled()
    turn = wire.session.prompt("go")
    request = wire.accept()
    wire.tell(state("running", background=[{"type": "tool_call", "toolCallId": "b"}]))
    behind, inside = wire.ask(tool="b"), wire.ask(tool="inside")
    eventually(lambda: len(requests) == 3)  # all of them in workers
    turn.cancel()
    assert wire.outcome(inside, SOON) == CANCELLED
    wire.finish(request, "cancelled")
    turn.wait(SOON)
    wire.nothing(0.06)
    wire.notify("$/cancel_request", {"requestId": outside})
    answer = wire.response(outside, SOON)
    assert answer.get("error", {}).get("code") == -32800 or answer["result"]["outcome"] == CANCELLED
    gate.set()
    assert wire.outcome(behind) == SELECTED_YES


@BOTH
def test_a_question_that_crosses_a_cancel_is_cancelled_but_for_one_of_background_work_on_version_2(agent_end, version):
    asked = []
    wire = agent_end(version, permission=lambda request: asked.append(request.tool_call_id) or True)
    turn = wire.session.prompt("go")
    request = wire.accept()
    if version == 2:
        wire.tell(state("running", background=[{"type": "tool_call", "toolCallId": "behind"}]))
    wire.settled()
    waiting = Background(turn.wait)
    turn.cancel()
    wire.asked("session/cancel")
    spared = {1: [], 2: ["behind"]}[version]
    for tool in ("inside", "behind", "inside too"):
        assert wire.outcome(wire.ask(tool=tool)) == (SELECTED_YES if tool in spared else CANCELLED), tool
    wire.finish(request, "cancelled")
    assert waiting.result() == "cancelled" and asked == spared


def test_a_cancel_of_version_1_answers_every_question_of_the_session_and_of_no_other(agent_end):
    gate = threading.Event()
    wire = agent_end(permission=lambda request: gate.wait(WAIT))
    outside = wire.ask(tool="outside")
    elsewhere = wire.ask(session="other")
    wire.settled()
    wire.session.cancel()
    assert wire.outcome(outside, SOON) == CANCELLED
    wire.nothing(0.06)
    gate.set()
    assert wire.outcome(elsewhere) == SELECTED_YES


@BOTH
def test_a_turn_that_the_client_cancels_ends_as_cancelled_without_an_exception(scripted_agent, version):
    agent = scripted_agent("""
        hello(version)
        new()
        request = prompt(version)
        write(chunk("s", "begun", "m"))
        cancel = read()
        assert cancel == {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s"}}, cancel
        write(chunk("s", " trailing", "m"))
        end(version, request, "cancelled")
        request = prompt(version, id="m2")
        end(version, request)
        read()
    """, version=version)
    with acp.Client(agent.socket, version=version) as client:
        session = client.new_session("/")
        turn = session.prompt("hi")
        for update in turn:
            if isinstance(update, acp.AgentMessageChunk):
                turn.cancel()
        assert turn.stop_reason == turn.wait() == "cancelled" and turn.text == "begun trailing"
        assert session.prompt("again").wait() == "end_turn"


@BOTH
def test_a_client_cancels_one_session_by_a_notification(scripted_agent, version):
    agent = scripted_agent(recording("""
        hello(version)
        new("a")
        new("b")
        first = prompt(version, "a", "m1")
        second = prompt(version, "b", "m2")
        seen = [read()]
        end(version, first, "cancelled", session="a")
        end(version, second, "end_turn", session="b")
    """), version=version)
    with acp.Client(agent.socket, version=version) as client:
        first, second = client.new_session("/"), client.new_session("/")
        turns = [first.prompt("one"), second.prompt("two")]
        eventually(lambda: all(turn.message_id for turn in turns))
        first.cancel()
        assert [turn.wait(WAIT) for turn in turns] == ["cancelled", "end_turn"]
        assert client.request("_seen") == {"seen": [
            {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "a"}}]}


@BOTH
def test_a_session_cancelled_right_behind_its_prompt_gets_one_notification(scripted_agent, version):
    agent = scripted_agent(recording("""
        hello(version)
        new()
        request, cancel = read(), read()
        if version == 2:
            answer(request, {"messageId": "m1"})
            write(update("s", {"sessionUpdate": "user_message", "messageId": "m1",
                               "content": request["params"]["prompt"]}), state("s", "running"))
        end(version, request, "cancelled")
        seen = [cancel]
    """), version=version)
    with acp.Client(agent.socket, version=version) as client:
        session = client.new_session("/")
        turn = session.prompt("hi")
        session.cancel()
        assert turn.wait(WAIT) == "cancelled"
        assert client.request("_seen") == {"seen": [  # a second one could end the turn after this one
            {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s"}}]}


# ---- limits of time -------------------------------------------------------------------------------------------------

@WAYS
@pytest.mark.parametrize("version, limit", [(1, "timeout"), (2, "idle_timeout")])
def test_a_limit_of_time_cancels_stops_waiting_and_raises(agent_end, version, way, limit):
    wire = agent_end(version)
    options = {limit: 0.1}
    calls = {"ask": lambda: wire.session.ask("go", **options),
             "stream": lambda: list(wire.session.stream("go", **options)),
             "iterate": lambda: list(wire.session.prompt("go", **options)),
             "wait": lambda: wire.session.prompt("go", **options).wait()}
    begin = time.monotonic()
    asking = Background(calls[way])
    request = wire.accept()
    wire.tell(said("x", "a"))
    with pytest.raises(acp.Timeout):
        asking.result(2)
    assert 0.08 < time.monotonic() - begin < 1.2
    wire.asked("session/cancel")
    wire.finish(request, "cancelled")
    asking = Background(wire.session.ask, "again")
    request = wire.accept()
    wire.finish(request)
    assert asking.result() == ""


def test_idle_timeout_is_armed_again_by_any_update_of_the_session_and_timeout_is_not(agent_end):
    wire = agent_end()
    turn = wire.session.prompt("go", idle_timeout=0.35)
    request = wire.accept()
    waiting = Background(turn.wait)
    for number in range(9):
        waiting.thread.join(0.05)
        wire.tell({"sessionUpdate": "usage_update", "used": number, "size": 100})
    assert waiting.running
    begin = time.monotonic()
    with pytest.raises(acp.Timeout):
        waiting.result()
    assert time.monotonic() - begin > 0.25
    wire.finish(request, "cancelled")
    turn = wire.session.prompt("go", timeout=0.2)
    wire.accept()
    waiting, begin = Background(turn.wait), time.monotonic()
    while waiting.running and time.monotonic() - begin < 3:
        waiting.thread.join(0.05)
        wire.tell({"sessionUpdate": "usage_update", "used": 1, "size": 100})
    assert time.monotonic() - begin < 1.5
    with pytest.raises(acp.Timeout):
        waiting.result()


@BOTH
@pytest.mark.parametrize("way", ["iterate", "stream", "wait"])
def test_the_time_of_a_turn_is_over_also_while_updates_come_without_a_pause(agent_end, version, way):
    wire, begin = agent_end(version), time.monotonic()
    if way == "stream":
        turn = wire.session.stream("go", timeout=0.1)
    else:
        turn = wire.session.prompt("go", timeout=0.1)
    request = wire.accept()

    def more():  # so there always is an update when the client looks for one
        wire.tell(*[said("x", "a")] * 3)
        wire.settled()
        assert time.monotonic() - begin < 3, "it goes on"

    more()
    with pytest.raises(acp.Timeout, match="the turn was cancelled"):
        if way == "wait":
            waiting = Background(turn.wait)
            while waiting.running:
                more()
            waiting.result()
        for _ in turn:
            more()
    assert len(wire.sent("session/cancel")) == 1
    wire.finish(request, "cancelled")
    asking = Background(wire.session.ask, "again")
    wire.finish(wire.accept())
    assert asking.result() == ""


@BOTH
@pytest.mark.parametrize("way", ["iterate", "stream"])
def test_a_turn_that_ended_in_time_is_yielded_to_its_end_however_slowly(agent_end, version, way):
    wire = agent_end(version)
    if way == "stream":
        turn = wire.session.stream("go", timeout=0.1)
    else:
        turn = wire.session.prompt("go", timeout=0.1)
    over = time.monotonic() + 0.1
    request = wire.accept()
    wire.tell(*[said(letter, "a") for letter in "abcd"])
    wire.finish(request)
    wire.settled()
    seen = []
    for update in turn:
        seen.append(update)
        if len(seen) == 1:
            eventually(lambda: time.monotonic() > over)
    texts = seen if way == "stream" else [each.content.text for each in seen if type(each) is acp.AgentMessageChunk]
    assert texts == [*"abcd"] and (way == "stream" or turn.stop_reason == "end_turn")
    assert not wire.sent("session/cancel")


def test_wait_with_a_timeout_raises_and_the_turn_goes_on(agent_end):
    wire = agent_end(2)
    turn = wire.session.prompt("go")
    request = wire.accept()
    for _ in range(2):
        with within(SOON), pytest.raises(acp.Timeout):
            turn.wait(0.1)
    with pytest.raises(acp.Timeout):
        turn.wait(0)
    assert not wire.sent("session/cancel")
    wire.tell(said("x", "a"))
    wire.finish(request)
    assert turn.wait(SOON) == "end_turn" and turn.text == "x"
    assert turn.wait(0) == "end_turn"


def test_a_turn_has_no_limit_of_time_of_its_own(agent_end):
    wire = agent_end(start_timeout=0.2)
    turn = wire.session.prompt("go")
    request = wire.accept()
    waiting = Background(turn.wait)
    waiting.thread.join(0.4)
    assert waiting.running
    wire.finish(request)
    assert waiting.result() == "end_turn"


def test_a_call_has_the_timeout_that_it_is_given(agent_end):
    wire = agent_end()
    making = Background(wire.client.new_session, "/", timeout=0.1)
    request = wire.asked("session/new")
    with pytest.raises(acp.Timeout):
        making.result(SOON)
    assert wire.asked("$/cancel_request")["params"] == {"requestId": request["id"]}
    wire.answer(request, {"sessionId": "late"})
    making = Background(wire.client.new_session, "/")
    wire.answer(wire.asked("session/new"), {"sessionId": "good"})
    assert making.result().id == "good"


@BOTH
def test_a_new_session_whose_earlier_update_hangs_in_its_handler_raises_timeout_and_in_one_time_given(
        agent_end, version):
    gate, deadlines = threading.Event(), []
    wire = agent_end(version, on_update=lambda session, update: gate.wait(WAIT))
    strand = wire.client.session("new").strand
    wait = strand.wait
    strand.wait = lambda mark, deadline: deadlines.append(deadline) or wait(mark, deadline)
    making = Background(wire.client.new_session, "/", timeout=0.1)
    request = wire.asked("session/new")
    called = time.monotonic()
    wire.tell({"sessionUpdate": "usage_update", "used": 1, "size": 100}, session="new")
    wire.answer(request, {"sessionId": "new"})
    with pytest.raises(acp.Timeout):
        making.result()
    assert all(deadline <= called + 0.1 for deadline in deadlines)  # it counts from the call, not from the answer
    gate.set()
    making = Background(wire.client.new_session, "/", timeout=WAIT)
    wire.answer(wire.asked("session/new"), {"sessionId": "new"})
    assert making.result() is wire.client.session("new")


def test_idle_timeout_stands_still_while_a_callback_is_open(agent_end):
    wire = agent_end(permission=lambda request: time.sleep(0.35) or True)
    turn = wire.session.prompt("go", idle_timeout=0.2)
    request = wire.accept()
    waiting = Background(turn.wait)
    assert wire.outcome(wire.ask()) == SELECTED_YES
    wire.finish(request)
    assert waiting.result() == "end_turn"
    assert not wire.sent("session/cancel")


def test_idle_timeout_stands_still_while_a_callback_is_open_in_a_worker(agent_end):
    gate, begun = threading.Event(), []
    wire = agent_end(2, permission=lambda request: begun.append(request) or gate.wait(WAIT))
    turn = wire.session.prompt("go", idle_timeout=0.25)
    request = wire.accept()
    question = wire.ask()
    eventually(lambda: begun)
    waiting = Background(turn.wait)
    waiting.thread.join(0.3)
    assert waiting.running and not wire.sent("session/cancel")
    gate.set()
    assert wire.outcome(question) == SELECTED_YES
    wire.finish(request)
    assert waiting.result() == "end_turn"


@pytest.fixture
def clock(monkeypatch):
    """Put the clock of the library forward by some seconds."""
    ahead = []
    monkeypatch.setattr(acp, "time", types.SimpleNamespace(**{
        **vars(time), "monotonic": lambda: time.monotonic() + sum(ahead)}))
    return ahead.append


def time_is_left(turn):
    """Its idle_timeout is not over."""
    with pytest.raises(acp.Timeout, match="the turn goes on"):
        turn.wait(0.001)
    return True


def idled_away(turn):
    """Its idle_timeout is over."""
    with pytest.raises(acp.Timeout, match="no update for 100 s; the turn was cancelled"):
        turn.wait()
    return True


@BOTH
def test_idle_timeout_of_a_prompt_behind_another_is_armed_again_by_updates_of_the_session(agent_end, clock, version):
    wire = agent_end(version)
    wire.session.prompt("first")
    wire.accept()
    turn = wire.session.prompt("second", idle_timeout=100)
    for number in range(3):
        clock(60)
        wire.tell({"sessionUpdate": "usage_update", "used": number, "size": 100})
        wire.settled()
    clock(60)
    assert time_is_left(turn)
    clock(60)
    assert idled_away(turn)


@BOTH
def test_idle_timeout_of_a_prompt_behind_another_stands_still_while_a_callback_of_that_is_open(
        agent_end, clock, version):
    gate, requests, permission = hanging_permission()
    wire = agent_end(version, permission=permission)
    first = wire.session.prompt("first")
    request = wire.accept()
    turn = wire.session.prompt("second", idle_timeout=100)
    waiting = Background(first.wait)
    question = wire.ask()
    eventually(lambda: requests)
    clock(200)
    assert time_is_left(turn)
    gate.set()
    assert wire.outcome(question) == SELECTED_YES
    eventually(lambda: not wire.session.questions)
    clock(60)
    assert time_is_left(turn)
    clock(60)
    assert idled_away(turn)
    wire.finish(request)
    assert waiting.result() == "end_turn"


# ---- updates --------------------------------------------------------------------------------------------------------

@BOTH
@pytest.mark.parametrize("ending", ["answer", "error", "answer and exit", "exit"])
def test_a_turn_is_over_only_after_the_handlers_of_its_updates_ended(scripted_agent, version, ending):
    agent = scripted_agent("""
        hello(version)
        new()
        request = prompt(version)
        chunks = [chunk("s", text, "m") for text in "123"]
        failure = {"code": -5, "message": "no"}
        if version == 2:
            last = state("s", "idle", stopReason="end_turn")
            if ending == "error":
                last = state("s", "idle", stopReason="error", error=failure)
        else:
            last = {"jsonrpc": "2.0", "id": request["id"]}
            last.update({"error": failure} if ending == "error" else {"result": {"stopReason": "end_turn"}})
        write(*chunks, *([] if ending == "exit" else [last]))
        if "exit" not in ending:
            read()
    """, version=version, ending=ending)
    handled = []

    def on_update(session, update):
        if isinstance(update, acp.AgentMessageChunk):
            time.sleep(0.01)
            handled.append(update.content.text)

    with acp.Client(agent.socket, version=version, on_update=on_update) as client:
        turn = client.new_session("/").prompt("hi")
        if ending.startswith("answer"):
            assert turn.wait() == "end_turn"
        elif ending == "error":
            with pytest.raises(acp.RequestError) as caught:
                turn.wait()
            assert caught.value.code == -5 and turn.stop_reason == "error"
        else:
            with pytest.raises(acp.ConnectionClosed):
                turn.wait()
        assert handled == ["1", "2", "3"]
        assert turn.text == "123"


@BOTH
def test_an_update_is_handled_before_an_iterator_yields_it(scripted_agent, version):
    agent = scripted_agent("""
        hello(version)
        new()
        request = prompt(version)
        write(*[chunk("s", text, "m") for text in "123"])
        end(version, request)
        read()
    """, version=version)
    handled = []

    def on_update(session, update):
        time.sleep(0.02)
        handled.append(update)

    with acp.Client(agent.socket, version=version, on_update=on_update) as client:
        count = 0
        for update in client.new_session("/").prompt("hi"):
            assert any(update is each for each in handled)
            count += isinstance(update, acp.AgentMessageChunk)
        assert count == 3


@BOTH
@pytest.mark.parametrize("inner", ["request", "prompt"])
def test_an_update_handler_may_call_the_agent_and_prompt_the_same_session(scripted_agent, version, inner):
    agent = scripted_agent("""
        hello(version)
        new()
        outer = prompt(version)
        write(chunk("s", "outer", "m"))
        if inner == "request":
            answer(read(), {"text": "inner"})
        end(version, outer)
        if inner == "prompt":
            request = prompt(version, id="m2")
            write(chunk("s", "inner", "m3"))
            end(version, request)
        read()
    """, version=version, inner=inner)
    got = []

    def on_update(session, update):
        if isinstance(update, acp.AgentMessageChunk) and update.content.text == "outer":
            got.append(client.request("_inner", timeout=WAIT)["text"] if inner == "request" else session.ask(
                "inner", timeout=WAIT))

    with acp.Client(agent.socket, version=version, on_update=on_update) as client:
        session = client.new_session("/")
        with within(SOON):
            assert session.ask("outer", timeout=WAIT) == "outer"
        assert got == ["inner"]


@BOTH
def test_a_thousand_updates_are_handled_in_order_and_one_at_a_time(scripted_agent, version):
    agent = scripted_agent("""
        hello(version)
        new()
        request = prompt(version)
        for number in range(0, 1000, 10):
            write(*[chunk("s", "%d " % each, "m") for each in range(number, number + 10)])
        end(version, request)
        read()
    """, version=version)
    handled, together, inside = [], [], threading.Lock()

    def on_update(session, update):
        if not inside.acquire(blocking=False):
            together.append(update)
            return
        time.sleep(random.choice([0] * 19 + [0.002]))
        if isinstance(update, acp.AgentMessageChunk):
            handled.append(int(update.content.text))
        inside.release()

    with acp.Client(agent.socket, version=version, on_update=on_update) as client:
        turn = client.new_session("/").prompt("hi")
        turn.wait()
        assert handled == list(range(1000)) and not together
        assert turn.text == "".join(f"{number} " for number in range(1000))


@BOTH
@pytest.mark.parametrize("method", ["session/request_permission", "_question"])
def test_a_callback_that_blocks_does_not_hold_updates_back(scripted_agent, version, method):
    agent = scripted_agent("""
        hello(version)
        new()
        request = prompt(version)
        write({"jsonrpc": "2.0", "id": 5, "method": method, "params": params})
        for number in range(100):
            write(chunk("s", str(number), "m"))
        assert read()["result"]
        end(version, request)
        read()
    """, version=version, method=method, params=permission_params(version))
    handled, last, outcome = [], threading.Event(), []

    def on_update(session, update):
        if isinstance(update, acp.AgentMessageChunk):
            handled.append(update.content.text)
            if len(handled) == 100:
                last.set()

    def block(*_):
        outcome.append(last.wait(WAIT))
        return {"waited": True} if method == "_question" else True

    with acp.Client(agent.socket, version=version, on_update=on_update, permission=block, extension=block) as client:
        assert client.new_session("/").prompt("hi").wait() == "end_turn"
    assert outcome == [True] and handled == [str(number) for number in range(100)]


def test_nulls_where_a_field_could_be_absent_are_read_as_absent(scripted_agent):
    agent = scripted_agent("""
        hello(agentInfo={"name": "a", "version": "1", "title": None},
            authMethods=[{"id": "in", "name": "In", "description": None}])
        answer(read(), {"sessionId": "s", "modes": None, "configOptions": None})
        p = prompt()
        write(update("s", {"sessionUpdate": "available_commands_update", "availableCommands": [
                  {"name": "a", "description": "A", "input": None}]}),
              update("s", {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "T", "rawInput": None,
                  "locations": [
                  {"path": "/a", "line": None}], "content": [
                      {"type": "diff", "path": "/a", "oldText": None, "newText": "b", "_meta": None}]}))
        answer(p, {"stopReason": "end_turn", "_meta": None})
        read()
    """)
    with acp.Client(agent.socket) as client:
        assert (client.agent_info.title, client.auth_methods[0].description) == (None, None)
        session = client.new_session("/")
        assert session.prompt("x").wait() == "end_turn"
    assert session.state.commands == [acp.Command("a", "A")]
    call = session.state.tool_calls["c"]
    assert call.locations == [acp.ToolCallLocation("/a")] and call.content[0].changes == [acp.DiffChange("add", "/a")]


@BOTH
@pytest.mark.parametrize("end", ["result", "error", "closed"])
def test_a_call_returns_after_the_updates_before_its_answer_were_delivered(agent_end, version, end):
    seen = []
    wire = agent_end(version, on_update=lambda session, update: (time.sleep(0.02), seen.append(update)))
    calling = Background(wire.session.set_config_option, "o", "v")
    request = wire.asked("session/set_config_option")
    updates = [notification(said(str(number), "a")) for number in range(3)]
    if end == "result":
        wire.send(*updates, {"jsonrpc": "2.0", "id": request["id"], "result": {"configOptions": []}})
        calling.result()
    elif end == "error":
        wire.send(*updates, {"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32602, "message": "no"}})
        with pytest.raises(acp.InvalidParams):
            calling.result()
    else:
        wire.send(*updates)
        wire.socket.shutdown(socket.SHUT_WR)
        with pytest.raises(acp.ConnectionClosed):
            calling.result()
    assert [update.content.text for update in seen] == ["0", "1", "2"]


@BOTH
def test_inside_on_update_a_call_of_the_same_session_does_not_wait_for_on_update(agent_end, version):
    answers, stale = [], []

    def on_update(session, update):
        if isinstance(update, acp.SessionInfoUpdate) and not answers:
            answers.append(None)
            answers[0] = session.ask("inside")
            stale.append([each.text for each in session.state.messages.values() if each.role == "assistant"])

    wire = agent_end(version, on_update=on_update)
    wire.tell({"sessionUpdate": "session_info_update", "title": "begin"})
    request = wire.accept()
    wire.tell(said("answer", "a"))
    wire.finish(request)
    eventually(lambda: stale)
    assert answers == ["answer"] and stale == [["answer"]]


@BOTH
def test_on_update_of_one_session_does_not_hold_up_another(agent_end, version):
    gate, seen = threading.Event(), []

    def on_update(session, update):
        if session.id == "s":
            gate.wait(WAIT)
        seen.append(session.id)

    wire = agent_end(version, on_update=on_update)
    wire.tell(said("x", "a"))
    wire.tell(said("x", "a"), session="other")
    eventually(lambda: seen == ["other"], SOON)
    gate.set()
    eventually(lambda: seen == ["other", "s"])


def test_on_message_sees_both_directions_in_wire_order(agent_end):
    seen = []
    wire = agent_end(on_message=lambda direction, message: seen.append((direction, message)))
    turn = wire.session.prompt("go")
    request = wire.accept()
    wire.tell(*[said(str(number), "a") for number in range(20)])
    wire.finish(request)
    turn.wait()
    assert [message["method"] for direction, message in seen if direction == "out"] == [
        "initialize", "session/new", "session/prompt"]
    arrived = [message for direction, message in seen if direction == "in"]
    assert [message["params"]["update"]["content"]["text"] for message in arrived if "method" in message] == [
        str(number) for number in range(20)]
    assert [message["id"] for message in arrived if "method" not in message] == [1, 2, request["id"]]


MALFORMED = [  # version (0: both), the update, the place that is named
    (0, {**said("", "m"), "content": {"type": "text", "text": 3}}, "params.update.content.text"),
    (0, {"sessionUpdate": "agent_message_chunk", "messageId": "m"}, "params.update.content"),
    (0, {"sessionUpdate": "tool_call_update", "toolCallId": 7}, "params.update.toolCallId"),
    (0, {"content": []}, "params.update.sessionUpdate"), (0, None, "params.update"), (0, [], "params.update"),
    (0, {"sessionUpdate": "usage_update", "used": -1, "size": 2}, "params.update.used"),
    (1, {"sessionUpdate": "tool_call", "toolCallId": "x"}, "params.update.title"),
    (1, {"sessionUpdate": "current_mode_update"}, "params.update.currentModeId"),
    (2, {"sessionUpdate": "terminal_output_chunk", "terminalId": "t", "data": "no base64!"}, "params.update.data"),
    (2, {"sessionUpdate": "terminal_update", "terminalId": "t", "output": {"data": "YQ"}}, "params.update.output.data"),
    (2, {"sessionUpdate": "plan_update", "plan": {"type": "items", "planId": "p", "entries": None}},
     "params.update.plan.entries"),
]


@BOTH
def test_a_malformed_update_costs_itself_and_is_logged_with_its_place(scripted_agent, version, caplog):
    heard, places = [said("a", "m")], []
    for each, update, place in MALFORMED:
        if each in (0, version):
            heard += [update, said("b", "m")]
            places.append(place)
    if version == 2:
        heard[1:1] = [{"sessionUpdate": "terminal_output_chunk", "terminalId": "t", "data": "YQ=="}]
        heard.append({"sessionUpdate": "terminal_output_chunk", "terminalId": "t", "data": "Yg=="})
    with caplog.at_level(logging.WARNING, "acp"):
        state, seen = table_heard(scripted_agent, version, heard)
    assert state.messages["m"].text == "a" + "b" * len(places)
    assert len(seen) == len(heard) - len(places) and not state.tool_calls
    records = [record.getMessage() for record in caplog.records]
    assert [[place + ":" in text for text in records].count(True) for place in places] == [
        places.count(place) for place in places]
    assert len(records) == len(places) and not any("no base64!" in text for text in records)
    if version == 2:
        assert state.terminals["t"].data == b"ab"


# ---- permissions ----------------------------------------------------------------------------------------------------

ASKING = """
    hello(V)
    new()
    p = prompt(V)
    subject = {"type": "tool_call", "toolCall": {"toolCallId": "c", "title": "Delete", "kind": kind}}
    more = {"toolCall": subject["toolCall"]} if V == 1 else {"title": "May I?", "subject": subject}
    write({"jsonrpc": "2.0", "method": "session/request_permission", "params": {
        "sessionId": "s", "options": [{"optionId": o, "name": o, "kind": k} for o, k in options], **more}, "id": 0})
    while read().get("id") != 0:
        pass
    end(V, p)
    read()
"""


def outcome_in(agent):
    """The outcome that the client has answered."""
    return next(each["result"]["outcome"] for each in agent.seen if each.get("id") == 0 and "result" in each)


DOUBLED = [("no1", "reject_once"), ("ever1", "allow_always"), ("once1", "allow_once"), ("once2", "allow_once"),
           ("ever2", "allow_always"), ("no2", "reject_once")]


@BOTH
@pytest.mark.parametrize("policy, kind, picked", [
    (acp.allow_once, "edit", "once1"), (acp.reject, "edit", "no1"), (acp.allow_reads, "edit", "no1"),
    (acp.allow_reads, "read", "once1"), (lambda request: request.options[3], "edit", "once2"),
    (lambda request: "ever2", "edit", "ever2"), (lambda request: True, "edit", "once1"),
    (lambda request: False, "edit", "no1"), (lambda request: None, "edit", None),
], ids=lambda value: getattr(value, "__name__", value))
def test_the_id_of_the_chosen_option_goes_out_and_policies_pick_the_first_of_a_kind(
        scripted_agent, version, policy, kind, picked):
    seen = []

    def permission(request):
        seen.append([(option.option_id, option.kind) for option in request.options])
        return policy(request)

    agent = scripted_agent(ASKING, V=version, kind=kind, options=DOUBLED)
    with acp.Client(agent.socket, version=version, permission=permission) as client:
        client.new_session("/").ask("x")
    answer = outcome_in(agent)
    assert answer == ({"outcome": "selected", "optionId": picked} if picked else {"outcome": "cancelled"})
    assert seen == [DOUBLED]


@BOTH
@pytest.mark.parametrize("policy", [
    lambda request: "never offered", lambda request: "", lambda request: 1, lambda request: {"optionId": "once1"},
    lambda request: acp.PermissionOption("forged", "Forged", "allow_once"), lambda request: ["once1"],
    lambda request: 1 / 0, lambda request: object(),
], ids=["unknown id", "empty id", "number", "object", "foreign option", "list", "exception", "anything"])
def test_a_policy_that_answers_nonsense_or_fails_allows_nothing(scripted_agent, version, policy):
    agent = scripted_agent(ASKING, V=version, kind="edit", options=DOUBLED)
    with acp.Client(agent.socket, version=version, permission=policy) as client:
        client.new_session("/").ask("x")
    answer = outcome_in(agent)
    assert answer in ({"outcome": "cancelled"}, {"outcome": "selected", "optionId": "no1"})


@BOTH
@pytest.mark.parametrize("options, wanted, picked", [
    ([("a", "allow_always")], True, "a"), ([("n", "reject_always")], False, "n"), ([("a", "allow_once")], False, None),
    ([("n", "reject_once")], True, None), ([("x", "_odd")], True, None)])
def test_an_answer_without_a_fitting_option_is_cancelled_and_never_the_opposite(
        scripted_agent, version, options, wanted, picked):
    agent = scripted_agent(ASKING, V=version, kind="edit", options=options)
    with acp.Client(agent.socket, version=version, permission=lambda request: wanted) as client:
        client.new_session("/").ask("x")
    answer = outcome_in(agent)
    assert answer == ({"outcome": "cancelled"} if picked is None else {"outcome": "selected", "optionId": picked})


@BOTH
def test_permission_is_rejected_by_default(scripted_agent, version):
    agent = scripted_agent(ASKING, V=version, kind="read", options=DOUBLED)
    with acp.Client(agent.socket, version=version) as client:
        client.new_session("/").ask("x")
    answer = outcome_in(agent)
    assert answer == {"outcome": "selected", "optionId": "no1"}


@BOTH
def test_a_permission_for_an_unannounced_tool_call_and_a_second_announcement_make_one_call(
        scripted_agent, version):
    agent = scripted_agent("""
        hello(V)
        new()
        p = prompt(V)
        first = {"toolCallId": "c", "title": "Delete", "kind": "delete", "rawInput": {"a": 1}}
        more = {"toolCall": first} if V == 1 else {"title": "?", "subject": {"type": "tool_call", "toolCall": first}}
        write({"jsonrpc": "2.0", "id": "q", "method": "session/request_permission", "params": {
            "sessionId": "s", "options": [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}], **more}})
        assert read()["id"] == "q"
        kind = "tool_call" if V == 1 else "tool_call_update"
        content = [{"type": "content", "content": {"type": "text", "text": "gone"}}]
        write(update("s", {"sessionUpdate": kind, "toolCallId": "c", "title": "Delete it", "status": "in_progress"}),
              update("s", {"sessionUpdate": kind, "toolCallId": "c", "title": "Deleted", "content": content}),
              update("s", {"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "completed"}))
        end(V, p)
        read()
    """, V=version)
    asked = []

    def permission(request):
        asked.append(request.tool_call)
        return True

    with acp.Client(agent.socket, version=version, permission=permission) as client:
        session = client.new_session("/")
        session.ask("x")
    assert (asked[0].title, asked[0].kind, asked[0].raw_input) == ("Delete", "delete", {"a": 1})
    assert list(session.state.tool_calls) == ["c"] == [key for key in session.state.timeline if key == "c"]
    call = session.state.tool_calls["c"]
    assert (call.title, call.kind, call.status, call.raw_input) == ("Deleted", "delete", "completed", {"a": 1})
    assert [item.content.text for item in call.content] == ["gone"]


# ---- the thread of a callback, and questions that end early ---------------------------------------------------------

@pytest.mark.parametrize("version, waits", [(1, True), (2, True), (2, False)])
def test_a_permission_callback_starts_after_the_earlier_updates_with_its_tool_call_merged(agent_end, version, waits):
    seen, questions = [], []

    def on_update(session, update):
        time.sleep(0.03)
        seen.append(getattr(update, "tool_call_id", None))

    def permission(request):
        questions.append((seen.count("t"), request.tool_call.title, request.tool_call.kind))
        return True

    wire = agent_end(version, on_update=on_update, permission=permission)
    turn = wire.session.prompt("go")
    request = wire.accept()
    kind = "tool_call" if version == 1 else "tool_call_update"
    wire.tell({"sessionUpdate": kind, "toolCallId": "t", "title": "Before", "kind": "edit"},
              {"sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "pending"})
    waiting = Background(turn.wait) if waits else None
    assert wire.outcome(wire.ask()) == SELECTED_YES
    wire.finish(request)
    (waiting.result if waits else turn.wait)()
    assert questions == [(2, "Ask", "edit")]


@BOTH
@pytest.mark.parametrize("method", ["session/request_permission", "elicitation/create"])
def test_a_cancel_answers_the_open_question_while_its_callback_still_blocks(scripted_agent, version, method):
    agent = scripted_agent(recording("""
        hello(version)
        new()
        request = prompt(version)
        write({"jsonrpc": "2.0", "id": 50, "method": method, "params": params})
        seen = [read(), read()]
        write(chunk("s", "answered", "m"))
        end(version, request, "cancelled")
    """), version=version, method=method, params={
        **permission_params(version), "mode": "form", "message": "?",
        "requestedSchema": {"type": "object", "properties": {}}})
    answered, waited = threading.Event(), []

    def on_update(session, update):
        if isinstance(update, acp.AgentMessageChunk):
            answered.set()

    def callback(request):
        threading.Thread(target=request.session.cancel).start()
        waited.append(answered.wait(WAIT))
        waited.append(request.cancelled)
        return {} if method == "elicitation/create" else True

    with acp.Client(agent.socket, version=version, on_update=on_update, permission=callback,
                    elicitation=callback) as client:
        with within(2 * SOON):
            assert client.new_session("/").prompt("hi").wait() == "cancelled"
        assert waited == [True, True]
        seen = client.request("_seen")["seen"]
        answers = [message["result"] for message in seen if message.get("id") == 50]
        cancelled = {"outcome": {"outcome": "cancelled"}}
        assert answers == [{"action": "cancel"} if method == "elicitation/create" else cancelled]
        assert [message["method"] for message in seen if "method" in message] == ["session/cancel"]


@BOTH
def test_a_question_that_the_agent_withdraws_is_answered_once(scripted_agent, version):
    agent = scripted_agent(recording("""
        hello(version)
        new()
        request = prompt(version)
        write({"jsonrpc": "2.0", "id": 2, "method": "session/request_permission", "params": params},
              {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": "2"}},
              {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 77}},
              {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 2}})
        seen = [read()]
        write({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 2}})
        end(version, request)
    """), version=version, params=permission_params(version))

    def permission(request):
        eventually(lambda: request.cancelled)
        return True

    with acp.Client(agent.socket, version=version, permission=permission) as client:
        with within(2 * SOON):
            assert client.new_session("/").prompt("hi").wait() == "end_turn"
        seen = client.request("_seen")["seen"]
        assert len(seen) == 1 and seen[0]["id"] == 2
        assert seen[0].get("result") == {"outcome": {"outcome": "cancelled"}} or seen[0]["error"]["code"] == -32800


@BOTH
def test_a_withdrawn_question_does_not_begin_behind_another(scripted_agent, version):
    agent = scripted_agent(recording("""
        hello(version)
        new()
        request = prompt(version)
        for id in (1, 2):
            write({"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": params})
        write({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 2}})
        seen = [read(), read()]
        end(version, request)
    """), version=version, params=permission_params(version))
    asked, second = [], threading.Event()

    def permission(request):
        asked.append(request)
        assert second.wait(WAIT)
        return True

    def on_message(direction, message):
        if direction == "out" and message.get("id") == 2 and "method" not in message:
            second.set()

    with acp.Client(agent.socket, version=version, permission=permission, on_message=on_message) as client:
        client.new_session("/").prompt("hi").wait(WAIT)
        answers = [(message["id"], message.get("result", {}).get("outcome", {}).get("outcome"))
                   for message in client.request("_seen")["seen"]]
    assert answers[0] in [(2, "cancelled"), (2, None)] and answers[1] == (1, "selected")
    assert len(asked) == 1


@BOTH
@WAYS
@pytest.mark.parametrize("what", ["permission", "form"])
def test_a_callback_runs_in_the_thread_that_waits_for_its_turn(version, way, what):
    threads = []

    def callback(request):
        threads.append(threading.get_ident())
        return True if what == "permission" else {"name": "x"}

    with acp.Client(Asking(), version=version, permission=callback, elicitation=callback) as client:
        WAYS_TO_WAIT[way](client.new_session("/"), what)
        assert threads == [threading.get_ident()]


def test_from_a_loop_body_a_callback_waits_for_the_thread_to_come_back(agent_end):
    threads = []
    wire = agent_end(permission=lambda request: threads.append(threading.get_ident()) or True)
    turn = wire.session.prompt("go")
    request = wire.accept()
    wire.tell(said("begin", "a"))
    for update in turn:
        if isinstance(update, acp.AgentMessageChunk):
            if update.content.text == "end":
                break
            question = wire.ask()
            wire.tell(said("end", "a"))
            wire.settled()
            wire.nothing(0.3)
            assert not threads
    assert threads == [threading.get_ident()]
    assert wire.outcome(question) == SELECTED_YES
    wire.finish(request)


def test_a_turn_that_nobody_waits_on_gets_a_moment_then_a_worker(agent_end):
    threads = []
    wire = agent_end(2, permission=lambda request: threads.append(threading.get_ident()) or True)
    turn = wire.session.prompt("go")
    request = wire.accept()
    question, begin = wire.ask(), time.monotonic()
    assert wire.outcome(question, 2) == SELECTED_YES
    assert time.monotonic() - begin > 0.15
    assert len(threads) == 1 and threads[0] != threading.get_ident()
    wire.finish(request)
    turn.wait()


def answered_and_finished(wire, question, request):
    wire.outcome(question)
    wire.finish(request)


@BOTH
def test_a_thread_that_begins_to_wait_in_that_moment_takes_the_callback(agent_end, version):
    threads, quick = [], False
    wire = agent_end(version, permission=lambda request: threads.append(threading.get_ident()) or True)
    while not quick:  # until the machine was fast enough to say
        threads.clear()
        turn = wire.session.prompt("go")
        request = wire.accept()
        begin = time.monotonic()
        question = wire.ask()
        wire.settled()
        finishing = Background(answered_and_finished, wire, question, request)
        quick = time.monotonic() - begin < 0.1
        turn.wait()
        finishing.result()
    assert threads == [threading.get_ident()]


@BOTH
@pytest.mark.parametrize("waited", ["an iteration", "a wait"])
def test_a_question_behind_an_iteration_or_a_wait_that_was_left_goes_to_a_worker(agent_end, version, waited):
    threads = []
    wire = agent_end(version, permission=lambda request: threads.append(threading.get_ident()) or True)
    turn = wire.session.prompt("go")
    request = wire.accept()
    if waited == "an iteration":
        wire.tell(said("x", "a"))
        for _ in turn:
            break
    else:
        with pytest.raises(acp.Timeout):
            turn.wait(0.01)
    assert wire.outcome(wire.ask(), 2) == SELECTED_YES
    assert threads and threads[0] != threading.get_ident()
    wire.finish(request)
    assert turn.wait(WAIT) == "end_turn"


def test_a_question_of_background_work_behind_a_turn_that_ran_out_of_time_goes_to_a_worker(agent_end):
    wire = agent_end(2, permission=lambda request: True)
    turn = wire.session.prompt("go", timeout=0.01)
    request = wire.accept()
    wire.tell(state("running", background=[{"type": "tool_call", "toolCallId": "b"}]))
    with pytest.raises(acp.Timeout):
        turn.wait()
    wire.asked("session/cancel")
    assert wire.outcome(wire.ask(tool="b"), 2) == SELECTED_YES
    wire.finish(request, "cancelled")
    eventually(lambda: turn.ended)
    assert turn.wait(WAIT) == "cancelled"


@BOTH
def test_a_question_that_waits_for_a_loop_body_goes_to_a_worker_when_the_loop_is_left(agent_end, version):
    threads = []
    wire = agent_end(version, permission=lambda request: threads.append(threading.get_ident()) or True)
    turn = wire.session.prompt("go")
    request = wire.accept()
    wire.tell(said("x", "a"))
    for _ in turn:
        question = wire.ask()
        wire.settled()
        assert not threads
        break
    assert wire.outcome(question, 2) == SELECTED_YES
    assert len(threads) == 1 and threads[0] != threading.get_ident()
    wire.finish(request)
    assert turn.wait() == "end_turn"


@BOTH
def test_a_question_outside_any_turn_is_answered_in_a_worker(agent_end, version):
    wire = agent_end(version, permission=acp.allow_once)
    assert wire.outcome(wire.ask(), 2) == SELECTED_YES


def test_a_question_of_a_turn_shows_requires_action_though_one_from_before_is_still_open(agent_end):
    gate, _, permission = hanging_permission()
    seen = []
    wire = agent_end(permission=permission, on_update=lambda session, update: seen.append(type(update)))
    questions = [wire.ask()]
    wire.settled()
    waiting = Background(wire.session.prompt("go").wait)
    request = wire.accept()
    questions += [wire.ask(), wire.ask()]
    wire.settled()
    assert wire.session.state.state == "requires_action"
    gate.set()
    wire.until(lambda message: {each.get("id") for each in wire.seen} >= set(questions))
    eventually(lambda: wire.session.state.state == "running")
    wire.finish(request)
    assert waiting.result() == "end_turn"
    assert [each for each in seen if each is not acp.UserMessage] == [
        acp.RunningStateUpdate, acp.RequiresActionStateUpdate, acp.RunningStateUpdate, acp.IdleStateUpdate]


def test_one_callback_of_a_turn_at_a_time_runs_in_the_waiting_thread(agent_end):
    running, overlapping, threads, gate = [], [], [], threading.Event()

    def permission(request):
        running.append(1)
        overlapping.append(len(running))
        threads.append(threading.get_ident())
        gate.wait(WAIT)
        running.pop()
        return True

    wire = agent_end(2, permission=permission)
    turn = wire.session.prompt("go")
    request = wire.accept()
    waiting = Background(turn.wait)
    questions = [wire.ask(tool=f"t{number}") for number in range(3)]
    eventually(lambda: threads)
    wire.nothing(0.3)
    gate.set()
    assert [wire.outcome(question) for question in questions] == [SELECTED_YES] * 3
    wire.finish(request)
    waiting.result()
    assert overlapping == [1, 1, 1] and set(threads) == {waiting.thread.ident}


@BOTH
@pytest.mark.parametrize("call", ["request", "another session's turn"])
def test_while_a_callback_is_in_a_blocking_call_further_ones_run_in_workers(agent_end, version, call):
    threads = {}

    def permission(request):
        threads[request.tool_call.tool_call_id] = threading.get_ident()
        if request.tool_call.tool_call_id == "first":
            wire.client.request("_block") if call == "request" else other.ask("go")
        return True

    wire = agent_end(version, permission=permission)
    other = wire.new_session("other")
    turn = wire.session.prompt("go")
    request = wire.accept()
    waiting = Background(turn.wait)
    first = wire.ask(tool="first")
    inner = wire.asked("_block") if call == "request" else wire.accept()
    assert wire.outcome(wire.ask(tool="second"), 2) == SELECTED_YES
    if call == "request":
        wire.answer(inner, {})
    else:
        wire.finish(inner)
    assert wire.outcome(first) == SELECTED_YES
    wire.finish(request)
    waiting.result()
    assert threads["first"] == waiting.thread.ident != threads["second"]


@pytest.mark.parametrize("ends", [False, True], ids=["the turn runs", "the turn ends"])
@pytest.mark.parametrize("version, way", [(1, "wait"), (2, "iterate")])
def test_when_time_runs_out_while_a_callback_hangs_the_question_is_answered_on_time(agent_end, version, way, ends):
    gate, cancelled = threading.Event(), []

    def permission(request):
        gate.wait(WAIT)
        cancelled.append(request.cancelled)
        return True

    wire = agent_end(version, permission=permission)
    turn = wire.session.prompt("go", timeout=0.2)
    request = wire.accept()
    waiting = Background(turn.wait if way == "wait" else lambda: list(turn))
    question = wire.ask()
    assert wire.outcome(question, 2) == CANCELLED
    assert wire.sent("session/cancel")
    if ends:
        wire.finish(request, "cancelled")
        eventually(lambda: turn.ended)
    assert waiting.running  # it is inside the callback
    gate.set()
    with pytest.raises(acp.Timeout):
        waiting.result()
    assert cancelled == [True]
    wire.settled()
    assert len([message for message in wire.seen if message.get("id") == question]) == 1


@BOTH
@pytest.mark.parametrize("ends", [False, True], ids=["the turn runs", "the turn ends"])
def test_when_the_time_of_wait_runs_out_while_a_callback_hangs_the_turn_goes_on(agent_end, version, ends):
    gate, requests, permission = hanging_permission()
    wire = agent_end(version, permission=permission)
    turn = wire.session.prompt("go")
    request = wire.accept()
    question = wire.ask()
    wire.settled()
    waiting = Background(turn.wait, 0.1)
    eventually(lambda: requests)
    wire.nothing(0.15)  # neither a cancel nor an answer
    if ends:
        wire.finish(request)
    if ends and version == 1:  # there a question ends with its turn
        assert wire.outcome(question) == CANCELLED
        gate.set()
    else:
        wire.settled()
        gate.set()
        assert wire.outcome(question) == SELECTED_YES
    if ends:
        assert waiting.result() == "end_turn"
    else:
        with pytest.raises(acp.Timeout, match="the turn goes on"):
            waiting.result()
        wire.tell(said("x", "a"))
        wire.finish(request)
    assert turn.wait() == "end_turn" and turn.text == ("" if ends else "x")
    assert not wire.sent("session/cancel")


@BOTH
def test_while_a_callback_hangs_the_time_of_the_turn_counts_and_not_that_of_wait(agent_end, version):
    gate, requests, permission = hanging_permission()
    wire, begin = agent_end(version, permission=permission), time.monotonic()
    turn = wire.session.prompt("go", timeout=0.25)
    wire.accept()
    question = wire.ask()
    wire.settled()
    waiting = Background(turn.wait, 0.05)
    assert wire.outcome(question) == CANCELLED
    assert time.monotonic() - begin >= 0.25
    assert len(wire.sent("session/cancel")) == 1
    gate.set()
    with pytest.raises(acp.Timeout):
        waiting.result()


@BOTH
def test_when_the_connection_ends_while_a_callback_hangs_the_waiting_call_sees_it_afterwards(agent_end, version):
    gate, requests, permission = hanging_permission()
    wire = agent_end(version, permission=permission)
    turn = wire.session.prompt("go")
    wire.accept()
    waiting = Background(turn.wait)
    wire.ask()
    eventually(lambda: requests)
    wire.socket.shutdown(socket.SHUT_RDWR)
    eventually(lambda: requests[0].cancelled, SOON)
    gate.set()
    with pytest.raises(acp.ConnectionClosed):
        waiting.result(SOON)


@BOTH
@WAYS
def test_keyboard_interrupt_in_a_callback_answers_cancelled_cancels_the_turn_and_goes_on(agent_end, version, way):
    def permission(request):
        raise KeyboardInterrupt

    wire = agent_end(version, permission=permission)
    waiting = Background(WAYS_TO_WAIT[way], wire.session, "go")
    wire.accept()
    assert wire.outcome(wire.ask()) == CANCELLED
    with pytest.raises(KeyboardInterrupt):
        waiting.result()
    assert wire.sent("session/cancel")


@pytest.mark.parametrize("version, what", [(1, "permission"), (2, "form")])
@pytest.mark.parametrize("where", ["waiting thread", "worker"])
def test_waiting_for_a_turn_of_the_same_session_inside_its_callback_raises(agent_end, version, what, where):
    errors = []

    def callback(request):
        try:
            request.session.ask("inside")
        except acp.Error as error:
            errors.append(error)
        return False

    wire = agent_end(version, permission=callback, elicitation=callback)
    turn = wire.session.prompt("go")
    request = wire.accept()
    waiting = Background(turn.wait) if where == "waiting thread" else None
    if what == "permission":
        wire.response(wire.ask(), 3)
    else:
        wire.response(wire.elicit(), 3)
    assert len(errors) == 1 and not isinstance(errors[0], acp.Timeout)
    wire.finish(request)
    if waiting is not None:
        waiting.result()


@BOTH
def test_waiting_for_a_turn_raises_too_where_its_callback_waits_for_another_whose_callback_it_is(agent_end, version):
    turns, errors = {}, []

    def permission(request):
        if request.session is wire.session:
            turns["other"] = other.prompt("inner")
            return turns["other"].wait() == "end_turn"
        try:
            turns["s"].wait(SOON)
        except acp.Error as error:
            errors.append(type(error))
        return True

    wire = agent_end(version, permission=permission)
    other = wire.new_session("other")
    turns["s"] = wire.session.prompt("outer")
    waiting = Background(turns["s"].wait)
    outer = wire.accept()
    question = wire.ask()
    inner = wire.accept()
    assert inner["params"]["sessionId"] == "other"
    assert wire.outcome(wire.ask("other")) == SELECTED_YES and errors == [acp.Error]
    wire.finish(inner)
    assert wire.outcome(question) == SELECTED_YES
    wire.finish(outer)
    assert waiting.result() == "end_turn"


@BOTH
def test_with_dispatch_all_callbacks_run_where_it_says(agent_end, version):
    jobs, threads, stopped = queue.Queue(), collections.defaultdict(set), threading.Event()

    def noting(name, result=None):
        return lambda *arguments: threads[name].add(threading.get_ident()) or result

    def host():
        while not stopped.is_set():
            with contextlib.suppress(queue.Empty):
                jobs.get(timeout=0.05)()

    hosting = Background(host)
    wire = agent_end(version, dispatch=jobs.put, permission=noting("permission", True), on_update=noting("update"),
                     elicitation=noting("elicitation", False), extension=noting("extension", {"x": 1}),
                     extension_notification=noting("notification"), on_message=noting("message"))
    turn = wire.session.prompt("go")
    request = wire.accept()
    waiting = Background(turn.wait)
    wire.tell(said("x", "a"))
    assert wire.outcome(wire.ask()) == SELECTED_YES
    assert wire.response(wire.elicit())["result"]["action"] == "decline"
    assert wire.response(wire.request("_any"))["result"] == {"x": 1}
    wire.notify("_event")
    eventually(lambda: threads["notification"])
    wire.finish(request)
    waiting.result()
    stopped.set()
    hosting.result()
    for name in ("permission", "update", "elicitation", "extension", "notification"):
        assert threads[name] == {hosting.thread.ident}, name
    assert threads["message"] and hosting.thread.ident not in threads["message"]


@BOTH
def test_with_dispatch_delivered_means_merged_and_handed_over(agent_end, version):
    jobs = []
    wire = agent_end(version, dispatch=jobs.append, on_update=lambda session, update: None)
    waiting = Background(wire.session.ask, "go")
    request = wire.accept()
    wire.tell(said("answer", "a"))
    wire.finish(request)
    assert waiting.result(2) == "answer"  # nobody ran a job
    assert jobs


@BOTH
@pytest.mark.parametrize("way", ["ask", "wait", "iterate", "stream"])
def test_waiting_for_a_turn_inside_a_dispatched_job_raises_instead_of_hanging(agent_end, version, way):
    jobs, errors = queue.Queue(), []

    def permission(request):
        try:
            WAYS_TO_WAIT[way](other, "inside")
        except acp.Error as error:
            errors.append(error)
        return True

    wire = agent_end(version, dispatch=jobs.put, permission=permission)
    other = wire.new_session("other")
    wire.session.prompt("go")
    wire.accept()
    question = wire.ask()
    with within(SOON):
        jobs.get(timeout=WAIT)()
    assert wire.outcome(question) == SELECTED_YES
    assert len(errors) == 1


@BOTH
@pytest.mark.parametrize("when", ["instead of the job", "behind the job"])
def test_what_a_dispatch_that_raises_has_lost_is_answered_and_the_connection_goes_on(agent_end, version, when):
    def dispatch(job):
        if when == "behind the job":
            job()
        raise RuntimeError("the loop is closed")

    wire = agent_end(version, dispatch=dispatch, permission=acp.allow_once, elicitation=lambda request: False,
                     extension=lambda method, params: {"x": 1}, extension_notification=lambda method, params: None,
                     on_update=lambda session, update: None)
    lost = when == "instead of the job"
    form = {"message": "?", "mode": "form", "requestedSchema": {"type": "object", "properties": {}}}
    for where in ("outside a turn", "in a turn"):
        if where == "in a turn":
            waiting = Background(wire.session.ask, "go")
            request = wire.accept()
            wire.tell(said("x", "a"))
        wire.notify("_event")
        assert wire.outcome(wire.ask()) == (CANCELLED if lost else SELECTED_YES)
        for of in ({"sessionId": "s"}, {"requestId": 1}):
            assert wire.call("elicitation/create", {**form, **of}) == {"action": "cancel" if lost else "decline"}
        answer = wire.response(wire.request("_any"))
        assert answer["error"]["code"] == -32603 if lost else answer["result"] == {"x": 1}
        assert not wire.session.questions
    wire.finish(request)
    assert waiting.result() == "x"


ASK_FORM = acp.ElicitationSchema({"n": acp.IntegerPropertySchema(maximum=3, default=2)}, required=["n"])


@BOTH
def test_a_wrong_answer_of_the_callback_is_a_cancel_and_a_log_line_that_names_the_place(version, caplog):
    got = []

    def job(turn):
        answer = turn.elicit("How many?", ASK_FORM)
        got.append((bool(answer), answer.action, answer.content))

    for choice, wanted in (({"n": 3}, (True, "accept", {"n": 3})), ({"n": 4}, (False, "cancel", {})),
                           ({}, (False, "cancel", {})), (True, (False, "cancel", {})), (False, (False, "decline", {})),
                           (None, (False, "cancel", {})), ({"n": {1}}, (False, "cancel", {}))):
        caplog.clear()
        with acp.Client(Handler(job), version=version, elicitation=lambda request, choice=choice: choice) as client:
            client.new_session(cwd=".").ask("go")
        assert got.pop() == wanted, choice
        assert ("n: " in caplog.text) == (choice in ({"n": 4}, {}, {"n": {1}})), choice


@BOTH
@pytest.mark.parametrize("policy, wanted", [("decline", "decline"), ("accept_defaults", "accept")])
def test_policies_answer_forms_and_pages(version, policy, wanted):
    got = []

    def job(turn):
        answer = turn.elicit("How many?", ASK_FORM)
        got.append((answer.action, answer.content))
        got.append((turn.elicit("?", {"n": acp.StringPropertySchema(default="x", max_length=0)}).action,
                    turn.elicit_url("Go", "https://x").action))

    with acp.Client(Handler(job), version=version, elicitation=getattr(acp, policy)) as client:
        client.new_session(cwd=".").ask("go")
    other = "decline" if policy == "decline" else "cancel"
    assert got == [(wanted, {"n": 2} if wanted == "accept" else {}), (other, other)]


# ---- the end --------------------------------------------------------------------------------------------------------

def test_at_the_end_a_hanging_on_update_is_waited_for_only_briefly(agent_end):
    gate = threading.Event()
    wire = agent_end(2, on_update=lambda session, update: gate.wait(WAIT))
    waiting = Background(wire.session.ask, "go")
    wire.accept()
    wire.tell(said("x", "a"))
    wire.settled()
    wire.socket.shutdown(socket.SHUT_RDWR)
    begin = time.monotonic()
    with pytest.raises(acp.ConnectionClosed):
        waiting.result(3)
    assert time.monotonic() - begin < 2
    gate.set()


@pytest.mark.parametrize("where", ["permission in the waiting thread", "permission in a worker", "on_update",
                                   "extension", "extension_notification"])
def test_close_from_inside_a_callback_ends_the_client(agent_end, where):
    closed = threading.Event()

    def close(*arguments):
        wire.client.close()
        closed.set()

    name = where.partition(" ")[0]
    wire = agent_end(**{name: close})
    waiting = None
    if name == "permission":
        turn = wire.session.prompt("go")
        wire.accept()
        waiting = Background(turn.wait) if "waiting" in where else None
        wire.ask()
    elif name == "on_update":
        wire.tell(said("x", "a"))
    elif name == "extension":
        wire.request("_close")
    else:
        wire.notify("_close")
    assert closed.wait(4)
    if waiting is not None:
        with pytest.raises(acp.ConnectionClosed):
            waiting.result()


@BOTH
@pytest.mark.parametrize("late", [False, True])
def test_a_turn_of_a_closed_session_ends_with_it_and_with_the_connection(scripted_agent, version, late):
    """Whatever the agent forgets: the prompt is never answered."""
    client = acp.Client(scripted_agent("""
        hello(V, **({"agentCapabilities": {"sessionCapabilities": {"close": {}}}} if V == 1 else {}))
        new()
        while True:
            message = read()
            if message["method"] == "session/close": answer(message, {})
            if message["method"] == "leave": sys.exit(0)
    """, V=version).socket, version=version)
    with client:
        session = client.new_session("/")
        turns = [] if late else [session.prompt("one"), session.prompt("two")]
        session.close(timeout=WAIT)
        assert [turn.wait(WAIT) for turn in turns] == ["cancelled"] * len(turns)
        turn = session.prompt("behind the end")
        client.notify("leave")
        with within(SOON), pytest.raises(acp.ConnectionClosed):
            turn.wait(WAIT)


def test_a_client_in_process_that_is_collected_ends_its_agents_connection():
    agent = Asking()
    client = acp.Client(agent)
    session = client.new_session("/")
    session.ask("go")
    assert agent.sessions
    del client, session
    gc.collect()
    eventually(lambda: gc.collect() is not None and not agent.sessions, 5)


@BOTH
@WAYS
def test_close_from_another_thread_wakes_who_waits(agent_end, version, way):
    wire = agent_end(version)
    waiting = Background(WAYS_TO_WAIT[way], wire.session, "go")
    wire.accept()
    closing = [Background(wire.client.close) for _ in range(3)]
    with pytest.raises(acp.ConnectionClosed):
        waiting.result(2)
    for each in closing:
        each.result(4)
    wire.client.close()
    session, client = wire.session, wire.client
    for call in (lambda: session.ask("x"), lambda: client.request("_x"), lambda: client.new_session("/")):
        with within(SOON), pytest.raises(acp.ConnectionClosed):
            call()


def test_what_arrived_before_the_end_is_yielded_before_it_is_raised(agent_end):
    seen, texts = [], []
    wire = agent_end(on_update=lambda session, update: (time.sleep(0.05), seen.append(update)))
    turn = wire.session.prompt("go")
    wire.accept()
    wire.tell(*[said(str(number), "a") for number in range(5)])
    wire.socket.shutdown(socket.SHUT_WR)
    with pytest.raises(acp.ConnectionClosed):
        for update in turn:
            if isinstance(update, acp.AgentMessageChunk):
                texts.append(update.content.text)
    assert "".join(texts) == turn.text == "01234"
    assert len([update for update in seen if isinstance(update, acp.AgentMessageChunk)]) == 5


@BOTH
def test_a_client_of_an_agent_in_process_works_in_any_thread_and_closes_it(version):
    closed = []

    class Closing(Handler):
        def close_session(self, session):
            closed.append(session.id)

    def talk(number):
        with acp.Client(agent, version=version) as client:
            return client.new_session("/").ask(str(number))

    agent = Closing(lambda turn: turn.say("You said: " + turn.text))
    talking = [Background(talk, number) for number in range(10)]
    assert [each.result() for each in talking] == [f"You said: {number}" for number in range(10)]
    eventually(lambda: not agent.sessions)


@pytest.mark.parametrize("how", ["left with", "closed by many threads", "never started"])
def test_a_client_of_an_agent_in_process_closes_both_ends_of_their_sockets(monkeypatch, how):
    pairs, make = [], socket.socketpair

    def socketpair():
        pairs.append(make())
        return pairs[-1]

    monkeypatch.setattr(socket, "socketpair", socketpair)
    if how == "never started":
        with pytest.raises(acp.UnsupportedVersion):
            acp.Client(speaking(2))
    else:
        with acp.Client(Handler(say_request)) as client:
            assert client.new_session("/").ask("hi") == "hi"
            if how == "closed by many threads":
                for closing in [Background(client.close) for _ in range(4)]:
                    closing.result()
    assert [end.fileno() for pair in pairs for end in pair] == [-1, -1]


def test_a_client_of_an_agent_in_process_leaves_nothing_that_python_warns_of(tmp_path):
    program = textwrap.dedent("""
        import gc, threading
        import acp

        class Echo(acp.Agent):
            def prompt(self, turn): turn.say(turn.text)

        class New(Echo):
            versions = (2,)

        with acp.Client(Echo()) as client:
            print(client.new_session(cwd="/").ask("hi"))
        client = acp.Client(Echo())
        closing = [threading.Thread(target=client.close) for _ in range(4)]
        for each in closing: each.start()
        for each in closing: each.join()
        try: acp.Client(New())
        except acp.UnsupportedVersion: print("refused")
        del client, closing, each
        gc.collect()
    """)
    done = run_program([sys.executable, "-X", "dev", "-W", "error", "-c", program], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "hi\nrefused\n", "")


def test_a_client_that_is_closed_ends_the_turns_of_its_agent_in_process():
    cancelled = threading.Event()

    def handler(turn):
        turn.on_cancel(cancelled.set)
        turn.wait(WAIT)

    client = acp.Client(Handler(handler))
    client.new_session("/").prompt("go")
    with within(4):
        client.close()
    assert cancelled.wait(SOON)


# ---- the end of an agent's process ----------------------------------------------------------------------------------

@BOTH
def test_all_calls_fail_at_once_when_the_agent_dies(fake_agent, version, no_stray_traceback):
    command = fake_agent("""
        hello(version)
        new()
        prompt(version)
        while read()["method"] != "_die":
            pass
        print("out of memory", file=sys.stderr, flush=True)
        os._exit(3)
    """, version=version)
    before = threading.active_count()
    errors, sent = queue.Queue(), []

    def fails(function):
        try:
            function()
        except BaseException as error:
            errors.put((time.monotonic(), error))

    with acp.Client(command, version=version, on_message=lambda direction, message: sent.append(direction)) as client:
        session = client.new_session("/")
        turn = session.prompt("hi")
        eventually(lambda: sent.count("out") == 3)
        calls = [lambda: client.request("_wait"), lambda: client.request("_wait", timeout=60),
                 lambda: client.new_session("/"), turn.wait, lambda: list(turn)]
        threads = [threading.Thread(target=fails, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        eventually(lambda: sent.count("out") == 6)  # all requests are on their way
        begin = time.monotonic()
        fails(lambda: client.request("_die"))
        failed = [errors.get(timeout=WAIT) for _ in range(len(calls) + 1)]
        assert max(when for when, _ in failed) - begin < SOON
        for _, error in failed:
            assert type(error) is acp.ConnectionClosed and error.exit_code == 3, error
            assert "out of memory" in error.stderr
        with within(0.5):
            for call in (lambda: client.request("_late"), lambda: session.prompt("late"),
                         lambda: client.new_session("/")):
                with pytest.raises(acp.ConnectionClosed):
                    call()
    eventually(lambda: threading.active_count() <= before)


def test_two_mebibytes_of_stderr_before_the_first_answer_hold_nothing_up(fake_agent):
    command = fake_agent("""
        os.write(2, b"first\\r\\n")
        for number in range(20_000):
            os.write(2, b"%d \\xff\\xfe %s\\n" % (number, b"x" * 100))
        hello()
        os.write(2, b"unfinished")
        read()
    """)
    lines = []
    with acp.Client(command, on_stderr=lines.append, start_timeout=WAIT):
        pass
    assert lines == ["first", *(f"{number} \ufffd\ufffd {'x' * 100}" for number in range(20_000)), "unfinished"]


def test_only_the_tail_of_a_long_stderr_is_kept(fake_agent):
    command = fake_agent("""
        hello()
        read()
        for number in range(800):  # 50 MiB
            os.write(2, b"x" * 65535 + b"\\n")
        os.write(2, b"the last word\\n")
        sys.exit(4)
    """)
    with acp.Client(command) as client:
        before = memory_in_use()
        with pytest.raises(acp.ConnectionClosed) as caught:
            client.request("_noise")
        assert memory_in_use() - before < 25 << 20
    assert caught.value.exit_code == 4
    assert caught.value.stderr.endswith("x\nthe last word\n") and len(caught.value.stderr) == 65536


def memory_in_use():
    """Bytes of memory that this process has in use; 0 where that is not told."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def test_no_pipe_of_an_agent_is_closed_while_a_thread_reads_it(fake_agent, monkeypatch):
    # The number of a closed descriptor goes to the next file that is opened: the reader would read from that.
    reading, torn, read, popen = set(), [], os.read, subprocess.Popen

    def slow_read(number, size):
        reading.add(number)
        try:
            time.sleep(0.1)  # as when the thread is held up just before it reads
            return read(number, size)
        finally:
            reading.discard(number)

    class Pipe:
        def __init__(self, file):
            self.file, self.fileno = file, file.fileno

        def read(self, size):
            return slow_read(self.fileno(), size)

        def close(self):
            if not self.file.closed and self.fileno() in reading:
                torn.append(self.fileno())
            self.file.close()

    def start(*arguments, **options):
        process = popen(*arguments, **options)
        process.stdout, process.stderr = Pipe(process.stdout), Pipe(process.stderr)
        return process

    monkeypatch.setattr(os, "read", slow_read)
    monkeypatch.setattr(subprocess, "Popen", start)
    acp.Client(fake_agent("hello(); read()")).close()
    eventually(lambda: not reading)
    assert torn == []


GROUP = Alive.WORDS + '''
        import signal, subprocess, textwrap
        child = """
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(int(os.environ["HELD"]), b"!")
        time.sleep(60)"""
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(child)], pass_fds=[held], env={"HELD": str(held)})
'''


def test_close_ends_the_whole_process_group_also_one_that_ignores_everything(fake_agent, alive, impatient):
    client = acp.Client(fake_agent(textwrap.dedent(GROUP) + textwrap.dedent("""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        hello()
        while sys.stdin.buffer.readline(): pass
        time.sleep(60)
    """), alive=alive.path))
    alive.wait_begun(2)
    closing = [Background(client.close) for _ in range(3)]
    client.close()
    for each in closing:
        each.result()
    eventually(lambda: not alive(), SOON)
    client.close()


def test_what_a_wrapper_left_behind_ends_with_close(fake_agent, alive):
    client = acp.Client(fake_agent(textwrap.dedent(GROUP) + "hello()\n", alive=alive.path))
    alive.wait_begun(2)
    with within(5):
        client.close()
    eventually(lambda: not alive(), SOON)


def test_close_leaves_no_zombie_and_wakes_who_waits(fake_agent):
    client = acp.Client(fake_agent("""
        hello(agentInfo={"name": str(os.getpid()), "version": "0"}); new(); prompt()
        while True: read()
    """))
    waiting = [Background(client.new_session("/").ask, "go"), Background(client.request, "_any")]
    eventually(lambda: all(each.running for each in waiting))
    with within(3):
        client.close()
    for each in waiting:
        with pytest.raises(acp.ConnectionClosed):
            each.result(SOON)
    with pytest.raises(ProcessLookupError):
        os.kill(int(client.agent_info.name), 0)


@POSIX
def test_a_ctrl_c_while_the_client_closes_leaves_no_agent(fake_agent, alive, tmp_path):
    command = fake_agent(textwrap.dedent(Alive.WORDS) + textwrap.dedent("""
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        hello()
        sys.stdin.buffer.read()
        open(ended, "w").close()
        time.sleep(300)  # stays, whatever it is told
    """), alive=alive.path, ended=str(tmp_path / "ended"))
    program = textwrap.dedent("""
        import json, os, signal, sys, threading, time
        sys.path.insert(0, sys.argv[1])
        import acp
        client = acp.Client(json.loads(sys.argv[2]))
        def interrupt():  # in the middle of it
            while not os.path.exists(sys.argv[3]): time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt, daemon=True).start()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        client.close()
    """)
    done = subprocess.run([sys.executable, "-c", program, HERE, json.dumps(command), str(tmp_path / "ended")],
                          capture_output=True, timeout=WAIT)
    assert b"KeyboardInterrupt" in done.stderr
    eventually(lambda: not alive())


@pytest.mark.parametrize("threads_used", [False, True])
def test_a_client_that_is_collected_ends_its_agent(fake_agent, alive, tmp_path, threads_used):
    command = fake_agent(textwrap.dedent(Alive.WORDS) + textwrap.dedent("""
        hello()
        if threads_used:
            new()
            request = prompt()
            write(chunk("s", "x"))
            end(1, request)
        assert not sys.stdin.buffer.readline()
        open(ended, "w").write("at the end of its input")
    """), alive=alive.path, threads_used=threads_used, ended=str(tmp_path / "ended"))
    client = acp.Client(command, on_update=lambda session, update: None)
    alive.wait_begun()
    if threads_used:
        assert client.new_session("/").ask("go") == "x"
    del client
    gc.collect()
    eventually(lambda: gc.collect() is not None and not alive(), 8)
    assert (tmp_path / "ended").read_text() == "at the end of its input"


SCRIPT = textwrap.dedent('''
    import sys, threading
    sys.path.insert(0, {here!r})
    import acp
    def permission(request):
        main = threading.current_thread() is threading.main_thread()
        print("asked in the main thread" if main else "asked elsewhere", flush=True)
    client = acp.Client({command!r}, version={version}, permission=permission)
    session = client.new_session("/")
''')


def script(tmp_path, command, body, version=1):
    """A real process that runs `body` with a client and a session of this agent. It prints where it is asked."""
    path = tmp_path / "client.py"
    head = SCRIPT.format(here=HERE, command=command, version=version)
    path.write_text(head + textwrap.dedent(body), encoding="utf-8")
    return subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


WAITS = """
def wait():
    try:
        session.ask("go")
    except acp.ConnectionClosed:
        pass
threading.Thread(target=wait, daemon=True).start()
"""


@pytest.mark.parametrize("end", ["sys.exit(4)", "raise ValueError('no')", "turn = session.prompt('go')", WAITS])
def test_an_interpreter_that_exits_without_close_leaves_no_process(fake_agent, alive, tmp_path, end):
    process = script(tmp_path, fake_agent(textwrap.dedent(Alive.WORDS) + textwrap.dedent("""
        hello(); new()
        while sys.stdin.buffer.readline(): pass
        open(ended, "w").write("at the end of its input")
    """), alive=alive.path, ended=str(tmp_path / "ended")), end)
    _, errors = process.communicate(timeout=WAIT)
    assert process.returncode == {"sys.exit(4)": 4, "raise ValueError('no')": 1}.get(end, 0)
    assert b"Fatal Python error" not in errors and (b"Traceback" in errors) == end.startswith("raise")
    alive.wait_begun()
    eventually(lambda: not alive(), 4)
    assert (tmp_path / "ended").read_text() == "at the end of its input"


@POSIX
@pytest.mark.parametrize("version, way", [(1, "ask"), (2, "wait"), (1, "iterate"), (2, "stream")])
def test_ctrl_c_in_a_blocking_wait_cancels_the_turn_first(fake_agent, tmp_path, version, way):
    command = fake_agent("""
        hello(version); new()
        prompt(version)
        call = {"toolCallId": "t", "title": "Ask"}
        params = {"sessionId": "s", "options": [{"optionId": "no", "name": "No", "kind": "reject_once"}]}
        params.update({"toolCall": call} if version == 1 else {"title": "Ask"})
        write({"jsonrpc": "2.0", "id": 1, "method": "session/request_permission", "params": params})
        while read().get("method") != "session/cancel": pass
        open(path, "w").write("told")
    """, version=version, path=str(tmp_path / "cancelled"))
    wait = {"ask": "session.ask('go')", "wait": "session.prompt('go').wait()", "iterate": "list(session.prompt('go'))",
            "stream": "list(session.stream('go'))"}[way]
    process = script(tmp_path, command, f"""
        try:
            {wait}
        except KeyboardInterrupt:
            client.close()
            print("interrupted", flush=True)
    """, version)
    assert process.stdout.readline() == b"asked in the main thread\n"  # which is inside the wait, then
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=WAIT)
    assert (out, process.returncode) == (b"interrupted\n", 0), errors
    assert (tmp_path / "cancelled").read_text() == "told"


# ---- wrong use, told at once -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("options, word", [
    ({"files": "/tmp"}, "read_text_file"), ({"terminals": True}, "create"), ({"permission": True}, "__call__")])
def test_a_service_that_cannot_serve_is_refused_when_the_client_is_made(options, word):
    with pytest.raises(TypeError, match=word):
        acp.Client(acp.Agent(), **options)


@pytest.mark.parametrize("target", ["agent", "command"])
def test_a_missing_working_folder_is_told_as_that(target, tmp_path):
    missing = str(tmp_path / "missing")
    with pytest.raises(acp.Error, match=f"no such folder: {missing}"):
        if target == "agent":
            acp.Client([sys.executable, "-c", ""], cwd=missing)
        acp.CommandProcess(acp.CreateTerminalRequest("s", sys.executable, cwd=missing), print)


class Reads(acp.Agent):
    """Reads the file that the prompt names, and tells what is raised."""
    versions = (1, 2)

    def prompt(self, turn):
        try:
            turn.read_text_file(turn.text)
        except Exception as error:
            turn.say(type(error).__name__)
        try:
            turn.write_text_file(os.path.relpath("x"), "")
        except ValueError as error:
            turn.say(" " + str(error))


@pytest.mark.parametrize("version, files", [(1, True), (1, False), (2, False)])
def test_a_missing_file_and_a_relative_path_are_the_same_error_wherever_files_are(version, files, tmp_path):
    served = acp.LocalFiles(str(tmp_path)) if files else None
    with acp.Client(Reads(), version=version, files=served) as client:
        said = client.new_session(str(tmp_path)).ask(str(tmp_path / "missing"))
    assert said == "NotFound expected an absolute path, got 'x'"


def test_an_answer_returned_from_prompt_is_no_stop_reason_and_logged_as_such(caplog):
    class Returns(acp.Agent):
        def prompt(self, turn):
            return "You said hi"

    with acp.Client(Returns()) as client, pytest.raises(acp.RequestError):
        client.new_session("/").ask("hi")
    assert "what is said goes to turn.say" in caplog.text


@BOTH
@pytest.mark.parametrize(
    "where", [acp.Connection.append, acp._Strand.post, acp._Workers.run], ids=lambda function: function.__name__)
def test_ctrl_c_at_any_line_of_what_sends_leaves_a_client_that_goes_on(version, where):
    """Each time one line further into this function, the first time that `prompt` comes to it."""
    def trace(frame, event, _):
        if frame.f_code is not where.__code__ or left[0] <= 0:
            return trace
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        left[0] -= event == "line" and not text.startswith("with ")  # a signal is not seen while a lock is let go
        if left[0] == 0:
            raise KeyboardInterrupt
        return trace

    begin, interrupted = 0, True
    while interrupted:
        begin, interrupted = begin + 1, False
        with acp.Client(Handler(lambda turn: turn.say("a")), version=version, on_update=lambda *_: None) as client:
            session, left = client.new_session(cwd="/"), [begin]
            before = sys.gettrace()
            sys.settrace(trace)
            try:
                session.prompt("first")
            except KeyboardInterrupt:
                interrupted = True
            finally:
                sys.settrace(before)
            assert session.ask("again", timeout=WAIT).endswith("a"), begin
    assert begin > 3 or version == 2 and where is not acp.Connection.append  # there the main thread posts nothing


def test_ctrl_c_between_updates_that_are_there_cancels_the_turn(monkeypatch):
    class Says(acp.Agent):
        def prompt(self, turn):
            turn.say("a")
            turn.say("b")
            turn.wait(WAIT)

    with acp.Client(Says()) as client:
        turn = client.new_session("/").prompt("go")
        updates = iter(turn)
        while not isinstance(next(updates), acp.AgentMessageChunk):
            pass

        def interrupted():
            raise KeyboardInterrupt

        monkeypatch.setattr(turn, "_ready", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(updates)
        assert turn.wait(WAIT) == "cancelled"


@BOTH
def test_an_update_of_a_subclass_goes_out_as_its_class(version):
    class Mine(acp.ToolCallUpdate):
        pass

    class Sends(acp.Agent):
        versions = (1, 2)

        def prompt(self, turn):
            turn.send(Mine("t", title="mine", capabilities=acp.ToolCallCapabilities(cancel=True)))

    with acp.Client(Sends(), version=version) as client:
        session = client.new_session("/")
        session.ask("go")
        assert session.state.tool_calls["t"].title == "mine"


def test_a_session_whose_answer_cannot_be_told_is_no_session(caplog):
    class Wrong(acp.Agent):
        def new_session(self, session):
            session.response_meta = {"x": object()}

    agent = Wrong()
    with acp.Client(agent) as client:
        with pytest.raises(acp.RequestError):
            client.new_session("/")
        assert not agent.sessions and not [*client.list_sessions()]


def test_terminals_that_printed_other_words_are_not_equal():
    one, two = (acp.SessionState([acp.TerminalUpdate("t", output=acp.TerminalOutput(data))])
                for data in ("b25l", "dHdv"))
    assert one.terminals["t"].text == "one" and one.terminals["t"] == acp.SessionState(one.snapshot()).terminals["t"]
    assert one.terminals["t"] != two.terminals["t"]


def test_copy_replace_keeps_what_is_unknown():
    replace = getattr(copy, "replace", lambda made, **changes: made.__replace__(**changes))  # new in 3.13
    made = replace(acp.from_wire(acp.TextContent, {"type": "text", "text": "a", "more": 1}, 2), text="b")
    assert (made.text, made.unknown_fields) == ("b", {"more": 1})


# ---- faults that were found by chance, made to happen for certain ----------------------------------------------------

def test_closing_a_session_drops_the_prompts_that_the_client_holds_back():
    began, sent = threading.Event(), []

    class Slow(acp.Agent):
        def prompt(self, turn):
            began.set()
            turn.wait(WAIT)

    def on_message(way, message):
        if way == "out":
            sent.append(message.get("method"))

    with acp.Client(Slow(), on_message=on_message) as client:
        session = client.new_session(cwd="/")
        running = session.prompt("one")
        assert began.wait(WAIT)
        held = session.prompt("two")
        session.close(timeout=WAIT)
        assert (running.wait(WAIT), held.wait(WAIT)) == ("cancelled", "cancelled")
    assert sent.count("session/prompt") == 1  # sent when the first had ended, it would have found no session


@pytest.mark.parametrize("wrong", ["message", "data"])
def test_an_error_that_cannot_be_told_is_an_answer_all_the_same(wrong):
    class Mute:
        def __str__(self):
            raise SystemExit("no words")

    class Fails(acp.Agent):
        def prompt(self, turn):
            raise acp.RequestError(-1, Mute()) if wrong == "message" else acp.RequestError(-1, "x", {"y": object()})

        def extension(self, peer, method, params):
            self.prompt(None)

    with acp.Client(Fails()) as client:
        with pytest.raises(acp.RequestError) as caught:
            client.request("_fails", timeout=WAIT)
        assert caught.value.code == -32603
        with pytest.raises(acp.RequestError) as caught:
            client.new_session(cwd="/").ask("go", timeout=WAIT)
        assert caught.value.code == -32603


@pytest.mark.skipif(os.name == "nt", reason="Windows sends no such signal")
def test_a_prompt_that_comes_behind_a_sigterm_does_not_begin(tmp_path):
    agent = tmp_path / "agent.py"
    agent.write_text(textwrap.dedent("""
        import sys
        import time
        import acp

        class Slow(acp.Agent):
            def prompt(self, turn):
                print("began", turn.text, file=sys.stderr, flush=True)
                turn.wait(100)
            def extension(self, peer, method, params):  # keeps the agent in its grace
                time.sleep(100)

        Slow().run()
    """))
    stderr, began = [], threading.Event()

    def on_stderr(line):
        stderr.append(line)
        began.set()

    with acp.Client([sys.executable, str(agent)], env={"PYTHONPATH": HERE}, on_stderr=on_stderr) as client:
        session = client.new_session(cwd="/", timeout=WAIT)
        hanging = threading.Thread(target=lambda: pytest.raises(acp.Error, client.request, "_hang"))
        hanging.start()
        first = session.prompt("one")
        assert began.wait(WAIT)
        os.kill(client._process.popen.pid, signal.SIGTERM)
        assert first.wait(WAIT) == "cancelled"  # it ends, and waits for the one that hangs
        with pytest.raises(acp.ConnectionClosed):
            session.ask("two", timeout=WAIT)
        hanging.join(WAIT)
    assert client._process.popen.returncode == -signal.SIGTERM
    assert stderr[0] == "began one" and "began two" not in stderr


@pytest.mark.skipif(os.name == "nt", reason="a POSIX process group")
def test_close_after_a_ctrl_c_in_close_does_what_was_left():
    agent = textwrap.dedent("""
        import acp

        class Echo(acp.Agent):
            def prompt(self, turn): pass

        Echo().run()
    """)
    client = acp.Client([sys.executable, "-c", agent], env={"PYTHONPATH": HERE})
    process = client._process
    with pytest.MonkeyPatch.context() as patch:
        def interrupted(timeout=None):
            raise KeyboardInterrupt
        patch.setattr(process.exited, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.close()
    client.close()
    assert process.popen.returncode is not None and process.exited.is_set()
    assert process.popen.stdin.closed and process.popen.stdout.closed
    with pytest.raises(ProcessLookupError):
        os.killpg(process.popen.pid, 0)


@pytest.mark.skipif(os.name == "nt", reason="there is no sleep command")
def test_a_ctrl_c_while_a_client_starts_ends_the_agent(monkeypatch, impatient):
    made, start = [], acp._AgentProcess.__init__

    def started(self, *given):
        start(self, *given)
        made.append(self)

    def interrupted(self):
        raise KeyboardInterrupt
    monkeypatch.setattr(acp._AgentProcess, "__init__", started)
    monkeypatch.setattr(acp.Connection, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        acp.Client(["sleep", "100"])
    assert made[0].exited.wait(WAIT) and made[0].popen.stdin.closed


# ---- streams of text, the short ways --------------------------------------------------------------------------------

TROUBLE = ["", " ", ",", "text", "type", "agent_message_chunk", 'say "x"', "a\\b", "\n", "\u2028", "é", "\U0001f600",
           "s", "\\u0041", "m1", "}", '"', "\x00", "null", "token", "\ud800"]


def stream_lines(version, seed, count=150):
    """Updates of two sessions as lines in several hands' JSON: above all chunks, whose text is what makes trouble."""
    chance = random.Random(seed)
    styles = [{"separators": (",", ":")}, {"ensure_ascii": False}, {"sort_keys": True}]
    style, message, kind = styles[0], "m1", "agent_message_chunk"
    for number in range(count):
        if chance.random() < 0.08:
            style, message = chance.choice(styles), chance.choice(["m1", "m2", ",", "token"])
            kind = chance.choice(["agent_message_chunk", "agent_thought_chunk", "user_message_chunk"])
        text = chance.choice(TROUBLE) + chance.choice(["", "", str(number)])
        block, more = {"type": "text", "text": text}, {}
        if chance.random() < 0.05:
            block = chance.choice([
                {**block, "annotations": {"priority": 1}}, {"type": "new", "x": text},
                {**block, "_meta": {"text": text}}, {**block, "text": 1}, {**block, "text": [[]]}, {"type": "text"},
                {**block, "more": text}])
        if chance.random() < 0.05:
            more = chance.choice([{"_meta": {"m": text}}, {"extra": text}])
        update = {"sessionUpdate": kind, "messageId": message, "content": block}
        if version == 1 and chance.random() < 0.05:
            del update["messageId"]
        params = {"sessionId": "other" if chance.random() < 0.03 else "s", "update": update, **more}
        line = json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}, **style)
        line = line.encode("utf-8", "replace")
        if chance.random() < 0.05:  # and lines that are nearly one
            line = chance.choice([
                line.replace(b'"text":', b'"text":"",'), line[:-3], b" " + line + b" \r", line.replace(b"}}", b"},}"),
                line[:-9] + b"\xff" + line[-9:], line.replace(b"\\u", b"\\x"), line + line,
                line.replace(b'"2.0"', b'2')])
        yield line + b"\n"


def told_apart(updates):
    """Updates with their messages' ids replaced by numbers, since version 1 may leave them to the client."""
    numbers = {}
    return [acp.apply_patch(None, each) if not hasattr(each, "message_id") else dataclasses.replace(
        each, message_id=str(numbers.setdefault(each.message_id, len(numbers)))) for each in updates]


@pytest.mark.parametrize("version, seed", [*itertools.product((1, 2), range(8))])
def test_a_stream_of_text_is_understood_as_line_by_line(version, seed, scripted_agent):
    lines, heard = [*stream_lines(version, seed)], []
    for options in ({}, {"on_message": lambda way, message: None}):  # for who looks at messages each line is read whole
        agent = scripted_agent("""
            hello(V)
            answer(read(), {"sessionId": "s"})
            request = prompt(V)
            write(*LINES)
            end(V, request)
        """, V=version, LINES=lines)
        with acp.Client(agent.socket, version=version, **options) as client:
            session = client.new_session("/")
            if not options:
                taken, shortcut = [], client.connection.shortcut
                client.connection.shortcut = lambda line: taken.append(shortcut(line)) or taken[-1]  # noqa: B023
            turn = session.prompt("go")
            updates = told_apart(turn)
            others = client.session("other").state.messages.values()
            heard.append((updates, [each.beside for each in updates], turn.text,
                          told_apart(session.state.messages.values()), told_apart(others)))
    assert heard[0] == heard[1]
    assert len(heard[0][0]) > 100 and sum(taken) > 25, sum(taken)


@BOTH
def test_a_text_that_stands_in_its_line_twice_is_not_mixed_up(version, scripted_agent):
    said = [("token", "token"), ("token", "token"), ("other", "token"), (",", ","), (",", ","), (",", "x")]
    lines = [json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": {
        "content": {"text": text, "type": "text"}, "messageId": id, "sessionUpdate": "agent_message_chunk"}}}).encode()
        + b"\n" for id, text in said]
    agent = scripted_agent("""
        hello(V)
        answer(read(), {"sessionId": "s"})
        request = prompt(V)
        write(*LINES)
        end(V, request)
    """, V=version, LINES=lines)
    with acp.Client(agent.socket, version=version) as client:
        seen = [each for each in client.new_session("/").prompt("go") if isinstance(each, acp.AgentMessageChunk)]
    assert [(each.message_id, each.content.text) for each in seen] == said


def test_two_sessions_that_stream_side_by_side_both_take_the_short_way(scripted_agent):
    agent = scripted_agent("""
        hello(1)
        for session in "a", "b":
            answer(read(), {"sessionId": session})
        requests = [prompt(1, each) for each in "ab"]
        write(*[chunk(each, f"{each}{number} ", "m") for number in range(50) for each in "aabb"])
        for request in requests:
            end(1, request)
    """)
    with acp.Client(agent.socket) as client:
        taken, shortcut = [], client.connection.shortcut
        client.connection.shortcut = lambda line: taken.append(shortcut(line)) or taken[-1]
        sessions = [client.new_session("/") for _ in range(2)]
        turns = [session.prompt("go") for session in sessions]
        for turn, name in zip(turns, "ab"):
            turn.wait(WAIT)
            assert turn.text == "".join(f"{name}{number} " * 2 for number in range(50))
    assert sum(taken) > 190


def stream_updates(seed, count=150):
    """What an agent may send one after the other: above all chunks of text."""
    chance = random.Random(seed)
    kind, message = acp.AgentMessageChunk, "m1"
    for number in range(count):
        if chance.random() < 0.1:
            kind = chance.choice([acp.AgentMessageChunk, acp.AgentThoughtChunk, acp.UserMessageChunk])
            message = chance.choice(["m1", "m2", "", '"', "text"])
        text = chance.choice(TROUBLE) + chance.choice(["", str(number)])
        made = kind(message, acp.TextContent(text))
        if chance.random() < 0.2:
            made = chance.choice([
                kind(message, acp.TextContent(text, acp.Annotations(priority=1))),
                kind(message, made.content, meta={"": ""}), kind(message, acp.ImageContent("", "image/png")),
                acp.AgentMessage("m1", [acp.TextContent(text)]), acp.ToolCallUpdate("t", title=text),
                kind(message, acp.TextContent(text, meta={"x": text}))])
        if chance.random() < 0.05:
            made.beside = {"_meta": {"m": text}, "extra": text}
        if chance.random() < 0.05:
            made.unknown_fields = {"more": text}
        yield made


@pytest.mark.parametrize("version, seed", [*itertools.product((1, 2), range(8))])
def test_a_stream_of_text_goes_out_as_update_by_update(version, seed):
    updates, seen = [*stream_updates(seed)], []

    class Streams(acp.Agent):
        versions = (1, 2)

        def prompt(self, turn):
            for update in updates:
                turn.send(update)

    with acp.Client(Streams(), version=version, on_message=lambda way, message: seen.append(message)) as client:
        session = client.new_session("/")
        session.prompt("go").wait(WAIT)
        writer, expected = acp.V1Writer(acp.ClientCapabilities()), []
        for update in updates:
            wires = writer.updates(update) if version == 1 else [acp.to_wire(update, 2)]
            expected += [{**(update.beside or {}), "sessionId": session.id, "update": wire} for wire in wires]
    got = [message["params"] for message in seen if message.get("method") == "session/update"]
    kinds = {"user_message", "state_update"}
    plain = [params for params in got if params["update"]["sessionUpdate"] not in kinds]

    def comparable(params):  # an id that version 1 makes for what is said anew is another each time
        text = json.dumps(params, sort_keys=True).encode("utf-8", "replace").decode()
        return re.sub("message-[0-9a-f]{16}", "made", text).replace("\\ud800", "\ufffd").replace("\\ufffd", "\ufffd")
    assert [*map(comparable, plain)] == [*map(comparable, expected)]


@BOTH
def test_what_a_session_sends_before_it_is_named_goes_out_under_its_name(version):
    class Renames(acp.Agent):
        versions = (1, 2)

        def new_session(self, session):
            session.send(acp.Notice("info", "hello"))
            session.id = "late"

        def prompt(self, turn):
            turn.say("x")

    seen = []
    with acp.Client(Renames(), version=version, on_message=lambda way, message: seen.append(message)) as client:
        client.new_session("/").ask("hi")
    named = [message["params"]["sessionId"] for message in seen if message.get("method") == "session/update"]
    assert len(named) > 1 and set(named) == {"late"}, named


# == 10. Local services ===============================================================================================
# What a client serves to agents of version 1: files below a folder, and commands.

class Served:
    """A client that offers files and terminals, and what its agent asks of it by raw methods."""

    def __init__(self, cwd, **services):
        self.client = acp.Client(Asker(), **services)
        self.session = self.client.new_session(cwd=str(cwd))
        self.id = self.session.id

    def call(self, method, **params):
        """The result, or the RequestError that the agent got."""
        self.session.ask(json.dumps([method, params]))
        result, error = Asker.got.pop()
        if error is not None:
            raise error
        return result


class Asker(acp.Agent):
    """Sends what the prompt says."""

    got = []

    def prompt(self, turn):
        method, params = json.loads(turn.text)
        try:
            self.got.append((turn.session.request(method, params), None))
        except acp.RequestError as error:
            self.got.append((None, error))


@pytest.fixture
def served(tmp_path):
    made = []

    def make(cwd=tmp_path, **services):
        made.append(Served(cwd, **services))
        return made[-1]

    yield make
    for each in made:
        each.client.close()


# ---- files ----------------------------------------------------------------------------------------------------------

def test_a_window_of_lines_counts_from_one_and_keeps_line_ends(served, tmp_path):
    (tmp_path / "f").write_bytes("a\nb\r\ncé".encode())
    read = functools.partial(served(files=acp.LocalFiles(str(tmp_path))).call, "fs/read_text_file",
                             path=str(tmp_path / "f"))
    assert read()["content"] == "a\nb\r\ncé"
    assert read(line=2, limit=1)["content"] == "b\r\n"
    assert read(line=1, limit=1)["content"] == read(line=0, limit=1)["content"] == "a\n"
    assert read(line=3)["content"] == read(line=3, limit=9)["content"] == "cé"
    assert read(line=4)["content"] == read(limit=0)["content"] == ""


def test_a_missing_file_is_not_found_and_writing_it_makes_it(served, tmp_path):
    host, path = served(files=acp.LocalFiles(str(tmp_path))), tmp_path / "new" / "deep" / "f.txt"
    with pytest.raises(acp.NotFound) as caught:
        host.call("fs/read_text_file", path=str(path))
    assert (caught.value.code, caught.value.data) == (-32002, {"path": str(path)})
    assert not (tmp_path / "new").exists()
    assert host.call("fs/write_text_file", path=str(path), content="one\r\ntwo") == {}
    assert path.read_bytes() == b"one\r\ntwo"
    assert host.call("fs/read_text_file", path=str(path)) == {"content": "one\r\ntwo"}


@POSIX
def test_writing_keeps_the_mode_replaces_atomically_and_leaves_nothing(served, tmp_path):
    host, path = served(files=acp.LocalFiles(str(tmp_path))), tmp_path / "run.sh"
    path.write_text("old")
    path.chmod(0o751)
    before, link = path.stat().st_ino, tmp_path / "link"
    os.link(path, link)  # who has the old file still has the old text
    host.call("fs/write_text_file", path=str(path), content="new")
    assert (path.read_text(), path.stat().st_mode & 0o777, link.read_text()) == ("new", 0o751, "old")
    assert path.stat().st_ino != before
    path.chmod(0o444)
    with pytest.raises(acp.InvalidParams, match="read-only"):
        host.call("fs/write_text_file", path=str(path), content="newer")
    assert sorted(os.listdir(tmp_path)) == ["link", "run.sh"]


@POSIX
def test_a_full_disk_leaves_the_old_file_and_no_other(served, tmp_path, monkeypatch):
    host, path = served(files=acp.LocalFiles(str(tmp_path))), tmp_path / "f"
    path.write_text("old")

    def full(*args, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(acp.InvalidParams, match="No space left"):
        host.call("fs/write_text_file", path=str(path), content="new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["f"]


@POSIX
@pytest.mark.parametrize("method", ["fs/read_text_file", "fs/write_text_file"])
def test_nothing_outside_the_roots_is_read_or_written(served, tmp_path, method):
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in root, outside, tmp_path / "rooted":
        folder.mkdir()
    (outside / "secret").write_text("secret")
    (tmp_path / "rooted" / "f").write_text("neighbour")
    (root / "out").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    (root / "dangling").symlink_to(outside / "not yet")
    host = served(files=acp.LocalFiles(str(root)))
    for path in (outside / "secret", root / ".." / "outside" / "secret", root / "out" / "secret", root / "file",
                 tmp_path / "rooted" / "f", root / "dangling", root / "out" / "new" / "f", "/etc/hostname"):
        with pytest.raises(acp.InvalidParams, match="not below a folder"):
            host.call(method, path=str(path), content="mine")
    for path, reason in (("root/f", "absolute"), ("", "absolute"), (str(root), "directory|regular|folder"),
                         (str(root) + "/a\0b", "null|path|not")):
        with pytest.raises(acp.InvalidParams, match=reason):
            host.call(method, path=path, content="mine")
    assert [each.name for each in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == "secret"
    (root / "inside").symlink_to(root / "real")  # a link that stays inside is followed
    (root / "real").write_text("real")
    host.call(method, path=str(root / "inside"), content="real")
    assert (root / "inside").is_symlink() and (root / "real").read_text() == "real"


@POSIX
@pytest.mark.parametrize("method", ["fs/read_text_file", "fs/write_text_file"])
def test_a_link_put_there_after_the_check_leads_nowhere(served, tmp_path, monkeypatch, method):
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in root / "sub", outside:
        folder.mkdir(parents=True)
    for folder in root / "sub", outside:
        (folder / "f").write_text("text")
    host, real = served(files=acp.LocalFiles(str(root))), os.path.realpath
    for name, target in (("sub", outside), ("sub/f", outside / "f")):
        def swapped(path, name=name, target=target, **more):
            found = real(path)
            if os.path.lexists(root / name) and not (root / name).is_symlink():
                (root / name).rename(root / "aside")
                (root / name).symlink_to(target)
            return found

        monkeypatch.setattr(os.path, "realpath", swapped)
        if method == "fs/write_text_file" and name == "sub/f":  # the link itself is replaced
            with contextlib.suppress(acp.InvalidParams):
                host.call(method, path=str(root / "sub" / "f"), content="mine")
        else:
            with pytest.raises(acp.InvalidParams):
                host.call(method, path=str(root / "sub" / "f"), content="mine")
        monkeypatch.undo()
        (root / name).unlink()
        (root / "aside").rename(root / name)
    assert (outside / "f").read_text() == "text" and os.listdir(outside) == ["f"]


@POSIX
def test_what_is_no_text_file_is_told_as_such_and_nothing_hangs(served, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    host = served(files=acp.LocalFiles(str(tmp_path)))
    with within(SOON):
        for name, reason in (("fifo", "regular file"), ("binary", "UTF-8")):
            with pytest.raises(acp.InvalidParams, match=reason):
                host.call("fs/read_text_file", path=str(tmp_path / name))
        with pytest.raises(acp.InvalidParams, match="regular file|No such device"):
            host.call("fs/write_text_file", path=str(tmp_path / "fifo"), content="x")
    assert sorted(os.listdir(tmp_path)) == ["binary", "fifo"]


def test_files_may_be_offered_for_reading_only(served, tmp_path):
    (tmp_path / "f").write_text("x")
    host = served(files=acp.LocalFiles(str(tmp_path), write=False))
    assert host.call("fs/read_text_file", path=str(tmp_path / "f")) == {"content": "x"}
    with pytest.raises(acp.RequestError):
        host.call("fs/write_text_file", path=str(tmp_path / "f"), content="y")
    assert (tmp_path / "f").read_text() == "x"
    with pytest.raises(ValueError, match="folder"):
        acp.LocalFiles()


@pytest.mark.parametrize("window", [{"line": 10 ** 19}, {"line": 1, "limit": 10 ** 19}, {"limit": 2 ** 63}])
def test_windows_of_any_size_may_be_asked_for(tmp_path, window):
    (tmp_path / "f").write_bytes(b"a\nb")
    given = acp.LocalFiles(str(tmp_path)).read_text_file(acp.ReadTextFileRequest("s", str(tmp_path / "f"), **window))
    assert given.content == ("" if window.get("line", 0) > 2 else "a\nb")


@POSIX
def test_a_file_that_no_message_can_hold_is_refused_and_a_part_of_it_is_read(tmp_path):
    path = tmp_path / "f"
    with open(path, "wb") as file:
        file.write(b"first\n")
        file.truncate(1 << 40)  # a terabyte that takes no room
    files = acp.LocalFiles(str(tmp_path))
    assert files.read_text_file(acp.ReadTextFileRequest("s", str(path), limit=1)).content == "first\n"
    for line in 1, 3:
        with pytest.raises(acp.InvalidParams, match="64 MiB"):
            files.read_text_file(acp.ReadTextFileRequest("s", str(path), line=line))


@POSIX
def test_what_replaces_a_private_file_is_private_from_the_beginning(tmp_path, monkeypatch):
    path, modes, real = tmp_path / "f", [], os.fchmod
    path.write_text("old")
    path.chmod(0o640)

    def fchmod(number, mode):
        modes.append(os.fstat(number).st_mode & 0o777)
        real(number, mode)

    monkeypatch.setattr(os, "fchmod", fchmod)
    acp.LocalFiles(str(tmp_path)).write_text_file(acp.WriteTextFileRequest("s", str(path), "new"))
    assert modes == [0o600] and path.stat().st_mode & 0o777 == 0o640


# ---- terminals ------------------------------------------------------------------------------------------------------

@pytest.fixture
def command(served):
    """Start a command in a client's terminal: a function for its other methods by name."""
    host = served(terminals=acp.LocalTerminals())

    def start(*argv, **more):
        id = host.call("terminal/create", command=argv[0], args=list(argv[1:]), **more)["terminalId"]
        return functools.partial(lambda method, **params: host.call("terminal/" + method, terminalId=id, **params))

    start.host = host
    return start


def test_a_command_runs_without_a_shell_in_its_folder_with_its_environment(command, tmp_path):
    (tmp_path / "sub").mkdir()
    source = """
        import os, sys
        sys.stdout.write(repr([sys.argv[1:], os.getcwd(), os.environ["EXTRA"], "PATH" in os.environ, sys.stdin.read()]))
        sys.stdout.flush()
        sys.stderr.write("; and errors")
    """
    ask = command(*python(source, "$HOME", "a b"), env=[{"name": "EXTRA", "value": "é"}], cwd=str(tmp_path / "sub"))
    assert ask("wait_for_exit") == {"exitCode": 0}
    wanted = repr([["$HOME", "a b"], os.path.realpath(tmp_path / "sub"), "é", True, ""]) + "; and errors"
    assert ask("output") == {"output": wanted, "truncated": False, "exitStatus": {"exitCode": 0}}
    ask = command(*python("import os; print(os.getcwd(), end='')"))  # else the session's folder
    ask("wait_for_exit")
    assert ask("output")["output"] == os.path.realpath(tmp_path)


@POSIX
def test_a_command_tells_its_code_or_its_signal(command):
    assert command("sh", "-c", "exit 3")("wait_for_exit") == {"exitCode": 3}
    assert command("sh", "-c", "kill -9 $$")("wait_for_exit") == {"signal": "SIGKILL"}


@POSIX
def test_output_is_kept_from_the_end_at_the_boundary_of_a_character(command):
    for limit, wanted, cut in ((100, "aé€😀z", False), (11, "aé€😀z", False), (10, "é€😀z", True), (9, "€😀z", True),
                               (8, "€😀z", True), (7, "😀z", True), (4, "z", True), (1, "z", True), (0, "", True)):
        ask = command("printf", "aé€😀z", outputByteLimit=limit)
        ask("wait_for_exit")
        assert (ask("output")["output"], ask("output")["truncated"]) == (wanted, cut), limit
    ask = command("printf", r"\377\376" * 50, outputByteLimit=100)
    ask("wait_for_exit")
    told = ask("output")
    assert len(told["output"].encode()) <= 100 and set(told["output"]) == {"\ufffd"} and told["truncated"]


@POSIX
def test_output_comes_while_the_command_runs_and_a_torn_character_waits(command):
    gate = os.path.join(command.host.session.cwd, "gate")
    ask = command(*python(r"""
        import os, sys, time
        os.write(1, b"a\xc3")
        while not os.path.exists(sys.argv[1]): time.sleep(0.01)
        os.write(1, b"\xa9")
    """, gate))
    eventually(lambda: ask("output")["output"] == "a")
    assert "exitStatus" not in ask("output")
    open(gate, "w").close()
    ask("wait_for_exit")
    assert ask("output")["output"] == "aé"


@POSIX
def test_much_output_is_bounded_in_memory_and_on_the_way(served):
    host = served(terminals=(terminals := acp.LocalTerminals()))
    id = host.call("terminal/create", command="sh", outputByteLimit=1000,
                   args=["-c", "yes 0123456789 | head -c 3000000; printf end"])["terminalId"]
    host.call("terminal/wait_for_exit", terminalId=id)
    told = host.call("terminal/output", terminalId=id)
    assert told["truncated"] and len(told["output"]) == 1000 and told["output"].endswith("end")
    assert len(terminals._commands[host.id, id]._kept) == 1000
    shown = host.session.state.terminals[id]
    assert shown.text.endswith("end") and len(shown.data) <= 3000 + 65536


@POSIX
def test_a_flood_of_a_command_waits_for_a_client_that_does_not_take_it():
    stirred, go = [], threading.Event()

    def job(turn):
        with turn.tool("Flood") as tool, tool.terminal("sh", ["-c", "yes | head -c 5000000"]) as terminal:
            stirred.append(terminal.wait(60))

    def slow(session, update):
        go.wait(WAIT)

    with acp.Client(Handler(job), terminals=acp.LocalTerminals(), on_update=slow, max_queued_bytes=1 << 20) as client:
        turn = client.new_session(cwd=".").prompt("go")
        eventually(client.connection.crowded)
        assert not stirred and not client.connection.closed
        go.set()
        assert turn.wait(60) == "end_turn" and stirred == [acp.TerminalExitStatus(0)]


@POSIX
def test_a_flood_of_a_command_of_which_little_is_kept_waits_for_who_takes_it(agent_end):
    wire = agent_end(terminals=acp.LocalTerminals(), max_queued_bytes=60_000)
    turn, connection = wire.session.prompt("go"), wire.client.connection
    request = wire.accept()
    terminal = {"sessionId": "s", **wire.call("terminal/create", {
        "sessionId": "s", "command": "sh", "args": ["-c", "yes | head -c 5000000"], "outputByteLimit": 1000})}
    eventually(connection.crowded)
    kept = len(turn._entries)
    wire.settled()
    assert len(turn._entries) == kept and not connection.closed
    waiting = Background(turn.wait)
    assert wire.call("terminal/wait_for_exit", terminal) == {"exitCode": 0}
    wire.finish(request)
    assert waiting.result() == "end_turn" and not connection.closed


@POSIX
def test_killing_a_command_ends_all_that_it_started_and_keeps_its_output(command, impatient):
    source = """
        import os, signal, subprocess, sys, time
        if sys.argv[1:] == ["stubborn"]: signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "300"])
        print(os.getpid(), child.pid, flush=True)
        time.sleep(300)
    """
    for option in "gentle", "stubborn":
        ask = command(*python(source, option))
        eventually(lambda ask=ask: "\n" in ask("output")["output"])
        pids = list(map(int, ask("output")["output"].split()))
        assert ask("kill") == {}
        assert ask("wait_for_exit") == {"signal": "SIGKILL" if option == "stubborn" else "SIGTERM"}
        for pid in pids:
            eventually(lambda pid=pid: not running(pid))
        assert ask("output")["output"].split() == list(map(str, pids))
        assert ask("release") == {}
        for method in "output", "wait_for_exit", "kill", "release":
            with pytest.raises(acp.NotFound):
                ask(method)


def pid_from(terminal):
    """The number that a command of a turn prints first: its own."""
    eventually(lambda: "\n" in terminal.output().output)
    return int(terminal.output().output)


PRINTS_ITS_PID = "sh", ["-c", "echo $$; exec sleep 300"]


@POSIX
@pytest.mark.parametrize("child", ["exec sleep 300", "while :; do echo; sleep 0.1; done"], ids=["silent", "printing"])
def test_a_child_that_holds_the_output_does_not_hold_up_the_exit(command, child):
    ask = command("sh", "-c", f"({child}) & echo $!")
    with within(3):
        assert ask("wait_for_exit") == {"exitCode": 0}
    pid = int(ask("output")["output"])
    assert running(pid)
    ask("release")
    eventually(lambda: not running(pid))


@POSIX
@pytest.mark.parametrize("way", ["release", "close the session", "close the client", "the agent dies", "collect"])
def test_what_runs_ends_with_its_session_and_with_the_client(fake_agent, tmp_path, way):
    command = fake_agent("""
        hello(agentCapabilities={"sessionCapabilities": {"close": {}}}); new(); request = prompt()
        for sleep in range(2):
            write({"jsonrpc": "2.0", "id": sleep, "method": "terminal/create", "params": {
                "sessionId": "s", "command": "sh",
                "args": ["-c", "echo $$ > %s/pid-%d; exec sleep 300" % (folder, sleep)]}})
            id = read()["result"]["terminalId"]
            if waits:
                write({"jsonrpc": "2.0", "id": "wait", "method": "terminal/wait_for_exit", "params": {
                    "sessionId": "s", "terminalId": id}})
        end(1, request)
        while True:
            message = read()
            if message.get("method") == "session/close": answer(message, {})
            if message.get("method") == "die": os._exit(3)
            if message.get("method") == "release":
                write({"jsonrpc": "2.0", "id": "r", "method": "terminal/release", "params": {
                    "sessionId": "s", "terminalId": id}})
                read(); answer(message, {})
    """, folder=str(tmp_path), waits=way != "collect")  # what waits in a worker holds the client
    client = acp.Client(command, terminals=acp.LocalTerminals())
    session = client.new_session("/")
    session.ask("go")
    paths = [tmp_path / f"pid-{number}" for number in range(2)]
    eventually(lambda: all(path.exists() and path.read_text().strip() for path in paths))
    pids = [int(path.read_text()) for path in paths]
    assert all(map(running, pids))
    try:
        if way == "release":
            client.request("release")
            pids = pids[1:]
        elif way == "close the session":
            session.close()
        elif way == "the agent dies":
            with pytest.raises(acp.ConnectionClosed):
                client.request("die")
        elif way == "close the client":
            client.close()
        else:
            client = session = None
            gc.collect()
        eventually(lambda: gc.collect() is not None and not any(map(running, pids)), 8)
    finally:
        if client is not None:
            client.close()


def test_what_cannot_be_started_is_told_and_terminals_belong_to_their_session(served, tmp_path):
    host = served(terminals=acp.LocalTerminals())
    for params, reason in (({"command": "no-such-program-anywhere"}, "no such command"),
                           ({"command": sys.executable, "cwd": "sub"}, "params.cwd: expected an absolute path"),
                           ({"command": sys.executable, "cwd": str(tmp_path / "missing")}, "cannot start"),
                           ({"command": sys.executable, "args": ["a\0b"]}, "cannot start"),
                           ({"command": ""}, "no such command|cannot start")):
        with pytest.raises(acp.InvalidParams, match=reason):
            host.call("terminal/create", **params)
    id = host.call("terminal/create", command=sys.executable, args=["-c", "0"])["terminalId"]
    other = host.client.new_session("/")
    other.ask(json.dumps(["terminal/output", {"terminalId": id}]))
    assert Asker.got.pop()[1].code == -32002
    assert host.session.state.terminals[id].command.endswith("-c 0")


def terminal_of(terminals, *script, session="s"):
    return terminals.create(acp.CreateTerminalRequest(session, "sh", ["-c", *script])).terminal_id


@POSIX
def test_commands_that_do_not_heed_the_first_signal_are_ended_together(tmp_path, impatient):
    terminals = acp.LocalTerminals()
    for number in range(5):
        terminal_of(terminals, f"trap '' TERM; touch {tmp_path}/{number}; exec sleep 300",
                    session=f"s{number % 2}")
    eventually(lambda: len(os.listdir(tmp_path)) == 5)
    commands = list(terminals._commands.values())
    with within(0.9):  # one after the other they would have five times the grace
        terminals.close("s0", "s1")
    assert not terminals._commands
    eventually(lambda: not any(command.signal(0) for command in commands))  # the system takes note of the last


@POSIX
def test_a_client_that_is_closed_while_the_agents_end_is_handled_leaves_no_command(fake_agent, tmp_path, impatient):
    command = fake_agent("""
        hello(); new(); prompt()
        write({"jsonrpc": "2.0", "id": 1, "method": "terminal/create", "params": {"sessionId": "s", "command": "sh",
            "args": ["-c", "trap '' TERM; echo $$ > %s; while :; do sleep 0.1; done" % path]}})
        read()
        while not (os.path.exists(path) and open(path).read().strip()): time.sleep(0.01)
    """, path=str(tmp_path / "pid"))
    with acp.Client(command, terminals=acp.LocalTerminals()) as client:
        with pytest.raises(acp.ConnectionClosed):
            client.new_session("/").ask("go")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@POSIX
def test_a_wait_that_was_given_up_keeps_no_worker_of_the_client():
    begun = threading.active_count()
    told = []

    class Polls(acp.Agent):
        def prompt(self, turn):
            with turn.terminal("sleep", ["60"]) as terminal:
                for _ in range(40):
                    with contextlib.suppress(acp.Timeout):
                        terminal.wait(0.01)
                client.connection.wait_served(time.monotonic() + WAIT)
                told.append(len(client.connection.serving))
                eventually(lambda: client.connection.workers._idle > 5)

    with acp.Client(Polls(), terminals=acp.LocalTerminals()) as client:
        client.new_session("/").ask("go")
    assert told == [0]
    eventually(lambda: threading.active_count() <= begun)


@POSIX
def test_a_command_made_behind_the_close_of_its_session_is_ended(scripted_agent):
    terminals = acp.LocalTerminals()
    create, begun, gate = terminals.create, threading.Event(), threading.Event()

    def late(params):
        begun.set()
        gate.wait(WAIT)
        return create(params)

    terminals.create = late
    agent = scripted_agent("""
        hello(agentCapabilities={"sessionCapabilities": {"close": {}}}); new()
        write({"jsonrpc": "2.0", "id": 1, "method": "terminal/create", "params": {
            "sessionId": "s", "command": "sleep", "args": ["300"]}})
        answer(read(), {}); answer(read(), {}); read()
    """)
    with acp.Client(agent.socket, terminals=terminals) as client:
        session = client.new_session("/")
        assert begun.wait(WAIT)
        session.close()
        gate.set()
        client.connection.wait_served(time.monotonic() + WAIT)
        eventually(lambda: not client.connection.serving)
        assert not terminals._commands


@POSIX
def test_a_group_that_has_ended_is_not_signalled_later(monkeypatch):
    terminals = acp.LocalTerminals()
    id = terminal_of(terminals, "exec true")
    terminals.wait_for_exit(acp.CancelTerminalRequest("s", id))
    killed = []
    monkeypatch.setattr(os, "killpg", lambda *what: killed.append(what))  # its number may be another's by now
    terminals.release(acp.CancelTerminalRequest("s", id))
    assert killed == []


@POSIX
def test_the_beginning_of_cut_output_that_is_no_text_is_not_lost():
    terminals = acp.LocalTerminals()
    made = terminals.create(acp.CreateTerminalRequest("s", "printf", [r"\200" * 40], output_byte_limit=30))
    terminals.wait_for_exit(acp.CancelTerminalRequest("s", made.terminal_id))
    assert terminals.output(acp.CancelTerminalRequest("s", made.terminal_id)).output == "\ufffd" * 10
    terminals.close("s")


# == The README and the file itself ===================================================================================
# The programs of the README run as they stand there; `acp.py` is vendored into another package, and looked at as a
# text.

def test_the_readme_begins_with_exactly_two_commands():
    head = README[:README.index("\n## ")]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", head, re.S | re.M)
    assert [language for language, _ in blocks] == ["sh"]
    ask, tests = blocks[0][1].splitlines()
    assert ask == 'python3 examples/ask.py "hello"'
    assert "-m venv" in tests and "install" in tests and tests.endswith("-m pytest -q")
    assert README.startswith("# acp.py\n\n```sh\n")  # nothing comes before them


def test_the_first_command_of_the_readme_works():
    done = run_program(["python3", "examples/ask.py", "hello"], HERE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "You said: hello\n", "")


def test_the_echo_agent_of_the_readme_serves_as_a_process(readme_folder, raw):
    wire = raw([sys.executable, str(readme_folder / "echo.py")])
    session = wire.start()
    assert wire.turn_end(1, wire.prompt(session, "hello")) == "end_turn"
    assert [text_update(update) for update in wire.updates()] == ["You said: hello"]
    assert wire.end() == 0


def test_the_clients_of_the_readme_run_as_written(readme_folder):
    done = [run_program([sys.executable, "-c", program], readme_folder) for program in CLIENT_PROGRAMS]
    assert [(each.returncode, each.stdout, each.stderr) for each in done] == [
        (0, "You said: hello\n", ""), (0, "You said: hello again\n", ""), (0, "end_turn\n", "")]


def test_the_examples_of_the_docstring_run_as_written(readme_folder):
    agent, clients = [textwrap.dedent(each) for each in re.findall(r"(?:^    .*\n)+", acp.__doc__, re.M)]
    (readme_folder / "echo.py").write_text(agent, encoding="utf-8")
    done = run_program([sys.executable, "-c", "from echo import Echo, acp\n" + clients], readme_folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "You said: hello\n", "")


def test_the_programs_of_the_readme_are_as_short_as_it_says():
    told = re.findall(r"\bin (\d+) lines[^`]*?(?:`[^`]+`)?:\n\n```python\n(.*?)^```$", README, re.S | re.M)
    assert [int(number) for number, _ in told] == [6, 15, 4, 6]  # an agent, permission and edit, a client, streaming
    for number, program in told:
        assert len(program.split("\n")) - program.count("\n\n") - 1 == int(number), program
        assert max(map(len, program.split("\n"))) <= 90 and ";" not in program


def test_the_test_of_the_readme_passes_and_would_fail_on_another_answer():
    names = {"__name__": "echo"}
    exec(ECHO_PROGRAM, names)
    exec(IN_PROCESS_PROGRAM, names)
    names["Echo"].prompt = lambda self, turn: turn.say("something else")
    with pytest.raises(AssertionError):
        exec(IN_PROCESS_PROGRAM, names)


@pytest.mark.parametrize("number", [
    number for number, block in enumerate(README_PYTHON)
    if block not in (ECHO_PROGRAM, IN_PROCESS_PROGRAM, *CLIENT_PROGRAMS)])
def test_every_program_of_the_readme_runs(readme_folder, number):
    program = "import acp\nfrom echo import Echo\n" + README_PYTHON[number]
    done = run_program([sys.executable, "-W", "error", "-c", program], readme_folder)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    if "notes.txt" in program:
        assert (readme_folder / "notes.txt").read_text(encoding="utf-8") == "buy milk\n"


def test_every_other_code_block_of_the_readme_is_sound():
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.S | re.M)
    assert README.count("```") == 2 * len(blocks)  # each names its language
    assert {language for language, _ in blocks} <= {"python", "json", "sh", "toml", "lua", "elisp", "text"}
    servers = [json.loads(text) for language, text in blocks if language == "json"]
    assert [sorted(each) for settings in servers for each in settings["agent_servers"].values()] == [
        ["args", "command", "env", "type"], ["args", "command", "env"]]
    for language, text in blocks:
        if language in ("lua", "elisp"):  # other people's programs: balanced, and the same command as everywhere
            bare = re.sub(r'"[^"]*"', '""', text)
            for opens, closes in ("()", "{}"):
                assert bare.count(opens) == bare.count(closes) > 0 or opens == "{" and language == "elisp"
            assert re.search(r'"python3".*?"/absolute/path/to/echo\.py"', text, re.S)
        if language == "sh":
            done = subprocess.run(["sh", "-n", "-c", text], capture_output=True)
            assert (done.returncode, done.stderr) == (0, b"")


def test_the_readme_has_every_method_and_update_and_where_it_is():
    tables = README[README.index("## Every message"):README.index("## Type checkers")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in tables.splitlines() if line[:3] == "| `"]
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row[0])}
    methods = {**acp.method_table(1), **acp.method_table(2)}
    assert set(methods) - named == {"session/update"} and "`session/update`" in tables
    tags = {cls.session_update for cls in acp.SessionUpdate.__args__ if cls is not acp.Unknown}
    tags |= {tag for tag, cls in acp.DIALECTS[1].variants.items() if cls is not None}
    assert named == (set(methods) - {"session/update"}) | tags
    lines = acp_source().splitlines()
    sources = {node.name: "\n".join(lines[node.lineno - 1:node.end_lineno])
               for node in ast.parse(acp_source()).body if isinstance(node, ast.ClassDef)}
    options = set(inspect.signature(acp.Client).parameters) | {"timeout", "replay"}
    homes = {"turn": [acp.Turn], "tool": [acp.Tool], "session": [acp.AgentSession, acp.ClientSession], "acp": [acp]}
    for row in rows:
        places = [[acp.Agent], [acp.Client]] if row[0].strip("`").split("`")[0] in methods else [
            [acp.Turn], [acp.SessionState]]
        for cell, own in zip(row[1:], places):
            for name in re.findall(r"`([^`]+)`", cell):
                home, _, member = name.rpartition(".")
                if "=" in name:
                    assert name.partition("=")[0] in options, name
                else:
                    assert any(hasattr(each, member) for each in homes[home]) if home else any(
                        hasattr(each, name) or name in sources[each.__name__] for each in (
                            *own, acp.Elicited, acp.Connection, acp.ClientTurn)), (row[0], name)


def test_the_readme_names_only_what_exists():
    names = set(re.findall(r"`acp\.(\w+)", README)) | set(re.findall(r"\bacp\.([A-Z]\w+)", README))
    assert {"Client", "Agent"} <= names
    assert [name for name in sorted(names - {"py"}) if not hasattr(acp, name)] == []
    for path in re.findall(r"`(\w+/\w+\.py|[A-Z]+)`", README):
        assert os.path.exists(os.path.join(HERE, path)), path


# ---- the file -------------------------------------------------------------------------------------------------------

def test_importing_it_does_nothing_else(tmp_path):
    program = ("import sys, threading, logging, signal, os\n"
               "sys.path.insert(0, sys.argv[1])\n"
               "handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]\n"
               "environment, folder, hook = dict(os.environ), os.getcwd(), sys.excepthook\n"
               "import acp\n"
               "assert threading.active_count() == 1\n"
               "assert not logging.getLogger('acp').handlers and not logging.getLogger().handlers\n"
               "assert logging.getLogger('acp').level == logging.NOTSET and logging.getLogger('acp').propagate\n"
               "assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]\n"
               "assert (environment, folder, hook) == (dict(os.environ), os.getcwd(), sys.excepthook)\n"
               "late = {'subprocess', 'difflib', 'tempfile', 'socket', 'asyncio', 'select', 'shutil'}\n"
               "assert not late & set(sys.modules), late & set(sys.modules)\n")
    done = run_program([sys.executable, "-I", "-S", "-W", "error", "-c", program, HERE], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_copy_vendored_into_another_package_serves_and_asks(readme_folder):
    package = readme_folder / "mytool"
    (package / "agent.py").write_text(
        ECHO_PROGRAM.replace("import acp\n", "from ._vendor import acp\n"), encoding="utf-8")
    (package / "ask.py").write_text(
        "import sys\nfrom mytool._vendor import acp\n"
        "for version in 1, 2:\n"
        "    with acp.Client([sys.executable, '-m', 'mytool.agent'], version=version) as client:\n"
        "        print(client.new_session(cwd='.').ask('hello'))\n"
        "assert 'acp' not in sys.modules\n", encoding="utf-8")
    (readme_folder / "acp.py").write_text("raise RuntimeError('another module of this name')", encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-m", "mytool.ask"], cwd=str(readme_folder), env=environment,
                          capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout.split(b"\n"), done.stderr) == (
        0, [b"You said: hello", b"You said: hello", b""], b"")


def test_two_copies_in_one_process_do_not_meet(readme_folder):
    program = ("import acp\nfrom mytool._vendor import acp as other\n"
               "class Echo(other.Agent):\n    def prompt(self, turn):\n        turn.say(turn.text)\n"
               "import socket\nours, theirs = socket.socketpair()\n"
               "import threading\nthreading.Thread(target=Echo().run, args=(theirs,), daemon=True).start()\n"
               "with acp.Client(ours) as client:\n    print(client.new_session(cwd='.').ask('hello'))\n")
    done = run_program([sys.executable, "-c", program], readme_folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")


def test_all_names_of_the_public_face_exist_and_are_listed_once():
    names = acp.__all__
    assert len(set(names)) == len(names)
    assert [name for name in names if not hasattr(acp, name) or name.startswith("_")] == []
    face = {"Agent", "Client", "Connection", "SessionState", "apply_patch", "to_wire", "from_wire", "UNSET", "Unknown",
            "Error", "RequestError", "AuthRequired", "NotFound", "InvalidParams", "MethodNotFound", "RequestCancelled",
            "UnsupportedVersion", "ConnectionClosed", "Timeout", "Cancelled", "Unsupported",
            "reject", "allow_once", "allow_reads", "PlanEntry", "Diff", "ToolCallUpdate",
            "PromptCapabilities", "McpCapabilities", "SessionInfo"}
    assert face - set(names) == set()


def test_the_examples_use_only_what_is_public():
    names = set()
    for path in glob.glob(os.path.join(HERE, "examples", "**", "*.py"), recursive=True):
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
        names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)
                  and isinstance(node.value, ast.Name) and node.value.id == "acp"}
    assert {"Agent", "Client", "Cancelled"} <= names
    public = {getattr(acp, name) for name in acp.__all__ if isinstance(getattr(acp, name), type)}  # by second names too
    assert [name for name in sorted(names - set(acp.__all__)) if getattr(acp, name) not in public] == []


def test_second_names_of_a_class_exist_but_are_not_of_the_public_face():
    classes = [name for name in acp.__all__ if isinstance(getattr(acp, name), type)]
    assert len(classes) > 100 and [name for name in classes if getattr(acp, name).__name__ != name] == []
    second = {name: value.__name__ for name, value in vars(acp).items()
              if isinstance(value, type) and value.__module__ == "acp" and value.__name__ != name}
    expected = {"CloseSessionResponse": "EmptyResponse", "PromptImageCapabilities": "Marker",
                "TerminalCapabilities": "ToolCallCapabilities", "BackgroundTerminal": "Terminal",
                "DeleteSessionRequest": "CloseSessionRequest", "CancelSessionNotification": "CloseSessionRequest",
                "WaitForTerminalExitResponse": "TerminalExitStatus", "KillTerminalRequest": "CancelTerminalRequest"}
    assert {**second, **expected} == second and second.keys().isdisjoint(acp.__all__)


def acp_source():
    with open(os.path.join(HERE, "acp.py"), encoding="utf-8") as file:
        return file.read()


def test_the_file_is_a_walk_of_ten_sections_and_short():
    lines = acp_source().splitlines()
    assert len(lines) < 4000
    banners = re.findall(r"^# (?:=+\n# |== )(\d+)\. (.*)", acp_source(), re.M)
    numbers = [int(number) for number, _ in banners]
    assert numbers in ([*range(2, 11)], [*range(1, 11)])  # the header may be its own banner
    words = ["error", "message", "codec", "patch", "v1", "connection", "agent", "client", "local"]
    assert [word for word, (_, title) in zip(words, banners[-9:]) if word not in title.lower()] == []


def test_no_section_needs_a_later_one():
    """By what it names when it runs; an annotation or a docstring may name what comes later."""
    source = acp_source()
    begins = [source.count("\n", 0, found.start()) + 1 for found in re.finditer("^# == [0-9]", source, re.M)]
    tree, homes = ast.parse(source), {}
    for node in tree.body:
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        named = [each.id for target in targets if target for each in ast.walk(target) if isinstance(each, ast.Name)]
        for name in [*named, getattr(node, "name", None)]:
            homes.setdefault(name, bisect.bisect(begins, node.lineno))
    annotations = {id(part) for node in ast.walk(tree) for name in ("annotation", "returns")
                   if getattr(node, name, None) for part in ast.walk(getattr(node, name))}
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    assert {homes[node.id] for node in uses if node.id in homes} == set(range(9))  # of the last nobody
    assert [(node.lineno, node.id) for node in uses if id(node) not in annotations
            and homes.get(node.id, 0) > bisect.bisect(begins, node.lineno)] == []


def test_the_file_needs_the_standard_library_only(tmp_path):
    """Each module that it imports, late ones included, is found by an interpreter without any installed packages."""
    program = ("import ast, importlib.util, sys\n"
               "tree = ast.parse(open(sys.argv[1], encoding='utf-8').read())\n"
               "names = {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}\n"
               "froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]\n"
               "assert all(node.level == 0 for node in froms)\n"
               "names |= {node.module for node in froms}\n"
               "assert 'acp' not in names and {'json', 'threading', 'subprocess'} <= names\n"
               "windows = {'msvcrt', 'winreg', '_winapi'}\n"
               "names = {name.split('.')[0] for name in names - windows}\n"
               "print(sorted(name for name in names if importlib.util.find_spec(name) is None))\n")
    done = run_program([sys.executable, "-I", "-S", "-c", program, os.path.join(HERE, "acp.py")], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_the_project_asks_for_nothing_but_python():
    with open(os.path.join(HERE, "pyproject.toml"), encoding="utf-8") as file:
        text = file.read()
    for line in ('name = "acp-embedded"', 'requires-python = ">=3.9"', "dependencies = []", 'py-modules = ["acp"]',
                 'test = ["pytest"]', 'version = { attr = "acp.__version__" }'):
        assert line in text.splitlines()
    assert re.match(r"\d+\.\d+\.\d+", acp.__version__)


# ---- beyond one machine ---------------------------------------------------------------------------------------------

LISTENERS = pytest.mark.parametrize("family", ["tcp", pytest.param("unix", marks=pytest.mark.skipif(
    not hasattr(socket, "AF_UNIX"), reason="no Unix sockets here"))])


def listener_of(family, folder):
    """A listening socket, and a function that connects to it."""
    if family == "tcp":
        listener = socket.create_server(("127.0.0.1", 0))
        return listener, lambda: socket.create_connection(listener.getsockname())
    listener, path = socket.socket(socket.AF_UNIX), os.path.relpath(folder / "socket")  # short: the limit is 108 bytes
    listener.bind(path)
    listener.listen()

    def connect():
        made = socket.socket(socket.AF_UNIX)
        made.connect(path)
        return made

    return listener, connect


def far_turn(client):
    """A whole turn with a question, a stream of updates and a cancel behind it."""
    session = client.new_session(cwd="/")
    assert session.ask("hi") == "hi" and session.state.stop_reason == "end_turn"
    assert [call.status for call in session.state.tool_calls.values()] == ["completed"]
    turn = session.prompt("wait")
    next(iter(turn))
    turn.cancel()
    assert turn.wait(WAIT) == "cancelled"


def far_agent():
    """Its source is that of a process, too."""

    class Far(acp.Agent):
        versions = (1, 2)

        def prompt(self, turn):
            with turn.tool("Ask") as tool:
                assert tool.ask_permission()
            turn.say(turn.text)
            if turn.text == "wait":
                turn.wait(10)

    return Far()


@BOTH
@LISTENERS
def test_agent_and_client_meet_over_a_socket(tmp_path, family, version):
    listener, connect = listener_of(family, tmp_path)
    agent, served = far_agent(), []

    def serve():
        for _ in range(2):  # one agent, a connection after the other
            connection = listener.accept()[0]
            agent.run(connection)
            served.append(connection.fileno() != -1)  # a given socket is shut down, not closed
            connection.close()

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    with listener:
        for _ in range(2):
            link = connect()
            with link, acp.Client(link, version=version, permission=acp.allow_once) as client:
                assert client.version == version
                far_turn(client)
        serving.join(WAIT)
    assert served == [True, True]


@POSIX
@BOTH
@LISTENERS
def test_a_process_that_was_given_a_socket_as_its_streams_serves_on_it(tmp_path, family, version):
    """As systemd (StandardInput=socket) and inetd do it."""
    listener, connect = listener_of(family, tmp_path)
    path = tmp_path / "agent.py"
    path.write_text("import acp\n" + inspect.getsource(far_agent) + "\nfar_agent().run()\n", encoding="utf-8")
    with listener, connect() as link:
        theirs = listener.accept()[0]
        with theirs:
            process = subprocess.Popen([sys.executable, str(path)], stdin=theirs, stdout=theirs, cwd=HERE,
                                       env=dict(os.environ, PYTHONPATH=HERE))
        with acp.Client(link, version=version, permission=acp.allow_once) as client:
            far_turn(client)
        assert process.wait(WAIT) == 0


@POSIX
def test_a_far_agent_is_a_command_that_carries_bytes(tmp_path):
    """A pipe in between, as ssh, docker exec -i and kubectl exec -i are; it holds lines up in odd pieces."""
    path, relay = tmp_path / "agent.py", tmp_path / "relay.py"
    path.write_text("import acp\n" + inspect.getsource(far_agent) + "\nfar_agent().run()\n", encoding="utf-8")
    relay.write_text(textwrap.dedent("""
        import os, subprocess, sys, threading
        far = subprocess.Popen([sys.executable, sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        def carry(source, write, end):
            while data := os.read(source, 7): write(data)
            end()
        threading.Thread(target=carry, args=(0, far.stdin.write, far.stdin.close)).start()
        carry(far.stdout.fileno(), lambda data: os.write(1, data), far.wait)
    """), encoding="utf-8")
    with acp.Client([sys.executable, str(relay), str(path)], env={"PYTHONPATH": HERE},
                    permission=acp.allow_once) as client:
        far_turn(client)


# == examples/ask.py ==================================================================================================
# It runs as a process, from another folder.

ASK = os.path.join(HERE, "examples", "ask.py")


def ask_process(folder, *words, **more):
    """Run examples/ask.py from another folder."""
    return run_program([sys.executable, ASK, *words], folder, **more)


@pytest.fixture
def ask_here(tmp_path, monkeypatch):
    """Run the main function of examples/ask.py here, in another folder and beside an agent that needs no process."""
    client, main = acp.Client, example("ask.py")["main"]
    monkeypatch.chdir(tmp_path)

    def run(agent, *words, input=""):
        monkeypatch.setattr(acp, "Client", lambda command, **options: client(agent, **options))
        monkeypatch.setattr(sys, "stdin", io.StringIO(input))
        return run_here(main, *words, "--", "played by the test")

    return run


@BOTH
@pytest.mark.parametrize("reason, status", [
    ("end_turn", 0), ("cancelled", 4), ("refusal", 5), ("max_tokens", 6), ("max_turn_requests", 7), ("bored", 8),
    ("lost", 8)])
def test_ask_tells_by_its_exit_status_how_the_turn_ended(ask_here, scripted_agent, version, reason, status):
    agent = scripted_agent("hello(version); new(); request = prompt(version); write(chunk('s', 'so far', 'a'))\n"
                       "end(version, request, reason); read()", version=version, reason=reason)
    done = ask_here(agent.socket, "--v2", "hello")
    assert (done.returncode, done.stdout) == (status, "so far\n")
    assert (reason in done.stderr) == (status != 0)


FAILING = [
    ("an error before the answer", "hello(version); new(); error(read(), -32603, 'too hot'); read()", 1, "too hot"),
    ("a login that is missing", "hello(version); error(read(), -32000, 'log in'); read()", 1, "--auth"),
    ("a version that nobody knows", "answer(read(), {'protocolVersion': 9}); read()", 3, "9"),
]


@BOTH
@pytest.mark.parametrize("script, status, said", [pytest.param(*case[1:], id=case[0]) for case in FAILING])
def test_ask_tells_why_there_is_no_answer(ask_here, scripted_agent, version, script, status, said):
    done = ask_here(scripted_agent(script, version=version).socket, "--v2", "hello")
    assert (done.returncode, done.stdout) == (status, "")
    assert said in done.stderr


@pytest.mark.parametrize("script, said", [
    ("hello(2); new(); read(); sys.exit('out of paper')", "out of paper"), ("sys.exit(9)", "9")])
def test_ask_tells_of_an_agent_that_ends(tmp_path, fake_agent, script, said):
    done = ask_process(tmp_path, "--v2", "hello", "--", *fake_agent(script))
    assert (done.returncode, done.stdout) == (3, "")
    assert said in done.stderr and "Traceback" not in done.stderr


def test_ask_tells_of_a_turn_that_failed_on_version_2(ask_here, scripted_agent):
    agent = scripted_agent("hello(2); new(); prompt(2)\n"
                       "write(state('s', 'idle', stopReason='error', error={'code': 1, 'message': 'too hot'})); read()")
    done = ask_here(agent.socket, "--v2", "hello")
    assert done.returncode == 1
    assert "too hot" in done.stderr and "Traceback" not in done.stderr


def test_ask_tells_of_a_command_that_does_not_exist(tmp_path):
    done = ask_process(tmp_path, "hello", "--", "no-such-command-anywhere")
    assert done.returncode == 3
    assert "no-such-command-anywhere" in done.stderr and "Traceback" not in done.stderr


def test_ask_without_a_prompt_is_wrong_use(tmp_path):
    done = ask_process(tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("usage:")


def test_the_statuses_of_ask_stand_in_its_docstring():
    with open(ASK, encoding="utf-8") as file:
        head = file.read().split('"""')[1]
    words = ["the turn ended well", "the agent answered with an error", "wrong use", "the agent could not be started",
             "cancelled", "refusal", "max_tokens", "max_turn_requests", "a reason unknown here"]
    for number, word in [*enumerate(words), (130, "Ctrl-C")]:
        assert f" {number} {word}" in " ".join(head.split())


def test_ask_logs_in_first_where_it_is_told_to(ask_here, scripted_agent):
    agent = scripted_agent("hello(1, authMethods=[{'id': 'key', 'name': 'Key'}])\nlogin = read()\n"
                       "assert (login['method'], login['params']) == ('authenticate', {'methodId': 'key'}), login\n"
                       "answer(login, {}); new(); request = prompt(); write(chunk('s', 'in')); end(1, request); read()")
    done = ask_here(agent.socket, "--auth", "key", "hello")
    assert (done.returncode, done.stdout) == (0, "in\n")


def test_ask_offers_neither_files_nor_terminals_and_works_in_the_current_folder(ask_here, scripted_agent, tmp_path):
    agent = scripted_agent("offered = hello(1)['params']['clientCapabilities']\n"
                       "made = new()['params']; request = prompt()\n"
                       "write(chunk('s', json.dumps([offered.get('fs'), offered.get('terminal'), made['cwd']])))\n"
                       "end(1, request); read()")
    done = ask_here(agent.socket, "hello")
    files, terminal, folder = json.loads(done.stdout)
    assert not terminal and not any((files or {}).values())
    assert os.path.samefile(folder, str(tmp_path))


NASTY = "a\x1b[31mb\x1b]0;title\x07c\x1b]52;c;AAAA\x1b\\d\x9b2Je\rf\x00g\x7fh\x08i\x1bj\u202ek\tl\nm\ud800n\u20aco"


@BOTH
def test_ask_strips_control_sequences_from_all_that_the_agent_says(ask_here, scripted_agent, version):
    agent = scripted_agent(
        "hello(version); new(); request = prompt(version)\n"
        "call = {'toolCallId': 't', 'title': nasty, 'content': [\n"
        "    {'type': 'diff', 'changes': [], 'patch': {'format': 'git_patch', 'text': nasty}} if version == 2\n"
        "    else {'type': 'diff', 'path': '/f', 'newText': nasty}]}\n"
        "kind = 'tool_call' if version == 1 else 'tool_call_update'\n"
        "plan = [{'content': nasty, 'priority': nasty, 'status': nasty}]\n"
        "write(chunk('s', nasty, 'a'), chunk('s', nasty, 'b', 'agent_thought_chunk'))\n"
        "write(update('s', {'sessionUpdate': kind, **call}))\n"
        "write(update('s', {'sessionUpdate': 'plan', 'entries': plan} if version == 1 else\n"
        "    {'sessionUpdate': 'plan_update', 'plan': {'type': 'items', 'planId': 'p', 'entries': plan}}))\n"
        "asking = {'sessionId': 's', 'options': [{'optionId': 'y', 'name': nasty, 'kind': 'allow_once'}]}\n"
        "asking.update({'toolCall': call} if version == 1 else {'title': nasty, 'description': nasty,\n"
        "    'subject': {'type': 'command', 'command': nasty, 'cwd': '/'}})\n"
        "write({'jsonrpc': '2.0', 'id': 1, 'method': 'session/request_permission', 'params': asking}); read()\n"
        "error(request, -32603, nasty) if version == 1 else write(state('s', 'idle', stopReason='error',\n"
        "    error={'code': -32603, 'message': nasty})); read()", version=version, nasty=NASTY)
    done = ask_here(agent.socket, "--v2", "hello")
    assert done.returncode == 1
    err = done.stderr
    assert done.stdout == "abcd2Jefghijk\tl\nm?n\u20aco\n"
    assert err.count("abcd2Jefghijk\tl\nm?n\u20aco") >= 4  # the thought, the title, the plan, the diff, the error
    assert re.search("[\0-\x08\x0b-\x1f\x7f-\x9f\u202e]", err) is None


def test_ask_strips_what_is_cut_into_chunks(ask_here, scripted_agent):
    agent = scripted_agent("hello(); new(); request = prompt()\n"
                       "write(*[chunk('s', piece) for piece in 'a\\x1b[31mb\\x1b]0;x\\x07c'])\nend(1, request); read()")
    assert ask_here(agent.socket, "hello").stdout == "a[31mb]0;xc\n"


def test_ask_shows_the_answer_as_it_comes(tmp_path, fake_agent):
    agent = fake_agent("hello(); new(); request = prompt(); write(chunk('s', 'first'))\n"
                       "while not os.path.exists(go): time.sleep(0.01)\n"
                       "write(chunk('s', ' second')); end(1, request); read()", go=str(tmp_path / "go"))
    process = subprocess.Popen([sys.executable, ASK, "hello", "--", *agent], cwd=str(tmp_path),
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        assert select.select([process.stdout], [], [], WAIT)[0]
        assert os.read(process.stdout.fileno(), 100) == b"first"
        (tmp_path / "go").touch()
        assert process.communicate(timeout=WAIT) == (b" second\n", None)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def scribe_agent():
    """It thinks, plans, shows a diff and asks for permission. Its source is that of a process, too."""

    class Scribe(acp.Agent):
        versions = (1, 2)

        def prompt(self, turn):
            turn.think("what to do")
            turn.plan(["write"])
            with turn.tool("Write it", kind="edit") as tool:
                tool.diff("/f", "new\n", "old\n")
                turn.say("yes" if tool.ask_permission() else "no")

    return Scribe()


@pytest.fixture
def scribe(tmp_path):
    """The command of that agent as a process."""
    source = "import acp\n" + inspect.getsource(scribe_agent) + "\nscribe_agent().run()\n"
    (tmp_path / "scribe.py").write_text(source, encoding="utf-8")
    return [sys.executable, str(tmp_path / "scribe.py")]


@pytest.mark.parametrize("options", [[], ["--v2"]])
def test_ask_shows_thoughts_plan_tool_calls_and_diffs_beside_the_answer(ask_here, options):
    done = ask_here(scribe_agent(), *options, "--yes", "go")
    assert (done.returncode, done.stdout) == (0, "yes\n")
    shown = done.stderr.splitlines()
    assert shown[:4] == ["[thought] what to do", "[plan]", "  pending: write", "[tool] Write it: pending"]
    assert shown[-1] == "[tool] Write it: completed"
    assert shown.count("-old") == shown.count("+new") == 1
    assert not any(line.startswith("[permission]") for line in shown)


@pytest.mark.parametrize("options, status", [([], "failed"), (["--v2"], "cancelled")])
def test_ask_rejects_where_there_is_no_terminal(ask_here, options, status):
    done = ask_here(scribe_agent(), *options, "go", input="1\n1\n1\n")
    assert (done.returncode, done.stdout) == (0, "no\n")
    assert "rejected" in done.stderr
    assert done.stderr.splitlines()[-1] == f"[tool] Write it: {status}"


def on_a_terminal(command, folder, question, *typed):
    """Run a command on a terminal of its own, type the next words each time it asks. What it showed, and its status."""
    import pty

    # The pseudo-terminal has to be the controlling terminal, so that typing Ctrl-C reaches the command.
    script = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", script, *command], cwd=folder, env=dict(os.environ, PYTHONPATH=HERE),
        stdin=inside, stdout=inside, stderr=inside, start_new_session=True)
    os.close(inside)
    shown, answers, deadline = "", list(typed), time.monotonic() + WAIT
    try:
        while select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0]:
            try:
                data = os.read(terminal, 65536)
            except OSError:  # how Linux tells that the other end is closed
                data = b""
            if not data:
                break
            shown += data.decode("utf-8").replace("\r\n", "\n")
            if answers and shown.count(question) > len(typed) - len(answers):
                if answers[0] == b"\x03":
                    until_it_waits(process)
                os.write(terminal, answers.pop(0))
        return shown, process.wait(WAIT)
    finally:
        print(shown)
        process.kill()
        process.wait()
        os.close(terminal)


@POSIX
@pytest.mark.parametrize("options, typed, status, said", [
    ([], [b"2\n"], 0, "no"), ([], [b"x\n", b"0\n", b"3\n", b"\n", b"-1\n", b" 1 \n"], 0, "yes"),
    ([], [b"\x04"], 0, "no"), ([], [b"\x03"], 130, None), (["--v2"], [b"1\n"], 0, "yes"),
    (["--v2"], [b"\x03"], 130, None)],
    ids=["reject", "not an option", "end of input", "Ctrl-C", "allow on version 2", "Ctrl-C on version 2"])
def test_ask_asks_for_permission_on_a_terminal(tmp_path, scribe, options, typed, status, said):
    shown, end = on_a_terminal([sys.executable, ASK, *options, "go", "--", *scribe], str(tmp_path), "number: ", *typed)
    assert end == status
    assert re.search(r"\[permission\] Write it\n +1 +Allow\n +2 +Reject\n +number: ", shown)
    assert re.findall(r"^(yes|no)$", shown, re.M) == ([] if said is None else [said])
    assert shown.count("number: ") == len(typed)
    assert "Traceback" not in shown


@POSIX
@BOTH
def test_ask_ends_the_conventional_way_at_ctrl_c_while_it_waits(tmp_path, fake_agent, version):
    agent = fake_agent("hello(version); new(); request = prompt(version); write(chunk('s', 'working', 'a'))\n"
                       "cancel = read()\nwith open(told, 'w') as file: file.write(cancel['method'])\n"
                       "end(version, request, 'cancelled'); read()",
                       version=version, told=str(tmp_path / "told"))
    shown, status = on_a_terminal(
        [sys.executable, ASK, "--v2", "hello", "--", *agent], str(tmp_path), "working", b"\x03")
    assert status == 130
    assert "Traceback" not in shown
    assert (tmp_path / "told").read_text() == "session/cancel"


@pytest.mark.parametrize("options", [[], ["--v2"]])
def test_the_echo_agent_works_from_any_folder_beside_another_module_of_the_same_name(tmp_path, options):
    (tmp_path / "acp.py").write_text("raise RuntimeError('the wrong acp')", encoding="utf-8")
    done = run_program([sys.executable, ASK, *options, "hello"], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "You said: hello\n", "")


# == examples/chat.py =================================================================================================
# It runs on a terminal of its own, a pseudo-terminal whose screen `ChatTerminal` keeps as a terminal would: what is
# asserted is what a person would see. The agent beside it plays the scene that the prompt names, and waits at
# a `gate` where the test has to look or type in between.

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
        self.process = subprocess.Popen([sys.executable, "-I", "-S", "-c", script, *command], cwd=str(folder), env=kept,
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
        """Press Ctrl-C, once it waits."""
        until_it_waits(self.process)
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
import contextlib, functools, json, os, sys, threading, time
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


@POSIX
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


@POSIX
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


@POSIX
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


@POSIX
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
    terminal.interrupt()
    (tmp_path / "never").touch()  # only now, or the turn would have ended
    assert terminal.end() == 130
    assert "Traceback" not in terminal.raw


@POSIX
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


@POSIX
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
        pending = session.peer.begin_call(*ask.args)
        with contextlib.suppress(acp.RequestError):
            session.peer.request("_settled")  # so the client has the question, before any turn that the user begins
        open(os.path.join(HERE, "asked"), "w").close()
        outcome = pending.wait()["outcome"]
        session.send(acp.AgentMessage("m2", [acp.TextContent("you said " + outcome["optionId"])]))
        gate("withdraw")
        try:
            ask(timeout=0.3)
        except acp.Timeout:
            pass
        gate("end")
        os._exit(7)
"""


@POSIX
@BOTH
def test_chat_shows_and_asks_what_comes_between_the_turns(chat, tmp_path, version):
    terminal = chat(version, CHAT_BESIDE)
    assert terminal.ask("begin") == ["begun"]
    (tmp_path / "speak").touch()
    terminal.until("by the way")  # at once, where nothing is typed
    terminal.ready()
    terminal.press(b"half a line")
    terminal.until("> half a line")
    (tmp_path / "ask").touch()
    eventually((tmp_path / "asked").exists)
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


@POSIX
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


@POSIX
def test_chat_makes_do_without_readline_and_without_colours(chat, tmp_path):
    (tmp_path / "readline.py").write_text("raise ImportError('there is none')")
    terminal = chat(1, CHAT_BESIDE, TERM="dumb", PYTHONPATH=os.pathsep.join([str(tmp_path), HERE]))
    assert terminal.ask("begin") == ["begun"]
    (tmp_path / "speak").touch()
    eventually(lambda: terminal.ask("") and terminal.lines[-2].endswith("the way"))  # after Enter, then
    terminal.press(b"\x04")
    assert terminal.end() == 0
    assert "\x1b" not in terminal.raw


# == examples/coding_agent.py =========================================================================================
# A real process for each version of the protocol, which all tests share; each has a session of its own, in a folder of
# its own. The model is `CodingModel`, an HTTP server on a loopback port: what it answers is the test's script.

CODING = [sys.executable, os.path.join(HERE, "examples", "coding_agent.py")]
CODING_KEY = "sk-1234567890-secret"
CODING_DONE = b"data: [DONE]\n\n"


def coding_delta(reason=None, **delta):
    """An event of the stream with a delta of the answer."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def coding_text(*pieces, reason="stop"):
    """An answer: text in pieces, and the usage."""
    usage = {"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42}
    return [*(coding_delta(content=piece) for piece in pieces), coding_delta(reason), {"choices": [], "usage": usage},
            CODING_DONE]


def coding_part(index, id=None, name=None, arguments=""):
    """A delta of a tool call."""
    return {**({} if index is None else {"index": index}), **({"id": id, "type": "function"} if id else {}),
            "function": {**({"name": name} if name else {}), "arguments": arguments}}


def coding_calls(*calls):
    """An answer: tool calls, each a name and arguments (an object, or text as it is)."""
    events = []
    for index, (name, arguments) in enumerate(calls):
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        events.append(coding_delta(tool_calls=[coding_part(index, f"call-{index}", name)]))
        step = max(7, len(text) // 9)
        events += [coding_delta(tool_calls=[coding_part(index, arguments=text[at:at + step])])
                   for at in range(0, len(text), step)]
    return [*events, coding_delta("tool_calls"), CODING_DONE]


class CodingModel(http.server.ThreadingHTTPServer):
    """The endpoint. Each request takes the next of `answers`: a list of events, of bytes as they are, and of functions
    of the handler; one that begins with a number is that HTTP status with the rest as its body. `asked` are the bodies
    of the requests, `headers` their headers."""
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), CodingHandler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.clear()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def clear(self):
        self.answers, self.asked, self.headers = collections.deque(), [], []
        self.reached, self.gone = threading.Event(), threading.Event()

    def results(self):
        """What the model was told of its calls, as it came with the last request."""
        messages = self.asked[-1]["messages"]
        last = max(index for index, each in enumerate(messages) if each["role"] == "assistant")
        called = [each["id"] for each in messages[last]["tool_calls"]]
        assert [each["tool_call_id"] for each in messages[last + 1:]] == called
        return [each["content"] for each in messages[last + 1:]]


class CodingHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_POST(self):
        model = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        model.headers.append(self.headers)
        model.asked.append({"path": self.path, **json.loads(body)})
        answer = model.answers.popleft() if model.answers else coding_text("Nothing more.")
        self.close_connection = True
        if isinstance(answer[0], int):
            self.send_response(answer[0])
            self.send_header("Content-Length", str(len(answer[1])))
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            return self.wfile.write(answer[1])
        self.streams = False
        for item in answer:
            if callable(item):
                if item(self):
                    return
            else:
                self.piece(item if isinstance(item, bytes) else b"data: " + json.dumps(item).encode() + b"\n\n")
        self.piece(b"")

    def piece(self, data):
        """More of the stream; its end when empty."""
        if not self.streams:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.streams = True
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


def coding_hang(handler):
    """Say nothing until the agent has cut the connection."""
    handler.server.reached.set()
    handler.connection.settimeout(WAIT)
    with contextlib.suppress(ConnectionError):
        assert handler.connection.recv(1) == b""
    handler.server.gone.set()
    return True


def coding_break(handler):
    """Break off in the middle."""
    return True


class CodingEditor:
    """An editor at work with the agent: a client and what it holds. `unsaved` are its buffers by path, `asked` the
    permissions that were asked for, and `allow` is a function that decides them."""

    def __init__(self, version, model, *options):
        self.version, self.model, self.wire = version, model, []
        self.unsaved, self.asked, self.allow = {}, [], lambda request: True
        self.client = acp.Client(
            [*CODING, "--url", model.url, "--model", "small", *options], version=version, permission=self.permission,
            files=self, terminals=acp.LocalTerminals(), on_message=lambda *what: self.note(json.dumps(what)),
            on_stderr=self.note, env={"OPENAI_API_KEY": CODING_KEY})

    def note(self, line):
        self.wire.append(line)
        print(line[:400])

    def permission(self, request):
        self.asked.append(request.title)
        return self.allow(request)

    def read_text_file(self, request):
        text = self.unsaved.get(request.path)
        if text is None:
            with open(request.path, encoding="utf-8", newline="") as file:
                text = file.read()
        return acp.ReadTextFileResponse("".join(acp.lines_of(text, request.line, request.limit)))

    def write_text_file(self, request):
        self.unsaved.pop(request.path, None)
        with open(request.path, "w", encoding="utf-8", newline="") as file:
            file.write(request.content)
        return acp.EmptyResponse()

    def tools(self):
        """Title and status of each tool call of the session."""
        return [(call.title, call.status) for call in self.session.state.tool_calls.values()]


@pytest.fixture(scope="module")
def coding_editors():
    """One model; an editor for each version, made when it is first wanted."""
    model, editors = CodingModel(), {}

    def editor(version):
        if version not in editors:
            editors[version] = CodingEditor(version, model, "--rounds", "4")
        return editors[version]

    yield editor
    for each in editors.values():
        each.client.close()
    model.shutdown()
    model.server_close()


@pytest.fixture
def coding(coding_editors, tmp_path):
    """An editor with a new session in an empty folder: `.session`, `.folder`, `.model`."""

    def begin(version=1, **new):
        editor = coding_editors(version)
        editor.model.clear()
        editor.unsaved, editor.asked, editor.allow = {}, [], lambda request: True
        editor.folder = tmp_path / "work"
        editor.folder.mkdir()
        editor.session = editor.client.new_session(str(editor.folder), **new)
        return editor

    return begin


def coding_use(editor, *calls):
    """A turn in which the model makes these calls at once; returns what it was told of them."""
    editor.model.answers.extend([coding_calls(*calls), coding_text("Done.")])
    assert editor.session.ask("go on", timeout=WAIT) == "Done."
    return editor.model.results()


@BOTH
def test_coding_agent_streams_thoughts_and_text_and_tells_the_usage(coding, version):
    editor = coding(version)
    editor.model.answers.append([
        b": a comment\n\n", b"event: message\n", coding_delta(role="assistant", content=""),
        coding_delta(reasoning_content="Well"), coding_delta(reasoning=", well."),
        *coding_text("Gr\u00fc\u00df", "e, ", "\u2713")])
    turn = editor.session.prompt("  say hello \n to them")
    kinds = [(type(update).__name__, update.content.text) for update in turn if hasattr(update, "content")
             and not isinstance(update, (acp.UserMessage, acp.UserMessageChunk))]
    assert kinds == [("AgentThoughtChunk", "Well"), ("AgentThoughtChunk", ", well."),
                     ("AgentMessageChunk", "Gr\u00fc\u00df"), ("AgentMessageChunk", "e, "),
                     ("AgentMessageChunk", "\u2713")]
    state = editor.session.state
    assert (turn.stop_reason, state.usage.used, state.usage.size) == ("end_turn", 42, 32768)
    assert state.title == "say hello to them"
    asked, = editor.model.asked
    assert (asked["path"], asked["model"], asked["stream"]) == ("/v1/chat/completions", "small", True)
    assert asked["stream_options"] == {"include_usage": True}
    assert [each["role"] for each in asked["messages"]] == ["system", "user"]
    assert str(editor.folder) in asked["messages"][0]["content"]
    assert editor.model.headers[0]["Authorization"] == "Bearer " + CODING_KEY
    for tool in asked["tools"]:
        parameters = tool["function"]["parameters"]
        assert set(parameters["required"]) <= set(parameters["properties"])


def test_coding_agent_keeps_a_conversation_per_session(coding):
    editor = coding()
    first, second = editor.session, editor.client.new_session(str(editor.folder))
    editor.model.answers.extend([coding_text("A", "1"), coding_text("B1"), coding_text("A2")])
    first.ask("a one"), second.ask("b one"), first.ask("a two")
    told = [[each["content"] for each in asked["messages"][1:]] for asked in editor.model.asked]
    assert told == [["a one"], ["b one"], ["a one", "A1", "a two"]]


@pytest.mark.parametrize("parts", [
    # begun, then gone on with, one by one
    [[(0, "x", "list_files", "")], [(0, None, None, '{"path": ')], [(0, None, None, '"one"}')],
     [(1, "y", "list_files", "")], [(1, None, None, '{"path": "two"}')]],
    # both at once, pieces mixed
    [[(0, "x", "list_files", '{"pa'), (1, "y", "list_files", '{"path"')], [(1, None, None, ': "two"}')],
     [(0, None, None, 'th": "one"}')]],
    # the same index for all, told apart by their ids
    [[(0, "x", "list_files", '{"path": "one"}')], [(0, "y", "list_files", '{"path": "two"}')]],
    # no index
    [[(None, "x", "list_files", '{"path": "one"}'), (None, "y", "list_files", '{"path": "two"}')]],
    # no ids
    [[(0, None, "list_files", '{"path": "one"}')], [(1, None, "list_files", '{"path": "two"}')]],
    # the id each time
    [[(0, "x", "list_files", '{"path":')], [(0, "x", None, '"one"}')], [(1, "y", "list_files", '{"path": "two"}')]],
])
def test_coding_agent_assembles_tool_calls_from_deltas(coding, parts):
    editor = coding()
    for name in "one", "two":
        (editor.folder / name / f"in-{name}").mkdir(parents=True)
        (editor.folder / name / "file").touch()
    editor.model.answers.extend([
        [*(coding_delta(tool_calls=[coding_part(*part) for part in delta]) for delta in parts), coding_delta("stop"),
         CODING_DONE], coding_text("Done.")])
    assert editor.session.ask("look") == "Done."
    assert editor.model.results() == ["file\nin-one/", "file\nin-two/"]
    assert editor.tools() == [("List one", "completed"), ("List two", "completed")]


@BOTH
def test_coding_agent_reads_what_the_editor_holds_unsaved(coding, version):
    editor = coding(version)
    path = editor.folder / "a.txt"
    path.write_text("saved\n")
    editor.unsaved[str(path)] = "unsaved\nsecond\nthird\n"
    whole, part, none = coding_use(editor, ("read_file", {"path": "a.txt"}),
                                   ("read_file", {"path": str(path), "line": 2, "limit": 1}),
                                   ("read_file", {"path": "b.txt", "line": None}))
    assert (whole, part) == (("unsaved\nsecond\nthird\n", "second\n") if version == 1 else ("saved\n", ""))
    assert none.startswith("Error: ")
    assert editor.tools() == [("Read a.txt", "completed"), (f"Read {path}", "completed"), ("Read b.txt", "failed")]
    call = list(editor.session.state.tool_calls.values())[0]
    assert (call.kind, [each.path for each in call.locations]) == ("read", [str(path)])


def test_coding_agent_fits_what_the_model_gets(coding):
    editor = coding()
    (editor.folder / "long").write_text("x" * 31_000)
    (editor.folder / os.fsdecode(b"n\xffme")).touch()  # not UTF-8
    told, names = coding_use(editor, ("read_file", {"path": "long"}), ("list_files", {"path": "."}))
    assert names == "long\nn?me" and told == "x" * 30_000 + "\n[cut here: 1000 characters more]"


@BOTH
@pytest.mark.parametrize("allow", [True, False])
def test_coding_agent_shows_a_change_and_asks_before_it(coding, version, allow):
    editor = coding(version)
    path = editor.folder / "a.py"
    path.write_bytes(b"one\r\n  two\r\nthree\r\n")
    seen = []
    editor.allow = lambda request: seen.append((request.tool_call.content, path.read_bytes())) or allow
    told, = coding_use(editor, ("edit_file", {"path": "a.py", "old": "one\n  two", "new": "eins\n  zwei"}))
    (diff,), before = seen[0]
    assert "-  two" in diff.patch.text and "+  zwei" in diff.patch.text and str(path) in diff.patch.text
    assert before == b"one\r\n  two\r\nthree\r\n" and editor.asked == ["Edit a.py"]
    assert path.read_bytes() == (b"eins\r\n  zwei\r\nthree\r\n" if allow else before)
    assert told.startswith("Written" if allow else "The user did not allow this.")
    assert editor.tools() == [("Edit a.py", "completed" if allow else "failed" if version == 1 else "cancelled")]


def test_coding_agent_changes_the_unsaved_text(coding):
    editor = coding()
    path = editor.folder / "new.txt"
    editor.unsaved[str(path)] = "never saved\n"
    coding_use(editor, ("edit_file", {"path": "new.txt", "old": "never", "new": "now"}))
    assert path.read_text() == "now saved\n"


def test_coding_agent_remembers_what_is_allowed_for_good(coding):
    editor = coding()
    editor.allow = lambda request: "allow_always"
    for number in "123":
        coding_use(editor, ("write_file", {"path": "a", "content": number}))
    coding_use(editor, ("write_file", {"path": "b", "content": "1"}))
    assert editor.asked == ["Write a", "Write b"] and (editor.folder / "a").read_text() == "3"


@BOTH
def test_coding_agent_in_auto_edit_asks_only_for_commands(coding, version):
    editor = coding(version)
    mode, = editor.session.state.config_options
    assert (mode.category, mode.current_value) == ("mode", "ask")
    editor.session.set_config_option("mode", "auto-edit")
    editor.allow = lambda request: False
    coding_use(editor, ("write_file", {"path": "a", "content": "1"}), ("run_command", {"command": "echo > b"}))
    assert editor.asked == ["echo > b"] and [each.name for each in editor.folder.iterdir()] == ["a"]
    editor.session.set_config_option("mode", "ask")
    coding_use(editor, ("write_file", {"path": "c", "content": "1"}))
    assert editor.asked == ["echo > b", "Write c"] and not (editor.folder / "c").exists()


@BOTH
def test_coding_agent_writes_new_files_and_replaces_old_ones(coding, version):
    editor = coding(version)
    (editor.folder / "old").write_text("old\n")
    coding_use(editor, ("write_file", {"path": "far/off/new", "content": "n\u00fc\n"}),
               ("write_file", {"path": "old", "content": "new\n"}))
    assert (editor.folder / "far/off/new").read_text(encoding="utf-8") == "n\u00fc\n"
    assert (editor.folder / "old").read_text() == "new\n"
    patches = [call.content[0].patch.text for call in editor.session.state.tool_calls.values()]
    assert "+n\u00fc" in patches[0] and "/dev/null" in patches[0] and "-old\n+new" in patches[1]


@BOTH
def test_coding_agent_does_not_write_over_what_changed_while_it_asked(coding, version):
    editor = coding(version)
    (editor.folder / "a").write_text("one")
    editor.allow = lambda request: (editor.folder / "a").write_text("mine") > 0
    told, = coding_use(editor, ("write_file", {"path": "a", "content": "two"}))
    assert "changed meanwhile" in told and (editor.folder / "a").read_text() == "mine"


@pytest.mark.parametrize("name, arguments, told", [
    ("edit_file", {"path": "a", "old": "absent", "new": ""}, "stands 0 times"),
    ("edit_file", {"path": "a", "old": "e", "new": "x"}, "stands 3 times"),
    ("edit_file", {"path": "a", "old": "", "new": "x"}, "stands 0 times"),
    ("edit_file", {"path": "a", "old": "one", "new": "one"}, "changes nothing"),
    ("edit_file", {"path": "none", "old": "one", "new": "two"}, "stands 0 times"),
    ("edit_file", {"path": "binary", "old": "one", "new": "two"}, "Error"),
    ("write_file", {"path": "binary", "content": "two"}, "Error"),
    ("write_file", {"path": ".", "content": "two"}, "Error"),
    ("write_file", {"path": "a/below", "content": "two"}, "Error"),
    ("read_file", {"path": "."}, "Error"),
    ("read_file", {"path": "fifo"}, "no file and no folder"),
    ("write_file", {"path": "fifo", "content": "x"}, "no file and no folder"),
    ("list_files", {"path": "a"}, "Error"),
    ("list_files", {"path": "nul\0"}, "Error"),
    ("search", {"path": ".", "text": ""}, "empty text"),
])
def test_coding_agent_tells_the_model_why_a_tool_failed(coding, name, arguments, told):
    editor = coding(2)
    (editor.folder / "a").write_text("one three")
    (editor.folder / "binary").write_bytes(b"one\xff\0")
    os.mkfifo(editor.folder / "fifo")
    result, = coding_use(editor, (name, arguments))
    assert result.startswith("Error: ") and told in result
    assert not editor.asked and [status for _, status in editor.tools()] == ["failed"]
    assert (editor.folder / "a").read_text() == "one three" and (editor.folder / "binary").read_bytes() == b"one\xff\0"


@BOTH
def test_coding_agent_stays_inside_the_folders_of_the_session(coding, tmp_path, version):
    outside, other = tmp_path / "work-outside", tmp_path / "other"
    outside.mkdir(), other.mkdir()
    (outside / "secret").write_text("treasure")
    (other / "open").write_text("open treasure")
    editor = coding(version, additional_directories=[str(other)])
    (editor.folder / "file-link").symlink_to(outside / "secret")
    (editor.folder / "folder-link").symlink_to(outside)
    (editor.folder / "dead-link").symlink_to(outside / "new")
    for path in "../work-outside/secret", str(outside / "secret"), "file-link", "folder-link/secret", "dead-link":
        for told in coding_use(
                editor, ("read_file", {"path": path}), ("write_file", {"path": path, "content": "x"}),
                ("edit_file", {"path": path, "old": "treasure", "new": "x"}), ("search", {"path": path, "text": "t"})):
            assert told.startswith("Error: ") and "outside the session's folders" in told
    told = coding_use(editor, ("list_files", {"path": ".."}), ("search", {"path": ".", "text": "treasure"}),
                      ("search", {"path": str(other), "text": "treasure"}), ("read_file", {"path": "../other/open"}))
    assert "outside" in told[0] and told[1:] == ["Nothing found.", "../other/open:1: open treasure", "open treasure"]
    assert not editor.asked and [each.name for each in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == "treasure"


def test_coding_agent_searches_text_files_only(coding):
    editor = coding()
    for name in ".hidden", "node_modules", "sub":
        (editor.folder / name).mkdir()
        (editor.folder / name / "file").write_text("a needle\n")
    (editor.folder / "binary").write_bytes(b"needle\0")
    (editor.folder / "huge").write_text("needle" + " " * (1 << 20))
    (editor.folder / "latin").write_bytes(b"\xe4\r\n  needle, n\xe4dle\r\n")
    os.mkfifo(editor.folder / "fifo")
    (editor.folder / "many").write_text("nail\n" * 1000)
    needles, file, nails = coding_use(
        editor, ("search", {"path": ".", "text": "needle"}), ("search", {"path": "sub/file", "text": "needle"}),
        ("search", {"path": ".", "text": "nail"}))
    assert needles.split("\n") == ["latin:2: needle, n\ufffddle", "sub/file:1: a needle"]
    assert file == "sub/file:1: a needle"
    assert nails.count("nail") == 200 and nails.endswith("\n[more was found: search for something rarer]")


@pytest.mark.parametrize("name, arguments, told", [
    ("read_file", '{"path": "a', "not a JSON object"),
    ("read_file", '["a"]', "not a JSON object"),
    ("read_file", "[" * 100_000, "not a JSON object"),
    ("read_file", "", "needs the argument path"),
    ("read_file", {"path": None}, "needs the argument path"),
    ("read_file", {"path": ["a"]}, "needs the argument path, of type string"),
    ("read_file", {"path": "a", "line": "2"}, "needs the argument line, of type integer"),
    ("read_file", {"path": "a", "lines": 2}, "has no argument 'lines'"),
    ("read_file", {"path": "a", "line": -1}, "Error"),
    ("open_file", {"path": "a"}, "there is no tool 'open_file'"),
    ("prompt", {"turn": "a"}, "there is no tool 'prompt'"),
    ("", {}, "there is no tool ''"),
    ("update_plan", {"entries": ["first"]}, "needs content and status"),
    ("update_plan", {"entries": [{"content": "a", "status": "soon"}]}, "needs content and status"),
])
def test_coding_agent_tells_the_model_of_its_own_broken_calls(coding, name, arguments, told):
    editor = coding()
    (editor.folder / "a").write_text("text")
    good, result = coding_use(editor, ("read_file", {"path": "a"}), (name, arguments))
    assert good == "text" and result.startswith("Error: ") and told in result
    assert [status for _, status in editor.tools()] == ["completed", "failed"]
    for call in editor.model.asked[-1]["messages"][-3]["tool_calls"]:  # what goes back can be read
        assert isinstance(json.loads(call["function"]["arguments"]), dict)


@BOTH
def test_coding_agent_shows_the_plan_of_the_model(coding, version):
    editor = coding(version)
    plan = [{"content": "look", "status": "completed"}, {"content": "act", "status": "in_progress"},
            {"content": "check", "status": "pending", "priority": "high"}]
    coding_use(editor, ("update_plan", {"entries": plan}))
    shown, = editor.session.state.plans.values()
    assert [(entry.content, entry.status) for entry in shown.entries] == [
        ("look", "completed"), ("act", "in_progress"), ("check", "pending")]


@BOTH
def test_coding_agent_runs_a_command_in_a_terminal(coding, version):
    editor = coding(version)
    good, bad, killed, env = coding_use(
        editor, ("run_command", {"command": "echo out; echo err >&2; pwd"}), ("run_command", {"command": "exit 3"}),
        ("run_command", {"command": "kill -9 $$"}),
        ("run_command", {"command": "test -z \"$OPENAI_API_KEY\" && echo no key"}))
    assert good == f"exit status 0\nout\nerr\n{os.path.realpath(editor.folder)}\n"
    assert bad == "exit status 3\n" and killed.startswith("signal ") and env == "exit status 0\nno key\n"
    assert [status for _, status in editor.tools()] == ["completed", "failed", "failed", "completed"]
    assert editor.asked[0] == "echo out; echo err >&2; pwd"
    shown = list(editor.session.state.tool_calls.values())[0]
    terminal, = [each for each in shown.content if isinstance(each, acp.Terminal)]
    assert shown.kind == "execute"
    if version == 2:
        assert "out\nerr\n" in editor.session.state.terminals[terminal.terminal_id].text


@BOTH
def test_coding_agent_kills_a_command_that_takes_too_long(coding, version):
    editor = coding(version)
    with within(WAIT / 2):
        told, = coding_use(editor, ("run_command", {"command": "exec sleep 60", "timeout": 0}))
    assert told == "killed, as it was not over after 0 seconds\n"
    assert [status for _, status in editor.tools()] == ["failed"]


def test_coding_agent_keeps_the_end_of_a_long_output(coding):
    editor = coding(2)
    told, = coding_use(editor, ("run_command", {"command": "yes | head -c 40000; echo end"}))
    assert told.startswith("exit status 0\n[the beginning is cut] y\n") and told.endswith("\nend\n")
    assert len(told) < 31_000


@BOTH
def test_coding_agent_stops_a_command_when_the_turn_is_cancelled(coding, version):
    editor = coding(version)
    editor.model.answers.append(coding_calls(("run_command", {"command": "echo $$ > pid; exec sleep 60"}),
                                             ("read_file", {"path": "pid"})))
    turn = editor.session.prompt("go")
    taken = threading.Thread(target=list, args=(turn,), daemon=True)
    taken.start()
    eventually(lambda: (editor.folder / "pid").exists() and (editor.folder / "pid").read_text().strip()
               and any(isinstance(each, acp.Terminal) for call in editor.session.state.tool_calls.values()
                       for each in call.content or ()))
    with within(SOON * 2):
        turn.cancel()
        taken.join(WAIT)
    assert turn.stop_reason == "cancelled"
    pid = int((editor.folder / "pid").read_text())
    eventually(lambda: not coding_runs(pid))
    editor.session.ask("and now")
    roles = [each["role"] for each in editor.model.asked[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant", "user"]
    assert [each["content"] for each in editor.model.asked[-1]["messages"][3:5]] == ["The user cancelled this."] * 2


def coding_runs(pid):
    """Whether a process is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@BOTH
@pytest.mark.parametrize("begun", [True, False])
def test_coding_agent_cuts_the_stream_when_the_turn_is_cancelled(coding, version, begun):
    editor = coding(version)
    editor.model.answers.append([*([coding_delta(content="I was ab")] if begun else []), coding_hang])
    turn = editor.session.prompt("go")
    assert editor.model.reached.wait(WAIT)
    if begun:
        eventually(lambda: turn.text == "I was ab")
    with within(SOON):
        turn.cancel()
        assert turn.wait(WAIT) == "cancelled"
        assert editor.model.gone.wait(WAIT)
    assert editor.session.ask("and now") == "Nothing more."
    assert [each["content"] for each in editor.model.asked[-1]["messages"][1:]] == [
        "go", "I was ab" if begun else "(no answer)", "and now"]


@pytest.mark.parametrize("answer, what, todo", [
    ([401, b'{"error": {"message": "bad key KEY"}}'], "HTTP 401 Unauthorized: bad key ...", "Set the environment vari"),
    ([403, b"not JSON, KEY"], "HTTP 403 Forbidden.", "OPENAI_API_KEY"),
    ([404, b'{"error": "model small not found"}'], "HTTP 404 Not Found: model small not found", "Check --url"),
    ([400, b'{"error": {"message": "context too long"}}'], "HTTP 400 Bad Request: context too long", "/clear"),
    ([400, b'{"object": "error", "message": "other words"}'], "HTTP 400 Bad Request: other words", "/clear"),
    ([307, b""], "HTTP 307", "Check --url"),
    ([429, b"[]"], "HTTP 429 Too Many Requests", "Try again"),
    ([500, b'{"error": {"message": null}}'], "HTTP 500 Internal Server Error", "Try again"),
    ([b"<html><body>Welcome"], "not a stream: <html><body>Welcome", "Check --url"),
    ([b'{"choices": []}'], 'not a stream: {"choices"', "Check --url"),
    ([b"data: {oops\n\n"], "makes no sense", "Check --url"),
    ([b"data: 5\n\n"], "makes no sense", "Check --url"),
    ([b"data: " + b"[" * 100_000 + b"\n\n"], "makes no sense", "Check --url"),
    ([b"data: \xff\n\n"], "makes no sense", "Check --url"),
    ([{"choices": [5]}], "makes no sense", "Check --url"),
    ([coding_delta(content=[{"type": "text"}])], "makes no sense", "Check --url"),
    ([coding_delta(tool_calls=[{"function": {"arguments": {"path": "."}}}])], "makes no sense", "Check --url"),
    ([coding_delta(content="a"), {"error": {"message": "overloaded, KEY"}}], "overloaded, ...", "Try again"),
    ([{"error": "overloaded"}], "overloaded", "Try again"),
    ([CODING_DONE], "the answer broke off", "Try again"),
    ([b": nothing\n\n"], "the answer broke off", "Try again"),
    ([coding_delta(content="a"), coding_break], "the connection was lost", "Try again"),
    ([coding_break], "the connection was lost", "Try again"),
])
def test_coding_agent_says_what_to_do_when_the_endpoint_fails(coding, answer, what, todo):
    editor = coding()
    editor.model.answers.append([each.replace(b"KEY", CODING_KEY.encode()) if isinstance(each, bytes) else
                                 json.loads(json.dumps(each).replace("KEY", CODING_KEY)) if isinstance(each, dict)
                                 else each for each in answer])
    with pytest.raises(acp.RequestError) as caught:
        editor.session.ask("go", timeout=WAIT)
    message = caught.value.message
    assert f"The model at {editor.model.url} failed: " in message and what in message and todo in message
    assert editor.session.ask("again") == "Nothing more."  # the next turn goes on
    roles = [each["role"] for each in editor.model.asked[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert CODING_KEY not in "".join(editor.wire)


def test_coding_agent_tells_of_a_failed_endpoint_on_version_2(coding):
    editor = coding(2)
    editor.model.answers.append([401, b"{}"])
    turn = editor.session.prompt("go")
    with pytest.raises(acp.RequestError, match="Set the environment variable OPENAI_API_KEY"):
        turn.wait(WAIT)
    assert turn.stop_reason == "error" and CODING_KEY not in "".join(editor.wire)


def test_coding_agent_says_what_to_do_when_the_endpoint_is_missing_or_silent(tmp_path):
    with socket.socket() as bound, socket.create_server(("127.0.0.1", 0)) as silent:
        bound.bind(("127.0.0.1", 0))  # nobody listens
        for each, what in (bound, "Start the model's server"), (silent, "no word for 0.2 seconds. Try again; --time"):
            model = types.SimpleNamespace(url=f"http://127.0.0.1:{each.getsockname()[1]}/v1/")
            editor = CodingEditor(1, model, "--timeout", "0.2")
            with editor.client, pytest.raises(acp.RequestError, match=what):
                editor.client.new_session(str(tmp_path)).ask("go", timeout=WAIT)


def test_coding_agent_stops_after_so_many_rounds(coding):
    editor = coding()
    editor.model.answers.extend([[coding_delta(content="Look."), *coding_calls(("list_files", {"path": "."}))]] * 9)
    turn = editor.session.prompt("go")
    assert turn.wait(WAIT) == "max_turn_requests" and len(editor.model.asked) == 4
    editor.model.answers.clear()
    editor.session.ask("go on")
    assert [(each["role"], each["content"]) for each in editor.model.asked[-1]["messages"][1:]] == [
        ("user", "go"), *[("assistant", "Look."), ("tool", "The folder is empty.")] * 4, ("assistant", "(no answer)"),
        ("user", "go on")]


@BOTH
@pytest.mark.parametrize("reason, stop_reason", [("length", "max_tokens"), ("content_filter", "refusal")])
def test_coding_agent_says_why_the_model_ended(coding, version, reason, stop_reason):
    editor = coding(version)
    part = coding_part(0, "x", "write_file", '{"path": "a", "content": ""}')  # cut, perhaps
    editor.model.answers.append([coding_delta(content="Well", tool_calls=[part]), *coding_text(reason=reason)])
    assert editor.session.prompt("go").wait(WAIT) == stop_reason
    assert not editor.asked and len(editor.model.asked) == 1


def test_coding_agent_takes_a_stream_without_usage_and_without_its_last_word(coding):
    editor = coding()
    editor.model.answers.append([coding_delta(content="Fine."), {"choices": [], "usage": None},
                                 {"usage": {"total_tokens": "many"}}, coding_delta("stop")])
    assert editor.session.ask("go") == "Fine." and editor.session.state.usage is None


@BOTH
def test_coding_agent_has_slash_commands(coding, version):
    editor = coding(version)
    eventually(lambda: [each.name for each in editor.session.state.commands] == ["clear", "model"])
    editor.session.ask("a secret")
    assert editor.session.ask("/clear") == "Forgotten."
    assert editor.session.ask("/model  large ") == editor.session.ask("/model") == "The model is large."
    editor.session.ask("/usr is a folder")
    assert editor.model.asked[-1]["model"] == "large"
    assert [each["content"] for each in editor.model.asked[-1]["messages"][1:]] == ["/usr is a folder"]
    assert editor.client.new_session(str(editor.folder)).ask("/model") == "The model is small."


@BOTH
def test_coding_agent_takes_links_and_embedded_resources(coding, version):
    editor = coding(version)
    editor.session.ask([
        acp.TextContent("compare "), acp.ResourceLink("b", (editor.folder / "b c").as_uri()), acp.TextContent(" and "),
        acp.ResourceLink("page", "https://example.org/page"), acp.EmbeddedResource(
            acp.TextResourceContents("its text", "file:///x")),
        acp.EmbeddedResource(acp.BlobResourceContents("AAAA", "file:///y"))])
    assert editor.model.asked[-1]["messages"][-1]["content"] == (
        f"compare {editor.folder}/b c and https://example.org/page"
        '\n<resource uri="file:///x">\nits text\n</resource>\n\n<resource uri="file:///y">\n(not text)\n</resource>\n')


@pytest.mark.parametrize("words, key, told", [
    ([], "", "--model"), (["--model", "x", "--url", "file:///etc/passwd"], "", "http:// or https://"),
    (["--model", "x"], "sk-1\n2", "OPENAI_API_KEY holds is no key")])
def test_coding_agent_refuses_wrong_words(monkeypatch, words, key, told):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    done = run_here(example("coding_agent.py")["main"], *words)
    assert done.returncode == 2 and told in done.stderr and "sk-1" not in done.stderr and not done.stdout


# == examples/notebook_agent.py =======================================================================================
# An agent that survives a restart: a real process, killed and started again.

@pytest.fixture
def notebook(raw, tmp_path):
    """Start examples/notebook_agent.py on one folder; again after each call. `.folder` is the folder; `.here` does
    without a process."""

    def make(version):
        wire = raw([sys.executable, os.path.join(HERE, "examples", "notebook_agent.py"), str(make.folder)])
        wire.call("initialize", greeting(version))
        return wire

    def here(version):
        wire = raw(example("notebook_agent.py")["Notebook"](str(make.folder)))
        wire.call("initialize", greeting(version))
        return wire

    make.here, make.folder = here, tmp_path / "notes"
    return make


def notebook_turn(wire, version, session, text):
    """Prompt, and the text of the answer."""
    begin = len(wire.seen)
    wire.turn_end(version, wire.prompt(session, text))
    return "".join(filter(None, (text_update(m["params"]["update"]) for m in wire.seen[begin:]
                                 if m.get("method") == "session/update")))


def notebook_file(folder, number, **more):
    id = f"session-{number:016x}"
    data = {"cwd": "/a" if number % 2 else "/b", "title": f"T{number}", "updatedAt": f"2026-01-01T00:{number // 60:02}:"
            f"{number % 60:02}+00:00", "updates": [], **more}
    folder.mkdir(exist_ok=True)
    (folder / (id + ".json")).write_text(json.dumps(data), encoding="utf-8")
    return id


def replayed(wire, method, params):
    """The updates before the answer, the states left out."""
    id = wire.request(method, params)
    before = wire.until(lambda m: m.get("id") == id)
    assert "error" not in before[-1], before[-1]
    return [m["params"]["update"] for m in before[:-1] if m["params"]["update"]["sessionUpdate"] != "state_update"]


@BOTH
def test_a_killed_agent_has_its_conversation_when_it_is_started_again(notebook, version):
    wire = notebook(version)
    session = wire.call("session/new", {"cwd": "/", "mcpServers": []})["sessionId"]
    assert notebook_turn(wire, version, session, "remember é\u2028 and so on") == "Noted, as number 1."
    assert notebook_turn(wire, version, session, "what do you know") == "What I know:\n- é\u2028 and so on"
    [stored] = notebook.folder.iterdir()
    assert "state_update" not in stored.read_text()
    wire.process.kill()
    wire.process.wait()
    wire = notebook(version)
    setup = {"sessionId": session, "cwd": "/", "mcpServers": []}
    if version == 1:
        updates = replayed(wire, "session/load", setup)
    else:
        updates = replayed(wire, "session/resume", {**setup, "replayFrom": {"type": "start"}})
    texts = [block["text"] for update in updates if "content" in update
             for block in (update["content"] if isinstance(update["content"], list) else [update["content"]])]
    assert texts == ["remember é\u2028 and so on", "Noted, as number 1.", "what do you know",
                     "What I know:\n- é\u2028 and so on"]
    assert {"sessionUpdate": "session_info_update", "title": "remember é\u2028 and so on"} in updates
    assert notebook_turn(wire, version, session, "remember more") == "Noted, as number 2."


@BOTH
def test_a_killed_agent_is_resumed_without_replay_and_knows_all_the_same(notebook, version):
    wire = notebook(version)
    session = wire.call("session/new", {"cwd": "/", "mcpServers": []})["sessionId"]
    notebook_turn(wire, version, session, "remember this")
    wire.process.kill()
    wire.process.wait()
    wire = notebook(version)
    assert replayed(wire, "session/resume", {"sessionId": session, "cwd": "/", "mcpServers": []}) == []
    assert notebook_turn(wire, version, session, "what?") == "What I know:\n- this"


@BOTH
def test_a_turn_that_was_killed_leaves_the_file_of_the_one_before(notebook, version):
    wire = notebook(version)
    session = wire.call("session/new", {"cwd": "/", "mcpServers": []})["sessionId"]
    notebook_turn(wire, version, session, "remember this")
    for number in range(40):
        wire.prompt(session, f"remember {number} " + "x" * 10000)
    wire.process.kill()
    wire.process.wait()
    wire = notebook(version)
    replayed(wire, "session/resume", {"sessionId": session, "cwd": "/", "mcpServers": []})
    assert "- this" in notebook_turn(wire, version, session, "what?")


@BOTH
def test_stored_sessions_are_listed_in_pages_the_newest_first(notebook, version):
    ids = [notebook_file(notebook.folder, number) for number in range(230)]
    (notebook.folder / "leftover.tmp").write_text("{", encoding="utf-8")
    (notebook.folder / "other.json").write_text("{}", encoding="utf-8")
    wire = notebook.here(version)
    found, cursor, pages = [], {}, 0
    while cursor is not None:
        page = wire.call("session/list", cursor)
        found += page["sessions"]
        pages += 1
        cursor = {"cursor": page["nextCursor"]} if "nextCursor" in page else None
    assert [info["sessionId"] for info in found] == ids[::-1] and pages == 3
    assert found[0] == {"sessionId": ids[229], "cwd": "/a", "title": "T229", "updatedAt": "2026-01-01T00:03:49+00:00"}
    assert len(wire.call("session/list", {"cwd": "/a"})["sessions"]) == 100
    assert wire.call("session/list", {"cwd": "/c"}) == {"sessions": []}


@BOTH
def test_a_deleted_session_is_gone_from_the_folder(notebook, version):
    wire = notebook.here(version)
    session = wire.call("session/new", {"cwd": "/", "mcpServers": []})["sessionId"]
    notebook_turn(wire, version, session, "remember this")
    [path] = notebook.folder.iterdir()
    assert path.name == session + ".json"
    wire.call("session/delete", {"sessionId": session})
    assert list(notebook.folder.iterdir()) == [] and wire.call("session/list") == {"sessions": []}
    wire.call("session/delete", {"sessionId": session})  # once more is no error


@BOTH
def test_no_session_id_names_a_path_outside_the_folder(notebook, version):
    notebook_file(notebook.folder, 1)
    outside = notebook.folder.parent / "session-0000000000000001.json"
    outside.write_text((notebook.folder / outside.name).read_text(), encoding="utf-8")
    wire = notebook.here(version)
    for id in ("../session-0000000000000001", str(outside)[:-5], "session-0000000000000009", "", ".", "sessíon",
               "session-000000000000000g", "session-0000000000000001\n", "session-0000000000000001\0", "x" * 5000):
        error = wire.refused("session/resume", {"sessionId": id, "cwd": "/", "mcpServers": []})
        assert error["code"] == -32002 and error["data"] == {"sessionId": id}
        wire.call("session/delete", {"sessionId": id})
    assert outside.exists() and len(list(notebook.folder.iterdir())) == 1


@BOTH
def test_a_broken_file_is_an_error_of_that_session_alone(notebook, version):
    head = b'{"cwd": "/", "title": null, "updatedAt": "", "updates": '
    contents = [b"", b"{", b"[]", b"null", b"\xff", b"{}", head + b"3}", head + b"[" * 100_000,
                head + b'[{"sessionUpdate": "agent_message_chunk"}]}',
                b'{"cwd": 5, "title": {}, "updatedAt": [], "updates": []}']
    good = notebook_file(notebook.folder, 1)
    broken = notebook_file(notebook.folder, 2)
    wire = notebook.here(version)
    for content in contents:
        (notebook.folder / (broken + ".json")).write_bytes(content)
        error = wire.refused("session/resume", {"sessionId": broken, "cwd": "/", "mcpServers": []})
        assert error["code"] == -32603 and broken in error["message"], content[:80]
        assert str(notebook.folder) not in json.dumps(error)
        assert [info["sessionId"] for info in wire.call("session/list")["sessions"]] == [good], content[:80]
    assert replayed(wire, "session/resume", {"sessionId": good, "cwd": "/", "mcpServers": []}) == []


# == examples/probe.py ================================================================================================
# A real process, against good, bad, hanging and dying agents. All are started at once, since they mostly wait; what the
# probe says is read from its --json.

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
child = subprocess.Popen(["sleep", "60"], **({} if held else {
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
def probes(tmp_path_factory):
    """The folder, and the running probes by name."""
    folder, started = tmp_path_factory.mktemp("probes"), {}

    def start(name, command, *options):
        line = [sys.executable, os.path.join(HERE, "examples", "probe.py"), *options, "--", *command]
        started[name] = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
            cwd=folder)

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
    said = (PROBE_DEEDS[name][1], *["no answer within 3 s"][:name.startswith("floods")])  # a slow machine floods slowly
    assert any((what or "").startswith(said) for _, what in rules.values())
    for pid in (probes[0] / (name + ".pids")).read_text().split():  # nothing of its process group is left
        eventually(lambda pid=pid: not running(pid))


@pytest.mark.parametrize("command, why", [
    (["/there/is/no/such/agent"], "cannot be started"), ([], "usage: probe.py [--json]"),
    ([sys.executable, "-c", "import sys; sys.exit('no \x1b[1mkey')"], "ended with exit status 1\n  no  key"),
    ([sys.executable, "-c", "import time; time.sleep(60)"], "no answer within 0.3 s")],
    ids=["is missing", "is not named", "is dead", "is mute"])
def test_a_probe_says_why_there_is_no_agent(command, why):
    patience = "0.3" if "0.3" in why else str(WAIT)  # seconds; the one that is dead needs some to start and end
    done = run_here(example("probe.py")["main"], "--timeout", patience, "--", *command)
    assert done.returncode == 2 and done.stdout == "" and why in done.stderr


# == examples/trace.py ================================================================================================
# A real process. The test is the editor; the agent is a short script, or one that writes back what it reads.

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


@POSIX
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_trace_passes_signals_on_and_leaves_nothing_behind(traced, name):
    number = getattr(signal, name)
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
    ignored = signal.getsignal(number) is signal.SIG_IGN  # under nohup, and a child would inherit it
    if ignored:
        signal.signal(number, signal.SIG_DFL)
    try:
        trace = traced(script)
    finally:
        if ignored:
            signal.signal(number, signal.SIG_IGN)
    pid = trace.read(until=b"\n").strip().decode()
    for before in *[signal.SIGUSR1] * 10, number:  # those that go before must not hold it up
        trace.process.send_signal(before)
    assert trace.read(until=b"\n") == b"caught %d\n" % number
    assert trace.process.wait(WAIT) == number
    assert not running(pid)


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
    done = run_here(example("trace.py")["main"], *words)
    assert done.returncode == 2 and done.stderr.startswith("usage: trace.py FILE [--full]")


@BOTH
def test_a_client_and_an_agent_do_not_notice_a_trace_between_them(tmp_path, version):
    command = [sys.executable, os.path.join(HERE, "examples", "trace.py"), str(tmp_path / "log"), "--",
               sys.executable, os.path.join(HERE, "examples", "echo_agent.py")]
    with acp.Client(command, version=version) as client:
        assert client.new_session("/").ask("hi") == "You said: hi"
        assert client.version == version
    entries = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [each["answers"] for each in entries if "answers" in each] == ["initialize", "session/new", "session/prompt"]


# == examples/embed ===================================================================================================
# A real process on a pseudo-terminal. The test types, and reads a record of what came to the window and in which
# thread, since curses paints no more of a text than what differs.

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

    def __init__(self, folder, *words):
        self.record, self.screen = folder / "record", b""
        driver = folder / "driver.py"
        driver.write_text(f"folder, file = {os.path.join(HERE, 'examples', 'embed')!r}, {str(self.record)!r}\n"
                          + EMBED_RECORDED)
        self.terminal, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, str(driver), *words], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env=dict(os.environ, TERM="xterm"))
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


def test_an_embedding_window_says_that_it_needs_a_terminal(tmp_path):
    done = run_program([sys.executable, os.path.join(HERE, "examples", "embed", "host.py")], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "host.py: it is a window, and needs a terminal\n")


@pytest.fixture
def embedded(tmp_path):
    """Start the program; it is ended after the test, which shows the screen if it fails."""
    started = []

    def start(*words):
        started.append(Embedded(tmp_path, *words))
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
    assert not running(pid)


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


# == examples/bridge.py ===============================================================================================
# A real process between two raw ends, both in the test's hands: `Bridged.editor` speaks over its pipes; the agent that
# it starts is a relay process, whose lines come and go at `Bridged.agent`.

RELAY = '''
import os, socket, sys, threading
stays = []
link = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def answer():
    for line in link.makefile("rb"):
        if line[:1] != b"!":
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        elif line == b"!stay\\n":  # at the end of the input
            stays.append(threading.Event())
        elif line[1:].strip().isdigit():  # how to end
            os._exit(int(line[1:]))
        else:
            os.write(2, line[1:])
    os._exit(0)
threading.Thread(target=answer, daemon=True).start()
data = True
while data:
    data = os.read(0, 65536)
    link.sendall(data)
while stays:
    stays[0].wait()
os._exit(0)
'''
BRIDGE = [sys.executable, os.path.join(HERE, "examples", "bridge.py")]
FOUR = pytest.mark.parametrize("editor_version, agent_version", [(1, 1), (1, 2), (2, 1), (2, 2)])
SAME = pytest.mark.parametrize("editor_version, agent_version", [(1, 1), (2, 2)])


class BridgedAgent(LineEnd):
    """The agent's end of a bridge, in raw lines."""

    def __init__(self, link):
        super().__init__(link, itertools.count(5000))


class Bridged:
    """A bridge between two raw ends; the test plays the editor and the agent, line by line."""

    def __init__(self, folder, editor_version, agent_version):
        self.versions, self.numbers = (editor_version, agent_version), itertools.count(1)
        path = folder / "relay.py"
        path.write_text(RELAY, encoding="utf-8")
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(WAIT)
        self.made = [self.listener]
        self.editor = Raw([*BRIDGE, "--", sys.executable, "-I", "-S", str(path), str(self.listener.getsockname()[1])])
        self.session = "S/0"

    def accept(self):
        """The agent that the bridge has started; another one when the first could not speak its version."""
        link = self.listener.accept()[0]
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.agent = BridgedAgent(link)
        self.made.append(link)
        return self.agent.next()

    def start(self, offers=None, capabilities=None, **more):
        """Initialize all the way. `offers` are the agent's capabilities, in the words of its version."""
        editor_version, agent_version = self.versions
        names = ("clientInfo", "clientCapabilities") if editor_version == 1 else ("info", "capabilities")
        id = self.editor.request("initialize", {"protocolVersion": editor_version, names[0]: EDITOR,
                                                names[1]: capabilities or {}})
        self.asked = self.accept()
        if self.versions == (1, 2):  # an agent that only speaks version 2 is started again
            self.agent.send({"jsonrpc": "2.0", "id": self.asked["id"], "error": {"code": -32022, "message": "no"}})
            self.asked = self.accept()
        if agent_version == 1:
            answer = {"protocolVersion": 1, "agentCapabilities": offers or {}, **more}
        else:
            answer = {"protocolVersion": 2, "info": {"name": "real", "version": "7"}, "authMethods": [],
                      "capabilities": offers or {"session": {}}, **more}
        self.agent.answer(self.asked, answer)
        self.told = self.editor.response(id)["result"]
        return self

    def ready(self):
        """Whether nothing is left of the test before."""
        mark = f"_ready_{next(self.numbers)}"
        try:
            for one, other in (self.editor, self.agent), (self.agent, self.editor):
                one.notify(mark)
                other.until(lambda m: m.get("method") == mark, SOON)
        except (pytest.fail.Exception, AssertionError, OSError):
            return False
        self.session = "S/" + mark
        self.editor.seen.clear()
        return True

    def pass_on(self, method, params=None, agent_method=None, result=None, error=None):
        """A request of the editor that reaches the agent, and the answer back: what each of them got."""
        id = self.editor.request(method, params)
        request = self.agent.asked(agent_method or method)
        if error is None:
            self.agent.answer(request, {} if result is None else result)
        else:
            self.agent.send({"jsonrpc": "2.0", "id": request["id"], "error": error})
        answer = self.editor.response(id)
        return request["params"], answer["result"] if error is None else answer["error"]

    def pass_back(self, method, params, result):
        """A request of the agent that reaches the editor, and the answer back: what each of them got."""
        id = self.agent.request(method, params)
        request = self.editor.asked(method)
        self.editor.answer(request, result)
        return request["params"], self.agent.response(id)["result"]

    def new(self, **result):
        """Make a session; what the editor was told."""
        result = {"sessionId": self.session, **result}
        return self.pass_on("session/new", {"cwd": "/", "mcpServers": []}, result=result)[1]

    def begin(self, **more):
        """A turn that runs on both sides; what the agent got."""
        self.prompt_id = self.editor.prompt(self.session, **more)
        self.request = self.agent.asked("session/prompt")
        if self.versions[1] == 2:
            self.agent.answer(self.request, {"messageId": "u-1"})
            content = self.request["params"]["prompt"]
            self.update({"sessionUpdate": "user_message", "messageId": "u-1", "content": content})
            self.update({"sessionUpdate": "state_update", "state": "running"})
        return self.request["params"]

    def finish(self, reason="end_turn", **more):
        """The agent ends the turn; the stop reason that the editor is told."""
        if self.versions[1] == 2:
            self.update({"sessionUpdate": "state_update", "state": "idle", "stopReason": reason, **more})
        else:
            self.agent.answer(self.request, {"stopReason": reason})
        return self.editor.turn_end(self.versions[0], self.prompt_id)

    def update(self, update):
        self.agent.notify("session/update", {"sessionId": self.session, "update": update})

    def chunk(self, text, kind="agent_message_chunk", **more):
        self.update({"sessionUpdate": kind, "content": {"type": "text", "text": text}, **more})

    def told_update(self, wanted):
        """The next update that the editor is told and `wanted` holds for."""
        return self.editor.until(lambda m: m.get("method") == "session/update" and wanted(m["params"]["update"]))[-1][
            "params"]["update"]

    def turn(self, *updates):
        """A whole turn of these updates; what the editor saw of them."""
        before = len(self.editor.seen)
        self.begin()
        for update in updates:
            self.update(update)
        self.finish()
        return [m["params"]["update"] for m in self.editor.seen[before:] if m.get("method") == "session/update"
                and m["params"]["update"]["sessionUpdate"] not in ("state_update", "user_message")]

    def states(self):
        return [update["state"] for update in self.editor.updates() if update["sessionUpdate"] == "state_update"]

    def close(self):
        self.editor.process.kill()
        self.editor.process.wait()
        for link in self.made:
            link.close()


EDITOR = {"name": "ed", "version": "9", "title": "The Editor"}
META = {"deep": {"in": [1, {"_meta": None}]}}
ALL = {  # what agents offer that offer everything, by version
    1: {"loadSession": True, "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True},
        "mcpCapabilities": {"http": True}, "auth": {"logout": {}}, "_meta": META, "sessionCapabilities": {
            "list": {}, "resume": {}, "close": {}, "delete": {}, "additionalDirectories": {}}},
    2: {"session": {"prompt": {"image": {}, "audio": {}, "embeddedContext": {}}, "mcp": {"stdio": {}, "http": {}},
                    "delete": {}, "additionalDirectories": {}}, "_meta": META}}
LOGINS = {1: [{"id": "key", "name": "Key", "description": "d"}],
          2: [{"methodId": "key", "type": "agent", "name": "Key", "description": "d"}]}
EDITORS = {2: {"elicitation": {"form": {}, "url": {}}}}
EDITORS[1] = {**EDITORS[2], "fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}


@pytest.fixture
def bridged(tmp_path):
    """Make a bridge that has not been told anything yet."""
    made = []

    def make(editor_version, agent_version):
        made.append(Bridged(tmp_path, editor_version, agent_version))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def bridges(tmp_path_factory):
    """Bridges between sides that offer everything, by their versions; used by one test after the other."""
    made = {}
    yield made
    for each in made.values():
        each.close()


@pytest.fixture
def bridge(bridges, tmp_path, editor_version, agent_version):
    """A bridge between sides that offer everything. Its next session is a new one."""
    key = editor_version, agent_version
    if key in bridges and not bridges[key].ready():
        bridges.pop(key).close()
    if key not in bridges:
        bridges[key] = Bridged(tmp_path, *key)
        bridges[key].start(ALL[agent_version], EDITORS[editor_version], authMethods=LOGINS[agent_version])
    return bridges[key]


# ---- what is offered ------------------------------------------------------------------------------------------------

@FOUR
def test_a_bridge_introduces_each_side_to_the_other(bridged, editor_version, agent_version):
    real = {"name": "real", "version": "7", "title": "Real"}
    bridge = bridged(editor_version, agent_version).start(
        ALL[agent_version], {"_meta": {"mine": 1}}, authMethods=LOGINS[agent_version],
        **{"agentInfo" if agent_version == 1 else "info": real})
    asked, told = bridge.asked["params"], bridge.told
    assert asked["clientInfo" if editor_version == 1 == agent_version else "info"] == EDITOR
    own = asked["clientCapabilities" if editor_version == 1 == agent_version else "capabilities"]
    assert own["_meta"] == {"mine": 1} and not {"fs", "terminal", "elicitation", "auth"} & set(own)
    wanted = {**ALL[editor_version]}
    if editor_version == 1:
        wanted["sessionCapabilities"] = {**wanted["sessionCapabilities"]}
        assert told["agentInfo"] == real and told["agentCapabilities"] == wanted
    else:
        assert told["info"] == real and told["capabilities"] == wanted
    assert told["authMethods"] == LOGINS[editor_version]


@FOUR
def test_a_bridge_offers_no_more_than_the_agent(bridged, editor_version, agent_version):
    bridge = bridged(editor_version, agent_version).start()
    told = bridge.told
    if editor_version == 1:
        can = told["agentCapabilities"]
        assert not {"auth", "promptCapabilities"} & set(can) and "delete" not in can["sessionCapabilities"]
        assert can.get("loadSession", False) is (agent_version == 2)
    else:
        assert not {"prompt", "delete", "additionalDirectories"} & set(told["capabilities"]["session"])
    assert told.get("authMethods", []) == []
    bridge.new()
    assert bridge.editor.refused("session/delete", {"sessionId": bridge.session})["code"] == -32601
    image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
    assert bridge.editor.refused("session/prompt", {"sessionId": bridge.session, "prompt": [image]})["code"] == -32602
    live = bridge.editor.request("session/list")
    if agent_version == 1:  # an agent without a list: the bridge knows what is live
        assert [info["sessionId"] for info in bridge.editor.response(live)["result"]["sessions"]] == [bridge.session]
        assert bridge.editor.call("session/close", {"sessionId": bridge.session}) == {}


def test_a_bridge_that_is_introduced_anew_starts_the_agent_anew(bridged):
    bridge = bridged(1, 1).start()
    first = bridge.agent
    bridge.start({"loadSession": True}, {"terminal": True})
    assert first.lines.get(timeout=WAIT) is None
    assert bridge.told["agentCapabilities"]["loadSession"] is True
    assert bridge.asked["params"]["clientCapabilities"]["terminal"] is True
    bridge.new()


def test_a_bridge_tells_why_the_agent_cannot_be_started(raw):
    editor = raw([*BRIDGE, "--", "no-such-agent-anywhere"])
    error = editor.refused("initialize", {"protocolVersion": 1})
    assert error["code"] == -32603 and "no-such-agent-anywhere" in error["message"]
    assert editor.end() == 1


def test_a_bridge_without_a_command_says_how_to_use_it():
    done = subprocess.run([*BRIDGE, "--"], stdin=subprocess.DEVNULL, capture_output=True, timeout=WAIT)
    assert done.returncode == 2 and b"usage" in done.stderr and done.stdout == b""


@POSIX
def test_a_bridge_on_a_terminal_runs_the_command_there(tmp_path):
    ours, theirs = os.openpty()
    script = "import sys; print(sys.stdin.isatty(), sys.argv[1:]); sys.exit(3)"
    done = subprocess.run([*BRIDGE, "--", sys.executable, "-c", script, "--login"], stdin=theirs, capture_output=True,
                          timeout=WAIT)
    os.close(ours), os.close(theirs)
    assert done.returncode == 3 and done.stdout.split(b"\n")[0].strip() == b"True ['--login']"


# ---- sessions -------------------------------------------------------------------------------------------------------

@FOUR
def test_a_session_behind_a_bridge_has_the_agents_id_and_the_editors_setup(bridge, editor_version, agent_version):
    def servers(version):
        tag = {} if version == 1 else {"type": "stdio"}
        env = [{"name": "K", "value": "v", "_meta": META}]
        return [{**tag, "name": "a", "command": "/a", "args": ["-x"], "env": env, "_meta": META},
                {"type": "http", "name": "b", "url": "http://b", "headers": [{"name": "H", "value": "h"}], "new": 1}]

    setup = {"cwd": "/work", "additionalDirectories": ["/more"], "_meta": META}
    request, answer = bridge.pass_on("session/new", {**setup, "mcpServers": servers(editor_version)},
                                     result={"sessionId": bridge.session})
    assert answer["sessionId"] == bridge.session
    assert request == {**setup, "mcpServers": servers(agent_version)}


@FOUR
def test_a_bridge_answers_with_the_agents_error(bridge, editor_version, agent_version):
    error = {"code": -32000, "message": "log in first", "data": {"why": ["no key"]}}
    assert bridge.pass_on("session/new", {"cwd": "/", "mcpServers": []}, error=error)[1] == error
    bridge.new()
    bridge.begin()
    own = {"code": 4711, "message": "out of credit", "data": {"until": 5}}
    if agent_version == 1:
        bridge.agent.send({"jsonrpc": "2.0", "id": bridge.request["id"], "error": own})
    else:
        bridge.update({"sessionUpdate": "state_update", "state": "idle", "stopReason": "error", "error": own})
    if editor_version == 1:
        assert bridge.editor.response(bridge.prompt_id)["error"] == own
    else:
        assert bridge.editor.turn_end(2, bridge.prompt_id) == "error"
        assert bridge.editor.updates()[-1]["error"] == own


@FOUR
@pytest.mark.parametrize("replay", [True, False])
def test_a_bridge_resumes_the_agents_sessions(bridge, editor_version, agent_version, replay):
    setup = {"sessionId": bridge.session, "cwd": "/", "mcpServers": [], "_meta": META}
    start = {"replayFrom": {"type": "start"}}
    id = bridge.editor.request("session/load" if replay and editor_version == 1 else "session/resume",
                               {**setup, **(start if replay and editor_version == 2 else {})})
    request = bridge.agent.asked("session/load" if replay and agent_version == 1 else "session/resume")
    if agent_version == 1:
        assert request["params"] == setup
    else:
        assert {**request["params"], "mcpServers": []} == {**setup, **(start if replay else {})}
    texts = {"type": "text", "text": "question"}, {"type": "text", "text": "answer"}

    def said(version):
        return [
            {"sessionUpdate": "user_message_chunk", "messageId": "q", "content": texts[0]},
            {"sessionUpdate": "agent_message_chunk", "messageId": "a", "content": texts[1], "_meta": META},
            {"sessionUpdate": "tool_call_update" if version == 2 else "tool_call", "toolCallId": "t", "title": "Tool",
             "status": "completed"}]

    for update in said(agent_version) if replay else ():
        bridge.update(update)
    bridge.agent.answer(request, {})
    before = bridge.editor.until(lambda m: m.get("id") == id)
    assert "error" not in before[-1]
    assert [m["params"]["update"] for m in before[:-1] if m["params"]["update"]["sessionUpdate"] != "state_update"] == (
        said(editor_version) if replay else [])
    bridge.begin()
    assert bridge.finish() == "end_turn"


@pytest.mark.parametrize("editor_version, agent_version", [(1, 1), (2, 1), (2, 2), (1, 2)])
def test_a_live_session_is_replayed_once_behind_a_bridge(bridge, editor_version, agent_version):
    bridge.new()
    bridge.turn({"sessionUpdate": "agent_message_chunk", "messageId": "m", "content": {"type": "text", "text": "once"}})
    bridge.editor.seen.clear()
    setup = {"sessionId": bridge.session, "cwd": "/", "mcpServers": []}
    id = bridge.editor.request("session/load", setup) if editor_version == 1 else bridge.editor.request(
        "session/resume", {**setup, "replayFrom": {"type": "start"}})
    request = bridge.agent.asked("session/load" if agent_version == 1 else "session/resume")
    bridge.chunk("once", messageId="m")
    bridge.agent.answer(request, {})
    bridge.editor.response(id)
    assert [text_update(update) for update in bridge.editor.updates()].count("once") == 1
    assert len(bridge.turn({"sessionUpdate": "agent_message_chunk", "messageId": "n", "content": {
        "type": "text", "text": "more"}})) == 1


@FOUR
def test_a_session_unknown_to_the_agent_is_unknown_behind_a_bridge(bridge, editor_version, agent_version):
    error = {"code": -32002, "message": "gone", "data": {"sessionId": "x"}}
    setup = {"sessionId": "x", "cwd": "/", "mcpServers": []}
    for _ in range(2):
        assert bridge.pass_on("session/resume", setup, error=error)[1] == error
    assert bridge.editor.refused("session/prompt", {
        "sessionId": "x", "prompt": [{"type": "text", "text": "hi"}]})["code"] == -32002
    bridge.session, start = "x", {} if editor_version == 1 else {"replayFrom": {"type": "start"}}  # but it may come
    id = bridge.editor.request("session/load" if editor_version == 1 else "session/resume", {**setup, **start})
    request = bridge.agent.asked("session/load" if agent_version == 1 else "session/resume")
    bridge.chunk("there", messageId="m")
    bridge.agent.answer(request, {})
    bridge.told_update(lambda update: "content" in update and text_update(update) == "there")
    bridge.editor.response(id)


@FOUR
def test_what_an_agent_says_of_a_session_before_its_answer_comes_behind_it(bridge, editor_version, agent_version):
    id = bridge.editor.request("session/new", {"cwd": "/", "mcpServers": []})
    request = bridge.agent.asked("session/new")
    bridge.chunk("welcome", messageId="m")
    bridge.agent.answer(request, {"sessionId": bridge.session})
    assert bridge.editor.next()["id"] == id
    assert text_update(bridge.told_update(lambda update: update["sessionUpdate"] == "agent_message_chunk")) == "welcome"


def test_a_version_1_agent_that_can_only_load_is_resumed_without_its_replay(bridged):
    bridge = bridged(2, 1).start({"loadSession": True})
    id = bridge.editor.request("session/resume", {"sessionId": bridge.session, "cwd": "/", "mcpServers": []})
    request = bridge.agent.asked("session/load")
    bridge.chunk("long ago")
    bridge.agent.answer(request, {})
    bridge.editor.response(id)
    bridge.turn()
    assert "long ago" not in json.dumps(bridge.editor.seen)


@FOUR
def test_a_bridge_lists_closes_and_deletes_the_agents_sessions(bridge, editor_version, agent_version):
    infos = [{"sessionId": f"s{number}", "cwd": "/a", "title": "T", "updatedAt": "2026-01-01T00:00:00Z", "_meta": META,
              "new": number} for number in range(3)]
    id = bridge.editor.request("session/list", {"cwd": "/a"})
    first = bridge.agent.asked("session/list")
    assert first["params"] == {"cwd": "/a"}
    bridge.agent.answer(first, {"sessions": infos[:2], "nextCursor": "c"})
    second = bridge.agent.asked("session/list")
    assert second["params"] == {"cwd": "/a", "cursor": "c"}
    bridge.agent.answer(second, {"sessions": infos[2:]})
    assert bridge.editor.response(id)["result"] == {"sessions": infos}
    bridge.new()
    assert bridge.pass_on("session/close", {"sessionId": bridge.session})[0] == {"sessionId": bridge.session}
    assert bridge.pass_on("session/delete", {"sessionId": "s1"})[0] == {"sessionId": "s1"}


@FOUR
def test_a_bridge_logs_in_and_out(bridge, editor_version, agent_version):
    words = {1: ("authenticate", "logout"), 2: ("auth/login", "auth/logout")}
    (login, logout), (their_login, their_logout) = words[editor_version], words[agent_version]
    assert bridge.pass_on(login, {"methodId": "key"}, their_login)[0] == {"methodId": "key"}
    refusal = {"code": -32000, "message": "wrong key"}
    assert bridge.pass_on(login, {"methodId": "key"}, their_login, error=refusal)[1] == refusal
    bridge.pass_on(logout, {}, their_logout)


# ---- options and commands -------------------------------------------------------------------------------------------

SELECT = {"type": "select", "name": "Model", "currentValue": "a", "category": "model", "_meta": META, "new": 1,
          "options": [{"value": "a", "name": "A", "_meta": META}, {"value": "b", "name": "B"}]}


def option(version, id, **more):
    return {"id" if version == 1 else "configId": id, **SELECT, **more}


@FOUR
def test_config_options_go_both_ways_through_a_bridge(bridge, editor_version, agent_version):
    told = bridge.new(configOptions=[option(agent_version, "m"), option(agent_version, "n", currentValue="b")])
    assert told["configOptions"] == [option(editor_version, "m"), option(editor_version, "n", currentValue="b")]
    choice = {"sessionId": bridge.session, "configId": "m", "value": "b"}
    typed = {**choice, "type": "id"}
    asked, answer = bridge.pass_on(
        "session/set_config_option", choice if editor_version == 1 else typed,
        result={"configOptions": [option(agent_version, "m", currentValue="b"), option(agent_version, "n")]})
    assert asked == (choice if agent_version == 1 else typed)
    assert answer["configOptions"] == [option(editor_version, "m", currentValue="b"), option(editor_version, "n")]
    change = {"sessionUpdate": "config_option_update", "_meta": META}
    bridge.update({**change, "configOptions": [option(agent_version, "m")]})
    assert bridge.told_update(lambda update: "_meta" in update) == {
        **change, "configOptions": [option(editor_version, "m")]}
    refusal = {"code": -32602, "message": "not now", "data": {"configId": "m"}}
    assert bridge.pass_on("session/set_config_option", typed, error=refusal)[1] == refusal


@FOUR
def test_an_option_of_an_unknown_type_does_not_keep_the_others_from_being_set(bridge, editor_version, agent_version):
    odd = {"type": "slider", "id" if agent_version == 1 else "configId": "o", "name": "O", "currentValue": 5}
    told = bridge.new(configOptions=[odd, option(agent_version, "m")])["configOptions"]
    assert editor_version != agent_version or told == [odd, option(editor_version, "m")]
    answer = bridge.pass_on("session/set_config_option", {
        "sessionId": bridge.session, "configId": "m", "value": "b", "type": "id"},
        result={"configOptions": [odd, option(agent_version, "m", currentValue="b")]})[1]
    assert answer["configOptions"][-1] == option(editor_version, "m", currentValue="b")


@pytest.mark.parametrize("editor_version, agent_version", [(1, 1), (2, 1)])
def test_the_modes_of_a_version_1_agent_go_both_ways_through_a_bridge(bridge, editor_version, agent_version):
    modes = {"currentModeId": "ask", "availableModes": [{"id": "ask", "name": "Ask", "description": "d"},
                                                        {"id": "code", "name": "Code"}]}
    told = bridge.new(modes=modes)
    [mode] = told["configOptions"]
    assert mode["category"] == "mode" and mode["currentValue"] == "ask"
    if editor_version == 1:
        assert told["modes"] == modes
        asked = bridge.pass_on("session/set_mode", {"sessionId": bridge.session, "modeId": "code"})[0]
    else:
        asked = bridge.pass_on("session/set_config_option", {
            "sessionId": bridge.session, "configId": "mode", "value": "code", "type": "id"}, "session/set_mode")[0]
    assert asked == {"sessionId": bridge.session, "modeId": "code"}
    bridge.update({"sessionUpdate": "current_mode_update", "currentModeId": "ask"})
    if editor_version == 1:
        bridge.told_update(lambda update: update.get("currentModeId") == "ask")
    else:
        bridge.told_update(lambda update: update.get("configOptions", [{}])[0].get("currentValue") == "ask")


@pytest.mark.parametrize("editor_version, agent_version", [(1, 2)])
def test_a_mode_option_of_a_version_2_agent_is_a_mode_for_a_version_1_editor(bridge, editor_version, agent_version):
    told = bridge.new(configOptions=[option(2, "how", category="mode")])
    assert told["modes"]["currentModeId"] == "a" and [m["id"] for m in told["modes"]["availableModes"]] == ["a", "b"]
    after = {"configOptions": [option(2, "how", category="mode", currentValue="b")]}
    asked = bridge.pass_on("session/set_mode", {"sessionId": bridge.session, "modeId": "b"},
                           "session/set_config_option", after)[0]
    assert asked == {"sessionId": bridge.session, "configId": "how", "value": "b", "type": "id"}


@FOUR
def test_commands_title_usage_and_plan_reach_the_editor_through_a_bridge(bridge, editor_version, agent_version):
    def updates(version):
        tags = ({}, {}) if version == 1 else ({"type": "command"}, {"type": "text"})
        entries = [{"content": "step", "priority": "high", "status": "completed", "_meta": META}]
        return [
            {"sessionUpdate": "available_commands_update", "availableCommands": [
                {**tags[0], "name": "c", "description": "C", "_meta": META, "input": {**tags[1], "hint": "h"}}]},
            {"sessionUpdate": "session_info_update", "title": "T", "updatedAt": "2026-01-01T00:00:00Z", "_meta": META},
            {"sessionUpdate": "usage_update", "used": 5, "size": 10, "cost": {"amount": 0.5, "currency": "EUR"}},
            {"sessionUpdate": "plan", "entries": entries} if version == 1 else
            {"sessionUpdate": "plan_update", "plan": {"type": "items", "planId": "plan", "entries": entries}}]

    bridge.new()
    assert bridge.turn(*updates(agent_version)) == updates(editor_version)
    for update in updates(agent_version):  # and outside a turn
        bridge.update(update)
    assert [bridge.editor.next()["params"]["update"] for _ in range(4)] == updates(editor_version)


@FOUR
def test_commands_given_at_the_beginning_reach_the_editor_through_a_bridge(bridge, editor_version, agent_version):
    id = bridge.editor.request("session/new", {"cwd": "/", "mcpServers": []})
    request = bridge.agent.asked("session/new")
    if agent_version == 2:
        bridge.agent.answer(request, {"sessionId": bridge.session, "availableCommands": [
            {"type": "command", "name": "c", "description": "C"}]})
    else:
        bridge.agent.answer(request, {"sessionId": bridge.session})
        bridge.update({"sessionUpdate": "available_commands_update", "availableCommands": [
            {"name": "c", "description": "C"}]})
    commands = bridge.editor.response(id)["result"].get("availableCommands")
    if not commands:
        commands = bridge.told_update(lambda update: True)["availableCommands"]
    assert commands == [{"name": "c", "description": "C", **({"type": "command"} if editor_version == 2 else {})}]


@pytest.mark.parametrize("editor_version, agent_version", [(1, 1), (2, 1)])
def test_what_an_agent_says_of_its_modes_goes_through_a_bridge(bridge, editor_version, agent_version):
    told = bridge.new(modes=RICH_MODES)
    option, = told["configOptions"]
    assert (option["_meta"], option["mood"]) == ({"from": "modes"}, {"deep": [1]})
    assert told.get("modes") == (RICH_MODES if editor_version == 1 else None)


@pytest.mark.parametrize("editor_version, agent_version", [(1, 1), (2, 1)])
def test_the_option_made_of_modes_outlives_reports_behind_a_bridge(bridge, editor_version, agent_version):
    def ids(options):
        return [each["id" if editor_version == 1 else "configId"] for each in options]

    told = bridge.new(modes=RICH_MODES, configOptions=[MODEL_OPTION])
    assert ids(told["configOptions"]) == ["model", "mode"]
    bridge.update({"sessionUpdate": "config_option_update", "configOptions": [MODEL_OPTION]})
    update = bridge.told_update(lambda update: update["sessionUpdate"] == "config_option_update")
    assert ids(update["configOptions"]) == ["model", "mode"]
    choice = {"sessionId": bridge.session, "configId": "model", "value": "small", "type": "id"}
    answer = bridge.pass_on("session/set_config_option", choice, result={"configOptions": [MODEL_OPTION]})[1]
    assert ids(answer["configOptions"]) == ["model", "mode"]
    choice = {**choice, "configId": "mode", "value": "code"}
    asked, answer = bridge.pass_on("session/set_config_option", choice, "session/set_mode")
    assert asked == {"sessionId": bridge.session, "modeId": "code"}
    assert answer["configOptions"][1]["currentValue"] == "code"


# ---- turns ----------------------------------------------------------------------------------------------------------

@FOUR
def test_a_prompt_of_all_kinds_of_content_goes_through_a_bridge(bridge, editor_version, agent_version):
    blocks = [
        {"type": "text", "text": "é\u2028\0", "annotations": {"audience": ["user", "pet"], "priority": 0.5, "new": 1}},
        {"type": "image", "data": "AAAA", "mimeType": "image/png", "uri": "file:///a", "_meta": META},
        {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
        {"type": "resource_link", "name": "n", "uri": "file:///b", "title": "t", "size": 5, "mimeType": "text/plain"},
        {"type": "resource", "resource": {"uri": "file:///c", "text": "c", "mimeType": "text/x", "_meta": META}},
        {"type": "resource", "resource": {"uri": "file:///d", "blob": "AAAA", "new": [None]}, "_meta": META}]
    bridge.new()
    assert bridge.begin(prompt=blocks, _meta=META) == {"sessionId": bridge.session, "prompt": blocks, "_meta": META}
    assert bridge.finish() == "end_turn"
    echoes = [update for update in bridge.editor.updates() if update["sessionUpdate"].startswith("user_message")]
    assert [echo["content"] for echo in echoes] == ([] if editor_version == 1 else [blocks])  # not twice


@FOUR
def test_the_agents_stop_reason_goes_through_a_bridge(bridge, editor_version, agent_version):
    bridge.new()
    for reason in "end_turn", "max_tokens", "max_turn_requests", "refusal", "_mine":
        bridge.editor.seen.clear()
        bridge.begin()
        told = bridge.finish(reason)
        closed = reason == "_mine" and editor_version == 1  # there its words are all there are
        assert told == ("end_turn" if closed else reason)
        assert bridge.states() == ([] if editor_version == 1 else ["running", "idle"])


@FOUR
def test_what_an_agent_says_goes_through_a_bridge_with_its_ids(bridge, editor_version, agent_version):
    def updates(version):
        tool = "tool_call" if version == 1 else "tool_call_update"
        return [
            {"sessionUpdate": "agent_thought_chunk", "messageId": "t1", "content": {"type": "text", "text": "hm"}},
            {"sessionUpdate": "agent_message_chunk", "messageId": "m1", "_meta": META, "content": {
                "type": "text", "text": "a", "_meta": META, "annotations": {"_meta": META, "new": 1}, "new": [{}]}},
            {"sessionUpdate": tool, "toolCallId": "c1", "title": "Read", "kind": "read", "status": "pending",
             "name": "reader", "locations": [{"path": "/a", "line": 3, "_meta": META}], "rawInput": {"a": [None]},
             "content": [{"type": "content", "content": {"type": "text", "text": "x", "_meta": META}, "_meta": META}],
             "_meta": META},
            {"sessionUpdate": "tool_call_update", "toolCallId": "c1", "status": "in_progress", "new": {"_meta": 1}},
            {"sessionUpdate": "tool_call_update", "toolCallId": "c1", "status": "completed", "rawOutput": 0,
             "content": [{"type": "content", "content": {"type": "image", "data": "AAAA", "mimeType": "image/png"}}]},
            {"sessionUpdate": "agent_message_chunk", "messageId": "m2", "content": {
                "type": "resource_link", "name": "n", "uri": "u"}},
            {"sessionUpdate": "agent_message_chunk", "messageId": "m2", "content": {"type": "text", "text": "b"}}]

    bridge.new()
    assert bridge.turn(*updates(agent_version)) == updates(editor_version)


@SAME
def test_what_is_unknown_goes_through_a_bridge_unchanged(bridge, editor_version, agent_version):
    updates = [
        {"sessionUpdate": "hologram", "a": {"_meta": META}, "_meta": META},
        {"sessionUpdate": "agent_message_chunk", "messageId": "m", "content": {
            "type": "smell", "of": ["rain"], "_meta": META}},
        {"sessionUpdate": "agent_message_chunk", "messageId": "m", "newer": {"a": [1]}, "content": {
            "type": "text", "text": ""}},
        {"sessionUpdate": "tool_call" if agent_version == 1 else "tool_call_update", "toolCallId": "c", "kind": "dream",
         "status": "asleep", "title": "T", "content": [{"type": "melody", "notes": [1, None]}]},
        {"sessionUpdate": "plan", "entries": [{"content": "c", "priority": "urgent", "status": "stuck"}]}
        if agent_version == 1 else
        {"sessionUpdate": "plan_update", "plan": {"type": "graph", "planId": "g", "nodes": [1]}}]
    bridge.new()
    assert bridge.turn(*updates) == updates


@pytest.mark.parametrize("editor_version, agent_version", [(2, 2)])
def test_an_unknown_state_goes_through_a_bridge(bridge, editor_version, agent_version):
    odd = {"sessionUpdate": "state_update", "state": "dreaming", "depth": 3}
    bridge.new()
    bridge.begin()
    bridge.update(odd)
    assert bridge.finish() == "end_turn"
    assert bridge.states() == ["running", "dreaming", "idle"] and odd in bridge.editor.updates()


@pytest.mark.parametrize("editor_version, agent_version", [(1, 2)])
def test_words_that_version_1_lacks_are_said_in_its_own_by_a_bridge(bridge, editor_version, agent_version):
    bridge.new()
    seen = bridge.turn(
        {"sessionUpdate": "agent_message", "messageId": "m", "content": [{"type": "text", "text": "whole"}]},
        {"sessionUpdate": "tool_call_update", "toolCallId": "c", "kind": "dream", "status": "cancelled", "content": [
            {"type": "diff", "changes": [{"operation": "delete", "path": "/a"}],
             "patch": {"format": "git_patch", "text": "the patch"}}]},
        {"sessionUpdate": "tool_call_content_chunk", "toolCallId": "c", "content": {
            "type": "content", "content": {"type": "text", "text": "more"}}},
        {"sessionUpdate": "notice", "severity": "info", "title": "for version 2"},
        {"sessionUpdate": "compaction_update", "compactionId": "k", "status": "completed"},
        {"sessionUpdate": "plan_update", "plan": {"type": "items", "planId": "p", "entries": [
            {"content": "c", "priority": "urgent", "status": "cancelled"}]}})
    patch = {"type": "content", "content": {"type": "text", "text": "the patch"}}
    assert seen == [
        {"sessionUpdate": "agent_message_chunk", "messageId": "m", "content": {"type": "text", "text": "whole"}},
        {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "dream", "kind": "other", "status": "failed",
         "content": [patch]},
        {"sessionUpdate": "tool_call_update", "toolCallId": "c", "content": [
            patch, {"type": "content", "content": {"type": "text", "text": "more"}}]},
        {"sessionUpdate": "plan", "entries": [{"content": "c", "priority": "medium", "status": "completed"}]}]


@pytest.mark.parametrize("editor_version, agent_version", [(1, 2)])
def test_content_that_version_1_cannot_say_is_left_out_by_a_bridge(bridge, editor_version, agent_version):
    bridge.new()
    text = {"sessionUpdate": "agent_message_chunk", "messageId": "m", "content": {"type": "text", "text": "a"}}
    seen = bridge.turn(text, {**text, "content": {"type": "smell", "of": "rain"}},
                       {**text, "content": {"type": "shout", "text": "b", "volume": 11}})
    assert seen == [text, {**text, "content": {"type": "text", "text": "b"}}]


@pytest.mark.parametrize("editor_version, agent_version", [(2, 1)])
def test_a_diff_of_version_1_is_a_diff_of_version_2_behind_a_bridge(bridge, editor_version, agent_version):
    bridge.new()
    [seen] = bridge.turn({"sessionUpdate": "tool_call", "toolCallId": "c", "title": "Edit", "content": [
        {"type": "diff", "path": "/a", "oldText": "a\n", "newText": "b\n", "_meta": META}]})
    [diff] = seen["content"]
    assert diff["changes"] == [{"operation": "modify", "path": "/a"}] and diff["_meta"] == META
    assert "-a\n+b\n" in diff["patch"]["text"] and diff["patch"]["format"] == "git_patch"


@pytest.mark.parametrize("editor_version, agent_version", [(1, 1)])
def test_a_diff_and_a_terminal_of_version_1_stay_as_they_are_behind_a_bridge(bridge, editor_version, agent_version):
    call = {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "Edit", "content": [
        {"type": "diff", "path": "/a", "oldText": "", "newText": "b", "new": 1},
        {"type": "terminal", "terminalId": "t", "_meta": META}]}
    bridge.new()
    assert bridge.turn(call) == [call]


@pytest.mark.parametrize("editor_version, agent_version", [(2, 2)])
def test_patches_chunks_and_terminals_of_version_2_go_through_a_bridge(bridge, editor_version, agent_version):
    updates = [
        {"sessionUpdate": "terminal_update", "terminalId": "t", "command": "make", "cwd": "/", "size": {
            "cols": 80, "rows": 5}},
        {"sessionUpdate": "terminal_output_chunk", "terminalId": "t", "data": "/w=="},
        {"sessionUpdate": "tool_call_update", "toolCallId": "c", "title": None, "status": "paused", "_meta": None},
        {"sessionUpdate": "tool_call_content_chunk", "toolCallId": "c", "content": {
            "type": "terminal", "terminalId": "t"}},
        {"sessionUpdate": "terminal_update", "terminalId": "t", "exitStatus": {"exitCode": 0}, "_meta": {"a": None}},
        {"sessionUpdate": "agent_message", "messageId": "m", "content": None},
        {"sessionUpdate": "compaction_update", "compactionId": "k", "status": "completed", "error": None},
        {"sessionUpdate": "notice", "severity": "grave", "title": "T"}]
    bridge.new()
    assert bridge.turn(*updates) == updates


@FOUR
def test_a_turn_is_cancelled_through_a_bridge(bridge, editor_version, agent_version):
    bridge.new()
    bridge.begin()
    bridge.chunk("begun", messageId="m")
    bridge.told_update(lambda update: text_update(update) == "begun" if "content" in update else False)
    bridge.editor.notify("session/cancel", {"sessionId": bridge.session})
    assert bridge.agent.asked("session/cancel")["params"] == {"sessionId": bridge.session}
    bridge.chunk("last words", messageId="m2")
    assert bridge.finish("cancelled") == "cancelled"
    assert "last words" in [text_update(update) for update in bridge.editor.updates()]
    bridge.begin()
    assert bridge.finish() == "end_turn"


@pytest.mark.parametrize("editor_version, agent_version", [(1, 1), (1, 2)])
def test_a_prompt_whose_request_is_cancelled_ends_behind_a_bridge(bridge, editor_version, agent_version):
    bridge.new()
    bridge.begin()
    bridge.chunk("begun", messageId="m")
    bridge.told_update(lambda update: text_update(update) == "begun")
    bridge.editor.notify("$/cancel_request", {"requestId": bridge.prompt_id})
    bridge.agent.asked("session/cancel")
    if agent_version == 1:
        bridge.agent.answer(bridge.request, {"stopReason": "cancelled"})
    else:
        bridge.update({"sessionUpdate": "state_update", "state": "idle", "stopReason": "cancelled"})
    answer = bridge.editor.response(bridge.prompt_id)
    assert answer.get("result") == {"stopReason": "cancelled"} or answer["error"]["code"] == -32800


@pytest.mark.parametrize("editor_version, agent_version", [(1, 2), (2, 2)])
def test_a_prompt_that_the_agent_has_not_taken_up_is_taken_back_through_a_bridge(bridge, editor_version, agent_version):
    bridge.new()
    id = bridge.editor.prompt(bridge.session)
    request = bridge.agent.asked("session/prompt")
    bridge.editor.notify("session/cancel", {"sessionId": bridge.session})
    assert bridge.agent.asked("$/cancel_request")["params"] == {"requestId": request["id"]}
    bridge.agent.send({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32800, "message": "taken back"}})
    answer = bridge.editor.response(id)
    assert answer.get("result", {}).get("stopReason") == "cancelled" or answer["error"]["code"] == -32800, answer
    assert ("error" in answer) == (editor_version == 2)


@pytest.mark.parametrize("editor_version, agent_version", [(2, 2)])
def test_background_work_and_what_an_agent_does_by_itself_go_through_a_bridge(bridge, editor_version, agent_version):
    bridge.new()
    bridge.begin()
    work = [{"type": "tool_call", "toolCallId": "c", "_meta": META}]
    assert bridge.finish(background=work) == "end_turn"
    assert bridge.editor.updates()[-1]["background"] == work
    begun = len(bridge.editor.updates())
    state = {"sessionUpdate": "state_update", "background": []}
    own = [{**state, "state": "running"},
           {"sessionUpdate": "agent_message_chunk", "messageId": "m", "content": {"type": "text", "text": "by myself"}},
           {**state, "state": "requires_action"}, {**state, "state": "idle", "stopReason": "end_turn", "_meta": META}]
    for update in own:
        bridge.update(update)
    bridge.told_update(lambda update: update.get("state") == "idle")
    assert bridge.editor.updates()[begun:] == own


@pytest.mark.parametrize("editor_version, agent_version", [(2, 2)])
def test_an_agent_that_rewrites_the_prompt_is_heard_through_a_bridge(bridge, editor_version, agent_version):
    bridge.new()
    bridge.prompt_id = bridge.editor.prompt(bridge.session, "/expand")
    bridge.agent.answer(bridge.agent.asked("session/prompt"), {"messageId": "u-1"})
    content = [{"type": "text", "text": "expanded"}]
    echo = {"sessionUpdate": "user_message", "content": content, "_meta": META}
    bridge.update({**echo, "messageId": "u-1"})
    bridge.update({"sessionUpdate": "state_update", "state": "running"})
    bridge.finish()
    first, second = [update for update in bridge.editor.updates() if update["sessionUpdate"] == "user_message"]
    assert second == {**echo, "messageId": first["messageId"]}


@pytest.mark.parametrize("editor_version, agent_version", [(2, 2)])
def test_what_an_agent_declares_cancellable_is_cancelled_through_a_bridge(bridge, editor_version, agent_version):
    bridge.new()
    bridge.begin()
    can = {"capabilities": {"cancel": {}}}
    bridge.update({"sessionUpdate": "tool_call_update", "toolCallId": "c", "title": "T", **can})
    bridge.update({"sessionUpdate": "terminal_update", "terminalId": "t", **can})
    bridge.told_update(lambda update: "terminalId" in update)
    for method, what in ("tool_call/cancel", {"toolCallId": "c"}), ("terminal/cancel", {"terminalId": "t"}):
        wanted = {"sessionId": bridge.session, **what}
        assert bridge.pass_on(method, wanted)[0] == wanted
    bridge.finish()


@FOUR
def test_what_stands_beside_an_update_goes_through_a_bridge(bridge, editor_version, agent_version):
    bridge.new()
    bridge.begin()
    params = {"sessionId": bridge.session, "_meta": META, "future": {"of": [3]}, "update": {
        "sessionUpdate": "agent_message_chunk", "messageId": "m", "_meta": {"at": 2}, "new": True,
        "content": {"type": "text", "text": "x", "_meta": {"at": 3}, "_color": "red"}}}
    bridge.agent.notify("session/update", params)
    assert bridge.editor.until(lambda m: m.get("method") == "session/update" and "new" in m["params"]["update"])[-1][
        "params"] == params
    bridge.finish()


@FOUR
def test_what_an_agent_says_with_the_end_of_a_turn_goes_through_a_bridge(bridge, editor_version, agent_version):
    bridge.new()
    bridge.begin()
    beside = {"_meta": META, "future": {"of": [3]}}
    if agent_version == 2:
        bridge.update({"sessionUpdate": "state_update", "state": "idle", "stopReason": "max_tokens", **beside})
    else:
        bridge.agent.answer(bridge.request, {"stopReason": "max_tokens", **beside})
    if editor_version == 1:
        assert bridge.editor.response(bridge.prompt_id)["result"] == {"stopReason": "max_tokens", **beside}
    else:
        assert bridge.told_update(lambda update: update.get("state") == "idle") == {
            "sessionUpdate": "state_update", "state": "idle", "stopReason": "max_tokens", **beside}


@FOUR
def test_a_prompt_goes_through_a_bridge_as_it_came(bridge, editor_version, agent_version):
    told = bridge.new(_meta=META)
    assert told == {"sessionId": bridge.session, "_meta": META}
    prompt = {"prompt": [{"type": "text", "text": "hi", "_meta": {"at": 3}, "_color": "red"}], "_meta": META, "new": 1}
    assert bridge.begin(**prompt) == {"sessionId": bridge.session, **prompt}
    if editor_version == 2:
        id = bridge.editor.response(bridge.prompt_id)["result"]["messageId"]
        assert id == "u-1" or agent_version == 1
        echo = bridge.told_update(lambda update: update["sessionUpdate"] == "user_message")
        assert (echo["messageId"], echo["content"]) == (id, prompt["prompt"])
        assert bridge.told_update(lambda update: update.get("state"))["state"] == "running"
    bridge.chunk("x", messageId="m")
    assert bridge.told_update(lambda update: True)["messageId"] == "m"
    assert bridge.finish() == "end_turn"


@pytest.mark.parametrize("editor_version, agent_version", [(1, 2), (2, 2)])
def test_a_prompt_that_the_agent_refuses_is_refused_through_a_bridge(bridge, editor_version, agent_version):
    bridge.new()
    id = bridge.editor.prompt(bridge.session)
    request = bridge.agent.asked("session/prompt")
    error = {"code": -32602, "message": "not this", "data": {"why": 1}}
    bridge.agent.send({"jsonrpc": "2.0", "id": request["id"], "error": error})
    assert bridge.editor.response(id)["error"] == error
    assert "running" not in bridge.states()
    bridge.begin()
    assert bridge.finish() == "end_turn"


@pytest.mark.parametrize("editor_version", [1, 2])
def test_a_turn_that_began_in_spite_of_its_cancel_is_told_to_its_end_by_a_bridge(bridged, editor_version):
    bridge = bridged(editor_version, 2).start(ALL[2], EDITORS[editor_version])
    bridge.new()
    id = bridge.editor.prompt(bridge.session)
    request = bridge.agent.asked("session/prompt")
    bridge.editor.notify("session/cancel", {"sessionId": bridge.session})
    bridge.editor.response(id)
    bridge.agent.asked("$/cancel_request")
    bridge.agent.answer(request, {"messageId": "u-1"})  # it crossed the cancel
    bridge.update({"sessionUpdate": "user_message", "messageId": "u-1", "content": request["params"]["prompt"]})
    bridge.update({"sessionUpdate": "state_update", "state": "running"})
    bridge.agent.asked("session/cancel")
    bridge.update({"sessionUpdate": "state_update", "state": "idle", "stopReason": "cancelled"})
    bridge.chunk("after", messageId="m")
    bridge.told_update(lambda update: update.get("messageId") == "m")
    print(bridge.states())
    assert bridge.states()[-1:] != ["running"]
    bridge.editor.notify("session/cancel", {"sessionId": bridge.session})  # what the agent does by itself
    bridge.agent.asked("session/cancel")
    bridge.begin()
    assert bridge.finish() == "end_turn"


# ---- questions of the agent -----------------------------------------------------------------------------------------

BRIDGE_OPTIONS = [{"optionId": "yes-1", "name": "Yes", "kind": "allow_once", "_meta": META, "new": 1},
           {"optionId": "no-1", "name": "No", "kind": "reject_once"},
           {"optionId": "never", "name": "Never", "kind": "reject_always"}]


def question(version, session, **call):
    """A permission request about a tool call, by version."""
    call = {"toolCallId": "c", "title": "Remove /a", **call}
    common = {"sessionId": session, "options": BRIDGE_OPTIONS, "_meta": META}
    return {**common, "toolCall": call} if version == 1 else {
        **common, "title": call["title"], "subject": {"type": "tool_call", "toolCall": call}}


def chosen(id):
    return {"outcome": {"outcome": "selected", "optionId": id}}


@FOUR
def test_a_question_outside_a_session_belongs_to_the_editors_request(bridge, editor_version, agent_version):
    id = bridge.editor.request("session/new", {"cwd": "/", "mcpServers": []})
    request = bridge.agent.asked("session/new")
    page = {"mode": "url", "message": "Log in", "elicitationId": "e", "url": "https://x", "requestId": request["id"]}
    told, answer = bridge.pass_back("elicitation/create", page, {"action": "accept"})
    assert (told, answer) == ({**page, "requestId": id}, {"action": "accept"})
    bridge.agent.answer(request, {"sessionId": bridge.session})
    assert bridge.editor.response(id)["result"]["sessionId"] == bridge.session


@FOUR
def test_an_answer_to_a_question_goes_through_a_bridge_whole(bridge, editor_version, agent_version):
    bridge.new()
    bridge.begin()
    for answer in (
            {**chosen("yes-1"), "_meta": META, "new": 1},
            {"outcome": {"outcome": "selected", "optionId": "never", "_meta": META, "new": 1}},
            {"outcome": {"outcome": "_later", "in": 3}, "_meta": META}):
        got = bridge.pass_back("session/request_permission", question(agent_version, bridge.session), answer)[1]
        assert got == answer
    form = {"mode": "form", "sessionId": bridge.session, "message": "Who?", "requestedSchema": {
        "type": "object", "properties": {"name": {"type": "string"}}}}
    answer = {"action": "accept", "content": {"name": "x"}, "_meta": META, "new": 1}
    assert bridge.pass_back("elicitation/create", form, answer)[1] == answer
    unoffered = chosen("something else")
    got = bridge.pass_back("session/request_permission", question(agent_version, bridge.session), unoffered)[1]
    assert got == chosen("no-1")
    bridge.finish()


@FOUR
def test_a_cancel_of_what_the_agent_does_by_itself_goes_through_a_bridge(bridge, editor_version, agent_version):
    bridge.new()
    bridge.editor.notify("session/cancel", {"sessionId": bridge.session})
    assert bridge.agent.asked("session/cancel")["params"] == {"sessionId": bridge.session}


@FOUR
def test_a_permission_goes_through_a_bridge_with_its_options(bridge, editor_version, agent_version):
    bridge.new()
    bridge.begin()
    call = {"kind": "delete", "status": "pending", "_meta": META}
    for answer in chosen("no-1"), chosen("yes-1"), {"outcome": {"outcome": "cancelled"}}:
        asked, got = bridge.pass_back(
            "session/request_permission", question(agent_version, bridge.session, **call), answer)
        assert asked == question(editor_version, bridge.session, **call) and got == answer
    for answer in chosen("made-up"), {"outcome": {"outcome": "maybe"}}, {"outcome": 5}, {}:
        got = bridge.pass_back("session/request_permission", question(agent_version, bridge.session), answer)[1]
        assert got["outcome"].get("optionId") in (None, "no-1", "never")
    bridge.finish()
    if (editor_version, agent_version) == (2, 1):
        assert bridge.states()[:3] == ["running", "requires_action", "running"] and bridge.states()[-1] == "idle"


@FOUR
def test_questions_of_one_turn_reach_the_editor_side_by_side_through_a_bridge(bridge, editor_version, agent_version):
    bridge.new()
    bridge.begin()
    calls = {bridge.agent.request("session/request_permission", question(
        agent_version, bridge.session, toolCallId=call)): call for call in "ab"}
    with within(SOON):
        asked = [bridge.editor.asked("session/request_permission") for _ in calls]
    for request in reversed(asked):
        call = request["params"].get("toolCall") or request["params"]["subject"]["toolCall"]
        bridge.editor.answer(request, chosen("yes-1" if call["toolCallId"] == "a" else "never"))
    answers = [bridge.agent.until(lambda m: m.get("id") in calls)[-1] for _ in calls]
    assert {calls[answer["id"]]: answer["result"] for answer in answers} == {"a": chosen("yes-1"), "b": chosen("never")}
    bridge.finish()


@FOUR
def test_a_question_that_the_agent_takes_back_is_taken_back_from_the_editor(bridge, editor_version, agent_version):
    bridge.new()
    bridge.begin()
    id = bridge.agent.request("session/request_permission", question(agent_version, bridge.session))
    asked = bridge.editor.asked("session/request_permission")
    bridge.agent.notify("$/cancel_request", {"requestId": id})
    with within(SOON):
        assert bridge.editor.asked("$/cancel_request")["params"] == {"requestId": asked["id"]}
        bridge.agent.response(id)
    bridge.finish()


@FOUR
def test_a_cancel_answers_the_agents_question_behind_a_bridge(bridge, editor_version, agent_version):
    bridge.new()
    bridge.begin()
    id = bridge.agent.request("session/request_permission", question(agent_version, bridge.session))
    bridge.editor.asked("session/request_permission")
    bridge.editor.notify("session/cancel", {"sessionId": bridge.session})
    assert bridge.agent.response(id)["result"] == {"outcome": {"outcome": "cancelled"}}  # whatever the editor does
    assert bridge.finish("cancelled") == "cancelled"


@FOUR
def test_forms_and_pages_go_through_a_bridge(bridge, editor_version, agent_version):
    bridge.new()
    bridge.begin()
    form = {"mode": "form", "sessionId": bridge.session, "message": "Who?", "toolCallId": "c", "_meta": META,
            "requestedSchema": {"type": "object", "required": ["name"], "properties": {
                "name": {"type": "string", "minLength": 1, "format": "email", "_meta": META},
                "age": {"type": "integer", "minimum": 0}, "odd": {"type": "colour", "of": 3},
                "many": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}}}}
    for answer in ({"action": "accept", "content": {"name": "x@y", "age": 3, "many": ["a"]}}, {"action": "decline"},
                   {"action": "cancel"}):
        assert bridge.pass_back("elicitation/create", form, answer) == (form, answer)
    page = {"mode": "url", "sessionId": bridge.session, "message": "Go", "elicitationId": "e1", "url": "https://x"}
    for action in "accept", "decline", "cancel":
        assert bridge.pass_back("elicitation/create", page, {"action": action}) == (page, {"action": action})
    bridge.agent.notify("elicitation/complete", {"elicitationId": "e1"})
    assert bridge.editor.asked("elicitation/complete")["params"] == {"elicitationId": "e1"}
    bridge.finish()


@pytest.mark.parametrize("editor_version, agent_version", [(1, 1)])
def test_the_editors_files_and_terminals_serve_a_version_1_agent_behind_a_bridge(bridge, editor_version, agent_version):
    assert bridge.asked["params"]["clientCapabilities"]["fs"] == {"readTextFile": True, "writeTextFile": True}
    assert bridge.asked["params"]["clientCapabilities"]["terminal"] is True
    bridge.new()
    bridge.begin()
    where = {"sessionId": bridge.session, "_meta": META}
    terminal = {**where, "terminalId": "t"}
    for method, params, result in [
            ("fs/read_text_file", {**where, "path": "/a", "line": 2, "limit": 3}, {"content": "text", "_meta": META}),
            ("fs/write_text_file", {**where, "path": "/a", "content": "b"}, {}),
            ("terminal/create", {**where, "command": "make", "args": ["-j"], "env": [{"name": "A", "value": "b"}],
                                 "cwd": "/", "outputByteLimit": 10, "new": 1}, {"terminalId": "t"}),
            ("terminal/output", terminal, {"output": "é", "truncated": True, "exitStatus": {"exitCode": 1}}),
            ("terminal/wait_for_exit", terminal, {"exitCode": 1, "new": 2}),
            ("terminal/kill", terminal, {}), ("terminal/release", terminal, {"_meta": META})]:
        assert bridge.pass_back(method, params, result) == (params, result)
    id = bridge.agent.request("fs/read_text_file", {**where, "path": "/none"})
    error = {"code": -32002, "message": "no such file", "data": {"path": "/none"}}
    bridge.editor.send({"jsonrpc": "2.0", "id": bridge.editor.asked("fs/read_text_file")["id"], "error": error})
    assert bridge.agent.response(id)["error"] == error
    bridge.finish()


def test_an_editor_that_only_reads_files_is_asked_for_no_more_through_a_bridge(bridged):
    bridge = bridged(1, 1).start(capabilities={"fs": {"readTextFile": True, "writeTextFile": False}})
    assert bridge.asked["params"]["clientCapabilities"]["fs"]["writeTextFile"] is False
    assert bridge.agent.refused("terminal/create", {"sessionId": "s", "command": "make"})["code"] == -32601


def test_a_wait_for_a_command_that_is_given_up_is_given_up_behind_a_bridge(bridged):
    bridge = bridged(1, 1).start(ALL[1], EDITORS[1])
    bridge.new()
    id = bridge.agent.request("terminal/wait_for_exit", {"sessionId": bridge.session, "terminalId": "t"})
    request = bridge.editor.asked("terminal/wait_for_exit")
    bridge.agent.notify("$/cancel_request", {"requestId": id})
    assert bridge.editor.asked("$/cancel_request")["params"] == {"requestId": request["id"]}
    assert bridge.agent.response(id)["error"]["code"] == -32800


# ---- extensions -----------------------------------------------------------------------------------------------------

@FOUR
def test_extensions_go_both_ways_through_a_bridge(bridge, editor_version, agent_version):
    wanted = {"a": [1, None, {"_meta": META}], "_meta": META}
    assert bridge.pass_on("_vendor/do", wanted, result={"b": wanted}) == (wanted, {"b": wanted})
    error = {"code": 99, "message": "not today", "data": [1]}
    assert bridge.pass_on("vendor.do", wanted, error=error) == (wanted, error)
    assert bridge.pass_back("_vendor/ask", wanted, {"c": wanted}) == (wanted, {"c": wanted})
    for one, other in (bridge.editor, bridge.agent), (bridge.agent, bridge.editor):
        one.notify("_vendor/note", wanted)
        assert other.asked("_vendor/note")["params"] == wanted
    id = bridge.agent.request("_vendor/none", {})
    none = {"code": -32601, "message": "no such method", "data": {"method": "_vendor/none"}}
    bridge.editor.send({"jsonrpc": "2.0", "id": bridge.editor.asked("_vendor/none")["id"], "error": none})
    assert bridge.agent.response(id)["error"] == none


# ---- what version 1 allows and version 2 refuses --------------------------------------------------------------------

@pytest.mark.parametrize("editor_version, agent_version", [(2, 1)])
def test_what_only_version_1_allows_does_not_keep_the_rest_from_an_editor_of_version_2(
        bridge, editor_version, agent_version):
    told = bridge.new(configOptions=[{**own_mode(), "options": []}, MODEL_OPTION])
    assert told["configOptions"] == wire_options(2)[:1]
    heard = bridge.turn(
        {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "T", "locations": [{"path": "/a", "line": 0}]},
        {"sessionUpdate": "agent_message_chunk", "messageId": "m", "content": foreign_text(priority=3)})
    assert heard == [foreign_update(title="T", locations=[{"path": "/a"}]), {
        "sessionUpdate": "agent_message_chunk", "messageId": "m", "content": foreign_text()}]
    ask = {"sessionId": bridge.session, "message": "?", "mode": "form", "requestedSchema": {
        "type": "object", "properties": {"size": {"type": "string", "enum": []}}}}
    asked = bridge.pass_back("elicitation/create", ask, {"action": "decline"})[0]
    assert asked["requestedSchema"]["properties"] == {"size": {"type": "string"}}


@pytest.mark.parametrize("editor_version, agent_version", [(1, 2)])
def test_what_only_version_1_allows_does_not_keep_the_rest_from_an_agent_of_version_2(
        bridge, editor_version, agent_version):
    bridge.new()
    link = {"type": "resource_link", "name": "n", "uri": "file:///n"}
    bridge.prompt_id = bridge.editor.request("session/prompt", {
        "sessionId": bridge.session, "prompt": [foreign_text(priority=-2), {**link, "size": -1}]})
    bridge.request = bridge.agent.asked("session/prompt")
    assert bridge.request["params"]["prompt"] == [foreign_text(), link]
    bridge.agent.answer(bridge.request, {"messageId": "u"})
    bridge.update({"sessionUpdate": "state_update", "state": "running"})
    assert bridge.finish() == "end_turn"


# ---- much at once, and the end --------------------------------------------------------------------------------------

@FOUR
def test_many_updates_of_two_sessions_keep_their_order_through_a_bridge(bridge, editor_version, agent_version):
    sessions, prompts, count = [], [], 800
    for number in range(2):
        bridge.session = f"{bridge.session}{number}"
        bridge.new()
        bridge.begin()
        sessions.append(bridge.session)
        prompts.append(bridge.prompt_id)
    lines = [json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": {
        "sessionUpdate": "agent_message_chunk", "messageId": "m", "content": {
            "type": "text", "text": f"{number} " + "x" * (number % 300)}}}})
        for number in range(count) for session in sessions]
    bridge.agent.write("".join(line + "\n" for line in lines).encode())
    seen = {session: [] for session in sessions}
    while sum(map(len, seen.values())) < len(lines):
        params = json.loads(bridge.editor.lines.get(timeout=WAIT)).get("params", {})
        if params.get("update", {}).get("sessionUpdate") == "agent_message_chunk":
            seen[params["sessionId"]].append(int(params["update"]["content"]["text"].split()[0]))
    assert seen == {session: list(range(count)) for session in sessions}


@FOUR
def test_the_end_of_the_editor_ends_the_agent_behind_a_bridge(bridged, editor_version, agent_version):
    bridge = bridged(editor_version, agent_version).start()
    bridge.new()
    with within(3):
        assert bridge.editor.end() == 0
        assert bridge.agent.lines.get(timeout=WAIT) is None


def test_an_agent_that_does_not_end_by_itself_is_ended_behind_a_bridge(bridged):
    bridge = bridged(1, 1).start()
    bridge.agent.write(b"!stay\n")
    bridge.agent.notify("_told")
    bridge.editor.asked("_told")
    with within(6):
        assert bridge.editor.end() == 0
        assert bridge.agent.lines.get(timeout=SOON) is None


@FOUR
def test_the_end_of_the_bridged_agents_the_bridge_and_is_told(bridged, editor_version, agent_version):
    bridge = bridged(editor_version, agent_version).start()
    bridge.new()
    bridge.begin()
    bridge.agent.write(b"!the agent fell over\n")
    eventually(lambda: "the agent fell over\n" in bridge.editor.errors)
    with within(4):
        bridge.agent.write(b"!3\n")
        if editor_version == 1:
            error = bridge.editor.response(bridge.prompt_id)["error"]
        else:
            assert bridge.editor.turn_end(2, bridge.prompt_id) == "error"
            error = bridge.editor.updates()[-1]["error"]
        assert "status 3" in error["message"] and "the agent fell over" in error["message"]
        assert bridge.editor.process.wait(WAIT) == 1


@POSIX
def test_a_terminated_bridge_ends_its_agent_in_the_middle_of_a_turn(bridged):
    bridge = bridged(1, 1).start()
    bridge.new()
    bridge.begin()
    with within(4):
        bridge.editor.process.terminate()
        assert bridge.editor.process.wait(WAIT) in (-signal.SIGTERM, 128 + signal.SIGTERM)
        while bridge.agent.lines.get(timeout=WAIT) is not None:
            pass


# == examples/benchmark.py =============================================================================================
# As a real process, with small counts: that it measures and shows, not how fast anything is.

BENCHMARK = [sys.executable, os.path.join(HERE, "examples", "benchmark.py"), "--quick", "--rounds", "1"]
SVG = "{http://www.w3.org/2000/svg}"


def benchmark(folder, *words, **options):
    """Start it; what it needs for a while lies in this folder."""
    return subprocess.Popen([*BENCHMARK, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={"PATH": os.environ["PATH"], "TMPDIR": str(folder)}, **options)


def test_the_benchmark_shows_a_row_for_each_figure_and_draws_its_speeds(tmp_path):
    work, plot, kept = tmp_path / "work", tmp_path / "plot.svg", tmp_path / "kept.json"
    work.mkdir()
    process = benchmark(work, "--only", "imports", "start", "stream", "receive", "--markdown", "--plot", str(plot),
                        "--json", str(kept))
    out, errors = process.communicate(timeout=50)
    assert (process.returncode, errors) == (0, ""), errors
    assert not list(work.iterdir())
    about, _, head, rule, *lines = out.splitlines()
    assert about.endswith("median of 1.") and rule.startswith("| --- | --- | ---: |")
    assert [word.strip() for word in head.split("|")][1:7] == ["figure", "unit", "bare", "acp.py", "ratio", "target"]
    rows = {cells[1]: cells[2:] for cells in ([cell.strip() for cell in line.split("|")] for line in lines)}
    timed = {"import": "ms", "start to the answer of initialize": "ms",
             **{f"{doing}, version {version}": "chunks/s"
                for doing in ("streaming small chunks", "receiving typed, merged updates") for version in (1, 2)}}
    sizes = "peak memory of an idle agent", "peak memory after receiving 3,000"
    assert [*rows] == [*list(timed)[:2], sizes[0], *list(timed)[2:], sizes[1]]
    for words, unit in timed.items():
        assert rows[words][0] == unit
        floor, ours, ratio = (float(cell.replace(",", "")) for cell in rows[words][1:4])
        assert floor > 0 and ours > 0 and 0.001 < ratio < 1000, (words, rows[words])
        assert abs(ratio - ours / floor) <= 0.02 * ratio + 0.01, (words, rows[words])  # both were rounded
        assert rows[words][5] in ("ok", "missed")
    figures = json.loads(kept.read_text())["figures"]
    assert len(figures) == 8
    assert all(len(each["values"]["bare"]) == 1 for each in figures.values() if each["unit"] != "MiB")

    picture = xml.etree.ElementTree.parse(plot).getroot()
    assert picture.find(SVG + "title").text and "acp.py" in picture.find(SVG + "desc").text
    bars = [each for each in picture.iter(SVG + "rect") if each.get("class", "").startswith("bar")]
    widths = [float(bar.get("width")) for bar in bars]
    speeds = [1 / figures["start"]["ratio"]] + [figures[name]["ratio"] for name in (
        "stream1", "stream2", "receive1", "receive2")]
    assert len(bars) == 5
    for width, speed in zip(widths, speeds):
        assert abs(width / max(widths) - speed / max(speeds)) < 0.001, (widths, speeds)
    assert max(float(bar.get("x")) + width for bar, width in zip(bars, widths)) < float(picture.get("width"))


def test_an_unknown_name_of_a_measurement_is_refused_with_those_that_exist(tmp_path):
    process = benchmark(tmp_path, "--only", "nothing")
    out, errors = process.communicate(timeout=20)
    assert process.returncode == 2 and not out
    assert "'nothing'" in errors and all(name in errors for name in ("imports", "stream", "receive", "unread"))


def test_a_place_without_an_sdk_is_refused(tmp_path):
    process = benchmark(tmp_path, "--peer", str(tmp_path))
    assert "no SDK in" in process.communicate(timeout=20)[1] and process.returncode == 2


def test_an_interrupted_benchmark_leaves_nothing(tmp_path):
    process = benchmark(tmp_path, "--only", "unread")
    deadline = time.monotonic() + 20
    while not any(tmp_path.glob("*/compiled")) and time.monotonic() < deadline:  # an agent runs
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=20)
    assert (process.returncode, out, errors) == (130, "", "")
    assert not list(tmp_path.iterdir())
    for place in glob.glob("/proc/[0-9]*/cmdline"):
        with contextlib.suppress(OSError), open(place, "rb") as file:
            assert os.fsencode(tmp_path) not in file.read(), place

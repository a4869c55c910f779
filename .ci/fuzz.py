#!/usr/bin/env python3
"""Throws things at both roles over sockets: python3 .ci/fuzz.py [SECONDS] [SEED] [FIRST]

Random bytes, random JSON, valid messages of the schemas with one thing wrong, and valid conversations in a wrong order,
in pieces of any size. A fault prints its round, which FIRST begins with; it is the same again as far as timing lets it.
What must hold: each request with a good id gets one answer, never two, at the latest when the input ends; what comes is
one JSON object a line; afterwards the connection still works, or has ended with a reason; calls end in the time given;
nothing fails inside but by design; no thread is left; the memory does not grow. Exit status 1 when something did not.
"""
import collections
import json
import logging
import random
import socket
import sys
import threading
import time
import traceback

import installs
import values
from talk import Faults, acp, resident

SOON = 20  # seconds until something is a hang; far above what it takes on a busy machine
GROWTH = 60 << 20  # bytes that the process may grow after the first third of the time


class Source:
    """Messages by chance."""

    def __init__(self, schemas, rng):
        self.schemas, self.rng, self.count = schemas, rng, 0

    def id(self):
        self.count += 1
        return self.rng.choice([f"id-{self.count}", 1000 + self.count])

    def junk(self):
        """A line that is no message, most likely."""
        rng = self.rng
        if rng.random() < 0.5:
            return bytes(rng.randrange(256) for _ in range(rng.randrange(200))).replace(b"\n", b"?")
        return json.dumps(self.anything(3)).encode()

    def anything(self, depth):
        rng = self.rng
        if depth and rng.random() < 0.6:
            if rng.random() < 0.5:
                return [self.anything(depth - 1) for _ in range(rng.randrange(4))]
            names = ["jsonrpc", "id", "method", "params", "result", "error", "sessionId", "update", "_meta", ""]
            return {rng.choice(names): self.anything(depth - 1) for _ in range(rng.randrange(5))}
        return rng.choice([None, True, 0, -1, 2**70, 1.5, "", "2.0", "session/update", "initialize", "\ud800", "s"])

    def params(self, version, name):
        """A value of a type, or nearly one."""
        cases = self.schemas[version, name]
        return self.rng.choice(cases) if cases else {}

    def broken(self, message):
        """The message with one thing changed anywhere."""
        rng, made = self.rng, json.loads(json.dumps(message))
        places = [()]

        def walk(value, path):
            items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
            for key, item in items:
                places.append((*path, key))
                walk(item, (*path, key))
        walk(made, ())
        path = rng.choice(places[1:] or places)
        new = rng.choice([values.GONE, None, [], {}, "", "x" * rng.choice([1, 9999]), -1, 2**64, True,
                          self.anything(2)])
        return values.replaced(made, path, new) if path else made

    def pieces(self, data):
        """The bytes cut anywhere."""
        while data:
            size = self.rng.choice([1, 7, 100, 5000, len(data)])
            yield data[:size]
            data = data[size:]


class Script(acp.Agent):
    """An agent with every hook, whose turns do a bit of everything and never fail by themselves."""

    name, versions, additional_directories = "fuzz", (1, 2), True
    prompt_capabilities = acp.PromptCapabilities(image=True, audio=True, embedded_context=True)
    mcp_capabilities = acp.McpCapabilities(stdio=True, http=True, sse=True)
    auth_methods = [acp.AuthMethodAgent("key", "A key")]

    def new_session(self, session):
        session.config_options = [acp.SessionConfigSelect("model", "Model", "a", [
            acp.SessionConfigSelectOption("a", "A"), acp.SessionConfigSelectOption("b", "B")], category="mode"),
            acp.SessionConfigBoolean("fast", "Fast", False)]
        session.commands = [acp.Command("again", "do it again")]

    def resume_session(self, session, replay):
        if session.id not in self.sessions:
            raise acp.NotFound()

    def delete_session(self, session_id): pass
    def login(self, method_id): pass
    def logout(self): pass
    def cancel(self, session): pass
    def cancel_tool_call(self, session, tool_call_id): pass
    def cancel_terminal(self, session, terminal_id): pass
    def extension(self, peer, method, params): return {"echo": params}
    def extension_notification(self, peer, method, params): pass

    def prompt(self, turn):
        turn.think("hm")
        turn.say(turn.text[:100])
        turn.plan(["one"])
        try:
            with turn.tool("t", kind="edit", cancellable=True) as tool:
                tool.diff("/f", "new\n", "old\n")
                if tool.ask_permission():
                    turn.elicit("who?", {"name": acp.StringPropertySchema()})
        except (acp.RequestError, acp.InvalidResponse, acp.Unsupported):
            turn.say("no.")


def read_all(end, lines, done):
    """In a thread: the lines that come, until the end."""
    buffer = b""
    try:
        while data := end.recv(65536):
            *whole, buffer = (buffer + data).split(b"\n")
            for line in whole:
                lines(line)
    except OSError:
        pass
    done.set()


def judged(line, answers, wrong):
    """A line of ours: a JSON object; counts what it answers. Returns it."""
    try:
        message = json.loads(line.decode("utf-8"), parse_constant=lambda word: wrong.append("sent " + word))
        assert isinstance(message, dict) and message["jsonrpc"] == "2.0"
    except (ValueError, AssertionError, KeyError):
        wrong.append(f"sent no message: {line[:200]!r}")
        return {}
    if "method" not in message:
        answers[type(message["id"]), message["id"]] += 1
    return message


def request_of(line, strict=False):
    """The key of the answer that a line must get, if it is a request with a good id. Strict: and is well formed; to
    what is not, an agent answers with an error, while a client only logs it."""
    try:
        message = json.loads(line.decode("utf-8"))
        if type(message) is dict and type(message.get("id")) in (int, str) and "method" in message and not (
                strict and (message.get("jsonrpc") != "2.0" or type(message["method"]) is not str)):
            id = message["id"]  # a lone surrogate in it comes back as U+FFFD, as it does everywhere
            return type(id), id if type(id) is int else id.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    except (ValueError, UnicodeError, RecursionError):
        pass
    return None


def drawn(rng, source, version, methods, sessions, often=1.0):
    """A method, whether it is a request, and params of its type, `often` for one of the sessions."""
    method, (request, notification) = rng.choice(methods[version])
    params = source.params(version, request or notification)
    if isinstance(params, dict) and "sessionId" in params and (often == 1.0 or rng.random() < often):
        params = {**params, "sessionId": rng.choice(sessions)}
    return method, request, params


def agent_round(rng, source, methods):
    """One connection to our agent; returns what was wrong."""
    version, wrong, answers, sessions = rng.choice([1, 2]), [], collections.Counter(), ["s"]
    ours, theirs = socket.socketpair()
    serving = threading.Thread(target=Script().run, args=(theirs,), daemon=True)
    serving.start()
    done, probed, sending = threading.Event(), threading.Event(), threading.Lock()
    sent = collections.Counter()

    def send(*lines):
        data = b"".join(line + b"\n" for line in lines)
        for line in lines:
            if (key := request_of(line)) is not None:
                sent[key] += 1
        with sending:
            for piece in source.pieces(data) if rng.random() < 0.3 else [data]:
                ours.sendall(piece)

    def take(line):
        message = judged(line, answers, wrong)
        if message.get("id") == "probe" and "method" not in message:
            probed.set()
        if isinstance(message.get("result"), dict) and "sessionId" in message["result"]:
            sessions.append(message["result"]["sessionId"])
        if "error" in message and message["error"]["code"] == -32603:
            wrong.append(f"an internal error: {message}")
        if "method" in message and "id" in message and answering.random() < 0.9:  # its own request: any answer
            kind = {"session/request_permission": {"outcome": {"outcome": "selected", "optionId": "allow"}},
                    "elicitation/create": {"action": "accept", "content": {"name": "x"}}}.get(message["method"], {})
            answer = {"jsonrpc": "2.0", "id": message["id"], "result": kind}
            if answering.random() < 0.5:
                answer = {**answer, "result": answering.choice([None, [], {}, 1, {"outcome": {}}, {"action": "?"}])}
            try:
                with sending:
                    ours.sendall(json.dumps(answer).encode() + b"\n")
            except OSError:
                pass

    answering = random.Random(rng.random())
    reading = threading.Thread(target=read_all, args=(ours, take, done), daemon=True)
    reading.start()

    def message(method, params, **more):
        return json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more}).encode()

    hello = message("initialize", {"protocolVersion": version, "info": {"name": "f", "version": "0"},
                                   "capabilities": {"elicitation": {"form": {}}},
                                   "clientCapabilities": {"elicitation": {"form": {}}}}, id="hello")
    try:
        if rng.random() < 0.9:
            send(hello)
        for _ in range(rng.randrange(1, 30)):
            kind = rng.random()
            if kind < 0.15:
                send(source.junk())
                continue
            method, request, params = drawn(rng, source, version, methods, sessions, 0.8)
            if kind < 0.55:  # as in a conversation
                params = {"session/new": {"cwd": "/", "mcpServers": []}, "session/prompt": {
                    "sessionId": rng.choice(sessions), "prompt": [{"type": "text", "text": "hi"}]}}.get(method, params)
            whole = {"jsonrpc": "2.0", "method": method, "params": params}
            if request:
                whole["id"] = source.id()
            if kind > 0.8:
                whole = source.broken(whole)
            send(json.dumps(whole).encode())
        send(hello.replace(b'"hello"', b'"again"'), message("_probe", {}, id="probe"))
        if not probed.wait(SOON):
            wrong.append("the connection does not answer any more")
    except OSError as error:
        wrong.append(f"the agent ended the connection: {error}")
    ours.shutdown(socket.SHUT_WR)
    serving.join(SOON)
    if serving.is_alive():
        wrong.append("the agent goes on after the end of its input")
    theirs.close()
    if not done.wait(SOON):
        wrong.append("the output does not end")
    ours.close()
    for key in sent:
        if answers[key] != sent[key]:
            wrong.append(f"request {key[1]!r} has {answers[key]} answers, was sent {sent[key]} times")
    return wrong


def client_round(rng, source, methods):
    """One connection of our client to an agent that sends what it likes; returns what was wrong."""
    version, wrong, answers, sent = rng.choice([1, 2]), [], collections.Counter(), collections.Counter()
    ours, theirs = socket.socketpair()
    done = threading.Event()

    def send(*messages):
        data = b"".join(m + b"\n" if isinstance(m, bytes) else json.dumps(m).encode() + b"\n" for m in messages)
        for line in data.split(b"\n"):
            if (key := request_of(line, strict=True)) is not None:
                sent[key] += 1
        for piece in source.pieces(data) if rng.random() < 0.2 else [data]:
            ours.sendall(piece)

    def storm():
        for _ in range(rng.randrange(12)):
            kind = rng.random()
            if kind < 0.1:
                send(source.junk())
                continue
            method, request, params = drawn(rng, source, version, methods, ["s", "s", "t"])
            whole = {"jsonrpc": "2.0", "method": method, "params": params}
            if request:
                whole["id"] = source.id()
            send(source.broken(whole) if kind > 0.7 else whole)

    def take(line):
        message = judged(line, answers, wrong)
        method, id = message.get("method"), message.get("id")
        try:
            if method == "initialize":
                body = {"protocolVersion": version, "authMethods": []}
                body.update({"agentInfo": {"name": "f", "version": "0"}, "agentCapabilities": {"loadSession": True}}
                            if version == 1 else
                            {"info": {"name": "f", "version": "0"}, "capabilities": {"session": {}}})
                send({"jsonrpc": "2.0", "id": id, "result": body})
            elif method is not None and id is not None:
                if rng.random() < 0.8:
                    storm()
                result = {"session/new": {"sessionId": "s"}, "session/prompt": (
                    {"stopReason": "end_turn"} if version == 1 else {"messageId": "m"})}.get(method, {})
                answer = {"jsonrpc": "2.0", "id": id, "result": result}
                if rng.random() < 0.2:
                    answer = rng.choice([
                        source.broken(answer), {"jsonrpc": "2.0", "id": id, "error": source.anything(2)}])
                send(answer)
                if method == "session/prompt" and version == 2 and rng.random() < 0.9:
                    for state in ({"state": "running"}, {"state": "idle", "stopReason": "end_turn"}):
                        send({"jsonrpc": "2.0", "method": "session/update", "params": {
                            "sessionId": "s", "update": {"sessionUpdate": "state_update", **state}}})
                if rng.random() < 0.03:
                    ours.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    reading = threading.Thread(target=read_all, args=(ours, take, done), daemon=True)
    reading.start()

    class Files:
        def read_text_file(self, request): return acp.ReadTextFileResponse("text")
        def write_text_file(self, request): return acp.WriteTextFileResponse()

    class Terminals:
        def create(self, request): return acp.CreateTerminalResponse("t")
        def output(self, request): return acp.TerminalOutputResponse("out", False)
        def wait_for_exit(self, request): return acp.TerminalExitStatus(0)
        def kill(self, request): return acp.KillTerminalResponse()
        def release(self, request): return acp.ReleaseTerminalResponse()

    begun = time.monotonic()
    try:
        with acp.Client(theirs, version=version, permission=lambda request: rng.choice([True, False, None]),
                        elicitation=lambda request: {"x": 1}, extension=lambda method, params: {},
                        extension_notification=lambda method, params: None,
                        on_update=lambda session, update: repr(update), files=Files(), terminals=Terminals(),
                        start_timeout=SOON) as client:
            for _ in range(3):
                try:
                    session = client.new_session(cwd="/", timeout=0.3)
                    for _ in range(3):
                        turn = session.prompt("hi", timeout=0.3)
                        for update in turn:
                            repr(update)
                        session.state.snapshot()
                    session.cancel()
                    client.resume_session("s", "/", replay=True, timeout=0.3)
                except acp.Error:
                    pass
            if not client.connection.closed:
                probe = ("str", "probe")
                send({"jsonrpc": "2.0", "id": "probe", "method": "_probe", "params": {}})
                deadline = time.monotonic() + SOON
                while not answers[str, "probe"] and not client.connection.closed and time.monotonic() < deadline:
                    time.sleep(0.002)
                if not answers[str, "probe"] and not client.connection.closed:
                    wrong.append(f"the connection does not answer any more {probe}")
                wanted = collections.Counter(sent)
                while not client.connection.closed and time.monotonic() < deadline and any(
                        answers[key] < wanted[key] for key in wanted):
                    time.sleep(0.002)
                for key in wanted if not client.connection.closed else ():
                    if answers[key] != wanted[key]:
                        wrong.append(f"request {key[1]!r} has {answers[key]} answers, was sent {wanted[key]} times")
    except acp.Error as error:
        if "initialize" in str(error):
            wrong.append(f"no client came of it: {error}")
    except OSError:
        pass
    except Exception:
        wrong.append("raised what is none of its errors:\n" + traceback.format_exc())
    if time.monotonic() - begun > SOON:
        wrong.append(f"the calls took {time.monotonic() - begun:.1f} s")
    for end in (theirs, ours):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
    if not done.wait(SOON):
        wrong.append("the output does not end")
    ours.close()
    theirs.close()
    for key in sent:
        if answers[key] > sent[key]:
            wrong.append(f"request {key[1]!r} has {answers[key]} answers")
    return wrong


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30
    seed = sys.argv[2] if len(sys.argv) > 2 else "0"
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    folder, faults = installs.schemas(), Faults()
    logging.getLogger("acp").addHandler(faults)
    logging.getLogger("acp").propagate = False
    schemas, methods = {}, {"agent": {1: [], 2: []}, "client": {1: [], 2: []}}
    for version in (1, 2):
        schema = values.Schema(folder, version)
        for (side, method), roles in schema.methods().items():
            name = roles.get("Request") or roles["Notification"]
            schemas[version, name] = [case["value"] for case in values.cases(schema, name, 30, seed)]
            for each in ("agent", "client") if side == "protocol" else (side,):
                methods[each][version].append((method, (roles.get("Request"), roles.get("Notification"))))
    end, rounds, failed, before, third = time.monotonic() + seconds, 0, 0, threading.active_count(), None
    while time.monotonic() < end:
        number = first + rounds
        rng = random.Random(f"{seed} {number}")
        source, role = Source(schemas, rng), "agent" if number % 2 == 0 else "client"
        wrong = (agent_round if role == "agent" else client_round)(rng, source, methods[role])
        deadline = time.monotonic() + SOON
        while threading.active_count() > before and time.monotonic() < deadline:
            time.sleep(0.002)
        if threading.active_count() > before:
            wrong.append("threads are left: " + ", ".join(each.name for each in threading.enumerate()))
            before = threading.active_count()
        wrong += faults.taken()
        rounds += 1
        if wrong:
            failed += 1
            print(f"FAILED round {number} ({role}, seed {seed}): " + "\n    ".join(wrong)[:3000], flush=True)
        if third is None and time.monotonic() > end - seconds * 2 / 3:
            third = resident()
    grown = resident() - (third or resident())
    if grown > GROWTH:
        failed += 1
        print(f"FAILED: grew by {grown >> 20} MiB")
    print(f"{rounds} rounds, {failed} failed, grew by {grown >> 20} MiB (seed {seed})")
    return 1 if failed or not rounds else 0


if __name__ == "__main__":
    sys.exit(main())

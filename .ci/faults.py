#!/usr/bin/env python3
"""Breaks running conversations, again and again: python3 .ci/faults.py [--markdown] [TIMES] [SEED] [NAME...]

Three sessions of one agent stream, ask, write files and run commands; at a random point (a number of messages, or of
milliseconds) one fault of the table `FAULTS` happens. What must hold then: each blocked call has returned, with the
error that is right and in its time; of the agent's process group nothing is left, and of what it started only what is
said in `OUTLIVES`; no thread and no file descriptor is left; each file is whole, the old one or the new one, with no
temporary file beside it; and a new agent can be started and answers a prompt: the one that the next round breaks.
Exit status 1 when something did not. `--markdown` prints the table for the README. Needs Linux: it reads /proc.

A failure prints how to repeat it: NAME@NUMBER is that round alone, as far as timing lets it be the same.
"""
import collections
import concurrent.futures
import faulthandler
import json
import logging
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import talk
import talker
from talk import SOON, acp, until

# Seconds in which something has to be over, each from what acp.py promises; SLACK is for a busy machine.
SLACK = 8.0
# An agent, after the end of its input or a signal: its turns end, then are given up, then the last bytes go out.
AGENT_ENDS = acp.GRACE_FINISHING + acp.GRACE_CANCELLING + 0.5
# A blocked call, once the connection is over: the process's exit is awaited (0.5) and its last words (0.2), at the
# latest 1 s after its death though a child holds its stdout; a callback that hangs is waited for 1 s.
CALL_ENDS = 0.5 + 0.2 + 1.0 + 1.0
# Client.close: what is unsent (1), the writer's and the reader's thread (0.5 each), the end of the agent by itself (2),
# SIGTERM (1), the members of its group (0.3), SIGKILL, the last of stderr (0.5); commands of its own at the same rate.
CLOSE_ENDS = 1.0 + 0.5 + 0.5 + 2.0 + 1.0 + 0.3 + 0.5 + 1.3
WORKERS = 8  # rounds at once: most of a round is waiting
OWN = [sys.executable, "-E", "-X", "pycache_prefix=" + talk.COMPILED, os.path.abspath(__file__)]
BOUND = 64 << 20  # bytes that a process may grow while its peer does not read
SIZES = {"a": 1000, "b": 150000, "c": 400000}  # a file is one letter, so many times
# What the end of a process cannot end: a process that is killed cannot end what it has started. An agent's own commands
# and those of LocalTerminals have process groups of their own, so that they can be ended apart from it.
OUTLIVES = {"agent killed", "half a line, then death", "agent stopped", "agent does not read", "client killed",
            "client stopped", "client SIGTERM"}


class Round:
    """One fault in one conversation."""

    def __init__(self, rng, name, mark):
        self.rng, self.name, self.mark = rng, name, mark
        self.wrong, self.saw = [], collections.Counter()
        self.folder = tempfile.mkdtemp(prefix="acp-faults-")
        with open(os.path.join(self.folder, "read.txt"), "w", encoding="ascii") as file:
            file.write("x" * 1000)
        self.count, self.reached = 0, threading.Event()
        self.point = rng.randrange(1, 200)  # of messages; or it is a time
        self.raising = ("", "")  # a callback of the client, and what it raises
        self.stderr = []
        self.client, self.process, self.talks, self.waiters = None, None, [], []
        self.longest = 20.0  # seconds that a command runs

    # ---- the conversation ----
    def step(self, rng, folder):
        """A step of a conversation that is to be broken."""
        kind = rng.choice(["say", "say", "think", "wait", "tool", "permit", "elicit", "read", "write", "write", "run"])
        if kind == "write" and self.client.version == 1:  # version 2 agents write for themselves
            letter = rng.choice(list(SIZES))
            return ["write", os.path.join(folder, f"{rng.randrange(5)}.txt"), letter, SIZES[letter]]
        return {"wait": ["wait", rng.random() / 20], "read": ["read", os.path.join(folder, "read.txt")],
                "run": ["run", rng.choice([0.01, 0.1, self.longest])], "think": ["think", rng.choice([1, 30000])],
                "write": ["say"]}.get(kind, [kind])

    def open(self, target=None, **options):
        """Start an agent, with one prompt that goes through."""
        def counted(way, message):
            self.count += 1
            if self.count == self.point:
                self.reached.set()
            self.fails("on_message")

        def called(name):
            def callback(*given):
                self.fails(name)
                return getattr(talk.Talk, name)(*given)
            return callback

        round_ = self

        class Files(acp.LocalFiles):
            def read_text_file(self, params):
                round_.fails("files")
                return super().read_text_file(params)

        def stderr(line):
            self.stderr.append(line)
            self.fails("on_stderr")

        begun = time.monotonic()
        self.client = acp.Client(
            target or talk.TALKER, version=self.rng.choice([1, 2]), env={"ACP_FAULTS": self.mark}, on_message=counted,
            files=Files(self.folder), terminals=self.rng.choice([None, acp.LocalTerminals()]), on_stderr=stderr,
            extension=lambda method, params: self.fails("extension"), start_timeout=3 * SOON,
            **{name: called(name) for name in talk.Talk.callbacks()}, **options)
        try:
            self.process = self.client._process
            self.answers(self.client.new_session(cwd=self.folder, timeout=SOON), "a new agent")
            if time.monotonic() - begun > SOON:
                self.wrong.append(f"a new agent took {time.monotonic() - begun:.1f} s")
        except BaseException:
            self.client.close()
            raise

    def answers(self, session, what):
        """One more prompt goes through."""
        if session.ask(json.dumps({"turn": 0, "steps": [["say"]]}), timeout=SOON) != f"{session.id} 0 0 say;":
            self.wrong.append(f"{what} does not answer")

    def fails(self, name):
        if name == self.raising[0]:
            talker.fail(self.raising[1])

    def converse(self, sessions=3, waits=True, longest=20.0, limit=SOON):
        """Begin, and return at a random point."""
        self.longest = longest
        self.count, tally = 0, talk.Tally()
        self.talks = [talk.Talk(self.client, random.Random(self.rng.random()), self.folder, tally, self.step, 0.7)
                      for _ in range(sessions)]
        for each in self.talks:
            each.limit, each.ending = limit, limit < SOON
            each.start()
        if waits:
            self.waiters = [Waiter(lambda: self.client.request("_sleep", {"seconds": 100}))]
        if self.rng.random() < 0.5:
            self.reached.wait(2.0)
        else:
            time.sleep(self.rng.random() * 0.4)

    def ended(self, limit=CALL_ENDS, *others):
        """All blocked calls return in this time, with ConnectionClosed or one of the others."""
        begun = time.monotonic()
        for each in [*self.talks, *self.waiters]:
            each.join(max(0.0, begun + limit + SLACK - time.monotonic()))
            if each.is_alive():
                self.wrong.append(f"a call still blocks after {limit + SLACK} s, expected within {limit}")
            elif isinstance(each.error, (acp.ConnectionClosed, *others)):
                self.saw[type(each.error).__name__] += 1
            elif each.error is not None:
                self.wrong.append(f"a call ended with {each.error!r}")
            self.wrong += each.wrong

    def expect(self, seconds, what, function):
        """Call it; it has to be over in this time."""
        begun = time.monotonic()
        function()
        if (took := time.monotonic() - begun) > seconds + SLACK:
            self.wrong.append(f"{what} took {took:.1f} s, expected {seconds} at most")

    def gone(self, pid, seconds=AGENT_ENDS, status=None):
        """The process ends in this time (one of ours: with this exit status), and its group with it."""
        if not until(lambda: not os.path.exists(f"/proc/{pid}") or dead(pid), seconds + SLACK):
            self.wrong.append(f"the agent is still there after {seconds + SLACK} s")
        if status is not None and self.process is not None:
            until(lambda: self.process.popen.returncode is not None, SLACK)
            if self.process.popen.returncode not in status:
                self.wrong.append(f"the agent ended with {self.process.popen.returncode}, expected {status}")

    def close(self):
        """Close the client, in its time."""
        if self.client is None:  # it did not even start
            return
        self.expect(CLOSE_ENDS, "close", self.client.close)
        if self.process is not None and (left := talk.members(self.process.popen.pid)):
            self.wrong.append(f"of the agent's process group are left: {left}")

    def settle(self):
        """The conversation goes on and all of it is right: let it come to an end, and close the client."""
        for each in self.talks:
            each.stopping.set()
        for each in self.talks:
            each.join(2 * SOON)
            if each.is_alive():
                self.wrong.append("a session does not come to its end")
            if each.error is not None:
                self.wrong.append(f"a session ended with {each.error!r}")
            self.wrong += each.wrong
        self.saw["went on"] += 1

    def judge(self, before):
        """When all is over, nothing is left."""
        for each in self.talks:  # those that still prompt after their client was closed
            each.join(SLACK)
        if not until(lambda: talk.threads() == before[1], SLACK):
            self.wrong.append(f"threads are left: {talk.threads()}")
        if not until(lambda: talk.descriptors() == before[0], SLACK):
            self.wrong.append(f"file descriptors: {before[0]} before, {talk.descriptors()} after")
        until(lambda: not talk.marked(self.mark), 0 if self.name in OUTLIVES else SLACK)
        if left := talk.marked(self.mark):
            if self.name not in OUTLIVES or any(command(pid)[0] != "sleep" for pid in left):
                self.wrong.append(
                    f"processes are left: {[command(pid) for pid in left]}; version {self.client.version}, terminals "
                    f"{self.client._local['terminal']}; in {[each.plans[each.number].steps for each in self.talks]}\n"
                    + "\n".join(self.stderr[-60:]))
            self.saw["commands outlived it"] += 1
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        for name in os.listdir(self.folder):
            with open(os.path.join(self.folder, name), encoding="ascii") as file:
                text = file.read()
            if name.startswith(".acp"):
                if self.name in ("client killed", "client stopped", "client SIGTERM"):
                    self.saw["temporary file left"] += 1  # a process that is killed cannot take it away
                else:
                    self.wrong.append(f"a temporary file is left: {name}")
            elif text != text[:1] * {"x": 1000, **SIZES}.get(text[:1], 0):
                self.wrong.append(f"a file is torn: {name}, {len(text)} bytes")
        shutil.rmtree(self.folder, ignore_errors=True)


class Waiter(threading.Thread):
    """A call that blocks until something ends it."""

    def __init__(self, function):
        super().__init__(daemon=True)
        self.function, self.error, self.wrong = function, None, []
        self.start()

    def run(self):
        try:
            self.function()
        except BaseException as error:
            self.error = error


def dead(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def command(pid):
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
            return [os.path.basename(word) for word in file.read().split("\0")[:-1]] or [""]
    except OSError:
        return ["sleep"]  # it has ended meanwhile


# ---- of the agent ---------------------------------------------------------------------------------------------------
def signalled(number, statuses, *others):
    def fault(round):
        round.converse()
        for each in round.talks:
            each.ending = True
        os.kill(round.process.popen.pid, number)
        round.ended((0 if number == signal.SIGKILL else AGENT_ENDS) + CALL_ENDS, *others)
        round.gone(round.process.popen.pid, AGENT_ENDS, statuses)
        round.close()
    return fault


def told(what, status):
    """The agent breaks by itself."""
    def fault(round):
        round.converse()
        for each in round.talks:
            each.ending = True
        try:
            round.client.notify("_fault", {"what": what})
        except acp.ConnectionClosed as error:
            round.wrong.append(f"ended before its time: {error}")
        round.ended(AGENT_ENDS + CALL_ENDS, acp.RequestError)
        round.close()  # without an output it goes on until then, unless it has something to say
        round.gone(round.process.popen.pid, 0, status)
    return fault


def full_stdout(round):
    if round.rng.random() < 0.7:
        return told("full", [0])(round)
    round.close()  # from the beginning
    with open("/dev/full", "wb") as full:
        made = subprocess.Popen(talk.TALKER, stdin=subprocess.PIPE, stdout=full, stderr=subprocess.DEVNULL,
                                env={**os.environ, "ACP_FAULTS": round.mark})
    made.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}\n')
    made.stdin.flush()
    try:
        if made.wait(AGENT_ENDS + SLACK) != 0:
            round.wrong.append(f"exit status {made.returncode}")
        round.saw["exit status 0"] += 1
    except subprocess.TimeoutExpired:
        round.wrong.append("the agent goes on without an output")
        made.kill()
    made.stdin.close()
    made.wait()


def stdin_closed(round):
    """Behind the client's back: what it writes from now on goes nowhere, or fails."""
    round.converse()
    for each in round.talks:
        each.ending = True
    number = round.process.popen.stdin.fileno()
    pipe = os.dup(number)
    kind = round.rng.choice(["nowhere", "nobody reads", "full"])
    if kind == "nobody reads":
        reading, other = os.pipe()
        os.close(reading)
    else:
        other = os.open({"nowhere": os.devnull, "full": "/dev/full"}[kind], os.O_WRONLY)
    os.dup2(other, number, inheritable=False)
    if round.rng.random() < 0.5:  # behind the client's last line: before, it would spoil the next
        os.write(pipe, b'{"jsonrpc":"2.0","method":"session/canc')  # half a line, then the end
    os.close(pipe)
    os.close(other)
    round.ended(AGENT_ENDS + CALL_ENDS, acp.RequestError)
    round.gone(round.process.popen.pid, AGENT_ENDS, [0])
    round.close()


def not_reading(how):
    """The agent takes nothing: timeouts hold, nothing grows without bound, close works in its time."""
    def fault(round):
        round.converse(2, waits=False, longest=1.0, limit=2.0)
        before = talk.resident()
        if how == "stop":
            os.kill(round.process.popen.pid, signal.SIGSTOP)
        else:
            round.client.notify("_fault", {"what": "deaf"})

        def flood():
            while True:
                round.client.request("_sleep", {"seconds": 0, "more": "x" * (1 << 20)}, timeout=0.3)

        def call():
            while True:
                round.client.request("_sleep", {"seconds": 0}, timeout=0.5)

        def make():
            while True:
                round.client.new_session(cwd=round.folder, timeout=0.5)

        round.waiters = [Waiter(each) for each in (flood, call, make)]
        round.ended(2 * 2.0, acp.Timeout)  # the limit of a turn, and of the wait for its end
        if (grown := talk.resident() - before) > BOUND:
            round.wrong.append(f"the client grew by {grown >> 20} MiB")
        if how == "stop" and round.rng.random() < 0.5:
            os.kill(round.process.popen.pid, signal.SIGCONT)
            round.answers(round.client.new_session(cwd=round.folder, timeout=SOON), "what was stopped")
            round.saw["went on"] += 1
        round.close()
    return fault


def client_not_reading(round):
    """The agent's output is not taken: it grows no more than by what may be unsent, and ends in its time."""
    round.close()
    process = subprocess.Popen(talk.TALKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               bufsize=0, start_new_session=True, env={**os.environ, "ACP_FAULTS": round.mark})
    open_, point = threading.Event(), round.rng.randrange(1 << 20)
    open_.set()

    class Reader:
        taken = 0

        def read(self, size):
            if self.reading and self.taken > point:
                open_.clear()
            open_.wait()
            data = os.read(process.stdout.fileno(), size)
            self.taken += len(data)
            return data
        reading = False

    reader = Reader()
    round.open((reader, process.stdin))
    before, reader.taken, reader.reading = talk.resident(process.pid), 0, True
    session = round.client.new_session(cwd=round.folder, timeout=SOON)
    steps = [["think", 100000]] * 1000

    def asking():
        session.ask(json.dumps({"turn": 1, "steps": steps}), timeout=1.0)

    round.waiters = [Waiter(asking)]
    round.ended(1.0, acp.Timeout)
    if (grown := talk.resident(process.pid) - before) > BOUND:
        round.wrong.append(f"the agent grew by {grown >> 20} MiB")
    round.client.connection.close("not taken", 0.1)
    if round.rng.random() < 0.5:
        process.stdin.close()
    else:
        process.send_signal(signal.SIGTERM)
    round.gone(process.pid)
    reader.reading = False
    open_.set()
    process.wait()
    if process.returncode not in (0, -signal.SIGTERM):
        round.wrong.append(f"exit status {process.returncode}")
    round.close()
    until(lambda: "acp reader" not in talk.threads(), SLACK)
    process.stdout.close()
    process.stdin.close()


def junk_from_agent(round):
    round.converse(waits=False, longest=0.2)
    round.client.notify("_fault", {"what": "junk", "seed": round.rng.random(), "count": round.rng.randrange(30)})
    time.sleep(round.rng.random() * 0.3)
    round.settle()
    round.close()


def junk_from_client(round):
    round.converse(waits=False, longest=0.2)
    for _ in range(round.rng.randrange(30)):
        round.client.connection.append(talker.junk(round.rng) + b"\n", {})
        time.sleep(round.rng.random() / 100)
    round.settle()
    round.close()


def handler_raises(round):
    """In any hook, whatever it is: one answer, and all else goes on."""
    round.converse(2, waits=False, longest=0.2)
    name, place = round.rng.choice(list(talker.RAISES)), round.rng.choice(
        ["prompt", "new_session", "extension", "extension_notification"])
    session = round.client.new_session(cwd=round.folder, timeout=SOON)
    for _ in range(round.rng.randrange(1, 4)):
        try:
            if place == "prompt":
                session.ask(json.dumps({"turn": 1, "steps": [["say"], ["raise", name]]}), timeout=SOON)
            elif place == "new_session":
                round.client.new_session(cwd=round.folder, meta={"raise": name}, timeout=SOON)
            elif place == "extension":
                round.client.request("_raise", {"raise": name}, timeout=SOON)
            else:
                round.client.notify("_raise", {"raise": name})
                continue
            round.wrong.append(f"{name} in {place} went unseen")
        except acp.RequestError as error:
            round.saw[type(error).__name__] += 1
            if error.code not in (-32603, -1):
                round.wrong.append(f"{name} in {place}: {error!r}")
        except acp.Error as error:
            round.wrong.append(f"{name} in {place}: {error!r}")
    round.answers(session, f"after {name} in {place} the session")
    round.settle()
    round.close()


def callback_raises(round):
    """A callback of the client: it harms nothing but what it was asked. What is no Exception ends the wait, too."""
    name, place = round.rng.choice([each for each in talker.RAISES if "RequestError" not in each]), round.rng.choice(
        ["permission", "elicitation", "on_update", "on_message", "on_stderr", "extension", "files"])
    steps = {"permission": [["permit"]], "elicitation": [["elicit"]], "on_stderr": [["stderr"]],
             "extension": [["call"]], "files": [["read", os.path.join(round.folder, "read.txt")]]
             }.get(place, [["say"], ["tool"]])
    session = round.client.new_session(cwd=round.folder, timeout=SOON)
    session.talk = owner = talk.Talk(round.client, round.rng, round.folder, talk.Tally())
    plan = owner.planned(steps)
    plan.answers = {f"1 {number}": True if place == "permission" else {"count": 1} for number in range(len(steps))}
    expected = {"permission": "selected/reject", "elicitation": "decline/None", "extension": "-32603",
                "files": "-32603"}
    round.raising = (place, name)
    plan.turn = turn = session.prompt(plan.text(), timeout=SOON)
    ends = name in ("SystemExit", "KeyboardInterrupt", "GeneratorExit", "Odd")  # what is no Exception
    try:
        turn.wait()
        if turn.stop_reason != "end_turn" and place not in ("permission", "elicitation"):
            round.wrong.append(f"{name} in {place}: the turn ended with {turn.stop_reason}")
        if place == "files" and round.client.version == 2:
            expected = {}
        if turn.stop_reason == "end_turn" and expected.get(place, "") not in turn.text:
            round.wrong.append(f"{name} in {place}: {turn.text}")
        if ends and turn.stop_reason == "end_turn" and place in ("permission", "elicitation"):
            round.wrong.append(f"{name} in {place} went unseen")
        round.saw["refused" if place in expected else "nothing"] += 1
    except acp.Error as error:
        round.wrong.append(f"{name} in {place}: {error!r}")
    except BaseException as error:
        if type(error).__name__ != name or place not in ("permission", "elicitation") or not ends:
            round.wrong.append(f"{name} in {place}: {error!r}")
        round.saw["itself"] += 1
        if not until(lambda: turn.ended, SLACK) or turn.stop_reason != "cancelled":
            round.wrong.append(f"{name} in {place}: the turn ended with {turn.stop_reason}")
    round.raising = ("", "")
    round.answers(session, f"after {name} in {place} the session")
    round.close()


def file_full(round):
    """RLIMIT_FSIZE: the write is refused, and the old file is there as it was."""
    while round.client.version != 1:
        round.close()
        round.open()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    seen = collections.Counter()

    def writes(number):
        session, rng = round.client.new_session(cwd=round.folder, timeout=SOON), random.Random(number)
        for turn in range(8):
            letter = rng.choice(list(SIZES))
            step = ["write", os.path.join(round.folder, f"{rng.randrange(3)}.txt"), letter, SIZES[letter]]
            said = session.ask(json.dumps({"turn": turn, "steps": [step]}), timeout=SOON).split()[-1]
            seen[said] += 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        if session.ask(json.dumps({"turn": 9, "steps": [step]}), timeout=SOON).split()[-1] != "write;":
            round.wrong.append("with room again, the write does not go through")

    try:
        waiters = [Waiter(lambda number=number: writes(number)) for number in range(2)]
        time.sleep(round.rng.random() / 20)
        resource.setrlimit(resource.RLIMIT_FSIZE, (round.rng.randrange(SIZES["b"]), hard))
        for each in waiters:
            each.join(2 * SOON)
            if each.is_alive() or each.error is not None:
                round.wrong.append(f"a write ended with {each.error!r}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    if wrong := set(seen) - {"write;", "params.path:_File_too_large;"}:
        round.wrong.append(f"a write was answered with {wrong}")
    round.saw["InvalidParams"] += seen["params.path:_File_too_large;"]
    round.close()


# ---- of the client --------------------------------------------------------------------------------------------------
def interrupted(round):
    """Ctrl-C in the main thread while it waits in a call: KeyboardInterrupt, and all can go on."""
    client, rng = round.client, round.rng
    session = client.new_session(cwd=round.folder, timeout=SOON)
    long = json.dumps({"turn": 1, "steps": [["say"], ["wait", 100]]})
    kinds = {
        "ask": lambda: session.ask(long), "stream": lambda: list(session.stream(long)),
        "iterate": lambda: list(session.prompt(long)), "wait": lambda: session.prompt(long).wait(),
        "request": lambda: client.request("_sleep", {"seconds": 5}),
        "new_session": lambda: client.new_session(cwd=round.folder, meta={"sleep": 5}),
        "resume_session": lambda: client.resume_session(session.id, round.folder, meta={"sleep": 5}),
        "set_config_option": lambda: session.set_config_option("on", True),
        "close_session": session.close,
        "list_sessions": lambda: list(client.list_sessions("/slow")),
        "start": lambda: acp.Client(["sleep", "100"], env={"ACP_FAULTS": round.mark}),
        "full": lambda: [client.notify("_junk", {"more": "x" * (1 << 19)}) for _ in range(50)],  # waits for room
        "close": client.close,
    }
    kind = rng.choice(list(kinds))
    round.saw[kind] += 1
    if kind in ("set_config_option", "close_session"):
        client.request("_slow", {"seconds": 5}, timeout=SOON)
    if kind in ("full", "close"):
        os.kill(round.process.popen.pid, signal.SIGSTOP)
    main, came, delay = threading.main_thread().ident, [], rng.random() / 5

    def blocked():
        frame = sys._current_frames()[main]
        while frame is not None:
            if frame.f_code.co_name in ("wait", "join") and "threading" in frame.f_code.co_filename:
                return True
            frame = frame.f_back
        return False

    def interrupt():
        until(blocked, SLACK)
        time.sleep(delay)
        came.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=interrupt, daemon=True)
    try:
        sender.start()
        kinds[kind]()
        sender.join()
        time.sleep(1)
        round.wrong.append(f"the interrupt of {kind} went unseen")
    except KeyboardInterrupt:
        if not came or time.monotonic() - came[0] > 0.3 + SLACK:
            round.wrong.append(f"the interrupt of {kind} took {time.monotonic() - (came or [0])[0]:.1f} s")
    except acp.Error as error:
        round.wrong.append(f"the interrupt of {kind} became {error!r}")
    sender.join()
    if kind == "full":
        os.kill(round.process.popen.pid, signal.SIGCONT)
    if kind != "close":
        if not until(lambda: all(course.ended for course in session._courses), SOON):
            round.wrong.append(f"the interrupt of {kind} left a turn running")
        if kind != "close_session":
            round.answers(session, f"after the interrupt of {kind} the session")
    round.close()


def client_process():
    """What runs as the client that is killed: talks until then."""
    mark, folder, seed = sys.argv[2:5]
    round = Round(random.Random(seed), "", mark)
    shutil.rmtree(round.folder)
    round.folder = folder
    try:
        round.open()
        with round.client:
            print(round.client._process.popen.pid, flush=True)
            round.converse(waits=False)
            while True:
                time.sleep(1)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def client_ends(*numbers):
    def fault(round):
        round.close()
        script = subprocess.Popen(
            [*OWN, "--client", round.mark, round.folder, str(round.rng.random())], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "ACP_FAULTS": round.mark})
        try:
            agent = int(script.stdout.readline())
            time.sleep(round.rng.random() * 0.4)
            if signal.SIGSTOP in numbers:
                before = talk.resident(agent)
            for number in numbers:
                script.send_signal(number)
                if number == signal.SIGSTOP:
                    time.sleep(0.3 + round.rng.random() / 2)
                    if (grown := talk.resident(agent) - before) > BOUND:
                        round.wrong.append(f"the agent grew by {grown >> 20} MiB")
                elif number == signal.SIGCONT:
                    time.sleep(0.5)
            begun = time.monotonic()
            script.wait(CLOSE_ENDS + SLACK)
            round.gone(agent, AGENT_ENDS + (CLOSE_ENDS if numbers[-1] == signal.SIGINT else 0))
            round.saw[f"agent gone after {time.monotonic() - begun:.0f} s"] += 1
            until(lambda: not talk.members(agent), SLACK)
            if left := talk.members(agent):
                round.wrong.append(f"of the agent's process group are left: {left}")
            if script.returncode != -numbers[-1]:
                round.wrong.append(f"the client ended with {script.returncode}")
        except subprocess.TimeoutExpired:
            round.wrong.append("the client does not end")
        finally:
            script.kill()
            wrote = script.communicate()[1].decode("utf-8", "replace")
        if "Traceback" in wrote:
            round.wrong.append("the client wrote: " + wrote[-2000:])
    return fault


FAULTS = {
    "agent killed": signalled(signal.SIGKILL, [-9]),
    "agent SIGTERM": signalled(signal.SIGTERM, [-15], acp.RequestError),
    "agent SIGINT": signalled(signal.SIGINT, [-2], acp.RequestError),
    "stdin closed": stdin_closed,
    "stdout closed": told("close stdout", [0]),
    "half a line, then death": told("half", [-9]),
    "agent stopped": not_reading("stop"),
    "agent does not read": not_reading("deaf"),
    "client does not read": client_not_reading,
    "garbage from the agent": junk_from_agent,
    "garbage from the client": junk_from_client,
    "disk full: agent's stdout": full_stdout,
    "disk full: file written": file_full,
    "handler raises": handler_raises,
    "callback raises": callback_raises,
    "Ctrl-C in a call": interrupted,
    "client killed": client_ends(signal.SIGKILL),
    "client SIGTERM": client_ends(signal.SIGTERM),
    "client SIGINT": client_ends(signal.SIGINT),
    "client stopped": client_ends(signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL),
}
QUIET = {"handler raises", "callback raises", "Ctrl-C in a call"}  # what these log is what they are about


def rounds(name, numbers, seed):
    """Some rounds of one fault in this process; prints what came of each as a line of JSON."""
    logged = talk.Faults()
    logging.getLogger("acp").addHandler(logged)
    logging.getLogger("acp").propagate = False
    before = talk.descriptors(), talk.threads()
    for number in numbers:
        faulthandler.dump_traceback_later(6 * SOON, exit=True)
        mark = f"{name}-{os.getpid()}-{number}-{time.monotonic_ns()}".replace(" ", "-")
        round = Round(random.Random(f"{seed} {name} {number}"), name, mark)
        try:
            round.open()
            FAULTS[name](round)
        except Exception:
            round.wrong.append("the round itself failed:\n" + traceback.format_exc())
            round.close()
        except KeyboardInterrupt:
            if round.client is not None:
                round.client.close()
            shutil.rmtree(round.folder, ignore_errors=True)
            sys.exit(130)
        round.judge(before)
        found = logged.taken()
        if name not in QUIET:
            round.wrong += found
        print(json.dumps([number, round.wrong, round.saw]), flush=True)
    faulthandler.cancel_dump_traceback_later()


RUNNING = set()  # the processes below


def run(name, numbers, seed):
    """The same in a process of its own."""
    made = subprocess.Popen([*OWN, "--rounds", name, json.dumps(numbers), seed],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    RUNNING.add(made)
    output, errors = made.communicate()
    RUNNING.discard(made)
    done = [json.loads(line) for line in output.splitlines()]
    if made.returncode or len(done) < len(numbers):
        done.append([numbers[len(done)] if len(done) < len(numbers) else numbers[-1],
                     [f"the process of the rounds ended with {made.returncode}:\n{errors[-6000:]}"], {}])
    return name, done


def main(words):
    markdown = "--markdown" in words
    words = [word for word in words if word != "--markdown"]
    times, seed = int(words[0]) if words else 20, words[1] if len(words) > 1 else "0"
    chosen = {}
    for word in words[2:] or FAULTS:
        name, _, number = word.partition("@")
        chosen[name] = [int(number)] if number else list(range(times))
    size = 10
    jobs = [(name, numbers[first:first + size]) for first in range(0, times, size) for name, numbers in chosen.items()
            if numbers[first:first + size]]
    count, lost, saw = collections.Counter(), collections.Counter(), collections.defaultdict(collections.Counter)
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        futures = [pool.submit(run, *job, seed) for job in jobs]
        try:
            for future in concurrent.futures.as_completed(futures):
                name, done = future.result()
                for number, wrong, seen in done:
                    count[name] += 1
                    saw[name].update(seen)
                    if wrong:
                        lost[name] += 1
                        print(f"FAILED {name} {number} (repeat: faults.py 1 {seed} '{name}@{number}'):\n    "
                              + "\n".join(wrong)[:4000].replace("\n", "\n    "), flush=True)
        except KeyboardInterrupt:  # their clients end their agents
            for future in futures:
                future.cancel()
            for each in list(RUNNING):
                each.send_signal(signal.SIGINT)
            raise
    line = "| {} | {} | {} | {} |" if markdown else "{:28} {:>6} {:>5}  {}"
    print(line.format("fault", "times", "lost", "what was seen, how often"))
    if markdown:
        print("| --- | --- | --- | --- |")
    for name in chosen:
        seen = ", ".join(f"{what} {number}" for what, number in sorted(saw[name].items()))
        print(line.format(name, count[name], lost[name], seen))
    print(f"faults: {sum(count.values())} rounds of {len(chosen)} faults in {time.monotonic() - begun:.0f} s, "
          f"{sum(lost.values())} failed (seed {seed})")
    return 1 if lost or not count else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        client_process()
    elif sys.argv[1:2] == ["--rounds"]:
        rounds(sys.argv[2], json.loads(sys.argv[3]), sys.argv[4])
    else:
        try:
            sys.exit(main(sys.argv[1:]))
        except KeyboardInterrupt:
            sys.exit(130)

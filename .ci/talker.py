#!/usr/bin/env python3
"""The agent that load.py and faults.py talk to, over its standard streams.

A prompt is JSON: the number of the turn, and the steps to take. After each step it says `SESSION TURN STEP RESULT;`, so
that whoever sent the prompt knows every word of the answer beforehand. Extensions break it on purpose. Needs Linux.
"""
import json
import os
import random
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import acp  # noqa: E402


class Odd(BaseException):
    """Nobody's error."""


class Mute(Exception):
    """One that cannot even be printed."""

    def __str__(self):
        raise SystemExit("no words")


def deeper():
    return deeper() + 1


RAISES = {  # what a handler may raise, by name; each is a function that does it
    "ValueError": lambda: int("x"), "MemoryError": lambda: bytearray(1 << 62), "RecursionError": deeper,
    **{made.__name__: made for made in (SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, Odd, Mute)},
    "MuteRequestError": lambda: acp.RequestError(-1, Mute()),  # a message that cannot be told
    "LostRequestError": lambda: acp.RequestError(-1, "x", {"data": object()}),  # data that is not JSON
}


def fail(name):
    """Raise what has this name."""
    made = RAISES[name]()
    if isinstance(made, BaseException):
        raise made


def junk(rng):
    """A line that is no message of a conversation."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.getrandbits(8 * 200).to_bytes(200, "big").replace(b"\n", b"?")
    if kind == 1:
        return b'{"jsonrpc": "2.0", "method": "session/upd'
    if kind == 2:
        return b"x" * rng.randrange(3 << 20)
    if kind == 3:
        return b"[" * rng.randrange(100000)
    if kind == 4:
        return json.dumps({"jsonrpc": "2.0", "id": rng.choice([None, -1, 1.5, "x", True]),
                           "result": rng.choice([None, {}, 1])}).encode()
    other = {"jsonrpc": "2.0", "method": "_junk"}
    return json.dumps(rng.choice([1, None, [], {}, [{}], {"method": 1}, other])).encode()


class Talker(acp.Agent):
    name = "talker"
    versions = (1, 2)
    slow = 0  # seconds that some hooks take

    def new_session(self, session):
        session.config_options = [acp.SessionConfigBoolean("on", "On", False)]
        time.sleep((session.meta or {}).get("sleep", 0))
        fail_if(session.meta)

    def resume_session(self, session, replay):
        time.sleep((session.meta or {}).get("sleep", 0))

    def list_sessions(self, cwd):
        time.sleep(5 if cwd == "/slow" else 0)
        return []

    def set_config_option(self, session, config_id, value):
        time.sleep(self.slow)

    def close_session(self, session):
        time.sleep(self.slow)

    def prompt(self, turn):
        plan = json.loads(turn.text)
        for number, (kind, *given) in enumerate(plan["steps"]):
            result = getattr(self, "step_" + kind)(turn, f"{plan['turn']} {number}", *given)
            turn.say(f"{turn.session.id} {plan['turn']} {number} {result or kind};")

    def step_say(self, turn, title):
        pass

    def step_think(self, turn, title, size=1):
        turn.think("x" * size)

    def step_wait(self, turn, title, seconds):
        if turn.wait(seconds):
            turn.check()

    def step_hang(self, turn, title, seconds):  # a handler that knows of no cancel
        time.sleep(seconds)

    def step_tool(self, turn, title):
        with turn.tool(title, kind="read") as tool:
            tool.add(title)

    def step_permit(self, turn, title):
        with turn.tool(title, kind="edit") as tool:
            answer = tool.ask_permission()
            return f"{answer.outcome}/{answer.option_id}"

    def step_elicit(self, turn, title):
        answer = turn.elicit(title, {"count": acp.IntegerPropertySchema()})
        return f"{answer.action}/{answer.content.get('count')}"

    def step_read(self, turn, title, path):
        try:
            text = turn.read_text_file(path)
        except acp.RequestError as error:
            return str(error.code)
        return f"{text[:1]}*{len(text)}" if text == text[:1] * len(text) else "torn"

    def step_write(self, turn, title, path, letter, size):
        try:
            turn.write_text_file(path, letter * size)
        except acp.RequestError as error:
            return error.message.replace(" ", "_")

    def step_run(self, turn, title, seconds):
        with turn.tool(title, kind="execute") as tool, tool.terminal("sleep", [str(seconds)]) as terminal:
            return str(terminal.wait().exit_code)

    def step_stderr(self, turn, title):
        print(title, file=sys.stderr, flush=True)

    def step_call(self, turn, title):
        try:
            turn.session.request("_call", {})
        except acp.RequestError as error:
            return str(error.code)

    def step_raise(self, turn, title, name):
        fail(name)

    def extension(self, peer, method, params):
        if method == "_sleep":
            time.sleep(params["seconds"])
        elif method == "_slow":
            self.slow = params["seconds"]
        fail_if(params)

    def extension_notification(self, peer, method, params):
        what = params.get("what")
        if what == "close stdout":
            os.dup2(os.open(os.devnull, os.O_RDWR), private(1))
        elif what == "full":
            os.dup2(os.open("/dev/full", os.O_RDWR), private(1))
        elif what == "half":
            with peer._outbox.changed:  # once the writer waits for this lock, nothing comes behind the half line
                time.sleep(0.05)
                os.write(private(1), b'{"jsonrpc": "2.0", "method": "session/upd')
                os.kill(os.getpid(), signal.SIGKILL)
        elif what == "exit":
            os._exit(params["status"])
        elif what == "deaf":  # the reader thread waits for this lock, and so nothing is read
            with peer._sorting:
                time.sleep(1000)
        elif what == "junk":
            rng = random.Random(params["seed"])
            for _ in range(params["count"]):
                peer.append(junk(rng) + b"\n", {})
                time.sleep(rng.random() / 100)
        fail_if(params)


def fail_if(params):
    if params and "raise" in params:
        fail(params["raise"])


STREAMS = [os.fstat(number).st_ino for number in (0, 1)]  # what they are when an agent starts


def private(number):
    """The copy that the agent keeps of its own fd 0 or 1 while it serves."""
    return next(each for each in map(int, os.listdir("/proc/self/fd")) if each > 2
                and os.path.exists(f"/proc/self/fd/{each}") and os.fstat(each).st_ino == STREAMS[number])


if __name__ == "__main__":
    Talker().run()

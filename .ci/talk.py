"""The client's half of the conversations of load.py and faults.py, and what can be measured of a process.

A `Talk` is one session in a thread of its own: it prompts again and again by a plan that says every word of the answer,
takes the answer in some way, and writes down what is not as it should be. Needs Linux: it reads /proc.
"""
import atexit
import collections
import contextlib
import gc
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import acp  # noqa: E402

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job; children would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

SOON = 30  # seconds until something is a hang; far above what it takes on a busy machine
# Agents compile acp.py once for all, and leave nothing beside it; so do the processes that faults.py starts.
COMPILED = sys.pycache_prefix or tempfile.mkdtemp(prefix="acp-compiled-")
if not sys.pycache_prefix:
    atexit.register(shutil.rmtree, COMPILED, ignore_errors=True)
TALKER = [sys.executable, "-S", "-E", "-X", "pycache_prefix=" + COMPILED, os.path.join(HERE, "talker.py")]


class Faults(logging.Handler):
    """What failed inside the library: anything logged with an exception that is none of its own."""

    def __init__(self):
        super().__init__()
        self.found = []
        threading.excepthook = lambda args: self.found.append("".join(
            traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback)))

    def emit(self, record):
        if record.exc_info and not isinstance(record.exc_info[1], acp.Error):
            self.found.append(record.getMessage() + "\n" + "".join(traceback.format_exception(*record.exc_info)))

    def taken(self):
        found, self.found = self.found, []
        return found


# ---- what can be measured -------------------------------------------------------------------------------------------
def resident(pid="self"):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid="self"):
    """How many files a process has open."""
    gc.collect()
    return len(os.listdir(f"/proc/{pid}/fd")) - (pid == "self")  # but for the one that lists them


def threads():
    """The names of the library's own threads in this process."""
    return sorted(each.name for each in threading.enumerate() if each.name.startswith("acp "))


def processes():
    """Each process that runs, and the number of its group."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                state, _, group = file.read().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if state not in "ZX":
            yield int(pid), int(group)


def members(group):
    """The processes of a group."""
    return [pid for pid, its in processes() if its == group]


def marked(mark):
    """The processes that have this in their environment: an agent and all that it started, whatever their group."""
    found = []
    for pid, _ in processes():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if mark.encode() in file.read():
                    found.append(pid)
        except OSError:
            pass
    return found


def until(condition, seconds=SOON):
    """Wait for something, at most some seconds; whether it came."""
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(found)


# ---- the conversation -----------------------------------------------------------------------------------------------
def calm(rng, folder):
    """A step of a conversation under load."""
    kind = rng.choice(["say"] * 4 + ["think", "think", "wait", "tool", "permit", "permit", "elicit", "read"])
    return {"wait": ["wait", rng.random() / 50], "read": ["read", os.path.join(folder, "read.txt")]}.get(kind, [kind])


class Plan:
    """A turn: its number, its steps, what the client answers to each question, and what is said in the end."""

    def __init__(self, rng, number, steps):
        self.number, self.steps, self.turn = number, steps, None
        self.may_end = ["end_turn"]  # the stop reasons that are right
        self.updates = 0
        self.cancels = ("", 0)  # where it is cancelled, and at which step or update
        self.answers, self.results = {}, []
        for index, (kind, *_) in enumerate(steps):
            result = kind
            if kind == "permit":
                answer, result = rng.choice([(True, "selected/allow"), (False, "selected/reject"),
                                             ("reject", "selected/reject"), (None, "cancelled/None")])
                self.answers[f"{number} {index}"] = answer
            elif kind == "elicit":
                count = rng.randrange(100)
                answer, result = rng.choice([({"count": count}, f"accept/{count}"), (False, "decline/None"),
                                             (None, "cancel/None")])
                self.answers[f"{number} {index}"] = answer
            elif kind == "read":
                result = "x*1000"
            elif kind == "run":
                result = "0"
            self.results.append(result)

    def text(self):
        return json.dumps({"turn": self.number, "steps": self.steps})

    def cancel(self, whole=False):
        """Cancel the turn, or all of the session's work; from now on it may end so."""
        if self.turn is not None:
            self.may_end = ["end_turn", "cancelled"]
            self.turn.session.cancel() if whole else self.turn.cancel()


class Talk(threading.Thread):
    """One session that prompts again and again until it is told to rest or to stop, or the connection ends."""

    def __init__(self, client, rng, folder, tally, step=calm, faithful=0.5):
        super().__init__(daemon=True)
        self.client, self.rng, self.folder, self.tally, self.step = client, rng, folder, tally, step
        self.faithful = faithful  # how many of the turns are neither cancelled nor left
        self.go, self.resting, self.stopping = threading.Event(), threading.Event(), threading.Event()
        self.go.set()
        self.plans, self.number = {}, 0
        self.limit, self.ending = SOON, False  # ending: from now on the connection may end any turn, and any call fail
        self.wrong = []  # what was not as it should be
        self.error, self.ended = None, None  # what ended it, and when
        self.session = None

    def run(self):
        try:
            self.renew()
            while not self.stopping.is_set():
                if not self.go.is_set():
                    self.settle()
                    self.resting.set()
                    self.go.wait()
                    self.resting.clear()
                self.turn()
        except acp.Error as error:
            self.error, self.ended = error, time.monotonic()
        except BaseException:
            self.wrong.append("raised what is none of its errors:\n" + traceback.format_exc())

    def renew(self):
        self.session = self.client.new_session(cwd=self.folder, timeout=self.limit)
        self.session.talk = self
        self.tally.count("sessions")

    def settle(self):
        """One more turn, so that none before it is left running."""
        self.take(self.planned([["say"]]), "wait")

    def planned(self, steps):
        self.number += 1
        plan = self.plans[self.number] = Plan(self.rng, self.number, steps)
        self.plans.pop(self.number - 10, None)
        return plan

    # ---- callbacks of the client ----
    @staticmethod
    def permission(request):
        talk, title = request.session.talk, request.title
        plan = talk.plans[int(title.split()[0])]
        talk.tally.count("permissions")
        if plan.cancels[0] == "permission":
            plan.cancel(whole=talk.number % 2 == 0)
        return plan.answers[title]

    @staticmethod
    def elicitation(request):
        talk, title = request.session.talk, request.message
        talk.tally.count("forms")
        return talk.plans[int(title.split()[0])].answers[title]

    @staticmethod
    def on_update(session, update):
        talk = getattr(session, "talk", None)
        if (plan := talk and talk.plans.get(talk.number)) and plan.cancels[0] == "update":
            plan.updates += 1
            if plan.updates == plan.cancels[1]:
                plan.cancel()

    @classmethod
    def callbacks(cls):
        return {"permission": cls.permission, "elicitation": cls.elicitation, "on_update": cls.on_update}

    # ---- one turn ----
    def turn(self):
        rng = self.rng
        plan = self.planned([self.step(rng, self.folder) for _ in range(rng.randrange(1, 9))])
        if rng.random() < self.faithful:
            return self.take(plan, rng.choice(["wait", "iterate", "stream"]))
        way = rng.choice(["cancel"] * 8 + ["timeout", "timeout", "leave", "leave", "drop", "close", "close under it"])
        if way == "cancel":
            plan.cancels = rng.choice(["behind", "later", "update", "permission"]), rng.randrange(1, 12)
            self.tally.count("cancels")
            return self.take(plan, rng.choice(["wait", "iterate"]))
        self.tally.count(way)
        self.take(plan, way)
        if way.startswith("close"):
            self.session.close(timeout=self.limit)
            if plan.turn is not None:
                self.over(plan)
            self.renew()

    def take(self, plan, way):
        """Prompt, and take the answer this way; then see that all is right."""
        rng, session = self.rng, self.session
        self.tally.count("turns")
        if way == "stream":
            text = "".join(session.stream(plan.text(), timeout=self.limit))
            return self.check(plan, text, "cancelled" if self.ending else "end_turn")  # a stream does not tell
        short = rng.random() / 20 if way == "timeout" else self.limit
        if way in ("timeout", "leave", "close under it"):
            plan.may_end = ["end_turn", "cancelled"]
        try:
            plan.turn = turn = session.prompt(plan.text(), timeout=short)
        except acp.Timeout:
            if way != "timeout":
                raise
            return None  # what was unsent before it took all of its time
        if plan.cancels[0] == "behind":
            plan.cancel()
        elif plan.cancels[0] == "later":
            timer = threading.Timer(rng.random() / 20, plan.cancel)
            timer.daemon = True
            timer.start()
        if way == "close under it":
            return None
        if way in ("leave", "drop"):
            count = rng.randrange(8)
            with turn if way == "leave" else contextlib.nullcontext():
                for number, _ in enumerate(turn):
                    if number == count:
                        break
            if way == "leave":
                self.over(plan)
            plan.turn = None  # the library has the only reference now
            return None
        try:
            if way == "iterate":
                text = "".join(acp.text_of([update.content]) for update in turn
                               if isinstance(update, acp.AgentMessageChunk))
                if text != turn.text:
                    self.wrong.append(f"turn {plan.number}: iterating gave another text than the turn has")
            else:
                turn.wait()
        except acp.Timeout as error:
            if self.ending and way != "timeout":
                raise
            if way != "timeout":
                self.wrong.append(f"turn {plan.number} hangs: {error}")
        self.over(plan)

    def over(self, plan):
        """Wait until a turn is over, and check it."""
        turn = plan.turn
        if not until(lambda: turn.ended, self.limit):
            if self.ending:
                raise acp.Timeout("it does not end")
            self.wrong.append(f"turn {plan.number} does not end")
        elif isinstance(turn._course.error, acp.ConnectionClosed):
            raise turn._course.error
        else:
            self.check(plan, turn.text, turn.stop_reason)

    def check(self, plan, text, reason):
        if reason not in plan.may_end and not (self.ending and reason == "cancelled"):
            error = plan.turn and plan.turn._course.error
            self.wrong.append(f"turn {plan.number} of {self.session.id} ended with {reason}, expected {plan.may_end}"
                              + (f": {error}" if error else ""))
        self.tally.count("ended " + str(reason))
        said = text.split(";")[:-1]
        told = [f"{self.session.id} {plan.number} {index} {result}" for index, result in enumerate(plan.results)]
        if said != told[:len(said)] or (reason == "end_turn" and len(said) != len(told)):
            self.wrong.append(f"turn {plan.number} of {self.session.id} ({reason}) said {said}, expected {told}")
        for call in self.session.state.tool_calls.values():
            own = str(call.title).split()[0] == str(plan.number)  # another turn, one that was left, may still run
            if own and call.status not in ("completed", "failed", "cancelled"):
                self.wrong.append(f"turn {plan.number} ({reason}): tool call {call.title} is left {call.status}")


class Tally(collections.Counter):
    """Counts, from any thread."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def count(self, key, number=1):
        with self.lock:
            self[key] += number

"""How fast acp.py is here, beside the floor and beside the official SDKs:

    python3 examples/benchmark.py [--quick] [--only NAME ...] [--rounds N] [--peer PLACE ...] [--plot FILE.svg]

    python3 examples/benchmark.py --peer sdk/bin/python --peer sdk-folder --markdown --plot benchmark.svg

The floor is a bare script: it imports json and sys, loops over the lines of its stdin, and dumps, writes and flushes
each message. Every figure is taken over real pipes and real processes, from the bare script, from acp.py and from each
peer in turn, N rounds of it (default 5); the median is shown, with the least and the most. A whole run takes some ten
minutes; --quick proves in seconds that all works, its figures say little.

PLACE is a Python that has `agent-client-protocol` installed, or a folder whose node_modules hold
`@agentclientprotocol/sdk` (node is needed); what an SDK cannot do is "-". --only takes the measurements of these names
(--help tells them). --markdown prints the table for a page, --json FILE keeps every value, --plot draws the speeds.

Rates are better when higher, all else when lower. "ratio" is acp.py's figure divided by the bare script's, "by" is how
many times better acp.py is than that SDK. Memory and threads are read from /proc; without it they are "-". Exit status:
0; 1 a measurement failed or, with --check, a target is missed; 2 wrong use; 130 interrupted.
"""
import argparse
import collections
import contextlib
import html
import itertools
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import NamedTuple, Optional

ACP = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "acp.py")
Counts = collections.namedtuple("Counts", (
    "starts requests window received chunks large sessions million edge rest unread limit"))
FULL = Counts(starts=5, requests=5_000, window=64, received=100_000, chunks=50_000, large=50_000_000, sessions=1_000,
              million=1_000_000, edge=50_000, rest=6, unread=2, limit=600)
QUICK = Counts(starts=1, requests=300, window=64, received=3_000, chunks=3_000, large=1_000_000, sessions=100,
               million=40_000, edge=10_000, rest=0.2, unread=0.3, limit=60)


class Failure(Exception):
    """A process did not do what is measured."""


# ---- the agents and clients that are measured -----------------------------------------------------------------------
# Each agent answers initialize, session/new, a request that it echoes, and prompts of two words: "stream COUNT" says so
# many small chunks, "large SIZE" one chunk of that size, anything else nothing. Each client starts the feeder, takes
# all that comes of one prompt, prints the seconds, and ends with its stdin. All are written the plain way; those on the
# SDKs as the SDKs' own examples are.

BARE_AGENT = '''
import json
import sys

version, sessions = 1, {}

def send(message):
    sys.stdout.write(json.dumps(message) + "\\n")
    sys.stdout.flush()

def update(session, **fields):
    send({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": fields}})

def say(session, text):
    named = {"messageId": "message-1"} if version == 2 else {}
    update(session, sessionUpdate="agent_message_chunk", **named, content={"type": "text", "text": text})

for line in sys.stdin:
    message = json.loads(line)
    method, params, result = message["method"], message["params"], message["params"]
    if method == "initialize":
        version = params["protocolVersion"]
        result = {"protocolVersion": 1, "agentCapabilities": {}} if version == 1 else {
            "protocolVersion": 2, "info": {"name": "bare", "version": "0"}, "capabilities": {"session": {}}}
    elif method == "session/new":
        result = {"sessionId": "session-%d" % len(sessions)}
        sessions[result["sessionId"]] = params["cwd"]
    elif method == "session/prompt":
        result = {"stopReason": "end_turn"} if version == 1 else {"messageId": "prompt-1"}
        session, text = params["sessionId"], params["prompt"][0]["text"]
        word, _, rest = text.partition(" ")
        for number in range(int(rest) if word == "stream" else 0):
            say(session, f"{number} ")
        if word == "large":
            say(session, "x" * int(rest))
    send({"jsonrpc": "2.0", "id": message["id"], "result": result})
    if method == "session/prompt" and version == 2:
        update(session, sessionUpdate="state_update", state="idle", stopReason="end_turn")
'''

OUR_AGENT = '''
import sys
import acp

class Bench(acp.Agent):
    versions, history = (1, 2), "forget" not in sys.argv

    def prompt(self, turn):
        word, _, rest = turn.text.partition(" ")
        for number in range(int(rest) if word == "stream" else 0):
            turn.say(f"{number} ")
        if word == "large":
            turn.say("x" * int(rest))

    def extension(self, peer, method, params):
        return params

if __name__ == "__main__":
    Bench().run()
'''

PYTHON_AGENT = '''
import asyncio
import uuid
import acp
from acp.schema import AgentMessageChunk, TextContentBlock

class Bench(acp.Agent):
    def on_connect(self, connection):
        self.connection = connection

    async def initialize(self, protocol_version, **more):
        return acp.InitializeResponse(protocol_version=protocol_version)

    async def new_session(self, cwd, **more):
        return acp.NewSessionResponse(session_id=uuid.uuid4().hex)

    async def prompt(self, prompt, session_id, **more):
        async def say(text):
            await self.connection.session_update(session_id, AgentMessageChunk(
                session_update="agent_message_chunk", content=TextContentBlock(type="text", text=text)))

        word, _, rest = prompt[0].text.partition(" ")
        for number in range(int(rest) if word == "stream" else 0):
            await say(f"{number} ")
        if word == "large":
            await say("x" * int(rest))
        return acp.PromptResponse(stop_reason="end_turn")

    async def ext_method(self, method, params):
        return params

asyncio.run(acp.run_agent(Bench()))
'''

NODE_AGENT = '''
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";

const { agent: requests, client: told } = acp.methods;
const say = (client, sessionId, text) => client.notify(told.session.update, {
  sessionId, update: { sessionUpdate: "agent_message_chunk", content: { type: "text", text } },
});
const app = acp.agent({ name: "bench" })
  .onRequest(requests.initialize, () => ({ protocolVersion: acp.PROTOCOL_VERSION, agentCapabilities: {} }))
  .onRequest(requests.session.new, () => ({ sessionId: crypto.randomUUID() }))
  .onRequest("_bench/echo", (params) => params, ({ params }) => params)
  .onRequest(requests.session.prompt, async ({ params: { sessionId, prompt }, client }) => {
    const [word, rest] = prompt[0].text.split(" ", 2);
    const count = word === "stream" ? Number(rest) : 0;
    for (let number = 0; number < count; number++) await say(client, sessionId, `${number} `);
    if (word === "large") await say(client, sessionId, "x".repeat(Number(rest)));
    return { stopReason: "end_turn" };
  });
const [output, input] = [Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)];
await app.connect(acp.ndJsonStream(output, input, { maxMessageBytes: 64 << 20 })).closed;
'''

FEEDER = '''
import json
import os
import sys

version, count = int(sys.argv[1]), int(sys.argv[2])

def line(**message):
    return json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\\n"

def update(kind, **fields):
    return line(method="session/update", params={"sessionId": "s", "update": {"sessionUpdate": kind, **fields}})

named = {"messageId": "message-1"} if version == 2 else {}
data = b"".join(update("agent_message_chunk", **named, content={"type": "text", "text": f"{number} "})
                for number in range(count))
answers = {"initialize": {"protocolVersion": 1, "agentCapabilities": {}}, "session/new": {"sessionId": "s"},
           "session/prompt": {"stopReason": "end_turn"}}
if version == 2:
    answers["session/prompt"] = {"messageId": "prompt-1"}
    answers["initialize"] = {
        "protocolVersion": 2, "info": {"name": "feeder", "version": "0"}, "capabilities": {"session": {}}}
try:
    for request in map(json.loads, sys.stdin):
        answer = line(id=request.get("id"), result=answers[request["method"]])
        if request["method"] == "session/prompt" and version == 1:
            answer = data + answer
        elif request["method"] == "session/prompt":
            answer += (update("user_message", messageId="prompt-1", content=request["params"]["prompt"])
                       + update("state_update", state="running") + data
                       + update("state_update", state="idle", stopReason="end_turn"))
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()
except OSError:  # the client has gone
    os._exit(0)
'''

BARE_CLIENT = '''
import json
import subprocess
import sys
import time

agent = subprocess.Popen(sys.argv[3:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

def send(id, method, params):
    message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
    agent.stdin.write(json.dumps(message).encode() + b"\\n")
    agent.stdin.flush()

send(1, "initialize", {"protocolVersion": int(sys.argv[1])})
agent.stdout.readline()
send(2, "session/new", {"cwd": "/", "mcpServers": []})
agent.stdout.readline()
begin = time.perf_counter()
send(3, "session/prompt", {"sessionId": "s", "prompt": [{"type": "text", "text": "go"}]})
for line in agent.stdout:
    message = json.loads(line)
    if b"stopReason" in line:
        break
print(time.perf_counter() - begin, flush=True)
sys.stdin.read()
'''

OUR_CLIENT = '''
import sys
import time
import acp

with acp.Client(sys.argv[3:], version=int(sys.argv[1])) as client:
    session, came = client.new_session(cwd="."), 0
    begin = time.perf_counter()
    for update in session.prompt("go"):
        if isinstance(update, acp.AgentMessageChunk):
            came += 1
    seconds = time.perf_counter() - begin
    assert came == int(sys.argv[2]) and len(session.state.messages) == 2
    print(seconds, flush=True)
    sys.stdin.read()
'''

OUR_SLOW_CLIENT = '''
import json
import sys
import time
import acp

why = "all was taken"
with acp.Client(sys.argv[2:], max_queued_bytes=int(sys.argv[1]), on_update=lambda *came: time.sleep(0.01)) as client:
    session = client.new_session(cwd=".")
    print(json.dumps("ready"), flush=True)
    sys.stdin.readline()
    try:
        session.prompt("go", timeout=50).wait()
    except acp.Error as error:
        why = str(error)
    print(json.dumps(why), flush=True)
    sys.stdin.read()
'''

PYTHON_CLIENT = '''
import asyncio
import os
import sys
import time
import acp
from acp.schema import AgentMessageChunk, TextContentBlock

class Receiver(acp.Client):
    def __init__(self):
        self.pieces = []

    async def session_update(self, session_id, update, **more):
        if isinstance(update, AgentMessageChunk):
            self.pieces.append(update.content.text)

async def main():
    receiver = Receiver()
    async with acp.spawn_agent_process(receiver, *sys.argv[3:]) as (connection, process):
        await connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
        session = await connection.new_session(cwd=os.getcwd(), mcp_servers=[])
        begin = time.perf_counter()
        await connection.prompt(session_id=session.session_id, prompt=[TextContentBlock(type="text", text="go")])
        while len(receiver.pieces) < int(sys.argv[2]):  # some may be handled after the answer
            await asyncio.sleep(0)
        print(time.perf_counter() - begin, flush=True)
        sys.stdin.read()

asyncio.run(main())
'''

NODE_CLIENT = '''
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";

const [, count, command, ...words] = process.argv.slice(2);
const { agent: requests, client: told } = acp.methods;
const agent = spawn(command, words, { stdio: ["pipe", "pipe", "inherit"] });
const pieces = [];
const app = acp.client({ name: "bench" }).onNotification(told.session.update, ({ params }) => {
  if (params.update.sessionUpdate === "agent_message_chunk") pieces.push(params.update.content.text);
});
await app.connectWith(acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout)), async (ctx) => {
  await ctx.request(requests.initialize, { protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities: {} });
  const { sessionId } = await ctx.request(requests.session.new, { cwd: process.cwd(), mcpServers: [] });
  const begin = performance.now();
  await ctx.request(requests.session.prompt, { sessionId, prompt: [{ type: "text", text: "go" }] });
  while (pieces.length < Number(count)) await new Promise(setImmediate);
  console.log((performance.now() - begin) / 1000);
  process.stdin.resume();
  await new Promise((done) => process.stdin.on("end", done));
});
process.exit(0);
'''

PYTHON_IMPORT = "import time\nbegin = time.perf_counter()\nimport {}\nprint(time.perf_counter() - begin, flush=True)\n"
NODE_IMPORT = '''
const begin = performance.now();
await import("@agentclientprotocol/sdk");
console.log((performance.now() - begin) / 1000);
'''
SOURCES = {  # by kind of arm
    "bare": {"agent.py": BARE_AGENT, "client.py": BARE_CLIENT, "imports.py": PYTHON_IMPORT.format("json, sys"),
             "feeder.py": FEEDER},
    "ours": {"agent.py": OUR_AGENT, "client.py": OUR_CLIENT, "imports.py": PYTHON_IMPORT.format("acp"),
             "slow.py": OUR_SLOW_CLIENT},
    "python": {"agent.py": PYTHON_AGENT, "client.py": PYTHON_CLIENT, "imports.py": PYTHON_IMPORT.format("acp")},
    "node": {"agent.mjs": NODE_AGENT, "client.mjs": NODE_CLIENT, "imports.mjs": NODE_IMPORT},
}


# ---- the processes, in raw bytes ------------------------------------------------------------------------------------

class Child:
    """A process with pipes. It is dead after `limit` seconds, so no read from it hangs, and after `with`."""

    def __init__(self, command, bench, grace=0):
        self.grace, self.late, self.rest = grace, False, b""
        self.errors = tempfile.TemporaryFile(dir=bench.work)
        self.begin = time.perf_counter()
        self.process = subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, cwd=bench.work, env=bench.env, start_new_session=True)
        self.reads, self.writes = self.process.stdout.fileno(), self.process.stdin.fileno()
        self.watch = threading.Timer(bench.counts.limit, self.expire)
        self.watch.daemon = True
        self.watch.start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        try:
            self.process.stdin.close()
            if self.grace and error[0] is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(self.grace)
        finally:
            self.watch.cancel()
            self.watch.join()
            self.kill()
            self.process.wait()
            self.process.stdout.close()
            self.errors.close()

    def expire(self):
        self.late = True
        self.kill()

    def kill(self):  # with what it has started
        if self.process.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL) if hasattr(os, "killpg") else self.process.kill()

    def failed(self):
        self.errors.seek(0)
        said = self.errors.read()[-2000:].decode("utf-8", "replace").strip()
        return Failure("it took too long" if self.late else f"it ended: {said or 'without a word'}")

    def write(self, data):
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self.writes, view):]
        except OSError:
            raise self.failed() from None

    def read(self):
        data = os.read(self.reads, 1 << 16)
        if not data:
            raise self.failed()
        return data

    def line(self):
        """The next line, as JSON."""
        while b"\n" not in self.rest:
            self.rest += self.read()
        line, _, self.rest = self.rest.partition(b"\n")
        try:
            return json.loads(line)
        except ValueError:
            raise Failure(f"it wrote {line[:300]!r}") from None

    def status(self, field):
        """A number in the process's status, sizes in MiB; None where that cannot be known."""
        with contextlib.suppress(OSError), open(f"/proc/{self.process.pid}/status") as file:
            for line in file:
                if line.startswith(field + ":"):
                    value, *unit = line.split()[1:]
                    return int(value) / 1024 if unit else int(value)
        return None

    def spent(self):
        """The seconds that it was at work, which other work on the machine does not change; else those that passed."""
        with contextlib.suppress(OSError), open(f"/proc/{self.process.pid}/stat") as file:
            return sum(map(int, file.read().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter()


class Driver(Child):
    """An agent, driven with as little work as can be. It has answered initialize after `ready` seconds."""

    def __init__(self, command, bench, version=1):
        super().__init__(command, bench)
        self.ids = itertools.count(1)
        me = {"name": "bench", "version": "0"}
        try:
            self.write(self.request("initialize", {"protocolVersion": version, **(
                {"clientInfo": me, "clientCapabilities": {}} if version == 1 else {"info": me, "capabilities": {}})}))
            answer = self.line()
            self.ready = time.perf_counter() - self.begin
            if answer.get("result", {}).get("protocolVersion") != version:
                raise Failure(f"it answered initialize with {str(answer)[:300]}")
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise

    def request(self, method, params):
        message = {"jsonrpc": "2.0", "id": next(self.ids), "method": method, "params": params}
        return json.dumps(message).encode() + b"\n"

    def prompt(self, session, text):
        return self.request("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]})

    def echo(self):
        return self.request("_bench/echo", {"text": "a request of some words"})

    def new(self):
        self.write(self.request("session/new", {"cwd": "/", "mcpServers": []}))
        return self.line()["result"]["sessionId"]

    def ask(self, requests, window=1):
        """Send the requests, so many at a time before their answers; return the seconds, and what came."""
        begin, came, pieces = time.perf_counter(), 0, []
        self.write(b"".join(requests[:window]))
        sent = window
        while came < len(requests):
            data = self.read()
            pieces.append(data)
            count = data.count(b"\n")
            came += count
            if count and sent < len(requests):
                self.write(b"".join(requests[sent:sent + count]))
                sent += count
        seconds, data = time.perf_counter() - begin, b"".join(pieces)
        if data.count(b'"result"') != len(requests):
            raise Failure(f"it answered with {data[:300]!r}")
        return seconds, data

    def turn(self, session, text, chunks, passed=None):
        """A turn that says so many chunks; return the seconds. Now and then, `passed` is told how many came."""
        prompt = self.prompt(session, text)
        begin, lines, told, tail = time.perf_counter(), 0, 0, b""
        self.write(prompt)
        while not (tail.endswith(b"\n") and (b'"stopReason"' in tail or b'"error"' in tail)):
            data = self.read()
            lines += data.count(b"\n")
            tail = data[-2000:] if len(data) >= 2000 else (tail + data)[-2000:]
            if passed is not None and lines >= told + 1000:
                told = lines
                passed(lines)
        seconds = time.perf_counter() - begin
        if not chunks < lines <= chunks + 4 or b"end_turn" not in tail:
            raise Failure(f"of {chunks} chunks came {lines} lines; the last: {tail[-300:]!r}")
        return seconds


class Arm(NamedTuple):
    """One of those that are measured side by side."""
    label: str
    kind: str  # its sources
    runner: str
    folder: str

    def command(self, name, *words):
        ending = ".mjs" if self.kind == "node" else ".py"
        return [self.runner, os.path.join(self.folder, name + ending), *map(str, words)]


class Bench:
    """The folder that all is written to, the environment of the processes, and those that are measured."""

    def __init__(self, work, counts, peers):
        self.work, self.counts = work, counts
        # As for a user, what is imported has been compiled before.
        self.env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        self.env["PYTHONPYCACHEPREFIX"] = os.path.join(work, "compiled")
        mine = [("bare", "bare", sys.executable, None), ("acp.py", "ours", sys.executable, None)]
        self.arms = [self.install(number, *each) for number, each in enumerate(mine + peers)]
        shutil.copy(ACP, self.arms[1].folder)
        self.feeder = self.arms[0].command("feeder")

    def install(self, number, label, kind, runner, modules):
        arm = Arm(label, kind, runner, os.path.join(self.work, str(number)))
        os.mkdir(arm.folder)
        if modules:
            os.symlink(modules, os.path.join(arm.folder, "node_modules"), target_is_directory=True)
        for name, source in SOURCES[kind].items():
            with open(os.path.join(arm.folder, name), "w", encoding="utf-8") as file:
                file.write(source.lstrip())
        return arm

    def agent(self, arm, version=1, *words):
        return Driver(arm.command("agent", *words), self, version)


# ---- what is measured -----------------------------------------------------------------------------------------------

class Figure(NamedTuple):
    """A row of the table."""
    name: str
    words: str  # with the fields of Counts
    unit: str
    more: bool = False  # the more the better
    of: str = ""  # the target is for the "ratio" to the bare script, or for "ours"
    low: Optional[float] = None
    high: Optional[float] = None
    sdk: float = 0  # and so many times better than the Python SDK
    speed: bool = True  # it is in the picture


class Measure(NamedTuple):
    """How some figures are taken together: of an arm, by name; what it cannot tell is left out."""
    name: str
    figures: tuple
    take: object
    once: bool  # it is no time that is taken, so one round is enough
    long: bool  # it takes so long that the peers take part in the first round only


MEASURES = []


def measure(*figures, once=False, long=False):
    def keep(take):
        MEASURES.append(Measure(take.__name__, figures, take, once, long))
        return take
    return keep


def versions(arm):
    return (1, 2) if arm.kind in ("bare", "ours") else (1,)


@measure(Figure("import", "import", "ms", of="ours", high=45, speed=False))
def imports(bench, arm):
    times = []
    for _ in range(bench.counts.starts):
        with Child(arm.command("imports"), bench, grace=5) as child:
            times.append(child.line() * 1000)
    return {"import": statistics.median(times)}


@measure(Figure("start", "start to the answer of initialize", "ms", of="ratio", high=2.2),
         Figure("memory", "peak memory of an idle agent", "MiB", of="ratio", high=1.4, speed=False))
def start(bench, arm):
    times = []
    for _ in range(bench.counts.starts):
        with bench.agent(arm) as driver:
            times.append(driver.ready * 1000)
            peak = driver.status("VmHWM")
    return {"start": statistics.median(times), "memory": peak}


@measure(Figure("request", "round trip, one request after the other", "us", of="ratio", high=1.5),
         Figure("flight", "round trip, {window} requests in flight", "us"),
         Figure("turn", "round trip of a turn without output", "us"))
def roundtrip(bench, arm):
    count = bench.counts.requests
    with bench.agent(arm) as driver:
        session = driver.new()
        driver.ask([driver.echo() for _ in range(count // 10)])
        values = {"request": driver.ask([driver.echo() for _ in range(count)]),
                  "flight": driver.ask([driver.echo() for _ in range(count)], bench.counts.window),
                  "turn": driver.ask([driver.prompt(session, "nothing") for _ in range(count)])}
        return {name: seconds / count * 1e6 for name, (seconds, _) in values.items()}


@measure(*(Figure(f"stream{version}", f"streaming small chunks, version {version}", "chunks/s", True, "ratio", 0.7,
                  sdk=3) for version in (1, 2)))
def stream(bench, arm):
    values, count = {}, bench.counts.chunks
    for version in versions(arm):
        with bench.agent(arm, version) as driver:
            session = driver.new()
            driver.turn(session, f"stream {count // 20}", count // 20)
            values[f"stream{version}"] = count / driver.turn(session, f"stream {count}", count)
    return values


@measure(*(Figure(f"receive{version}", f"receiving typed, merged updates, version {version}", "chunks/s", True,
                  "ratio", 0.4, sdk=3) for version in (1, 2)),
         Figure("received", "peak memory after receiving {received}", "MiB", speed=False))
def receive(bench, arm):
    values, count = {}, bench.counts.received
    for version in versions(arm):
        command = arm.command("client", version, count, *bench.feeder, version, count)
        with Child(command, bench, grace=5) as child:
            values[f"receive{version}"] = count / child.line()
            values.setdefault("received", child.status("VmHWM"))
    return values


@measure(Figure("large_in", "a {megabytes} MB message to the agent", "ms"),
         Figure("large_out", "a {megabytes} MB message from the agent", "ms"),
         Figure("large_peak", "peak memory after both", "MiB", speed=False))
def large(bench, arm):
    size = bench.counts.large
    with bench.agent(arm) as driver:
        session = driver.new()
        received = driver.turn(session, "take " + "x" * size, 0)
        sent = driver.turn(session, f"large {size}", 1)
        return {"large_in": received * 1000, "large_out": sent * 1000, "large_peak": driver.status("VmHWM")}


@measure(Figure("sessions", "{sessions} sessions in one process, a turn in each", "ms"),
         Figure("sessions_peak", "peak memory with {sessions} sessions", "MiB", speed=False))
def sessions(bench, arm):
    count, window = bench.counts.sessions, bench.counts.window
    with bench.agent(arm) as driver:
        made, data = driver.ask(
            [driver.request("session/new", {"cwd": "/", "mcpServers": []}) for _ in range(count)], window)
        ids = [json.loads(line)["result"]["sessionId"] for line in data.splitlines()]
        turns, _ = driver.ask([driver.prompt(id, "nothing") for id in ids], window)
        return {"sessions": (made + turns) * 1000, "sessions_peak": driver.status("VmHWM")}


@measure(Figure("threads", "threads of an idle agent", "", speed=False),
         Figure("threads_after", "threads {rest} s after {sessions} sessions had a turn", "", speed=False), once=True)
def threads(bench, arm):
    with bench.agent(arm) as idle, bench.agent(arm) as busy:
        ids = [busy.new() for _ in range(bench.counts.sessions)]
        busy.ask([busy.prompt(id, "nothing") for id in ids], bench.counts.window)
        time.sleep(bench.counts.rest)
        return {"threads": idle.status("Threads"), "threads_after": busy.status("Threads")}


@measure(Figure("memory_million", "memory after {million} chunks", "MiB", speed=False),
         Figure("memory_forget", "memory after {million} chunks, history off", "MiB", speed=False),
         Figure("flat", "memory then by that at a hundredth, history off", "", of="ours", high=1.2, speed=False),
         Figure("cost", "work for the last chunks by that after the thousandth", "", of="ours", low=0.8, high=1.2,
                speed=False),
         Figure("cost_forget", "the same, history off", "", of="ours", low=0.8, high=1.2, speed=False), long=True)
def million(bench, arm):
    size, _, cost = kept = endure(bench, arm)
    size_forget, flat, cost_forget = endure(bench, arm, "forget") if arm.kind == "ours" else kept
    return {"memory_million": size, "cost": cost, "memory_forget": size_forget, "flat": flat,
            "cost_forget": cost_forget}


def endure(bench, arm, *words):
    """A long turn: the memory at its end, that by the memory at a hundredth, and the same of a chunk's work."""
    count, edge, marks, sizes = bench.counts.million, bench.counts.edge, [], []

    def passed(lines):
        marks.append((lines, driver.spent()))
        if not sizes and lines >= count // 100:
            sizes.append(driver.status("VmRSS"))

    def cost(first, last):
        (least, before), *_, (most, after) = [mark for mark in marks if first <= mark[0] <= last]
        return (after - before) / (most - least)

    with bench.agent(arm, 1, *words) as driver:
        driver.turn(driver.new(), f"stream {count}", count, passed)
        sizes.append(driver.status("VmRSS"))
    return sizes[-1], sizes[-1] and sizes[-1] / sizes[0], cost(count - edge, count) / cost(1000, 1000 + edge)


@measure(Figure("unread", "memory held while a client does not read for {unread} s", "MiB", of="ours", high=8,
                speed=False), once=True)
def unread(bench, arm):
    """A sender waits while a megabyte is unsent, so this stays small however long it takes."""
    with bench.agent(arm) as driver:
        session = driver.new()
        driver.turn(session, "stream 100", 100)
        before = driver.status("VmRSS")
        driver.write(driver.prompt(session, "stream 1000000000"))
        time.sleep(bench.counts.unread)
        after = driver.status("VmRSS")
        return {"unread": after and after - before}


@measure(Figure("slow", "memory held for a slow on_update, 4 MiB allowed", "MiB", of="ours", high=64, speed=False),
         once=True)
def slow(bench, arm):
    """Over max_queued_bytes of lines that nobody has taken, the connection ends; their objects take more than that."""
    if arm.kind != "ours":
        return {}
    with Child(arm.command("slow", 4 << 20, *bench.feeder, 1, 100_000), bench, grace=5) as child:
        child.line()
        before = child.status("VmHWM")
        child.write(b"\n")
        why, after = child.line(), child.status("VmHWM")
        if "max_queued_bytes" not in why:
            raise Failure(f"the connection did not end as it should: {why}")
        return {"slow": after and after - before}


def run(bench, chosen, rounds, tell):
    """The values of all rounds: by figure, then by the place of the arm."""
    values, broken = collections.defaultdict(lambda: [[] for _ in bench.arms]), set()
    for arm in bench.arms:  # so that all is compiled, and in the system's cache
        tell(f"warming up {arm.label}")
        with contextlib.suppress(Failure):
            imports(bench, arm), start(bench, arm)
    for each in chosen:
        for turn, (number, arm) in itertools.product(range(1 if each.once else rounds), enumerate(bench.arms)):
            if (each, arm) in broken or (each.long and turn and number > 1):
                continue
            tell(f"{each.name}, round {turn + 1}: {arm.label}")
            try:
                for name, value in each.take(bench, arm).items():
                    if value is not None:
                        values[name][number].append(value)
            except (Failure, LookupError, ValueError, ArithmeticError) as error:
                if number < 2:
                    raise Failure(f"{each.name}: {arm.label}: {error}") from None
                tell(f"{each.name}: {arm.label}: {error}\n")
                broken.add((each, arm))
    return values


# ---- the table, and the picture -------------------------------------------------------------------------------------

class Row:
    """A figure and what came of it; the arms are the bare script, acp.py, and the peers."""

    def __init__(self, figure, values, bench):
        self.figure, self.values = figure, values
        counts = dict(bench.counts._asdict(), megabytes=bench.counts.large // 1_000_000)
        self.words = figure.words.format(**{key: f"{value:,}" for key, value in counts.items()})
        self.medians = [statistics.median(each) if each else None for each in values]
        floor, ours = self.medians[:2]
        self.ratio = ours / floor if figure.unit and floor and ours is not None else None
        self.better = [self.by(each) for each in self.medians[2:]]
        met, wanted = [], []
        value = self.ratio if figure.of == "ratio" else ours
        if figure.of:
            wanted += [f"{sign} {edge:g}" for sign, edge in ((">=", figure.low), ("<=", figure.high)) if edge]
            met.append(value is None or (figure.low or 0) <= value <= (figure.high or float("inf")))
        peers = [better for arm, better in zip(bench.arms[2:], self.better) if arm.kind == "python" and better]
        if figure.sdk and peers:
            wanted.append(f"by >= {figure.sdk:g}")
            met.append(min(peers) >= figure.sdk)
        self.wanted, self.met = ", ".join(wanted), all(met) if met and value is not None else None

    def by(self, other):
        """How many times better acp.py is than the other."""
        ours = self.medians[1]
        if not (self.figure.unit and ours and other):
            return None
        return ours / other if self.figure.more else other / ours

    def cells(self, spread):
        verdict = {True: "ok", False: "missed", None: ""}[self.met]
        each = [shown(median) + (f" ({shown(min(values))}-{shown(max(values))})" if spread and len(values) > 1 else "")
                for median, values in zip(self.medians, self.values)]
        peers = [cell for pair in zip(each[2:], map(shown, self.better)) for cell in pair]
        return [self.words, self.figure.unit, *each[:2], shown(self.ratio), self.wanted, verdict, *peers]


def shown(value):
    if value is None:
        return "-"
    text = f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def table(rows, labels, markdown):
    head = ["figure", "unit", *labels[:2], "ratio", "target", "", *(
        cell for label in labels[2:] for cell in (label, "by"))]
    cells = [head, *(row.cells(spread=not markdown) for row in rows)]
    if markdown:
        rule = ["---" if place < 2 or place in (5, 6) else "---:" for place in range(len(head))]
        return "\n".join(f"| {' | '.join(each)} |" for each in [head, rule, *cells[1:]])
    widths = [max(map(len, column)) for column in zip(*cells)]
    return "\n".join("  ".join(cell.ljust(width) if place < 2 or place in (5, 6) else cell.rjust(width)
                               for place, (cell, width) in enumerate(zip(each, widths))).rstrip() for each in cells)


STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-size: 16px; font-weight: 600 } .small { font-size: 12px; fill: #59636e }
.back { fill: #ffffff } .grid { stroke: #d1d9e0 } .floor { stroke: #1f2328; stroke-dasharray: 4 3 }
.arm1 { fill: #0969da } .arm2 { fill: #bf6a02 } .arm3 { fill: #1a7f37 } .arm4 { fill: #8250df }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .small { fill: #9198a1 } .back { fill: #0d1117 } .grid { stroke: #3d444d }
  .floor { stroke: #f0f6fc }
  .arm1 { fill: #4493f8 } .arm2 { fill: #e3973e } .arm3 { fill: #3fb950 } .arm4 { fill: #ab7df8 }
}
"""


def picture(rows, labels, about):
    """The speeds as bars, the bare script's being 1."""
    groups = []
    for row in rows:
        floor = row.medians[0]
        if row.figure.speed and floor:
            bars = [(number, each / floor if row.figure.more else floor / each)
                    for number, each in enumerate(row.medians) if number and each]
            groups.append((row.words, bars))
    left, width, bar, top = 330, 440, 16, 84
    scale = width / max([1.0, *(value for _, bars in groups for _, value in bars)])
    step = next(step for step in (0.25, 0.5, 1, 2, 5, 10, 1e9) if width / scale / step <= 8)
    height = top + sum(len(bars) * bar + 14 for _, bars in groups) + 34
    title = "Speed beside a bare Python loop"
    said = "; ".join(f"{words}: " + ", ".join(f"{labels[number]} {value:.2f}" for number, value in bars)
                     for words, bars in groups)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 {height}" width="860" height="{height}" '
           f'role="img" aria-labelledby="title desc">', f'<title id="title">{title}</title>',
           f'<desc id="desc">{html.escape(said)}</desc>', f"<style>{STYLE}</style>",
           f'<rect class="back" width="860" height="{height}" rx="6"/>',
           f'<text class="title" x="20" y="30">{title}</text>',
           f'<text class="small" x="20" y="50">The bare loop is 1; longer is faster. {html.escape(about)}</text>']
    x = left
    for number, label in enumerate(labels[1:], 1):
        out.append(f'<rect class="arm{(number - 1) % 4 + 1}" x="{x}" y="62" width="11" height="11" rx="2"/>'
                   f'<text class="small" x="{x + 16}" y="72">{html.escape(label)}</text>')
        x += 40 + 7 * len(label)
    for mark in range(int(width / scale / step) + 1):
        x = left + mark * step * scale
        out.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - 28}"/>'
                   f'<text class="small" x="{x:.1f}" y="{height - 12}" text-anchor="middle">{mark * step:g}</text>')
    out.append(f'<line class="floor" x1="{left + scale:.1f}" x2="{left + scale:.1f}" y1="{top}" y2="{height - 28}"/>')
    y = top + 7
    for words, bars in groups:
        middle = y + len(bars) * bar / 2
        out.append(f'<text x="{left - 12}" y="{middle + 4.5:.1f}" text-anchor="end">{html.escape(words)}</text>')
        for number, value in bars:
            end = left + value * scale
            out.append(f'<rect class="bar arm{(number - 1) % 4 + 1}" x="{left}" y="{y + 1}" width="{end - left:.2f}" '
                       f'height="{bar - 3}" rx="2"/><rect class="back" x="{end + 3:.1f}" y="{y + 1}" width="32" '
                       f'height="{bar - 3}"/><text class="small" x="{end + 6:.1f}" y="{y + 12}">{value:.2f}</text>')
            y += bar
        y += 14
    return "\n".join([*out, "</svg>\n"])


# ---- from the command line ------------------------------------------------------------------------------------------

def peer(place):
    """An SDK that is installed there: label, kind, what runs it, its node_modules."""
    modules = os.path.join(os.path.abspath(place), "node_modules")
    package = os.path.join(modules, "@agentclientprotocol", "sdk", "package.json")
    try:
        if os.path.isdir(place):
            with open(package, encoding="utf-8") as file:
                version = json.load(file)["version"]
            return f"TypeScript SDK {version}", "node", shutil.which("node") or "node", modules
        ask = "import importlib.metadata as m, sys; print(m.version('agent-client-protocol'), sys.version.split()[0])"
        found = shutil.which(place)
        version, on = subprocess.run([found or place, "-c", ask], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=subprocess.DEVNULL, timeout=60, check=True, text=True).stdout.split()
        older = "" if on == platform.python_version() else f" on Python {on}"
        return f"Python SDK {version}{older}", "python", os.path.abspath(found or place), None
    except (OSError, ValueError, KeyError, subprocess.SubprocessError):
        raise argparse.ArgumentTypeError(f"no SDK in {place}") from None


def stopped(number, frame):
    raise KeyboardInterrupt


def main(words):
    names = [each.name for each in MEASURES]
    parser = argparse.ArgumentParser(description="How fast acp.py is, beside a bare loop and the official SDKs.")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how often each is measured (default 5)")
    parser.add_argument("--quick", action="store_true", help="small counts: whether it works")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--peer", action="append", type=peer, default=[], metavar="PLACE",
                        help="a Python, or a folder with node_modules, that has an official SDK; several times")
    parser.add_argument("--markdown", action="store_true", help="the table for a page")
    parser.add_argument("--json", metavar="FILE", help="keep all that was measured")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw the speeds")
    parser.add_argument("--check", action="store_true", help="exit status 1 where a target is missed")
    options = parser.parse_args(words)
    if options.rounds < 1:
        parser.error("--rounds: at least 1")

    def tell(text):
        if sys.stderr.isatty() or text.endswith("\n"):
            print("\r\033[K" * sys.stderr.isatty() + text, end="", file=sys.stderr, flush=True)

    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGTERM, stopped)
    counts = QUICK if options.quick else FULL
    try:
        with tempfile.TemporaryDirectory(prefix="acp-benchmark-") as work:
            bench = Bench(work, counts, options.peer)
            chosen = [each for each in MEASURES if each.name in options.only]
            values = run(bench, chosen, options.rounds, tell)
    except KeyboardInterrupt:
        return 130
    except (Failure, OSError) as error:
        print(f"benchmark.py: {error}", file=sys.stderr)
        return 1
    finally:
        tell("")
    rows = [Row(figure, values[figure.name], bench) for each in chosen for figure in each.figures]
    labels = [arm.label for arm in bench.arms]
    about = (f"{platform.python_implementation()} {platform.python_version()}, {platform.system()}, "
             f"{os.cpu_count()} processors, median of {options.rounds}.")
    print(about if options.markdown else f"{about} In brackets the least and the most.", end="\n\n")
    print(table(rows, labels, options.markdown))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"about": about, "figures": {row.figure.name: {
                "unit": row.figure.unit, "values": dict(zip(labels, row.values)), "ratio": row.ratio, "met": row.met,
            } for row in rows}}, file, indent=2)
    if options.plot:
        with open(options.plot, "w", encoding="utf-8") as file:
            file.write(picture(rows, labels, about))
    missed = [row.words for row in rows if row.met is False]
    if options.check and missed:
        print(f"benchmark.py: missed: {'; '.join(missed)}", file=sys.stderr)
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

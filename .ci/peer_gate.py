#!/usr/bin/env python3
"""acp.py against the official SDKs, in both roles: python3 .ci/peer_gate.py [NAME...]

One scripted conversation a pair, in real processes: the scripts in peers/ on the SDKs' public APIs, ours on acp.py.
Prints a row a pair: for each step + passed, ! failed (with the reason below), - what that SDK cannot do (with the
reason below). The first pairs are ours with ours, so that a failure elsewhere is the pair's. With names, only pairs
whose name holds one. Exit status 1 when a step failed.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import installs

HERE = os.path.dirname(os.path.abspath(__file__))
PEERS = os.path.join(HERE, "peers")
sys.path.insert(0, os.path.dirname(HERE))
import acp  # noqa: E402

STEPS = ["initialize", "new", "commands", "thought", "chunks", "plan", "tool", "diff", "permission", "files",
         "terminal", "elicitation", "ask", "tell", "unknown", "turn", "option", "cancel", "second", "error", "list",
         "replay", "resume", "double", "note", "nobody", "close"]
WORDS = """initialize: negotiated, with names; new: a session with its options; commands: its
slash commands; thought, chunks, plan: as sent;
tool, diff: one tool call from pending to completed, with a diff; permission: asked and allowed; files, terminal: of the
client, version 1 only; elicitation: a form; ask, tell: an extension request and notification to the client; unknown: an
update that nobody knows; turn: ends with end_turn; option: a config option is set; cancel: in the middle of a turn;
second: a prompt after that; error: a turn that fails; list; replay: resume (v1 load) with the conversation; resume:
without; double, note: an extension request and notification to the agent; nobody: a session that is not there; close"""
# What an SDK cannot do: (who, step): why. Found by trying; a step that works although it stands here is a failure too.
CANNOT = {
    ("TypeScript v1 client", "unknown"): "the SDK drops updates of kinds that it does not know",
    **{(f"Python {release} {kind}", "unknown"): "the SDK has no model of an unknown update"
       for release, kind in (("0.12.1", "v1"), ("1.0.0rc3", "v1"), ("1.0.0rc3", "router v1"))},
    **{(f"Python {release} v1 client", "unknown"): "the SDK drops updates that it has no model of"
       for release in installs.PYTHON_SDKS},
    **{(f"Python 1.0.0rc3 {kind}", "error"): "the SDK's models are of an earlier draft: an idle state has no error"
       for kind in ("v2", "router v2", "v2 client")},
    ("Python 1.0.0rc3 v2 client", "commands"):
        "the SDK's models are of an earlier draft: a new session's answer has no commands",
}
SECONDS = 60  # for a whole conversation


class Steps:
    """What became of each step: True, or words that say what was wrong."""

    def __init__(self):
        self.done = {}

    def check(self, step, holds, seen=None):
        if self.done.get(step, True) is True:
            self.done[step] = True if holds else f"saw {seen!r}"[:600]


# ---- our client -----------------------------------------------------------------------------------------------------


def our_client(command, version, folder, environment=None):
    """The conversation from our client's side; returns Steps."""
    steps, permissions, forms, asked, told, raw = Steps(), [], [], [], threading.Event(), []

    def permission(request):
        permissions.append(request)
        return True

    def elicitation(request):
        forms.append(request)
        return {"name": "Ada"}

    def extension(method, params):
        asked.append((method, params))
        if method != "_script/ask":
            raise acp.MethodNotFound("no such method", {"method": method})
        return {"n": params["n"] + 1}

    def extension_notification(method, params):
        if (method, params) == ("_script/told", {"n": 3}):
            told.set()

    def on_message(direction, message):
        if direction == "in" and message.get("method") == "session/update":
            raw.append(message["params"]["update"])

    last = "initialize"
    try:
        with acp.Client(command, version=version, permission=permission, elicitation=elicitation, extension=extension,
                        extension_notification=extension_notification, on_message=on_message,
                        terminals=acp.LocalTerminals(), files=acp.LocalFiles(folder), env=environment,
                        start_timeout=30) as client:
            steps.check("initialize", (client.version, client.agent_info.name) == (version, "script"),
                        (client.version, client.agent_info))
            last = "new"
            session = client.new_session(cwd=folder, timeout=20)
            options = [(each.config_id, each.current_value) for each in session.state.config_options]
            deadline = time.monotonic() + 5
            while not session.state.commands and time.monotonic() < deadline:
                time.sleep(0.01)
            names = [each.name for each in session.state.commands]
            steps.check("new", options == [("model", "small")], options)
            steps.check("commands", names == ["again"], names)

            last = "turn"
            turn = session.prompt("everything", timeout=30)
            updates = list(turn)
            text = turn.text
            thoughts = "".join(each.content.text for each in updates if isinstance(each, acp.AgentThoughtChunk))
            steps.check("turn", turn.stop_reason == "end_turn" and text.endswith("Done."), (turn.stop_reason, text))
            steps.check("thought", thoughts == "thinking", thoughts)
            chunks = [each for each in updates if isinstance(each, acp.AgentMessageChunk)]
            steps.check("chunks", text.startswith("Hello, world. ") and len(chunks) > 3, text)
            plans = [[(entry.content, entry.priority, entry.status) for entry in plan.entries]
                     for plan in session.state.plans.values()]
            steps.check("plan", plans == [[("look", "high", "completed"), ("edit", "medium", "in_progress")]], plans)
            calls = list(session.state.tool_calls.values())
            statuses = [each.status for each in updates if isinstance(each, acp.ToolCallUpdate) and each.status]
            steps.check("tool", len(calls) == 1 and (calls[0].title, calls[0].kind, calls[0].status) == (
                "Edit notes", "edit", "completed") and statuses[0] == "pending", (calls, statuses))
            diffs = [each for each in (calls[0].content or [] if calls else []) if isinstance(each, acp.Diff)]
            patch = diffs[0].patch.text if diffs and diffs[0].patch else ""
            steps.check("diff", "-two\n+2\n" in patch, diffs)
            steps.check("permission", [each.title for each in permissions] == ["Edit notes"] and
                        permissions[0].tool_call is not None and "allowed. " in text, (permissions, text))
            if version == 1:
                out = os.path.join(folder, "out.txt")
                written = open(out, encoding="utf-8").read() if os.path.exists(out) else None
                steps.check("files", "read two. " in text and written == "written\n", (text, written))
                steps.check("terminal", "terminal hi 3. " in text, text)
            steps.check("elicitation", "name Ada. " in text and [each.message for each in forms] == ["Who are you?"]
                        and list(forms[0].schema.properties) == ["name"], (forms, text))
            steps.check("ask", "asked 2. " in text and asked == [("_script/ask", {"n": 1})], asked)
            steps.check("tell", told.wait(5), "nothing")
            unknown = [each.data for each in updates if isinstance(each, acp.Unknown)]
            wanted = {"sessionUpdate": "_script_update", "x": {"y": [1, None, "z"]}}
            steps.check("unknown", unknown == [wanted], unknown)

            last = "option"
            session.set_config_option("model", "big", timeout=20)
            options = [(each.config_id, each.current_value) for each in session.state.config_options]
            steps.check("option", options == [("model", "big")], options)
            last = "cancel"
            turn = session.prompt("slow", timeout=30)
            for update in turn:
                if isinstance(update, acp.AgentMessageChunk) and not turn.ended:
                    turn.cancel()
            steps.check("cancel", turn.stop_reason == "cancelled", turn.stop_reason)
            last = "second"
            answer = session.ask("hello", timeout=30)
            steps.check("second", answer == "You said: hello", answer)
            last = "error"
            try:
                session.ask("fail", timeout=30)
                steps.check("error", False, "no error")
            except acp.RequestError as error:
                steps.check("error", (error.code, error.message, error.data) == (
                    -32603, "told to fail", {"why": "the prompt"}), (error.code, error.message, error.data))
            last = "list"
            listed = [each.session_id for each in client.list_sessions(cwd=folder)]
            steps.check("list", session.id in listed, listed)
            last = "replay"
            said = "".join(each.text for each in session.state.messages.values() if each.role != "thought")
            again = client.resume_session(session.id, folder, replay=True, timeout=20)
            replayed = "".join(each.text for each in again.state.messages.values() if each.role != "thought")
            steps.check("replay", said == replayed and "helloYou said: hello" in replayed, (said, replayed))
            last = "resume"
            resumed = client.resume_session(session.id, folder, timeout=20)
            steps.check("resume", resumed.ask("still there?", timeout=30) == "You said: still there?", "another answer")
            last = "double"
            doubled = client.request("_script/double", {"n": 21}, timeout=20)
            steps.check("double", doubled == {"n": 42}, doubled)
            last = "note"
            client.notify("_script/note", {"text": "hi"})
            notes = client.request("_script/notes", {}, timeout=20)
            steps.check("note", notes == {"notes": ["hi"]}, notes)
            last = "nobody"
            try:
                client.session("nobody").ask("hi", timeout=20)
                steps.check("nobody", False, "an answer")
            except acp.RequestError as error:
                steps.check("nobody", error.code == -32002, error)
            last = "close"
            session.close(timeout=20)
            listed = [each.session_id for each in client.list_sessions(cwd=folder)]
            steps.check("close", session.id not in listed, listed)
    except Exception as error:
        steps.check(last, False, error)
    return steps


# ---- their clients --------------------------------------------------------------------------------------------------


def their_client(command, agent, folder, environment=None):
    """The conversation from a client script's side, with our agent: it prints a JSON array a step: name, true or what
    it saw."""
    steps = Steps()
    try:
        done = subprocess.run([*command, folder, *agent], stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=SECONDS, env=dict(os.environ, **(environment or {})))
        out, errors = done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
    except subprocess.TimeoutExpired as error:
        out, errors = (error.stdout or b"").decode("utf-8", "replace"), "it did not end in time"
    for line in out.splitlines():
        step, result = json.loads(line)
        steps.check(step, result is True, result)
    if "close" not in steps.done:
        missing = next((step for step in STEPS if step not in steps.done), "close")
        steps.check(missing, False, f"stopped here: {errors[-500:]}")
    return steps


def pairs():
    """(name, who the SDK is, version, the function that talks)."""
    ours = [sys.executable, os.path.join(PEERS, "our_agent.py")]
    for version in (1, 2):
        yield (f"our client, our agent, v{version}", "ours", version,
               lambda folder, version=version: our_client(ours, version, folder))
    sdk = os.path.join(installs.npm(installs.SDK, installs.ZOD), "node_modules")
    node, where = shutil.which("node") or "node", {"ACP_SDK": sdk}
    for version, kind in ((1, "v1"), (2, "v2"), (1, "router"), (2, "router")):
        command = [node, os.path.join(PEERS, "ts_agent.mjs"), kind]
        yield (f"our client, TypeScript {kind} agent, v{version}", f"TypeScript {kind}", version,
               lambda folder, command=command, version=version: our_client(command, version, folder, where))
    for version in (1, 2):
        command = [node, os.path.join(PEERS, "ts_client.mjs"), f"v{version}"]
        yield (f"TypeScript client, our agent, v{version}", f"TypeScript v{version} client", version,
               lambda folder, command=command: their_client(command, ours, folder, where))
    for release in installs.PYTHON_SDKS:
        python = installs.python(f"agent-client-protocol=={release}")
        kinds = ((1, "v1"), (2, "v2"), (1, "router"), (2, "router")) if release[0] == "1" else ((1, "v1"),)
        for version, kind in kinds:
            command = [python, os.path.join(PEERS, "py_agent.py"), kind]
            who = f"Python {release} {kind}" + (f" v{version}" if kind == "router" else "")
            yield (f"our client, Python {release} {kind} agent, v{version}", who, version,
                   lambda folder, command=command, version=version: our_client(command, version, folder))
        for version in sorted({version for version, _ in kinds}):
            command = [python, os.path.join(PEERS, "py_client.py"), f"v{version}"]
            yield (f"Python {release} client, our agent, v{version}", f"Python {release} v{version} client", version,
                   lambda folder, command=command: their_client(command, ours, folder))


def row(name, who, version, talk):
    """Run a pair; returns its row, and the lines that explain it."""
    with tempfile.TemporaryDirectory() as folder:
        folder = os.path.realpath(folder)
        with open(os.path.join(folder, "notes.txt"), "w", encoding="utf-8") as file:
            file.write("one\ntwo\n")
        begun = time.monotonic()
        steps = talk(folder)
        took = time.monotonic() - begun
    signs, lines, failed = [], [], 0
    for step in STEPS:
        result, cannot = steps.done.get(step), CANNOT.get((who, step))
        if version == 2 and step in ("files", "terminal"):
            signs.append(" ")
        elif cannot and result is not True:
            signs.append("-")
            lines.append(f"    - {step}: {cannot}")
        elif result is True and not cannot:
            signs.append("+")
        else:
            signs.append("!")
            failed += 1
            lines.append(f"    ! {step}: " + ("it works now: take it out of CANNOT" if result is True else
                                              result or "not reached"))
    return f"{name:48} {' '.join(signs)}  {took:5.1f} s", lines, failed


def main():
    wanted, failed, rows = sys.argv[1:], 0, 0
    head = [f"{step:.11}" for step in STEPS]
    for line in range(11):
        print(" " * 49 + " ".join(step.rjust(11)[line] for step in head))
    for name, who, version, talk in pairs():
        if wanted and not any(word in name for word in wanted):
            continue
        text, lines, wrong = row(name, who, version, talk)
        print("\n".join([text, *lines]), flush=True)
        failed, rows = failed + wrong, rows + 1
    print(f"{rows} pairs, {failed} steps failed")
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())

"""The conversation of the peer gate from a client's side, on the official Python SDK:

    py_client.py v1 | v2  FOLDER  AGENT-COMMAND...

Prints a JSON array a step: its name, and true or what was seen instead.
"""
import asyncio
import json
import os
import sys

import acp
from acp import schema as v1

try:
    from acp.experimental import v2
except ImportError:  # an SDK of version 1 only
    v2 = None

two, folder, command = sys.argv[1] == "v2", sys.argv[2], sys.argv[3:]
schema = v2.schema if two else v1


def check(step, seen, wanted):
    print(json.dumps([step, seen == wanted or {"seen": repr(seen), "wanted": repr(wanted)}]), flush=True)


def wire(model):
    return model.model_dump(mode="json", by_alias=True, exclude_unset=True)


def text(words):
    return schema.TextContentBlock.model_validate({"type": "text", "text": words})


class Client(*(() if two else (acp.Client,))):
    def __init__(self):
        self.updates, self.permissions, self.forms, self.asked, self.told = [], [], [], [], []
        self.changed, self.terminals = asyncio.Condition(), {}

    def on_connect(self, connection):
        self.connection = connection

    async def until(self, holds):
        async with self.changed:
            await asyncio.wait_for(self.changed.wait_for(holds), 20)

    def said(self, kind="agent_message_chunk"):
        return "".join(each["content"]["text"] for each in self.updates if each["sessionUpdate"] == kind)

    # ---- what the agent asks ----
    async def session_update(self, session_id, update, **more):
        async with self.changed:
            self.updates.append({"sessionUpdate": update.session_update, **wire(update)})
            self.changed.notify_all()

    async def request_permission(self, session_id, options, title=None, tool_call=None, **more):
        self.permissions.append(title or tool_call.title)
        option = next(each for each in options if each.kind == "allow_once")
        return schema.RequestPermissionResponse.model_validate({
            "outcome": {"outcome": "selected", "optionId": option.option_id}})

    async def create_elicitation(self, message, mode, requested_schema=None, **more):
        form = requested_schema or mode.requested_schema
        self.forms.append([message, list(form.properties)])
        return schema.AcceptElicitationResponse.model_validate({"action": "accept", "content": {"name": "Ada"}})

    async def handle_extension_request(self, method, params):
        self.asked.append((method, params))
        return {"n": params["n"] + 1}

    async def handle_extension_notification(self, method, params):
        self.told.append((method, params))

    async def ext_method(self, method, params):  # version 1 of the SDK takes the underscore off
        return await self.handle_extension_request("_" + method, params)

    async def ext_notification(self, method, params):
        await self.handle_extension_notification("_" + method, params)

    # ---- files and terminals, version 1 ----
    async def read_text_file(self, session_id, path, line=None, limit=None, **more):
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines(True)
        return v1.ReadTextFileResponse(content="".join(lines[line - 1:line - 1 + limit]))

    async def write_text_file(self, session_id, path, content, **more):
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
        return v1.WriteTextFileResponse()

    async def create_terminal(self, session_id, command, args=None, env=None, cwd=None, **more):
        environment = dict(os.environ, **{each.name: each.value for each in env or ()})
        process = await asyncio.create_subprocess_exec(command, *args, cwd=cwd, env=environment,
                                                       stdout=asyncio.subprocess.PIPE)
        self.terminals["t"] = process, asyncio.ensure_future(process.communicate())
        return v1.CreateTerminalResponse(terminal_id="t")

    async def wait_for_terminal_exit(self, session_id, terminal_id, **more):
        await self.terminals[terminal_id][1]
        return v1.WaitForTerminalExitResponse(exit_code=self.terminals[terminal_id][0].returncode)

    async def terminal_output(self, session_id, terminal_id, **more):
        output, _ = await self.terminals[terminal_id][1]
        return v1.TerminalOutputResponse(output=output.decode(), truncated=False)

    async def release_terminal(self, session_id, terminal_id, **more):
        return v1.ReleaseTerminalResponse()


async def talk(client, connection):
    if two:
        hello = await connection.initialize(2, schema.Implementation(name="peer", version="1"),
                                            schema.ClientCapabilities.model_validate({"elicitation": {"form": {}}}))
    else:
        hello = await connection.initialize(
            1, client_info=schema.Implementation(name="peer", version="1"),
            client_capabilities=schema.ClientCapabilities.model_validate({
                "fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True, "elicitation": {"form": {}}}))
    check("initialize", [hello.protocol_version, (hello.info if two else hello.agent_info).name],
          [2 if two else 1, "script"])
    made = await connection.new_session(cwd=folder, mcp_servers=[])
    session = made.session_id

    def chosen(options):
        return [[each.config_id if two else each.id, each.current_value] for each in options]

    def commands():
        found = [each["availableCommands"] for each in client.updates
                 if each["sessionUpdate"] == "available_commands_update"]
        return wire(made).get("availableCommands", ()) if two else found and found[0]

    if not two:
        await client.until(commands)
    check("new", chosen(made.config_options), [["model", "small"]])
    check("commands", [each["name"] for each in commands()], ["again"])

    def idle():
        return next((each for each in client.updates if each["sessionUpdate"] == "state_update"
                     and each.get("state") == "idle" and each.get("stopReason")), None)

    async def prompt(words, during=None):
        client.updates = []
        answer = asyncio.ensure_future(connection.prompt(session_id=session, prompt=[text(words)]))
        if during is not None:
            await during()
        answer = await answer
        if not two:
            return answer.stop_reason
        await client.until(idle)
        return idle()["stopReason"]

    reason = await prompt("everything")
    answer = client.said()
    check("turn", [reason, answer.endswith("Done.")], ["end_turn", True])
    check("thought", client.said("agent_thought_chunk"), "thinking")
    check("chunks", answer.startswith("Hello, world. "), True)
    plan = next((each for each in client.updates if each["sessionUpdate"] == ("plan_update" if two else "plan")), {})
    check("plan", plan.get("plan", plan).get("entries"), [
        {"content": "look", "priority": "high", "status": "completed"},
        {"content": "edit", "priority": "medium", "status": "in_progress"}])
    calls = [each for each in client.updates if each["sessionUpdate"].startswith("tool_call")]
    statuses = [each["status"] for each in calls if each.get("status")]
    check("tool", [calls[0]["title"], calls[0]["kind"], statuses[0], statuses[-1],
                   len({each["toolCallId"] for each in calls})], ["Edit notes", "edit", "pending", "completed", 1])
    contents = [each for call in calls for each in ([call["content"]] if isinstance(call.get("content"), dict)
                                                    else call.get("content") or ())]
    diff = next((each for each in contents if each.get("type") == "diff"), {})
    check("diff", "-two\n+2\n" in diff["patch"]["text"] if two else [diff.get("oldText"), diff.get("newText")],
          True if two else ["one\ntwo\n", "one\n2\n"])
    check("permission", [client.permissions, "allowed. " in answer], [["Edit notes"], True])
    if not two:
        with open(os.path.join(folder, "out.txt"), encoding="utf-8") as file:
            check("files", ["read two. " in answer, file.read()], [True, "written\n"])
        check("terminal", ["terminal hi 3. " in answer, any(each.get("type") == "terminal" for each in contents)],
              [True, True])
    check("elicitation", ["name Ada. " in answer, client.forms], [True, [["Who are you?", ["name"]]]])
    check("ask", ["asked 2. " in answer, client.asked], [True, [("_script/ask", {"n": 1})]])
    check("tell", client.told, [("_script/told", {"n": 3})])
    check("unknown", [each for each in client.updates if each["sessionUpdate"] == "_script_update"],
          [{"sessionUpdate": "_script_update", "x": {"y": [1, None, "z"]}}])

    changed = await connection.set_config_option("model", session, "big")
    check("option", chosen(changed.config_options), [["model", "big"]])

    async def cancel():
        await client.until(client.said)
        await (connection.cancel_session if two else connection.cancel)(session_id=session)
    check("cancel", await prompt("slow", cancel), "cancelled")
    await prompt("hello")
    check("second", client.said(), "You said: hello")
    try:
        await prompt("fail")
        error = idle().get("error") if two else None
    except acp.RequestError as fault:
        error = {"code": fault.code, "message": str(fault), "data": fault.data}
    check("error", error, {"code": -32603, "message": "told to fail", "data": {"why": "the prompt"}})

    async def listed():
        return [each.session_id for each in (await connection.list_sessions(cwd=folder)).sessions]
    check("list", await listed(), [session])
    client.updates = []
    if two:
        start = schema.ReplayFromStartVariant.model_validate({"type": "start"})
        again = await connection.resume_session(session, folder, mcp_servers=[], replay_from=start)
    else:
        again = await connection.load_session(cwd=folder, session_id=session, mcp_servers=[])
    await asyncio.sleep(0)
    replayed = "".join(block["text"] for each in client.updates
                       if each["sessionUpdate"].startswith(("user_message", "agent_message"))
                       for block in (each["content"] if isinstance(each["content"], list) else [each["content"]]))
    check("replay", [chosen(again.config_options), replayed.startswith("everythingHello, world. "),
                     "helloYou said: hello" in replayed], [[["model", "big"]], True, True])
    await connection.resume_session(session_id=session, cwd=folder, mcp_servers=[])
    await prompt("still there?")
    check("resume", client.said(), "You said: still there?")
    ask = connection.send_extension_request if two else lambda method, params: connection.ext_method(method[1:], params)
    tell = connection.send_extension_notification if two else (
        lambda method, params: connection.ext_notification(method[1:], params))
    check("double", await ask("_script/double", {"n": 21}), {"n": 42})
    await tell("_script/note", {"text": "hi"})
    check("note", await ask("_script/notes", {}), {"notes": ["hi"]})
    try:
        await connection.prompt(session_id="nobody", prompt=[text("hi")])
        code = None
    except acp.RequestError as fault:
        code = fault.code
    check("nobody", code, -32002)
    await connection.close_session(session_id=session)
    check("close", await listed(), [])


async def main():
    agent = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE,
                                                 stdout=asyncio.subprocess.PIPE, limit=50 << 20)
    client = Client()
    if two:
        connection = v2.connect_to_agent(client, agent.stdin, agent.stdout)
    else:
        connection = acp.connect_to_agent(client, agent.stdin, agent.stdout, use_unstable_protocol=True)
    try:
        await talk(client, connection)
    finally:
        await connection.close()
        agent.stdin.close()
        await agent.wait()


asyncio.run(main())

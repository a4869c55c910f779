"""The scripted agent of the peer gate on the official Python SDK: py_agent.py v1 | v2 | router

Runs in an environment where `acp` is that SDK. What it sends is validated by the SDK's models before it goes out.
"""
import asyncio
import itertools
import os
import sys

import acp
from acp import schema as v1

try:
    from acp.experimental import AgentProtocolRouter, v2
except ImportError:  # an SDK of version 1 only
    AgentProtocolRouter = v2 = None

sessions, notes, count = {}, [], itertools.count(1)


class Session:
    def __init__(self, cwd):
        self.cwd, self.model, self.log, self.stop = cwd, "small", [], asyncio.Event()


def text(words):
    return {"type": "text", "text": words}


class Script:
    """The script, in wire words; a subclass puts it on one version's connection."""

    two = False

    def __init__(self, connection=None):
        self.connection = connection

    def on_connect(self, connection):
        self.connection = connection

    def known(self, session_id):
        if session_id not in sessions:
            raise acp.RequestError.resource_not_found(session_id)
        return sessions[session_id]

    def options(self, session):
        return [{"configId" if self.two else "id": "model", "name": "Model", "type": "select",
                 "currentValue": session.model,
                 "options": [{"value": "small", "name": "Small"}, {"value": "big", "name": "Big"}]}]

    async def turn(self, session_id, session, words):
        """All of a turn but its end; returns the stop reason."""
        message, session.stop = f"answer-{next(count)}", asyncio.Event()

        async def send(keep=False, **update):
            if keep:
                session.log.append(update)
            await self.update(session_id, update)

        async def chunk(kind, id, words):
            await send(True, sessionUpdate=kind, content=text(words), **({"messageId": id} if self.two else {}))

        async def say(words):
            await chunk("agent_message_chunk", message, words)

        if words == "slow":
            while not session.stop.is_set():
                await say("tick ")
                await asyncio.sleep(0.05)
            return "cancelled"
        if words == "fail":
            raise acp.RequestError(-32603, "told to fail", {"why": "the prompt"})
        if words != "everything":
            await say("You said: " + words)
            return "end_turn"
        path, call = os.path.join(session.cwd, "notes.txt"), f"tool-{next(count)}"
        await chunk("agent_thought_chunk", f"thought-{message}", "thinking")
        await say("Hello, ")
        await say("world. ")
        entries = [{"content": "look", "priority": "high", "status": "completed"},
                   {"content": "edit", "priority": "medium", "status": "in_progress"}]
        if self.two:
            await send(sessionUpdate="plan_update", plan={"type": "items", "planId": "plan", "entries": entries})
            patch = f"diff --git {path} {path}\n--- {path}\n+++ {path}\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
            diff = {"type": "diff", "changes": [{"operation": "modify", "path": path}],
                    "patch": {"format": "git_patch", "text": patch}}
        else:
            await send(sessionUpdate="plan", entries=entries)
            diff = {"type": "diff", "path": path, "oldText": "one\ntwo\n", "newText": "one\n2\n"}
        await send(sessionUpdate="tool_call_update" if self.two else "tool_call", toolCallId=call, title="Edit notes",
                   kind="edit", status="pending", locations=[{"path": path, "line": 1}], rawInput={"path": path},
                   content=[diff])
        if self.two:
            await send(sessionUpdate="state_update", state="requires_action")
        chosen = await self.permission(session_id, {"toolCallId": call, "title": "Edit notes"}, [
            {"optionId": "yes", "name": "Allow", "kind": "allow_once"},
            {"optionId": "no", "name": "Reject", "kind": "reject_once"}])
        if self.two:
            await send(sessionUpdate="state_update", state="running")
        await say("allowed. " if chosen == "yes" else "refused. ")
        await send(sessionUpdate="tool_call_update", toolCallId=call, status="in_progress")
        if not self.two:
            await self.client_side(session_id, session, path, call, diff, say, send)
        await send(sessionUpdate="tool_call_update", toolCallId=call, status="completed", rawOutput={"ok": True})
        form = {"type": "object", "properties": {"name": {"type": "string", "title": "Name"}}, "required": ["name"]}
        answer = await self.elicit(session_id, "Who are you?", form)
        await say(f"name {answer.content['name']}. ")
        answer = await self.extension("_script/ask", {"n": 1})
        await say(f"asked {answer['n']}. ")
        await self.tell("_script/told", {"n": 3})
        await self.unknown(session_id, {"sessionUpdate": "_script_update", "x": {"y": [1, None, "z"]}})
        await send(sessionUpdate="usage_update", used=10, size=1000)
        await say("Done.")
        return "end_turn"

    # ---- what both versions' agents answer ----
    def announce(self, session_id, command):
        """The commands, a moment after the answer that names the session."""
        update = {"sessionUpdate": "available_commands_update", "availableCommands": [command]}
        asyncio.get_running_loop().call_later(0.01, lambda: asyncio.ensure_future(self.update(session_id, update)))

    async def close_session(self, session_id, **more):
        if session_id in sessions:
            sessions.pop(session_id).stop.set()
        return {}

    async def replay(self, session_id):
        for update in self.known(session_id).log:
            await self.update(session_id, update)

    async def extended(self, method, params):
        if method == "_script/double":
            return {"n": 2 * params["n"]}
        if method == "_script/notes":
            return {"notes": notes}
        raise acp.RequestError.method_not_found(method)


class One(Script, acp.Agent):
    """Version 1."""

    async def initialize(self, protocol_version, client_capabilities=None, client_info=None, **more):
        return v1.InitializeResponse.model_validate({
            "protocolVersion": 1, "agentInfo": {"name": "script", "title": "The script", "version": "1"},
            "agentCapabilities": {"loadSession": True, "sessionCapabilities": {"list": {}, "resume": {}, "close": {}}}})

    async def new_session(self, cwd, **more):
        session_id = f"session-{next(count)}"
        sessions[session_id] = Session(cwd)
        self.announce(session_id, {"name": "again", "description": "do it again", "input": {"hint": "what"}})
        return v1.NewSessionResponse.model_validate({
            "sessionId": session_id, "configOptions": self.options(sessions[session_id])})

    async def load_session(self, cwd, session_id, **more):
        await self.replay(session_id)
        return v1.LoadSessionResponse.model_validate({"configOptions": self.options(sessions[session_id])})

    async def resume_session(self, session_id, cwd, **more):
        return v1.ResumeSessionResponse.model_validate({"configOptions": self.options(self.known(session_id))})

    async def list_sessions(self, cwd=None, cursor=None, **more):
        return v1.ListSessionsResponse.model_validate({"sessions": [
            {"sessionId": key, "cwd": each.cwd} for key, each in sessions.items() if cwd in (None, each.cwd)]})

    async def set_config_option(self, config_id, session_id, value, **more):
        self.known(session_id).model = value
        return v1.SetSessionConfigOptionResponse.model_validate({"configOptions": self.options(sessions[session_id])})

    async def cancel(self, session_id, **more):
        sessions[session_id].stop.set()

    async def prompt(self, session_id, prompt, **more):
        session = self.known(session_id)
        for block in prompt:
            session.log.append({"sessionUpdate": "user_message_chunk", "content": text(block.text)})
        reason = await self.turn(session_id, session, "".join(block.text for block in prompt))
        return v1.PromptResponse.model_validate({"stopReason": reason})

    async def ext_method(self, method, params):  # the SDK takes the underscore off
        return await self.extended("_" + method, params)

    async def ext_notification(self, method, params):
        notes.append(params["text"])

    # ---- towards the client ----
    async def update(self, session_id, update):
        made = v1.SessionNotification.model_validate({"sessionId": session_id, "update": update})
        await self.connection.session_update(session_id, made.update)

    async def permission(self, session_id, call, options):
        answer = await self.connection.request_permission(
            session_id=session_id, tool_call=v1.ToolCallUpdate.model_validate(call),
            options=[v1.PermissionOption.model_validate(each) for each in options])
        return getattr(answer.outcome, "option_id", None)

    async def elicit(self, session_id, message, form):
        mode = v1.ElicitationFormSessionMode.model_validate({
            "sessionId": session_id, "mode": "form", "requestedSchema": form})
        return await self.connection.create_elicitation(message, mode)

    async def extension(self, method, params):
        return await self.connection.ext_method(method[1:], params)

    async def tell(self, method, params):
        await self.connection.ext_notification(method[1:], params)

    async def unknown(self, session_id, update):
        """The SDK's models of version 1 know no such update, so it cannot be sent."""

    async def client_side(self, session_id, session, path, call, diff, say, send):
        client = self.connection
        read = await client.read_text_file(session_id=session_id, path=path, line=2, limit=1)
        await say(f"read {read.content.strip()}. ")
        await client.write_text_file(session_id=session_id, path=os.path.join(session.cwd, "out.txt"),
                                     content="written\n")
        made = await client.create_terminal(
            session_id=session_id, command="sh", args=["-c", "echo $GREETING; exit 3"], cwd=session.cwd,
            env=[v1.EnvVariable(name="GREETING", value="hi")], output_byte_limit=1000)
        terminal = getattr(made, "terminal_id", None) or made.id
        await send(sessionUpdate="tool_call_update", toolCallId=call,
                   content=[diff, {"type": "terminal", "terminalId": terminal}])
        exited = await client.wait_for_terminal_exit(session_id=session_id, terminal_id=terminal)
        output = await client.terminal_output(session_id=session_id, terminal_id=terminal)
        await client.release_terminal(session_id=session_id, terminal_id=terminal)
        await say(f"terminal {output.output.strip()} {exited.exit_code}. ")


class Two(Script):
    """Version 2; its handlers are found by name."""

    two = True

    async def initialize(self, protocol_version, info, capabilities=None, **more):
        return v2.schema.InitializeResponse.model_validate({
            "protocolVersion": 2, "info": {"name": "script", "title": "The script", "version": "1"},
            "capabilities": {"session": {}}})

    async def new_session(self, cwd, **more):
        session_id = f"session-{next(count)}"
        sessions[session_id] = Session(cwd)
        self.announce(session_id, {"type": "command", "name": "again", "description": "do it again",
                                   "input": {"type": "text", "hint": "what"}})
        return v2.schema.NewSessionResponse.model_validate({
            "sessionId": session_id, "configOptions": self.options(sessions[session_id])})

    async def resume_session(self, session_id, cwd, replay_from=None, **more):
        session = self.known(session_id)
        if replay_from is not None:
            await self.replay(session_id)
        await self.update(session_id, {"sessionUpdate": "state_update", "state": "idle"})
        return v2.schema.ResumeSessionResponse.model_validate({"configOptions": self.options(session)})

    async def list_sessions(self, cwd=None, cursor=None, **more):
        return v2.schema.ListSessionsResponse.model_validate({"sessions": [
            {"sessionId": key, "cwd": each.cwd} for key, each in sessions.items() if cwd in (None, each.cwd)]})

    async def set_config_option(self, config_id, session_id, value, **more):
        self.known(session_id).model = value
        return v2.schema.SetSessionConfigOptionResponse.model_validate({
            "configOptions": self.options(sessions[session_id])})

    async def cancel_session(self, session_id, **more):
        sessions[session_id].stop.set()

    async def prompt(self, session_id, prompt, **more):
        session, message = self.known(session_id), f"prompt-{next(count)}"
        echo = {"sessionUpdate": "user_message", "messageId": message, "content": [text(each.text) for each in prompt]}
        session.log.append(echo)
        words = "".join(each.text for each in prompt)

        async def run():
            await self.update(session_id, echo)
            await self.update(session_id, {"sessionUpdate": "state_update", "state": "running"})
            try:
                end = {"stopReason": await self.turn(session_id, session, words)}
            except acp.RequestError as error:
                end = {"stopReason": "error", "error": {"code": error.code, "message": str(error), "data": error.data}}
            await self.update(session_id, {"sessionUpdate": "state_update", "state": "idle", **end})
        self.running = asyncio.ensure_future(run())
        return v2.schema.PromptResponse.model_validate({"messageId": message})

    async def handle_extension_request(self, method, params):
        return await self.extended(method, params)

    async def handle_extension_notification(self, method, params):
        notes.append(params["text"])

    # ---- towards the client ----
    async def update(self, session_id, update):
        made = v2.schema.UpdateSessionNotification.model_validate({"sessionId": session_id, "update": update})
        await self.connection.session_update(session_id, made.update)

    unknown = update

    async def permission(self, session_id, call, options):
        made = v2.schema.RequestPermissionRequest.model_validate({
            "sessionId": session_id, "title": "Edit notes", "options": options,
            "subject": {"type": "tool_call", "toolCall": call}})
        answer = await self.connection.request_permission(session_id, made.title, made.options, subject=made.subject)
        return getattr(answer.outcome, "option_id", None)

    async def elicit(self, session_id, message, form):
        return await self.connection.create_elicitation(
            message, "form", session_id=session_id, requested_schema=v2.schema.ElicitationSchema.model_validate(form))

    async def extension(self, method, params):
        return await self.connection.send_extension_request(method, params)

    async def tell(self, method, params):
        await self.connection.send_extension_notification(method, params)


if __name__ == "__main__":
    kind = sys.argv[1]
    if kind == "router":
        asyncio.run(AgentProtocolRouter(v1=One, v2=Two).run())
    else:
        asyncio.run(acp.run_agent(One(), use_unstable_protocol=True) if kind == "v1" else v2.run_agent(Two()))

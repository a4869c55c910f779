"""What type checkers must take: a script as its author would write it, checked beside acp.py and never run."""
from typing import Iterator, Optional

import acp


class Typed(acp.Agent):
    prompt_capabilities = acp.PromptCapabilities(image=True)

    def new_session(self, session: acp.AgentSession) -> None:
        session.config_options = [acp.SessionConfigBoolean("fast", "Fast", True)]
        session.spoken = 0  # attach what you like

    def resume_session(self, session: acp.AgentSession, replay: bool) -> Optional[acp.SessionState]:
        return None

    def set_config_option(self, session: acp.AgentSession, config_id: str, value: "str | bool") -> None:
        print(config_id, value)

    def list_sessions(self, cwd: Optional[str]) -> Iterator[acp.SessionInfo]:
        yield acp.SessionInfo("s", "/", title="A session")

    def prompt(self, turn: acp.Turn) -> Optional[str]:
        turn.session.spoken += 1
        turn.say(acp.ImageContent("aGk=", "image/png"))
        turn.plan(["one", acp.PlanEntry("two", priority=acp.PlanEntryPriority.HIGH)])
        with turn.tool("Write", kind=acp.ToolKind.EDIT, locations=["/x"]) as tool:
            tool.update(status=acp.ToolCallStatus.IN_PROGRESS)
            if tool.ask_permission(remember="write"):
                turn.write_text_file("/x", "y")
            with tool.terminal("ls", ["-a"], env={"A": "b"}) as terminal:
                print(terminal.wait(1.0).exit_code)
        turn.send(acp.Notice(acp.NoticeSeverity.INFO, "done"))
        turn.usage(1, 2, acp.Cost(0.1, "EUR"))
        answer = turn.elicit("How many?", {"count": acp.IntegerPropertySchema(minimum=1)})
        return acp.StopReason.REFUSAL if not answer else None


def permission(request: acp.PermissionRequest) -> bool:
    return request.tool_call is not None and request.tool_call.kind == acp.ToolKind.READ


with acp.Client(Typed(), permission=permission, files=acp.LocalFiles("/"), version=2) as client:
    client_session = client.new_session(".", mcp_servers=[acp.McpServerStdio("name", "command")])
    print(client_session.ask(["look", acp.ImageContent("aGk=", "image/png")], timeout=3).upper())
    for text in client_session.stream("x", idle_timeout=1.0):
        print(text.upper())
    for update in client_session.prompt(acp.TextContent("x")):
        if isinstance(update, acp.ToolCallUpdate):
            print(update.title)
    for call in client_session.state.tool_calls.values():
        print(call.title, [place.path for place in call.locations or ()])
    stored = [acp.to_wire(each, 2) for each in client_session.state.snapshot()]

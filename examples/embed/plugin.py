"""An agent inside a program whose own loop owns the main thread: an editor, a 3D modeller, a debugger.

The one idea: acp runs its threads, and calls back by way of `dispatch`, which is the host's own way to run something in
its main thread (`wx.CallAfter`, `QTimer.singleShot`, `idle_add`, `after`; here `host.post`). So callbacks may touch the
window, and none of this code needs a lock. What blocks never runs there: the start and the wait for a turn's end have a
thread each, which posts what comes of it. `session.prompt` and `cancel` return at once: the main thread may call them.

    python3 examples/embed/host.py [--v2] [-- COMMAND ...]
"""
import os
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(os.path.dirname(HERE)))  # yours is vendored: from mytool._vendor import acp
import acp  # noqa: E402

ECHO = [sys.executable, os.path.join(os.path.dirname(HERE), "echo_agent.py")]


class Plugin:
    """Everything but `start` and `wait` runs in the host's main thread."""

    def __init__(self, host, version=1, command=()):
        self.host, self.version, self.command = host, version, list(command) or ECHO
        self.client = self.session = self.turn = None
        threading.Thread(target=self.start, daemon=True).start()

    def start(self):
        """In a thread of its own, since it blocks: the window is there at once."""
        try:
            self.client = acp.Client(
                self.command, version=self.version, name="host", dispatch=self.host.post, on_update=self.update,
                permission=self.permission)
            self.session = self.client.new_session(cwd=os.getcwd())
        except acp.Error as error:
            self.post(f"[no agent: {error}]\n")
        else:
            self.post(f"[{self.client.agent_info.name} is ready]\n")

    def wait(self, turn):
        """In a thread of its own, since it blocks. What the turn has said is posted before."""
        try:
            self.post(f"\n[{turn.wait()}]\n")
        except acp.Error as error:
            self.post(f"\n[error: {error}]\n")

    def post(self, text):
        self.host.post(lambda: self.host.show(text))

    def ask(self, text):
        if self.session is None:
            return self.host.show("[not ready]\n")
        self.turn = self.session.prompt(text)
        threading.Thread(target=self.wait, args=(self.turn,), daemon=True).start()

    def cancel(self):
        if self.turn is not None:
            self.turn.cancel()

    def update(self, session, update):
        if isinstance(update, acp.AgentMessageChunk) and isinstance(update.content, acp.TextContent):
            self.host.show(update.content.text)
        elif isinstance(update, acp.ToolCallUpdate):
            call = session.state.tool_calls[update.tool_call_id]
            self.host.show(f"\n[{call.title or call.tool_call_id}: {call.status or 'pending'}]\n")

    def permission(self, request):
        """The dialog is modal, but the loop turns: updates go on to be shown, and the user may cancel."""
        number = self.host.choose(request.title, [option.name for option in request.options])
        return None if number is None else request.options[number]

    def close(self):
        if self.client is not None:
            self.client.close()

"""Lets an editor and an agent that speak different versions of the protocol work together:

    python3 examples/bridge.py -- COMMAND ...

An editor starts it in place of the agent. Where its settings say `"command": "gemini", "args": ["--acp"]`, write
`"command": "python3", "args": ["/path/to/examples/bridge.py", "--", "gemini", "--acp"]`. It takes an editor of either
version, starts COMMAND and asks it for the editor's version, so that as little as possible has to be translated; an
agent that cannot speak that one is started again and asked for the other. It offers what the agent offers, under the
agent's name; what either says goes on to the other, in the other's version. The agent's standard error goes to standard
error. The end of one is the end of the other.

On a terminal (an editor's login in a terminal) it runs COMMAND itself. Exit status: 0 the editor ended it, 1 the agent
could not be started or ended first, 2 wrong use.
"""
import _thread
import contextlib
import copy
import functools
import os
import signal
import subprocess
import sys
import threading
import types

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # acp.py is one folder up
import acp  # noqa: E402

SERVICES = {  # what an editor of version 1 may do for the agent
    "fs/read_text_file": acp.ReadTextFileResponse, "fs/write_text_file": acp.WriteTextFileResponse,
    "terminal/create": acp.CreateTerminalResponse, "terminal/output": acp.TerminalOutputResponse,
    "terminal/wait_for_exit": acp.WaitForTerminalExitResponse, "terminal/kill": acp.KillTerminalResponse,
    "terminal/release": acp.ReleaseTerminalResponse}
note = functools.partial(print, file=sys.stderr, flush=True)


@contextlib.contextmanager
def in_its_words():
    """What the other side refuses is refused here by the same error."""
    try:
        yield
    except acp.RequestError as error:
        raise acp.RequestError.of(error.code, error.message, error.data) from None
    except acp.Unsupported as error:
        raise acp.InvalidParams(str(error)) from None
    except acp.Error as error:
        raise acp.RequestError(-32603, str(error)) from None


class Bridge(acp.Agent):
    """What the editor takes for the agent. `peer` is the editor and `client` leads to the agent; a session of the
    editor's has the agent's as `theirs`, which has the editor's as `ours`."""

    versions = (1, 2)
    client = None
    status = 0  # the exit status, once there is a reason

    def __init__(self, command):
        self.command, self.lock = command, threading.Lock()  # it guards `ours` and `early` of the agent's sessions
        self.scopes = []  # ids of the editor's requests that are under way and belong to no session, the latest last

    # ---- the connection ---------------------------------------------------------------------------------------------

    @in_its_words()
    def initialize(self, peer):
        before, self.client, self.peer, can = self.client, None, peer, peer.capabilities
        if before is not None:  # the editor introduces itself anew
            before.close()
        serve = {name.split("/")[1]: functools.partial(self.ask, name, answer) for name, answer in SERVICES.items()}
        start = functools.partial(
            acp.Client, self.command, name=peer.info.name, title=peer.info.title, client_version=peer.info.version,
            capabilities_meta=can.meta, auth_terminal=bool(can.auth and can.auth.terminal),
            files=can.fs and types.SimpleNamespace(**serve, write=can.fs.write_text_file),
            terminals=can.terminal and types.SimpleNamespace(**serve),
            permission=self.permission, elicitation=can.elicitation and self.elicitation, on_update=self.update,
            on_stderr=note, extension=in_its_words()(peer.request),
            extension_notification=peer.notify)
        try:
            self.client = start(version=peer.version)
        except acp.RequestError:  # UnsupportedVersion, or whatever it says to words that it does not know
            self.client = start(version=3 - peer.version)
        self.mirror(self.client)
        threading.Thread(target=self.watch, args=(self.client,), daemon=True).start()

    def mirror(self, client):
        """Offer what the agent offers."""
        can, info = client.capabilities, client.agent_info
        session, mcp = can.session or acp.SessionCapabilities(), copy.copy(can.session and can.session.mcp)
        if client.version == 1:  # it takes stdio without saying so
            mcp = mcp or acp.McpCapabilities()
            mcp.stdio = True
        logout = client.auth_methods if client.version == 2 else can.auth and can.auth.logout
        self.__dict__.update(
            name=info.name, title=info.title, version=info.version, prompt_capabilities=session.prompt,
            mcp_capabilities=mcp, additional_directories=session.additional_directories, capabilities_meta=can.meta,
            auth_methods=client.auth_methods, history=not client.offers("load"))
        for hook, function, offered in (
                ("resume_session", self.resume, client.offers("load") or client.offers("resume")),
                ("delete_session", self.delete, session.delete), ("logout", in_its_words()(client.logout), logout)):
            if offered:
                setattr(self, hook, function)

    def watch(self, client):
        """The end of the agent is the bridge's: it answers what is open, as it does on Ctrl-C."""
        client.connection.wait_closed()
        if client is self.client:
            self.status = 1
            _thread.interrupt_main()

    @contextlib.contextmanager
    def scope(self):
        """Inside, what the agent asks outside a session belongs to the editor's request that is handled here."""
        self.scopes.append(id := self.peer.request_id)
        try:
            with in_its_words():
                yield
        finally:
            self.scopes.remove(id)

    def login(self, method_id):
        with self.scope():
            self.client.login(method_id)

    @in_its_words()
    def extension(self, peer, method, params):
        return self.client.request(method, params)

    def extension_notification(self, peer, method, params):
        self.client.notify(method, params)

    # ---- sessions ---------------------------------------------------------------------------------------------------

    def new_session(self, session):
        with self.scope():
            theirs = self.client.new_session(
                session.cwd, mcp_servers=session.mcp_servers, additional_directories=session.additional_directories,
                meta=session.meta)
        session.id, session.response_meta = theirs.id, theirs.meta
        self.link(session, theirs)

    def resume(self, session, replay):
        theirs = self.client.session(session.id)
        theirs.ours = None  # until it is linked (anew), what comes is kept
        try:
            with self.scope():
                self.client.resume_session(
                    session.id, session.cwd, replay=replay, mcp_servers=session.mcp_servers,
                    additional_directories=session.additional_directories, meta=session.meta)
            session.response_meta = theirs.meta
        finally:
            history = self.link(session, theirs, replay or not self.client.offers("resume"))
        return history

    def link(self, session, theirs, replayed=False):
        """From now on the two are one. Returns what the agent has said so far where that is history."""
        session.theirs, session.turn = theirs, None
        session.state.apply(acp.ConfigOptionUpdate(theirs.state.config_options))  # the answer carries these
        if self.client.version == 2:
            session.state.apply(acp.AvailableCommandsUpdate(theirs.state.commands))
        with self.lock:
            theirs.ours, early = session, theirs.__dict__.pop("early", [])
            for update in () if replayed else early:
                self.forward(session, update)
        return early if replayed else []

    @in_its_words()
    def list_sessions(self, cwd):
        return list(self.client.list_sessions(cwd)) if self.client.offers("list") else super().list_sessions(cwd)

    @in_its_words()
    def close_session(self, session):
        if self.client.offers("close"):
            session.theirs.close()

    @in_its_words()
    def delete(self, session_id):
        self.client.delete_session(session_id)

    @in_its_words()
    def set_config_option(self, session, config_id, value):
        session.theirs.set_config_option(config_id, value)
        session.state.apply(acp.ConfigOptionUpdate(session.theirs.state.config_options))  # and the answer carries it

    @in_its_words()
    def cancel_tool_call(self, session, tool_call_id):
        session.theirs.cancel_tool_call(tool_call_id)

    @in_its_words()
    def cancel_terminal(self, session, terminal_id):
        session.theirs.cancel_terminal(terminal_id)

    # ---- turns ------------------------------------------------------------------------------------------------------

    @in_its_words()
    def accept(self, turn):
        """The prompt goes on to the agent, and has its place here once it has one there, under the same id."""
        turn.sent, turn.begun, turn.theirs, turn.session.turn = threading.Event(), threading.Event(), None, turn
        try:
            turn.theirs = theirs = turn.session.theirs.prompt(turn.params)
            turn.sent.set()
            turn.on_cancel(theirs.cancel)
            with theirs.session.changed:
                while not (theirs.inserted or theirs.ended):
                    theirs.session.changed.wait(0.3)
            if not theirs.inserted:
                theirs.wait()  # raises why, or it was cancelled
                raise acp.RequestCancelled()
            turn.message_id = theirs.message_id or turn.message_id
        except BaseException:
            if turn.session.turn is turn:
                turn.session.turn = None
            turn.sent.set()
            turn.begun.set()
            raise

    @in_its_words()
    def prompt(self, turn):
        turn.begun.set()
        try:
            for _ in turn.theirs:  # left at once: then the agent's questions come side by side, in threads of their own
                break
            turn.theirs.wait()
            return turn.theirs.end or turn.theirs.stop_reason
        finally:
            if turn.session.turn is turn:
                turn.session.turn = None

    def running(self, session):
        """The editor's turn, or None. One that was cancelled before it began has ended, even if the agent began it."""
        turn = session.turn
        return None if turn is None or turn.ended else turn

    def cancel(self, session):
        turn = session.turn  # a turn that runs, or is on its way to the agent, is cancelled by its on_cancel
        if turn is None or (turn.ended and turn.theirs and (turn.theirs.inserted or turn.theirs.ended)):
            session.theirs.cancel()  # what the agent does by itself

    def update(self, theirs, update):
        """What the agent says goes on to the editor."""
        turn = getattr(getattr(theirs, "ours", None), "turn", None)
        if turn is not None and turn.sent.wait() and turn.theirs and turn.theirs.inserted:
            while not (turn.begun.wait(0.3) or turn.ended):  # this may be of the turn: the editor learns of that first
                pass
        with self.lock:
            if getattr(theirs, "ours", None) is None:
                theirs.__dict__.setdefault("early", []).append(update)
            else:
                self.forward(theirs.ours, update)

    def forward(self, session, update):
        """Send it, but for what the library says by itself: the prompt's echo, and that its turn begins and ends."""
        turn = self.running(session)
        if turn is not None and getattr(update, "message_id", None) == turn.message_id:
            if isinstance(update, acp.UserMessageChunk) or update == acp.UserMessage(turn.message_id, turn.prompt):
                return
        elif isinstance(update, acp.IdleStateUpdate) and turn is not None:
            return session.state.apply(update)  # the end says what runs in the background
        elif update == acp.RunningStateUpdate() and session.state.state == "running":
            return
        try:
            session.send(update)
        except acp.Error as error:
            note(f"bridge.py: an update was not passed on: {error}")

    # ---- what the agent asks ----------------------------------------------------------------------------------------

    @in_its_words()
    def ask(self, method, answer, params, request=None):
        """The editor's answer, of this class; the question is taken back when the agent takes it back."""
        peer, request = self.peer, request or params.request
        pending = peer.begin_call(method, acp.to_wire(params, peer.version))
        while not pending.over and not pending.gate.acquire(timeout=0.1):
            if request.cancelled:
                peer.give_up(pending, acp.RequestCancelled())
        return acp.from_wire(answer, pending.wait(), peer.version)

    def question(self, request, *what):
        with contextlib.suppress(acp.Error):  # it is no consent
            return self.ask(*what, request)

    def permission(self, request):
        answer = self.question(
            request, "session/request_permission", acp.RequestPermissionResponse, acp.RequestPermissionRequest(
                request.session.id, request.title, request.options, request.description, request.subject,
                meta=request.meta))
        return answer

    def elicitation(self, request):
        scope = {"session_id": request.session.id} if request.session else {"request_id": (self.scopes or [None])[-1]}
        return self.question(
            request, "elicitation/create", acp.CreateElicitationResponse, acp.CreateElicitationRequest(
                request.message, request.mode, tool_call_id=request.tool_call_id, requested_schema=request.schema,
                elicitation_id=request.elicitation_id, url=request.url, meta=request.meta, **scope))


def main(words):
    command = words[1:] if words[:1] == ["--"] else words
    if not command or command[0].startswith("-"):
        note("usage: bridge.py -- COMMAND ...")
        return 2
    if sys.stdin.isatty():
        return subprocess.call(command)
    bridge = Bridge(command)
    for number in signal.SIGTERM, signal.SIGINT:  # by default they would end the bridge, but not the agent
        signal.signal(number, lambda number, frame: sys.exit(bridge.status or 128 + number))
    try:
        bridge.run()
        return int(bridge.client is None)
    finally:
        client, bridge.client = bridge.client, None
        if client is not None:
            client.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

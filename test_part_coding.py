from test_acp import *  # noqa: F403

# =====================================================================================================================
# examples/coding_agent.py
#
# A real process for each version of the protocol, which all tests share; each has a session of its own, in a folder of
# its own. The model is `CodingModel`, an HTTP server on a loopback port: what it answers is the test's script.
# =====================================================================================================================
import http.server  # noqa: E402
import types  # noqa: E402

CODING = [sys.executable, os.path.join(HERE, "examples", "coding_agent.py")]
CODING_KEY = "sk-1234567890-secret"
CODING_DONE = b"data: [DONE]\n\n"


def coding_delta(reason=None, **delta):
    """An event of the stream with a delta of the answer."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def coding_text(*pieces, reason="stop"):
    """An answer: text in pieces, and the usage."""
    usage = {"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42}
    return [*(coding_delta(content=piece) for piece in pieces), coding_delta(reason), {"choices": [], "usage": usage},
            CODING_DONE]


def coding_part(index, id=None, name=None, arguments=""):
    """A delta of a tool call."""
    return {**({} if index is None else {"index": index}), **({"id": id, "type": "function"} if id else {}),
            "function": {**({"name": name} if name else {}), "arguments": arguments}}


def coding_calls(*calls):
    """An answer: tool calls, each a name and arguments (an object, or text as it is)."""
    events = []
    for index, (name, arguments) in enumerate(calls):
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        events.append(coding_delta(tool_calls=[coding_part(index, f"call-{index}", name)]))
        step = max(7, len(text) // 9)
        events += [coding_delta(tool_calls=[coding_part(index, arguments=text[at:at + step])])
                   for at in range(0, len(text), step)]
    return [*events, coding_delta("tool_calls"), CODING_DONE]


class CodingModel(http.server.ThreadingHTTPServer):
    """The endpoint. Each request takes the next of `answers`: a list of events, of bytes as they are, and of functions
    of the handler; one that begins with a number is that HTTP status with the rest as its body. `asked` are the bodies
    of the requests, `headers` their headers."""
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), CodingHandler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.clear()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def clear(self):
        self.answers, self.asked, self.headers = collections.deque(), [], []
        self.reached, self.gone = threading.Event(), threading.Event()

    def results(self):
        """What the model was told of its calls, as it came with the last request."""
        messages = self.asked[-1]["messages"]
        last = max(index for index, each in enumerate(messages) if each["role"] == "assistant")
        called = [each["id"] for each in messages[last]["tool_calls"]]
        assert [each["tool_call_id"] for each in messages[last + 1:]] == called
        return [each["content"] for each in messages[last + 1:]]


class CodingHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_POST(self):
        model = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        model.headers.append(self.headers)
        model.asked.append({"path": self.path, **json.loads(body)})
        answer = model.answers.popleft() if model.answers else coding_text("Nothing more.")
        self.close_connection = True
        if isinstance(answer[0], int):
            self.send_response(answer[0])
            self.send_header("Content-Length", str(len(answer[1])))
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            return self.wfile.write(answer[1])
        self.streams = False
        for item in answer:
            if callable(item):
                if item(self):
                    return
            else:
                self.piece(item if isinstance(item, bytes) else b"data: " + json.dumps(item).encode() + b"\n\n")
        self.piece(b"")

    def piece(self, data):
        """More of the stream; its end when empty."""
        if not self.streams:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.streams = True
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


def coding_hang(handler):
    """Say nothing until the agent has cut the connection."""
    handler.server.reached.set()
    handler.connection.settimeout(WAIT)
    with contextlib.suppress(ConnectionError):
        assert handler.connection.recv(1) == b""
    handler.server.gone.set()
    return True


def coding_break(handler):
    """Break off in the middle."""
    return True


class CodingEditor:
    """An editor at work with the agent: a client and what it holds. `unsaved` are its buffers by path, `asked` the
    permissions that were asked for, and `allow` is a function that decides them."""

    def __init__(self, version, model, *options):
        self.version, self.model, self.wire = version, model, []
        self.unsaved, self.asked, self.allow = {}, [], lambda request: True
        self.client = acp.Client(
            [*CODING, "--url", model.url, "--model", "small", *options], version=version, permission=self.permission,
            files=self, terminals=acp.LocalTerminals(), on_message=lambda *what: self.note(json.dumps(what)),
            on_stderr=self.note, env={"OPENAI_API_KEY": CODING_KEY})

    def note(self, line):
        self.wire.append(line)
        print(line[:400])

    def permission(self, request):
        self.asked.append(request.title)
        return self.allow(request)

    def read_text_file(self, request):
        text = self.unsaved.get(request.path)
        if text is None:
            with open(request.path, encoding="utf-8", newline="") as file:
                text = file.read()
        return acp.ReadTextFileResponse("".join(acp.lines_of(text, request.line, request.limit)))

    def write_text_file(self, request):
        self.unsaved.pop(request.path, None)
        with open(request.path, "w", encoding="utf-8", newline="") as file:
            file.write(request.content)
        return acp.EmptyResponse()

    def tools(self):
        """Title and status of each tool call of the session."""
        return [(call.title, call.status) for call in self.session.state.tool_calls.values()]


@pytest.fixture(scope="module")
def coding_editors():
    """One model; an editor for each version, made when it is first wanted."""
    model, editors = CodingModel(), {}

    def editor(version):
        if version not in editors:
            editors[version] = CodingEditor(version, model, "--rounds", "4")
        return editors[version]

    yield editor
    for each in editors.values():
        each.client.close()
    model.shutdown()
    model.server_close()


@pytest.fixture
def coding(coding_editors, tmp_path):
    """An editor with a new session in an empty folder: `.session`, `.folder`, `.model`."""

    def begin(version=1, **new):
        editor = coding_editors(version)
        editor.model.clear()
        editor.unsaved, editor.asked, editor.allow = {}, [], lambda request: True
        editor.folder = tmp_path / "work"
        editor.folder.mkdir()
        editor.session = editor.client.new_session(str(editor.folder), **new)
        return editor

    return begin


def coding_use(editor, *calls):
    """A turn in which the model makes these calls at once; returns what it was told of them."""
    editor.model.answers.extend([coding_calls(*calls), coding_text("Done.")])
    assert editor.session.ask("go on", timeout=WAIT) == "Done."
    return editor.model.results()


@BOTH
def test_coding_agent_streams_thoughts_and_text_and_tells_the_usage(coding, version):
    editor = coding(version)
    editor.model.answers.append([
        b": a comment\n\n", b"event: message\n", coding_delta(role="assistant", content=""),
        coding_delta(reasoning_content="Well"), coding_delta(reasoning=", well."),
        *coding_text("Gr\u00fc\u00df", "e, ", "\u2713")])
    turn = editor.session.prompt("  say hello \n to them")
    kinds = [(type(update).__name__, update.content.text) for update in turn if hasattr(update, "content")
             and not isinstance(update, (acp.UserMessage, acp.UserMessageChunk))]
    assert kinds == [("AgentThoughtChunk", "Well"), ("AgentThoughtChunk", ", well."),
                     ("AgentMessageChunk", "Gr\u00fc\u00df"), ("AgentMessageChunk", "e, "),
                     ("AgentMessageChunk", "\u2713")]
    state = editor.session.state
    assert (turn.stop_reason, state.usage.used, state.usage.size) == ("end_turn", 42, 32768)
    assert state.title == "say hello to them"
    asked, = editor.model.asked
    assert (asked["path"], asked["model"], asked["stream"]) == ("/v1/chat/completions", "small", True)
    assert asked["stream_options"] == {"include_usage": True}
    assert [each["role"] for each in asked["messages"]] == ["system", "user"]
    assert str(editor.folder) in asked["messages"][0]["content"]
    assert editor.model.headers[0]["Authorization"] == "Bearer " + CODING_KEY
    for tool in asked["tools"]:
        parameters = tool["function"]["parameters"]
        assert set(parameters["required"]) <= set(parameters["properties"])


def test_coding_agent_keeps_a_conversation_per_session(coding):
    editor = coding()
    first, second = editor.session, editor.client.new_session(str(editor.folder))
    editor.model.answers.extend([coding_text("A", "1"), coding_text("B1"), coding_text("A2")])
    first.ask("a one"), second.ask("b one"), first.ask("a two")
    told = [[each["content"] for each in asked["messages"][1:]] for asked in editor.model.asked]
    assert told == [["a one"], ["b one"], ["a one", "A1", "a two"]]


@pytest.mark.parametrize("parts", [
    # begun, then gone on with, one by one
    [[(0, "x", "list_files", "")], [(0, None, None, '{"path": ')], [(0, None, None, '"one"}')],
     [(1, "y", "list_files", "")], [(1, None, None, '{"path": "two"}')]],
    # both at once, pieces mixed
    [[(0, "x", "list_files", '{"pa'), (1, "y", "list_files", '{"path"')], [(1, None, None, ': "two"}')],
     [(0, None, None, 'th": "one"}')]],
    # the same index for all, told apart by their ids
    [[(0, "x", "list_files", '{"path": "one"}')], [(0, "y", "list_files", '{"path": "two"}')]],
    # no index
    [[(None, "x", "list_files", '{"path": "one"}'), (None, "y", "list_files", '{"path": "two"}')]],
    # no ids
    [[(0, None, "list_files", '{"path": "one"}')], [(1, None, "list_files", '{"path": "two"}')]],
    # the id each time
    [[(0, "x", "list_files", '{"path":')], [(0, "x", None, '"one"}')], [(1, "y", "list_files", '{"path": "two"}')]],
])
def test_coding_agent_assembles_tool_calls_from_deltas(coding, parts):
    editor = coding()
    for name in "one", "two":
        (editor.folder / name / f"in-{name}").mkdir(parents=True)
        (editor.folder / name / "file").touch()
    editor.model.answers.extend([
        [*(coding_delta(tool_calls=[coding_part(*part) for part in delta]) for delta in parts), coding_delta("stop"),
         CODING_DONE], coding_text("Done.")])
    assert editor.session.ask("look") == "Done."
    assert editor.model.results() == ["file\nin-one/", "file\nin-two/"]
    assert editor.tools() == [("List one", "completed"), ("List two", "completed")]


@BOTH
def test_coding_agent_reads_what_the_editor_holds_unsaved(coding, version):
    editor = coding(version)
    path = editor.folder / "a.txt"
    path.write_text("saved\n")
    editor.unsaved[str(path)] = "unsaved\nsecond\nthird\n"
    whole, part, none = coding_use(editor, ("read_file", {"path": "a.txt"}),
                                   ("read_file", {"path": str(path), "line": 2, "limit": 1}),
                                   ("read_file", {"path": "b.txt", "line": None}))
    assert (whole, part) == (("unsaved\nsecond\nthird\n", "second\n") if version == 1 else ("saved\n", ""))
    assert none.startswith("Error: ")
    assert editor.tools() == [("Read a.txt", "completed"), (f"Read {path}", "completed"), ("Read b.txt", "failed")]
    call = list(editor.session.state.tool_calls.values())[0]
    assert (call.kind, [each.path for each in call.locations]) == ("read", [str(path)])


def test_coding_agent_fits_what_the_model_gets(coding):
    editor = coding()
    (editor.folder / "long").write_text("x" * 31_000)
    (editor.folder / os.fsdecode(b"n\xffme")).touch()  # not UTF-8
    told, names = coding_use(editor, ("read_file", {"path": "long"}), ("list_files", {"path": "."}))
    assert names == "long\nn?me" and told == "x" * 30_000 + "\n[cut here: 1000 characters more]"


@BOTH
@pytest.mark.parametrize("allow", [True, False])
def test_coding_agent_shows_a_change_and_asks_before_it(coding, version, allow):
    editor = coding(version)
    path = editor.folder / "a.py"
    path.write_bytes(b"one\r\n  two\r\nthree\r\n")
    seen = []
    editor.allow = lambda request: seen.append((request.tool_call.content, path.read_bytes())) or allow
    told, = coding_use(editor, ("edit_file", {"path": "a.py", "old": "one\n  two", "new": "eins\n  zwei"}))
    (diff,), before = seen[0]
    assert "-  two" in diff.patch.text and "+  zwei" in diff.patch.text and str(path) in diff.patch.text
    assert before == b"one\r\n  two\r\nthree\r\n" and editor.asked == ["Edit a.py"]
    assert path.read_bytes() == (b"eins\r\n  zwei\r\nthree\r\n" if allow else before)
    assert told.startswith("Written" if allow else "The user did not allow this.")
    assert editor.tools() == [("Edit a.py", "completed" if allow else "failed" if version == 1 else "cancelled")]


def test_coding_agent_changes_the_unsaved_text(coding):
    editor = coding()
    path = editor.folder / "new.txt"
    editor.unsaved[str(path)] = "never saved\n"
    coding_use(editor, ("edit_file", {"path": "new.txt", "old": "never", "new": "now"}))
    assert path.read_text() == "now saved\n"


def test_coding_agent_remembers_what_is_allowed_for_good(coding):
    editor = coding()
    editor.allow = lambda request: "allow_always"
    for number in "123":
        coding_use(editor, ("write_file", {"path": "a", "content": number}))
    coding_use(editor, ("write_file", {"path": "b", "content": "1"}))
    assert editor.asked == ["Write a", "Write b"] and (editor.folder / "a").read_text() == "3"


@BOTH
def test_coding_agent_in_auto_edit_asks_only_for_commands(coding, version):
    editor = coding(version)
    mode, = editor.session.state.config_options
    assert (mode.category, mode.current_value) == ("mode", "ask")
    editor.session.set_config_option("mode", "auto-edit")
    editor.allow = lambda request: False
    coding_use(editor, ("write_file", {"path": "a", "content": "1"}), ("run_command", {"command": "echo > b"}))
    assert editor.asked == ["echo > b"] and [each.name for each in editor.folder.iterdir()] == ["a"]
    editor.session.set_config_option("mode", "ask")
    coding_use(editor, ("write_file", {"path": "c", "content": "1"}))
    assert editor.asked == ["echo > b", "Write c"] and not (editor.folder / "c").exists()


@BOTH
def test_coding_agent_writes_new_files_and_replaces_old_ones(coding, version):
    editor = coding(version)
    (editor.folder / "old").write_text("old\n")
    coding_use(editor, ("write_file", {"path": "far/off/new", "content": "n\u00fc\n"}),
               ("write_file", {"path": "old", "content": "new\n"}))
    assert (editor.folder / "far/off/new").read_text(encoding="utf-8") == "n\u00fc\n"
    assert (editor.folder / "old").read_text() == "new\n"
    patches = [call.content[0].patch.text for call in editor.session.state.tool_calls.values()]
    assert "+n\u00fc" in patches[0] and "/dev/null" in patches[0] and "-old\n+new" in patches[1]


@BOTH
def test_coding_agent_does_not_write_over_what_changed_while_it_asked(coding, version):
    editor = coding(version)
    (editor.folder / "a").write_text("one")
    editor.allow = lambda request: (editor.folder / "a").write_text("mine") > 0
    told, = coding_use(editor, ("write_file", {"path": "a", "content": "two"}))
    assert "changed meanwhile" in told and (editor.folder / "a").read_text() == "mine"


@pytest.mark.parametrize("name, arguments, told", [
    ("edit_file", {"path": "a", "old": "absent", "new": ""}, "stands 0 times"),
    ("edit_file", {"path": "a", "old": "e", "new": "x"}, "stands 3 times"),
    ("edit_file", {"path": "a", "old": "", "new": "x"}, "stands 0 times"),
    ("edit_file", {"path": "a", "old": "one", "new": "one"}, "changes nothing"),
    ("edit_file", {"path": "none", "old": "one", "new": "two"}, "stands 0 times"),
    ("edit_file", {"path": "binary", "old": "one", "new": "two"}, "Error"),
    ("write_file", {"path": "binary", "content": "two"}, "Error"),
    ("write_file", {"path": ".", "content": "two"}, "Error"),
    ("write_file", {"path": "a/below", "content": "two"}, "Error"),
    ("read_file", {"path": "."}, "Error"),
    ("read_file", {"path": "fifo"}, "no file and no folder"),
    ("write_file", {"path": "fifo", "content": "x"}, "no file and no folder"),
    ("list_files", {"path": "a"}, "Error"),
    ("list_files", {"path": "nul\0"}, "Error"),
    ("search", {"path": ".", "text": ""}, "empty text"),
])
def test_coding_agent_tells_the_model_why_a_tool_failed(coding, name, arguments, told):
    editor = coding(2)
    (editor.folder / "a").write_text("one three")
    (editor.folder / "binary").write_bytes(b"one\xff\0")
    os.mkfifo(editor.folder / "fifo")
    result, = coding_use(editor, (name, arguments))
    assert result.startswith("Error: ") and told in result
    assert not editor.asked and [status for _, status in editor.tools()] == ["failed"]
    assert (editor.folder / "a").read_text() == "one three" and (editor.folder / "binary").read_bytes() == b"one\xff\0"


@BOTH
def test_coding_agent_stays_inside_the_folders_of_the_session(coding, tmp_path, version):
    outside, other = tmp_path / "work-outside", tmp_path / "other"
    outside.mkdir(), other.mkdir()
    (outside / "secret").write_text("treasure")
    (other / "open").write_text("open treasure")
    editor = coding(version, additional_directories=[str(other)])
    (editor.folder / "file-link").symlink_to(outside / "secret")
    (editor.folder / "folder-link").symlink_to(outside)
    (editor.folder / "dead-link").symlink_to(outside / "new")
    for path in "../work-outside/secret", str(outside / "secret"), "file-link", "folder-link/secret", "dead-link":
        for told in coding_use(
                editor, ("read_file", {"path": path}), ("write_file", {"path": path, "content": "x"}),
                ("edit_file", {"path": path, "old": "treasure", "new": "x"}), ("search", {"path": path, "text": "t"})):
            assert told.startswith("Error: ") and "outside the session's folders" in told
    told = coding_use(editor, ("list_files", {"path": ".."}), ("search", {"path": ".", "text": "treasure"}),
                      ("search", {"path": str(other), "text": "treasure"}), ("read_file", {"path": "../other/open"}))
    assert "outside" in told[0] and told[1:] == ["Nothing found.", "../other/open:1: open treasure", "open treasure"]
    assert not editor.asked and [each.name for each in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == "treasure"


def test_coding_agent_searches_text_files_only(coding):
    editor = coding()
    for name in ".hidden", "node_modules", "sub":
        (editor.folder / name).mkdir()
        (editor.folder / name / "file").write_text("a needle\n")
    (editor.folder / "binary").write_bytes(b"needle\0")
    (editor.folder / "huge").write_text("needle" + " " * (1 << 20))
    (editor.folder / "latin").write_bytes(b"\xe4\r\n  needle, n\xe4dle\r\n")
    os.mkfifo(editor.folder / "fifo")
    (editor.folder / "many").write_text("nail\n" * 1000)
    needles, file, nails = coding_use(
        editor, ("search", {"path": ".", "text": "needle"}), ("search", {"path": "sub/file", "text": "needle"}),
        ("search", {"path": ".", "text": "nail"}))
    assert needles.split("\n") == ["latin:2: needle, n\ufffddle", "sub/file:1: a needle"]
    assert file == "sub/file:1: a needle"
    assert nails.count("nail") == 200 and nails.endswith("\n[more was found: search for something rarer]")


@pytest.mark.parametrize("name, arguments, told", [
    ("read_file", '{"path": "a', "not a JSON object"),
    ("read_file", '["a"]', "not a JSON object"),
    ("read_file", "[" * 100_000, "not a JSON object"),
    ("read_file", "", "needs the argument path"),
    ("read_file", {"path": None}, "needs the argument path"),
    ("read_file", {"path": ["a"]}, "needs the argument path, of type string"),
    ("read_file", {"path": "a", "line": "2"}, "needs the argument line, of type integer"),
    ("read_file", {"path": "a", "lines": 2}, "has no argument 'lines'"),
    ("read_file", {"path": "a", "line": -1}, "Error"),
    ("open_file", {"path": "a"}, "there is no tool 'open_file'"),
    ("prompt", {"turn": "a"}, "there is no tool 'prompt'"),
    ("", {}, "there is no tool ''"),
    ("update_plan", {"entries": ["first"]}, "needs content and status"),
    ("update_plan", {"entries": [{"content": "a", "status": "soon"}]}, "needs content and status"),
])
def test_coding_agent_tells_the_model_of_its_own_broken_calls(coding, name, arguments, told):
    editor = coding()
    (editor.folder / "a").write_text("text")
    good, result = coding_use(editor, ("read_file", {"path": "a"}), (name, arguments))
    assert good == "text" and result.startswith("Error: ") and told in result
    assert [status for _, status in editor.tools()] == ["completed", "failed"]
    for call in editor.model.asked[-1]["messages"][-3]["tool_calls"]:  # what goes back can be read
        assert isinstance(json.loads(call["function"]["arguments"]), dict)


@BOTH
def test_coding_agent_shows_the_plan_of_the_model(coding, version):
    editor = coding(version)
    plan = [{"content": "look", "status": "completed"}, {"content": "act", "status": "in_progress"},
            {"content": "check", "status": "pending", "priority": "high"}]
    coding_use(editor, ("update_plan", {"entries": plan}))
    shown, = editor.session.state.plans.values()
    assert [(entry.content, entry.status) for entry in shown.entries] == [
        ("look", "completed"), ("act", "in_progress"), ("check", "pending")]


@BOTH
def test_coding_agent_runs_a_command_in_a_terminal(coding, version):
    editor = coding(version)
    good, bad, killed, env = coding_use(
        editor, ("run_command", {"command": "echo out; echo err >&2; pwd"}), ("run_command", {"command": "exit 3"}),
        ("run_command", {"command": "kill -9 $$"}),
        ("run_command", {"command": "test -z \"$OPENAI_API_KEY\" && echo no key"}))
    assert good == f"exit status 0\nout\nerr\n{os.path.realpath(editor.folder)}\n"
    assert bad == "exit status 3\n" and killed.startswith("signal ") and env == "exit status 0\nno key\n"
    assert [status for _, status in editor.tools()] == ["completed", "failed", "failed", "completed"]
    assert editor.asked[0] == "echo out; echo err >&2; pwd"
    shown = list(editor.session.state.tool_calls.values())[0]
    terminal, = [each for each in shown.content if isinstance(each, acp.Terminal)]
    assert shown.kind == "execute"
    if version == 2:
        assert "out\nerr\n" in editor.session.state.terminals[terminal.terminal_id].text


@BOTH
def test_coding_agent_kills_a_command_that_takes_too_long(coding, version):
    editor = coding(version)
    with within(WAIT / 2):
        told, = coding_use(editor, ("run_command", {"command": "exec sleep 60", "timeout": 0}))
    assert told == "killed, as it was not over after 0 seconds\n"
    assert [status for _, status in editor.tools()] == ["failed"]


def test_coding_agent_keeps_the_end_of_a_long_output(coding):
    editor = coding(2)
    told, = coding_use(editor, ("run_command", {"command": "yes | head -c 40000; echo end"}))
    assert told.startswith("exit status 0\n[the beginning is cut] y\n") and told.endswith("\nend\n")
    assert len(told) < 31_000


@BOTH
def test_coding_agent_stops_a_command_when_the_turn_is_cancelled(coding, version):
    editor = coding(version)
    editor.model.answers.append(coding_calls(("run_command", {"command": "echo $$ > pid; exec sleep 60"}),
                                             ("read_file", {"path": "pid"})))
    turn = editor.session.prompt("go")
    taken = threading.Thread(target=list, args=(turn,), daemon=True)
    taken.start()
    eventually(lambda: (editor.folder / "pid").exists() and (editor.folder / "pid").read_text().strip()
               and any(isinstance(each, acp.Terminal) for call in editor.session.state.tool_calls.values()
                       for each in call.content or ()))
    with within(SOON * 2):
        turn.cancel()
        taken.join(WAIT)
    assert turn.stop_reason == "cancelled"
    pid = int((editor.folder / "pid").read_text())
    eventually(lambda: not coding_runs(pid))
    editor.session.ask("and now")
    roles = [each["role"] for each in editor.model.asked[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant", "user"]
    assert [each["content"] for each in editor.model.asked[-1]["messages"][3:5]] == ["The user cancelled this."] * 2


def coding_runs(pid):
    """Whether a process is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@BOTH
@pytest.mark.parametrize("begun", [True, False])
def test_coding_agent_cuts_the_stream_when_the_turn_is_cancelled(coding, version, begun):
    editor = coding(version)
    editor.model.answers.append([*([coding_delta(content="I was ab")] if begun else []), coding_hang])
    turn = editor.session.prompt("go")
    assert editor.model.reached.wait(WAIT)
    if begun:
        eventually(lambda: turn.text == "I was ab")
    with within(SOON):
        turn.cancel()
        assert turn.wait(WAIT) == "cancelled"
        assert editor.model.gone.wait(WAIT)
    assert editor.session.ask("and now") == "Nothing more."
    assert [each["content"] for each in editor.model.asked[-1]["messages"][1:]] == [
        "go", "I was ab" if begun else "(no answer)", "and now"]


@pytest.mark.parametrize("answer, what, todo", [
    ([401, b'{"error": {"message": "bad key KEY"}}'], "HTTP 401 Unauthorized: bad key ...", "Set the environment vari"),
    ([403, b"not JSON, KEY"], "HTTP 403 Forbidden.", "OPENAI_API_KEY"),
    ([404, b'{"error": "model small not found"}'], "HTTP 404 Not Found: model small not found", "Check --url"),
    ([400, b'{"error": {"message": "context too long"}}'], "HTTP 400 Bad Request: context too long", "/clear"),
    ([400, b'{"object": "error", "message": "other words"}'], "HTTP 400 Bad Request: other words", "/clear"),
    ([307, b""], "HTTP 307", "Check --url"),
    ([429, b"[]"], "HTTP 429 Too Many Requests", "Try again"),
    ([500, b'{"error": {"message": null}}'], "HTTP 500 Internal Server Error", "Try again"),
    ([b"<html><body>Welcome"], "not a stream: <html><body>Welcome", "Check --url"),
    ([b'{"choices": []}'], 'not a stream: {"choices"', "Check --url"),
    ([b"data: {oops\n\n"], "makes no sense", "Check --url"),
    ([b"data: 5\n\n"], "makes no sense", "Check --url"),
    ([b"data: " + b"[" * 100_000 + b"\n\n"], "makes no sense", "Check --url"),
    ([b"data: \xff\n\n"], "makes no sense", "Check --url"),
    ([{"choices": [5]}], "makes no sense", "Check --url"),
    ([coding_delta(content=[{"type": "text"}])], "makes no sense", "Check --url"),
    ([coding_delta(tool_calls=[{"function": {"arguments": {"path": "."}}}])], "makes no sense", "Check --url"),
    ([coding_delta(content="a"), {"error": {"message": "overloaded, KEY"}}], "overloaded, ...", "Try again"),
    ([{"error": "overloaded"}], "overloaded", "Try again"),
    ([CODING_DONE], "the answer broke off", "Try again"),
    ([b": nothing\n\n"], "the answer broke off", "Try again"),
    ([coding_delta(content="a"), coding_break], "the connection was lost", "Try again"),
    ([coding_break], "the connection was lost", "Try again"),
])
def test_coding_agent_says_what_to_do_when_the_endpoint_fails(coding, answer, what, todo):
    editor = coding()
    editor.model.answers.append([each.replace(b"KEY", CODING_KEY.encode()) if isinstance(each, bytes) else
                                 json.loads(json.dumps(each).replace("KEY", CODING_KEY)) if isinstance(each, dict)
                                 else each for each in answer])
    with pytest.raises(acp.RequestError) as caught:
        editor.session.ask("go", timeout=WAIT)
    message = caught.value.message
    assert f"The model at {editor.model.url} failed: " in message and what in message and todo in message
    assert editor.session.ask("again") == "Nothing more."  # the next turn goes on
    roles = [each["role"] for each in editor.model.asked[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert CODING_KEY not in "".join(editor.wire)


def test_coding_agent_tells_of_a_failed_endpoint_on_version_2(coding):
    editor = coding(2)
    editor.model.answers.append([401, b"{}"])
    turn = editor.session.prompt("go")
    with pytest.raises(acp.RequestError, match="Set the environment variable OPENAI_API_KEY"):
        turn.wait(WAIT)
    assert turn.stop_reason == "error" and CODING_KEY not in "".join(editor.wire)


def test_coding_agent_says_what_to_do_when_the_endpoint_is_missing_or_silent(tmp_path):
    with socket.socket() as bound, socket.create_server(("127.0.0.1", 0)) as silent:
        bound.bind(("127.0.0.1", 0))  # nobody listens
        for each, what in (bound, "Start the model's server"), (silent, "no word for 0.2 seconds. Try again; --time"):
            model = types.SimpleNamespace(url=f"http://127.0.0.1:{each.getsockname()[1]}/v1/")
            editor = CodingEditor(1, model, "--timeout", "0.2")
            with editor.client, pytest.raises(acp.RequestError, match=what):
                editor.client.new_session(str(tmp_path)).ask("go", timeout=WAIT)


def test_coding_agent_stops_after_so_many_rounds(coding):
    editor = coding()
    editor.model.answers.extend([[coding_delta(content="Look."), *coding_calls(("list_files", {"path": "."}))]] * 9)
    turn = editor.session.prompt("go")
    assert turn.wait(WAIT) == "max_turn_requests" and len(editor.model.asked) == 4
    editor.model.answers.clear()
    editor.session.ask("go on")
    assert [(each["role"], each["content"]) for each in editor.model.asked[-1]["messages"][1:]] == [
        ("user", "go"), *[("assistant", "Look."), ("tool", "The folder is empty.")] * 4, ("assistant", "(no answer)"),
        ("user", "go on")]


@BOTH
@pytest.mark.parametrize("reason, stop_reason", [("length", "max_tokens"), ("content_filter", "refusal")])
def test_coding_agent_says_why_the_model_ended(coding, version, reason, stop_reason):
    editor = coding(version)
    part = coding_part(0, "x", "write_file", '{"path": "a", "content": ""}')  # cut, perhaps
    editor.model.answers.append([coding_delta(content="Well", tool_calls=[part]), *coding_text(reason=reason)])
    assert editor.session.prompt("go").wait(WAIT) == stop_reason
    assert not editor.asked and len(editor.model.asked) == 1


def test_coding_agent_takes_a_stream_without_usage_and_without_its_last_word(coding):
    editor = coding()
    editor.model.answers.append([coding_delta(content="Fine."), {"choices": [], "usage": None},
                                 {"usage": {"total_tokens": "many"}}, coding_delta("stop")])
    assert editor.session.ask("go") == "Fine." and editor.session.state.usage is None


@BOTH
def test_coding_agent_has_slash_commands(coding, version):
    editor = coding(version)
    eventually(lambda: [each.name for each in editor.session.state.commands] == ["clear", "model"])
    editor.session.ask("a secret")
    assert editor.session.ask("/clear") == "Forgotten."
    assert editor.session.ask("/model  large ") == editor.session.ask("/model") == "The model is large."
    editor.session.ask("/usr is a folder")
    assert editor.model.asked[-1]["model"] == "large"
    assert [each["content"] for each in editor.model.asked[-1]["messages"][1:]] == ["/usr is a folder"]
    assert editor.client.new_session(str(editor.folder)).ask("/model") == "The model is small."


@BOTH
def test_coding_agent_takes_links_and_embedded_resources(coding, version):
    editor = coding(version)
    editor.session.ask([
        acp.TextContent("compare "), acp.ResourceLink("b", (editor.folder / "b c").as_uri()), acp.TextContent(" and "),
        acp.ResourceLink("page", "https://example.org/page"), acp.EmbeddedResource(
            acp.TextResourceContents("its text", "file:///x")),
        acp.EmbeddedResource(acp.BlobResourceContents("AAAA", "file:///y"))])
    assert editor.model.asked[-1]["messages"][-1]["content"] == (
        f"compare {editor.folder}/b c and https://example.org/page"
        '\n<resource uri="file:///x">\nits text\n</resource>\n\n<resource uri="file:///y">\n(not text)\n</resource>\n')


@pytest.mark.parametrize("words, key, told", [
    ([], "", "--model"), (["--model", "x", "--url", "file:///etc/passwd"], "", "http:// or https://"),
    (["--model", "x"], "sk-1\n2", "OPENAI_API_KEY holds is no key")])
def test_coding_agent_refuses_wrong_words(words, key, told):
    done = subprocess.run([*CODING, *words], env={**os.environ, "OPENAI_API_KEY": key}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 2 and told in done.stderr and "sk-1" not in done.stderr and not done.stdout

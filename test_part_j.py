from test_acp import *  # noqa: F403

# ruff: noqa: F405


def terminal_of(terminals, *script, session="s"):
    return terminals.create(acp.CreateTerminalRequest(session, "sh", ["-c", *script])).terminal_id


@POSIX
def test_commands_that_do_not_heed_the_first_signal_are_ended_together(tmp_path):
    terminals = acp.LocalTerminals()
    for number in range(5):
        terminal_of(terminals, f"trap '' TERM; touch {tmp_path}/{number}; while :; do sleep 0.1; done",
                    session=f"s{number % 2}")
    eventually(lambda: len(os.listdir(tmp_path)) == 5)
    commands = list(terminals._commands.values())
    with within(4.0):
        terminals.close("s0", "s1")
    assert not terminals._commands
    eventually(lambda: not any(command.signal(0) for command in commands))  # the system takes note of the last


@POSIX
def test_a_client_that_is_closed_while_the_agents_end_is_handled_leaves_no_command(fake_agent, tmp_path):
    command = fake_agent("""
        hello(); new(); prompt()
        write({"jsonrpc": "2.0", "id": 1, "method": "terminal/create", "params": {"sessionId": "s", "command": "sh",
            "args": ["-c", "trap '' TERM; echo $$ > %s; while :; do sleep 0.1; done" % path]}})
        read()
        while not (os.path.exists(path) and open(path).read().strip()): time.sleep(0.01)
    """, path=str(tmp_path / "pid"))
    with acp.Client(command, terminals=acp.LocalTerminals()) as client:
        with pytest.raises(acp.ConnectionClosed):
            client.new_session("/").ask("go")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@POSIX
def test_a_wait_that_was_given_up_keeps_no_worker_of_the_client():
    begun = threading.active_count()
    told = []

    class Polls(acp.Agent):
        def prompt(self, turn):
            with turn.terminal("sleep", ["60"]) as terminal:
                for _ in range(40):
                    with contextlib.suppress(acp.Timeout):
                        terminal.wait(0.01)
                client.connection.wait_served(time.monotonic() + WAIT)
                told.append(len(client.connection.serving))
                eventually(lambda: client.connection.workers._idle > 5)

    with acp.Client(Polls(), terminals=acp.LocalTerminals()) as client:
        client.new_session("/").ask("go")
    assert told == [0]
    eventually(lambda: threading.active_count() <= begun)


@POSIX
def test_a_command_made_behind_the_close_of_its_session_is_ended(fake_agent):
    terminals = acp.LocalTerminals()
    create, begun, gate = terminals.create, threading.Event(), threading.Event()

    def late(params):
        begun.set()
        gate.wait(WAIT)
        return create(params)

    terminals.create = late
    command = fake_agent("""
        hello(agentCapabilities={"sessionCapabilities": {"close": {}}}); new()
        write({"jsonrpc": "2.0", "id": 1, "method": "terminal/create", "params": {
            "sessionId": "s", "command": "sleep", "args": ["300"]}})
        answer(read(), {}); answer(read(), {}); read()
    """)
    with acp.Client(command, terminals=terminals) as client:
        session = client.new_session("/")
        assert begun.wait(WAIT)
        session.close()
        gate.set()
        client.connection.wait_served(time.monotonic() + WAIT)
        eventually(lambda: not client.connection.serving)
        assert not terminals._commands


@POSIX
def test_a_group_that_has_ended_is_not_signalled_later(monkeypatch):
    terminals = acp.LocalTerminals()
    id = terminal_of(terminals, "exec true")
    terminals.wait_for_exit(acp.CancelTerminalRequest("s", id))
    killed = []
    monkeypatch.setattr(os, "killpg", lambda *what: killed.append(what))  # its number may be another's by now
    terminals.release(acp.CancelTerminalRequest("s", id))
    assert killed == []


@POSIX
def test_the_beginning_of_cut_output_that_is_no_text_is_not_lost():
    terminals = acp.LocalTerminals()
    made = terminals.create(acp.CreateTerminalRequest("s", "printf", [r"\200" * 40], output_byte_limit=30))
    terminals.wait_for_exit(acp.CancelTerminalRequest("s", made.terminal_id))
    assert terminals.output(acp.CancelTerminalRequest("s", made.terminal_id)).output == "\ufffd" * 10
    terminals.close("s")


@pytest.mark.parametrize("window", [{"line": 10 ** 19}, {"line": 1, "limit": 10 ** 19}, {"limit": 2 ** 63}])
def test_windows_of_any_size_may_be_asked_for(tmp_path, window):
    (tmp_path / "f").write_bytes(b"a\nb")
    given = acp.LocalFiles(str(tmp_path)).read_text_file(acp.ReadTextFileRequest("s", str(tmp_path / "f"), **window))
    assert given.content == ("" if window.get("line", 0) > 2 else "a\nb")


@POSIX
def test_a_file_that_no_message_can_hold_is_refused_and_a_part_of_it_is_read(tmp_path):
    path = tmp_path / "f"
    with open(path, "wb") as file:
        file.write(b"first\n")
        file.truncate(1 << 40)  # a terabyte that takes no room
    files = acp.LocalFiles(str(tmp_path))
    assert files.read_text_file(acp.ReadTextFileRequest("s", str(path), limit=1)).content == "first\n"
    for line in 1, 2, 3:
        with pytest.raises(acp.InvalidParams, match="64 MiB"):
            files.read_text_file(acp.ReadTextFileRequest("s", str(path), line=line))


@POSIX
def test_what_replaces_a_private_file_is_private_from_the_beginning(tmp_path, monkeypatch):
    path, modes, real = tmp_path / "f", [], os.fchmod
    path.write_text("old")
    path.chmod(0o640)

    def fchmod(number, mode):
        modes.append(os.fstat(number).st_mode & 0o777)
        real(number, mode)

    monkeypatch.setattr(os, "fchmod", fchmod)
    acp.LocalFiles(str(tmp_path)).write_text_file(acp.WriteTextFileRequest("s", str(path), "new"))
    assert modes == [0o600] and path.stat().st_mode & 0o777 == 0o640


@BOTH
@pytest.mark.parametrize("id", [5, None, ["a"]])
def test_a_message_id_that_is_no_text_fails_the_prompt(version, id):
    def accept(self, turn):
        turn.message_id = id if turn.text == "odd" else "mine"

    with acp.Client(fault_agent(say_request, accept=accept), version=version) as client:
        session = client.new_session("/")
        with pytest.raises(acp.RequestError, match="TypeError"):
            session.prompt("odd").wait(WAIT)
        assert session.ask("next", timeout=WAIT) == "next"


@BOTH
def test_a_turn_of_its_own_inside_accept_is_refused(version):
    def accept(self, turn):
        with pytest.raises(acp.Error, match="would wait for itself"):
            turn.session.turn()

    with acp.Client(fault_agent(say_request, accept=accept), version=version) as client:
        assert client.new_session("/").ask("hi", timeout=WAIT) == "hi"


@BOTH
def test_a_question_inside_accept_tells_no_state_of_a_turn_that_has_not_begun(version):
    def accept(self, turn):
        assert turn.ask_permission("may I?")

    states = []
    with acp.Client(fault_agent(say_request, accept=accept), version=version, permission=acp.allow_once,
                    on_message=lambda way, message: states.append(message)) as client:
        assert client.new_session("/").ask("hi", timeout=WAIT) == "hi"
    told = [message["params"]["update"].get("state") for message in states if message.get("method") == "session/update"]
    assert [each for each in told if each] == ([] if version == 1 else ["running", "idle"])


@BOTH
def test_what_stands_beside_a_returned_state_and_is_not_json_fails_the_turn(version):
    class Odd(acp.Agent):
        versions = (1, 2)

        def prompt(self, turn):
            end = acp.IdleStateUpdate(stop_reason="end_turn")
            end.beside = {"x": object()}
            return end

    with acp.Client(Odd(), version=version) as client:
        for _ in range(2):
            with pytest.raises(acp.RequestError, match="TypeError"):
                client.new_session("/").prompt("hi").wait(WAIT)


@pytest.mark.parametrize("pattern", ["a{99999999999}", "(" * 5000 + ")" * 5000, "(?<js>a)"])
def test_a_pattern_that_python_does_not_take_is_not_checked(pattern):
    acp.ElicitationSchema({"a": acp.StringPropertySchema(pattern=pattern)}).check({"a": "text"})


@pytest.mark.parametrize("editor_version", [1, 2])
def test_a_turn_that_began_in_spite_of_its_cancel_is_told_to_its_end_by_a_bridge(bridged, editor_version):
    bridge = bridged(editor_version, 2).start(ALL[2], EDITORS[editor_version])
    bridge.new()
    id = bridge.editor.prompt(bridge.session)
    request = bridge.agent.asked("session/prompt")
    bridge.editor.notify("session/cancel", {"sessionId": bridge.session})
    bridge.editor.response(id)
    bridge.agent.asked("$/cancel_request")
    bridge.agent.answer(request, {"messageId": "u-1"})  # it crossed the cancel
    bridge.update({"sessionUpdate": "user_message", "messageId": "u-1", "content": request["params"]["prompt"]})
    bridge.update({"sessionUpdate": "state_update", "state": "running"})
    bridge.agent.asked("session/cancel")
    bridge.update({"sessionUpdate": "state_update", "state": "idle", "stopReason": "cancelled"})
    bridge.chunk("after", messageId="m")
    bridge.told_update(lambda update: update.get("messageId") == "m")
    print(bridge.states())
    assert bridge.states()[-1:] != ["running"]
    bridge.editor.notify("session/cancel", {"sessionId": bridge.session})  # what the agent does by itself
    bridge.agent.asked("session/cancel")
    bridge.begin()
    assert bridge.finish() == "end_turn"


def test_a_wait_for_a_command_that_is_given_up_is_given_up_behind_a_bridge(bridged):
    bridge = bridged(1, 1).start(ALL[1], EDITORS[1])
    bridge.new()
    id = bridge.agent.request("terminal/wait_for_exit", {"sessionId": bridge.session, "terminalId": "t"})
    request = bridge.editor.asked("terminal/wait_for_exit")
    bridge.agent.notify("$/cancel_request", {"requestId": id})
    assert bridge.editor.asked("$/cancel_request")["params"] == {"requestId": request["id"]}
    assert bridge.agent.response(id)["error"]["code"] == -32800

# =====================================================================================================================
# Faults
#
# What the gates load.py and faults.py found by chance, each made to happen for certain.
# =====================================================================================================================
import os
import signal
import sys
import textwrap
import threading

import pytest

import acp

WAIT = 10.0
HERE = os.path.dirname(os.path.abspath(__file__))


def test_closing_a_session_drops_the_prompts_that_the_client_holds_back():
    began, sent = threading.Event(), []

    class Slow(acp.Agent):
        def prompt(self, turn):
            began.set()
            turn.wait(WAIT)

    def on_message(way, message):
        if way == "out":
            sent.append(message.get("method"))

    with acp.Client(Slow(), on_message=on_message) as client:
        session = client.new_session(cwd="/")
        running = session.prompt("one")
        assert began.wait(WAIT)
        held = session.prompt("two")
        session.close(timeout=WAIT)
        assert (running.wait(WAIT), held.wait(WAIT)) == ("cancelled", "cancelled")
    assert sent.count("session/prompt") == 1  # sent when the first had ended, it would have found no session


@pytest.mark.parametrize("wrong", ["message", "data"])
def test_an_error_that_cannot_be_told_is_an_answer_all_the_same(wrong):
    class Mute:
        def __str__(self):
            raise SystemExit("no words")

    class Fails(acp.Agent):
        def prompt(self, turn):
            raise acp.RequestError(-1, Mute()) if wrong == "message" else acp.RequestError(-1, "x", {"y": object()})

        def extension(self, peer, method, params):
            self.prompt(None)

    with acp.Client(Fails()) as client:
        with pytest.raises(acp.RequestError) as caught:
            client.request("_fails", timeout=WAIT)
        assert caught.value.code == -32603
        with pytest.raises(acp.RequestError) as caught:
            client.new_session(cwd="/").ask("go", timeout=WAIT)
        assert caught.value.code == -32603


@pytest.mark.skipif(os.name == "nt", reason="Windows sends no such signal")
def test_a_prompt_that_comes_behind_a_sigterm_does_not_begin(tmp_path):
    agent = tmp_path / "agent.py"
    agent.write_text(textwrap.dedent("""
        import sys
        import time
        import acp

        class Slow(acp.Agent):
            def prompt(self, turn):
                print("began", turn.text, file=sys.stderr, flush=True)
                turn.wait(100)
            def extension(self, peer, method, params):  # keeps the agent in its grace
                time.sleep(100)

        Slow().run()
    """))
    stderr, began = [], threading.Event()

    def on_stderr(line):
        stderr.append(line)
        began.set()

    with acp.Client([sys.executable, str(agent)], env={"PYTHONPATH": HERE}, on_stderr=on_stderr) as client:
        session = client.new_session(cwd="/", timeout=WAIT)
        hanging = threading.Thread(target=lambda: pytest.raises(acp.Error, client.request, "_hang"))
        hanging.start()
        first = session.prompt("one")
        assert began.wait(WAIT)
        os.kill(client._process.popen.pid, signal.SIGTERM)
        assert first.wait(WAIT) == "cancelled"  # it ends, and waits for the one that hangs
        with pytest.raises(acp.ConnectionClosed):
            session.ask("two", timeout=WAIT)
        hanging.join(WAIT)
    assert client._process.popen.returncode == -signal.SIGTERM
    assert stderr[0] == "began one" and "began two" not in stderr


@pytest.mark.skipif(os.name == "nt", reason="a POSIX process group")
def test_close_after_a_ctrl_c_in_close_does_what_was_left():
    agent = textwrap.dedent("""
        import acp

        class Echo(acp.Agent):
            def prompt(self, turn): pass

        Echo().run()
    """)
    client = acp.Client([sys.executable, "-c", agent], env={"PYTHONPATH": HERE})
    process = client._process
    with pytest.MonkeyPatch.context() as patch:
        def interrupted(timeout=None):
            raise KeyboardInterrupt
        patch.setattr(process.exited, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.close()
    client.close()
    assert process.popen.returncode is not None and process.exited.is_set()
    assert process.popen.stdin.closed and process.popen.stdout.closed
    with pytest.raises(ProcessLookupError):
        os.killpg(process.popen.pid, 0)


@pytest.mark.skipif(os.name == "nt", reason="there is no sleep command")
def test_a_ctrl_c_while_a_client_starts_ends_the_agent(monkeypatch):
    made, start = [], acp._AgentProcess.__init__

    def started(self, *given):
        start(self, *given)
        made.append(self)

    def interrupted(self):
        raise KeyboardInterrupt
    monkeypatch.setattr(acp._AgentProcess, "__init__", started)
    monkeypatch.setattr(acp.Connection, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        acp.Client(["sleep", "100"])
    assert made[0].exited.wait(WAIT) and made[0].popen.stdin.closed

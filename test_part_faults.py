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

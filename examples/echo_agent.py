"""An agent in ten lines: it says back what it is told, on version 1 of the protocol and on the draft of version 2.

An editor starts it as a command (README.md shows how); ask.py does so when it is given no other agent:

    python3 examples/ask.py "hello"
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # acp.py is one folder up
import acp  # noqa: E402


class Echo(acp.Agent):
    name = "echo"
    versions = (1, 2)

    def prompt(self, turn):
        turn.say("You said: " + turn.text)


if __name__ == "__main__":
    Echo().run()

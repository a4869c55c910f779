"""An agent that survives a restart: it keeps what it is told to remember, and each conversation is a file.

    python3 examples/notebook_agent.py [FOLDER]          # default: ~/.acp-notebook

    python3 examples/ask.py "remember that the door is green" -- python3 examples/notebook_agent.py

After each turn the session's state is written down as the updates that rebuild it; to load or resume it is to hand them
to the library. The conversation is all the memory it has: what it knows it reads out of what was said.
"""
import contextlib
import datetime
import json
import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # acp.py is one folder up
import acp  # noqa: E402


class Notebook(acp.Agent):
    name = "notebook"
    title = "Notebook"
    versions = (1, 2)

    def __init__(self, folder):
        self.folder = folder

    def prompt(self, turn):
        session = turn.session
        if session.title is None:
            session.title = turn.text.strip()[:60] or "Notes"
        told = [message.text.strip() for message in session.state.messages.values() if message.role == "user"]
        notes = [text[9:] for text in told if text.lower().startswith("remember ")]
        if turn.text.lower().startswith("remember "):
            turn.say(f"Noted, as number {len(notes)}.")
        else:
            turn.say("\n".join(["What I know:"] + [f"- {note}" for note in notes]) if notes else "Nothing so far.")
        self.save(session)

    # ---- files ------------------------------------------------------------------------------------------------------

    def path(self, session_id):
        """The file of a session. Ids are as the library makes them; no other can name a file."""
        if not re.fullmatch("session-[0-9a-f]{16}", session_id):
            raise acp.NotFound("no such session")
        return os.path.join(self.folder, session_id + ".json")

    def save(self, session):
        """Write it down, whole or not at all: whatever ends the process, the file is the old one or the new one."""
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        updates = [each for each in session.state.snapshot() if not isinstance(each, acp.StateUpdate)]
        data = {"cwd": session.cwd, "title": session.title, "updatedAt": now, "updates": acp.to_wire(updates, 2)}
        os.makedirs(self.folder, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=self.folder, suffix=".tmp", delete=False) as file:
            json.dump(data, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, self.path(session.id))

    def load(self, session_id):
        """Its SessionInfo, and the updates that rebuild it."""
        try:
            with open(self.path(session_id), encoding="utf-8") as file:
                data = json.load(file)
            info = {"sessionId": session_id, **{key: data[key] for key in ("cwd", "title", "updatedAt")}}
            return (acp.from_wire(acp.SessionInfo, info, 2),
                    [acp.from_wire(acp.SessionUpdate, each, 2) for each in data["updates"]])
        except FileNotFoundError:
            raise acp.NotFound("no such session") from None
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise acp.RequestError(-32603, f"the file of {session_id} is broken: {type(error).__name__}") from None

    # ---- sessions ---------------------------------------------------------------------------------------------------

    def resume_session(self, session, replay):
        if session.id not in self.sessions:  # else the library has it all
            return self.load(session.id)[1]

    def list_sessions(self, cwd):
        infos = []
        for name in os.listdir(self.folder) if os.path.isdir(self.folder) else ():
            if name.endswith(".json"):
                try:
                    infos.append(self.load(name[:-5])[0])
                except acp.RequestError as error:
                    print(f"notebook_agent.py: {name} is left out: {error}", file=sys.stderr)
        infos.sort(key=lambda info: info.updated_at or "", reverse=True)
        return [info for info in infos if cwd in (None, info.cwd)]

    def delete_session(self, session_id):
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.path(session_id))


if __name__ == "__main__":
    Notebook(sys.argv[1] if len(sys.argv) > 1 else os.path.expanduser("~/.acp-notebook")).run()

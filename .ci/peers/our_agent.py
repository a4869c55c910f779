"""The scripted agent of the peer gate on acp.py; the agents on the official SDKs beside it follow the same script.

The words of a prompt say what a turn does: "everything" the whole show, "slow" ticks until it is cancelled, "fail"
raises an error, anything else is said back.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
import acp  # noqa: E402


class Script(acp.Agent):
    name, title, version = "script", "The script", "1"
    versions = (1, 2)
    notes = []

    def new_session(self, session):
        session.config_options = [acp.SessionConfigSelect("model", "Model", "small", [
            acp.SessionConfigSelectOption("small", "Small"), acp.SessionConfigSelectOption("big", "Big")])]
        session.commands = [acp.Command("again", "do it again", acp.TextCommandInput("what"))]

    def resume_session(self, session, replay):
        if session.id not in self.sessions:
            raise acp.NotFound()

    def extension(self, peer, method, params):
        if method == "_script/double":
            return {"n": 2 * params["n"]}
        if method == "_script/notes":
            return {"notes": self.notes}
        raise acp.MethodNotFound("no such method", {"method": method})

    def extension_notification(self, peer, method, params):
        self.notes.append(params["text"])

    def prompt(self, turn):
        if turn.text == "slow":
            while True:
                turn.say("tick ")
                turn.wait(0.05)
        if turn.text == "fail":
            raise acp.RequestError(-32603, "told to fail", {"why": "the prompt"})
        if turn.text != "everything":
            return turn.say("You said: " + turn.text)
        session, peer = turn.session, turn.session.peer
        notes = os.path.join(session.cwd, "notes.txt")
        turn.think("thinking")
        turn.say("Hello, ")
        turn.say("world. ")
        turn.plan([acp.PlanEntry("look", "high", "completed"), acp.PlanEntry("edit", "medium", "in_progress")])
        with turn.tool("Edit notes", kind="edit", locations=[notes], raw_input={"path": notes}) as tool:
            tool.diff(notes, "one\n2\n", "one\ntwo\n")
            turn.say("allowed. " if tool.ask_permission() else "refused. ")
            if peer.version == 1:
                turn.say(f"read {turn.read_text_file(notes, line=2, limit=1).strip()}. ")
                turn.write_text_file(os.path.join(session.cwd, "out.txt"), "written\n")
                with tool.terminal("sh", ["-c", "echo $GREETING; exit 3"], env={"GREETING": "hi"},
                                   output_byte_limit=1000) as terminal:
                    exited = terminal.wait(20)
                    turn.say(f"terminal {terminal.output().output.strip()} {exited.exit_code}. ")
        form = acp.ElicitationSchema({"name": acp.StringPropertySchema(title="Name")}, required=["name"])
        turn.say(f"name {turn.elicit('Who are you?', form).content['name']}. ")
        turn.say(f"asked {peer.request('_script/ask', {'n': 1})['n']}. ")
        peer.notify("_script/told", {"n": 3})
        turn.send(acp.Unknown("_script_update", {"sessionUpdate": "_script_update", "x": {"y": [1, None, "z"]}}))
        turn.usage(10, 1000)
        turn.say("Done.")


if __name__ == "__main__":
    Script().run()

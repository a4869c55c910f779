"""Tests of the v1 adapter that belong at the end of test_acp.py."""
from test_acp import *  # noqa: F403

# ruff: noqa: F405

# =====================================================================================================================
# Modes of version 1 beside other options, and what only version 1 allows
# =====================================================================================================================

RICH_MODES = {**WIRE_MODES, "_meta": {"from": "modes"}, "mood": {"deep": [1]}}
MODEL_OPTION = wire_options(1)[0]


def own_mode(id="how", current="ask"):
    """A mode option that an agent of version 1 reports itself."""
    return {**wire_options(1, current)[1], "id": id}


MODES_AND_MODEL = """
    hello(1, agentCapabilities={"loadSession": True})
    request = read()
    setup = {"modes": MODES, "configOptions": GIVEN}
    answer(request, {"sessionId": "s", **setup} if request["method"] == "session/new" else setup)
    while True:
        request = read()
        if request["method"] == "session/prompt":
            write(*[update("s", each) for each in UPDATES])
            end(1, request)
        else:
            answer(request, {} if request["method"] == "session/set_mode" else {"configOptions": CHANGED})
"""


def mode_client(fake_agent, updates=(), given=(MODEL_OPTION,), changed=(MODEL_OPTION,), **options):
    script = fake_agent(MODES_AND_MODEL, MODES=RICH_MODES, GIVEN=given, CHANGED=list(changed), UPDATES=list(updates))
    return acp.Client(script, **options)


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("given", [None, [], [MODEL_OPTION]], ids=["no options", "empty options", "an option"])
def test_what_an_agent_says_of_its_modes_stands_on_the_option(fake_agent, given, resumed):
    with mode_client(fake_agent, given=given) as client:
        session = client.resume_session("s", "/") if resumed else client.new_session("/")
        *others, option = session.state.config_options
        assert len(others) == len(given or []) and option.config_id == option.category == "mode"
        assert option.meta == {"from": "modes"} and option.unknown_fields == {"mood": {"deep": [1]}}


def test_what_an_option_for_modes_says_stands_on_the_modes(raw):
    def new_session(session):
        option = mode_option()
        option.meta, option.unknown_fields = {"from": "option"}, {"mood": 1}
        session.config_options = [option]

    wire = raw(TableAgent(new_session=new_session))
    s = wire.start(1)
    assert wire.session["modes"]["_meta"] == {"from": "option"} and wire.session["modes"]["mood"] == 1
    assert wire.session["configOptions"][0]["_meta"] == {"from": "option"}
    assert wire.call("session/set_mode", {"sessionId": s, "modeId": "code"}) == {}


@pytest.mark.parametrize("editor_version, agent_version", [(1, 1), (2, 1)])
def test_what_an_agent_says_of_its_modes_goes_through_a_bridge(bridge, editor_version, agent_version):
    told = bridge.new(modes=RICH_MODES)
    option, = told["configOptions"]
    assert (option["_meta"], option["mood"]) == ({"from": "modes"}, {"deep": [1]})
    assert told.get("modes") == (RICH_MODES if editor_version == 1 else None)


@pytest.mark.parametrize("resumed", [False, True])
def test_the_option_made_of_modes_outlives_reports_of_the_others(fake_agent, resumed):
    small, sent, seen = {**MODEL_OPTION, "currentValue": "small"}, [], []
    updates = [{"sessionUpdate": "config_option_update", "configOptions": [small], "_meta": {"n": 1}},
               {"sessionUpdate": "current_mode_update", "currentModeId": "ask"},
               {"sessionUpdate": "config_option_update", "configOptions": []}]
    with mode_client(fake_agent, updates, on_message=sent_into(sent),
                     on_update=lambda session, update: seen.append(update)) as client:
        session = client.resume_session("s", "/") if resumed else client.new_session("/")

        def told():
            return [(each.config_id, each.current_value) for each in session.state.config_options]

        assert told() == [("model", "big"), ("mode", "ask")]
        session.set_config_option("mode", "code")
        assert (sent[-1]["method"], sent[-1]["params"]) == ("session/set_mode", {"sessionId": "s", "modeId": "code"})
        assert told() == [("model", "big"), ("mode", "code")]
        session.set_config_option("model", "big")
        assert sent[-1]["params"] == {"sessionId": "s", "configId": "model", "value": "big"}
        assert told() == [("model", "big"), ("mode", "code")]
        seen.clear()
        session.prompt("hi").wait()
        reports = [each for each in seen if isinstance(each, acp.ConfigOptionUpdate)]
        assert [[(option.config_id, option.current_value) for option in each.config_options] for each in reports] == [
            [("model", "small"), ("mode", "code")], [("model", "small"), ("mode", "ask")], [("mode", "ask")]]
        assert [each.meta for each in reports] == [{"n": 1}, None, None]
        assert told() == [("mode", "ask")] and session.state.config_options[0].meta == {"from": "modes"}
        session.set_config_option("mode", "code")
        assert sent[-1]["method"] == "session/set_mode" and told() == [("mode", "code")]


@pytest.mark.parametrize("id", ["how", "mode"])
@pytest.mark.parametrize("told_by", ["update", "answer"])
def test_an_agents_own_option_for_modes_takes_the_place_of_the_one_made_of_them(fake_agent, id, told_by):
    sent, reported = [], [own_mode(id)]
    updates = [{"sessionUpdate": "config_option_update", "configOptions": reported}]
    with mode_client(fake_agent, updates if told_by == "update" else [], changed=reported,
                     on_message=sent_into(sent)) as client:
        session = client.new_session("/")
        if told_by == "update":
            session.prompt("hi").wait()
        else:
            session.set_config_option("model", "small")
        option, = session.state.config_options
        assert (option.config_id, option.meta) == (id, None)
        session.set_config_option(id, "code")
        assert sent[-1]["method"] == "session/set_config_option" and sent[-1]["params"]["configId"] == id


def test_an_agents_option_called_mode_is_not_doubled(fake_agent):
    sent, given = [], {**own_mode("mode")}
    del given["category"]
    with mode_client(fake_agent, given=[given], on_message=sent_into(sent)) as client:
        session = client.new_session("/")
        assert [each.config_id for each in session.state.config_options] == ["mode"]
        session.set_config_option("mode", "code")
        assert sent[-1]["method"] == "session/set_config_option"


@pytest.mark.parametrize("editor_version, agent_version", [(1, 1), (2, 1)])
def test_the_option_made_of_modes_outlives_reports_behind_a_bridge(bridge, editor_version, agent_version):
    def ids(options):
        return [each["id" if editor_version == 1 else "configId"] for each in options]

    told = bridge.new(modes=RICH_MODES, configOptions=[MODEL_OPTION])
    assert ids(told["configOptions"]) == ["model", "mode"]
    bridge.update({"sessionUpdate": "config_option_update", "configOptions": [MODEL_OPTION]})
    update = bridge.told_update(lambda update: update["sessionUpdate"] == "config_option_update")
    assert ids(update["configOptions"]) == ["model", "mode"]
    choice = {"sessionId": bridge.session, "configId": "model", "value": "small", "type": "id"}
    answer = bridge.pass_on("session/set_config_option", choice, result={"configOptions": [MODEL_OPTION]})[1]
    assert ids(answer["configOptions"]) == ["model", "mode"]
    choice = {**choice, "configId": "mode", "value": "code"}
    asked, answer = bridge.pass_on("session/set_config_option", choice, "session/set_mode")
    assert asked == {"sessionId": bridge.session, "modeId": "code"}
    assert answer["configOptions"][1]["currentValue"] == "code"


# ---- what version 1 allows and version 2 refuses ---------------------------------------------------------------------

def foreign_text(**annotations):
    return {"type": "text", "text": "x", "annotations": annotations}


def foreign_update(**more):
    return {"sessionUpdate": "tool_call_update", "toolCallId": "c", **more}


FOREIGN = [  # type, version 1's wire, version 2's
    ("ContentBlock", foreign_text(priority=1.5, audience=["user"]), foreign_text(audience=["user"])),
    ("ContentBlock", foreign_text(priority=-1), foreign_text()),
    ("ContentBlock", foreign_text(priority=1), foreign_text(priority=1)),
    ("ContentBlock", {"type": "resource_link", "name": "n", "uri": "u", "size": -1},
     {"type": "resource_link", "name": "n", "uri": "u"}),
    ("SessionUpdate", foreign_update(locations=[{"path": "/a", "line": 0, "_meta": {"k": 1}}, {"path": "/b"}]),
     foreign_update(locations=[{"path": "/a", "_meta": {"k": 1}}, {"path": "/b"}])),
    ("SessionUpdate", foreign_update(content=[{"type": "content", "content": foreign_text(priority=2)}]),
     foreign_update(content=[{"type": "content", "content": foreign_text()}])),
    ("ElicitationPropertySchema", {"type": "string", "title": "t", "enum": [], "oneOf": []},
     {"type": "string", "title": "t"}),
    ("SessionUpdate", {"sessionUpdate": "config_option_update", "configOptions": [
        {**own_mode(), "options": []}, MODEL_OPTION, {**MODEL_OPTION, "options": [
            {"group": "g", "name": "G", "options": []}]}]},
     {"sessionUpdate": "config_option_update", "configOptions": wire_options(2)[:1]}),
    ("NewSessionResponse", {"sessionId": "s", "configOptions": [{**own_mode(), "options": []}]},
     {"sessionId": "s", "configOptions": []}),
    ("SetSessionConfigOptionResponse", {"configOptions": [{**own_mode(), "options": []}, MODEL_OPTION]},
     {"configOptions": wire_options(2)[:1]}),
]


@pytest.mark.parametrize("name, given, wanted", FOREIGN)
def test_what_only_version_1_allows_is_left_out_for_version_2(name, given, wanted):
    message = acp.from_wire(getattr(acp, name), given, 1)
    assert acp.to_wire(message, 2) == wanted
    assert acp.to_wire(message, 1) == given  # and version 1 hears it as it was
    acp.from_wire(getattr(acp, name), wanted, 2)


@pytest.mark.parametrize("name, given", [
    ("SessionConfigOption", {**own_mode(), "options": []}),
    ("RequestPermissionRequest", {"sessionId": "s", "toolCall": {"toolCallId": "c"}, "options": []}),
    ("ElicitationPropertySchema", {"type": "array", "items": {"type": "string", "enum": []}})])
def test_what_version_2_cannot_do_without_is_refused_though_version_1_allows_it(name, given):
    with pytest.raises(acp.MalformedMessage):
        acp.to_wire(acp.from_wire(getattr(acp, name), given, 1), 2)


@pytest.mark.parametrize("made, place", [
    (acp.ToolCallUpdate("c", locations=[acp.ToolCallLocation("/a", 0)]), "locations[0].line"),
    (acp.TextContent("x", acp.Annotations(priority=2)), "annotations.priority"),
    (acp.ResourceLink("n", "u", size=-1), "size"),
    (acp.StringPropertySchema(enum=[]), "enum"),
    (acp.ConfigOptionUpdate([acp.SessionConfigSelect("m", "M", "a", [])]), "configOptions[0].options"),
    (acp.ConfigOptionUpdate(["not an option"]), "configOptions[0]")])
def test_what_a_program_made_itself_still_raises(made, place):
    with pytest.raises(acp.MalformedMessage) as caught:
        acp.to_wire(made, 2)
    assert caught.value.place == place


def test_what_a_program_adds_to_a_message_of_version_1_still_raises():
    update = acp.from_wire(acp.ConfigOptionUpdate, {"configOptions": [MODEL_OPTION]}, 1)
    update.config_options.append(acp.SessionConfigSelect("m", "M", "a", []))
    assert len(acp.to_wire(update, 1)["configOptions"]) == 2
    with pytest.raises(acp.MalformedMessage) as caught:
        acp.to_wire(update, 2)
    assert caught.value.place == "configOptions[1].options"
    update.config_options[1] = 5
    for version in 1, 2:
        with pytest.raises(acp.MalformedMessage):
            acp.to_wire(update, version)


@pytest.mark.parametrize("editor_version, agent_version", [(2, 1)])
def test_what_only_version_1_allows_does_not_keep_the_rest_from_an_editor_of_version_2(
        bridge, editor_version, agent_version):
    told = bridge.new(configOptions=[{**own_mode(), "options": []}, MODEL_OPTION])
    assert told["configOptions"] == wire_options(2)[:1]
    heard = bridge.turn(
        {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "T", "locations": [{"path": "/a", "line": 0}]},
        {"sessionUpdate": "agent_message_chunk", "messageId": "m", "content": foreign_text(priority=3)})
    assert heard == [foreign_update(title="T", locations=[{"path": "/a"}]), {
        "sessionUpdate": "agent_message_chunk", "messageId": "m", "content": foreign_text()}]
    ask = {"sessionId": bridge.session, "message": "?", "mode": "form", "requestedSchema": {
        "type": "object", "properties": {"size": {"type": "string", "enum": []}}}}
    asked = bridge.pass_back("elicitation/create", ask, {"action": "decline"})[0]
    assert asked["requestedSchema"]["properties"] == {"size": {"type": "string"}}


@pytest.mark.parametrize("editor_version, agent_version", [(1, 2)])
def test_what_only_version_1_allows_does_not_keep_the_rest_from_an_agent_of_version_2(
        bridge, editor_version, agent_version):
    bridge.new()
    link = {"type": "resource_link", "name": "n", "uri": "file:///n"}
    bridge.prompt_id = bridge.editor.request("session/prompt", {
        "sessionId": bridge.session, "prompt": [foreign_text(priority=-2), {**link, "size": -1}]})
    bridge.request = bridge.agent.asked("session/prompt")
    assert bridge.request["params"]["prompt"] == [foreign_text(), link]
    bridge.agent.answer(bridge.request, {"messageId": "u"})
    bridge.update({"sessionUpdate": "state_update", "state": "running"})
    assert bridge.finish() == "end_turn"

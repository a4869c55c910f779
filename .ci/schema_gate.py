#!/usr/bin/env python3
"""Every type of the schemas against the codec: python3 .ci/schema_gate.py [COUNT] [SEED]

COUNT values (25) a type and kind, from the JSON Schemas that the official TypeScript SDK carries. Valid ones must
decode, encode to the same JSON (nulls that mean omitted aside) and be what the schema accepts, lenient ones must read
as what the schema's keywords leave, invalid ones must be refused with the place of the fault. A second judge, PyPI's
jsonschema, must agree about each value. The words of each enum are those that its class lists. Then what only the
unstable schemas know: their values pass through known types unharmed, their methods are sent and handled by name in
both roles, their updates arrive whole. Prints a line a part and ends with "N passed, N failed"; exit status 1 when
one failed.
"""
import copy
import json
import os
import re
import sys
import threading

import installs

if __name__ == "__main__":
    installs.again(installs.JSONSCHEMA)

import values  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import acp  # noqa: E402

# Types of the schemas that are no class of their own here: ours, and the tag under which theirs stands.
OTHER = {
    "v2": {"AgentAuthCapabilities": acp.AgentAuthCapabilities, "Error": acp.ErrorObject,
           "DiffPathChange": (acp.DiffChange, {"operation": "modify"}),
           "DiffPathPairChange": (acp.DiffChange, {"operation": "move"}),
           "ErrorStopReason": (
               acp.IdleStateUpdate, {"sessionUpdate": "state_update", "state": "idle", "stopReason": "error"}),
           "StateUpdate": acp.SessionUpdate},
    "v1": {"Error": acp.ErrorObject, "AuthCapabilities": acp.ClientAuthCapabilities, "UnstructuredCommandInput":
           acp.TextCommandInput, "AuthenticateRequest": acp.LoginAuthRequest, "AuthenticateResponse":
           acp.LoginAuthResponse, "LogoutRequest": acp.LogoutAuthRequest, "LogoutResponse": acp.LogoutAuthResponse,
           "AvailableCommand": acp.AvailableCommand, "CancelNotification": acp.CancelSessionNotification,
           "LoadSessionRequest": acp.ResumeSessionRequest, "LoadSessionResponse": acp.ResumeSessionResponse,
           "SessionNotification": acp.UpdateSessionNotification, "Plan": (acp.SessionUpdate, {"sessionUpdate": "plan"}),
           "ToolCall": (acp.SessionUpdate, {"sessionUpdate": "tool_call"})},
}
PARTS = {  # flattened into what carries them, and tested there; what has no class because it is only data of an error
    "ContentChunk", "ElicitationFormMode", "ElicitationUrlMode", "ElicitationAcceptAction", "ElicitationSessionScope",
    "ElicitationRequestScope", "ErrorData", "SessionNotFoundErrorData", "UnsupportedProtocolVersionErrorData",
    "SessionConfigSelectOptions",
}
ENVELOPES = {side + role for side in ("Agent", "Client") for role in ("Request", "Response", "Notification")}
UNTAGGED = {"v1": {"McpServerStdio", "AuthMethodAgent", "Command", "UnstructuredCommandInput"}, "v2": set()}
STRAY = {  # read in spite of the schema, as protocol notes ask: (version, pattern of the type, pattern of the reason)
    ("v2", "AvailableCommand|.*(Update|Notification|SessionResponse)",
     r"(^|availableCommands\[\d+\]\.)type: missing"),  # August peers
    ("v1", ".*", r"(mcpServers|headers|args|env): missing"),  # always sent, but not asked for
    # A known tag with a malformed payload is an error, and not the variant without a tag.
    ("v1", "AuthMethod|InitializeResponse", r"(type|args|env): .* instead of (string|array|object)"),
}
EITHER = [{"sessionId", "requestId"}, {"text", "blob"}, {"anyOf", "type"}, {"value", "groupId", "group"},
          {"type", "command"}, {"type", "value"}]  # where variants have no tag, the fault is either field's
ABSENT = {  # required by the schema, but the library reads on: older drafts did not have them
    ("v2", "PromptResponse", ("messageId",)), ("v2", "InitializeRequest", ("info",)),
    ("v2", "InitializeResponse", ("info",)),
}


def target(version, name):
    """Our class for a type, and the tags that its wire object has beside the type's own fields."""
    found = OTHER[version].get(name) or getattr(acp, name, None)
    if found is None:
        return None, None
    if isinstance(found, tuple):
        return found
    tags = {}
    for key in getattr(found, "_tags", ()):
        if name not in UNTAGGED[version]:
            tags[acp._camel(key)] = getattr(found, key)
    if name in ("SessionConfigSelect", "SessionConfigBoolean"):
        tags.update({"id" if version == "v1" else "configId": "x", "name": "x"})
    if name == "StateUpdate":
        tags = {"sessionUpdate": "state_update"}
    return found, tags


def clean(value):
    """Without what stands for nothing: nulls."""
    if isinstance(value, dict):
        return {key: clean(item) for key, item in value.items() if item is not None}
    return [clean(item) for item in value] if isinstance(value, list) else value


def numbers(value):
    """1.0 and 1 are the same number."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items()}
    return [numbers(item) for item in value] if isinstance(value, list) else value


def same(a, b):
    return json.dumps(clean(numbers(a)), sort_keys=True) == json.dumps(clean(numbers(b)), sort_keys=True)


def empty(value):
    """Lists and objects that are empty, left out."""
    if isinstance(value, dict):
        return {k: v for k, v in ((k, empty(v)) for k, v in value.items()) if v not in ([], None)}
    return [empty(item) for item in value] if isinstance(value, list) else value


def unknown_at(decoded, path):
    """Whether the place lies inside a variant that is not known, which is kept as it came."""
    for step in path:
        if isinstance(decoded, acp.Unknown):
            return True
        if isinstance(step, int):
            decoded = decoded[step] if isinstance(decoded, list) and step < len(decoded) else None
        else:
            snake = re.sub("([A-Z])", lambda found: "_" + found.group(1).lower(), step)
            decoded = getattr(decoded, {"_meta": "meta"}.get(step, snake), None)
    return isinstance(decoded, acp.Unknown)


def judge(version, cls, tags, case, valid=None):
    """What is wrong with how the codec takes a case, or None."""
    number, value = int(version[1]), case["value"]
    whole = {**tags, **value} if tags and isinstance(value, dict) else value
    before = copy.deepcopy(whole)
    try:
        decoded = acp.from_wire(cls, whole, number)
    except acp.MalformedMessage as error:
        if case["kind"] != "invalid":
            return f"refused: {error}"
        place, broken = error.place, values.place_of(case["path"])
        if not broken or place == broken or "bad items" in case["why"] and place.startswith(broken + "["):
            return None
        (front, _, leaf), (wanted_front, _, wanted) = place.rpartition("."), broken.rpartition(".")
        if front == wanted_front and any({leaf, wanted} <= pair for pair in EITHER):
            return None
        return f"refused at {place!r}: {error}"
    if whole != before:
        return "decoding changed its input"
    if case["kind"] == "invalid":
        return f"accepted as {decoded!r}"[:300]
    encoded = acp.to_wire(decoded, number)
    if case["kind"] == "lenient":
        wanted = acp.from_wire(cls, {**tags, **case["expect"]} if tags else case["expect"], number)
        if decoded == wanted or unknown_at(decoded, case["path"]):
            return None
        again = acp.to_wire(wanted, number)
        return None if same(empty(encoded), empty(again)) else f"read as {decoded!r} and not {wanted!r}"[:600]
    if not same(encoded, whole):
        return "encoded as " + json.dumps(encoded)[:500]
    if valid is not None and not valid(encoded if not tags else {
            key: item for key, item in encoded.items() if key not in tags or key in value}):
        return "encoded as what the schema refuses: " + json.dumps(encoded)[:500]
    return None


class Count:
    """Counts a part, and shows its first failures."""

    def __init__(self):
        self.passed = self.failed = 0

    def __call__(self, wrong, what, value=None):
        self.passed, self.failed = self.passed + (wrong is None), self.failed + (wrong is not None)
        if wrong is not None and self.failed <= 40:
            print(f"FAILED {what}" + ("" if value is None else ": " + json.dumps(value)[:400]) + f"\n    {wrong}")

    def part(self, name):
        print(f"{name}: {self.passed} passed, {self.failed} failed", flush=True)
        return self


def left_out(version, name, case):
    if case["kind"] == "invalid" and case["why"] == "missing" and (version, name, case["path"]) in ABSENT:
        return True
    if case["value"] is None and name.endswith("Response"):  # the documentation itself shows "result": null for {}
        return True
    words = f"{values.place_of(case['path'])}: {case['why']}"
    return any(version == v and re.fullmatch(n, name) and re.search(w, words) for v, n, w in STRAY)


def stable(folder, count, seed):
    """All types of a version's stable schema."""
    import jsonschema
    for number in (1, 2):
        schema, tally = values.Schema(folder, number), Count()
        version, kinds = f"v{number}", {"valid": 0, "lenient": 0, "invalid": 0}
        for name in schema.defs:
            if not schema.is_object(name) or name in PARTS or name in ENVELOPES or name.startswith("Ext"):
                continue
            cls, tags = target(version, name)
            if cls is None:
                tally("there is no class for it", f"{version} {name}")
                continue
            second = jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": schema.defs})
            for case in values.cases(schema, name, count, seed):
                what = f"{version} {name} {case['kind']} ({values.place_of(case['path'])}: {case['why']})"
                if second.is_valid(case["value"]) != (case["kind"] == "valid"):
                    tally("the two judges do not agree", what, case["value"])
                    continue
                if left_out(version, name, case):
                    continue
                kinds[case["kind"]] += 1
                tally(judge(version, cls, tags, case, second.is_valid), what, case["value"])
        yield tally.part(f"{version} types ({', '.join(f'{kinds[kind]} {kind}' for kind in kinds)})")


def words(folder):
    """The words of each enum, of both versions together, against the class that lists them."""
    known, tally = {}, Count()
    for schema in (values.Schema(folder, 1), values.Schema(folder, 2)):
        for name, form in schema.defs.items():
            found = {each.get("const") for each in form.get("oneOf", form.get("anyOf", [])) if each.get("const")}
            if len(found | set(form.get("enum", ()))) > 1 and all(isinstance(word, str) for word in found):
                known.setdefault(name, set()).update(found, form.get("enum", ()))
        if (idle := schema.defs.get("IdleStateUpdate")) is not None:  # version 2 has no name for its stop reasons
            known["StopReason"].update(form["properties"]["stopReason"]["const"] for form in schema.forms(idle)
                                       if "const" in form["properties"].get("stopReason", {}))
    for name, wanted in known.items():
        cls = getattr(acp, name, acp.Words)
        listed = {word for key, word in vars(cls).items() if not key.startswith("__")}
        tally(None if listed == wanted else f"{sorted(listed)} and not {sorted(wanted)}", f"the words of {name}")
    for cls in acp.Words.__subclasses__():
        tally(None if cls.__name__ in known else "the schemas do not know it", cls.__name__)
    return tally.part(f"words of {len(known)} enums")


# ---- what only the unstable schemas know ----------------------------------------------------------------------------


def through_known_types(folder, number, count, seed):
    """Valid values of the unstable schema, decoded by the class of the same name, encode to the same."""
    schema, known = values.Schema(folder, number, True), values.Schema(folder, number)
    tally, version = Count(), f"v{number}"
    for name in known.defs:
        if name not in schema.defs or not schema.is_object(name) or name in PARTS or name in ENVELOPES:
            continue
        cls, tags = target(version, name)
        for case in values.cases(schema, name, count, seed) if cls is not None else ():
            if case["kind"] == "valid" and not left_out(version, name, case):
                tally(judge(version, cls, tags, case), f"{version} unstable {name} ({case['why']})", case["value"])
    return tally.part(f"{version} unstable values through known types")


class Seen:
    """What came by name: whoever waits for it is woken."""

    def __init__(self):
        self.changed, self.items = threading.Condition(), []

    def __call__(self, *item):
        with self.changed:
            self.items.append(item)
            self.changed.notify_all()

    def take(self):
        with self.changed:
            self.changed.wait_for(lambda: self.items, 10)
            return self.items.pop(0) if self.items else None


def by_name(folder, number, seed):
    """Each method and update that only the unstable schema has, through a live connection, in both roles."""
    schema, known, tally = values.Schema(folder, number, True), values.Schema(folder, number), Count()
    came, updates, answers, sessions = Seen(), Seen(), {}, []

    class Peer(acp.Agent):
        versions = (1, 2)

        def new_session(self, session): sessions.append(session)
        def prompt(self, turn): pass

        def extension(self, peer, method, params):
            came(method, params)
            return answers[method]

        def extension_notification(self, peer, method, params): came(method, params)

    def extension(method, params):
        came(method, params)
        return answers[method]

    def on_update(session, update):
        if type(update) is acp.Unknown:
            updates(update)

    with acp.Client(Peer(), version=number, extension=extension, extension_notification=came,
                    on_update=on_update) as client:
        client.new_session(cwd="/")
        session = sessions[0]
        for (side, method), roles in schema.methods().items():
            if (side, method) in known.methods() or side == "protocol":
                continue
            ends = {"agent": [client], "client": [session.peer]}.get(side, [client, session.peer])
            for end in ends:
                for params in some(schema, roles.get("Request") or roles["Notification"], seed):
                    if "Request" in roles:
                        for result in some(schema, roles["Response"], seed)[:3]:
                            answers[method] = result
                            got = end.request(method, params, timeout=10)
                            tally(None if same_json(got, result) else f"answered {got!r}",
                                  f"v{number} {method} result", result)
                            arrived = came.take()
                            tally(None if arrived == (method, params) else f"came as {arrived!r}",
                                  f"v{number} {method}", params)
                    else:
                        end.notify(method, params)
                        arrived = came.take()
                        tally(None if arrived == (method, params) else f"came as {arrived!r}",
                              f"v{number} {method}", params)
        tags = {form["properties"]["sessionUpdate"].get("const") for form in known.forms(known.defs["SessionUpdate"])}
        for case in values.cases(schema, "SessionUpdate", 60, seed):
            tag = case["value"].get("sessionUpdate") if isinstance(case["value"], dict) else None
            if case["kind"] == "valid" and tag not in tags and tag not in values.WORDS:
                session.send(acp.Unknown(tag, case["value"]))
                arrived = updates.take()
                right = arrived and type(arrived[0]) is acp.Unknown and arrived[0].data == case["value"]
                tally(None if right else f"came as {arrived!r}", f"v{number} update {tag}", case["value"])
    return tally.part(f"v{number} unstable methods and updates by name")


def same_json(a, b):
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def some(schema, name, seed):
    found = [case["value"] for case in values.cases(schema, name, 6, seed) if case["kind"] == "valid"]
    return [value for value in found if isinstance(value, dict)]


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    seed = sys.argv[2] if len(sys.argv) > 2 else "0"
    folder = installs.schemas()
    tallies = [*stable(folder, count, seed), words(folder)]
    for number in (1, 2):
        tallies.append(through_known_types(folder, number, count, seed))
        tallies.append(by_name(folder, number, seed))
    failed = sum(tally.failed for tally in tallies)
    print(f"{sum(tally.passed for tally in tallies)} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Every type of the stable schemas against the codec: python3 .ci/schema_gate.py PATH/TO/instances [count] [seed]

The generator makes valid, lenient and invalid values of each type. Valid ones must decode and encode to the same JSON
(nulls that mean omitted aside), lenient ones must read as what the schema's keywords leave, invalid ones must be
refused, with the place of the fault. Ends with "N passed, N failed"; exit status 1 when one failed.
"""
import copy
import json
import os
import re
import runpy
import sys

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
UNTAGGED = {"v1": {"McpServerStdio", "AuthMethodAgent", "Command", "UnstructuredCommandInput"}, "v2": set()}
STRAY = {  # read in spite of the schema, as protocol notes ask: (version, pattern of the type, pattern of the reason)
    ("v2", "AvailableCommand|.*(Update|Notification|SessionResponse)",
     r"(^|availableCommands\[\d+\]\.)type: required field"),  # August peers
    ("v1", ".*", r"(mcpServers|headers|args|env): required field missing"),  # always sent, but not asked for
}
EITHER = [{"sessionId", "requestId"}, {"text", "blob"}, {"anyOf", "type"}, {"value", "groupId", "group"},
          {"type", "command"}, {"type", "value"}]  # where variants have no tag, the fault is either field's


def target(version, name):
    found = OTHER[version].get(name) or getattr(acp, name, None)
    if found is None:
        return None, None
    if isinstance(found, tuple):
        return found
    tags = {}
    for key in getattr(found, "_tags", ()):
        if name not in UNTAGGED[version]:
            tags[acp._camel(key)] = getattr(found, key)
    if name.startswith("SessionConfig") and name in ("SessionConfigSelect", "SessionConfigBoolean"):
        tags.update({"id" if version == "v1" else "configId": "x", "name": "x"})
    if name == "StateUpdate":
        tags = {"sessionUpdate": "state_update"}
    return found, tags


def clean(value):
    """Without what stands for nothing: nulls."""
    if isinstance(value, dict):
        return {key: clean(item) for key, item in value.items() if item is not None}
    return [clean(item) for item in value] if isinstance(value, list) else value


def same(a, b):
    return json.dumps(clean(a), sort_keys=True) == json.dumps(clean(b), sort_keys=True)


def numbers(value):
    """1.0 and 1 are the same number."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items()}
    return [numbers(item) for item in value] if isinstance(value, list) else value


def expected_place(why):
    """The place that the generator broke, as our messages spell it; None where it is the root."""
    place = why.split(": ")[0]
    return None if place == "the root" else re.sub(r"\['([^']*)'\]", r".\1", place)


def judge(version, name, cls, tags, line):
    number, value = int(version[1]), line["value"]
    whole = {**tags, **value} if tags and isinstance(value, dict) else value
    before = copy.deepcopy(whole)
    try:
        decoded = acp.from_wire(cls, whole, number)
    except acp.MalformedMessage as error:
        if line["kind"] != "invalid":
            return f"refused: {error}"
        place, broken = error.place, expected_place(line["why"])
        if broken is None or place == broken or "bad items" in line["why"] and place.startswith(broken + "["):
            return None
        (front, _, leaf), (wanted_front, _, wanted) = place.rpartition("."), broken.rpartition(".")
        if front == wanted_front and any({leaf, wanted} <= pair for pair in EITHER):
            return None
        return f"refused at {place!r}: {error}"
    if whole != before:
        return "decoding changed its input"
    if line["kind"] == "invalid":
        return f"accepted as {decoded!r}"[:300]
    if line["kind"] == "lenient":
        wanted = acp.from_wire(cls, {**tags, **line["expect"]} if tags else line["expect"], number)
        got = acp.to_wire(decoded, number)
        kept = unknown_at(decoded, line["why"].split(": ")[0])
        if decoded != wanted and not kept and not same(empty(got), empty(acp.to_wire(wanted, number))):
            return f"read as {decoded!r} and not {wanted!r}"[:600]
        return None
    encoded = acp.to_wire(decoded, number)
    if not same(numbers(encoded), numbers(whole)):
        return "encoded as " + json.dumps(encoded)[:500]
    return None


def unknown_at(decoded, place):
    """Whether the place lies inside a variant that is not known, which is kept as it came."""
    for name, index in re.findall(r"([A-Za-z_]+)|\[(\d+)\]", place):
        if isinstance(decoded, acp.Unknown):
            return True
        if index:
            decoded = decoded[int(index)] if isinstance(decoded, list) and int(index) < len(decoded) else None
        else:
            snake = re.sub("([A-Z])", lambda found: "_" + found.group(1).lower(), name)
            decoded = getattr(decoded, {"_meta": "meta"}.get(name, snake), None)
    return isinstance(decoded, acp.Unknown)


def empty(value):
    """Lists and objects that are empty, left out."""
    if isinstance(value, dict):
        return {k: v for k, v in ((k, empty(v)) for k, v in value.items()) if v not in ([], None)}
    return [empty(item) for item in value] if isinstance(value, list) else value


def main():
    tool = runpy.run_path(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    seed = sys.argv[3] if len(sys.argv) > 3 else "0"
    passed = failed = 0
    missing = []
    for version in ("v1", "v2"):
        schema = tool["Schema"].load(version)
        for name in schema.defs:
            if not schema.is_object(name) or name in PARTS or name.startswith("Ext"):
                continue
            cls, tags = target(version, name)
            if cls is None:
                missing.append(f"{version} {name}")
                continue
            for kind in ("valid", "lenient", "invalid"):
                shown = 0
                for line in tool["generate"](schema, name, kind, count, seed):
                    if any(version == v and re.fullmatch(n, name) and re.search(w, line["why"]) for v, n, w in STRAY):
                        continue
                    wrong = judge(version, name, cls, tags, line)
                    passed, failed = passed + (wrong is None), failed + (wrong is not None)
                    if wrong and shown < 3:
                        shown += 1
                        value = json.dumps(line["value"])[:400]
                        print(f"{version} {name} {kind} ({line['why']}): {value}\n    {wrong}")
    if missing:
        failed += len(missing)
        print("no class for:", ", ".join(missing))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

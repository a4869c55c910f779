#!/usr/bin/env python3
"""Checks what the library sent in a test run (see capture.py) against the schemas: python3 .ci/captured.py FOLDER

Each message of a connection that has negotiated a version must be one of that version's stable schema: its method known
there, its params or result of the type that belongs to it, its envelope right. Told apart and only counted: messages of
connections that are no agent and no client, methods that no schema knows (extensions) and their answers, methods and
params that the caller gave by name, updates of a kind that the schema does not know, fields that it does not name (a
program may add some), and lines too long to keep. Fails also where hardly anything was captured.
"""
import collections
import json
import os
import sys

import installs

if __name__ == "__main__":
    installs.again(installs.JSONSCHEMA)

import values  # noqa: E402

KNOWN = [  # faults that are known and not mended yet: a part of the message, and what it is
]


class Judge:
    """One version's stable schema, for whole messages."""

    def __init__(self, folder, version):
        import jsonschema
        self.schema = values.Schema(folder, version)
        self.types = {}
        for (_, method), roles in self.schema.methods().items():
            self.types[method] = roles
        self.validators, self.jsonschema = {}, jsonschema
        self.words = {key for node in self.schema.defs.values() for key in words_of(node)}
        self.known = set(consts_of(self.schema.document))
        self.root = self.validator({key: self.schema.document[key] for key in ("anyOf",)})
        self.seen = {}

    def validator(self, node):
        return self.jsonschema.Draft202012Validator({**node, "$defs": self.schema.defs})

    def wrong(self, message, known):
        """(what kind of message, what is wrong with it or None, the places of fields that the schema does not name);
        the same skeleton is looked at once."""
        key = (known["method"], known["role"], json.dumps(skeleton(message, self.words), sort_keys=True))
        if key not in self.seen:
            kind, wrong = self.judge(message, known)
            look = wrong is None and "error" not in message and kind != "unknown update"
            self.seen[key] = kind, wrong, self.unnamed(message, known) if look else []
        return self.seen[key]

    def judge(self, message, known):
        fault = next((error for error in self.root.iter_errors(message)), None)
        if fault is not None:
            return "message", f"no message of the protocol: {fault.message[:200]}"
        if "error" in message:
            return "error", None
        method = known["method"]
        if method is None:
            return "result", "a result that answers nothing"
        if method not in self.types:
            return "extension", None
        part = "params" if "method" in message else "result"
        role = "Response" if part == "result" else "Request" if "id" in message else "Notification"
        name = self.types[method].get(role)
        if name is None:
            return method, f"{method} has no {role}"
        unknown = unknown_update(message, self.schema) if name.endswith("Notification") else None
        if name not in self.validators:
            self.validators[name] = self.validator({"$ref": f"#/$defs/{name}"})
        fault = self.validators[name].is_valid(message.get(part, {}))
        if not fault:
            error = next(self.validators[name].iter_errors(message.get(part, {})))
            best = self.jsonschema.exceptions.best_match([error])
            return name, f"{values.place_of(list(best.absolute_path))}: {best.message[:300]}"
        return unknown or name, None

    def unnamed(self, message, known):
        """Places of fields that the schema does not name where its object is closed to our knowledge."""
        part, method = ("params" if "method" in message else "result"), known["method"]
        role = "Response" if part == "result" else "Request" if "id" in message else "Notification"
        name = self.types.get(method, {}).get(role)
        if name is None or "error" in message:
            return []
        node, value = self.schema.defs[name], message.get(part, {})
        named = {path for path, _, _ in self.schema.sites(node, value)}
        return [path for path in paths(value) if path[:-1] in {(), *named} and path not in named
                and not isinstance(path[-1], int) and not any(step in FREE for step in path)]


TAGS = {"type", "sessionUpdate", "kind", "status", "priority", "audience", "mode", "outcome", "action", "operation"}
FREE = {"_meta", "rawInput", "rawOutput", "data", "content", "env", "properties", "value"}  # hold what the program puts


def paths(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from paths(item, (*path, key))


def words_of(node):
    """The names of fields that hold a word of an enum, somewhere in a schema node."""
    if isinstance(node, dict):
        for key, field in node.get("properties", {}).items():
            if any(word in json.dumps(field) for word in ('"const"', '"enum"', '"$ref"')):
                yield key
        for item in node.values():
            yield from words_of(item)
    elif isinstance(node, list):
        for item in node:
            yield from words_of(item)


def consts_of(node):
    """All words of the enums and the tags of a schema."""
    if isinstance(node, dict):
        yield from [node["const"]] if isinstance(node.get("const"), str) else node.get("enum", ())
        for item in node.values():
            yield from consts_of(item)
    elif isinstance(node, list):
        for item in node:
            yield from consts_of(item)


def made_up(value, words, known, key=""):
    """Whether a word of an enum, or a tag, is in it that no version knows."""
    if isinstance(value, dict):
        return any(made_up(item, words, known, name) for name, item in value.items() if name not in FREE - {"content"})
    if isinstance(value, list):
        return any(made_up(item, words, known, key) for item in value)
    return isinstance(value, str) and key in TAGS and value not in known


def skeleton(value, words, key=""):
    """What of a value can make a difference to the schema."""
    if isinstance(value, dict):
        return {name: skeleton(item, words, name) for name, item in value.items()}
    if isinstance(value, list):
        made = [skeleton(item, words) for item in value]
        return [one for index, one in enumerate(made) if one not in made[:index]]
    if isinstance(value, str):
        return value if key in words and len(value) < 40 and not key.endswith("Id") else "s" if value else ""
    if isinstance(value, bool) or value is None:
        return value
    return [type(value).__name__, min(value, 2) if value < 65536 else 70000]


def unknown_update(message, schema):
    """The words for an update whose tag the schema does not know, else None."""
    update = message["params"].get("update")
    if not isinstance(update, dict):
        return None
    tags = {form["properties"]["sessionUpdate"].get("const") for form in schema.forms(schema.defs["SessionUpdate"])}
    return None if update.get("sessionUpdate") in tags else "unknown update"


def lines_of(folder):
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            for line in file:
                known, tab, message = line.partition(b"\t")
                if tab and line.endswith(b"\n"):
                    yield json.loads(known), json.loads(message)


def main():
    schemas = installs.schemas()
    judges = {version: Judge(schemas, version) for version in (1, 2)}
    counts, faults, fields = collections.Counter(), collections.defaultdict(list), collections.defaultdict(set)
    for known, message in lines_of(sys.argv[1]):
        version, method = known["version"], known["method"]
        if message is None:
            counts["too long to keep"] += 1
        elif known["role"] == "bare":
            counts["of a bare connection"] += 1
        elif method == "initialize" and "method" in message:  # before the versions are known: of the one it asks for
            version = message["params"].get("protocolVersion")
        elif known["named"]:
            counts["given by name"] += 1
            continue
        if message is None or known["role"] == "bare":
            continue
        if version not in judges:
            if "error" in message or method == "$/cancel_request" or not any(method in each.types
                                                                             for each in judges.values()):
                counts["errors, cancels and extensions before a version was negotiated"] += 1
            else:
                faults[f"a message before a version was negotiated: {method}"].append((known, message))
            continue
        judge = judges[version]
        kind, wrong, unnamed = judge.wrong(message, known)
        other = judges[3 - version]
        if kind == "extension":
            if method in other.types:
                if "method" in message:
                    wrong = "a method that only the other version has"
            counts["of methods that no schema knows"] += wrong is None
        elif wrong is None:
            counts[f"v{version} {known['role']}: {kind}"] += 1
        if wrong is not None and version == 1 and made_up(message, judge.words, judge.known | other.known):
            counts["v1 messages with words that no version knows"] += 1
        elif wrong is not None:
            faults[f"v{version} {known['role']} {kind}: {wrong}"].append((known, message))
        else:
            for path in unnamed:
                words = values.place_of([step if isinstance(step, str) else 0 for step in path])
                fields[f"v{version} {known['role']} {kind}: {words}"].add(known["test"].rpartition("::")[2])
    for kind, number in sorted(counts.items()):
        print(f"{number:8}  {kind}")
    if fields:
        print("fields that the schema does not name, and in how many tests:")
        for kind, tests in sorted(fields.items()):
            print(f"{len(tests):8}  {kind}  ({sorted(tests)[0]})")
    failed = 0
    for fault, found in sorted(faults.items()):
        why = next((why for parts, why in KNOWN if all(part in fault for part in parts)), None)
        failed += why is None
        print(f"{'FAILED' if why is None else 'KNOWN'} {fault}: {len(found)} times, in "
              f"{len({known['test'] for known, _ in found})} tests, such as {found[0][0]['test']}\n"
              f"    {why or json.dumps(found[0][1])[:500]}")
    checked = sum(number for kind, number in counts.items() if kind[:3] in ("v1 ", "v2 "))
    print(f"{checked} messages of the library checked, {failed} kinds of fault, {len(faults) - failed} known ones")
    return 1 if failed or checked < 1000 else 0


if __name__ == "__main__":
    sys.exit(main())

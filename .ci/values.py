"""The JSON Schemas of the protocol as a judge, and a source of values of their types; seeded, so the same every time.

`Schema.read` knows what a schema accepts by the letter, and what its x-deserialize keywords leave of a value that it
does not. `cases` makes values of one type: valid ones, and by breaking one place of a valid one at a time, lenient and
invalid ones. Only the shape is looked at: formats, and what a value means, are not.
"""
import copy
import itertools
import json
import os
import random

WORDS = ["_vendor_word", "future_word"]  # of an open enum
TEXTS = ["text", "", "two\nlines \"quoted\" \\", "null", "naïve 日本語", "line\u2028sep\u0085\ufeff", "nul \0 \x1b[31m"]
NUMBERS = [0, 1, 7, 65535, 2**53 + 1, 0.5, 1e21, -3]
ANYTHING = [None, True, 0, 2.5, "", "text", [], [1, "two", None], {}, {"a": {"b": [None]}}]
EXTRA = {"_vendor": {"nested": [1, None, "x\u2028y"]}, "futureField": "kept", "größe": [], "": 0}
WRONG = [7, None, "text", True, {}, [], 1.5, -1, 70000, "", [None], {"a": 1}]


class Refused(Exception):
    """The schema does not accept the value."""


def kind_of(value):
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return "null" if value is None else kinds[type(value)]


def is_a(value, kind):
    own = kind_of(value)
    return own == kind or (kind == "number" and own == "integer") or (
        kind == "integer" and own == "number" and value.is_integer())


def types_of(node):
    kinds = node.get("type", [])
    return [kinds] if isinstance(kinds, str) else kinds


def options_of(node):
    return [*node.get("anyOf", ()), *node.get("oneOf", ())]


def empty_of(field):
    return [] if "array" in types_of(field) else {}


class Schema:
    """The types of one version."""

    def __init__(self, folder, version, unstable=False):
        name = "schema.unstable.json" if unstable else "schema.json"
        with open(os.path.join(folder, f"v{version}", name), encoding="utf-8") as file:
            self.document = json.load(file)
        self.version, self.unstable, self.defs = version, unstable, self.document["$defs"]
        self._forms = {}

    def target(self, node):
        return self.defs[node["$ref"].rpartition("/")[2]]

    def methods(self):
        """(side, method) -> {"Request" | "Response" | "Notification": the type's name}."""
        found = {}
        for name, node in self.defs.items():
            if "x-method" in node:
                role = next(word for word in ("Request", "Response", "Notification") if name.endswith(word))
                found.setdefault((node["x-side"], node["x-method"]), {})[role] = name
        return found

    # ---- the judge ----
    def accepts(self, node, value):
        try:
            self.read(node, value, False)
        except Refused:
            return False
        return True

    def read(self, node, value, lenient):
        """What a decoder is left with, by the letter or as tolerantly as the schema asks; raises Refused."""
        if "$ref" in node:
            value = self.read(self.target(node), value, lenient)
        if "type" in node and not any(is_a(value, kind) for kind in types_of(node)):
            raise Refused
        if "const" in node and (kind_of(value), value) != (kind_of(node["const"]), node["const"]):
            raise Refused
        if "enum" in node and value not in node["enum"]:
            raise Refused
        if isinstance(value, str) and len(value) < node.get("minLength", 0):
            raise Refused
        if is_a(value, "number") and not node.get("minimum", value) <= value <= node.get("maximum", value):
            raise Refused
        if isinstance(value, list):
            value = self._read_list(node, value, lenient)
        elif isinstance(value, dict):
            value = self._read_object(node, value, lenient)
        for part in node.get("allOf", ()):
            value = self.read(part, value, lenient)
        for word in ("anyOf", "oneOf"):
            if word in node:
                value = self._read_choice(node[word], value, lenient, word == "oneOf")
        if "not" in node and self.accepts(node["not"], value):
            raise Refused
        return value

    def _read_list(self, node, value, lenient):
        if "items" in node:
            kept = []
            for item in value:
                try:
                    kept.append(self.read(node["items"], item, lenient))
                except Refused:
                    if not (lenient and node.get("x-deserialize-skip-invalid-items")):
                        raise
            value = kept
        if len(value) < node.get("minItems", 0):
            raise Refused
        return value

    def _read_object(self, node, value, lenient):
        required, fields = node.get("required", ()), node.get("properties", {})
        if any(key not in value for key in required):
            raise Refused
        read = dict(value)
        for key, item in value.items():
            field = fields.get(key, node.get("additionalProperties", True))
            if field is True:
                continue
            if lenient and item is None and field.get("x-deserialize-default-on-null"):
                read[key] = empty_of(field)
                continue
            try:
                read[key] = self.read(field, item, lenient)
            except Refused:
                if not (lenient and field.get("x-deserialize-default-on-error")):
                    raise
                if key in required:
                    read[key] = empty_of(field)
                else:
                    del read[key]
        return read

    def _read_choice(self, options, value, lenient, one):
        exact = [option for option in options if self.accepts(option, value)]
        if len(exact) > 1 and one:
            raise Refused
        if exact or not lenient:
            if not exact:
                raise Refused
            return value
        for option in options:
            try:
                return self.read(option, value, True)
            except Refused:
                continue
        raise Refused

    # ---- its types, laid flat ----
    def forms(self, node):
        """The ways through the unions and parts of a node (not of its fields): each a node without any."""
        if id(node) not in self._forms:
            made = [{key: node[key] for key in node if key not in ("$ref", "allOf", "anyOf", "oneOf", "not")}]
            parts = [self.target(node)] if "$ref" in node else []
            for part in [*parts, *node.get("allOf", ())]:
                made = [joined(a, b) for a in made for b in self.forms(part)]
            for word in ("anyOf", "oneOf"):
                if word in node:
                    choices = [form for option in node[word] for form in self.forms(option)]
                    if any("const" in form for form in choices):
                        choices = [form if "const" in form or form.get("type") != "string" else {**form, "word": True}
                                   for form in choices]
                    made = [joined(a, b) for a in made for b in choices]
            if "not" in node:
                tags = {key for option in node["not"].get("anyOf", [node["not"]]) for key in option.get("required", ())}
                made = [{**form, "tags": tags} for form in made]
            self._forms[id(node)] = made
        return self._forms[id(node)]

    def is_word(self, node):
        """Whether it is an enum of words, open or closed."""
        return any("const" in form or "enum" in form or form.get("word") for form in self.forms(node))

    def is_object(self, name):
        return all("object" in types_of(form) for form in self.forms(self.defs[name]))

    def sites(self, node, value, path=()):
        """Each place inside a valid value: (path, the schema that governs it, whether it is required)."""
        if "$ref" in node:
            yield from self.sites(self.target(node), value, path)
        if isinstance(value, dict):
            for key, item in value.items():
                field = node.get("properties", {}).get(key, node.get("additionalProperties", True))
                if field is not True:
                    yield (*path, key), field, key in node.get("required", ())
                    yield from self.sites(field, item, (*path, key))
        if isinstance(value, list) and "items" in node:
            for index, item in enumerate(value):
                yield (*path, index), node["items"], False
                yield from self.sites(node["items"], item, (*path, index))
        for part in node.get("allOf", ()):
            yield from self.sites(part, value, path)
        for option in options_of(node):
            if self.accepts(option, value):
                yield from self.sites(option, value, path)
                break


def joined(a, b):
    made = {**a, **b}
    if "properties" in a and "properties" in b:
        made["properties"] = {**a["properties"], **b["properties"]}
    if "required" in a and "required" in b:
        made["required"] = [*a["required"], *b["required"]]
    return made


# ---- values -------------------------------------------------------------------------------------------------------


class Maker:
    """Makes values that have the shape of a node. How full: 0 only what is required, 1 all, between them by chance."""

    def __init__(self, schema, rng):
        self.schema, self.rng = schema, rng

    def make(self, node, full, form=None, depth=0):
        if form is None:
            forms = self.schema.forms(node)
            some = [each for each in forms if each.get("type") != "null"]
            form = self.rng.choice(some if some and (full in (0, 1) or self.rng.random() < 0.8) else forms)
        if "const" in form or "enum" in form:
            return form["const"] if "const" in form else self.rng.choice(form["enum"])
        if form.get("word"):
            return self.rng.choice(WORDS)
        kinds = types_of(form)
        if "null" in kinds and (len(kinds) == 1 or (full not in (0, 1) and self.rng.random() < 0.2)):
            return None
        kind = next((each for each in kinds if each != "null"), "object" if "properties" in form else "anything")
        if kind == "object":
            return self._object(form, full, depth)
        if kind == "array":
            least = form.get("minItems", 0)
            if full == 1 and depth < 2 and not self.schema.is_word(form["items"]):
                each = [one for one in self.schema.forms(form["items"]) if one.get("type") != "null"][:8]
                return [self.make(form["items"], full, one, depth + 1) for one in each]
            count = max(least, 0 if full == 0 or depth > 4 else self.rng.randrange(3))
            return [self.make(form["items"], full, None, depth + 1) for _ in range(count)]
        if kind == "string":
            return self.rng.choice([text for text in TEXTS if len(text) >= form.get("minLength", 0)])
        if kind in ("integer", "number"):
            low, high = form.get("minimum", -9), form.get("maximum", 1e99)
            return self.rng.choice([number for number in NUMBERS if low <= number <= high
                                    and (kind == "number" or isinstance(number, int))])
        if kind == "boolean":
            return self.rng.random() < 0.5
        return copy.deepcopy(self.rng.choice(ANYTHING))

    def _object(self, form, full, depth):
        made, required, tags = {}, form.get("required", ()), form.get("tags", ())
        for key, field in form.get("properties", {}).items():
            if key in tags:
                made[key] = self.rng.choice(WORDS)
            elif key in required or full == 1 or (full and depth < 5 and self.rng.random() < full):
                made[key] = self.make(field, full, None, depth + 1)
        others = form.get("additionalProperties")
        if isinstance(others, dict) and full:
            made.update({key: self.make(others, full, None, depth + 1) for key in ("a", "größe")})
        elif full == 1 and (tags or not form.get("properties")):
            made.update(copy.deepcopy(EXTRA))
        return made


# ---- cases --------------------------------------------------------------------------------------------------------
GONE = object()


def at(value, path):
    for step in path:
        value = value[step]
    return value


def replaced(value, path, new):
    """A copy with another value at the path, or without it (GONE)."""
    if not path:
        return copy.deepcopy(new)
    made = copy.deepcopy(value)
    parent = at(made, path[:-1])
    if new is GONE:
        del parent[path[-1]]
    else:
        parent[path[-1]] = copy.deepcopy(new)
    return made


def place_of(path):
    """A path as the library spells it."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def changes_at(schema, field, value, required, rng):
    """(what, new value) for one place; some leave the whole valid, some do not."""
    word = schema.is_word(field)
    tries = [(f"{json.dumps(new)} instead of {kind_of(value)}", new) for new in WRONG
             if new is None or kind_of(new) != kind_of(value) or new in (-1, 70000, "")]
    if word:  # an unknown word is valid, or closed by a schema that we leave open on purpose
        tries = [(why, new) for why, new in tries if not isinstance(new, str)]
        if any(form.get("word") for form in schema.forms(field)):
            tries += [(f"the word {new}", new) for new in WORDS]
    elif isinstance(value, str):
        tries += [("another text", new) for new in rng.sample(TEXTS, 2)]
    if isinstance(value, list):
        tries.append(("an empty list", []))
        bad = [new for new in WRONG if not isinstance(new, str) or not value or not isinstance(value[0], str)]
        for _ in range(2):
            mixed = list(value)
            for new in rng.sample(bad, 2):
                mixed.insert(rng.randrange(len(mixed) + 1), new)
            tries.append(("bad items among the good", mixed))
    if required and not field.get("x-deserialize-default-on-error"):  # else it is disputed whether absence is an error
        tries.append(("missing", GONE))
    rng.shuffle(tries)
    return tries


def cases(schema, name, count, seed):
    """Values of one type, about `count` a kind: each {"kind", "why", "path", "value"}, lenient ones with "expect"."""
    node, rng = schema.defs[name], random.Random(f"{seed} {schema.version} {schema.unstable} {name}")
    maker, seen, left = Maker(schema, rng), set(), {"valid": count, "lenient": count, "invalid": count}

    def case(why, path, value):
        text = json.dumps(value, sort_keys=True)
        if text in seen:
            return None
        seen.add(text)
        if schema.accepts(node, value):
            return {"kind": "valid", "why": why, "path": path, "value": value}
        try:
            expect = schema.read(node, value, True)
        except Refused:
            return {"kind": "invalid", "why": why, "path": path, "value": value}
        if not schema.accepts(node, expect):
            return None  # what the keywords leave is no value either: the schema does not say what then
        return {"kind": "lenient", "why": why, "path": path, "value": value, "expect": expect}

    def candidates():
        forms, wholes = schema.forms(node), []
        for form in forms:
            whole = maker.make(node, 1, form)
            wholes.append(whole)
            yield "the least", (), maker.make(node, 0, form)
            yield "all fields", (), whole
            if isinstance(whole, dict):
                yield "unknown fields", (), {**maker.make(node, 0, form), **EXTRA}
        places = []
        for whole in wholes:
            if schema.accepts(node, whole):
                for path, (field, required) in {path: (field, needed) for path, field, needed in
                                                reversed(list(schema.sites(node, whole)))}.items():
                    tries = changes_at(schema, field, at(whole, path), required, rng)
                    places.append((len(path), rng.random(), whole, path, iter(tries)))
                places.append((0, 0.0, whole, (), iter([(f"{json.dumps(new)} as the whole", new)
                                                         for new in rng.sample(WRONG, 3) if type(new) is not dict])))
        places.sort(key=lambda place: place[:2])
        while places:  # shallow places first, each once before any twice
            for place in list(places):
                found = next(place[4], None)
                if found is None:
                    places.remove(place)
                else:
                    yield found[0], place[3], replaced(place[2], place[3], found[1])

    for why, path, value in itertools.islice(candidates(), 30 * count + 60):  # some kinds are rare, or there are none
        made = case(why, path, value)
        if made is not None and left[made["kind"]] > 0:
            left[made["kind"]] -= 1
            yield made
        if not any(left.values()):
            return
    for number in itertools.count(1):
        made = case(f"by chance, {number}", (), maker.make(node, rng.choice([0.3, 0.6, 0.9])))
        if made is not None and made["kind"] == "valid":
            left["valid"] -= 1
            yield made
        if left["valid"] <= 0 or number > 3 * count:
            return

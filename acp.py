# acp.py: the Agent Client Protocol in one file, blocking, standard library only.
# SPDX-License-Identifier: MIT
# Copyright (c) 2026 the acp.py authors
#
# Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
# documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
# rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
# persons to whom the Software is furnished to do so, subject to the following conditions: The above copyright notice
# and this permission notice shall be included in all copies or substantial portions of the Software. THE SOFTWARE IS
# PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF
# MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT
# HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE,
# ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""The Agent Client Protocol (ACP), both roles, versions 1 and 2: blocking calls, threads, no dependencies.

An agent, which editors start as a command:

    import acp
    class Echo(acp.Agent):
        name = "echo"
        def prompt(self, turn): turn.say("You said: " + turn.text)
    if __name__ == "__main__": Echo().run()

A client, which starts an agent and talks to it; and the same agent tested in process, with no subprocess:

    with acp.Client(["python3", "echo.py"]) as client: print(client.new_session(cwd=".").ask("hello"))
    with acp.Client(Echo()) as client: assert client.new_session(cwd="/").ask("hi") == "You said: hi"

To vendor it, copy this file anywhere, also into a package of your own (`from mytool._vendor import acp`). It imports
the standard library only, does nothing at import and keeps no global state. Version 2 of the protocol is a draft, so
each side asks for it: `versions = (1, 2)` in the agent, `version=2` in the client. Handlers and calls are the same.

Where to read: `help(acp.Agent)`, `Turn`, `Tool`, `AgentSession` to be an agent, `help(acp.Client)`, `ClientSession`,
`ClientTurn`, `SessionState` to drive one, `help(acp.ToolCallUpdate)` and the like for a message. Words in brackets name
a page of agentclientprotocol.com, or a method. Methods and functions without a docstring are the library's own.
The file is a walk, top to bottom: 1 header, 2 errors, 3 messages, 4 codec, 5 patches and state, 6 the v1 adapter,
7 connection and processes, 8 agent, 9 client, 10 local services. No section needs a later one.
"""
from __future__ import annotations

import binascii, codecs, collections, functools, itertools, json, os, re, signal, stat  # noqa: E401, I001
import sys, threading, time, weakref  # noqa: E401
from contextlib import contextmanager, nullcontext, suppress
from typing import (
    TYPE_CHECKING, Any, Callable, Deque, Dict, FrozenSet, Iterable, Iterator, List, Literal, Mapping, NoReturn,
    Optional, Sequence, Set, Tuple, Type, TypeVar, Union, cast)

__all__ = [  # section 3 adds its messages at its end; other names without underscore are shared by sections, no more
    "SCHEMA_RELEASE", "Error", "RequestError", "MethodNotFound", "InvalidParams", "RequestCancelled",
    "AuthRequired", "NotFound", "UnsupportedVersion", "ConnectionClosed", "Timeout", "Cancelled", "Unsupported",
    "InvalidResponse", "MalformedMessage",  # 2 errors
    "UNSET", "Unset", "Json", "text_of", "to_wire", "from_wire",  # 3 messages, 4 codec
    "apply_patch", "SessionState", "TerminalState", "Connection",  # 5 state, 7 connection
    "Agent", "AgentSession", "Turn", "TurnTerminal", "Tool", "Permission", "Elicited",  # 8 agent
    "Client", "ClientSession", "ClientTurn", "PermissionRequest", "ElicitationRequest", "reject", "allow_once",
    "allow_reads", "decline", "accept_defaults",  # 9 client
    "LocalFiles", "LocalTerminals"]  # 10 local services
__version__ = "1.0.0rc1"
SCHEMA_RELEASE = "ACP JSON Schemas of November 2026: v1 stable, v2 draft"

class _Log:
    """The logger `acp`: methods, ids, sizes, codes, durations; never payloads or credentials. Importing logging takes a
    third of this file's start, so it waits for the first warning, or for a script that imports it."""
    warning: Callable[..., None]; error: Callable[..., None]
    def debug(self, *words: Any) -> None:
        if "logging" in sys.modules: self.__getattr__("debug")(*words)
    def __getattr__(self, name: str) -> Any:  # once for each method of the logger
        import logging
        self.__dict__[name] = found = getattr(logging.getLogger("acp"), name)
        return found
log = _Log()

MISSING: Any = object()  # no value, where None is one

# == 2. Errors ========================================================================================================
# What goes wrong is an acp.Error; wrong use too, or a TypeError or ValueError; the disk an OSError. A RequestError is
# an answer: what a handler raises to refuse, what a call raises when the peer refused. The others are raised locally.
class Error(Exception): """The root of all errors of this library."""
class RequestError(Error):
    """An error answer: `code`, `message`, `data` (JSON-RPC error object; protocol: Error). Raised by a handler it is
    that request's answer. Raised by a call it is what the peer answered; `method` then names the call. Codes are those
    of JSON-RPC and ACP, see the subclasses."""
    code = -32603
    method: Optional[str] = None; id: Optional[int] = None  # of the call that was refused; None: raised on this side
    def __init__(self, code: int, message: str = "", data: Any = None) -> None:
        super().__init__(code, message, data)
        self.code, self.message, self.data = code, message, data
    def __str__(self) -> str:
        if self.method is None: return f"{self.message} ({self.code})"
        call = self.method if self.id is None else f"{self.method} (id {self.id})"
        return f"{call}: the peer answered with error {self.code}: {self.message}"
    @staticmethod
    def of(code: int, message: str, data: Any = None) -> RequestError:
        """The error of the class that people catch for this code."""
        cls = next((cls for cls in _CodedError.__subclasses__() if cls.code == code), None)
        return cls(message, data) if cls else RequestError(code, message, data)
class _CodedError(RequestError):
    """A RequestError whose class says the code, and the message where none is given."""
    _words = ""
    def __init_subclass__(cls, code: int = 0, words: str = "") -> None:
        if code: cls.code, cls._words = code, words
    def __init__(self, message: str = "", data: Any = None) -> None:
        super().__init__(type(self).code, message or self._words, data)
    def __reduce__(self) -> Tuple[Any, ...]: return type(self), (self.message, self.data), self.__dict__
class MethodNotFound(_CodedError, code=-32601, words="method not found"): """Nobody here answers it (-32601)."""
class InvalidParams(_CodedError, code=-32602, words="invalid params"): """The message names the place (-32602)."""
class RequestCancelled(_CodedError, code=-32800, words="request cancelled"): """By $/cancel_request (-32800)."""
class NotFound(_CodedError, code=-32002, words="not found"): """A session or a file is not there (-32002)."""
class UnsupportedVersion(_CodedError, code=-32022, words="unsupported protocol version"):
    """Of the protocol; data is {requested, supported} (-32022)."""
class AuthRequired(_CodedError, code=-32000, words="authentication required"):
    """Log in first (-32000). On a client, `auth_methods` lists what the agent offers."""
    auth_methods: Sequence[AuthMethod] = ()
class ConnectionClosed(Error, ConnectionError):
    """The connection is over. `exit_code` and `stderr` (its last 64 KiB) tell of an agent that was a process."""
    exit_code: Optional[int] = None; stderr: str = ""
    def __str__(self) -> str:
        status = "" if self.exit_code is None else f"; the agent exited with status {self.exit_code}"
        words = self.stderr.strip()[-2000:]
        return super().__str__() + status + ("; its last words: " + words if words else "")
class Timeout(Error, TimeoutError): """The time given ran out. The message says what became of the call or turn."""
class Cancelled(Error): """The turn was cancelled: raised in its handler by whatever sends or asks."""
class Unsupported(Error): """The peer did not offer it, or its version cannot say it. Nothing went out."""
class InvalidResponse(Error): """The peer's answer to a call makes no sense. The message names call and place."""
class MalformedMessage(Error, ValueError):
    """A value that is not of its type. `place` says where, as in `prompt[0].text`; the message what was expected."""
    def __init__(self, expected: str, got: Any = MISSING) -> None:
        super().__init__(expected)
        self.expected, self.got = expected, "" if got is MISSING else _describe(got)
        self.steps: List[Union[str, int]] = []  # from the inside out, filled in as the error travels up
    def within(self, *steps: Union[str, int]) -> MalformedMessage:  # the same error, seen from further out
        self.steps.extend(reversed(steps))
        return self
    @property
    def place(self) -> str:
        return "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in reversed(self.steps)).lstrip(".")
    def __str__(self) -> str:
        what = f"expected {self.expected}, got {self.got}" if self.got else self.expected
        return f"{self.place}: {what}" if self.steps else what
def _describe(value: Any) -> str:  # a value for an error message: its kind, and itself only where that is short
    if value is None or isinstance(value, (bool, int, float)): return json.dumps(value)[:40]
    names = {str: "a string", dict: "an object", list: "an array", tuple: "an array", bytes: "bytes"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), "a Python " + type(value).__name__)
def _missing(wire: str) -> MalformedMessage: return MalformedMessage("required, but missing").within(wire)
def _camel(name: str) -> str:  # a field's name on the wire
    return "_meta" if name == "meta" else re.sub("_(.)", lambda found: found[1].upper(), name)

# == 3. Messages ======================================================================================================
# One set of messages for both versions, in the words of version 2; what only version 1 has says so. A field is named
# as on the wire, in snake_case. None means omitted, except in patches (type Patch), where UNSET means omitted and None
# clears. Optional fields forgive: a wrong value reads as absent; `strict` marks those that do not. Words of an enum are
# plain strings, unknown ones included; unknown variants become Unknown, unknown fields stay in `unknown_fields`.
class Unset:
    """The type of UNSET. In a patch (type Patch) UNSET leaves a field as it is and None clears it."""
    def __repr__(self) -> str: return "UNSET"
    def __bool__(self) -> Literal[False]: return False
    def __reduce__(self) -> str: return "UNSET"  # copies are the same object
UNSET = Unset()
T = TypeVar("T"); M = TypeVar("M", bound="Message")
Patch = Union[Unset, None, T]
Json = Dict[str, Any]
Meta = Optional[Json]
_NOTHING: Json = {}  # no rules; the rest of a version 1 object that says nothing beyond version 2; never changed
def _rule(default: Any = None, **rules: Any) -> Any:
    """A field with rules for the codec: strict (an optional field that does not forgive), skip (bad items of a list are
    left out), lenient (skip, and anything else wrong reads as []), null (null reads as []), least (length), low and
    high (bounds), const (the one value), secret (the value is never shown), no_null (null is wrong), patch (null is a
    value), whole (a bad item spoils the list), v1 (not on version 2's wire), required (in spite of a default)."""
    return _Field(default, rules)
def _needed(**rules: Any) -> Any: return _Field(MISSING, rules)  # the same without a default

class _Field:
    """A field of a message: its name, its annotation as text, its default (MISSING: it has none), its rules."""
    name = type = ""
    def __init__(self, default: Any, rules: Json) -> None: self.default, self.rules = default, rules

class _Late:
    """A class attribute that is made when somebody asks for it, since most scripts never do."""
    def __init__(self, make: Callable[[Any], Any]) -> None: self._make = make
    def __get__(self, made: Any, cls: Any) -> Any: return self._make(cls)
def _as_dataclass(cls: Any) -> Any:  # for dataclasses.fields, replace and the like; importing it alone takes long
    from dataclasses import dataclass
    made = dataclass(init=False, repr=False, eq=False)(cls)
    if "__replace__" in vars(made): del made.__replace__  # of Python 3.13; ours keeps what is unknown
    return made.__dict__["__dataclass_fields__"]
def _signature(cls: Any) -> Any:  # for help
    from inspect import Parameter, Signature
    return Signature([Parameter(each.name, Parameter.POSITIONAL_OR_KEYWORD, annotation=each.type, default=(
        Parameter.empty if each.default is MISSING else each.default)) for each in cls._parts.values()])

if TYPE_CHECKING:  # a checker reads the file as for Python 3.11 or newer; it runs on 3.9
    from dataclasses import field
    from typing import dataclass_transform
    @dataclass_transform(eq_default=False, field_specifiers=(_needed, field))
    class _Dataclass: ...
else: _Dataclass = object

class Message(_Dataclass):
    """The base of all messages: dataclasses, equal by value, that print what is set. `meta` is the `_meta` of the wire
    object, `unknown_fields` what the peer sent beside the known ones, `beside` what stood around an update; all go out
    again. None means omitted; in a patch UNSET does, and None clears. A variant has its tag as an attribute: the `type`
    of a TextContent is "text" (a keyword of its class, as its docstring is). Convert with `to_wire`, `from_wire`."""
    if TYPE_CHECKING: meta: Patch[Json] = field(default=None, kw_only=True)
    _parts = {}  # type: Dict[str, _Field]  # by name, in the order of the arguments
    _texts, _count = {}, 0  # type: Dict[str, str], int  # defaults that are words; how many arguments have no default
    _tags = __match_args__ = ()  # type: Tuple[str, ...]  # comments: annotations would be fields for a checker
    unknown_fields = None  # type: Optional[Json]  # what the peer sent beside the known fields; goes out again
    beside = None  # type: Optional[Json]  # of an update: `_meta` and unknown members of its notification; goes out again
    _v1 = None  # type: Optional[Json]  # set on what came from version 1: what only its wire can say (section 6)
    def __init_subclass__(cls, doc: Optional[str] = None, **tags: str) -> None:
        cls.__doc__ = cls.__doc__ if doc is None else doc
        own = cls.__dict__.get("__annotations__", {})
        if own or cls.__base__ is Message:
            cls.meta = UNSET if any(vars(cls).get(name) is UNSET for name in own) else None
            cls.__annotations__ = own = {**own, "meta": "Meta" if cls.meta is None else "Patch[Json]"}
            cls._parts = {name: each for name, each in cls._parts.items() if name != "meta"}
            for name, kind in own.items():
                given = vars(cls).get(name, MISSING)
                cls._parts[name] = each = given if isinstance(given, _Field) else _Field(given, _NOTHING)
                each.name, each.type = name, kind
                if each.default is not MISSING: setattr(cls, name, each.default)
                elif given is each: delattr(cls, name)
            cls._texts = {name: each.default for name, each in cls._parts.items() if isinstance(each.default, str)}
            cls._count = sum(each.default is MISSING for each in cls._parts.values())
            cls.__match_args__ = tuple(cls._parts)  # type: ignore[misc]
            cls.__dataclass_fields__ = _Late(_as_dataclass)  # type: ignore[assignment]
        for key, word in tags.items(): setattr(cls, key, word)
        cls._tags += tuple(key for key in tags if key not in cls._tags)
    if not TYPE_CHECKING:
        __signature__ = _Late(_signature)
        def __init__(self, *values, **named):
            names, count = self.__match_args__, len(values)
            if (named or not self._count <= count <= len(names)) and not (  # else it is right without a closer look
                    count <= len(names) and {*names[count:self._count]} <= named.keys() <= {*names[count:]}):
                try: _signature(type(self)).bind(*values, **named)
                except TypeError as error: raise TypeError(f"{type(self).__name__}: {error}") from None
            for name, word in self._texts.items(): setattr(self, name, word)  # other defaults stay the class's
            for name, value in zip(names, values): setattr(self, name, value)
            for name, value in named.items(): setattr(self, name, value)
    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other): return NotImplemented
        return (self.unknown_fields or {}) == (other.unknown_fields or {}) and all(
            getattr(self, name) == getattr(other, name) for name in self._parts)
    def __repr__(self) -> str:
        inside = [f"{name}={value!r}" for name, each in self._parts.items()
                  if (value := getattr(self, name)) is not each.default]
        if self.unknown_fields: inside.append(f"unknown_fields={self.unknown_fields!r}")
        return f"{type(self).__name__}({', '.join(inside)})"
    def __replace__(self, **changes: Any) -> Any: return copy_of(self, **changes)  # copy.replace
    def _check(self, version: int) -> None:
        """Raise MalformedMessage where fields contradict each other."""
def copy_of(message: M, **changes: Any) -> M:  # a shallow copy with other values for some fields
    made = object.__new__(type(message))
    made.__dict__ = {**message.__dict__, **changes}
    return made

class Unknown(Message):
    """A variant that this copy does not know: its tag, and the whole object as it came. Encodes back to the same."""
    tag: str; data: Json
class Words: """The words of an enum that the protocol knows. In messages they are plain strings; others may come."""
class Role(Words): USER = "user"; ASSISTANT = "assistant"
class IconTheme(Words): LIGHT = "light"; DARK = "dark"
class ToolKind(Words):
    READ = "read"; EDIT = "edit"; DELETE = "delete"; MOVE = "move"; SEARCH = "search"; EXECUTE = "execute"
    THINK = "think"; FETCH = "fetch"; SWITCH_MODE = "switch_mode"; OTHER = "other"
class ToolCallStatus(Words):
    PENDING = "pending"; IN_PROGRESS = "in_progress"; PAUSED = "paused"
    COMPLETED = "completed"; FAILED = "failed"; CANCELLED = "cancelled"
class DiffFileType(Words): TEXT = "text"; BINARY = "binary"; DIRECTORY = "directory"; SYMLINK = "symlink"
class PermissionOptionKind(Words):
    ALLOW_ONCE = "allow_once"; ALLOW_ALWAYS = "allow_always"
    REJECT_ONCE = "reject_once"; REJECT_ALWAYS = "reject_always"
class StopReason(Words):
    END_TURN = "end_turn"; MAX_TOKENS = "max_tokens"; MAX_TURN_REQUESTS = "max_turn_requests"
    REFUSAL = "refusal"; CANCELLED = "cancelled"; ERROR = "error"
class PlanEntryPriority(Words): HIGH = "high"; MEDIUM = "medium"; LOW = "low"
class PlanEntryStatus(Words):
    PENDING = "pending"; IN_PROGRESS = "in_progress"; COMPLETED = "completed"; CANCELLED = "cancelled"
class CompactionStatus(Words):
    IN_PROGRESS = "in_progress"; COMPLETED = "completed"; FAILED = "failed"; CANCELLED = "cancelled"
class NoticeSeverity(Words): INFO = "info"; WARNING = "warning"; ERROR = "error"
class SessionConfigOptionCategory(Words):
    MODE = "mode"; MODEL = "model"; MODEL_CONFIG = "model_config"; THOUGHT_LEVEL = "thought_level"
class StringFormat(Words): EMAIL = "email"; URI = "uri"; DATE = "date"; DATE_TIME = "date-time"
class Marker(Message): """A marker: being there is the offer. `True` may stand for it when sending (Initialization)."""
Support = Union[bool, Marker, None]
PromptImageCapabilities = PromptAudioCapabilities = PromptEmbeddedContextCapabilities = Marker
McpStdioCapabilities = McpHttpCapabilities = SessionDeleteCapabilities = TerminalAuthCapabilities = Marker
SessionAdditionalDirectoriesCapabilities = ElicitationFormCapabilities = ElicitationUrlCapabilities = Marker
ToolCallCancelCapabilities = TerminalCancelCapabilities = Marker
LogoutCapabilities = SessionListCapabilities = SessionResumeCapabilities = SessionCloseCapabilities = Marker
CompactionCapabilities = NoticeCapabilities = BooleanConfigOptionCapabilities = Marker
class EmptyResponse(Message): """The answer of a method that returns nothing but perhaps metadata."""
LoginAuthResponse = LogoutAuthResponse = CloseSessionResponse = DeleteSessionResponse = EmptyResponse
CancelToolCallResponse = CancelTerminalResponse = SetSessionModeResponse = EmptyResponse
WriteTextFileResponse = KillTerminalResponse = ReleaseTerminalResponse = EmptyResponse
# ---- content --------------------------------------------------------------------------------------------------------
class Annotations(Message):
    """Hints on how to show a content block: audience holds a Role or two; last_modified is ISO 8601 (Content)."""
    audience: Optional[List[str]] = None; last_modified: Optional[str] = None
    priority: Optional[float] = _rule(low=0, high=1)
class TextContent(Message, type="text", doc="Text, Markdown allowed (Content)."):
    text: str; annotations: Optional[Annotations] = None
class ImageContent(Message, type="image", doc="An image; data is base64 (Content)."):
    data: str; mime_type: str; uri: Optional[str] = None; annotations: Optional[Annotations] = None
class AudioContent(Message, type="audio", doc="Sound; data is base64 (Content)."):
    data: str; mime_type: str; annotations: Optional[Annotations] = None
class Icon(Message, doc="A picture for a resource link; theme is an IconTheme (Content)."):
    src: str; mime_type: Optional[str] = None; sizes: Optional[List[str]] = None; theme: Optional[str] = None
class ResourceLink(Message, type="resource_link", doc="What the agent can read by itself; size in bytes (Content)."):
    name: str; uri: str; title: Optional[str] = None; description: Optional[str] = None
    icons: Optional[List[Icon]] = None; mime_type: Optional[str] = None; size: Optional[int] = _rule(low=0)
    annotations: Optional[Annotations] = None
class TextResourceContents(Message, doc="The text of a resource (Content)."):
    text: str; uri: str; mime_type: Optional[str] = None
class BlobResourceContents(Message, doc="The bytes of a resource, base64 (Content)."):
    blob: str; uri: str; mime_type: Optional[str] = None
class EmbeddedResource(Message, type="resource", doc="A resource sent along (Content)."):
    resource: EmbeddedResourceResource; annotations: Optional[Annotations] = None
ContentBlock = Union[TextContent, ImageContent, AudioContent, ResourceLink, EmbeddedResource, Unknown]
EmbeddedResourceResource = Union[TextResourceContents, BlobResourceContents]
def text_of(blocks: Iterable[ContentBlock]) -> str:
    """The text of content blocks, joined; what is not text says nothing."""
    return "".join(block.text for block in blocks if isinstance(block, TextContent))
# ---- tool calls, terminals, diffs -----------------------------------------------------------------------------------
class Content(Message, type="content", doc="A content block as a tool call's output (Tool Calls)."):
    content: ContentBlock
class DiffPatch(Message, doc='A patch as text; format "git_patch": absolute paths without a/ and b/ (Tool Calls).'):
    format: str; text: str
class DiffChange(Message):
    """One changed file: operation is add, delete, modify, move or copy; the last two have an old path (Tool Calls)."""
    operation: str; path: Optional[str] = _rule(strict=True); old_path: Optional[str] = _rule(strict=True)
    file_type: Optional[str] = None; mime_type: Optional[str] = None  # a DiffFileType
    def _check(self, version: int) -> None:
        needed = {"add": 1, "delete": 1, "modify": 1, "move": 2, "copy": 2}.get(self.operation, 0)
        for name, value in (("path", self.path), ("oldPath", self.old_path))[:needed]:
            if value is None: raise _missing(name)
class Diff(Message, type="diff"):
    """Changes to files (Tool Calls). `Diff.of` makes one from texts, and then version 1 can show it whole too."""
    changes: List[DiffChange] = _needed(skip=True); patch: Optional[DiffPatch] = None
    @classmethod
    def of(cls, path: str, new_text: str, old_text: Optional[str] = None) -> Diff:
        """The change of one text file; old_text None: the file is new. Cost is linear in the texts."""
        change = DiffChange("add" if old_text is None else "modify", path)
        made = cls([change], DiffPatch("git_patch", _git_patch(path, new_text, old_text)))
        made._v1 = {"path": path, **({} if old_text is None else {"oldText": old_text}), "newText": new_text}
        return made
_DIFF_LINES = 2000  # more changed lines than this are told as one replaced block: difflib may be quadratic
def _git_patch(path: str, new_text: str, old_text: Optional[str]) -> str:  # of what lies between the common ends
    import difflib
    def span(start: int, count: int) -> str: return f"{start + bool(count)},{count}"  # 1-based; 0: the line before
    old, new, head, tail = lines_of(old_text or ""), lines_of(new_text), 0, 0
    shortest = min(len(old), len(new))
    while head < shortest and old[head] == new[head]: head += 1
    while tail < shortest - head and old[-1 - tail] == new[-1 - tail]: tail += 1
    first, last = max(0, head - 3), max(0, tail - 3)  # three lines of context
    a, b = old[first:len(old) - last], new[first:len(new) - last]
    groups: Iterable[List[Any]] = [[("replace", 0, len(a), 0, len(b))]]
    if len(a) + len(b) <= _DIFF_LINES: groups = difflib.SequenceMatcher(None, a, b).get_grouped_opcodes(3)
    hunks: List[str] = []
    for group in groups:
        (_, i, _, k, _), (_, _, j, _, m) = group[0], group[-1]
        hunks.append(f"@@ -{span(first + i, j - i)} +{span(first + k, m - k)} @@\n")
        for tag, i, j, k, m in group:
            hunks += [" " + line for line in a[i:j]] if tag == "equal" else (
                ["-" + line for line in a[i:j]] + ["+" + line for line in b[k:m]])
    quoted = json.dumps(path) if re.search('["\0-\x1f\x7f]', path) else path
    out = [f"diff --git {quoted} {quoted}\n" + ("new file mode 100644\n" if old_text is None else "")]
    if hunks: out += [f"--- {'/dev/null' if old_text is None else quoted}\n", f"+++ {quoted}\n", *hunks]
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in out)
def lines_of(text: str, line: Optional[int] = None, limit: Optional[int] = None) -> List[str]:  # `line` from 1
    first = max(0, (line or 1) - 1)
    return re.findall(".*\n|.+", text)[first:None if limit is None else first + limit]
class Terminal(Message, type="terminal"):
    """A terminal shown in a tool call, or one that runs on beside the turns (Tool Calls, Session State)."""
    terminal_id: str
BackgroundTerminal = Terminal
ToolCallContent = Union[Content, Diff, Terminal, Unknown]
class ToolCallLocation(Message, doc="A place that a tool call touches; lines count from 1 (Tool Calls)."):
    path: str; line: Optional[int] = _rule(low=1)
class ToolCallCapabilities(Message):
    """What the client may do to a tool call, or to a display terminal (Tool Calls, Terminals)."""
    cancel: Support = None
TerminalCapabilities = ToolCallCapabilities
class ToolCallUpdate(Message, session_update="tool_call_update"):
    """A patch of one tool call; `kind` is a ToolKind, `status` a ToolCallStatus (Tool Calls)."""
    tool_call_id: str; name: Patch[str] = UNSET; title: Patch[str] = UNSET
    kind: Patch[str] = UNSET; status: Patch[str] = UNSET; content: Patch[List[ToolCallContent]] = UNSET
    locations: Patch[List[ToolCallLocation]] = UNSET
    raw_input: Patch[Any] = UNSET; raw_output: Patch[Any] = UNSET; capabilities: Patch[ToolCallCapabilities] = UNSET
class ToolCallContentChunk(Message, session_update="tool_call_content_chunk"):
    """One more piece of content (Tool Calls)."""
    tool_call_id: str; content: ToolCallContent
class TerminalExitStatus(Message, doc="How a command ended: a code, or the signal that ended it (Terminals)."):
    exit_code: Optional[int] = None; signal: Optional[str] = None
class TerminalOutput(Message, doc="All of a terminal's bytes so far, base64 (Terminals)."): data: str
class TerminalSize(Message, doc="Columns and rows (Terminals)."):
    cols: int = _needed(low=1, high=65535); rows: int = _needed(low=1, high=65535)
class TerminalUpdate(Message, session_update="terminal_update"):
    """A patch of one agent-owned, display-only terminal; exit_status marks its end (Terminals)."""
    terminal_id: str; command: Patch[str] = UNSET; cwd: Patch[str] = UNSET; output: Patch[TerminalOutput] = UNSET
    exit_status: Patch[TerminalExitStatus] = UNSET; size: Patch[TerminalSize] = UNSET
    capabilities: Patch[TerminalCapabilities] = UNSET
class TerminalOutputChunk(Message, session_update="terminal_output_chunk"):
    """More bytes, base64 by itself (Terminals)."""
    terminal_id: str; data: str
# ---- the other updates of a session ---------------------------------------------------------------------------------
class ContentChunk(Message, doc="One more block of a message, whose chunks share its id (Prompt Lifecycle)."):
    message_id: str; content: ContentBlock
class UserMessageChunk(ContentChunk, session_update="user_message_chunk"): """More of what the user said."""
class AgentMessageChunk(ContentChunk, session_update="agent_message_chunk"): """More of what the agent says."""
class AgentThoughtChunk(ContentChunk, session_update="agent_thought_chunk"): """More of what the agent thinks."""
class UserMessage(Message, session_update="user_message"):
    """A whole message of the user: a patch by id; content replaces what chunks had built (Prompt Lifecycle)."""
    message_id: str; content: Patch[List[ContentBlock]] = UNSET
    @property
    def role(self) -> str:
        """user, assistant or thought."""
        return {UserMessage: "user", AgentMessage: "assistant"}.get(type(self), "thought")
    @property
    def text(self) -> str:
        """Its text blocks, joined."""
        return text_of(self.content or [])
class AgentMessage(UserMessage, session_update="agent_message"): """A whole message of the agent."""
class AgentThought(UserMessage, session_update="agent_thought"): """A whole thought of the agent."""
class BackgroundToolCall(Message, type="tool_call", doc="A tool call that runs on beside the turns (Session State)."):
    tool_call_id: str
BackgroundWork = Union[BackgroundTerminal, BackgroundToolCall, Unknown]
class ErrorObject(Message, doc="An error on the wire (schema type Error; acp.Error is the exception)."):
    code: int; message: str; data: Any = None
class StateUpdate(Message, session_update="state_update"):
    """What the session's foreground work does now: running, requires_action or idle (Session State)."""
    state = ""
    background: Optional[List[BackgroundWork]] = _rule(whole=True)
class RunningStateUpdate(StateUpdate, state="running"): """Foreground work is in progress."""
class RequiresActionStateUpdate(StateUpdate, state="requires_action"): """Foreground work waits for the user."""
class IdleStateUpdate(StateUpdate, state="idle"):
    """Ready for a prompt; stop_reason is a StopReason, `error` belongs to "error"."""
    stop_reason: Optional[str] = None; error: Optional[ErrorObject] = None
class PlanEntry(Message):
    """A step of a plan; `priority` is a PlanEntryPriority, `status` a PlanEntryStatus (Plan)."""
    content: str; priority: str = _rule("medium", required=True); status: str = _rule("pending", required=True)
class PlanItems(Message, type="items", doc="A plan as a list of steps, replaced whole (Plan)."):
    plan_id: str; entries: List[PlanEntry] = _needed(skip=True)
PlanUpdateContent = Union[PlanItems, Unknown]
class PlanUpdate(Message, session_update="plan_update", doc="A plan, made or replaced by its id (Plan)."):
    plan: PlanUpdateContent
class TextCommandInput(Message, type="text", doc="The text behind its name; hint says what to type (Slash Commands)."):
    hint: str
AvailableCommandInput = Union[TextCommandInput, Unknown]
class Command(Message, type="command", doc="A slash command that the agent knows (Slash Commands)."):
    name: str; description: str; input: Optional[AvailableCommandInput] = None
AvailableCommand = Union[Command, Unknown]
class AvailableCommandsUpdate(Message, session_update="available_commands_update"):
    """All slash commands (Slash Commands)."""
    available_commands: List[AvailableCommand] = _needed(skip=True)
class SessionConfigSelectOption(Message, doc="One value of a select (Session Config Options)."):
    value: str; name: str; description: Optional[str] = None
class SessionConfigSelectGroup(Message, doc="Values of a select under a heading (Session Config Options)."):
    group_id: str; name: str; options: List[SessionConfigSelectOption] = _needed(lenient=True, least=1)
SessionConfigSelectOptions = Union[List[SessionConfigSelectOption], List[SessionConfigSelectGroup]]
class SessionConfigSelect(Message, type="select"):
    """An option with one of several values; options are all flat or all grouped (Session Config Options)."""
    config_id: str; name: str; current_value: str
    options: List[Union[SessionConfigSelectOption, SessionConfigSelectGroup]] = _needed(least=1)
    description: Optional[str] = None; category: Optional[str] = None  # a SessionConfigOptionCategory
    def values(self) -> List[SessionConfigSelectOption]:
        """All values, groups opened."""
        return [value for entry in self.options for value in getattr(entry, "options", [entry])]
    def _check(self, version: int) -> None:
        if len({type(entry) for entry in self.options}) > 1:
            raise MalformedMessage("options must be all flat or all grouped").within("options")
class SessionConfigBoolean(Message, type="boolean", doc="On or off; not on all v1 clients (Session Config Options)."):
    config_id: str; name: str; current_value: bool; description: Optional[str] = None; category: Optional[str] = None
SessionConfigOption = Union[SessionConfigSelect, SessionConfigBoolean, Unknown]
class ConfigOptionUpdate(Message, session_update="config_option_update"):
    """All config options (Session Config Options)."""
    config_options: List[SessionConfigOption] = _needed(skip=True)
class SessionInfoUpdate(Message, session_update="session_info_update"):
    """A patch; the time is ISO 8601 (Session List)."""
    title: Patch[str] = UNSET; updated_at: Patch[str] = UNSET
class Cost(Message, doc="Money spent so far; currency as in ISO 4217 (Usage)."): amount: float; currency: str
class UsageUpdate(Message, session_update="usage_update"):
    """Tokens in the context, its size; cost is a patch (Usage)."""
    used: int = _needed(low=0); size: int = _needed(low=0); cost: Patch[Cost] = UNSET
class Notice(Message, session_update="notice", doc="A word to the user; severity is a NoticeSeverity (Notices)."):
    severity: str; title: str = _needed(least=1); description: Optional[str] = None
class CompactionUpdate(Message, session_update="compaction_update"):
    """A patch of one compaction of the context; `status` is a CompactionStatus (Compaction)."""
    compaction_id: str; status: str; summary: Patch[List[ContentBlock]] = UNSET; error: Patch[str] = UNSET
class CompactionSummaryChunk(Message, session_update="compaction_summary_chunk"):
    """One more block of a summary (Compaction)."""
    compaction_id: str; content: ContentBlock
class CurrentModeUpdate(Message, session_update="current_mode_update"):
    """Version 1 only: the mode changed. The client's side turns it into the config option `mode` (Session Modes)."""
    current_mode_id: str
SessionUpdate = Union[
    UserMessageChunk, UserMessage, AgentMessageChunk, AgentMessage, AgentThoughtChunk, AgentThought, RunningStateUpdate,
    IdleStateUpdate, RequiresActionStateUpdate, ToolCallContentChunk, ToolCallUpdate, TerminalUpdate,
    TerminalOutputChunk, PlanUpdate, AvailableCommandsUpdate, ConfigOptionUpdate, SessionInfoUpdate, UsageUpdate,
    Notice, CompactionUpdate, CompactionSummaryChunk, Unknown]
class UpdateSessionNotification(Message, doc="session/update: one update of a session (Prompt Lifecycle)."):
    session_id: str; update: SessionUpdate
# ---- initialize and authentication ----------------------------------------------------------------------------------
class Implementation(Message, doc="Name, title for people, and version of a program (Initialization)."):
    name: str; version: str; title: Optional[str] = None
class PromptCapabilities(Message, doc="What a prompt may hold beside text and resource links (Initialization)."):
    image: Support = None; audio: Support = None; embedded_context: Support = None
class McpCapabilities(Message):
    """MCP transports that the agent takes; version 1 agents take stdio always, only they know sse (Initialization)."""
    stdio: Support = None; http: Support = None; sse: Support = _rule(v1=True)
class SessionCapabilities(Message):
    """What the agent can do with sessions; list, resume and close need no marker on version 2 (Initialization)."""
    prompt: Optional[PromptCapabilities] = None; mcp: Optional[McpCapabilities] = None; delete: Support = None
    additional_directories: Support = None; list: Support = _rule(v1=True); resume: Support = _rule(v1=True)
    close: Support = _rule(v1=True); load: Support = _rule(v1=True)  # load: resume with replay, loadSession on the wire
class AgentAuthCapabilities(Message):
    """Extensions of authentication; logout is version 1's, on version 2 it comes with the methods (Authentication)."""
    logout: Support = _rule(v1=True)
class AgentCapabilities(Message, doc="What the agent can do (Initialization)."):
    session: Optional[SessionCapabilities] = None; auth: Optional[AgentAuthCapabilities] = None
class ElicitationCapabilities(Message, doc="Ways in which the client can ask its user (Elicitation)."):
    form: Support = None; url: Support = None
class ClientAuthCapabilities(Message, doc="Whether the client can run a login in a terminal (Authentication)."):
    terminal: Support = None
class FileSystemCapabilities(Message, doc="Version 1 only: the client serves files (File System)."):
    read_text_file: Optional[bool] = None; write_text_file: Optional[bool] = None
class SessionConfigOptionsCapabilities(Message, doc="Version 1 only: kinds of option it takes beyond select."):
    boolean: Support = None
class ClientSessionCapabilities(Message, doc="Version 1 only: what else the client takes in a session."):
    compaction: Support = None; config_options: Optional[SessionConfigOptionsCapabilities] = None
    notices: Support = None
class ClientCapabilities(Message, doc="What the client can do (Initialization)."):
    auth: Optional[ClientAuthCapabilities] = None; elicitation: Optional[ElicitationCapabilities] = None
    fs: Optional[FileSystemCapabilities] = _rule(v1=True); terminal: Optional[bool] = _rule(v1=True)
    session: Optional[ClientSessionCapabilities] = _rule(v1=True)
class EnvVariable(Message, doc="One environment variable. Its value is never shown."):
    name: str; value: str = _needed(secret=True)
    def __repr__(self) -> str: return f"{type(self).__name__}(name={self.name!r})"
class HttpHeader(EnvVariable): """One HTTP header. Its value is never shown."""
class AuthMethodAgent(Message, type="agent", doc="A login that the agent carries out itself (Authentication)."):
    method_id: str; name: str; description: Optional[str] = None
class AuthMethodTerminal(Message, type="terminal"):
    """A login that the client runs in a terminal: the agent's command with these args and env (Authentication)."""
    method_id: str; name: str; description: Optional[str] = None; args: Optional[List[str]] = _rule(null=True)
    env: Optional[List[EnvVariable]] = _rule(null=True)
AuthMethod = Union[AuthMethodAgent, AuthMethodTerminal, Unknown]
class InitializeRequest(Message, doc="initialize: the newest version wanted, and who the client is (Initialization)."):
    protocol_version: int = _needed(low=0, high=65535)
    info: Optional[Implementation] = _rule(strict=True, no_null=True); capabilities: Optional[ClientCapabilities] = None
class InitializeResponse(Message, doc="The version for this connection, and who the agent is (Initialization)."):
    protocol_version: int = _needed(low=0, high=65535)
    info: Optional[Implementation] = _rule(strict=True, no_null=True)
    capabilities: Optional[AgentCapabilities] = None; auth_methods: Optional[List[AuthMethod]] = None
class LoginAuthRequest(Message, doc="auth/login (v1 authenticate) (Authentication)."): method_id: str
class LogoutAuthRequest(Message): """auth/logout (v1 logout) (Authentication)."""
# ---- sessions and prompts -------------------------------------------------------------------------------------------
class McpServerStdio(Message, type="stdio", doc="An MCP server that the agent starts as a command (Session Setup)."):
    name: str; command: str; args: Optional[List[str]] = _rule(null=True)
    env: Optional[List[EnvVariable]] = _rule(null=True)
class McpServerHttp(Message, type="http", doc="An MCP server reached by streamable HTTP (Session Setup)."):
    name: str; url: str; headers: Optional[List[HttpHeader]] = _rule(null=True)
class McpServerSse(McpServerHttp, type="sse"): """Version 1 only: an MCP server reached by server-sent events."""
McpServer = Union[McpServerStdio, McpServerHttp, Unknown]
class NewSessionRequest(Message, doc="session/new; paths are absolute (Session Setup)."):
    cwd: str; additional_directories: Optional[List[str]] = _rule(null=True)
    mcp_servers: Optional[List[McpServer]] = _rule(null=True)
class SessionMode(Message, doc="Version 1 only: a mode of the agent (Session Modes)."):
    id: str; name: str; description: Optional[str] = None
class SessionModeState(Message, doc="Version 1 only: the modes and the current one (Session Modes)."):
    current_mode_id: str; available_modes: List[SessionMode] = _needed(lenient=True)
class ResumeSessionResponse(Message, doc="To session/resume: the options, on version 2 the commands (Session Setup)."):
    config_options: Optional[List[SessionConfigOption]] = None
    available_commands: Optional[List[AvailableCommand]] = None; modes: Optional[SessionModeState] = _rule(v1=True)
class NewSessionResponse(Message):
    """The answer of session/new: the new session's id, its options and, on version 2, its commands (Session Setup)."""
    session_id: str; config_options: Optional[List[SessionConfigOption]] = None
    available_commands: Optional[List[AvailableCommand]] = None; modes: Optional[SessionModeState] = _rule(v1=True)
class ReplayFromStart(Message, type="start"): """Replay the whole conversation (Session Setup)."""
ReplayFrom = Union[ReplayFromStart, Unknown]
class ResumeSessionRequest(Message, doc="session/resume; with replay_from version 1's session/load (Session Setup)."):
    session_id: str; cwd: str; additional_directories: Optional[List[str]] = _rule(null=True)
    mcp_servers: Optional[List[McpServer]] = _rule(null=True); replay_from: Optional[ReplayFrom] = _rule(strict=True)
class ListSessionsRequest(Message, doc="session/list: of a folder, or all; cursor of the next page (Session List)."):
    cwd: Optional[str] = _rule(strict=True); cursor: Optional[str] = _rule(strict=True)
class SessionInfo(Message, doc="A session in a list; updated_at is ISO 8601 (Session List)."):
    session_id: str; cwd: str; additional_directories: Optional[List[str]] = _rule(null=True)
    title: Optional[str] = None; updated_at: Optional[str] = None
class ListSessionsResponse(Message, doc="A page of sessions, and the cursor of the next if any (Session List)."):
    sessions: List[SessionInfo] = _needed(lenient=True); next_cursor: Optional[str] = _rule(strict=True)
class CloseSessionRequest(Message):
    """session/close: end its work, free it; session/delete: forget it; session/cancel: end the turn (Session Setup)."""
    session_id: str
DeleteSessionRequest = CancelSessionNotification = CloseSessionRequest
class SetSessionConfigOptionRequest(Message):
    """session/set_config_option: type "id" with a select's value, "boolean" with a bool (Session Config Options)."""
    session_id: str; config_id: str; value: Any = _needed(patch=True); type: str = _rule("id", required=True)
    def _check(self, version: int) -> None:
        wanted = {"id": (str, "a string"), "boolean": (bool, "a boolean")}.get(self.type)
        if wanted is not None and not isinstance(self.value, wanted[0]):
            raise MalformedMessage(wanted[1], self.value).within("value")
class SetSessionConfigOptionResponse(Message, doc="All config options after the change (Session Config Options)."):
    config_options: List[SessionConfigOption] = _needed(skip=True)
class SetSessionModeRequest(Message, doc="Version 1 only: session/set_mode (Session Modes)."):
    session_id: str; mode_id: str
class PromptRequest(Message, doc="session/prompt: what the user says (Prompt Lifecycle)."):
    session_id: str; prompt: List[ContentBlock] = _needed(least=1)
Prompt = Union[str, ContentBlock, PromptRequest, Sequence[Union[str, ContentBlock]]]  # what a client's session sends
class PromptResponse(Message, doc="v2: inserted as this message. v1: the turn is over, and why (Prompt Lifecycle)."):
    message_id: Optional[str] = _rule(strict=True, no_null=True); stop_reason: Optional[str] = _rule(v1=True)
class CancelToolCallRequest(Message, doc="tool_call/cancel: end one tool call (Tool Calls)."):
    session_id: str; tool_call_id: str
class CancelTerminalRequest(Message):
    """terminal/cancel: end one display terminal (Terminals). The base of version 1's requests on a terminal."""
    session_id: str; terminal_id: str
# ---- permissions and elicitation ------------------------------------------------------------------------------------
class ToolCallPermissionSubject(Message, type="tool_call", doc="It is for a tool call (Requesting Permission)."):
    tool_call: ToolCallUpdate
class CommandPermissionSubject(Message, type="command", doc="It is for a shell command (Requesting Permission)."):
    command: str; cwd: str; tool_call_id: Optional[str] = None; terminal_id: Optional[str] = None
RequestPermissionSubject = Union[ToolCallPermissionSubject, CommandPermissionSubject, Unknown]
class PermissionOption(Message, doc="kind: allow_once allow_always reject_once reject_always (Requesting Permission)."):
    option_id: str; name: str; kind: str
class RequestPermissionRequest(Message, doc="session/request_permission: may it go on? (Requesting Permission)."):
    session_id: str; title: str; options: List[PermissionOption] = _needed(least=1); description: Optional[str] = None
    subject: Optional[RequestPermissionSubject] = _rule(strict=True)
class SelectedPermissionOutcome(Message, outcome="selected", doc="Perhaps one that refuses (Requesting Permission)."):
    option_id: str
class CancelledPermissionOutcome(Message, outcome="cancelled"): """Nobody chose (Requesting Permission)."""
RequestPermissionOutcome = Union[SelectedPermissionOutcome, CancelledPermissionOutcome, Unknown]
class RequestPermissionResponse(Message, doc="What became of the question (Requesting Permission)."):
    outcome: RequestPermissionOutcome
class EnumOption(Message, doc="A value with a title, in a form (Elicitation)."):
    const: str; title: str; description: Optional[str] = None
class StringPropertySchema(Message, type="string", doc="A text; format email, uri, date or date-time (Elicitation)."):
    title: Optional[str] = None; description: Optional[str] = None
    min_length: Optional[int] = _rule(strict=True, low=0); max_length: Optional[int] = _rule(strict=True, low=0)
    pattern: Optional[str] = _rule(strict=True); format: Optional[str] = _rule(strict=True)
    default: Optional[str] = None; enum: Optional[List[str]] = _rule(strict=True, least=1)
    one_of: Optional[List[EnumOption]] = _rule(strict=True, least=1)
class NumberPropertySchema(Message, type="number", doc="A number in a form (Elicitation)."):
    title: Optional[str] = None; description: Optional[str] = None; minimum: Optional[float] = _rule(strict=True)
    maximum: Optional[float] = _rule(strict=True); default: Optional[float] = None
class IntegerPropertySchema(Message, type="integer", doc="A whole number in a form (Elicitation)."):
    title: Optional[str] = None; description: Optional[str] = None; minimum: Optional[int] = _rule(strict=True)
    maximum: Optional[int] = _rule(strict=True); default: Optional[int] = None
class BooleanPropertySchema(Message, type="boolean", doc="Yes or no in a form (Elicitation)."):
    title: Optional[str] = None; description: Optional[str] = None; default: Optional[bool] = None
class StringMultiSelectItems(Message, type="string", doc="The values to choose several of (Elicitation)."):
    enum: List[str] = _needed(least=1)
class TitledMultiSelectItems(Message, doc="The values to choose several of, with titles (Elicitation)."):
    any_of: List[EnumOption] = _needed(least=1)
MultiSelectItems = Union[StringMultiSelectItems, TitledMultiSelectItems, Unknown]
class MultiSelectPropertySchema(Message, type="array", doc="Several of some values in a form (Elicitation)."):
    items: MultiSelectItems; title: Optional[str] = None; description: Optional[str] = None
    min_items: Optional[int] = _rule(strict=True, low=0)
    max_items: Optional[int] = _rule(strict=True, low=0); default: Optional[List[str]] = None
ElicitationPropertySchema = Union[StringPropertySchema, NumberPropertySchema, IntegerPropertySchema,
                                  BooleanPropertySchema, MultiSelectPropertySchema, Unknown]
class ElicitationSchema(Message, doc="A form: its fields by name, and which of them must be filled in (Elicitation)."):
    properties: Optional[Dict[str, ElicitationPropertySchema]] = _rule(required=True); title: Optional[str] = None
    description: Optional[str] = None; required: Optional[List[str]] = _rule(strict=True)
    type: str = _rule("object", required=True, const="object")
    def check(self, content: Any) -> None:
        """Raise MalformedMessage, with the place, where the answer to the form is not what it asks for. What this copy
        does not know, a kind of property or a format, is not checked."""
        if not isinstance(content, dict): raise MalformedMessage("an object", content)
        for name in self.required or ():
            if name not in content: raise _missing(name)
        for name, wanted in (self.properties or {}).items():
            if name in content and (expected := _unmet(wanted, content[name])):
                raise MalformedMessage(expected, content[name]).within(name)
_FORMATS = {"email": r"[^@\s]+@[^@\s]+\Z", "uri": r"[A-Za-z][\w+.-]*:\S+\Z", "date": r"\d{4}-\d\d-\d\d\Z",
            "date-time": r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)\Z"}
def _beyond(size: float, low: Optional[float], high: Optional[float], what: str) -> str:  # what is expected, or ""
    if (low is None or size >= low) and (high is None or size <= high): return ""
    return what + ("" if low is None else f" from {low}") + (" up" if high is None else f" to {high}")
def _unmet(wanted: Any, value: Any) -> str:  # what a property of a form expects and the value is not, or ""
    if isinstance(wanted, BooleanPropertySchema): return "" if isinstance(value, bool) else "true or false"
    if isinstance(wanted, (NumberPropertySchema, IntegerPropertySchema)):
        whole = isinstance(wanted, IntegerPropertySchema)
        kinds, what = ((int,), "a whole number") if whole else ((int, float), "a number")
        if isinstance(value, bool) or not isinstance(value, kinds): return what
        return _beyond(value, wanted.minimum, wanted.maximum, what)
    if isinstance(wanted, StringPropertySchema):
        choices = wanted.enum or [each.const for each in wanted.one_of or ()]
        if not isinstance(value, str) or (choices and value not in choices): return ", ".join(choices) or "a text"
        with suppress(re.error, OverflowError, RecursionError):  # the pattern is JavaScript's
            if not re.search(wanted.pattern or "", value): return f"a text that matches {wanted.pattern}"
        if not re.match(_FORMATS.get(wanted.format or "", ""), value): return f"a text of format {wanted.format}"
        return _beyond(len(value), wanted.min_length, wanted.max_length, "a length")
    if isinstance(wanted, MultiSelectPropertySchema):
        choices = getattr(wanted.items, "enum", None) or [each.const for each in getattr(wanted.items, "any_of", ())]
        if not isinstance(value, list) or (choices and any(each not in choices for each in value)):
            return "a list of " + (", ".join(choices) or "choices")
        return _beyond(len(value), wanted.min_items, wanted.max_items, "a number of choices")
    return ""
class CreateElicitationRequest(Message):
    """elicitation/create: ask the user by a form (requested_schema) or a page (elicitation_id, url); mode says which.
    Asked for a session, perhaps a tool call in it, or for a request of the client (Elicitation)."""
    message: str; mode: str; session_id: Optional[str] = _rule(strict=True); tool_call_id: Optional[str] = None
    request_id: Patch[Union[int, str]] = _rule(UNSET, strict=True, patch=False)
    requested_schema: Optional[ElicitationSchema] = _rule(strict=True)
    elicitation_id: Optional[str] = _rule(strict=True); url: Optional[str] = _rule(strict=True)
    def _check(self, version: int) -> None:
        if self.session_id is None and self.request_id is UNSET: raise _missing("sessionId")
        if version != 1 and self.session_id is not None and self.request_id is not UNSET:
            raise MalformedMessage("sessionId and requestId exclude each other").within("requestId")
        for name in {"form": ("requested_schema",), "url": ("elicitation_id", "url")}.get(self.mode, ()):
            if getattr(self, name) is None: raise _missing(_camel(name))
class CreateElicitationResponse(Message, doc="action accept (content: the values), decline, cancel (Elicitation)."):
    action: str; content: Optional[Json] = _rule(strict=True)
class CompleteElicitationNotification(Message, doc="elicitation/complete: the page has done its work (Elicitation)."):
    elicitation_id: str
class CancelRequestNotification(Message, doc="$/cancel_request: its answer is no longer wanted (Cancellation)."):
    request_id: Union[int, str, None] = _needed(required=True)
# ---- files and terminals of the client, version 1 only --------------------------------------------------------------
class ReadTextFileRequest(Message, doc="fs/read_text_file: from line (1-based), at most limit lines (File System)."):
    session_id: str; path: str; line: Optional[int] = _rule(strict=True, low=0)
    limit: Optional[int] = _rule(strict=True, low=0)
class ReadTextFileResponse(Message, doc="The text (File System)."): content: str
class WriteTextFileRequest(Message, doc="fs/write_text_file: the whole new text (File System)."):
    session_id: str; path: str; content: str
class CreateTerminalRequest(Message):
    """terminal/create: start a command; keep at most output_byte_limit bytes of its output (Terminals)."""
    session_id: str; command: str; args: Optional[List[str]] = _rule(null=True)
    env: Optional[List[EnvVariable]] = _rule(null=True); cwd: Optional[str] = _rule(strict=True)
    output_byte_limit: Optional[int] = _rule(strict=True, low=0)
class CreateTerminalResponse(Message, doc="The id of the new terminal (Terminals)."): terminal_id: str
class TerminalOutputResponse(Message, doc="The output kept so far, and whether its beginning is gone (Terminals)."):
    output: str; truncated: bool; exit_status: Optional[TerminalExitStatus] = None
WaitForTerminalExitResponse = TerminalExitStatus
TerminalOutputRequest = WaitForTerminalExitRequest = CancelTerminalRequest
KillTerminalRequest = ReleaseTerminalRequest = CancelTerminalRequest
# ---- methods --------------------------------------------------------------------------------------------------------
class Method:
    """A method: who handles it, its parameters, its result (None: a notification)."""
    def __init__(self, side: str, params: Type[Any], result: Optional[Type[Any]] = None) -> None:
        self.side, self.params, self.result = side, params, result
# By version 2's names; the names that version 1 gives them, and the methods that only it has, stand in section 6.
METHODS: Dict[str, Method] = {
    "initialize": Method("agent", InitializeRequest, InitializeResponse),
    "auth/login": Method("agent", LoginAuthRequest, LoginAuthResponse),
    "auth/logout": Method("agent", LogoutAuthRequest, LogoutAuthResponse),
    "session/new": Method("agent", NewSessionRequest, NewSessionResponse),
    "session/resume": Method("agent", ResumeSessionRequest, ResumeSessionResponse),
    "session/list": Method("agent", ListSessionsRequest, ListSessionsResponse),
    "session/close": Method("agent", CloseSessionRequest, CloseSessionResponse),
    "session/delete": Method("agent", DeleteSessionRequest, DeleteSessionResponse),
    "session/set_config_option": Method("agent", SetSessionConfigOptionRequest, SetSessionConfigOptionResponse),
    "session/prompt": Method("agent", PromptRequest, PromptResponse),
    "session/cancel": Method("agent", CancelSessionNotification),
    "tool_call/cancel": Method("agent", CancelToolCallRequest, CancelToolCallResponse),
    "terminal/cancel": Method("agent", CancelTerminalRequest, CancelTerminalResponse),
    "session/update": Method("client", UpdateSessionNotification),
    "session/request_permission": Method("client", RequestPermissionRequest, RequestPermissionResponse),
    "elicitation/create": Method("client", CreateElicitationRequest, CreateElicitationResponse),
    "elicitation/complete": Method("client", CompleteElicitationNotification),
    "$/cancel_request": Method("both", CancelRequestNotification)}
__all__ += [name for name, value in globals().items() if name[0] != "_" and (  # the messages, and what is made of them
    isinstance(value, type) and issubclass(value, (Message, Words)) and value.__name__ == name  # no second names
    or type(value) is type(ContentBlock))]  # the unions

# == 4. Codec =========================================================================================================
# Lines to JSON objects, those to messages, and back, from the fields' annotations, compiled once per class and version.
# `to_wire` and `from_wire` are the door. Pure: no threads, no I/O. Version 1's words come in as a Dialect; here stands
# only how what came from version 1 goes back as it was, and what its wire leaves out.
DECODER = json.JSONDecoder(
    parse_constant=lambda word: _fail("JSON has no " + word),
    parse_float=lambda word: number if abs(number := float(word)) != float("inf") else _fail("a number in range"))
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
def to_line(message: Any) -> bytes:
    """A message, or a part of one, as a line, lone surrogates as U+FFFD. Raises ValueError or TypeError: not JSON."""
    text = _ENCODER.encode(message) + "\n"
    try: return text.encode("utf-8")
    except UnicodeEncodeError: return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode("utf-8")
Coder = Callable[[Any], Any]
class _Codec:
    def __init__(self, decode: Coder, encode: Coder, plain: Optional[type] = None) -> None:
        self.decode, self.encode, self.plain = decode, encode, plain  # plain: of this very class nothing is coded

class Dialect:
    """What a version says in other words than version 2."""
    fields: Dict[Type[Message], Dict[str, Optional[Json]]]  # by class and field: other rules; None: not on this wire
    variants: Dict[str, Any]  # session update tags; the value is a class, or None where version 2's tag is not known
    untagged: FrozenSet[Type[Message]]  # variants that stand without their tag
    read: Dict[Type[Message], Callable[[Json], Tuple[Json, Json]]]  # object -> (the same in v2's shape, the rest)
    write: Dict[Type[Message], Callable[[Any, Json], Any]]  # (message, v2-shaped object) -> object
    def __init__(self, fields: Any, variants: Any, untagged: Any, read: Any, write: Any) -> None:
        self.fields, self.variants, self.untagged, self.read, self.write = fields, variants, untagged, read, write
DIALECTS: Dict[int, Dialect] = {2: Dialect({}, {}, frozenset([Command]), {}, {})}
@functools.cache
def _codecs(version: int) -> Callable[[Any], _Codec]:  # by class or union, made when first asked for
    if version not in DIALECTS: raise ValueError(f"no such protocol version: {version}")
    return functools.cache(lambda kind: (_compile if _is_message(kind) else _codec_of)(kind, version))
def to_wire(value: Any, version: int) -> Any:
    """A message (or list of messages) as the JSON value that version 1 or 2 puts on the wire. Stateless: what takes the
    history of a session, such as merged tool content on version 1, is not done here. Raises MalformedMessage (a
    ValueError) for a field that is not of its type, Unsupported for what the version cannot say."""
    if isinstance(value, Message): return _codecs(version)(type(value)).encode(value)
    if isinstance(value, (list, tuple)): return [to_wire(item, version) for item in value]
    raise TypeError(f"expected a message, got a {type(value).__name__}")
def from_wire(cls: Any, data: Any, version: int) -> Any:
    """The message of class `cls` (or a union of them, such as SessionUpdate) that version 1's or 2's JSON says. Raises
    MalformedMessage, whose text names the place."""
    return _codecs(version)(cls).decode(data)
def _is_message(kind: Any) -> bool: return isinstance(kind, type) and issubclass(kind, Message)
def _fail(expected: str, got: Any = MISSING) -> NoReturn: raise MalformedMessage(expected, got)
@functools.cache
def _evaluated(annotation: str) -> Any: return eval(annotation, globals())  # one of our own
def _compile(cls: Type[Any], version: int) -> _Codec:  # the codec of one message class
    if cls is Unknown: return _Codec(lambda data: _fail("a known variant", data),
                                     lambda value: value._v1 if value._v1 and version == 1 else value.data)
    dialect = DIALECTS[version]
    changes = next((dialect.fields[base] for base in cls.__mro__ if base in dialect.fields), {})
    tags = {} if version == 1 and cls in dialect.untagged else {_camel(key): getattr(cls, key) for key in cls._tags}
    read, write = dialect.read.get(cls), dialect.write.get(cls)
    check = None if cls._check is Message._check else cls._check
    reads: Json = {}; writes: List[Any] = []  # by field what the loops below need, ready to hand: chunks come in crowds
    musts: List[Any] = []; spare: List[Any] = []; words: Json = {}  # must read as something; may go out as nothing
    for f in cls._parts.values():
        changed = changes.get(f.name, None if version != 1 and f.rules.get("v1") else {})
        if changed is None: continue  # not on this version's wire
        rules = {**f.rules, **changed}
        kind = rules.get("type") or _evaluated(f.type)
        args = getattr(kind, "__args__", ())
        optional = type(None) in args or Unset in args
        if optional: kind = Union[tuple(arg for arg in args if arg not in (Unset, type(None)))]
        needed = rules.get("required", f.default is MISSING and not optional)
        forgiving = bool(rules.get("lenient") if needed else not (rules.get("strict") or rules.get("null")))
        if rules.get("lenient") or (optional and forgiving and not rules.get("whole")): rules["skip"] = True
        wire, patch = rules.get("wire", _camel(f.name)), rules.get("patch", Unset in args)
        codec, no_null = rules.get("codec") or _codec_of(kind, version, rules), needed or rules.get("no_null")
        reads[wire] = f.name, codec.plain, codec.decode, forgiving, no_null, patch, rules.get("null")
        writes.append((f.name, wire, codec.plain, codec.encode, needed, patch, rules.get("keep")))
        if needed or f.default is MISSING: musts.append((f.name, wire, needed, forgiving))
        elif isinstance(f.default, str): spare.append((f.name, wire))
        if "words" in rules: words[wire] = rules["words"]

    def decode(data: Any) -> Any:
        if type(data) is not dict: raise MalformedMessage("an object", data)
        rest = _NOTHING if version == 1 else None
        if read is not None: data, rest = read(data)
        made: Any = object.__new__(cls)
        values, unknown = made.__dict__, {}
        for key, item in data.items():
            if (field := reads.get(key)) is None:
                if key not in tags: unknown[key] = item
                continue
            name, plain, coder, forgiving, no_null, patch, null = field
            if type(item) is plain: values[name] = item
            elif item is None and not no_null:
                if patch or null: values[name] = None if patch else []
            else:
                try: values[name] = coder(item)
                except MalformedMessage as error:
                    if not forgiving: raise error.within(key) from None
        for name, wire, needed, forgiving in musts:
            if name not in values:
                if needed and not forgiving: raise _missing(wire)
                values[name] = [] if needed else None
        if unknown: made.unknown_fields = unknown
        if rest is not None: made._v1 = rest
        if check is not None: check(made, version)
        return made

    def encode(value: Any) -> Any:
        if check is not None: check(value, version)
        out = tags.copy()
        for name, wire, plain, coder, needed, patch, keep in writes:
            if (item := getattr(value, name)) is None or item is UNSET:
                if item is None and (patch or keep): out[wire] = None if patch else []
                elif needed: raise _missing(wire)
                continue
            if type(item) is not plain:
                try: item = coder(item)
                except MalformedMessage as error:
                    if needed or version == 1 or value._v1 is None: raise error.within(wire) from None
                    continue  # what only version 1 allows is left out of what came from it
            if item is not None: out[wire] = item
            elif needed: raise Unsupported(f"version {version} cannot say the {wire} of {cls.__name__}")
        if words and value._v1 is None:  # what came from version 1 goes back in the words in which it came
            out.update((wire, other.get(out[wire], other[""])) for wire, other in words.items() if wire in out)
        for name, wire in spare:
            if name not in value.__dict__: del out[wire]  # it was not there when it came
        if value.unknown_fields: out = {**out, **value.unknown_fields, **out}
        return out if write is None else write(value, out)
    return _Codec(decode, encode)
def _codec_of(kind: Any, version: int, rules: Json = _NOTHING) -> _Codec:  # that of an annotation under a field's rules
    origin: Any = getattr(kind, "__origin__", None); args: Tuple[Any, ...] = getattr(kind, "__args__", ())
    if _is_message(kind):
        def encode(value: Any) -> Any:
            if not isinstance(value, kind): _fail("a message of type " + kind.__name__, value)
            return _write_inner(value, version)
        return _Codec(_codecs(version)(kind).decode, encode)
    if kind in _SCALARS:
        check = _scalar(kind, rules)
        return _Codec(check, check, None if rules.keys() & {"least", "const", "low", "high"} else kind)
    if kind is Any: return _Codec(lambda value: value, lambda value: value)
    if kind == Json: return _Codec(_object, _object, dict)
    if origin is dict:
        item = _codec_of(args[1], version)
        return _Codec(lambda data: _each(data, item.decode), lambda value: _each(value, item.encode))
    if origin is list:
        skip, least, item = rules.get("skip"), rules.get("least", 0), _codec_of(args[0], version)
        return _Codec(lambda data: _list(data, item.decode, skip, least),
                      lambda value: _list(value, item.encode, skip and version != 1 and "v1", least))
    if Marker in args:
        marker = _codec_of(Marker, version)
        return _Codec(marker.decode, lambda value: (
            marker.encode(value) if not isinstance(value, bool) else {} if value else None))
    if _is_message(args[0]): return _union_codec(args, version)
    options = [_codec_of(arg, version, rules) for arg in args]
    either = " or ".join(_SCALARS.get(arg, "an array") for arg in args)
    return _Codec(lambda data: _first([each.decode for each in options], data, either),
                  lambda value: _first([each.encode for each in options], value, either))
_SCALARS = {str: "a string", int: "an integer", float: "a number", bool: "a boolean"}
def _scalar(kind: Any, rules: Json) -> Coder:  # the check of one of these under a field's rules
    low, high, name, secret = rules.get("low"), rules.get("high"), _SCALARS[kind], rules.get("secret")
    least, const = rules.get("least", 0), rules.get("const"); accepted: Any = (int, float) if kind is float else kind
    def check(value: Any) -> Any:
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            if kind is int and isinstance(value, float) and value.is_integer(): return check(int(value))
            _fail(name, {} if secret and value is not None else value)
        if const is not None and value != const: _fail(f'"{const}"', value)
        if kind is str: return value if len(value) >= least else _fail("expected a text that is not empty")
        return _fail(expected, value) if (expected := _beyond(value, low, high, name)) else value
    return check
def _object(value: Any) -> Any: return value if isinstance(value, dict) else _fail("an object", value)
def _each(data: Any, coder: Coder) -> Json: return dict(_coded(_object(data).items(), coder, False))
def _list(value: Any, coder: Coder, skip: Any, least: int) -> List[Any]:
    if not isinstance(value, (list, tuple)): _fail("an array", value)
    out = [made for _, made in _coded(enumerate(value), coder, skip)]
    return out if len(out) >= least else _fail("expected at least one item")
def _coded(items: Iterable[Tuple[Any, Any]], coder: Coder, skip: Any) -> Iterator[Tuple[Any, Any]]:
    for step, item in items:
        try: made = coder(item)
        except MalformedMessage as error:
            # skip: bad items are left out; "v1": only those that came from version 1, which allows what is wrong here
            if not skip or (skip == "v1" and getattr(item, "_v1", None) is None): raise error.within(step) from None
        else:
            if made is not None: yield step, made  # None: this version cannot say it
def _first(coders: List[Coder], value: Any, expected: str) -> Any:
    for coder in coders:
        with suppress(MalformedMessage): return coder(value)
    raise MalformedMessage(expected, value)
def _write_inner(value: Any, version: int) -> Any:  # a field of its own class: an update there is not tagged as one
    out = _codecs(version)(type(value)).encode(value)
    if "session_update" in type(value)._tags: del out["sessionUpdate"]
    return out
# What an unknown variant of a union with this member must have.
_DUTIES = {AuthMethodAgent: ["method_id", "name"], Command: ["name", "description"], PlanItems: ["plan_id"],
           SessionConfigSelect: ["config_id", "name"]}
def _union_codec(members: Tuple[Type[Any], ...], version: int) -> _Codec:
    """The codec of variants: told apart by the first tag that differs, or where they have none by their first field."""
    dialect, codec, known = DIALECTS[version], _codecs(version), [each for each in members if each is not Unknown]
    if version == 1 and McpServerHttp in known: known.append(McpServerSse)
    if UserMessage in known: members += (CurrentModeUpdate,)
    def wire_of(cls: Type[Any], name: str) -> Any:
        return (dialect.fields.get(cls, {}).get(name) or {}).get("wire", _camel(name))
    tag = next((tag for each in known for tag in each._tags
                if len(known) == 1 or len({getattr(other, tag, "") for other in known}) > 1), "")
    wire = _camel(tag)
    variants: Dict[str, Any] = {}
    for member in known:
        if word := getattr(member, tag, ""): variants[word] = Union[variants.get(word, member), member]
    if tag == "session_update": variants.update(dialect.variants)
    untagged = next((member for member in known if member in dialect.untagged), None)
    by_field = {wire_of(member, next(iter(member._parts))): member for member in known if not member._tags}
    duties: Json = {wire_of(member, name): _camel(name) for member in known for name in _DUTIES.get(member, ())}

    def decode(data: Any) -> Any:
        if type(data) is not dict: raise MalformedMessage("an object", data)
        word = data.get(wire, MISSING) if tag else MISSING
        if isinstance(word, str):
            if variant := variants.get(word): return codec(variant).decode(data)
            for duty in duties:
                if not isinstance(data.get(duty), str): raise MalformedMessage("a string", data.get(duty)).within(duty)
            made = Unknown(word, {str(duties.get(key, key)): item for key, item in data.items()})  # in v2's words
            if version == 1: made._v1 = _NOTHING if made.data == data else data
            return made
        for key, member in by_field.items():
            if key in data: return codec(member).decode(data)
        if word is not MISSING: raise MalformedMessage("a string", word).within(wire)
        if untagged is None: raise _missing(wire or next(iter(by_field)))
        return codec(untagged).decode(data)
    shown = version == 1 and (TextContent in known or Content in known)  # to people: they get the text of an Unknown
    easy = {each for each in known if each is not Content}
    def encode(value: Any) -> Any:
        kind = type(value)
        if kind in easy: return codec(kind).encode(value)
        if shown and kind is Unknown and value._v1 is None:
            if not isinstance(text := value.data.get("text"), str): return None
            block = {"type": "text", "text": text}
            return block if TextContent in known else {"type": "content", "content": block}
        if not isinstance(value, members): _fail("one of " + ", ".join(each.__name__ for each in members), value)
        if shown and kind is Content and type(value.content) is Unknown:
            with suppress(Unsupported): return codec(kind).encode(value)
            return None  # left out of the list, as such a block is
        return codec(kind).encode(value)
    return _Codec(decode, encode)

# == 5. Patches and state =============================================================================================
# What a stream of updates adds up to. `apply_patch` is the three-state rule for one entity, `SessionState` a whole
# session. Pure data: one lock, held for moments, never while other code runs.
_RESETS = {"kind": "other", "status": "pending"}  # what null means for these fields of a tool call
def new_id(kind: str) -> str: return f"{kind}-{os.urandom(8).hex()}"  # for something that this side names
def apply_patch(stored: Optional[M], patch: M) -> M:
    """What `stored` (None: nothing yet) becomes by `patch`, as a new object; neither is changed. UNSET keeps, None
    clears, a value replaces, lists whole. A concrete `meta` patches by top-level key, where a null removes, and so do
    unknown fields. A tool call's kind and status are reset to "other" and "pending" by None."""
    unknown = _merged(stored, patch, "unknown_fields") or None
    made = copy_of(stored or patch, _v1=None, beside=None, unknown_fields=unknown)
    for name, each in patch._parts.items():
        value = getattr(patch, name)
        if stored is not None and (value is UNSET or (value is None and each.default is not UNSET)): continue
        if name == "meta" and isinstance(value, dict): value = _merged(stored, patch, "meta")
        if value is UNSET or value is None: value = _RESETS.get(name) if isinstance(patch, ToolCallUpdate) else None
        made.__dict__[name] = list(value) if isinstance(value, list) else value
    return made
def _merged(stored: Optional[Message], patch: Message, name: str) -> Json:
    old, new = getattr(stored, name, None) or {}, getattr(patch, name) or {}
    return {key: value for key, value in {**old, **new}.items() if value is not None or key not in new}
def _as_patch(value: M, **changes: Any) -> M:  # a merged entity as the patch that makes it: what is not set is left out
    made = copy_of(value, **changes)
    made.__dict__ = {name: item for name, item in made.__dict__.items() if item is not None}
    return made
def in_base64(data: Union[bytes, bytearray]) -> str: return binascii.b2a_base64(data, newline=False).decode()
def _bytes(data: str, *place: str) -> bytes:
    import base64  # here and elsewhere: what few scripts need is imported where it is
    try: return base64.b64decode(data, validate=True)
    except ValueError: raise MalformedMessage("expected base64").within(*place) from None

class TerminalState(TerminalUpdate):
    """A terminal as it stands: TerminalUpdate's fields, `data` (all bytes) and `text` (bad bytes shown as U+FFFD)."""
    data, text = b"", ""
    def __eq__(self, other: object) -> bool:
        return type(other) is TerminalState and self.data == other.data and super().__eq__(other)

class _Screen:
    """A terminal: the merged patch and the bytes."""
    def __init__(self, key: str) -> None: self.value, self.data = apply_patch(None, TerminalUpdate(key)), bytearray()
    def apply(self, update: Any) -> None:  # a TerminalUpdate or TerminalOutputChunk; raises before it changes anything
        if isinstance(update, TerminalOutputChunk): return self.data.extend(_bytes(update.data, "data"))
        data = _bytes(update.output.data, "output", "data") if update.output else b""
        self.value = copy_of(apply_patch(self.value, update), output=None)
        if update.output is not UNSET: self.data = bytearray(data)
    def view(self) -> TerminalState:
        text = self.data.decode("utf-8", "replace")
        return copy_of(TerminalState(""), **self.value.__dict__, data=bytes(self.data), text=text)
    def updates(self) -> Iterator[Any]:  # those that build it anew
        output = TerminalOutput(in_base64(self.data)) if self.data else None
        yield _as_patch(self.value, output=output)

class _Growing:
    """A message, tool call or compaction: the merged patch, its items, and the chunks that said more than an item."""
    def __init__(self, whole: Type[Any], key: str) -> None:
        self.key, self.slot = key, "summary" if whole is CompactionUpdate else "content"
        self.value: Any = apply_patch(None, whole(key, "in_progress") if whole is CompactionUpdate else whole(key))
        self.items: List[Any] = []
        self.marked: Dict[int, Any] = {}  # index of the item: its chunk, for its _meta and unknown fields
    def apply(self, update: Any) -> None:
        if type(update) in _WHOLE_OF:
            if update.meta is not None or update.unknown_fields: self.marked[len(self.items)] = update
            return self.items.append(update.content)
        self.value = apply_patch(self.value, update)
        new = self.value.__dict__.pop(self.slot, None)
        if getattr(update, self.slot) is not UNSET: self.items, self.marked = list(new or []), {}
    def view(self) -> Any: return copy_of(self.value, **{self.slot: list(self.items)})
    def updates(self) -> Iterator[Any]:  # those that build it anew
        first, chunk = min(self.marked, default=len(self.items)), _CHUNK_OF[type(self.value)]
        yield _as_patch(self.value, **{self.slot: self.items[:first] or None})
        for index, item in enumerate(self.items[first:], first): yield self.marked.get(index) or chunk(self.key, item)
_WHOLE_OF: Dict[Type[Any], Type[Any]] = {  # by chunk: what it is a piece of
    UserMessageChunk: UserMessage, AgentMessageChunk: AgentMessage, AgentThoughtChunk: AgentThought,
    ToolCallContentChunk: ToolCallUpdate, CompactionSummaryChunk: CompactionUpdate, TerminalOutputChunk: TerminalUpdate}
_CHUNK_OF = {whole: chunk for chunk, whole in _WHOLE_OF.items()}
_KIND_OF = {cls: next(iter(cls._parts)) for cls in (*_WHOLE_OF, *_CHUNK_OF)}  # the field with the id says the kind too
_ASIDE = (UsageUpdate, SessionInfoUpdate, AvailableCommandsUpdate, ConfigOptionUpdate, Notice)
_BETWEEN = (*_ASIDE, TerminalUpdate, TerminalOutputChunk)  # what ends no run of chunks
def _seen(doc: str, look: Callable[[SessionState], Any]) -> Any:
    """A property of the state, looked up under its lock; a list comes as a copy."""
    def read(state: SessionState) -> Any:
        with state._lock: return list(value) if isinstance(value := look(state), list) else value
    return property(read, doc=doc)
def _by_id(doc: str, kind: str) -> Any:  # the entities of a kind
    return _seen(doc, lambda self: {key: each.view() for (name, key), each in self._entities.items() if name == kind})
def _told(doc: str, cls: Type[Any], name: str, nothing: Any = None) -> Any:  # what the last update of a class said
    return _seen(doc, lambda self: getattr(self._latest.get(cls), name, nothing))

class SessionState:
    """A session as it stands, kept current by `apply` from any stream of updates, of either version. Safe from any
    thread. Collections come as copies made under the lock: take them once, not once per chunk. Appending a chunk costs
    the same however much is there."""
    def __init__(self, updates: Iterable[Any] = ()) -> None:
        self._lock = threading.RLock()  # guards all below; held for moments only, no lock is taken inside it
        self._entities: Dict[Tuple[str, str], Any] = {}  # by kind and id, in the order of first appearance
        self._latest: Dict[Type[Any], Any] = {}  # the last config options and commands, the merged info and usage
        self._state: Union[StateUpdate, Unknown, None] = None
        self._stop: Optional[IdleStateUpdate] = None  # the idle state that told why; None while a turn runs
        self._background: Optional[List[BackgroundWork]] = None
        self._run: Tuple[Any, str, Any] = (None, "", None)  # of the message that came last: class, id and entity
        self._made: Optional[str] = None  # its id, where its chunks came without one
        self._unknown: List[Unknown] = []
        for update in updates: self.apply(update)
    def __eq__(self, other: object) -> bool:
        return isinstance(other, SessionState) and self.snapshot() == other.snapshot()
    messages: Dict[str, UserMessage] = _by_id(
        "By id: UserMessage, AgentMessage or AgentThought, each with `role`, `content` and `text`.", "message_id")
    tool_calls: Dict[str, ToolCallUpdate] = _by_id("Tool calls by id, merged.", "tool_call_id")
    compactions: Dict[str, CompactionUpdate] = _by_id("Compactions by id, merged.", "compaction_id")
    terminals: Dict[str, TerminalState] = _by_id(
        "Display terminals by id; what they have printed is `text` and `data`, not `output`.", "terminal_id")
    plans: Dict[str, PlanUpdateContent] = _seen("Plans by id: PlanItems, or Unknown.", lambda self: {
        key: plan.plan for (kind, key), plan in self._entities.items() if kind == "plan_id"})
    timeline: List[str] = _seen(
        "The ids of messages, tool calls, terminals, plans and compactions in order of first appearance.",
        lambda self: list(dict.fromkeys(key for _, key in self._entities)))
    config_options: List[SessionConfigOption] = _told("The config options.", ConfigOptionUpdate, "config_options", [])
    commands: List[AvailableCommand] = _told("The slash commands.", AvailableCommandsUpdate, "available_commands", [])
    title: Optional[str] = _told("The session's title, or None.", SessionInfoUpdate, "title")
    updated_at: Optional[str] = _told("ISO 8601, or None.", SessionInfoUpdate, "updated_at")
    usage: Optional[UsageUpdate] = _seen("Merged, with its cost, or None.", lambda self: self._latest.get(UsageUpdate))
    state: Optional[str] = _seen(
        "running, requires_action, idle or a word unknown here; None: never reported.", lambda self: (
            self._state.data["state"] if isinstance(self._state, Unknown) else self._state and self._state.state))
    stop_reason: Optional[str] = _seen(
        "Why the last turn ended; None while one runs.", lambda self: self._stop and self._stop.stop_reason)
    error: Optional[ErrorObject] = _seen("The ErrorObject of a turn that failed, or None.", lambda self: (
        self._stop.error if self._stop and self._stop.stop_reason == "error" else None))
    background: Optional[List[BackgroundWork]] = _seen(
        "What runs beside the turns; None: never reported.", lambda self: self._background)
    unknown: List[Unknown] = _seen("Updates that this copy does not know, as they came.", lambda self: self._unknown)
    def tool_call(self, tool_call_id: str) -> Optional[ToolCallUpdate]:
        """One merged tool call, or None."""
        key = ("tool_call_id", tool_call_id)
        with self._lock: return self._entities[key].view() if key in self._entities else None
    def message_id(self, chunk: ContentChunk) -> str:
        """The id of a chunk's message; without one (version 1) it is made, the same for a run of one role."""
        with self._lock:
            if chunk.message_id is None:
                if self._made is None or self._run[0] is not type(chunk): self._made = new_id("message")
                return self._made
            if chunk.message_id != self._made: self._made = None
            return chunk.message_id
    def apply(self, update: Any) -> None:
        """Merge one update. Raises MalformedMessage where its base64 does not decode; then nothing changed."""
        with self._lock:
            run = self._run  # most updates go on with the message that came last
            if type(update) is run[0] and update.message_id == run[1]: run[2].apply(update); return
            if isinstance(update, ContentChunk):
                if update.message_id != (key := self.message_id(update)): update = copy_of(update, message_id=key)
            elif not isinstance(update, _BETWEEN): self._made = None
            if kind := _KIND_OF.get(type(update)):
                key, whole = getattr(update, kind), _WHOLE_OF.get(type(update), type(update))
                entity = self._entities.get((kind, key)) or (
                    _Screen(key) if kind == "terminal_id" else _Growing(whole, key))
                entity.apply(update)
                self._entities[kind, key] = entity  # only now: an update that raises leaves none behind
                if kind == "message_id": self._run = (type(update), key, entity)
            elif isinstance(update, PlanUpdate):
                plan = update.plan
                self._entities["plan_id", plan.data["planId"] if isinstance(plan, Unknown) else plan.plan_id] = update
            elif isinstance(update, (SessionInfoUpdate, UsageUpdate)):
                self._latest[type(update)] = apply_patch(self._latest.get(type(update)), update)
            elif isinstance(update, (ConfigOptionUpdate, AvailableCommandsUpdate)): self._latest[type(update)] = update
            elif isinstance(update, CurrentModeUpdate):
                self.apply(ConfigOptionUpdate(with_mode(self.config_options, update.current_mode_id)))
            elif isinstance(update, StateUpdate):
                if update.background is not None: self._background = list(update.background)
                self._state = update = copy_of(update, background=self._background)  # so that a snapshot has it
                if not isinstance(update, IdleStateUpdate): self._stop = None
                elif update.stop_reason is not None: self._stop = update
            elif is_unknown_state(update): self._state, self._stop = update, None
            elif isinstance(update, Unknown): self._unknown.append(update)
    def snapshot(self) -> List[SessionUpdate]:
        """Updates that build this state anew in a fresh SessionState: what an agent replays, or a script stores (see
        `to_wire`). Whole messages, tool calls, plans and terminals in the timeline's order, then what has no place."""
        with self._lock:
            made: List[Any] = [each for entity in self._entities.values() for each in (
                [entity] if isinstance(entity, PlanUpdate) else entity.updates())]
            made += [*map(_as_patch, self._latest.values()), *self._unknown]
            states: List[Any] = [self._state] if self._stop is self._state else [self._stop, self._state]
            if isinstance(self._state, Unknown): states.insert(-1, RunningStateUpdate(background=self._background))
            return made + [state for state in states if state is not None]
def is_unknown_state(update: Any) -> bool:  # a state that this copy does not know: busy, never idle
    return isinstance(update, Unknown) and update.data.get("sessionUpdate") == "state_update"
def with_mode(options: List[Any], mode_id: str) -> List[Any]:  # the option of category `mode`, if any, set to that
    return [copy_of(option, current_value=mode_id) if getattr(option, "category", None) == "mode" else option
            for option in options]

# == 6. The v1 adapter ================================================================================================
# How version 1 says things: its words for the messages (a Dialect), its method names, and the little state that takes:
# which tool calls the client has seen and their merged content, the synthesised ids and the mode option. When version 1
# dies, it goes, the fields marked v1, and what stands behind `version == 1` (how a turn ends, what is offered).
V1_ONLY: Dict[str, Method] = {
    "session/load": Method("agent", ResumeSessionRequest, ResumeSessionResponse),
    "session/set_mode": Method("agent", SetSessionModeRequest, SetSessionModeResponse),
    "fs/read_text_file": Method("client", ReadTextFileRequest, ReadTextFileResponse),
    "fs/write_text_file": Method("client", WriteTextFileRequest, WriteTextFileResponse),
    "terminal/create": Method("client", CreateTerminalRequest, CreateTerminalResponse),
    "terminal/output": Method("client", TerminalOutputRequest, TerminalOutputResponse),
    "terminal/wait_for_exit": Method("client", WaitForTerminalExitRequest, WaitForTerminalExitResponse),
    "terminal/kill": Method("client", KillTerminalRequest, KillTerminalResponse),
    "terminal/release": Method("client", ReleaseTerminalRequest, ReleaseTerminalResponse)}
_V1_NAMES = {"auth/login": "authenticate", "auth/logout": "logout", "tool_call/cancel": None, "terminal/cancel": None}
@functools.cache
def method_table(version: int) -> Dict[str, Tuple[str, Method]]:  # by name on the wire: canonical name, method
    methods, names = ({**METHODS, **V1_ONLY}, _V1_NAMES) if version == 1 else (METHODS, {})
    return {wire: (name, method) for name, method in methods.items() if (wire := names.get(name, name))}
def wire_name(method: str, version: int) -> str:  # what a canonical method name is on this version's wire
    return (_V1_NAMES.get(method) or method) if version == 1 else method
_FLAG: Json = {"codec": _Codec(lambda data: Marker() if _scalar(bool, {})(data) else False, bool)}
_ANY_ID: Json = {"patch": True, "codec": _Codec(lambda data: data if data is None else _first(
    [_scalar(str, {}), _scalar(int, {})], data, "an id"), lambda value: value)}
def _without(data: Json, *names: str) -> Json: return {key: item for key, item in data.items() if key not in names}
def _need_texts(data: Json, *names: str) -> None:
    for name in names:
        if name not in data: raise _missing(name)
        if not isinstance(data[name], str): raise MalformedMessage("a string", data[name]).within(name)
def _write_subject(value: Any) -> Any:
    if isinstance(value, ToolCallPermissionSubject): return _write_inner(value.tool_call, 1)
    if not isinstance(value, CommandPermissionSubject): return None
    return {"toolCallId": value.tool_call_id or new_id("tool"), "title": value.command, "kind": "execute"}
_V1_SESSION_CAPABILITIES = {"loadSession": "load", "promptCapabilities": "prompt", "mcpCapabilities": "mcp"}
def _read_agent_capabilities(data: Json) -> Tuple[Json, Json]:
    given = data.get("sessionCapabilities")
    session = dict(given) if isinstance(given, dict) else {}
    session.update((inner, data[outer]) for outer, inner in _V1_SESSION_CAPABILITIES.items() if outer in data)
    made = {**_without(data, "sessionCapabilities", *_V1_SESSION_CAPABILITIES), "session": session}
    return made, {"sessionCapabilities": {}} if isinstance(given, dict) else _NOTHING
def _write_agent_capabilities(value: Any, out: Json) -> Json:
    session = out.pop("session", {})
    out.update((outer, session.pop(inner)) for outer, inner in _V1_SESSION_CAPABILITIES.items() if inner in session)
    if session: out["sessionCapabilities"] = session
    return {**(value._v1 or {}), **out}
def _read_tool_call(data: Json) -> Tuple[Json, Json]:
    if data.get("sessionUpdate") != "tool_call": return data, _NOTHING
    _need_texts(data, "title")
    return data, {"sessionUpdate": "tool_call"}
def _write_tool_call(value: Any, out: Json) -> Json:
    for name, cleared in (("content", []), ("locations", []), ("kind", "other"), ("status", "pending")):
        if getattr(value, name) is None: out[name] = cleared
    return {**out, **(value._v1 or {})}
def _read_diff(data: Json) -> Tuple[Json, Json]:
    _need_texts(data, "path", "newText")
    old = data.get("oldText")
    diff = Diff.of(data["path"], data["newText"], old if isinstance(old, str) else None)
    return {**_without(data, "path", "oldText", "newText"), **to_wire(diff, 2)}, diff._v1 or _NOTHING
def _write_diff(value: Any, out: Json) -> Json:
    if value._v1: return {**_without(out, "changes", "patch"), **value._v1}
    text = value.patch.text if value.patch else "\n".join(f"{each.operation} {each.path}" for each in value.changes)
    return {"type": "content", "content": {"type": "text", "text": text}}
def _read_plan(data: Json) -> Tuple[Json, Json]:
    plan = {"type": "items", "planId": "plan", "entries": data.get("entries", [])}
    return {**_without(data, "entries"), "plan": plan}, _NOTHING
def _write_plan(value: Any, out: Json) -> Json:
    plan = out.pop("plan")
    if not isinstance(value.plan, PlanItems): raise Unsupported(f"version 1 knows no plan of type {plan.get('type')}")
    return {**out, "sessionUpdate": "plan", "entries": plan["entries"]}
def _read_permission(data: Json) -> Tuple[Json, Json]:
    if "toolCall" not in data: raise _missing("toolCall")
    call = data["toolCall"]
    named = [call.get(key) for key in ("title", "name", "toolCallId")] if isinstance(call, dict) else []
    return {**data, "title": next((text for text in named if text and isinstance(text, str)), "Permission")}, _NOTHING
def _write_permission(value: Any, out: Json) -> Json:
    return {"toolCall": {"toolCallId": new_id("tool"), "title": value.title}, **_without(out, "title")}
def _read_mode(data: Json) -> Tuple[Json, Json]:  # old peers say modeId
    return {**({"currentModeId": data["modeId"]} if "modeId" in data else {}), **data}, _NOTHING
def _write_set_option(value: Any, out: Json) -> Json:
    return _without(out, "type") if value.type == "id" and value._v1 is None else out
def _not_said(value: Any, out: Json) -> NoReturn: raise Unsupported(f"version 1 has no {type(value).__name__}")
def _words(same: str, other: str, **changed: str) -> Json:  # a closed enum: what stays, what becomes another, the rest
    return {"words": {**{word: word for word in same.split()}, **changed, "": other}}
_NOT_SAID: Tuple[Any, ...] = (
    UserMessage, AgentMessage, AgentThought, RunningStateUpdate, IdleStateUpdate, RequiresActionStateUpdate,
    ToolCallContentChunk, TerminalUpdate, TerminalOutputChunk)
_LENIENT: Json = {"lenient": True}
_SINCE_V2 = None  # a field that is not on version 1's wire
DIALECTS[1] = Dialect(
    fields={
        Annotations: {"priority": {"low": None, "high": None}}, ToolCallLocation: {"line": {"low": 0}},
        ResourceLink: {"icons": _SINCE_V2, "size": {"low": None}}, ContentChunk: {"message_id": {"required": False}},
        ToolCallUpdate: {
            **dict.fromkeys("name title content locations raw_input raw_output meta".split(), {"patch": False}),
            "kind": {"patch": False, **_words("read edit delete move search execute think fetch switch_mode", "other")},
            "status": {"patch": False, **_words(
                "pending completed failed", "in_progress", cancelled="failed", paused="pending")},
            "capabilities": _SINCE_V2},
        TerminalExitStatus: {"exit_code": {"low": 0}}, SetSessionConfigOptionRequest: {"type": {"required": False}},
        PlanEntry: {"priority": _words("high low", "medium"),
                    "status": _words("pending completed", "in_progress", cancelled="completed")},
        PlanItems: {"entries": _LENIENT}, AvailableCommandsUpdate: {"available_commands": _LENIENT},
        **{cls: {"config_options": _LENIENT} for cls in (ConfigOptionUpdate, SetSessionConfigOptionResponse)},
        SessionConfigSelect: {"config_id": {"wire": "id"}, "options": {"least": 0}},
        SessionConfigBoolean: {"config_id": {"wire": "id"}}, AuthMethodAgent: {"method_id": {"wire": "id"}},
        SessionConfigSelectGroup: {"group_id": {"wire": "group"}, "options": {"lenient": True, "least": 0}},
        PromptCapabilities: {"image": _FLAG, "audio": _FLAG, "embedded_context": _FLAG},
        McpCapabilities: {"stdio": _SINCE_V2, "http": _FLAG, "sse": _FLAG}, SessionCapabilities: {"load": _FLAG},
        ClientAuthCapabilities: {"terminal": _FLAG}, ListSessionsResponse: {"next_cursor": {"strict": False}},
        **{cls: {"info": {"wire": side + "Info", "strict": False, "no_null": False},
                 "capabilities": {"wire": side + "Capabilities"}}
           for cls, side in ((InitializeRequest, "client"), (InitializeResponse, "agent"))},
        AuthMethodTerminal: {"method_id": {"wire": "id"}, "env": {"codec": _Codec(
            lambda data: [EnvVariable(*item) for item in _each(data, _scalar(str, {"secret": True})).items()],
            lambda value: {each.name: each.value for each in value})}},
        McpServerStdio: {"args": {"keep": True}, "env": {"keep": True}}, McpServerHttp: {"headers": {"keep": True}},
        NewSessionRequest: {"mcp_servers": {"keep": True}}, PromptRequest: {"prompt": {"least": 0}},
        **{cls: {"available_commands": _SINCE_V2} for cls in (NewSessionResponse, ResumeSessionResponse)},
        ResumeSessionRequest: {"replay_from": _SINCE_V2}, SessionInfo: {"additional_directories": {"null": False}},
        PromptResponse: {"message_id": _SINCE_V2, "stop_reason": {
            "required": True, **_words("max_tokens max_turn_requests refusal cancelled", "end_turn")}},
        PermissionOption: {"kind": _words("allow_once allow_always reject_always", "reject_once")},
        RequestPermissionRequest: {"description": _SINCE_V2, "options": {"least": 0}, "subject": {
            "wire": "toolCall", "no_null": True, "codec": _Codec(
                lambda data: ToolCallPermissionSubject(from_wire(ToolCallUpdate, data, 1)), _write_subject)}},
        StringPropertySchema: {"enum": {"least": 0}, "one_of": {"least": 0}},
        StringMultiSelectItems: {"enum": {"least": 0}}, TitledMultiSelectItems: {"any_of": {"least": 0}},
        ElicitationSchema: {
            "type": {"required": False}, "properties": {"required": False, "no_null": True, "strict": True}},
        CreateElicitationRequest: {"request_id": _ANY_ID}, CancelRequestNotification: {"request_id": _ANY_ID},
        CreateElicitationResponse: {"content": {"type": Optional[Dict[str, Union[str, int, float, bool, List[str]]]]}},
    },
    variants={"tool_call": ToolCallUpdate, "plan": PlanUpdate, "current_mode_update": CurrentModeUpdate,
              "plan_update": None, **{cls.session_update: None for cls in _NOT_SAID}},
    untagged=frozenset([McpServerStdio, AuthMethodAgent, Command, TextCommandInput]),
    read={AgentCapabilities: _read_agent_capabilities, ToolCallUpdate: _read_tool_call, Diff: _read_diff,
          PlanUpdate: _read_plan, RequestPermissionRequest: _read_permission, CurrentModeUpdate: _read_mode},
    write={AgentCapabilities: _write_agent_capabilities, ToolCallUpdate: _write_tool_call, Diff: _write_diff,
           PlanUpdate: _write_plan, RequestPermissionRequest: _write_permission,
           SetSessionConfigOptionRequest: _write_set_option, **dict.fromkeys(_NOT_SAID, _not_said)})

class _V1Tool:  # what version 1's client knows of a tool call
    size = sent = 0; stale = False  # of the content, about: now, when last sent; not sent as it is
    def __init__(self, key: str) -> None: self.key = key; self.content: List[Any] = []

class V1Writer:
    """The agent's side of one session on version 1: canonical updates in, version 1's out. Needs the session's lock."""
    def __init__(self, capabilities: ClientCapabilities) -> None:
        session = capabilities.session or ClientSessionCapabilities()
        self.takes: Dict[Any, Any] = {
            Notice: session.notices, **dict.fromkeys((CompactionUpdate, CompactionSummaryChunk), session.compaction),
            SessionConfigBoolean: session.config_options and session.config_options.boolean}
        self._has_terminals = bool(capabilities.terminal)
        self._tools: Dict[str, _V1Tool] = {}
        self._screens: Dict[str, _Screen] = collections.defaultdict(lambda: _Screen(""))
        self._said: Dict[str, str] = {}  # messages that the client has, and the ids that it knows them by
        self._mode: Optional[str] = None
    def updates(self, update: Any) -> List[Json]:
        """What goes out for one update: nothing, one, or several. Raises Unsupported for what cannot be said."""
        kind = type(update)
        if isinstance(update, ContentChunk):
            known = self._said.setdefault(update.message_id, update.message_id)
            if known != update.message_id: update = copy_of(update, message_id=known)
        elif kind is Notice and not self.takes[kind]: return []
        elif not self.takes.get(kind, True): raise Unsupported("the client does not take compaction updates")
        elif isinstance(update, StateUpdate) or is_unknown_state(update): return []
        elif isinstance(update, UserMessage):  # its content as chunks; a replacement is a new message
            key, chunk = update.message_id, _CHUNK_OF[kind]
            if update.content and key in self._said: self._said[key] = new_id("message")
            return [wire for block in update.content or () for wire in self.updates(chunk(key, block))]
        elif kind is ToolCallUpdate: return self._tool_call(update)
        elif kind in (TerminalUpdate, TerminalOutputChunk): return self._terminal(update)
        elif kind is ConfigOptionUpdate:
            before, (taken, modes) = self._mode, self.options(update.config_options)
            mode = [CurrentModeUpdate(modes.current_mode_id)] if modes and self._mode != before else []
            return [to_wire(each, 1) for each in (copy_of(update, config_options=taken), *mode)]
        elif kind is ToolCallContentChunk:
            call = ToolCallUpdate(update.tool_call_id, content=[update.content])
            if (tool := self._tools.get(update.tool_call_id)) is None: return self._tool_call(call)
            size = self._size(update.content)  # raises before it is kept
            tool.content.append(update.content)
            return self._grown(tool, size)
        try: return [to_wire(update, 1)]
        except Unsupported:
            if not hasattr(update, "content") and kind is not PlanUpdate: raise
            return []  # a chunk or a plan of a kind that version 1 cannot show
    def flush(self) -> List[Json]:  # what has been held back of growing tool calls
        return [self._content(tool) for tool in self._tools.values() if tool.stale]
    def options(self, options: Sequence[Any]) -> Tuple[List[Any], Optional[SessionModeState]]:  # taken, and as modes
        taken = [option for option in options if self.takes.get(type(option), True)]
        modes = next((_alike(option, SessionModeState(option.current_value, [
            _alike(each, SessionMode(each.value, each.name, each.description)) for each in option.values()]))
            for option in options if isinstance(option, SessionConfigSelect) and option.category == "mode"), None)
        self._mode = modes.current_mode_id if modes else None
        return taken, modes
    def _tool_call(self, update: Any) -> List[Json]:
        out, tool = to_wire(update, 1), self._tools.get(update.tool_call_id)
        if tool is None:
            to_line(out); tool = self._tools[update.tool_call_id] = _V1Tool(update.tool_call_id)  # or it raises
            out["sessionUpdate"] = "tool_call"
            out.setdefault("title", update.name or update.kind or update.tool_call_id)
        if update.content is not UNSET:
            tool.content = list(update.content or [])
            tool.size = sum(map(self._size, tool.content))
        if update.content is not UNSET or (update.status is not UNSET and tool.stale):
            out["content"] = self._content(tool)["content"]
        return [out]
    def _content(self, tool: _V1Tool) -> Json:  # all the content of a tool call, with display terminals as text
        shown = list(tool.content)
        for index, item in enumerate(shown):
            own = isinstance(item, Terminal) and (item.terminal_id in self._screens or not self._has_terminals)
            if own and item._v1 is None:  # else it runs in the client
                shown[index] = Content(TextContent(self._screens[item.terminal_id].view().text))
        tool.sent, tool.stale = tool.size, False
        return cast(Json, to_wire(ToolCallUpdate(tool.key, content=shown), 1))
    def _grown(self, tool: _V1Tool, more: int) -> List[Json]:  # again, once grown by a quarter: linear in the whole
        tool.size, tool.stale = tool.size + more, True
        return [self._content(tool)] if more < 0 or tool.size >= tool.sent * 1.25 else []
    def _terminal(self, update: Any) -> List[Json]:
        screen = self._screens[update.terminal_id]
        before = len(screen.data)
        screen.apply(update)
        return [out for tool in self._tools.values() if any(
            getattr(item, "terminal_id", None) == update.terminal_id for item in tool.content)
            for out in self._grown(tool, len(screen.data) - before)]
    def _size(self, item: Any) -> int:  # of what is sent for an item, about
        screen = self._screens.get(item.terminal_id) if isinstance(item, Terminal) else None
        return len(screen.data if screen else b"") + len(to_line(to_wire(ToolCallUpdate("", content=[item]), 1)))
def v1_update(update: Any, state: SessionState) -> Any:  # for the client, in canonical form; None: it says nothing
    if isinstance(update, ContentChunk) and update.message_id is None: update.message_id = state.message_id(update)
    elif isinstance(update, ConfigOptionUpdate):
        return copy_of(update, config_options=v1_options(update.config_options, state.config_options))
    elif isinstance(update, CurrentModeUpdate):
        changed = with_mode(state.config_options, update.current_mode_id)
        made = ConfigOptionUpdate(changed, meta=update.meta)
        return copy_of(made, beside=update.beside) if changed != state.config_options else None
    return update
def v1_options(options: List[Any], others: List[Any]) -> List[Any]:  # if none is of modes, with the one made of those
    told = any("mode" in (getattr(each, "category", None), getattr(each, "config_id", None)) for each in options)
    return options if told else [*options, *(each for each in others if each._v1 is OF_MODES)]
OF_MODES: Json = {}  # being its `_v1` marks the option that was made of version 1's modes: session/set_mode sets it
def v1_mode_option(modes: SessionModeState) -> SessionConfigSelect:  # an agent's modes as an option `mode`
    values: List[Any] = [_alike(each, SessionConfigSelectOption(each.id, each.name, each.description))
                         for each in modes.available_modes]
    option = SessionConfigSelect("mode", "Mode", modes.current_mode_id, values, category="mode")
    return _alike(modes, option, _v1=OF_MODES)
def _alike(source: Any, made: M, **more: Any) -> M:  # what a mode and a value, modes and an option have in common
    return copy_of(made, meta=source.meta, unknown_fields=source.unknown_fields, **more)

# == 7. Connection and processes ======================================================================================
# JSON-RPC 2.0, one message a line, both roles; of ACP it only keeps who the peer is. One reader thread takes bytes and
# sorts messages; it never runs a handler, writes or waits; of other people's code it runs on_message. Handlers run in
# workers. One writer thread sends what has gathered in the outbox. At the end commands in process groups of their own.
# Locks are taken by `with` on the lock: a Ctrl-C inside a Condition's own code would leave it taken. In this order:
#   _AgentProcess's, a listing's (the agent's iterable runs in it) > Connection._sorting > a session's (section 8, 9)
#   > Connection._lock > _Strand's > the innermost: _Outbox.lock, Connection._counting, and those of _Workers,
#   SessionState, _AgentSide, CommandProcess
HIGH_WATER = 1 << 20  # bytes unsent above which senders wait; answers, cancels and close never do
MAX_MESSAGE, MAX_QUEUED = 64 << 20, 256 << 20  # bytes; a picture or a file fits in one, and four of those in the other
Job = Callable[[], Any]
def notification(method: str, params: Json) -> Json: return {"jsonrpc": "2.0", "method": method, "params": params}
NEVER = float("inf")  # a deadline that does not come
def _deadline(timeout: Optional[float]) -> Optional[float]:
    return None if timeout is None else time.monotonic() + timeout
def _wait(wait: Callable[[float], Any], deadline: Optional[float]) -> bool:
    """Wait for a change (a condition's or an event's `wait`), at most until the deadline; False when that is over. The
    main thread waits in slices: a signal may come to another thread, and then nothing else would wake it to see it."""
    left = threading.TIMEOUT_MAX if deadline is None else min(deadline - time.monotonic(), threading.TIMEOUT_MAX)
    if left > 0: wait(min(left, 0.3) if threading.current_thread() is threading.main_thread() else left)
    return left > 0
def _quietly(what: str, function: Callable[..., Any], *args: Any) -> None:  # other people's code: its failure is logged
    try: function(*args)
    except BaseException: log.error("%s failed", what, exc_info=True)
def _spawn(name: str, target: Callable[..., Any], *args: Any, mask: Any = None) -> threading.Thread:
    """Start a daemon thread that leaves signals to the others; workers have a mask, since their children inherit it."""
    def run() -> None:
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals() if mask is None else mask)
        target(*args)
    thread = threading.Thread(target=run, name="acp " + name, daemon=True)
    thread.start()
    return thread

class _Workers:
    """Threads for jobs that may take long, as many as are needed at once; idle ones are used again, then end."""
    def __init__(self) -> None:
        self._lock = threading.RLock(); self._changed = threading.Condition(self._lock)  # guards all below
        self._jobs: Deque[Job] = collections.deque()
        self._idle, self._closed = 0, False
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ()) if hasattr(signal, "pthread_sigmask") else None
    def run(self, job: Job) -> None:
        with self._lock:
            self._jobs.append(job)
            if self._idle >= len(self._jobs): return self._changed.notify()
        try: _spawn("worker", self._work, mask=self._mask)
        except RuntimeError:  # no more threads: one of those at work takes it later
            if threading.main_thread().is_alive(): log.error("no thread could be started; a job waits")  # no exit
    def close(self) -> None:  # idle workers end, and those at work after what is queued
        with self._lock:
            self._closed = True
            self._changed.notify_all()
    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
                self._changed.wait_for(lambda: self._jobs or self._closed, 5.0)
                self._idle -= 1
                if not self._jobs: return
                job = self._jobs.popleft()
            _quietly("a callback", job)
            del job

class _Strand:
    """Runs jobs one at a time, in order, on workers. `posted` is the mark that `wait` waits for."""
    def __init__(self, workers: _Workers) -> None:
        self._workers, self.posted, self._running = workers, 0, False
        self._lock = threading.RLock(); self._changed = threading.Condition(self._lock)  # guards all; jobs run outside
        self._jobs: Deque[Job] = collections.deque()  # the one that runs, then those that wait
    def post(self, job: Job) -> None:
        with self._lock:  # the worker first: a Ctrl-C in between loses this job, and not those to come
            if not self._jobs: self._workers.run(self._run)
            self._jobs.append(job)
            self.posted += 1
    def _run(self) -> None:
        with self._lock:
            if self._running or not self._jobs: return
            self._running = True
        while True:
            _quietly("a callback", self._jobs[0])
            with self._lock:
                self._jobs.popleft()
                self._changed.notify_all()
                self._running = bool(self._jobs)
                if not self._jobs: return
    def wait(self, mark: int, deadline: Optional[float]) -> bool:  # whether all up to the mark have run in time
        if self.posted - len(self._jobs) >= mark: return True  # without the lock: what has run stays so
        with self._lock:
            while self.posted - len(self._jobs) < mark:
                if not _wait(self._changed.wait, deadline): return False
            return True

class _Outbox:
    """What is to be sent: senders append and go on, the writer thread takes all that is there."""
    def __init__(self) -> None:
        self.lock = threading.RLock()  # guards the fields below; taken last, never held while writing
        self.changed = threading.Condition(self.lock)
        self.lines: List[Tuple[bytes, Optional[Json]]] = []  # the message only where there is an on_message
        self.size = 0  # bytes not yet written, with those in the writer's hands
        self.error: Optional[Exception] = None  # why nothing more can be sent; the first reason wins
    def close(self, error: Exception) -> bool:  # nothing more goes out; whether that is new
        with self.lock:
            first, self.error, self.lines, self.size = self.error is None, self.error or error, [], 0
            self.changed.notify_all()
            return first
def _write_loop(outbox: _Outbox, write: Callable[[bytes], None], owner: Any, on_message: Any) -> None:
    """The writer thread. Knows the connection only weakly, so that one that nobody holds is collected."""
    while True:
        with outbox.lock:
            outbox.changed.wait_for(lambda: outbox.lines or outbox.error)
            if not outbox.lines: return
            taken, outbox.lines = outbox.lines, []
        for _, message in taken if on_message is not None else (): _quietly("on_message", on_message, "out", message)
        data = b"".join([line for line, _ in taken])
        del taken
        try: write(data)
        except Exception as error:  # a broken pipe, a closed file, whatever the given stream raises
            if (connection := owner()) is not None: connection.broken(f"writing failed: {type(error).__name__}")
        with outbox.lock:
            outbox.size = max(0, outbox.size - len(data))
            outbox.changed.notify_all()
def _read_loop(owner: Callable[[], Any], read: Callable[[], bytes]) -> None:  # the reader thread; like the writer's
    while True:
        try: data, reason = read(), "the peer closed the connection"
        except Exception as error: data, reason = b"", f"reading failed: {type(error).__name__}"
        if (connection := owner()) is None: return
        connection.feed(data or b"\n")  # at the end: what is left of the last line
        if not data: return cast(None, connection._handler.ended(ConnectionClosed(reason)))
        del connection, data
def _streams(reader: Any, writer: Any) -> Tuple[Callable[[], bytes], Callable[[bytes], None]]:
    """Functions to read a piece and to write all, for descriptors, sockets and binary streams."""
    def method(stream: Any, native: Callable[..., Any], *names: str) -> Any:  # the first of the names that it has
        if isinstance(stream, int): return functools.partial(native, stream)
        if hasattr(stream, "encoding"): raise TypeError("expected a binary stream, got a text stream: take its .buffer")
        return getattr(stream, next((name for name in names if hasattr(stream, name)), names[-1]))
    take, put = method(reader, os.read, "recv", "read1", "read"), method(writer, os.write, "send", "write")
    def write(data: bytes) -> None:
        view = memoryview(data)
        while view:
            count = put(view)
            view = view[len(view) if count is None else count:]
        if hasattr(writer, "flush"): writer.flush()
    return lambda: cast(bytes, take(65536)), write
def is_answer(error: BaseException) -> bool:  # whether a handler raised this to be its answer, rather than failed
    return isinstance(error, RequestError) and error.method is None
def error_object(error: BaseException, method: str) -> Json:
    """What a request is answered with when its handler raised: a RequestError as it is; what the peer answered to the
    handler's own call, named; anything else by its kind only."""
    if isinstance(error, RequestError) and error.method is None:
        try:
            made = {"code": error.code if type(error.code) is int else -32603, "message": str(error.message)}
            to_line(made := made if error.data is None else {**made, "data": error.data})
            return made
        except BaseException: text = "the error's message or data cannot be sent"  # its own class may raise anything
    elif isinstance(error, RequestError): text = f"its call {error.method} failed: {error.message} ({error.code})"
    else: text = f"the handler failed ({type(error).__name__})"
    return {"code": -32603, "message": f"{method}: {text}"}

class Request:
    """A request (or notification) of the peer on its way through the handler. Answered exactly once, or never."""
    answered = cancelled = False  # cancelled: by $/cancel_request
    barrier: Any = UNSET  # the lane that waits for this answer
    _on_cancel: Optional[Job] = None
    def __init__(self, connection: Connection, id: Any, method: str, params: Any, size: int) -> None:
        self.connection, self.id, self.method, self.params, self.size = connection, id, method, params, size
        self.key = type(id), id  # ids match by type and value: 1 is not "1" and not True
        self.is_notification, self._came = id is UNSET, time.monotonic()
    def on_cancel(self, function: Job) -> None:  # run it when the peer cancels this; at once if it has
        with self.connection._lock: self._on_cancel, late = function, self.cancelled
        if late: function()
    def cancel(self) -> None:  # in the reader: $/cancel_request
        with self.connection._lock: self.cancelled, again = True, self.cancelled
        if self._on_cancel is not None and not again: self._on_cancel()
    def answer(self, result: Any) -> None:  # raises ValueError, TypeError: no JSON; only the first goes out
        self._reply({"jsonrpc": "2.0", "id": self.id, "result": result})
    def refuse(self, error: BaseException) -> None:  # send the error that stands for this exception; never raises
        self._reply({"jsonrpc": "2.0", "id": self.id, "error": error_object(error, self.method)})
    def _reply(self, message: Json) -> None:
        if self.is_notification: return
        line = to_line(message)
        with self.connection._lock:
            if self.answered: return
            self.answered = True
            if self.connection.serving.get(self.key) is self: del self.connection.serving[self.key]
            with suppress(ConnectionClosed): self.connection.append(line, message)  # too late, and nobody's error
        log.debug("out %s id %r, %d bytes, code %s, after %.3f s", self.method, self.id, len(line),
                  message.get("error", {}).get("code", 0), time.monotonic() - self._came)
    def run(self, function: Job) -> None:  # in a worker: answer; then the lane behind it goes on
        here = self.connection.here
        before, here.request_id = getattr(here, "request_id", None), self.id
        try:
            if self.cancelled: raise RequestCancelled()
            result = function()
            self.answer({} if result is None else result)
        except BaseException as fault:
            error = RequestCancelled() if isinstance(fault, Cancelled) and self.cancelled else fault
            known = is_answer(error) or isinstance(error, ConnectionClosed)
            if not known: log.error("%s failed", self.method, exc_info=True)
            self.refuse(error)
        finally:
            here.request_id = before
            self.connection.answered(self)
def _no_such(request: Request) -> MethodNotFound: return MethodNotFound("no such method", {"method": request.method})

class _Pending:
    """A call of ours that waits for its answer."""
    def __init__(self, connection: Connection, method: str, settle: Any, strand: Optional[_Strand], then: Any) -> None:
        self.connection, self.method, self.id = connection, method, next(connection._ids)
        self.settle, self.then = settle, then  # make the result, in the reader; run behind that, must not block
        self.strand, self.mark = strand, 0  # whose jobs before the answer are waited for
        self.result: Any = None; self.error: Optional[BaseException] = None
        self.over, self.gate = False, threading.Lock(); self.gate.acquire()  # it opens when it is over, to who waits
    def finish(self, result: Any, error: Optional[BaseException]) -> None:  # once; in the reader, or who gives it up
        if error is None and self.settle is not None:
            try: result = self.settle(result)
            except MalformedMessage as fault:
                error = InvalidResponse(f"{self}: the peer's answer is malformed: {fault.within('result')}")
            except Exception as fault: error = fault
        self.result, self.error = result, error
        if self.strand is not None: self.mark = self.strand.posted
        self.over = True; self.gate.release()
        if self.then is not None: self.then(self)
    def __str__(self) -> str: return f"{self.method} (id {self.id})"
    def wait(self, deadline: Optional[float] = None) -> Any:
        """The result. Raises what the peer answered, Timeout, ConnectionClosed. Ctrl-C cancels the call."""
        connection, opens = self.connection, functools.partial(self.gate.acquire, True)
        with connection.blocking():
            try:
                while not self.over:
                    if not _wait(opens, deadline): connection.give_up(self, Timeout(f"{self}: no answer in time"))
                if self.strand is not None and not connection.in_handler():
                    if isinstance(self.error, ConnectionClosed): deadline = min(time.monotonic() + 1, deadline or NEVER)
                    if not self.strand.wait(self.mark, deadline) and self.error is None:
                        raise Timeout(f"{self}: answered, but an earlier update is still being handled")
            except KeyboardInterrupt:
                connection.give_up(self, Cancelled(f"{self}: interrupted"))
                raise
        if self.error is not None: raise self.error.with_traceback(None)  # else it keeps the frames of every raise
        return self.result

class Connection:
    """JSON-RPC 2.0 over newline-delimited UTF-8, both roles at once.

    `reader` and `writer` are binary streams, sockets or file descriptors. `handler(method, params)` is called in a
    worker thread: for a request its result is the answer, for a notification it is ignored; requests run side by side,
    notifications in order. It may call `request` to any depth. Without a handler all requests get -32601. Begins with
    `start()`. `peer` is its name in messages; a client's `answers_bad_lines` is False; the limits and `on_message` (in
    the reader or writer thread) are as Client's. Threads: a reader and a writer, daemons that do not keep it alive, and
    workers as needed. A reader that cannot be woken (a given stream but for a socket) is left behind on close."""
    version = 0  # what an agent knows of its client, once negotiated: the version,
    info: Any = None; capabilities: Any = None  # an Implementation, and ClientCapabilities
    def __init__(self, reader: Any, writer: Any, handler: Any = None, *, peer: str = "peer",
                 answers_bad_lines: bool = True, max_message_bytes: int = MAX_MESSAGE,
                 max_queued_bytes: int = MAX_QUEUED, on_message: Optional[Callable[[str, Json], Any]] = None) -> None:
        self.peer = peer  # who is at the other end, for messages
        self.null_ids = True  # requests with id null are served (version 1)
        self.workers = _Workers()
        self.here = threading.local()  # of a thread: .depth, .dispatched, .request_id; .turn, .answering: section 9
        self._handler: Any = handler if hasattr(handler, "receive") else _Simple(weakref.ref(self), handler)
        self._answers_bad_lines, self._on_message = answers_bad_lines, on_message
        self._max_message, self._max_queued = max_message_bytes, max_queued_bytes
        # Guards _pending, _given_up, serving, _beginning, _error and what is answered; no user code runs in it.
        self._lock = threading.RLock()
        self._counting = threading.RLock()  # guards _queued; innermost: a turn is collected under any lock
        self._pending: Dict[int, _Pending] = {}; self._ids = itertools.count(1)
        self._given_up: Deque[int] = collections.deque(maxlen=4096)  # ids whose late answers are swallowed
        self.serving: Dict[Tuple[type, Any], Request] = {}  # by Request.key
        self._queued, self.deaf = 0, False  # bytes of input that nobody has taken yet; whether what comes is ignored
        self._error: Optional[ConnectionClosed] = None  # why no call can be made any more; the first reason wins
        self._over = threading.Event()  # the connection is closed in both directions
        self._sorting = threading.RLock()  # one message is sorted at a time; taken before all other locks
        self._lanes: Dict[Any, Deque[Request]] = {}  # key -> what waits for the answer of an earlier request
        self._notifications = _Strand(self.workers)
        self._beginning: Deque[Job] = collections.deque()  # handlers that no worker has taken yet
        self._partial: Union[bytes, bytearray] = b""  # the line that is arriving; only the reader touches it
        self._partial_size = 0
        self.line: Union[bytes, bytearray] = b""  # that is being sorted
        self.shortcut: Optional[Callable[[Any], bool]] = None  # in the reader: takes lines that it knows by their looks
        self._functions, self._outbox = _streams(reader, writer), _Outbox()
        self.threads: Tuple[threading.Thread, ...] = ()  # that which writes and that which reads
        self.let_go = weakref.finalize(self, _let_go, self._outbox, self.workers, (reader, writer))
    def start(self) -> Connection:
        """Begin to read and write. Called once; returns the connection."""
        (read, write), owner = self._functions, weakref.ref(self)
        self.threads = (_spawn("writer", _write_loop, self._outbox, write, owner, self._on_message),
                        _spawn("reader", _read_loop, owner, read))
        return self
    # ---- calls ------------------------------------------------------------------------------------------------------
    def request(self, method: str, params: Optional[Json] = None, timeout: Optional[float] = None) -> Any:
        """Call the peer by the method's name on the wire and wait for the result. From any thread, handlers included.
        Raises RequestError with what the peer answered, Timeout after `timeout` seconds (the call is then cancelled by
        $/cancel_request), ConnectionClosed, or ValueError/TypeError where the params are not JSON."""
        deadline = _deadline(timeout)
        return self.begin_call(method, params, deadline=deadline).wait(deadline)
    def begin_call(self, method: str, params: Optional[Json] = None, *, settle: Optional[Callable[[Any], Any]] = None,
                   then: Optional[Callable[[_Pending], None]] = None, strand: Optional[_Strand] = None,
                   waits: bool = True, deadline: Optional[float] = None) -> _Pending:  # functions run in the reader
        pending = _Pending(self, method, settle, strand, then)
        line = to_line(message := {"jsonrpc": "2.0", "id": pending.id, "method": method, "params": params or {}})
        if waits: self.wait_for_room(deadline=deadline)
        with self._lock:
            self.check()
            self._pending[pending.id] = pending
            self.append(line, message)
        log.debug("call %s", pending)
        return pending
    def check(self) -> None:  # raise why no call can be made, if so
        if self._error is not None: raise self._error.with_traceback(None)
    def notify(self, method: str, params: Optional[Json] = None, *, waits: bool = True) -> None:
        """Send a notification. Waits only while too much is unsent. Raises ConnectionClosed, ValueError, TypeError."""
        line = to_line(message := notification(method, params or {}))
        if waits: self.wait_for_room()
        self.append(line, message)
    def append(self, line: bytes, message: Optional[Json] = None) -> None:  # of to_line; does not wait
        outbox = self._outbox
        with outbox.lock:
            if outbox.error is not None: raise outbox.error.with_traceback(None)
            if not outbox.lines: outbox.changed.notify_all()  # the writer waits for the first only
            outbox.lines.append((line, message if self._on_message is not None else None))
            outbox.size += len(line)
            if outbox.size <= self._max_queued: return
        self.broken(f"more than max_queued_bytes ({self._max_queued}) was not read by the {self.peer}")
    def wait_for_room(self, stopped: Optional[Callable[[], bool]] = None, deadline: Optional[float] = None) -> None:
        """Wait while more than HIGH_WATER bytes are unsent and not `stopped`. Raises Timeout, ConnectionClosed."""
        outbox, full = self._outbox, min(HIGH_WATER, self._max_queued // 2)
        if outbox.size <= full and outbox.error is None: return  # without the lock: it was true at some moment
        with outbox.lock:
            while outbox.size > full and outbox.error is None and not (stopped and stopped()):
                if not _wait(outbox.changed.wait, deadline):
                    raise Timeout("the peer does not read: nothing was sent in the time given")
            known = _deadline(1.0)  # where writing failed the reason, with the exit status, comes a moment later
            while outbox.error is not None and self._error is None and _wait(outbox.changed.wait, known): pass
            if outbox.error is not None: raise (self._error or outbox.error).with_traceback(None)
    def wake(self) -> None:  # those who wait for room look at `stopped` again
        with self._outbox.lock: self._outbox.changed.notify_all()
    def give_up(self, pending: _Pending, error: BaseException) -> None:  # tell the peer; a late answer is swallowed
        with self._lock:
            if self._pending.pop(pending.id, None) is None: return
            self._given_up.append(pending.id)
            with suppress(ConnectionClosed): self.notify("$/cancel_request", {"requestId": pending.id}, waits=False)
        pending.finish(None, error)
    @property
    def request_id(self) -> Union[int, str, None]:
        """The id of the request whose handler runs in this thread: what an elicitation outside a session refers to."""
        return getattr(self.here, "request_id", None)
    def in_handler(self) -> bool:  # whether this thread is inside a handler of this connection
        return bool(getattr(self.here, "depth", 0))
    def handle(self, job: Job, dispatched: bool = False) -> None:  # a handler, here
        here = self.here
        depth, before = getattr(here, "depth", 0), getattr(here, "dispatched", False)
        here.depth, here.dispatched = depth + 1, dispatched
        try: job()
        finally: here.depth, here.dispatched = depth, before
    def run_handler(self, job: Job) -> None:  # in a worker; they begin in the order of the calls
        with self._lock:
            self._beginning.append(job)
            if len(self._beginning) > 1: return  # the worker of the one before wakes the next
        self.workers.run(self._begin)
    def _begin(self) -> None:
        with self._lock:
            job = self._beginning.popleft()
            if self._beginning: self.workers.run(self._begin)
        self.handle(job)
    def notified(self, request: Request, job: Job) -> None:  # behind those before it; input until then
        self.hold(request.size)
        def deliver() -> None:
            self.hold(-request.size)
            job()
        self._notifications.post(deliver)
    def blocking(self) -> Any:  # inside, this thread waits for the peer; a turn whose callback does so is told
        turn = getattr(self.here, "turn", None)
        return nullcontext() if turn is None else turn.blocked()
    def crowded(self) -> bool: return self._queued > self._max_queued // 2  # half of the input that may be untaken is
    def hold(self, size: int) -> None:  # count input that nobody has taken (below 0: was taken); too much is the end
        with self._counting:
            self._queued += size
            if size <= 0 or self._queued <= self._max_queued: return
        self.deaf = True
        self.broken(f"more than max_queued_bytes ({self._max_queued}) of input was not taken")
    # ---- the end ----------------------------------------------------------------------------------------------------
    @property
    def closed(self) -> bool:
        """Whether calls are no longer possible."""
        return self._error is not None
    def wait_closed(self, timeout: Optional[float] = None) -> bool:
        """Wait until the connection is over in both directions, at most `timeout` seconds. Whether it is."""
        deadline = _deadline(timeout)
        while not self._over.is_set() and _wait(self._over.wait, deadline): pass
        return self._over.is_set()
    def close(self, reason: str = "the connection was closed", flush: float = 2.0) -> None:
        """Send what is queued (at most `flush` seconds), then end. From any thread, more than once."""
        self.fail_calls(ConnectionClosed(reason), sending=True)
        outbox, deadline = self._outbox, _deadline(flush)
        with outbox.lock:
            while outbox.size and _wait(outbox.changed.wait, deadline): pass
        self.let_go()  # the finalizer itself: its registry holds the outbox, and by its error the frames that saw it
        self._over.set()
    def fail_calls(self, error: ConnectionClosed, sending: bool = False) -> None:  # answers still go out if `sending`
        with self._lock:
            error = self._error = self._error or error
            waiting, self._pending = self._pending, {}
            self._given_up.extend(waiting)
        self.wake() if sending else self._outbox.close(error)
        for pending in waiting.values():
            made = ConnectionClosed(f"{pending}: {error.args[0]}")
            made.__dict__.update(error.__dict__)
            pending.finish(None, made)
    def wait_served(self, deadline: float) -> None:  # until all is answered
        while self.serving and time.monotonic() < deadline: time.sleep(0.01)
    def refuse_served(self) -> None:  # the handlers that run on are given up
        with self._lock: left = list(self.serving.values())
        for request in left:
            request.refuse(RequestError(-32603, f"{request.method}: given up, the connection ended"))
    def broken(self, reason: str) -> None:  # nothing can go on; from any thread, under any lock; does not wait
        error = ConnectionClosed(reason)  # the handler learns it in a worker: it takes locks, and may wait
        if self._outbox.close(error): self.workers.run(lambda: self._handler.ended(error))
    # ---- input, all of it in the reader thread but for what waited in a lane -----------------------------------------
    def _line(self, line: Union[bytes, bytearray], size: int) -> None:  # whole; of one over the limit only its ends
        if size > self._max_message: return self._too_long(line, size)
        line = line.strip(b" \t\r").removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r")
        if not line or (self.shortcut is not None and self.shortcut(line)): return
        try:
            message, end = DECODER.raw_decode(text := line.decode("utf-8"))
            if end < len(text): raise ValueError("extra data")
        except UnicodeDecodeError: return self._refuse(f"{len(line)} bytes that are not UTF-8", code=-32700)
        except (ValueError, RecursionError): return self._refuse(f"{len(line)} bytes that are not JSON", code=-32700)
        if type(message) is not dict: return self._refuse(f"expected an object, got {_describe(message)}")
        if self._on_message is not None: _quietly("on_message", self._on_message, "in", message)
        self.line = line
        self._message(message, len(line))
        self.line = b""
    def feed(self, data: bytes) -> None:  # lines end at 0x0A only; of one over the limit the ends are kept
        for index, piece in enumerate(data.split(b"\n") if not self.deaf else ()):
            if index:  # before this piece a line has ended
                _quietly("the reader", self._line, self._partial, self._partial_size)
                self._partial, self._partial_size = piece, 0
            elif isinstance(self._partial, bytearray): self._partial += piece
            else: self._partial = bytearray(self._partial + piece)  # a line in many pieces grows in place
            self._partial_size, part = self._partial_size + len(piece), self._partial
            if self._partial_size > self._max_message: self._partial = part[:1024] + part[1024:][-1024:]
    def _too_long(self, ends: Union[bytes, bytearray], size: int) -> None:  # costs itself, and a call that it answers
        self._refuse(f"a line of {size} bytes is over the limit of {self._max_message}", code=-32700)
        found = re.match(_HEAD_ID, ends) or (None if b'"method"' in ends[:1024] else re.search(_TAIL_ID, ends[-1024:]))
        with self._lock: pending = self._pending.pop(int(found.group(1)), None) if found else None
        if pending is not None:
            pending.finish(None, InvalidResponse(f"{pending}: the answer of {size} bytes is over max_message_bytes"))
    def _refuse(self, text: str, id: Any = None, code: int = -32600) -> None:
        """An answer to what is no request. Not the client's: agents print junk on stdout, and nothing goes back."""
        log.warning("a line of the %s was ignored: %s", self.peer, text)
        message = {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": text}}
        with suppress(ConnectionClosed):
            if self._answers_bad_lines: self.append(to_line(message), message)
    def _message(self, message: Json, size: int) -> None:
        id, method, params = message.get("id", UNSET), message.get("method"), message.get("params")
        usable = type(id) in (str, int) or (id is None and self.null_ids)
        named = id if usable else None  # in the answer to what is no request
        if "method" not in message:
            if "result" in message or "error" in message: return self._response(message)
            return self._refuse("neither a request nor a response", named)
        if not usable and id is not UNSET:
            return self._refuse(f"expected a string or an integer as id, got {_describe(id)}")
        if message.get("jsonrpc") != "2.0": return self._refuse('expected "jsonrpc": "2.0"', named)
        if type(method) is not str: return self._refuse(f"expected a string as method, got {_describe(method)}", named)
        request = Request(self, id, method, {} if params is None else params, size)
        log.debug("in %s id %r, %d bytes", method, named, size)
        if usable:
            with self._lock: self.serving[request.key] = request
        if type(request.params) is not dict:
            request.refuse(InvalidParams(f"{method}: params: expected an object, got {_describe(params)}"))
        elif method == "$/cancel_request":
            given = request.params.get("requestId")
            with self._lock: found = None if isinstance(given, (dict, list)) else self.serving.get((type(given), given))
            if found is not None and found is not request: found.cancel()
            request.refuse(RequestError(-32600, f"{method} is a notification"))  # no answer where it came as one
        else: self._sort(request)
    def _sort(self, request: Request) -> None:
        """Hand a request to the handler, or let it wait behind the one whose answer it has to wait for."""
        with self._sorting:
            if request.is_notification and not self._lanes: return self._receive(request)
            key, barrier = self._handler.lane(request) if None not in self._lanes else (None, False)
            if key in self._lanes:
                self._handler.overtake(request)
                self._lanes[key].append(request)
                return self.hold(request.size)
            if barrier and not request.is_notification: self._lanes[key], request.barrier = collections.deque(), key
            self._receive(request)
    def _receive(self, request: Request) -> None:
        try: self._handler.receive(request)
        except BaseException as error:
            if not isinstance(error, RequestError): log.error("%s failed", request.method, exc_info=True)
            request.refuse(error)
            self.answered(request)
    def answered(self, request: Request) -> None:  # the lane behind a request whose answer is out goes on
        if request.barrier is UNSET: return
        with self._sorting:
            key, request.barrier = request.barrier, UNSET
            waiting = self._lanes.pop(key)
            while waiting and key not in self._lanes:  # till one of them is such a barrier again
                self.hold(-(behind := waiting.popleft()).size)
                if behind.cancelled or behind.answered or self._over.is_set(): behind.refuse(RequestCancelled())
                else: self._sort(behind)
            if waiting: self._lanes[key] = waiting
    def _response(self, message: Json) -> None:
        id, result, error = message.get("id"), message.get("result"), message.get("error")
        with self._lock: pending = self._pending.pop(id, None) if type(id) is int else None
        if pending is None:
            if id not in self._given_up: log.warning("ignored an answer to no call: id %s", _describe(id))
            return
        log.debug("answer to %s", pending)
        if error is None and "result" in message: return pending.finish(result, None)
        if result is None and type(error) is dict and type(error.get("code")) is int:
            text = error.get("message")
            refused = RequestError.of(error["code"], text if isinstance(text, str) else "", error.get("data"))
            refused.method, refused.id = pending.method, pending.id
            return pending.finish(None, refused)
        what = "both a result and an error" if result is not None else "an error that is no error object"
        log.warning("%s", wrong := InvalidResponse(f"{pending}: the answer has {what}"))
        pending.finish(None, wrong)
_HEAD_ID = (rb'\s*\{(?:\s*"jsonrpc"\s*:\s*"2\.0"\s*,)?\s*"id"\s*:\s*(\d+)\s*,'
            rb'(?:\s*"jsonrpc"\s*:\s*"2\.0"\s*,)?\s*"(?:result|error)"')
_TAIL_ID = rb',\s*"id"\s*:\s*(\d+)\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$'
def _let_go(outbox: _Outbox, workers: _Workers, streams: Tuple[Any, Any]) -> None:
    """End the threads of a connection that is closed or that nobody holds any more."""
    outbox.close(ConnectionClosed("the connection is closed"))
    workers.close()
    for stream in streams:
        with suppress(AttributeError, OSError): stream.shutdown(2)  # where it is a socket
def close_behind(stream: Any, *threads: threading.Thread) -> None:
    """Close a stream once its threads have ended: before, they could go on with whatever gets its descriptor."""
    for thread in threads:
        if thread is not threading.current_thread(): thread.join(0.5)
        if thread.is_alive(): return
    with suppress(OSError): stream.close()

class _Simple:  # the handler of a Connection used on its own: a function of method and params
    def __init__(self, owner: Callable[[], Any], function: Optional[Callable[[str, Json], Any]]) -> None:
        self.owner, self.function = owner, function
    def lane(self, request: Request) -> Tuple[Any, bool]: return "", False
    def receive(self, request: Request) -> None:
        connection, function = request.connection, self.function
        if function is None: raise _no_such(request)
        def job() -> Any: return function(request.method, request.params)
        if request.is_notification: connection.notified(request, lambda: connection.handle(job))
        else: connection.workers.run(lambda: connection.handle(lambda: request.run(job)))  # side by side
    def ended(self, error: ConnectionClosed) -> None:
        connection = self.owner()  # which has called this
        connection.fail_calls(error)
        connection.workers.run(connection.close)
# ---- processes ------------------------------------------------------------------------------------------------------
TERMINAL_BYTES = 4 << 20  # of a command's output that are kept where nobody says how many
GRACE_LEAVING, GRACE_TERMINATED, GRACE_KILLED = 2.0, 1.0, 5.0  # seconds to end by: end of stdin, SIGTERM, SIGKILL

class Process:
    """A command in a process group of its own, so that it can be ended with all that it has started."""
    def __init__(self, what: str, command: Sequence[str], env: Optional[Dict[str, str]], cwd: Optional[str],
                 **pipes: Any) -> None:
        import shutil
        import subprocess
        full = {**os.environ, **(env or {})}
        program = shutil.which(command[0], path=full.get("PATH")) or (os.path.dirname(command[0]) and command[0])
        if not program: raise Error(f"cannot start {what}: no such command (and no shell): {command[0]}")
        if cwd is not None and not os.path.isdir(cwd): raise Error(f"cannot start {what}: no such folder: {cwd}")
        flags = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0) | getattr(subprocess, "CREATE_NO_WINDOW", 0)
        try:
            self.popen = subprocess.Popen([program, *command[1:]], cwd=cwd, env=full, bufsize=0, creationflags=flags,
                                          start_new_session=os.name != "nt", **pipes)
        except (OSError, ValueError) as error:  # ValueError: a null byte
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise Error(f"cannot start {what}: {program}: {reason}") from None
        self.exited, self._gone = threading.Event(), False  # set by the thread that waits for it; so is its group
    def kill(self, *others: Process) -> None:
        """End it and its group, and others with theirs, gently first. Returns when done, after some seconds at most."""
        for number, grace in (15, GRACE_TERMINATED), (9, GRACE_KILLED):  # SIGTERM, SIGKILL
            for each in (every := (self, *others)): each.signal(number)
            deadline = time.monotonic() + grace
            for each in every: each.exited.wait(max(0.0, deadline - time.monotonic()))
            deadline = time.monotonic() + (0.3 if number == 15 else 0)  # for members that outlive their leader
            while any(each.signal(0) for each in every) and time.monotonic() < deadline: time.sleep(0.01)
    def signal(self, number: int) -> bool:
        """Send a signal to the whole group; 0 only asks. Whether it is there. Does not wait (but on Windows)."""
        if os.name == "nt":
            import subprocess
            if number and not self.exited.is_set():
                subprocess.run(["taskkill", "/F", "/T", "/PID", str(self.popen.pid)], stdin=subprocess.DEVNULL,
                               capture_output=True, creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0))
            return False
        if self._gone: return False  # its number may be another's by now
        try: os.killpg(self.popen.pid, number)
        except OSError: self._gone = self.exited.is_set()
        return not self._gone

class CommandProcess(Process):
    """A command whose output is kept, stdout and stderr as they come, the last bytes of it. It gets no input. `show` is
    told of it in terminal updates: in `begin`, then in one thread of each piece, and of the end in another."""
    def __init__(self, params: CreateTerminalRequest, show: Callable[[Any], Any], **more: Any) -> None:
        import shlex
        import subprocess
        command, env = [params.command, *(params.args or ())], {each.name: each.value for each in params.env or ()}
        super().__init__("the command", command, env, params.cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT)
        self.id, self._show = new_id("terminal"), show
        self._limit = TERMINAL_BYTES if params.output_byte_limit is None else params.output_byte_limit
        self._lock = threading.Lock()  # guards the two below, which only the reading thread changes
        self._kept, self._truncated = bytearray(), False
        self._steps, self._killed = 0, False  # steps of the reading thread: odd while it tells of a piece
        self.status: Optional[TerminalExitStatus] = None
        self.ended = threading.Event()  # there is a status, and `show` was told
        self._first = TerminalUpdate(self.id, shlex.join(command), params.cwd or UNSET, **more)
    def begin(self) -> None:
        """Show it and read what it prints. Called once, when all who may be asked about it know it."""
        _quietly("a terminal", self._show, self._first)
        _spawn("terminal end", self._watch, _spawn("terminal", self._read))
    def _read(self) -> None:
        stream, shown = cast(Any, self.popen.stdout), 0  # shown: bytes since `show` was told all that is kept
        with suppress(OSError), stream:
            while data := stream.read(65536):
                self._steps += 1
                with self._lock:
                    self._kept += data
                    over = len(self._kept) - self._limit
                    if over > 0: del self._kept[:over]
                    self._truncated = self._truncated or over > 0
                shown += len(data)
                update: Any = TerminalOutputChunk(self.id, in_base64(data))
                if shown > 2 * self._limit:  # or whoever merges what is shown would keep all of it
                    shown, output = len(self._kept), TerminalOutput(in_base64(self._kept))
                    update = TerminalUpdate(self.id, output=output)
                _quietly("a terminal", self._show, update)
                self._steps += 1
    def _watch(self, reading: threading.Thread) -> None:
        code = self.popen.wait()
        self.exited.set(); self.signal(0)  # if its group is gone, too, its number is not ours any more
        free = 0  # times in a row that the reading thread was not in `show`: what was printed is told before the end
        while free < 2 and reading.is_alive():
            reading.join(0.02 if free else 0.5)  # a child of the command may hold the pipe for longer, and print
            free = 0 if self._steps % 2 and not self._killed else free + 1
        names = {int(each): each.name for each in signal.Signals}
        self.status = TerminalExitStatus(code) if code >= 0 else TerminalExitStatus(
            signal=names.get(-code, f"signal {-code}"))
        _quietly("a terminal", self._show, TerminalUpdate(self.id, exit_status=self.status, capabilities=None))
        self.ended.set()
    def kill(self, *others: Process) -> None:
        self._killed = True  # then its end waits for nobody
        super().kill(*others)
        self.ended.wait(1.0)
    def output(self) -> TerminalOutputResponse:
        """What is kept as text, of whole characters, bad bytes as U+FFFD; with the exit status once there is one."""
        status = self.status
        with self._lock: data, truncated = bytes(self._kept), self._truncated
        if truncated: data = data[:3].lstrip(bytes(range(0x80, 0xC0))) + data[3:]  # the rest of a cut character
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(data, status is not None)
        over = len(shown := text.encode()) - self._limit  # U+FFFD takes more bytes than what it stands for
        if over > 0: text, truncated = shown[over:].decode("utf-8", "ignore"), True
        return TerminalOutputResponse(text, truncated, status)

# == 8. Agent =========================================================================================================
# Subclass Agent, override prompt, call run. An _AgentSide is one connection of an agent: it decodes requests in the
# reader thread, or where a lane goes on, registers turns there, and runs hooks in workers. An AgentSession is a session
# of it, a Turn one turn. Handlers never learn the version: what they mean is put on the wire by the session.
GRACE_CANCELLED = 5.0  # seconds until a handler that does not end after a cancel is given up
GRACE_FINISHING, GRACE_CANCELLING = 0.3, 1.0  # at the end of input: until turns are cancelled, until they are given up
_PAGE = 100  # sessions in one answer of session/list
def is_absolute(path: str) -> bool:  # by the rules of this machine or of Windows
    return os.path.isabs(path) or bool(re.match(r"[A-Za-z]:[\\/]|\\\\", path))
def _absolute(path: str) -> str:
    if not is_absolute(path): raise ValueError(f"expected an absolute path, got {path!r}")
    return path
def understood(request: Request, table: Dict[str, Tuple[str, Method]], side: str, version: int) -> Any:
    """The canonical name and the typed params of a message for `side`; None: it is not in the table; (None, None): to
    be ignored. Raises what a request is refused with."""
    if (known := table.get(request.method)) is None or known[1].side != side: return None
    (name, method), notification = known, request.is_notification
    if notification and method.result is not None: return None, None
    if method.result is None and not notification: raise RequestError(-32600, f"{request.method} is a notification")
    try: return name, from_wire(method.params, request.params, version)
    except MalformedMessage as fault:
        if not notification: raise InvalidParams(str(fault.within("params"))) from None
        log.warning("ignored %s: %s", request.method, fault.within("params"))
        return None, None

class Agent:
    """An agent: override what it can do; what is overridden is what is advertised. Only `prompt` is needed.

    Hooks run in worker threads, side by side where sessions differ; a session's turns one after the other. A hook may
    make any blocking call. What it raises answers the request: a RequestError as it is, anything else as -32603 without
    details. A subclass need not call `super().__init__()`; one instance may serve several connections at once. A `peer`
    is the client: `info`, `capabilities`, `version`, `request(method, params, timeout)`, `notify(method, params)`.

    `name`, `title` and `version` are shown to people. `prompt_capabilities = acp.PromptCapabilities(image=True)` lets
    prompts have images, `mcp_capabilities` lets sessions name more kinds of MCP servers, and `additional_directories`
    more folders than cwd. `history = False` keeps nothing of the conversation in `session.state`, to save memory."""
    name = "agent"; version = "0"; title: Optional[str] = None
    versions: Tuple[int, ...] = (1,)  # version 2 is a draft: (1, 2) opts in
    prompt_capabilities: Optional[PromptCapabilities] = None; mcp_capabilities: Optional[McpCapabilities] = None
    additional_directories = False
    capabilities_meta: Meta = None  # custom capabilities, as _meta of the capabilities
    auth_methods: Sequence[AuthMethod] = ()
    history = True  # keep each live session's merged state, for replay; off: only what stands beside the conversation
    max_message_bytes, max_queued_bytes = MAX_MESSAGE, MAX_QUEUED  # longer lines are skipped; more kept ends it
    def initialize(self, peer: Connection) -> None:
        """The client has introduced itself; the answer goes out when this returns (Initialization)."""
    def login(self, method_id: str) -> None:
        """Log in by one of `auth_methods` (Authentication)."""
    def logout(self) -> None:
        """Log out. Version 1 offers it when overridden (Authentication)."""
    def new_session(self, session: AgentSession) -> None:
        """A session was made: attach anything, set `session.id`, `.config_options`, `.commands` (Session Setup)."""
    def resume_session(self, session: AgentSession, replay: bool) -> Union[SessionState, Iterable[Any], None]:
        """Take up a session, also one that is not live. Returns None, a SessionState or updates to replay; raises
        NotFound. Also called for a live one (`session.id in self.sessions`): then None is right. What it assigns to
        the session wins over what it returns. When overridden, version 1 offers load and resume (Session Setup)."""
    def list_sessions(self, cwd: Optional[str]) -> Iterable[SessionInfo]:
        """Sessions of a folder, or all (None). Any iterable; it is paged. By default the live ones (Session List)."""
        return [SessionInfo(each.id, each.cwd, each.additional_directories or None, each.title, each.state.updated_at)
                for side in self._sides(here=True) for each in list(side.sessions.values()) if cwd in (None, each.cwd)]
    def close_session(self, session: AgentSession) -> None:
        """A session was closed; its turns have ended (Session Setup)."""
    def delete_session(self, session_id: str) -> None:
        """Forget a session. Offered when overridden (Session Delete)."""
    def set_config_option(self, session: AgentSession, config_id: str, value: Union[str, bool]) -> None:
        """An option is set; id and value are checked. Raise to refuse. `session.config_options` has the new value when
        this returns, or is what this assigns. Also answers version 1's session/set_mode (Session Config Options)."""
    def accept(self, turn: Turn) -> None:
        """A prompt's turn has come: raise to refuse it, or set `turn.message_id`. Then it is inserted (on version 2
        that is its answer), and `prompt` runs. Few agents need it (Prompt Lifecycle)."""
    def prompt(self, turn: Turn) -> Union[str, IdleStateUpdate, None]:
        """One turn. Returns None (end_turn), a stop reason (max_tokens, max_turn_requests, refusal) or a whole
        IdleStateUpdate, not what is said: that goes to `turn.say` (Prompt Lifecycle)."""
        raise NotImplementedError("an agent needs a prompt method")
    def cancel(self, session: AgentSession) -> None:
        """The client sent session/cancel; a turn that runs knows by itself (Prompt Lifecycle)."""
    def cancel_tool_call(self, session: AgentSession, tool_call_id: str) -> None:
        """Version 2: end a tool call that was declared cancellable (Tool Calls)."""
    def cancel_terminal(self, session: AgentSession, terminal_id: str) -> None:
        """Version 2: end a display terminal that was declared cancellable (Terminals)."""
    def extension(self, peer: Connection, method: str, params: Json) -> Any:
        """A request that is not in the protocol; returns its result (Extensibility)."""
    def extension_notification(self, peer: Connection, method: str, params: Json) -> None:
        """A notification that is not in the protocol (Extensibility)."""
    # ---- use --------------------------------------------------------------------------------------------------------
    @property
    def sessions(self) -> Dict[str, AgentSession]:
        """The live sessions of all connections by id, as a copy."""
        return {key: session for side in self._sides() for key, session in list(side.sessions.items())}
    def create_session(self, cwd: str, id: Optional[str] = None) -> AgentSession:
        """A new live session made by the agent itself, on the connection whose hook runs in this thread, or the only
        one. Tell the client of it by an extension, or let it find it in the list."""
        sides = [side for side in self._sides(here=True) if side.version]
        if len(sides) != 1: raise Error("create_session: no connection, or several and not inside a hook of one")
        session = AgentSession(sides[0], NewSessionRequest(cwd), id)
        with sides[0].adding(session): session._announce()
        return session
    def run(self, reader: Any = None, writer: Any = None) -> None:
        """Serve one connection until it ends, on stdio or on the given binary streams or socket. Blocks. On stdio it
        takes file descriptors 0 and 1 for the protocol alone: meanwhile a `print` goes to stderr and children read
        nothing; raises Error where one is closed. Needs the main thread only for SIGTERM and SIGINT, which end it in
        order. Given streams are left open, a given socket is shut down."""
        given = nullcontext((reader, reader if writer is None else writer))
        with _stdio() if reader is None else given as streams, _signals_noted() as signals:
            side = _AgentSide(self, *streams)
            try:
                while not signals and not side.connection.wait_closed(0.3): pass
            finally:
                side.ended(ConnectionClosed("the agent was stopped"))
                side.connection.wait_closed(GRACE_FINISHING + GRACE_CANCELLING + 0.5)
        if signals: os.kill(os.getpid(), signals[0])
    def _sides(self, here: bool = False) -> List[_AgentSide]:  # the connections; here: that of this hook, if in one
        refs = self.__dict__.get("_connections", weakref.WeakValueDictionary()).valuerefs()  # a list: others may add
        sides = [side for ref in refs if (side := ref()) is not None]
        return [side for side in sides if here and side.connection.in_handler()] or sides
    def _overrides(self, hook: str) -> bool:
        return hook in self.__dict__ or getattr(type(self), hook) is not getattr(Agent, hook)
@contextmanager
def _signals_noted() -> Iterator[List[int]]:
    """In the main thread, SIGTERM and SIGINT are only noted inside. Afterwards all is as before, but one that came has
    the system's handler, so that it can be sent again and ends the process the conventional way."""
    noted: List[int] = []
    defaults: Dict[int, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    main = threading.current_thread() is threading.main_thread()
    taken = [number for number in defaults if main and signal.getsignal(number) is defaults[number]]  # not the script's
    for number in taken: signal.signal(number, lambda came, frame: noted.append(came))
    try: yield noted
    finally:
        for number in taken: signal.signal(number, signal.SIG_DFL if number in noted else defaults[number])
@contextmanager
def _stdio() -> Iterator[Tuple[int, int]]:  # fd 0 and 1 for the protocol alone; see Agent.run. Puts everything back
    try: os.fstat(0), os.fstat(1)
    except OSError:
        raise Error("cannot serve on stdio: file descriptor 0 or 1 is closed; start the agent with pipes") from None
    stdout, null = sys.stdout, os.open(os.devnull, os.O_RDWR)  # where fd 2 was closed, this is it from now on
    with suppress(AttributeError, OSError, ValueError): cast(Any, stdout).flush()
    private = os.dup(0), os.dup(1); os.dup2(null, 0); os.dup2(2, 1)
    if null != 2: os.close(null)
    sys.stdout = sys.stderr
    if os.name == "nt":
        import msvcrt
        for number in private: msvcrt.setmode(number, os.O_BINARY)  # type: ignore[attr-defined,unused-ignore]
    try: yield private
    finally:
        if sys.stdout is sys.stderr: sys.stdout = stdout
        with suppress(AttributeError, OSError, ValueError): cast(Any, stdout).flush()  # not to the wire
        for number, copy in enumerate(private): os.dup2(copy, number); os.close(copy)
def _check_path(place: str, path: str) -> None:
    if not is_absolute(path): raise InvalidParams(f"params.{place}: expected an absolute path")
def prompt_kinds(takes: PromptCapabilities) -> Json:  # what a prompt may hold, by the type of the block
    return {"text": True, "resource_link": True, "image": takes.image, "audio": takes.audio,
            "resource": takes.embedded_context}
def _check_kinds(place: str, what: str, values: Iterable[Any], offered: Json) -> None:
    for index, value in enumerate(values):
        kind = value.tag if isinstance(value, Unknown) else value.type
        if not offered.get(kind):
            raise InvalidParams(f"params.{place}[{index}]: the agent does not take {what} {kind}", {"type": kind})
def _text_alone(update: Any) -> Optional[str]:  # the text of a chunk that says nothing else
    if not isinstance(update, ContentChunk) or type(block := update.content) is not TextContent: return None
    more = (block.annotations, block.meta, block.unknown_fields, update.meta, update.unknown_fields, update.beside)
    return block.text if more == (None,) * 6 and type(block.text) is type(update.message_id) is str else None

class _AgentSide:
    """One connection of an agent: the handler of its Connection."""
    def __init__(self, agent: Agent, reader: Any, writer: Any) -> None:
        self.agent, self.version = agent, 0  # 0: not initialized
        self.ending = self._begun = False  # begun: a request other than initialize has come
        self._lock = threading.Lock()  # guards sessions, _listings and ending; no lock is taken, no hook runs inside it
        self.sessions: Dict[str, AgentSession] = {}
        self._listings: Dict[str, Any] = {}  # by the id in their cursors: a lock for iterating, what is left, what came
        self.connection = Connection(reader, writer, self, peer="client", max_message_bytes=agent.max_message_bytes,
                                     max_queued_bytes=agent.max_queued_bytes)
        agent.__dict__.setdefault("_connections", weakref.WeakValueDictionary())[id(self)] = self
        self.connection.start()
    # ---- in the reader thread ---------------------------------------------------------------------------------------
    def lane(self, request: Request) -> Tuple[Any, bool]:  # initialize holds up all, some methods their session
        if request.method == "initialize": return None, True
        session_id = request.params.get("sessionId")
        barrier = request.method in ("session/resume", "session/load", "session/close", "session/delete")
        return (session_id, barrier) if isinstance(session_id, str) else ("", False)
    def overtake(self, request: Request) -> None:
        """A cancel that has to wait its turn reaches what runs at once, too."""
        if request.method == "session/cancel" and (session := self.sessions.get(str(request.params.get("sessionId")))):
            session._cancel_work()
    def receive(self, request: Request) -> None:  # decode and hand on; raises what a request is refused with
        if request.method == "initialize":
            if self._begun: raise RequestError(-32600, "initialize: only before any other request")
            return None if request.is_notification else self._serve(request, lambda: self._initialize(request.params))
        if not self.version: raise RequestError(-32600, f"{request.method}: initialize comes first")
        self._begun = self._begun or not request.is_notification
        known = understood(request, method_table(self.version), "agent", self.version)
        if known is None:
            name = "extension_notification" if request.is_notification else "extension"
            if not self.agent._overrides(name): raise _no_such(request)
            def hook() -> Any: return getattr(self.agent, name)(self.connection, request.method, request.params)
            if not request.is_notification: return self._serve(request, hook)
            return self.connection.notified(request, lambda: self.connection.handle(hook))
        name, params = known
        if name == "session/cancel":
            if session := self.sessions.get(params.session_id):
                session._cancel_work()
                self.connection.run_handler(functools.partial(self.agent.cancel, session))
        elif name == "session/prompt":
            session, takes = self.session(params.session_id), self.agent.prompt_capabilities or PromptCapabilities()
            if not params.prompt: raise InvalidParams("params.prompt: expected at least one item")
            _check_kinds("prompt", "content of type", params.prompt, prompt_kinds(takes))
            session._enqueue(Turn(session, params, request))
        elif name is not None:
            handler = getattr(self, "_" + name.replace("/", "_"))
            self._serve(request, lambda: handler(params, request))
    def _serve(self, request: Request, job: Job) -> None: self.connection.run_handler(lambda: request.run(job))
    def session(self, session_id: str) -> AgentSession:  # the live session, or NotFound
        if session := self.sessions.get(session_id): return session
        raise NotFound("no such session", {"sessionId": session_id})
    def ended(self, error: ConnectionClosed) -> None:  # answer what was accepted, then close; does not wait
        with self._lock: again, self.ending = self.ending, True
        if again: return
        self.connection.deaf = True  # or a prompt that comes behind a signal would begin after all else was given up
        self.connection.fail_calls(error, sending=True)
        self.connection.workers.run(self._finish)
    def _finish(self) -> None:
        try:
            for grace in (GRACE_FINISHING, GRACE_CANCELLING):
                deadline = time.monotonic() + grace
                for session in list(self.sessions.values()): session._wait_idle(deadline)
                self.connection.wait_served(deadline)
                for session in list(self.sessions.values()): session._cancel_work()
            for session in list(self.sessions.values()): session._give_up()
            self.connection.refuse_served()
        finally:
            self.agent.__dict__["_connections"].pop(id(self), None)
            self.connection.close("the connection ended", flush=0.4)
    # ---- handlers, in workers: receive finds them by the method's name (_session_new) --------------------------------
    def _initialize(self, params: Json) -> Any:
        agent, connection = self.agent, self.connection
        try:
            read = {key: params[key] for key in params if key == "protocolVersion"}
            asked = from_wire(InitializeRequest, read, 1).protocol_version
            version = max((one for one in agent.versions if one <= asked), default=int(tuple(agent.versions) == (1,)))
            if not version: raise UnsupportedVersion(data={"requested": asked, "supported": sorted(agent.versions)})
            if version < self.version: raise RequestError(-32600, "initialize: not back from version 2")
            for names in ("capabilities", "clientCapabilities"), ("info", "clientInfo"):
                own = names[2 - version]
                for each in (*names, own):  # under the version's own name, else under the other's
                    if each in params: read[own] = params[each]
            try:
                hello = from_wire(InitializeRequest, read, version)
                if hello.info is None and asked == version == 2: raise _missing("info")
            except MalformedMessage:
                if asked == version: raise
                read.pop(("clientInfo", "info")[version - 1], None)  # of a version that is not spoken here
                hello = from_wire(InitializeRequest, read, version)
        except MalformedMessage as fault: raise InvalidParams(str(fault.within("params"))) from None
        connection.info = hello.info or Implementation("unknown", "unknown")
        connection.capabilities, connection.version = hello.capabilities or ClientCapabilities(), version
        agent.initialize(connection)
        self.version, connection.null_ids = version, version == 1
        resumes = agent._overrides("resume_session") or None
        session = SessionCapabilities(
            agent.prompt_capabilities, agent.mcp_capabilities, delete=agent._overrides("delete_session"),
            additional_directories=agent.additional_directories, list=True, close=True, resume=resumes, load=resumes)
        auth = AgentAuthCapabilities(logout=True) if version == 1 and agent._overrides("logout") else None
        return to_wire(InitializeResponse(
            version, Implementation(agent.name, agent.version, agent.title),
            AgentCapabilities(session, auth, meta=agent.capabilities_meta), self._auth_methods()), version)
    def _auth_methods(self) -> List[Any]:  # those in a terminal only for clients that have one
        terminal = getattr(self.connection.capabilities.auth, "terminal", None)
        return [each for each in self.agent.auth_methods if terminal or not isinstance(each, AuthMethodTerminal)]
    def _auth_login(self, params: LoginAuthRequest, request: Request) -> None:
        methods = {getattr(method, "method_id", None): method for method in self._auth_methods()}
        if self.version == 2 and not methods: raise _no_such(request)
        if isinstance(methods.get(params.method_id), (AuthMethodTerminal, type(None))):
            raise InvalidParams("params.methodId: not a login that the agent carries out")
        self.agent.login(params.method_id)
    def _auth_logout(self, params: LogoutAuthRequest, request: Request) -> None:
        if not (self._auth_methods() if self.version == 2 else self.agent._overrides("logout")): raise _no_such(request)
        self.agent.logout()
    def _check_setup(self, params: Any) -> None:  # paths are absolute, MCP servers are such as were offered
        _check_path("cwd", params.cwd)
        for index, path in enumerate(params.additional_directories or ()):
            _check_path(f"additionalDirectories[{index}]", path)
        servers, takes = params.mcp_servers or (), self.agent.mcp_capabilities or McpCapabilities()
        _check_kinds("mcpServers", "transport", servers, {
            "stdio": takes.stdio or self.version == 1, "http": takes.http, "sse": takes.sse and self.version == 1})
        names = [server.name for server in servers]
        for index, name in enumerate(names):
            if name in names[:index]: raise InvalidParams(f"params.mcpServers[{index}]: a name twice", {"name": name})
    def _session_new(self, params: NewSessionRequest, request: Request) -> None:
        self._check_setup(params)
        session = AgentSession(self, params)
        self.agent.new_session(session)
        def answer(setup: Json) -> None: request.answer(to_wire(NewSessionResponse(session.id, **setup), self.version))
        with self.adding(session): session._announce(answer)
    @contextmanager
    def adding(self, session: AgentSession) -> Iterator[None]:  # it is live from here on; not if what is inside fails
        with self._lock:
            if session.id in self.sessions: raise Error("a session with this id is live already")
            self.sessions[session.id] = session
        try: yield
        except BaseException:  # it was refused: nobody has it
            with self._lock: self.sessions.pop(session.id, None)
            raise
    def _session_resume(self, params: ResumeSessionRequest, request: Request) -> None:
        self._check_setup(params)
        if isinstance(params.replay_from, Unknown): raise InvalidParams("params.replayFrom: expected type start")
        overridden, id = self.agent._overrides("resume_session"), params.session_id
        if self.version == 1 and not overridden: raise _no_such(request)
        replay = params.replay_from is not None or request.method == "session/load"
        live = self.sessions.get(id)
        session = (live or AgentSession(self, params, id)) if overridden else self.session(id)
        session._set_up(params)
        try: given = self.agent.resume_session(session, replay)
        except NotFound as error:
            raise NotFound(error.message, error.data or {"sessionId": id}) if is_answer(error) else error from None
        if live and given is None: given = session.state
        updates = given.snapshot() if isinstance(given, SessionState) else list(given or ())
        with nullcontext() if live else self.adding(session):
            session._replay(updates, replay, not live)
            session._announce(lambda setup: request.answer(to_wire(ResumeSessionResponse(**setup), self.version)))
    _session_load = _session_resume
    def _session_list(self, params: ListSessionsRequest, request: Request) -> Any:
        if params.cwd is not None: _check_path("cwd", params.cwd)
        key, _, number = (params.cursor or "").rpartition(".")
        start, fresh = int(number) if number.isdecimal() else 0, params.cursor is None
        new: Any = (threading.Lock(), iter(self.agent.list_sessions(params.cwd) if fresh else ()), [])
        alone, left, seen = listing = new if fresh else self._listings.get(key, new)
        if not (fresh or (0 < start < len(seen) and start % _PAGE == 0)):
            raise InvalidParams("params.cursor: not one that this agent gave out")
        end = start + _PAGE
        with alone: seen += itertools.islice(left, max(0, end + 1 - len(seen)))  # the agent's own code runs here
        if fresh and len(seen) > end:
            key = new_id("page")
            with self._lock:
                self._listings[key] = listing
                while len(self._listings) > 64: del self._listings[next(iter(self._listings))]
        return to_wire(ListSessionsResponse(seen[start:end], f"{key}.{end}" if len(seen) > end else None), self.version)
    def _session_close(self, params: CloseSessionRequest, request: Request) -> None:
        if session := self._end_session(params.session_id): self.agent.close_session(session)
    def _session_delete(self, params: CloseSessionRequest, request: Request) -> None:  # it is DeleteSessionRequest too
        if not self.agent._overrides("delete_session"): raise _no_such(request)
        self._end_session(params.session_id)
        try: self.agent.delete_session(params.session_id)
        except NotFound as error:
            if not is_answer(error): raise
    def _end_session(self, session_id: str) -> Optional[AgentSession]:
        if session := self.sessions.get(session_id):
            session._cancel_work()
            session._wait_idle(time.monotonic() + GRACE_CANCELLED)
            session._give_up(close=True)
            with self._lock: self.sessions.pop(session_id, None)
        return session
    def _session_set_config_option(self, params: SetSessionConfigOptionRequest, request: Request) -> Any:
        session, id = self.session(params.session_id), params.config_id
        option = next((each for each in session.config_options if getattr(each, "config_id", None) == id), None)
        if option is None: raise InvalidParams("params.configId: no such option")
        if params.type != {"select": "id", "boolean": "boolean"}.get(option.type) or (
                params.type == "id" and params.value not in [value.value for value in option.values()]):
            raise InvalidParams("params.value: not one of the option's values")
        return to_wire(SetSessionConfigOptionResponse(session._set_option(option, params.value)), self.version)
    def _session_set_mode(self, params: SetSessionModeRequest, request: Request) -> None:
        session = self.session(params.session_id)
        mode = next((each for each in session.config_options if getattr(each, "category", None) == "mode"), None)
        if mode is None or params.mode_id not in [value.value for value in mode.values()]:
            raise InvalidParams("params.modeId: no such mode")
        session._set_option(mode, params.mode_id)
    def _tool_call_cancel(self, params: CancelToolCallRequest, request: Request) -> None:
        self.session(params.session_id)._end_part("tool_call_id", params.tool_call_id, self.agent.cancel_tool_call)
    def _terminal_cancel(self, params: CancelTerminalRequest, request: Request) -> None:
        self.session(params.session_id)._end_part("terminal_id", params.terminal_id, self.agent.cancel_terminal)

class AgentSession:
    """A session on the agent's side, safe from any thread. Attach what you like, by names that are free. `id`, `cwd`,
    `meta` (of the request that made it; `params` is all of that), `response_meta` (assign it in the hook: `_meta` of
    the answer), `additional_directories`, `mcp_servers`, `peer` (the client), `state` (SessionState; see history)."""
    if TYPE_CHECKING:  # what is attached
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...
    def __init__(self, side: _AgentSide, params: Any, id: Optional[str] = None) -> None:
        self._side, self.peer, self._history = side, side.connection, side.agent.history
        self.cwd = cast(str, params.cwd)
        self._set_up(params)
        self.state = SessionState()
        self._remembered: Set[str] = set()  # permissions given for good; each use is atomic
        # Guards all below. Taken by the reader; sending inside it only appends. See section 7 for the order of locks.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._turns: Deque[Turn] = collections.deque()  # the running one first, then those held
        self._held: Optional[List[Tuple[Any, bytes]]] = []  # what waits for the answer that names the session, by class
        self.id = new_id("session") if id is None else id
        self._writer = V1Writer(self.peer.capabilities) if self.peer.version == 1 else None
        self._form: Any = None  # of chunks like the last: class, message id, and the line before and behind the text
        self._closed = self._setting = self._assigned = False  # _setting: a hook sets an option, and _assigned all
        self._cancellable: Dict[Tuple[str, str], bool] = {}  # by kind of id and id: whether the client may end it
    def _set_up(self, params: Any) -> None:  # what the request that makes or resumes the session says of it
        self.additional_directories: List[str] = params.additional_directories or []
        self.mcp_servers: List[McpServer] = params.mcp_servers or []
        self.params, self.meta, self.response_meta = params, cast(Meta, params.meta), cast(Meta, None)
    @property
    def id(self) -> str:
        """The session's id. May be assigned in new_session, before the client knows it."""
        return self._id
    @id.setter
    def id(self, value: str) -> None:
        if self._held is None or not isinstance(value, str):
            raise Error("a session's id is a string, set in new_session")
        self._id = value  # and the beginning of all its updates
        self._head = to_line(notification("session/update", {"sessionId": value}))[:-3] + b","
    @property
    def config_options(self) -> List[Any]:
        """A list of the options, SessionConfigSelect or SessionConfigBoolean. Change one by assigning another list,
        which reports them; raises ValueError where they contradict."""
        return self.state.config_options
    @config_options.setter
    def config_options(self, options: Iterable[Any]) -> None:
        options = list(options)
        for each in options:
            values = [value.value for value in each.values()] if isinstance(each, SessionConfigSelect) else None
            if values is not None and (len(set(values)) < len(values) or each.current_value not in values):
                raise ValueError(f"config option {each.config_id}: needs values, each once, the current one among them")
        self._report(ConfigOptionUpdate(options))
    @property
    def commands(self) -> List[Any]:
        """A list of the slash commands, Command objects (names without the slash). Assigning another reports them."""
        return self.state.commands
    @commands.setter
    def commands(self, commands: Iterable[Any]) -> None: self._report(AvailableCommandsUpdate(list(commands)))
    @property
    def title(self) -> Optional[str]:
        """The session's title. Assigning another reports it."""
        return self.state.title
    @title.setter
    def title(self, title: Optional[str]) -> None: self.send(SessionInfoUpdate(title))
    def _report(self, update: Any) -> None:
        with self._lock:
            self._assigned |= (options := isinstance(update, ConfigOptionUpdate))
            if self._held is None and not (options and self._setting): return self._emit(update)
            to_wire(update, self.peer.version)  # raises where it is malformed
            self.state.apply(update)  # the answer to come carries it
    def _announce(self, answer: Callable[[Json], Any] = lambda setup: None) -> None:  # the answer, then what was held
        with self._lock:
            options, modes = self._writer.options(self.config_options) if self._writer else (self.config_options, None)
            answer({"config_options": options or None, "modes": modes, "available_commands": self.commands or None,
                    "meta": self.response_meta})
            held, self._held = self._held or [], None
            self._append(line for _, line in held)
            if self._writer is not None and self.commands and AvailableCommandsUpdate not in dict(held):
                self._emit(AvailableCommandsUpdate(self.commands))
    def _replay(self, updates: List[Any], send: bool, adopt: bool) -> None:  # before the answer; adopt: into the state
        by_hook = {ConfigOptionUpdate: self.config_options, AvailableCommandsUpdate: self.commands}  # goes first
        with self._lock:
            if send and self._writer: self._writer, self._form = V1Writer(self.peer.capabilities), None  # begins anew
        for update in updates:
            if adopt and not by_hook.get(type(update)): self._apply(update)
            if send and not isinstance(update, (StateUpdate, *by_hook)):
                self.peer.wait_for_room()
                with suppress(Unsupported): self._put(update, replayed=True)
        with self._lock:
            self._append(map(self._line, self._writer.flush() if self._writer else ()))
            self._put(self._turns[0].state if self._turns else IdleStateUpdate(), replayed=True)
    # ---- sending ----------------------------------------------------------------------------------------------------
    def send(self, update: SessionUpdate) -> None:
        """Send any update, also outside a turn. Waits only while the client does not read. Raises ConnectionClosed,
        Unsupported, ValueError; Error where the session was closed."""
        self.peer.wait_for_room()
        self._emit(update)
    def _emit(self, update: Any, turn: Optional[Turn] = None) -> None:  # append, or Cancelled if the turn must not
        with self._lock:
            if turn is not None and (turn.ended or (turn.cancelled and not turn._has_begun(update))): turn.check()
            if self._closed: raise Error(f"session {self._id} is closed")
            self._put(update)
            if turn is not None and isinstance(update, StateUpdate): turn.state = update
    def _put(self, update: Any, replayed: bool = False) -> None:  # replayed: before what is held, and known already
        with self._lock:
            chunk = type(update) in _WHOLE_OF  # most are, and say nothing of the session
            if not chunk and isinstance(update, StateUpdate) and update.background is None:
                update = copy_of(update, background=self.state.background)  # once reported it is on every state
            elif not chunk and isinstance(update, CurrentModeUpdate):  # in the words of both versions
                update = ConfigOptionUpdate(with_mode(self.config_options, update.current_mode_id))
            lines = self._lines(update) if (text := _text_alone(update)) is None else [self._token(update, text)]
            if not replayed: self._apply(update)
            kind = None if chunk else _KIND_OF.get(type(update))
            if kind and getattr(update, "capabilities", UNSET) is not UNSET:
                self._cancellable[kind, getattr(update, kind)] = bool(getattr(update.capabilities, "cancel", None))
            if self._held is not None and not replayed: self._held += [(type(update), line) for line in lines]
            else: self._append(lines)
    def _apply(self, update: Any) -> None:  # without history only what stands beside the conversation
        if self._history or isinstance(update, (StateUpdate, *_ASIDE)): self.state.apply(update)
    def _append(self, lines: Iterable[bytes]) -> None:
        for line in lines: self.peer.append(self._head + line)
    def _lines(self, update: Any) -> List[bytes]:  # what goes out; raises before anything is changed
        self._form = None  # version 1's writer may give the message another id now
        wires = [to_wire(update, 2)] if self._writer is None else self._writer.updates(update)
        return [self._line(wire, update.beside) for wire in wires]
    def _token(self, update: Any, text: str) -> bytes:  # a chunk of text: of a message only the first is encoded whole
        if self._form is None or self._form[:2] != (type(update), update.message_id):
            line, = self._lines(copy_of(update, content=TextContent("")))
            self._form = type(update), update.message_id, *line.rsplit(b'""', 1)  # the text is the last value
        return cast(bytes, self._form[2] + to_line(text)[:-1] + self._form[3])
    def _line(self, wire: Json, beside: Optional[Json] = None) -> bytes:  # without its head, which is the same in all
        params = {"update": wire} if not beside else {**_without(beside, "sessionId"), "update": wire}
        return to_line(params)[1:-1] + b"}\n"
    def request(self, method: str, params: Optional[Json] = None, timeout: Optional[float] = None) -> Any:
        """Any request of the client by its name on the wire, with this session's id; see Connection.request."""
        return self.peer.request(method, {"sessionId": self._id, **(params or {})}, timeout)
    def notify(self, method: str, params: Optional[Json] = None) -> None:
        """Any notification by its name on the wire, with this session's id."""
        self.peer.notify(method, {"sessionId": self._id, **(params or {})})
    def _ask(self, method: str, params: Any, turn: Optional[Turn] = None, deadline: Optional[float] = None) -> Any:
        """A typed request of the client, for this library's own calls. A cancel of the turn ends it with Cancelled."""
        version, result = self.peer.version, method_table(self.peer.version)[method][1].result
        wire, asks = to_wire(params, version), [] if turn is None else turn._asks
        self.peer.wait_for_room(None if turn is None else turn._cancelled.is_set, deadline)
        with self._lock:  # so that a cancel comes before, or finds the call
            if turn is not None: turn.check()
            asks.append(pending := self.peer.begin_call(method, wire, waits=False, settle=lambda data: from_wire(
                result, {} if data is None else data, version)))
        try: return pending.wait(deadline)
        finally:
            with self._lock: asks.remove(pending)
    def elicit(self, message: str, schema: Union[ElicitationSchema, Mapping[str, Message]]) -> Elicited:
        """Ask the user to fill in a form, an ElicitationSchema or a dict of its properties. Waits. Raises Unsupported
        where the client has no forms, InvalidResponse for an answer that the form does not allow (Elicitation)."""
        return self._question(message, schema)
    def elicit_url(self, message: str, url: str) -> Elicited:
        """Ask the user to visit a page. Waits for the consent; call `.complete()` when the page has done its work."""
        return self._question(message, url=url)
    def _question(self, message: str, schema: Any = None, url: Optional[str] = None,
                 turn: Optional[Turn] = None) -> Elicited:  # a form or a page, inside a turn or beside all
        form = schema if url is not None or isinstance(schema, ElicitationSchema) else ElicitationSchema(dict(schema))
        params = CreateElicitationRequest(message, "form" if url is None else "url", self._id, requested_schema=form,
                                          url=url, elicitation_id=None if url is None else new_id("elicitation"))
        if not getattr(self.peer.capabilities.elicitation, params.mode, None):
            raise Unsupported(f"the client does not take elicitation by {params.mode}")
        with nullcontext() if turn is None else turn._asking_user():
            answer = self._ask("elicitation/create", params, turn)
        try:
            if form is not None and answer.action == "accept": form.check(answer.content or {})
        except MalformedMessage as fault:
            raise InvalidResponse(f"elicitation/create: the answer: {fault.within('result.content')}") from None
        return Elicited(self, params.elicitation_id, answer)
    # ---- turns, and what else the client asks -----------------------------------------------------------------------
    def turn(self) -> Turn:
        """Foreground work that the agent starts by itself: `with session.turn() as turn`. Entering waits its turn like
        a prompt; prompts meanwhile are held; cancel reaches it. Raises Error inside a prompt of the same session."""
        with self._lock:
            if self._turns and self._turns[0].thread == threading.get_ident():
                raise Error("session.turn() inside a turn of the same session would wait for itself")
        return Turn(self, None, Request(self.peer, UNSET, "session/prompt", {}, 0))  # never answered
    def _enqueue(self, turn: Turn) -> None:  # in the reader, or where `turn()` is entered; the first begins at once
        with self._lock:
            if self._closed: raise NotFound("no such session", {"sessionId": self._id})
            if turn.ended or turn in self._turns: raise Error("a turn is entered once")
            self._turns.append(turn)
            self.peer.hold(turn.request.size)
            if self._turns[0] is turn: self._begin(turn)
        turn.request.on_cancel(lambda: self._cancel_prompt(turn))
    def _begin(self, turn: Turn) -> None:  # under the lock: it is the first
        if turn.params is None or not self._side.agent._overrides("accept"): self._insert(turn)
        else: self.peer.run_handler(lambda: self._accept(turn))
    def _accept(self, turn: Turn) -> None:  # in a worker; a cancel meanwhile drops the turn
        turn.thread = threading.get_ident()  # it cannot wait for itself
        try:
            self._side.agent.accept(turn)
            if not isinstance(turn.message_id, str): raise TypeError("accept: a message_id is a string")
        except BaseException as error:
            if not is_answer(error): log.error("session/prompt was refused", exc_info=True)
            return self._finish(turn, None, error)
        with self._lock:
            if not turn.ended: self._insert(turn)
    def _insert(self, turn: Turn) -> None:  # under the lock: a turn begins
        turn.state, turn.inserted, turn.thread = RunningStateUpdate(), True, 0
        self.peer.hold(-turn.request.size)
        if turn.params is not None:
            echo = UserMessage(turn.message_id, turn.prompt, meta=UNSET if turn.meta is None else turn.meta)
            if self._writer is None:
                turn.request.answer(to_wire(PromptResponse(turn.message_id), 2))
                with suppress(ConnectionClosed, ValueError, RecursionError): self._put(echo)  # it runs all the same
            else: self._apply(echo)
        with suppress(ConnectionClosed): self._put(turn.state)
        if turn.params is not None: self.peer.run_handler(lambda: self._run(turn))
        self._changed.notify_all()
    def _run(self, turn: Turn) -> None:  # in a worker: the handler, and what it comes to
        reason, error, turn.thread = None, None, threading.get_ident()
        try:
            reason = None if turn.cancelled or turn.ended else self._side.agent.prompt(turn)
            if isinstance(reason, IdleStateUpdate): to_line({**(reason.beside or {}), **to_wire(reason, 2)})  # raises
            elif not (reason is None or (isinstance(reason, str) and " " not in reason)):
                raise TypeError("prompt returned no stop reason: one word, or None; what is said goes to turn.say")
        except BaseException as fault:
            reason, error = None, fault
            if not (turn.cancelled or is_answer(fault)): log.error("session/prompt failed", exc_info=True)
        turn.thread = 0
        self._finish(turn, reason, error)
    def _finish(self, turn: Turn, given: Any, error: Optional[BaseException] = None) -> None:  # once; begins the next
        end = given if isinstance(given, IdleStateUpdate) else IdleStateUpdate(stop_reason=given)
        reason = end.stop_reason or "end_turn"
        if error is None and (said := end.error): error = RequestError.of(said.code, said.message, said.data)
        with self._lock:
            if turn.ended or turn not in self._turns: return
            first, turn.ended = self._turns[0] is turn, True
            turn._withdraw()
            status = "cancelled" if turn.cancelled else "failed" if error else "completed"
            # No wait for room here: the reader may want the lock. What is malformed must not hold up the answer.
            with suppress(ConnectionClosed, ValueError):
                for terminal in list(turn.terminals.values()): terminal._drop()
                for tool_call_id in list(turn.tools): self._put(ToolCallUpdate(tool_call_id, status=status))
                self._append(map(self._line, self._writer.flush() if self._writer and turn.inserted else ()))
            turn.tools.clear()
            self._turns.remove(turn)
            if turn.cancelled or (self._side.ending and isinstance(error, ConnectionClosed)):
                reason, error = "cancelled", None
            elif error is None and reason == "error": error = RequestError(-32603, "the turn failed")
            if turn.inserted:
                fault = ErrorObject(**error_object(error, "session/prompt")) if error else None
                with suppress(ConnectionClosed):
                    self._put(copy_of(end, stop_reason="error" if error else reason, error=fault))
            else:
                self.peer.hold(-turn.request.size)
                if not error and (self._writer is None or turn.request.cancelled): error = RequestCancelled()
            if error: turn.request.refuse(error)  # does nothing on version 2, where what was inserted has its answer
            else: turn.request.answer(to_wire(copy_of(
                PromptResponse(), stop_reason=reason, meta=end.meta, unknown_fields=end.unknown_fields), 1))
            if first and self._turns: self._begin(self._turns[0])
            self._changed.notify_all()
    def _cancel_prompt(self, turn: Turn) -> None:  # $/cancel_request; on version 2 a running one has had its answer
        with self._lock:
            if self._writer is not None or not turn.inserted: self._cancel(turn)
    def _cancel_work(self) -> None:  # cancel the running turn, drop the held ones; does not wait
        with self._lock:
            for turn in reversed(list(self._turns)): self._cancel(turn)
    def _cancel(self, turn: Turn) -> None:  # under the lock: tell one that runs, drop one that has not begun
        if turn.cancelled or turn.ended: return
        turn._cancelled.set()
        turn._withdraw()
        self.peer.wake()
        self._changed.notify_all()
        for function in turn._functions: self.peer.run_handler(function)
        if not turn.inserted: self._finish(turn, "cancelled")
        elif turn.params is not None: self.peer.workers.run(lambda: self._watch(turn))  # its own work is the agent's
    def _watch(self, turn: Turn) -> None:  # in a worker: a handler that does not end after a cancel is given up
        if not self._wait_for(lambda: turn.ended, time.monotonic() + GRACE_CANCELLED):
            log.error("session/prompt did not end %.0f s after its cancel and is given up", GRACE_CANCELLED)
            self._finish(turn, "cancelled")
    def _wait_for(self, over: Callable[[], Any], deadline: Optional[float] = None) -> bool:  # whether it came in time
        with self._lock:
            while not over() and _wait(self._changed.wait, deadline): pass
            return bool(over())
    def _wait_idle(self, deadline: float) -> bool: return self._wait_for(lambda: not self._turns, deadline)
    def _give_up(self, close: bool = False) -> None:  # report turns that have not ended; close: send nothing more
        with self._lock:
            for turn in reversed(list(self._turns)): self._finish(turn, "cancelled")
            self._closed = self._closed or close
    def _set_option(self, option: Any, value: Any) -> List[Any]:  # one that was checked; all, as the client takes them
        with self._lock: self._setting, self._assigned = True, False
        try: self._side.agent.set_config_option(self, option.config_id, value)
        finally:
            with self._lock: self._setting = False
        with self._lock:
            id = MISSING if self._assigned else option.config_id
            update = ConfigOptionUpdate(options := [copy_of(each, current_value=value) if getattr(
                each, "config_id", None) == id else each for each in self.config_options])
            if self._writer is None: self.state.apply(update)
            else: self._put(update)  # modes and options in step
            return options if self._writer is None else self._writer.options(options)[0]
    def _end_part(self, kind: str, id: str, hook: Callable[..., Any]) -> None:  # if it was declared cancellable
        with self._lock:
            may_end, place = self._cancellable.get((kind, id)), f"params.{_camel(kind)}"
            if not may_end: raise InvalidParams(f"{place}: unknown or not cancellable")
            for turn in self._turns:
                if kind == "tool_call_id" and (tool := turn.tools.get(id)): tool._ended = True
                if kind == "terminal_id" and (own := turn.terminals.get(id)): self.peer.workers.run(own.kill)
        hook(self, id)

class Turn:
    """One turn of an agent: what a prompt handler speaks through. `prompt` (content blocks), `text` (their text),
    `meta`, `params` (the whole PromptRequest, or None), `session`, `message_id` (of the prompt). What sends waits only
    while the client does not read, what asks waits for the client; both raise Cancelled once the turn is cancelled, and
    ConnectionClosed. For any thread."""
    def __init__(self, session: AgentSession, params: Optional[PromptRequest], request: Request) -> None:
        self.session, self.params, self.request = session, params, request
        self.prompt: List[ContentBlock] = params.prompt if params else []
        self.meta = cast(Meta, params.meta if params else None)
        self.message_id, self.thread = new_id("message"), 0  # thread: that the handler runs in
        self._cancelled = threading.Event()  # set under the lock
        self._lock = session._lock  # guards all below
        self.state: StateUpdate = IdleStateUpdate()  # the last that was sent; idle: not inserted yet
        self.inserted = self.ended = False
        self.tools: Dict[str, Tool] = {}  # begun and not ended
        self.terminals: Dict[str, TurnTerminal] = {}  # made and not released
        self._functions: List[Job] = []  # of on_cancel
        self._asks: List[_Pending] = []  # the calls that wait for the client
        self._saying: Optional[Tuple[Type[Any], str]] = None  # the message that is being said, and its id
    @property
    def text(self) -> str:
        """The text of the prompt."""
        return text_of(self.prompt)
    def __enter__(self) -> Turn:
        try:
            self.session._enqueue(self)
            self.session._wait_for(lambda: self.inserted or self.ended)
        except BaseException:  # Ctrl-C above all: nobody would end it, and prompts would be held for ever
            self.session._finish(self, "cancelled")
            raise
        if self.ended: raise Cancelled("the turn was cancelled before it began")
        self.thread = threading.get_ident()
        return self
    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> bool:
        self.thread, cancelled = 0, isinstance(error, Cancelled) and self.cancelled
        self.session._finish(self, "end_turn", None if cancelled else error)
        return cancelled
    # ---- cancel -----------------------------------------------------------------------------------------------------
    @property
    def cancelled(self) -> bool:
        """Whether the turn was cancelled."""
        return self._cancelled.is_set()
    def check(self) -> None:
        """Raise Cancelled if the turn was cancelled."""
        if self.cancelled: raise Cancelled("the turn was cancelled")
        if self.ended: raise Cancelled("the turn is over")
    def _has_begun(self, update: Any) -> bool:  # of a cancelled turn only the end of what has begun may be told
        return getattr(update, "tool_call_id", None) in self.tools or (
            isinstance(update, TerminalUpdate) and update.terminal_id in self.terminals)
    def wait(self, seconds: float) -> bool:
        """Sleep, at most until the turn is cancelled. Returns whether it was."""
        return self._cancelled.wait(seconds)
    def on_cancel(self, function: Callable[[], Any]) -> None:
        """Run `function` in a worker when the turn is cancelled; at once, here, if it was."""
        with self._lock:
            if not self.cancelled: return self._functions.append(function)
        function()
    def _withdraw(self) -> None:  # end the calls that wait for the client
        with self._lock: asks = list(self._asks)
        for pending in asks: self.session.peer.give_up(pending, Cancelled("the turn was cancelled"))
    @contextmanager
    def _asking_user(self) -> Iterator[None]:  # requires_action, while the turn's own thread waits for the user
        with self._lock: own, self._saying = self.inserted and self.thread == threading.get_ident(), None
        if own: self.session._emit(RequiresActionStateUpdate(), self)
        try: yield
        finally:
            with self._lock, suppress(ConnectionClosed):
                if own and not (self.ended or self.cancelled): self.session._emit(RunningStateUpdate(), self)
    # ---- saying -----------------------------------------------------------------------------------------------------
    def send(self, update: SessionUpdate, waits: bool = True) -> None:
        """Send any update, in words of the client's version. Raises Unsupported for what it does not take."""
        if waits: self.session.peer.wait_for_room(self._cancelled.is_set)
        with self._lock:
            self._saying = None
            self.session._emit(update, self)
    def say(self, content: Union[str, ContentBlock]) -> None:
        """Text, or a content block, of the agent's message. Consecutive calls are chunks of one message."""
        self._chunk(AgentMessageChunk, content)
    def think(self, content: Union[str, ContentBlock]) -> None:
        """The same for its thoughts."""
        self._chunk(AgentThoughtChunk, content)
    def _chunk(self, kind: Any, content: Any) -> None:
        self.session.peer.wait_for_room(self._cancelled.is_set)
        with self._lock:
            if self._saying is None or self._saying[0] is not kind: self._saying = (kind, new_id("message"))
            block = TextContent(content) if isinstance(content, str) else content
            self.session._emit(kind(self._saying[1], block), self)
    def plan(self, entries: Iterable[Union[PlanEntry, str]], plan_id: str = "plan") -> None:
        """The plan, whole: PlanEntry objects or plain strings."""
        self.send(PlanUpdate(PlanItems(plan_id, [PlanEntry(one) if isinstance(one, str) else one for one in entries])))
    def usage(self, used: int, size: int, cost: Patch[Cost] = UNSET) -> None:
        """Tokens used of the context's size, and perhaps a Cost (None: no longer known)."""
        self.send(UsageUpdate(used, size, cost))
    def notice(self, title: str, *, severity: str = "info", description: Optional[str] = None,
               say: bool = False) -> None:
        """A word beside the conversation. A version 1 client that takes none gets nothing, or with `say` a message."""
        writer = self.session._writer
        if writer is None or writer.takes[Notice] or not say: return self.send(Notice(severity, title, description))
        self.send(AgentMessageChunk(new_id("message"), TextContent("\n".join(filter(None, (title, description))))))
    # ---- tools and questions ----------------------------------------------------------------------------------------
    def tool(self, title: str, *, kind: str = "other", name: Optional[str] = None, tool_call_id: Optional[str] = None,
             locations: Iterable[Union[ToolCallLocation, str]] = (), raw_input: Any = UNSET,
             cancellable: bool = False) -> Tool:
        """A tool call, to be used with `with`; see Tool. `kind` is a ToolKind such as "edit"; `locations` are absolute
        paths or ToolCallLocation objects (Tool Calls)."""
        return Tool(self, ToolCallUpdate(
            tool_call_id or new_id("tool"), name=name or UNSET, title=title, kind=kind, status="pending",
            locations=[ToolCallLocation(each) if isinstance(each, str) else each for each in locations] or UNSET,
            raw_input=raw_input, capabilities=ToolCallCapabilities(cancel=True) if cancellable else UNSET))
    def ask_permission(self, title: str, *, options: Optional[Sequence[PermissionOption]] = None, subject: Any = None,
                       description: Optional[str] = None, remember: Optional[str] = None) -> Permission:
        """Ask the user. The result is true only if an offered option that allows was chosen. Default options: allow
        once, reject; with `remember`, a name for what is allowed, also allow always, which holds in this session."""
        always = PermissionOption("allow_always", "Always allow", "allow_always")
        self.check()
        if remember in self.session._remembered: return Permission("selected", always)
        if options is None:
            options = [PermissionOption("allow", "Allow", "allow_once"), *([always] if remember is not None else []),
                       PermissionOption("reject", "Reject", "reject_once")]
        params = RequestPermissionRequest(self.session.id, title, list(options), description, subject)
        try:
            with self._asking_user(): outcome = self.session._ask("session/request_permission", params, self).outcome
        except (RequestError, InvalidResponse) as error:
            log.warning("no permission: %s", error)
            return Permission("error", None)
        if isinstance(outcome, CancelledPermissionOutcome): self.check()
        chosen = next((each for each in options if each.option_id == getattr(outcome, "option_id", None)), None)
        result = Permission(outcome.tag if isinstance(outcome, Unknown) else outcome.outcome, chosen)
        if result and chosen and remember is not None and chosen.kind == "allow_always":
            self.session._remembered.add(remember)
        return result
    def elicit(self, message: str, schema: Union[ElicitationSchema, Mapping[str, Message]]) -> Elicited:
        """Ask the user to fill in a form; see AgentSession.elicit."""
        return self.session._question(message, schema, turn=self)
    def elicit_url(self, message: str, url: str) -> Elicited:
        """Ask the user to visit a page; see AgentSession.elicit_url."""
        return self.session._question(message, url=url, turn=self)
    def terminal(self, command: str, args: Iterable[str] = (), *, cwd: Optional[str] = None,
                 env: Optional[Dict[str, str]] = None, output_byte_limit: Optional[int] = None) -> TurnTerminal:
        """Run a command without a shell: in the client where it offers terminals, else here, as a display terminal or
        (version 1) text of the tool call that shows it. `cwd` is absolute, by default the session's; `env` is added;
        the last `output_byte_limit` bytes are kept. Raises ValueError; Error where it cannot start (Terminals)."""
        return TurnTerminal(self, CreateTerminalRequest(
            self.session.id, command, list(args), [EnvVariable(*each) for each in (env or {}).items()],
            _absolute(cwd or self.session.cwd), output_byte_limit))
    def read_text_file(self, path: str, line: Optional[int] = None, limit: Optional[int] = None) -> str:
        """A text file: as the client has it, unsaved changes included, where it offers files, else from the disk. Lines
        count from 1. Raises ValueError (no absolute path), NotFound, RequestError, OSError, UnicodeDecodeError."""
        _absolute(path)
        if getattr(self.session.peer.capabilities.fs, "read_text_file", False):
            params = ReadTextFileRequest(self.session.id, path, line, limit)
            return cast(str, self.session._ask("fs/read_text_file", params, self).content)
        self.check()
        try: file = open(path, encoding="utf-8", newline="")
        except FileNotFoundError: raise NotFound("no such file", {"path": path}) from None
        with file: return "".join(lines_of(file.read(), line, limit))
    def write_text_file(self, path: str, content: str) -> None:
        """Write a whole text file, as `read_text_file` finds it. Raises ValueError, RequestError, OSError."""
        _absolute(path)
        if getattr(self.session.peer.capabilities.fs, "write_text_file", False):
            params = WriteTextFileRequest(self.session.id, path, content)
            return cast(None, self.session._ask("fs/write_text_file", params, self))
        self.check()
        with open(path, "w", encoding="utf-8", newline="") as file: file.write(content)

class TurnTerminal:
    """A command that runs for a turn (see Turn.terminal), by its `id`. The end of `with` releases it, and so does the
    end of the turn. After a cancel all but `wait` may still be used. Raises RequestError, ConnectionClosed."""
    def __init__(self, turn: Turn, params: CreateTerminalRequest) -> None:
        self.turn, self._session, peer = turn, turn.session, turn.session.peer
        self._process: Optional[CommandProcess] = None  # None: it runs in the client
        self._over = False  # the client knows the end, if it can be told; under the session's lock
        turn.check()
        if peer.capabilities.terminal:  # no cancel ends this call: its answer names what runs
            self.id: str = self._session._ask("terminal/create", params).terminal_id
        else:
            self._process = CommandProcess(params, self._show, capabilities=TerminalCapabilities(True))
            self.id = self._process.id
        with self._session._lock:
            turn.terminals[self.id] = self  # so that the end of the turn releases it, too
            if turn.ended: self._drop()
        if self._process: self._process.begin()
        turn.check()
    def __enter__(self) -> TurnTerminal: return self
    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        with suppress(Error) if error is not None else nullcontext(): self.release()
    def _show(self, update: Any) -> None:  # but for the first in the process's threads
        over = isinstance(update, TerminalUpdate) and isinstance(update.exit_status, TerminalExitStatus)
        with suppress(Error): self._session.peer.wait_for_room(self.turn._cancelled.is_set)
        with self._session._lock:
            with suppress(Error): self._session._emit(update, self.turn)  # not of a cancelled turn, or with no client
            self._over = self._over or over
            self._session._changed.notify_all()
    def _ask(self, method: str, turn: Optional[Turn] = None, deadline: Optional[float] = None) -> Any:
        return self._session._ask(method, CancelTerminalRequest(self._session.id, self.id), turn, deadline)
    def output(self) -> TerminalOutputResponse:
        """What it has printed so far: `output`, whether its beginning is `truncated`, and `exit_status` at the end."""
        return self._process.output() if self._process else cast(TerminalOutputResponse, self._ask("terminal/output"))
    def wait(self, timeout: Optional[float] = None) -> TerminalExitStatus:
        """Wait for its end. Raises Timeout after `timeout` seconds (it goes on), Cancelled."""
        deadline, process, turn = _deadline(timeout), self._process, self.turn
        if process is None: return cast(TerminalExitStatus, self._ask("terminal/wait_for_exit", turn, deadline))
        if not self._session._wait_for(lambda: self._over or turn.cancelled or turn.ended, deadline):
            raise Timeout("the command has not ended in the time given")
        if not self._over: turn.check()
        return cast(TerminalExitStatus, process.status)
    def kill(self) -> None:
        """End the command and all that it has started; its output stays. Blocks for some seconds at most."""
        if self._process: self._process.kill()
        else: self._ask("terminal/kill")
    def release(self) -> None:
        """Be done with it: what still runs is killed. More calls do nothing."""
        if self._process: self._process.kill()
        with self._session._lock:  # one whose end is not told yet stays: the end of the turn tells it
            kept = None if self._process and not self._over else self.turn.terminals.pop(self.id, None)
        if kept and not self._process: self._ask("terminal/release")
    def _drop(self) -> None:  # under the session's lock, at the end of the turn: the same without waiting
        del self.turn.terminals[self.id]
        if self._process: self._process.signal(9)
        with suppress(ConnectionClosed):
            if self._process is None:
                params = to_wire(CancelTerminalRequest(self._session.id, self.id), 1)
                self._session.peer.begin_call("terminal/release", params, waits=False)
            elif not self._over:
                status = self._process.status or TerminalExitStatus(signal="SIGKILL")
                self._session._put(TerminalUpdate(self.id, exit_status=status, capabilities=None))

class Permission:
    """What became of a question: true only if an option that was offered and allows was chosen. `option`, `option_id`
    (None: none of those offered), `outcome`: selected, cancelled, error or a word unknown here."""
    def __init__(self, outcome: str, option: Optional[PermissionOption]) -> None:
        self.outcome, self.option, self.option_id = outcome, option, option.option_id if option else None
    def __bool__(self) -> bool:
        return self.outcome == "selected" and self.option is not None and self.option.kind.startswith("allow_")

class Elicited:
    """What the user answered: true if accepted. `action`, and `content`: the form's values by name."""
    def __init__(self, session: AgentSession, id: Optional[str], answer: CreateElicitationResponse) -> None:
        self._session, self._id = session, id
        self.action, self.content = answer.action, answer.content or {}
    def __bool__(self) -> bool: return self.action == "accept"
    def complete(self) -> None:
        """Tell the client that the page has done its work. Raises Error for a form, which has no page."""
        if self._id is None: raise Error("complete() is for a page, this was a form")
        self._session.peer.notify("elicitation/complete", {"elicitationId": self._id})

class Tool:
    """One tool call of a turn: `with turn.tool(...) as tool`. Pending on entry, in_progress once something is shown or
    permitted; at its end completed, failed (exception, `fail`) or cancelled (also if refused; version 1: failed)."""
    def __init__(self, turn: Turn, call: ToolCallUpdate) -> None:
        self.turn, self.id, self._call = turn, call.tool_call_id, call
        self._status, self._refused, self._ended = "", False, False  # not announced; by the user; by the client
    def __enter__(self) -> Tool:
        self._announce()
        return self
    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        if self.turn.tools.get(self.id) is not self: return
        cancelled = self.cancelled or isinstance(error, Cancelled)
        with suppress(ConnectionClosed, Cancelled) if error is not None else nullcontext():
            self.update(status="cancelled" if cancelled else "failed" if error else "completed")
    @property
    def cancelled(self) -> bool:
        """Whether this tool call was refused, or it or its turn was cancelled."""
        return self._refused or self._ended or self.turn.cancelled
    def _announce(self, begin: bool = False) -> None:
        if not self._status:
            self.turn.session.peer.wait_for_room(self.turn._cancelled.is_set)
            with self.turn._lock:  # or a cancel that the client sends at once would not find it
                self.turn.send(self._call, waits=False)
                self._status, self.turn.tools[self.id] = "pending", self
        if begin and self._status == "pending": self.update(status="in_progress")
    def update(self, **fields: Any) -> None:
        """Change fields of the tool call (see ToolCallUpdate); a status that ends it closes it."""
        self._announce()
        self.turn.send(ToolCallUpdate(self.id, **fields))
        if (status := fields.get("status", UNSET)) is not UNSET: self._status = status or "pending"
        if self._status in ("completed", "failed", "cancelled"): self.turn.tools.pop(self.id, None)  # atomic
    def add(self, content: Union[str, ContentBlock, ToolCallContent]) -> None:
        """Show more: text, a content block, or tool call content (Content, Diff, Terminal)."""
        self._announce(begin=True)
        if isinstance(content, str): content = TextContent(content)
        if not isinstance(content, (Content, Diff, Terminal, Unknown)): content = Content(content)
        self.turn.send(ToolCallContentChunk(self.id, content))
    def diff(self, path: str, new_text: str, old_text: Optional[str] = None) -> None:
        """Show the change of a text file; old_text None: it is new."""
        self.add(Diff.of(path, new_text, old_text))
    def terminal(self, command: str, args: Iterable[str] = (), *, cwd: Optional[str] = None,
                 env: Optional[Dict[str, str]] = None, output_byte_limit: Optional[int] = None) -> TurnTerminal:
        """Run a command and show it; see Turn.terminal."""
        made = self.turn.terminal(command, args, cwd=cwd, env=env, output_byte_limit=output_byte_limit)
        self.add(Terminal(made.id))
        return made
    def fail(self, message: str) -> None:
        """It failed, and this is why. The `with` block may go on."""
        self.add(message)
        self.update(status="failed")
    def ask_permission(self, title: Optional[str] = None, *, options: Optional[Sequence[PermissionOption]] = None,
                       description: Optional[str] = None, remember: Optional[str] = None) -> Permission:
        """Ask the user whether this may be done; see Turn.ask_permission. Refused, the tool call ends as cancelled."""
        self._announce()
        subject = ToolCallPermissionSubject(ToolCallUpdate(self.id, title=(name := cast(str, self._call.title))))
        answer = self.turn.ask_permission(title or name, options=options, subject=subject, description=description,
                                          remember=remember)
        self._refused = not answer
        if answer: self._announce(begin=True)
        return answer

# == 9. Client ========================================================================================================
# A Client starts or is given an agent and negotiates; a ClientSession keeps a session's state; a ClientTurn is one
# prompt. The reader thread merges updates and hands them to the turn that runs and to on_update's strand. Questions of
# the agent are answered in the thread that waits for the turn, or else in a worker.
_ALOUD = (AgentMessageChunk, AgentThoughtChunk)  # most updates; they say nothing of the turns
def reject(request: object) -> bool:
    """The permission policy that allows nothing (the default); `decline`, for elicitation, is the same."""
    return False
decline = reject
def allow_once(request: PermissionRequest) -> bool:
    """The permission policy that allows everything, each time once."""
    return True
def allow_reads(request: PermissionRequest) -> bool:
    """The permission policy that allows what only reads or searches."""
    return request.tool_call is not None and request.tool_call.kind in ("read", "search")
def accept_defaults(request: ElicitationRequest) -> Optional[Json]:
    """The elicitation policy that answers a form by its defaults, and cancels where they are not enough, or a page."""
    if request.schema is None: return None
    defaults = {name: getattr(each, "default", None) for name, each in (request.schema.properties or {}).items()}
    given = {name: value for name, value in defaults.items() if value is not None}
    try: request.schema.check(given)
    except MalformedMessage: return None
    return given

class PermissionRequest:
    """A question of the agent: `session`, `title`, `description`, `options`, `subject`, `meta`; `cancelled` tells that
    nobody waits for the answer any more."""
    def __init__(self, session: ClientSession, params: RequestPermissionRequest) -> None:
        self.session, self.title, self.description = session, params.title, params.description
        self.options, self.subject, self.meta, self.cancelled = params.options, params.subject, params.meta, False
        call = getattr(params.subject, "tool_call", params.subject)
        self.tool_call_id: Optional[str] = getattr(call, "tool_call_id", None)
    @property
    def tool_call(self) -> Optional[ToolCallUpdate]:
        """The tool call that it is about, as merged so far, or None."""
        return self.session.state.tool_call(self.tool_call_id) if self.tool_call_id else None
    def outcome(self, choice: Any) -> RequestPermissionResponse:  # never an approval of what was not offered
        offered = [None, *(each.option_id for each in self.options)]
        if isinstance(choice, RequestPermissionResponse) and getattr(choice.outcome, "option_id", None) in offered:
            return choice
        id = choice.option_id if isinstance(choice, PermissionOption) else choice
        if id not in offered:
            if not isinstance(id, bool): log.error("permission callback: %s is no option, id or bool", _describe(id))
            kinds = ("allow_once", "allow_always") if id is True else ("reject_once", "reject_always")
            id = next((each.option_id for kind in kinds for each in self.options if each.kind == kind), None)
        return RequestPermissionResponse(CancelledPermissionOutcome() if id is None else SelectedPermissionOutcome(id))

class ElicitationRequest:
    """A question of the agent to the user: `session` (or None), `message`, `mode` "form" (`schema`) or "url" (`url`),
    `meta`, `cancelled`. The callback returns a dict (of values that `schema.check` allows) or True (a page) to accept,
    False to decline, None to cancel. Policies: `decline`, `accept_defaults`."""
    def __init__(self, session: Optional[ClientSession], params: CreateElicitationRequest) -> None:
        self.session, self.message, self.mode, self.meta = session, params.message, params.mode, params.meta
        self.schema, self.url, self.elicitation_id = params.requested_schema, params.url, params.elicitation_id
        self.tool_call_id, self.request_id, self.cancelled = params.tool_call_id, params.request_id, False
    def outcome(self, choice: Any) -> CreateElicitationResponse:
        if isinstance(choice, CreateElicitationResponse): return choice
        if self.schema is not None and isinstance(choice, dict): self.schema.check(choice)
        accepted = isinstance(choice, dict) if self.mode == "form" else choice is True
        return CreateElicitationResponse("accept" if accepted else "decline" if choice is False else "cancel",
                                         choice if accepted and self.mode == "form" else None)

class _Question:
    """A permission or elicitation request on its way through the callback. Answered once, by whoever comes first."""
    def __init__(self, client: Client, request: Request, asked: Any, callback: Callable[[Any], Any]) -> None:
        self.client, self.request, self.asked, self.callback = client, request, asked, callback
        self.course: Optional[_Course] = None  # the turn that it came in
        self.mark = 0  # of the session's strand: what came before it; both are set once, under the session's lock
        request.on_cancel(self.cancel)
    def answer(self, choice: Any) -> None:
        try: self.request.answer(to_wire(self.asked.outcome(choice), self.client.version))
        except (ValueError, TypeError) as error:  # not JSON, or not what the form asks
            wrong = error if isinstance(error, MalformedMessage) else "not JSON"
            log.error("the callback of %s returned a wrong answer: cancelled: %s", self.request.method, wrong)
            return self.answer(None)
        if self.asked.session is not None: self.asked.session._was_answered(self)
    def cancel(self, error: Any = None) -> None:  # answered `cancelled`, also while the callback runs; in any thread
        self.asked.cancelled = True
        self.answer(None)
    def run(self, turn: Optional[ClientTurn] = None) -> None:
        """The callback: in a worker, once what came before was delivered, or where somebody waits for the `turn`."""
        session, here = self.asked.session, self.client.connection.here
        if turn is None and session is not None: session.strand.wait(self.mark, None)
        before = getattr(here, "turn", None), getattr(here, "answering", None)
        here.turn, here.answering = turn, (session, *(before[1] or ()))
        try:
            if not self.asked.cancelled: self.answer(self.callback(self.asked))
        except Exception:
            log.error("the callback of %s failed: refused", self.request.method, exc_info=True)
            self.answer(False)
        except BaseException:  # Ctrl-C above all: the turn, and then the question, end as cancelled
            if self.course is not None: session._cancel_course(self.course)
            self.cancel()
            raise
        finally:
            here.turn, here.answering = before
            if turn is not None: turn._alive()

class Client:
    """A client of one agent: starts it (or connects), negotiates, and closes it at the end of `with`.

    `target` is a command (a list), an Agent (in process), a connected socket, or a (reader, writer) pair of binary
    streams. Blocks until the agent has answered initialize, at most `start_timeout` seconds. Raises TypeError,
    ValueError, Error where the command cannot start, and as calls do. With `version=2` (the draft) the agent may still
    answer 1. Calls may be made from any thread. Callbacks: `permission` and `elicitation` run in the thread that waits
    for the turn, `on_update` in one worker per session, `extension` in workers; with `dispatch(job)` all of them run
    where that says. `on_message` and `on_stderr` run in the library's own threads and must not call the client. `files`
    (LocalFiles) and `terminals` serve version 1 agents; `env` adds to a command's environment, `cwd` is its folder;
    `auth_terminal` tells that you can run a login in a terminal. A message over `max_message_bytes` is skipped; over
    `max_queued_bytes` of input not taken, or output not read, the connection ends. Has `agent_info`, `capabilities`,
    `auth_methods`, `version` (1 or 2). Calls wait for the agent's answer, `timeout` seconds where they take one; they
    raise RequestError, Timeout, ConnectionClosed, and Unsupported for what it does not offer."""
    def __init__(
            self, target: Any, *, version: int = 1, name: Optional[str] = None, title: Optional[str] = None,
            client_version: Optional[str] = None, capabilities_meta: Meta = None, files: Any = None,
            terminals: Any = None, permission: Callable[[PermissionRequest], Any] = reject,
            elicitation: Optional[Callable[[ElicitationRequest], Any]] = None, auth_terminal: bool = False,
            on_update: Optional[Callable[[ClientSession, SessionUpdate], Any]] = None,
            on_message: Optional[Callable[[str, Json], Any]] = None, on_stderr: Optional[Callable[[str], Any]] = None,
            extension: Optional[Callable[[str, Json], Any]] = None,
            extension_notification: Optional[Callable[[str, Json], Any]] = None,
            dispatch: Optional[Callable[[Callable[[], None]], Any]] = None, env: Optional[Dict[str, str]] = None,
            cwd: Optional[str] = None, start_timeout: Optional[float] = 60, max_message_bytes: int = MAX_MESSAGE,
            max_queued_bytes: int = MAX_QUEUED) -> None:
        if version not in (1, 2): raise ValueError(f"no such protocol version: {version!r}")
        for given, needed in (files, "read_text_file"), (terminals, "create"), (permission, "__call__"):
            if given is not None and not hasattr(given, needed): raise TypeError(f"{given!r} has no {needed}")
        self.version, self._dispatch = 0, dispatch  # no version until negotiated
        self.agent_info, self.capabilities = Implementation("unknown", "unknown"), AgentCapabilities()
        self.auth_methods: List[AuthMethod] = []
        self._local, self._permission, self._elicitation = {"fs": files, "terminal": terminals}, permission, elicitation
        self._on_update, self._extend = on_update, (extension, extension_notification)  # by request.is_notification
        self._table: Dict[str, Tuple[str, Method]] = {}  # the methods on this version's wire
        self._sessions: Dict[str, ClientSession] = {}  # by id; each use is one atomic operation, so no lock
        self._process: Optional[_AgentProcess] = None
        self._inner: Optional[_AgentSide] = None  # the other end of an agent in process
        self._last: Any = None; self._streams: Json = {}  # by session id; see _learn; for the reader alone
        self._served: Set[str] = set()  # ids of sessions that asked for terminals or files
        weakref.finalize(self, _release, terminals, self._served)
        self.connection = Connection(
            *self._open(target, env, cwd, on_stderr), self, peer="agent", answers_bad_lines=False,
            on_message=on_message, max_message_bytes=max_message_bytes, max_queued_bytes=max_queued_bytes)
        self.connection.shortcut = self._streamed if on_message is None else None
        if (process := self._process) is not None: weakref.finalize(self, process.end)
        hello = InitializeRequest(version, Implementation(name or "acp.py", client_version or __version__, title))
        hello.capabilities = ClientCapabilities(
            ClientAuthCapabilities(True) if auth_terminal else None,
            ElicitationCapabilities(True, True) if elicitation else None,
            FileSystemCapabilities(True, bool(getattr(files, "write", True))) if files else None,
            True if terminals else None,
            ClientSessionCapabilities(True, SessionConfigOptionsCapabilities(True), True), meta=capabilities_meta)
        wire, limit = {**to_wire(hello, 1), **(to_wire(hello, 2) if version == 2 else {})}, _deadline(start_timeout)
        try:  # from here on also a Ctrl-C ends what was started
            if process is not None: _spawn("process", process.watch, weakref.ref(self.connection))
            self.connection.start()
            if process is not None: process.threads, process.let_go = self.connection.threads, self.connection.let_go
            self.connection.begin_call("initialize", wire, settle=lambda it: self._negotiated(it, version)).wait(limit)
        except BaseException:
            self.close()
            raise
    def _open(self, target: Any, *options: Any) -> Tuple[Any, Any]:  # the streams to read and to write
        if isinstance(target, Agent):
            import socket
            ours, theirs = self._pair = socket.socketpair()
            self._inner = _AgentSide(target, theirs, theirs)
            return ours, ours
        pair = isinstance(target, tuple) and len(target) == 2 and not isinstance(target[0], (str, os.PathLike))
        if pair or hasattr(target, "recv"): return target if pair else (target, target)
        if not isinstance(target, (list, tuple)) or not target:
            raise TypeError("target: expected a command as a list, an Agent, a socket or a (reader, writer) pair")
        self._process = _AgentProcess([os.fspath(word) for word in target], *options)
        return self._process.popen.stdout, self._process.popen.stdin
    def _negotiated(self, data: Any, asked: int) -> None:  # in the reader; the answer's shape decides too
        answer = data if isinstance(data, dict) else {}
        told = answer.get("protocolVersion")
        new_shape = "agentCapabilities" not in answer and ("capabilities" in answer or "info" in answer)
        if type(told) is not int or told not in (1, 2) or (new_shape and (told, asked) != (2, 2)):
            shape = " in the form of version 2" if new_shape else ""
            raise UnsupportedVersion(f"initialize: the agent answered protocolVersion {_describe(told)}{shape}, "
                                     f"this client asked for {asked}", {"requested": asked, "supported": [asked]})
        version = 2 if new_shape else 1  # several agents answer 2 in the form of version 1, and go on in that
        hello = from_wire(InitializeResponse, data, version)
        self.agent_info, self.capabilities = hello.info or self.agent_info, hello.capabilities or self.capabilities
        self.auth_methods, self._table = list(hello.auth_methods or ()), method_table(version)
        self.version, self.connection.null_ids = version, version == 1
    def __enter__(self) -> Client: return self
    def __exit__(self, *error: Any) -> None: self.close()
    def close(self) -> None:
        """End the connection and the agent: its stdin is closed, then it is terminated, then killed, with its process
        group. From any thread, more than once; blocks until it is done, a few seconds at most."""
        self.connection.close("the client was closed", flush=1.0)
        for session in list(self._sessions.values()): session._lost(ConnectionClosed("the client was closed"))
        _release(self._local["terminal"], self._served)
        if self._process is not None: self._process.end()
        if self._inner is not None:
            self._inner.connection.wait_closed(GRACE_FINISHING + GRACE_CANCELLING + 1)
            for end, connection in zip(self._pair, (self.connection, self._inner.connection)):
                close_behind(end, *connection.threads)
    def request(self, method: str, params: Optional[Json] = None, timeout: Optional[float] = None) -> Any:
        """Any request by its name on the wire; see Connection.request."""
        return self.connection.request(method, params, timeout)
    def notify(self, method: str, params: Optional[Json] = None) -> None:
        """Any notification by its name on the wire."""
        self.connection.notify(method, params)
    def _begin_call(self, method: str, params: Any, settle: Any = lambda it: it, **more: Any) -> _Pending:
        name = wire_name(method, self.version)
        self._need(name in self._table, f"{method}: version {self.version} has no such method")
        return self.connection.begin_call(name, to_wire(params, self.version), **more, settle=lambda data: settle(
            from_wire(self._table[name][1].result, {} if data is None else data, self.version)))
    def _call(self, method: str, params: Any, timeout: Optional[float] = None, session: Optional[ClientSession] = None,
              settle: Callable[[Any], Any] = lambda it: it) -> Any:  # `settle` makes the result, in the reader
        strand, deadline = session.strand if session is not None else None, _deadline(timeout)
        try: return self._begin_call(method, params, settle, strand=strand, deadline=deadline).wait(deadline)
        except AuthRequired as error:
            error.auth_methods = self.auth_methods
            raise
    def offers(self, marker: str) -> bool:
        """Whether the agent offers list, resume, close or load (resume with replay); version 2 always does."""
        return self.version == 2 or bool(getattr(self.capabilities.session, marker, None))
    def _need(self, offered: Any, what: str) -> None:
        if not offered: raise Unsupported(f"the agent does not offer {what}")
    def new_session(
            self, cwd: str, *, mcp_servers: Iterable[McpServer] = (), additional_directories: Iterable[str] = (),
            meta: Meta = None, timeout: Optional[float] = None) -> ClientSession:
        """Make a session (session/new). cwd "." is the current folder, any other must be absolute. Raises AuthRequired
        (then `login`), Unsupported, ValueError, Timeout after `timeout` seconds."""
        cwd, servers, folders = self._setup(cwd, mcp_servers, additional_directories)
        deadline, params = _deadline(timeout), NewSessionRequest(cwd, folders, servers, meta=meta)
        session, mark = self._call("session/new", params, timeout, settle=lambda result: (
            self.session(result.session_id)._adopt(cwd, result)))
        if not self.connection.in_handler() and not session.strand.wait(mark, deadline):
            raise Timeout("session/new: answered, but an earlier update is still being handled")
        return cast(ClientSession, session)
    def resume_session(self, session_id: str, cwd: str, *, replay: bool = False, mcp_servers: Iterable[McpServer] = (),
                       additional_directories: Iterable[str] = (), meta: Meta = None,
                       timeout: Optional[float] = None) -> ClientSession:
        """Take up a session (session/resume, on version 1 also session/load). With replay its state is rebuilt from
        what the agent replays; Unsupported where it cannot. Without, a version 1 agent that can only load loads."""
        cwd, servers, folders = self._setup(cwd, mcp_servers, additional_directories)
        word = "load" if self.version == 1 and (replay or not self.offers("resume")) else "resume"
        self._need(self.offers(word), "resuming a session" + (" with replay" if replay else ""))
        session, start = self.session(session_id), ReplayFromStart() if replay else None
        if replay or word == "load": session.state = SessionState()
        params = ResumeSessionRequest(session_id, cwd, folders, servers, start, meta=meta)
        self._call("session/" + word, params, timeout, session, lambda result: session._adopt(cwd, result))
        return session
    def _setup(self, cwd: str, servers: Iterable[Any], folders: Iterable[str]) -> Tuple[str, List[Any], Any]:
        cwd, folders, servers = os.fspath(cwd), list(folders), list(servers)
        if cwd == ".": cwd = os.getcwd()
        for path in [cwd, *folders]:
            if not is_absolute(path): raise ValueError(f"expected an absolute path (or cwd='.'), got {path!r}")
        session = self.capabilities.session or SessionCapabilities()
        self._need(not folders or session.additional_directories, "additional directories")
        for kind in [server.type for server in servers if not isinstance(server, Unknown)]:
            offered = getattr(session.mcp, kind, None) or (kind == "stdio" and self.version == 1)
            self._need(offered, f"MCP servers by {kind}")
        return cwd, servers, folders or None
    def session(self, session_id: str) -> ClientSession:
        """The session of this id; one got elsewhere is attached to, without a message."""
        return self._sessions.get(session_id) or self._sessions.setdefault(session_id, ClientSession(self, session_id))
    def list_sessions(self, cwd: Optional[str] = None) -> Iterator[SessionInfo]:
        """All sessions that the agent lists, page by page as they are asked for (session/list)."""
        self._need(self.offers("list"), "a list of sessions")
        cwd = None if cwd is None else self._setup(cwd, (), ())[0]
        def pages() -> Iterator[SessionInfo]:
            cursor, before = None, object()
            while cursor != before:  # an agent that repeats a cursor would have us go round for ever
                page = self._call("session/list", ListSessionsRequest(cwd, cursor))
                yield from page.sessions
                if page.next_cursor is None: return
                cursor, before = page.next_cursor, cursor
        return pages()
    def delete_session(self, session_id: str, timeout: Optional[float] = None) -> None:
        """Delete a session; one that does not exist is deleted too (session/delete)."""
        self._need(self.capabilities.session and self.capabilities.session.delete, "deleting sessions")
        self._end_session("session/delete", session_id, timeout)
    def _end_session(self, method: str, session_id: str, timeout: Optional[float]) -> None:
        if session := self._sessions.get(session_id): session._end_turns(held=True)  # or the end of one sends the next
        with suppress(NotFound): self._call(method, CloseSessionRequest(session_id), timeout, session)
        if session := self._sessions.pop(session_id, None): session._end_turns()
        _release(self._local["terminal"], [session_id])
    def login(self, method_id: str, timeout: Optional[float] = None) -> None:
        """Log in by one of `auth_methods` (auth/login, v1 authenticate). Waits for the user, if need be for ever."""
        self._call("auth/login", LoginAuthRequest(method_id), timeout)
    def logout(self, timeout: Optional[float] = None) -> None:
        """Log out (v1 logout, v2 auth/logout)."""
        offered = self.auth_methods if self.version == 2 else getattr(self.capabilities.auth, "logout", None)
        self._need(offered, "logging out")
        self._call("auth/logout", LogoutAuthRequest(), timeout)
    # ---- in the reader thread ---------------------------------------------------------------------------------------
    def _learn(self, session: ClientSession, update: Any) -> None:
        """In the reader. A chunk of text differs from the one before in its text only: from the second of a message on,
        what stands around it in the line is kept, if the line with another text there proves to say that text."""
        block, last = getattr(update, "content", None), self._last
        self._last = session.id, type(update), getattr(update, "message_id", None)
        if last != self._last or type(block) is not TextContent or not (
                vars(update).keys() | vars(block).keys() <= {"message_id", "content", "text", "_v1"}): return
        for literal in {to_line(block.text)[:-1], json.dumps(block.text).encode()}:  # as UTF-8, and all in ASCII
            before, _, after = self.connection.line.rpartition(literal)
            with suppress(ValueError, LookupError, TypeError):
                other = DECODER.decode((before + to_line(block.text + "?")[:-1] + after).decode())
                if other["params"]["update"]["content"]["text"] == block.text + "?":
                    self._streams.pop(session.id, None)
                    self._streams[session.id] = before, after, copy_of(update)
                    if len(self._streams) > 8: del self._streams[next(iter(self._streams))]
    def _streamed(self, line: Any) -> bool:
        """In the reader, instead of decoding (a client has no lanes): take a line that differs from a learnt one in its
        text only. Whether it did. Not where there is an on_message, which gets every message."""
        fits = [each for each in self._streams.items() if line.startswith(each[1][0]) and line.endswith(each[1][1])]
        if not fits: return False
        session_id, (before, after, update) = fits[0]
        literal = line[len(before):len(line) - len(after)]
        if not literal.startswith(b'"') or (session := self._sessions.get(session_id)) is None: return False
        try: text, end = DECODER.raw_decode(literal := literal.decode())
        except ValueError: return False  # it is refused as any other line
        if end < len(literal): return False
        log.debug("in session/update, %d bytes", len(line))
        made: Any = object.__new__(TextContent); made.text, made._v1 = text, update._v1
        session._take(copy_of(update, content=made), len(line))
        return True
    def lane(self, request: Request) -> Tuple[Any, bool]: return "", False  # nothing waits for another's answer
    def receive(self, request: Request) -> None:  # raises what the request is refused with
        name, params = understood(request, self._table, "client", self.version) or ("", request.params)
        if name in ("", "elicitation/complete"):  # of the latter a script learns as of an extension
            if (extend := self._extend[request.is_notification]) is None: raise _no_such(request)
            def job() -> Any: return extend(request.method, request.params)
            if request.is_notification: return self.connection.notified(request, lambda: self.handle(job))
            return self.run(lambda: request.run(job), request.refuse)
        elif name is None: return
        elif name == "session/update":
            if params.unknown_fields or params.meta is not None:  # few have either
                kept = params.unknown_fields or {}
                params.update.beside = kept if params.meta is None else {**kept, "_meta": params.meta}
            self._learn(heard := self.session(params.session_id), params.update)
            return heard._take(params.update, request.size)
        elif name == "session/request_permission":
            asked = PermissionRequest(self.session(params.session_id), params)
            return asked.session._ask_back(_Question(self, request, asked, self._permission))
        elif name == "elicitation/create" and self._elicitation is not None:
            session = self.session(params.session_id) if params.session_id is not None else None
            question = _Question(self, request, ElicitationRequest(session, params), self._elicitation)
            return self.run(question.run, question.cancel) if session is None else session._ask_back(question)
        elif serve := getattr(self._local.get(name.partition("/")[0]), name.partition("/")[2], None):
            params.session, params.request = self.session(params.session_id), request
            self._served.add(params.session_id)
            return self.connection.run_handler(lambda: request.run(lambda: self._serve(serve, params)))
        raise _no_such(request)
    def _serve(self, function: Callable[[Any], Any], params: Any) -> Any:  # in a worker
        try: return to_wire(function(params), self.version)
        finally:
            if self.connection.closed or self._sessions.get(params.session_id) is not params.session:  # behind its end
                _release(self._local["terminal"], [params.session_id])
    def run(self, job: Job, lost: Any = None) -> None:  # a callback, in a worker; see handle
        self.connection.workers.run(lambda: self.handle(job, lost))
    def handle(self, job: Job, lost: Any = None) -> None:  # a callback, here or where `dispatch` says
        def marked() -> None: self.connection.handle(job, dispatched=self._dispatch is not None)
        try: marked() if self._dispatch is None else self._dispatch(marked)
        except BaseException as error:  # it may not have run
            if lost is not None: lost(error)
            raise
    def ended(self, error: ConnectionClosed) -> None:  # no more input: wake all who wait
        def tell() -> None:
            if self._process is not None: error.exit_code, error.stderr = self._process.last_words()
            self.connection.fail_calls(error)
            for session in list(self._sessions.values()): session._lost(error)
            self.connection.close()
            _release(self._local["terminal"], self._served)
        self.connection.workers.run(tell)  # not here: locks may be held where writing failed
def _release(terminals: Any, session_ids: Iterable[str]) -> None:  # end what they run for these sessions
    if hasattr(terminals, "close"): terminals.close(*session_ids)

class _Course:
    """What the session knows of a turn, whether or not anybody still holds the ClientTurn; its lock guards it."""
    turn: Callable[[], Optional[ClientTurn]]
    pending: Optional[_Pending] = None  # None: held back, on version 1
    answered: bool = False; inserted: bool = False; idle: bool = False; ended: bool = False
    cancelling: bool = False; cancel_sent: bool = False  # $/cancel_request went out; session/cancel went out
    message_id: Optional[str] = None; stop_reason: Optional[str] = None; error: Optional[BaseException] = None
    end: Optional[IdleStateUpdate] = None
    def __init__(self, params: PromptRequest) -> None: self.params = params

class ClientSession:
    """A session on the client's side: `id`, `cwd`, `meta` (of the answer that named it), `state` (SessionState), and
    the calls. Safe from any thread. `prompt`, `stream` and `cancel` return at once, all else waits; raises
    RequestError, Timeout, ConnectionClosed."""
    def __init__(self, client: Client, session_id: str) -> None:
        self.client, self.id, self.state = client, session_id, SessionState()
        self.cwd: Optional[str] = None; self.meta: Meta = None
        self.strand = _Strand(client.connection.workers)  # runs on_update
        # Guards all below and the order in which updates are merged and handed on. Section 7 has the order of locks.
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._courses: Deque[_Course] = collections.deque()  # turns that have not ended, in order
        self.questions: List[_Question] = []  # open ones
        self._busy = self._was_busy = False; self.heard = 0.0  # the last state was not idle; one was not at some time
    def prompt(self, content: Prompt, *, timeout: Optional[float] = None, idle_timeout: Optional[float] = None,
               meta: Meta = None) -> ClientTurn:
        """Send a prompt and return its turn at once; version 1 holds it back while another runs (session/prompt).
        `content` is text, a content block, a list of both, or a whole PromptRequest. After `timeout` seconds in all, or
        `idle_timeout` seconds without any update, whoever waits or comes to wait cancels the turn by it and gets
        Timeout. Waits only while the agent does not read. Raises Unsupported for content that it did not offer."""
        client, connection = self.client, self.client.connection
        whole, content = (content, content.prompt) if isinstance(content, PromptRequest) else (None, content)
        blocks: List[Any] = [TextContent(each) if isinstance(each, str) else each
                             for each in (content if isinstance(content, (list, tuple)) else [content])]
        takes = (client.capabilities.session and client.capabilities.session.prompt) or PromptCapabilities()
        if not blocks: raise ValueError("a prompt needs at least one content block")
        for kind in [getattr(block, "type", "") for block in blocks]:
            client._need(prompt_kinds(takes).get(kind, True), f"prompts with content of type {kind}")
        params = PromptRequest(self.id, blocks, meta=meta) if whole is None else copy_of(whole, session_id=self.id)
        to_line(to_wire(params, client.version))  # raises here, not when it is sent
        course = _Course(params)
        turn = ClientTurn(self, course, timeout, idle_timeout)
        course.turn = weakref.ref(turn)
        connection.wait_for_room(deadline=turn._limit())
        try:
            with self.lock:
                connection.check()
                self._courses.append(course)
                if client.version == 2 or len(self._courses) == 1: self._send(course)
        except KeyboardInterrupt:  # nobody gets the turn
            with self.lock:
                if course in self._courses: self._cancel_course(course)
            raise
        return turn
    def ask(self, content: Prompt, *, timeout: Optional[float] = None, idle_timeout: Optional[float] = None,
            meta: Meta = None) -> str:
        """Prompt and wait: the answer as text (if cancelled or refused: what was said). Raises as ClientTurn.wait."""
        turn = self.prompt(content, timeout=timeout, idle_timeout=idle_timeout, meta=meta)
        turn.wait()
        return turn.text
    def stream(self, content: Prompt, *, timeout: Optional[float] = None, idle_timeout: Optional[float] = None,
               meta: Meta = None) -> Iterator[str]:
        """Prompt, and iterate over the text of the answer as it comes. Closing the iterator early cancels the turn.
        Parameters as in `prompt`; raises at the end as ClientTurn.wait does."""
        pieces = self._pieces(self.prompt(content, timeout=timeout, idle_timeout=idle_timeout, meta=meta))
        next(pieces)  # so that closing it works even before the first piece was asked for
        return pieces
    def _pieces(self, turn: ClientTurn) -> Iterator[str]:
        seen: Set[str] = set()
        with turn:
            yield ""
            for update in turn:
                if isinstance(update, AgentMessageChunk): text = text_of([update.content])
                elif isinstance(update, AgentMessage) and update.message_id not in seen: text = update.text
                else: continue  # what was said cannot be taken back
                if text: seen.add(update.message_id); yield text
    def cancel(self) -> None:
        """End the session's work (session/cancel): on version 1 the running turn and those held back here, on version 2
        the running turn and prompts that the agent holds. Does not wait."""
        with self.lock:
            self._end_turns(held=True)
            self._send_cancel(*self._courses)
    def set_config_option(self, config_id: str, value: Any, timeout: Optional[float] = None) -> None:
        """Set a config option: a select's value, or a bool (session/set_config_option; session/set_mode for an agent
        that has only modes). `state.config_options` then has the agent's answer."""
        if config_id == "mode" and any(each._v1 is OF_MODES for each in self.state.config_options):
            self.client._call("session/set_mode", SetSessionModeRequest(self.id, value), timeout, self,
                              lambda result: self._take(CurrentModeUpdate(value)))
        else:
            kind = "boolean" if isinstance(value, bool) else "id"
            params = SetSessionConfigOptionRequest(self.id, config_id, value, kind)
            self.client._call("session/set_config_option", params, timeout, self,
                              lambda result: self.state.apply(ConfigOptionUpdate(
                                  v1_options(result.config_options, self.state.config_options))))
    def cancel_tool_call(self, tool_call_id: str, timeout: Optional[float] = None) -> None:
        """End one tool call that the agent declared cancellable (tool_call/cancel; version 2)."""
        self.client._call("tool_call/cancel", CancelToolCallRequest(self.id, tool_call_id), timeout, self)
    def cancel_terminal(self, terminal_id: str, timeout: Optional[float] = None) -> None:
        """End one display terminal that the agent declared cancellable (terminal/cancel; version 2)."""
        self.client._call("terminal/cancel", CancelTerminalRequest(self.id, terminal_id), timeout, self)
    def close(self, timeout: Optional[float] = None) -> None:
        """End the session's work and free it (session/close)."""
        self.client._need(self.client.offers("close"), "closing sessions")
        self.client._end_session("session/close", self.id, timeout)
    def _send(self, course: _Course) -> None:  # under the lock: the prompt goes out; on version 1 the turn begins
        try:
            course.pending = self.client._begin_call("session/prompt", course.params, waits=False,
                                                     then=functools.partial(self._answered, course))
        except ConnectionClosed as error: return self._lost(error) if self.client.connection.closed else None
        if self.client.version == 1:
            course.message_id, course.inserted = new_id("message"), True
            self._merge(UserMessage(course.message_id, course.params.prompt))
            self._merge(RunningStateUpdate())
    def _answered(self, course: _Course, pending: _Pending) -> None:  # in the reader, or where the call was given up
        with self.lock:
            course.answered, error = True, pending.error
            told = self.client._sessions.get(self.id) is self  # not of a session that was closed
            if course.ended or (told and isinstance(error, ConnectionClosed)): return  # end() follows
            if isinstance(error, AuthRequired): error.auth_methods = self.client.auth_methods
            if isinstance(error, RequestCancelled): self._finish(course, "cancelled")
            elif error is not None: self._finish(course, "error", error)
            elif self.client.version == 1:
                given = pending.result
                course.end = copy_of(IdleStateUpdate(), meta=given.meta, unknown_fields=given.unknown_fields)
                self._finish(course, given.stop_reason)
            elif pending.result.message_id is not None: self._insert(course, pending.result.message_id)
            if error is None and course.idle and course.end: self._finish(course, course.end.stop_reason)
    def _insert(self, course: _Course, message_id: Optional[str]) -> None:  # v2: the prompt has its place
        course.message_id, course.inserted = message_id or course.message_id, True
        self.changed.notify_all()
        if course.cancelling and not course.cancel_sent: self._send_cancel(course)
    def _finish(self, course: _Course, reason: Optional[str], error: Optional[BaseException] = None) -> None:
        """Under the lock: a turn is over; on version 1 the end is told as a state, and the next one is sent."""
        wrong = ErrorObject(error.code, error.message, error.data) if isinstance(error, RequestError) else None
        if self.client.version == 1 and course.inserted:
            course.end = copy_of(course.end or IdleStateUpdate(), stop_reason=reason, error=wrong)
            self._merge(course.end)
        if error is None and reason == "error":
            wrong = (course.end and course.end.error) or ErrorObject(-32603, "the turn failed")
            error = made = RequestError.of(wrong.code, wrong.message, wrong.data)
            made.method, made.id = "session/prompt", course.pending.id if course.pending else None
        course.ended, course.stop_reason, course.error = True, reason, error
        self._courses.remove(course)
        for question in [each for each in self.questions if each.course is course]:
            if self.client.version == 1: question.cancel()
        if self._courses and self._courses[0].pending is None: self._send(self._courses[0])
        self.changed.notify_all()
    def _end_turns(self, held: bool = False) -> None:  # what the agent has not ended by now; held: what it never got
        with self.lock:
            for course in [each for each in reversed(self._courses) if not held or each.pending is None]:
                self._finish(course, "cancelled")
    def _lost(self, error: BaseException) -> None:  # the connection is over: so are all turns and questions
        with self.lock:
            for each in self._courses: each.ended, each.error = True, getattr(each.pending, "error", None) or error
            self._courses.clear()
            for question in list(self.questions): question.cancel()
            self.changed.notify_all()
    def _send_cancel(self, *courses: _Course) -> None:  # under the lock; questions go with it
        for course in courses: course.cancel_sent = True
        with suppress(ConnectionClosed):
            self.client.connection.notify("session/cancel", {"sessionId": self.id}, waits=False)
        for question in list(self.questions): self._cancel_question(question)
    def _cancel_question(self, question: _Question) -> None:  # v1: all; v2: a turn's, but not of background work
        background = {getattr(each, "tool_call_id", "") for each in self.state.background or ()}
        if self.client.version == 1 or (question.course and question.asked.tool_call_id not in background):
            question.cancel()
    def _cancel_course(self, course: _Course) -> None:  # ClientTurn.cancel
        with self.lock:
            if course.ended or course.cancel_sent: return
            if course.pending is None: self._finish(course, "cancelled")
            elif course.inserted: self._send_cancel(course)
            elif not course.cancelling:
                course.cancelling = True
                with suppress(ConnectionClosed):
                    self.client.connection.notify("$/cancel_request", {"requestId": course.pending.id}, waits=False)
    # ---- updates, in the reader -------------------------------------------------------------------------------------
    def _take(self, update: Any, size: int = 0) -> None:
        with self.lock:
            if self.client.version == 1: update = v1_update(update, self.state)
            if update is not None: self._merge(update, size)
    def show(self, update: Any) -> None:  # of a terminal that this client runs: merged as if it came from the agent
        connection, data = self.client.connection, getattr(getattr(update, "output", None) or update, "data", "")
        while data and connection.crowded() and not connection.wait_closed(0.05): pass  # it is the command that waits
        with self.lock: self._merge(update, len(data))
    def _merge(self, update: Any, size: int = 0) -> None:  # under the lock: into the state, to on_update, to the turn
        try: self.state.apply(update)
        except MalformedMessage as fault:
            return log.warning("ignored an update of session %s: %s", self.id, fault.within("params", "update"))
        self.heard = time.monotonic()  # of any update: idle_timeout counts from here
        if (callback := self.client._on_update) is not None:
            self.client.connection.hold(size)
            def deliver() -> None:
                self.client.connection.hold(-size)
                self.client.handle(lambda: callback(self, update))
            self.strand.post(deliver)
        if self._courses and (turn := self._courses[0].turn()) is not None: turn._put(update, size, self.strand.posted)
        if self.client.version == 2 and not isinstance(update, _ALOUD): self._follow(update)
    def _follow(self, update: Any) -> None:  # version 2: what an update says of the turns
        if type(update) in (UserMessage, UserMessageChunk):  # AgentMessage is a UserMessage
            waiting = next((each for each in self._courses if not each.inserted), None)
            if waiting is not None and all(each.message_id != update.message_id for each in self._courses):
                self._insert(waiting, update.message_id)
        elif isinstance(update, StateUpdate) or is_unknown_state(update):
            idle = isinstance(update, IdleStateUpdate)
            if not idle and self._courses and (first := self._courses[0]).answered and not first.inserted:
                self._insert(first, None)  # August agents without an echo: the next state is the insertion
            if idle and (self._busy or (not self._was_busy and update.stop_reason is not None)):
                for course in [each for each in self._courses if each.inserted and not each.idle]:
                    course.idle, course.end = True, update
                    if course.answered: self._finish(course, update.stop_reason)
            self._busy, self._was_busy = not idle, self._was_busy or not idle
    def _adopt(self, cwd: str, result: Any) -> Tuple[Any, int]:  # in the reader; itself, and the mark of updates so far
        with self.lock:
            self.cwd, self.meta, options, commands = cwd, result.meta, result.config_options, result.available_commands
            if result.modes is not None: options = v1_options(options or [], [v1_mode_option(result.modes)])
            if options is not None: self.state.apply(ConfigOptionUpdate(options))
            if commands is not None: self.state.apply(AvailableCommandsUpdate(commands))
            return self, self.strand.posted
    # ---- questions --------------------------------------------------------------------------------------------------
    def _ask_back(self, question: _Question) -> None:  # in the reader: to who waits for the turn, else to a worker
        client, subject = self.client, getattr(question.asked, "subject", None)
        with self.lock:
            if isinstance(subject, ToolCallPermissionSubject): self.state.apply(subject.tool_call)
            if client.version == 1 and (call := getattr(question.asked, "tool_call", None)) and call.title:
                question.asked.title = call.title  # the request itself may have brought no more than the id
            course = question.course = self._courses[0] if self._courses else None
            self.questions.append(question); client.connection.hold(question.request.size)
            if client.version == 1 and course is not None and self.state.state != "requires_action":
                self._merge(RequiresActionStateUpdate())
            if course is not None and course.cancel_sent: self._cancel_question(question)  # it crossed the cancel
            turn, question.mark = course.turn() if course is not None else None, self.strand.posted
            if client._dispatch is not None: self.strand.post(lambda: client.handle(question.run, question.cancel))
            elif turn is None or not turn._put_question(question): client.run(question.run)
    def _was_answered(self, question: _Question) -> None:
        with self.lock:
            if question not in self.questions: return
            self.questions.remove(question); self.client.connection.hold(-question.request.size)
            self.heard = time.monotonic()
            if self.client.version == 1 and not self.questions and self._courses and self._courses[0].inserted:
                self._merge(RunningStateUpdate())
            self.changed.notify_all()
def _known(name: str, doc: str) -> Any:  # a property of a turn, as the session knows it
    return property(lambda turn: getattr(turn._course, name), doc=doc)

class ClientTurn:
    """One prompt and what comes of it. Iterate for the session's updates from the prompt to the end; `with` cancels
    when left early. A turn that failed raises RequestError with the agent's error; a cancelled one does not raise.
    Iterating and `wait` block, run the permission and elicitation callbacks in the thread that does it, and cancel the
    turn on Ctrl-C. Updates are kept till iterated, dropped by `wait`, or collected with it."""
    def __init__(self, session: ClientSession, course: _Course, whole: Optional[float], idle: Optional[float]) -> None:
        self._course, self.session, self._connection = course, session, session.client.connection
        self._lock, self._changed = session.lock, session.changed  # guards all below
        self._entries: Deque[Tuple[Any, int, int]] = collections.deque()  # (update or question, its size, strand mark)
        self._texts: Dict[str, List[str]] = {}
        self._visited = self._left = False  # somebody waits or iterates; the iteration was left
        self._blocked = self._late = False  # of its callback: it is in a blocking call; it outlasted the turn's time
        self._idle = NEVER if idle is None else idle
        self._alive()
        self._deadline = self._last + (NEVER if whole is None else whole)
    def __del__(self) -> None: self._pass_on(True)  # in any thread, perhaps under other locks, so without the session's
    ended: bool = _known("ended", "Whether it is over.")
    stop_reason: Optional[str] = _known("stop_reason", "Why it ended; None while it runs.")
    inserted: bool = _known("inserted", "Whether the agent has begun with the prompt; before, it is sent or held.")
    message_id: Optional[str] = _known("message_id", "The id of the prompt's message; None until it is inserted.")
    end: Optional[IdleStateUpdate] = _known("end", "The state that ends it, with its `meta`; None until it is there.")
    @property
    def text(self) -> str:
        """The agent's message text in this turn so far, after replacements."""
        with self._lock: return "".join(piece for pieces in self._texts.values() for piece in pieces)
    def cancel(self) -> None:
        """Cancel this turn; nothing happens after its end. Does not wait: the turn then ends as `cancelled`."""
        self.session._cancel_course(self._course)
    def __enter__(self) -> ClientTurn: return self
    def __exit__(self, *error: Any) -> None: self.cancel()
    # ---- from the session, under its lock ---------------------------------------------------------------------------
    def _alive(self) -> None: self._last = time.monotonic()  # idle_timeout counts from here
    def _limit(self) -> float: return min(self._deadline, max(self._last, self.session.heard) + self._idle)
    def _put(self, update: Any, size: int, mark: int) -> None:
        if isinstance(update, AgentMessageChunk):
            pieces = self._texts.setdefault(update.message_id, [])
            if isinstance(update.content, TextContent): pieces.append(update.content.text)
        elif isinstance(update, AgentMessage) and update.content is not UNSET:
            self._texts[update.message_id] = [update.text]
        if self._left and self._connection.crowded(): return  # nobody may come back
        self._entries.append((update, size, mark))
        self._connection.hold(size)
        if len(self._entries) == 1: self._changed.notify_all()  # before, nobody waited
    def _put_question(self, question: _Question) -> bool:  # False: it should go to a worker
        if self._left or self._blocked: return False
        self._entries.append((question, 0, question.mark))
        if not self._visited: self._connection.workers.run(self._unattended)  # it gets 0.2 s
        self._changed.notify_all()
        return True
    def _unattended(self) -> None:  # in a worker
        time.sleep(0.2)
        with self._lock:
            if not self._visited: self._pass_on()
    def _pass_on(self, left: bool = False) -> None:
        """What nobody will take here: questions go to workers, and updates go too when the turn is collected."""
        for _ in range(len(self._entries)):  # once round
            entry, size, mark = self._entries.popleft()
            if isinstance(entry, _Question):
                if not sys.is_finalizing(): self.session.client.run(entry.run)  # no thread can start at the exit
            elif left: self._connection.hold(-size)
            else: self._entries.append((entry, size, mark))
    @contextmanager
    def blocked(self) -> Iterator[None]:  # the callback in the waiting thread is in a blocking call
        with self._lock:
            self._blocked = True
            self._pass_on()
        try: yield
        finally:
            with self._lock: self._blocked = False
    def _watch(self, question: _Question) -> None:  # in a worker, should the callback hang till the turn's time is up
        with self._lock:
            while question in self.session.questions and _wait(self._changed.wait, self._deadline): pass
            if question in self.session.questions:
                self._late = not self.ended
                self.cancel()
                question.cancel()
    def __iter__(self) -> Iterator[SessionUpdate]:
        try:
            while (update := self._next(NEVER, True)) is not None:
                while update is not None:
                    yield update
                    update = self._ready()
        except KeyboardInterrupt:  # in _ready
            self.cancel()
            raise
        finally:
            with self._lock: self._left = True; self._pass_on()
    def _ready(self) -> Any:  # the next update if it is there in time, and no callback has to see it first
        with self._lock:
            if time.monotonic() > self._deadline: return None
            if not self._entries or self._entries[0][2] or isinstance(self._entries[0][0], _Question): return None
            update, size, _ = self._entries.popleft()
        self._connection.hold(-size)
        return update
    def wait(self, timeout: Optional[float] = None) -> Optional[str]:
        """Wait for the end and return the stop reason (end_turn, max_tokens, max_turn_requests, refusal, cancelled or a
        word unknown here); updates that were not iterated are dropped. Raises Timeout after `timeout` seconds, and the
        turn goes on; RequestError for a turn that failed, ConnectionClosed."""
        self._next(NEVER if timeout is None else time.monotonic() + timeout, False)
        return self.stop_reason
    def _next(self, own: float, keep: bool) -> Any:  # own: the caller's deadline, at which the turn goes on
        """The next update, or None at the end; raises what the turn failed with. keep=False: only the end counts."""
        here = self._connection.here
        if getattr(here, "dispatched", False) or self.session in (getattr(here, "answering", None) or ()):
            raise Error("waiting for a turn inside a dispatched callback, or inside a permission or elicitation "
                        "callback of its session, would hang the thread that has to answer")
        deadline = min(self._deadline, own)
        try:
            with self._connection.blocking():
                while True:
                    entry, mark = self._take(own, keep)
                    broken = isinstance(self._course.error, ConnectionClosed)
                    limit = time.monotonic() + 1 if broken else deadline
                    late = not self._connection.in_handler() and not self.session.strand.wait(mark, limit)
                    if late and not broken: self._expired("an update is still being handled", deadline < own)
                    if entry is None and self._course.error is not None: raise self._course.error.with_traceback(None)
                    if not isinstance(entry, _Question): return entry
                    if self._deadline < NEVER: self._connection.workers.run(functools.partial(self._watch, entry))
                    entry.run(self)
                    if self._late: self._late = False; self._expired("the time given is over", True)
        except KeyboardInterrupt:
            self.cancel()
            raise
    def _take(self, own: float, keep: bool) -> Tuple[Any, int]:
        with self._lock:
            self._visited = True
            while True:
                while self._entries and (self.ended or time.monotonic() < self._deadline):
                    entry, size, mark = self._entries.popleft()
                    self._connection.hold(-size)
                    if keep or isinstance(entry, _Question): return entry, mark
                if self.ended: return None, 0 if keep else self.session.strand.posted
                asking = any(each.course for each in self.session.questions)  # then silence is no fault
                limit = min(own, self._deadline if asking else self._limit())
                if not _wait(self._changed.wait, limit):
                    self._visited = False; self._pass_on()  # nobody waits any more
                    over = limit in (own, self._deadline)
                    self._expired("the time given is over" if over else f"no update for {self._idle} s", limit < own)
    def _expired(self, why: str, cancels: bool) -> NoReturn:
        if cancels: self.cancel()
        end = "was cancelled" if cancels else "goes on"
        raise Timeout(f"{self._course.pending or 'session/prompt'}: {why}; the turn {end}")

class _AgentProcess(Process):  # an agent that was started as a command
    def __init__(self, command: List[str], env: Optional[Dict[str, str]], cwd: Optional[str], on_stderr: Any) -> None:
        import subprocess
        super().__init__("the agent", command, env, cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
        self._tail: Deque[bytes] = collections.deque()  # the last of stderr; only the stderr thread appends
        self._lock, self._ended = threading.Lock(), False  # one thread ends the process; the others wait for it
        self.threads: Sequence[threading.Thread] = ()  # that write to and read from it
        self.let_go: Job = lambda: None  # ends the writer
        self._drained = threading.Event()
        _spawn("stderr", self._drain, self.popen.stderr, on_stderr)
    def _drain(self, stream: Any, on_stderr: Any) -> None:  # the stderr thread
        size, partial, data = 0, b"", b"\n"
        while data:
            data = b""
            with suppress(OSError, ValueError): data = stream.read(65536)
            self._tail.append(data)
            size += len(data)
            while size - len(self._tail[0]) >= 65536: size -= len(self._tail.popleft())
            *lines, partial = (partial[-65536:] + data).split(b"\n") if data else (partial, b"")
            for line in lines if on_stderr is not None and (data or lines[0]) else ():
                _quietly("on_stderr", on_stderr, line.decode("utf-8", "replace").rstrip("\r"))
        stream.close()
        self._drained.set()
    def watch(self, owner: Any) -> None:  # the process thread: a dead agent ends the connection, though stdout is held
        self.popen.wait()
        self.exited.set(); self.signal(0)
        time.sleep(1.0)  # what it wrote last is read first
        if (connection := owner()) is not None and not connection.closed: connection.broken("the agent's process ended")
    def last_words(self) -> Tuple[Optional[int], str]:  # the exit status, if it ends now, and the last 64 KiB of stderr
        if self.exited.wait(0.5): self._drained.wait(0.2)
        return self.popen.poll(), b"".join(list(self._tail))[-65536:].decode("utf-8", "replace")
    def end(self) -> None:  # the process and its group, gently first; returns when it is done
        with self._lock:
            if self._ended: return
            try:
                self.let_go()
                close_behind(self.popen.stdin, *self.threads[:1])  # a writer that hangs in it the agent's end frees
                self.exited.wait(GRACE_LEAVING)
                self.kill()
            finally: self.signal(9)  # a Ctrl-C does not spare it
            self._drained.wait(0.5)
            close_behind(self.popen.stdin, *self.threads[:1])
            close_behind(self.popen.stdout, *self.threads[1:])
            self._ended = True  # last, so that after a Ctrl-C the next to call does what is left

# == 10. Local services ===============================================================================================
# What a client may offer to version 1 agents: files, confined to folders, and commands.
class LocalFiles:
    """Text files for version 1 agents: `Client(..., files=LocalFiles("/my/project"))` (File System). Confined to the
    folders `roots`, after symlinks; paths are absolute; `write=False` offers reading only. Runs in workers. Raises
    InvalidParams for what is wrong with a path, NotFound for a missing file."""
    def __init__(self, *roots: str, write: bool = True) -> None:
        if not roots: raise ValueError("LocalFiles needs at least one folder")
        self._roots, self.write = [os.path.realpath(root) for root in roots], write
    @contextmanager
    def _place(self, path: str, make: bool = False) -> Iterator[Tuple[str, Optional[int]]]:
        """The folder of a file, opened, and the file's name in it. Each step down from the root follows no link: links
        were followed before, and one that was put there since cannot lead out. Where the system opens no folders
        (Windows) the path and None. What goes wrong inside is told as an answer."""
        if not os.path.isabs(path): raise InvalidParams("params.path: expected an absolute path")
        try:
            real = os.path.realpath(path)
            within = [each for each in self._roots if os.path.join(real, "").startswith(os.path.join(each, ""))]
            if not within: raise InvalidParams("params.path: not below a folder that this client offers")
            *folders, name = os.path.relpath(real, within[0]).split(os.sep)
            if os.open not in os.supports_dir_fd:
                if make: os.makedirs(os.path.dirname(real), exist_ok=True)
                yield real, None
                return
            here = os.open(within[0], os.O_RDONLY | os.O_DIRECTORY)
            try:
                for folder in folders:
                    if make:
                        with suppress(FileExistsError): os.mkdir(folder, dir_fd=here)
                    below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
                    os.close(here)
                    here = below
                yield name, here
            finally: os.close(here)
        except FileNotFoundError: raise NotFound("no such file", {"path": path}) from None
        except UnicodeDecodeError: raise InvalidParams("params.path: not text in UTF-8") from None
        except (OSError, ValueError) as error:  # ValueError: a null byte
            raise InvalidParams(f"params.path: {getattr(error, 'strerror', None) or 'not a path'}") from None
    def _open(self, name: str, folder: Optional[int]) -> int:  # for reading; a FIFO would have us wait for a writer
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        number = os.open(name, flags, dir_fd=folder)
        if stat.S_ISREG(os.fstat(number).st_mode): return number
        os.close(number)
        raise InvalidParams("params.path: not a regular file")
    def read_text_file(self, params: ReadTextFileRequest) -> ReadTextFileResponse:
        """From `line` (1-based), at most `limit` lines, newlines as they are (fs/read_text_file)."""
        first, text = max(0, (params.line or 1) - 1), bytearray()
        last, most = NEVER if params.limit is None else first + params.limit, 64 << 20  # bytes; few peers take more
        with self._place(params.path) as place, open(self._open(*place), "rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(most + 1), b"")):
                if number >= last: break
                if number >= first: text += line
                if max(len(line), len(text)) > most: raise InvalidParams("params.limit: over 64 MiB: ask for less")
            return ReadTextFileResponse(text.decode("utf-8"))
    def write_text_file(self, params: WriteTextFileRequest) -> EmptyResponse:
        """The whole text, atomically: the file is the old one or the new one, with the old one's mode; folders are made
        (fs/write_text_file)."""
        if not self.write: raise InvalidParams("params.path: this client offers reading only")
        with self._place(params.path, make=True) as (name, folder):
            mode = None
            with suppress(FileNotFoundError), open(self._open(name, folder), "rb") as old:
                mode = os.fstat(old.fileno()).st_mode & 0o7777
                if not mode & 0o222: raise InvalidParams("params.path: the file is read-only")
            new = os.path.join(os.path.dirname(name), new_id(".acp"))
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
            try:
                with open(os.open(new, flags, 0o666 if mode is None else 0o600, dir_fd=folder), "wb") as file:
                    file.write(params.content.encode("utf-8", "replace"))
                    if mode is not None and hasattr(os, "fchmod"): os.fchmod(file.fileno(), mode)
                os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                with suppress(OSError): os.unlink(new, dir_fd=folder)  # there only where something failed
        return EmptyResponse()

class LocalTerminals:
    """Commands for version 1 agents: `Client(..., terminals=LocalTerminals())` (Terminals). A command runs without a
    shell, in `cwd` or else the session's folder, with this process's environment and what the request adds, without
    input, in a process group of its own. Kept are the last `outputByteLimit` bytes of what it prints. All that runs is
    killed on release, and when the session or the client closes. Runs in workers; `wait_for_exit` blocks one. Raises
    InvalidParams for what cannot be started, NotFound for a terminal that is not there."""
    def __init__(self) -> None:
        self._commands: Dict[Tuple[str, str], CommandProcess] = {}  # by ids of session and terminal; each use is atomic
    def create(self, params: CreateTerminalRequest) -> CreateTerminalResponse:
        """Start a command (terminal/create)."""
        if params.cwd is not None: _check_path("cwd", params.cwd)
        session = getattr(params, "session", None)  # set by the client; its state and callbacks see the output
        owner = weakref.ref(session) if session else lambda: None  # what runs does not keep the client alive
        def show(update: Any) -> Any: return (found := owner()) and found.show(update)
        params = copy_of(params, cwd=params.cwd or getattr(session, "cwd", None))
        try: command = CommandProcess(params, show)
        except Error as error: raise InvalidParams(f"params.command: {error}") from None
        self._commands[params.session_id, command.id] = command
        command.begin()
        return CreateTerminalResponse(command.id)
    def _command(self, params: CancelTerminalRequest) -> CommandProcess:
        if found := self._commands.get((params.session_id, params.terminal_id)): return found
        raise NotFound("no such terminal", {"terminalId": params.terminal_id})
    def output(self, params: CancelTerminalRequest) -> TerminalOutputResponse:
        """What it has printed (terminal/output)."""
        return self._command(params).output()
    def wait_for_exit(self, params: CancelTerminalRequest) -> TerminalExitStatus:
        """Wait for its end (terminal/wait_for_exit)."""
        command, request = self._command(params), getattr(params, "request", None)  # set by the client
        while not command.ended.wait(0.2 if request else None):
            if request and request.cancelled: raise Cancelled("nobody waits for the command any more")
        return cast(TerminalExitStatus, command.status)
    def kill(self, params: CancelTerminalRequest) -> EmptyResponse:
        """End the command and what it has started; its output stays (terminal/kill)."""
        self._command(params).kill()
        return EmptyResponse()
    def release(self, params: CancelTerminalRequest) -> EmptyResponse:
        """Kill it and forget it (terminal/release)."""
        self._command(params).kill()
        self._commands.pop((params.session_id, params.terminal_id), None)
        return EmptyResponse()
    def close(self, *session_ids: str) -> None:
        """Kill and forget all of these sessions. The client calls it when a session or the client itself closes."""
        found = {key: command for key, command in list(self._commands.items()) if key[0] in session_ids}
        if found: Process.kill(*found.values())  # all at once; forgotten when that is done: another thread waits for it
        for key in found: self._commands.pop(key, None)

"""A coding agent whose model is any OpenAI-compatible endpoint, with nothing to install:

    python3 examples/coding_agent.py --model qwen3-coder                             # Ollama on this machine
    python3 examples/coding_agent.py --url http://127.0.0.1:8080/v1 --model any      # llama.cpp, vLLM ...
    OPENAI_API_KEY=... python3 examples/coding_agent.py --url https://api.openai.com/v1 --model gpt-5-mini

An editor starts it with these words as its command (README.md shows how); a terminal does so too:

    python3 examples/ask.py "why does test_login fail?" -- python3 examples/coding_agent.py --model qwen3-coder

It lists, searches, reads and changes files inside the session's folders, and runs commands there. Each change and each
command waits for the user's permission; in the mode auto-edit only commands do. The folders bind the file tools alone:
a command can reach whatever the user can. MCP servers that an editor hands over are not used. A conversation lives as
long as the process.
"""
import argparse
import contextlib
import functools
import http.client
import json
import os
import socket
import sys
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # acp.py is one folder up
import acp  # noqa: E402

SYSTEM = """You are a coding agent at work in the folder {cwd}. Paths may be relative to it. {more}
Look before you answer: list, search and read. Read a file before you change it, and make small changes with edit_file.
Check your work by a command where there is one. Keep a plan only for work of several steps. Be brief."""
REFUSED = "The user did not allow this. Do not try it in another way; ask what to do instead."
LONGEST = 30_000  # characters of a file, a listing or a command's output that the model gets at once
ENDPOINT_FAILED = -32050  # an error code of the range that is left to servers: no fault of this program
CONNECTING = 10  # seconds until an endpoint has to take the connection
SHELL = ["cmd", "/c"] if os.name == "nt" else ["sh", "-c"]
# name: kind and title of the tool call, what the model is told of it, and of its parameters ("?": may be left out)
TOOLS = {
    "list_files": ("read", "List {path}", "The names in a folder; those of folders end in /.", {
        "path": ("string", "a folder")}),
    "search": ("search", "Search {path} for {text}", "Lines that contain a text, as path:line: text. Not a pattern.", {
        "text": ("string", "what to look for, exactly"), "path": ("string", "a folder, with all below it, or a file")}),
    "read_file": ("read", "Read {path}", "A text file, or a part of it.", {
        "path": ("string", "a file"), "line?": ("integer", "the first line wanted, counted from 1"),
        "limit?": ("integer", "how many lines")}),
    "edit_file": ("edit", "Edit {path}", "Replace a text that stands exactly once in a file.", {
        "path": ("string", "a file"), "old": ("string", "the text, exactly, with its indentation"),
        "new": ("string", "what comes in its place")}),
    "write_file": ("edit", "Write {path}", "Make a file, or replace all of it.", {
        "path": ("string", "a file"), "content": ("string", "the whole text")}),
    "run_command": ("execute", "{command}", "Run a shell command in the session's folder, without input.", {
        "command": ("string", "the command"), "timeout?": ("integer", "seconds until it is killed; 120 if not given")}),
    "update_plan": ("think", "Update the plan", "Show the user the plan, whole, whenever it changes.", {
        "entries": ("array", "the steps")}),
}
TYPES = {"string": str, "integer": int, "array": list}
STATUSES = ["pending", "in_progress", "completed"]
ENTRY = {"type": "object", "required": ["content", "status"], "properties": {
    "content": {"type": "string"}, "status": {"type": "string", "enum": STATUSES}}}


def tools_for_model():
    """The tools in the words of chat completions."""
    tools = []
    for name, (_, _, description, parameters) in TOOLS.items():
        properties = {
            key.rstrip("?"): {"type": kind, "description": what, **({"items": ENTRY} if kind == "array" else {})}
            for key, (kind, what) in parameters.items()}
        tools.append({"type": "function", "function": {"name": name, "description": description, "parameters": {
            "type": "object", "properties": properties, "required": [key for key in parameters if "?" not in key]}}})
    return tools


def checked(name, given):
    """The arguments of a tool call. Raises ValueError in words that the model can act on."""
    if name not in TOOLS:
        raise ValueError(f"there is no tool {name!r}, only " + ", ".join(TOOLS))
    if not isinstance(given, dict):
        raise ValueError(f"the arguments of {name} are not a JSON object")
    known = {key.rstrip("?"): (kind, "?" in key) for key, (kind, _) in TOOLS[name][3].items()}
    arguments = {key: value for key, value in given.items() if value is not None}
    for key, (kind, optional) in known.items():
        if not (optional and key not in arguments or isinstance(arguments.get(key), TYPES[kind])):
            raise ValueError(f"{name} needs the argument {key}, of type {kind}")
    for key in arguments:
        if key not in known:
            raise ValueError(f"{name} has no argument {key!r}, only " + ", ".join(known))
    return arguments


def place(session, path):
    """The absolute path of a file that the model named. Raises PermissionError where that, or what a symbolic link on
    the way leads to, is outside the session's folders; ValueError for what is no path."""
    path = os.path.normpath(os.path.join(session.cwd, path))
    folders = [session.cwd, *session.additional_directories]
    real = os.path.join(os.path.realpath(path), "")
    if not any(real.startswith(os.path.join(os.path.realpath(folder), "")) for folder in folders):
        raise PermissionError(f"{path} is outside the session's folders: " + ", ".join(folders))
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise ValueError(f"{path} is no file and no folder")  # to open a pipe may take forever
    return path


def cut(text):
    """As much of a text as the model gets at once."""
    return text if len(text) <= LONGEST else text[:LONGEST] + f"\n[cut here: {len(text) - LONGEST} characters more]"


def text_of(prompt):
    """A prompt as the model gets it: links to files as paths, embedded resources whole."""
    parts = []
    for block in prompt:
        if isinstance(block, acp.ResourceLink):
            link = urllib.parse.urlsplit(block.uri)
            parts.append(urllib.request.url2pathname(link.path) if link.scheme == "file" else block.uri)
        elif isinstance(block, acp.EmbeddedResource):
            text = getattr(block.resource, "text", "(not text)")
            parts.append(f'\n<resource uri="{block.resource.uri}">\n{text}\n</resource>\n')
        else:
            parts.append(block.text)
    return "".join(parts)


# ---- the endpoint ---------------------------------------------------------------------------------------------------


class Cuttable:
    """Opens connections that a cancel of the turn cuts, in whatever read or write they hang: `response.close` would
    wait for that read, and before the headers there is no response to close; a socket that is shut down wakes both."""

    def do_open(self, connection_class, request, **options):
        class Connection(connection_class):
            def connect(self):
                super().connect()
                self.sock.settimeout(request.silence)
                request.turn.on_cancel(functools.partial(shut_down, self.sock))
        return super().do_open(Connection, request, **options)


def shut_down(sock):
    with contextlib.suppress(OSError):  # it may be over
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # past TLS, whose own shutdown is not for another thread


class HTTP(Cuttable, urllib.request.HTTPHandler):
    pass


class HTTPS(Cuttable, urllib.request.HTTPSHandler):
    pass


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A conversation and a key go where the user said, and nowhere else."""

    def redirect_request(self, *args):
        return None


def events(response):
    """The JSON objects of a stream of server-sent events. Raises ValueError where it is something else."""
    for line in iter(lambda: response.readline(16 << 20), b""):
        field, _, value = line.strip().partition(b":")
        if field == b"data" and value.strip() == b"[DONE]":
            return
        if field == b"data":
            yield json.loads(value)
        elif field not in (b"", b"event", b"id", b"retry"):  # a comment or an empty line; or what is of no use here
            raise ValueError("not a stream: " + line[:200].decode("utf-8", "replace").strip())


def assemble(calls, delta):
    """Add a delta to the tool calls so far. It goes to the newest call that its index and id allow, else begins one."""
    for part in delta.get("tool_calls") or ():
        index, id, function = part.get("index"), part.get("id"), part.get("function") or {}
        for call in reversed(calls):
            if index in (None, call["index"]) and (not id or id == call["id"]):
                break
        else:
            call = {"index": index, "id": id or "call-" + os.urandom(8).hex(), "name": "", "arguments": ""}
            calls.append(call)
        call["name"] += function.get("name") or ""
        call["arguments"] += function.get("arguments") or ""


class Endpoint:
    """Chat completions by HTTP."""

    def __init__(self, options, key):
        self.url, self.silence, self.context = options.url, options.timeout, options.context
        self.key, self.key_env = key, options.key_env
        local = urllib.parse.urlsplit(self.url).hostname in ("localhost", "127.0.0.1", "::1")
        proxies = urllib.request.ProxyHandler({} if local else None)
        self.opener = urllib.request.build_opener(proxies, HTTP, HTTPS, NoRedirect)

    def ask(self, turn, model, messages, said):
        """One answer of the model, shown as it comes. Its text goes piece by piece into the list `said`; returns the
        tool calls and the reason of its end. Raises RequestError in words for the user."""
        body = {"model": model, "messages": messages, "tools": tools_for_model(), "stream": True,
                "stream_options": {"include_usage": True}}
        text = json.dumps(body, ensure_ascii=False)  # then a lone surrogate, of a file's name, can be replaced
        calls, reason = [], None
        try:
            request = urllib.request.Request(self.url + "/chat/completions", text.encode("utf-8", "replace"), {
                "Content-Type": "application/json", "Accept": "text/event-stream", "User-Agent": "coding_agent.py"})
            if self.key:
                request.add_header("Authorization", "Bearer " + self.key)
            request.turn, request.silence = turn, self.silence
            with self.opener.open(request, timeout=CONNECTING) as response:
                for event in events(response):
                    if event.get("error"):
                        raise self.failed(None, event)
                    used = (event.get("usage") or {}).get("total_tokens")
                    if isinstance(used, int):
                        turn.usage(used, self.context)
                    for choice in event.get("choices") or ():
                        delta, reason = choice.get("delta") or {}, choice.get("finish_reason") or reason
                        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
                            turn.think(thought)
                        if text := delta.get("content"):
                            turn.say(text)
                            said.append(text)
                        assemble(calls, delta)
            if reason is None:
                raise ConnectionError("the answer broke off")
            return calls, reason
        except (acp.Cancelled, acp.ConnectionClosed, acp.RequestError):
            raise
        except (OSError, http.client.HTTPException, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise self.failed(error) from None  # which nobody hears of where a cancel cut the connection

    def failed(self, error, answer=None):
        """What went wrong, and what the user can do about it. The key is in no part of it."""
        reason, todo = getattr(error, "reason", error), "Try again."
        if isinstance(error, urllib.error.HTTPError):
            reason = f"HTTP {error.code} {error.reason}"
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                answer = json.loads(error.read(100_000))
            if error.code in (401, 403):
                todo = f"Set the environment variable {self.key_env} to a key that is good there."
            elif error.code < 500 and error.code != 429:
                todo = "Check --url (mostly it ends in /v1) and --model; if the conversation is too long, /clear it."
        elif isinstance(error, (socket.timeout, TimeoutError)):
            reason, todo = f"no word for {self.silence:g} seconds", "Try again; --timeout gives a slow model more."
        elif isinstance(error, (ConnectionError, http.client.IncompleteRead)):
            reason = f"the connection was lost ({error})"
        elif getattr(reason, "verify_code", 0):  # of TLS
            todo = "Set the environment variable SSL_CERT_FILE to a file with the certificate that vouches for it."
        elif isinstance(error, OSError):
            todo = "Start the model's server (Ollama: ollama serve), or give its address by --url."
        elif error is not None:
            reason = f"its answer makes no sense ({error})"
            todo = "Check --url: it takes an endpoint of OpenAI's kind, and mostly ends in /v1."
        words = answer.get("error") or answer if isinstance(answer, dict) else None  # the endpoint's own
        words = words.get("message") if isinstance(words, dict) else words
        reason = ": ".join(str(each) for each in (reason, words) if each)
        message = f"The model at {self.url} failed: {reason}. {todo}"
        return acp.RequestError(ENDPOINT_FAILED, message.replace(self.key, "...") if self.key else message)


# ---- the agent ------------------------------------------------------------------------------------------------------


class CodingAgent(acp.Agent):
    name = "coding-agent"
    title = "Coding Agent"
    versions = (1, 2)
    additional_directories = True
    prompt_capabilities = acp.PromptCapabilities(embedded_context=True)

    def __init__(self, endpoint, model, rounds):
        self.endpoint, self.model, self.rounds = endpoint, model, rounds

    def new_session(self, session):
        more = "".join(f"You may work in {each} too. " for each in session.additional_directories)
        session.model, session.system = self.model, {"role": "system", "content": SYSTEM.format(
            cwd=session.cwd, more=more)}
        session.messages = []
        session.config_options = [acp.SessionConfigSelect("mode", "Mode", "ask", [
            acp.SessionConfigSelectOption("ask", "Ask", "Changes and commands are asked for"),
            acp.SessionConfigSelectOption("auto-edit", "Auto-edit", "Only commands are asked for")], category="mode")]
        session.commands = [
            acp.Command("clear", "Forget the conversation"),
            acp.Command("model", "Go on with another model", acp.TextCommandInput("the model's name"))]

    def prompt(self, turn):
        session, text = turn.session, text_of(turn.prompt)
        word, _, rest = text.strip().partition(" ")
        if word == "/clear":
            session.messages = []
            turn.plan([])
            return turn.say("Forgotten.")
        if word == "/model":
            session.model = rest.strip() or session.model
            return turn.say(f"The model is {session.model}.")
        if session.title is None:
            session.title = " ".join(text.split())[:60] or "Code"
        # A list of this turn's own: a handler that was given up may still write to its old one.
        session.messages = messages = [*session.messages, {"role": "user", "content": text}]
        said = []
        try:
            for _ in range(self.rounds):
                calls, reason = self.endpoint.ask(turn, session.model, [session.system, *messages], said)
                if reason in ("length", "content_filter"):  # what was called may be cut
                    return {"length": "max_tokens"}.get(reason, "refusal")
                if not calls:
                    return None
                text = "".join(said)
                said.clear()
                self.use_tools(turn, messages, text, calls)
            return "max_turn_requests"
        finally:  # user and assistant take turns, also behind what was cut short: many models insist on it
            if messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": "".join(said) or "(no answer)"})

    def use_tools(self, turn, messages, text, calls):
        """Carry out the model's calls. Adds what was said, called and done to the messages: each call has its result,
        also when a cancel comes in between."""
        said, results = [], []
        for call in calls:
            try:
                given = json.loads(call["arguments"] or "{}")
            except (ValueError, RecursionError):
                given = None
            # Broken arguments do not go back: some servers fail over them.
            sent = json.dumps(given if isinstance(given, dict) else {}, ensure_ascii=False)
            said.append({"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": sent}})
            results.append({"role": "tool", "tool_call_id": call["id"], "content": "The user cancelled this."})
            call["given"] = given
        try:
            for call, result in zip(calls, results):
                result["content"] = self.use_tool(turn, call["name"], call["given"])
        finally:
            messages += [{"role": "assistant", "content": text, "tool_calls": said}, *results]

    def use_tool(self, turn, name, given):
        """Carry out one call. Returns what the model is told of it, its own mistakes included."""
        kind, title, arguments, wrong = "other", name or "a call without a name", {}, None
        try:
            arguments = checked(name, given)
            kind, title = TOOLS[name][0], TOOLS[name][1].format(**arguments)
            if "path" in arguments:
                arguments["path"] = place(turn.session, arguments["path"])
        except (ValueError, OSError) as error:
            arguments, wrong = {}, error
        with turn.tool(title, kind=kind, locations=[arguments["path"]] if "path" in arguments else ()) as tool:
            try:
                if wrong:
                    raise wrong
                return getattr(self, name)(turn, tool, **arguments)
            except (acp.Cancelled, acp.ConnectionClosed):
                raise
            except (acp.Error, OSError, ValueError) as error:
                tool.fail(str(error))
                return f"Error: {error}"

    # ---- tools: they return what the model is told, and raise ValueError or OSError ---------------------------------

    def list_files(self, turn, tool, path):
        with os.scandir(path) as entries:
            names = sorted(entry.name + "/" * entry.is_dir() for entry in entries)
        return cut("\n".join(names) or "The folder is empty.")

    def search(self, turn, tool, text, path):
        if not text:
            raise ValueError("an empty text is everywhere")
        found = []
        for file in files_below(path):
            turn.check()
            name = os.path.relpath(file, turn.session.cwd)
            found += [f"{name}:{number}: {line.strip()[:300]}" for number, line in lines_of(file) if text in line]
            if len(found) > 200:
                found[200:] = ["[more was found: search for something rarer]"]
                break
        result = cut("\n".join(found) or "Nothing found.")
        tool.add(result)
        return result

    def read_file(self, turn, tool, path, line=None, limit=None):
        return cut(turn.read_text_file(path, line, limit))

    def edit_file(self, turn, tool, path, old, new):
        text = self.read_whole(turn, path) or ""
        if "\r\n" in text:  # models write plain newlines
            old, new = (each.replace("\r\n", "\n").replace("\n", "\r\n") for each in (old, new))
        if not old or text.count(old) != 1:
            raise ValueError(f"the old text stands {text.count(old) if old else 0} times in the file, not once")
        return self.change(turn, tool, path, text, text.replace(old, new))

    def write_file(self, turn, tool, path, content):
        return self.change(turn, tool, path, self.read_whole(turn, path), content)

    def read_whole(self, turn, path):
        """A file's text, as the editor has it; None where there is none."""
        try:
            return turn.read_text_file(path)
        except (acp.RequestError, FileNotFoundError):
            if os.path.exists(path):
                raise
            return None

    def change(self, turn, tool, path, old, new):
        """Show what would change, ask where that is the mode, and write it."""
        if old == new:
            raise ValueError("that changes nothing")
        tool.diff(path, new, old)
        modes = [option.current_value for option in turn.session.config_options if option.config_id == "mode"]
        if modes == ["ask"] and not tool.ask_permission(remember=f"change {path}"):
            return REFUSED
        if self.read_whole(turn, path) != old:
            raise ValueError("the file was changed meanwhile: read it again")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        turn.write_text_file(path, new)
        return "Written."

    def run_command(self, turn, tool, command, timeout=120):
        if not tool.ask_permission(remember=f"run {command}"):
            return REFUSED
        with tool.terminal(SHELL[0], [SHELL[1], command], cwd=turn.session.cwd, output_byte_limit=LONGEST) as terminal:
            try:
                status = terminal.wait(timeout)
                how = f"signal {status.signal}" if status.signal else f"exit status {status.exit_code}"
            except acp.Timeout:
                how = f"killed, as it was not over after {timeout} seconds"
                terminal.kill()
            output = terminal.output()
        if how != "exit status 0":
            tool.update(status="failed")
        return f"{how}\n{'[the beginning is cut] ' if output.truncated else ''}{output.output}"

    def update_plan(self, turn, tool, entries):
        for each in entries:
            if not (isinstance(each, dict) and isinstance(each.get("content"), str)
                    and each.get("status") in STATUSES):
                raise ValueError("an entry of the plan needs content and status: " + " or ".join(STATUSES))
        turn.plan([acp.PlanEntry(each["content"], status=each["status"]) for each in entries])
        return "Shown."


def files_below(path):
    """The files in a folder and all below it, or the file itself; not those behind links, in hidden folders and in what
    a package manager filled."""
    if os.path.isfile(path):
        yield path
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(each for each in folders if not each.startswith(".") and each != "node_modules")
        for name in sorted(files):
            file = os.path.join(folder, name)
            if os.path.isfile(file) and not os.path.islink(file):
                yield file


def lines_of(file):
    """The numbered lines of a text file; none of what is binary, too long for a source, or not to be read."""
    data = b"\0"
    with contextlib.suppress(OSError), open(file, "rb") as stream:
        data = stream.read(1 << 20) if os.fstat(stream.fileno()).st_size <= 1 << 20 else data
    return [] if b"\0" in data else enumerate(data.decode("utf-8", "replace").split("\n"), 1)


def main(words):
    parser = argparse.ArgumentParser(prog="coding_agent.py", description="A coding agent; see the head of the file.")
    parser.add_argument("--url", default="http://127.0.0.1:11434/v1", help="the endpoint (default: Ollama here)")
    parser.add_argument("--model", required=True, help="the model's name, as the endpoint knows it")
    parser.add_argument("--key-env", default="OPENAI_API_KEY", help="the environment variable that holds the key")
    parser.add_argument("--context", type=int, default=32768, help="tokens that the model's context holds, for display")
    parser.add_argument("--rounds", type=int, default=50, help="how often a turn may ask the model")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that the endpoint may be silent")
    options = parser.parse_args(words)
    options.url = options.url.rstrip("/")
    if urllib.parse.urlsplit(options.url).scheme not in ("http", "https"):
        parser.error("--url has to begin with http:// or https://")
    key = os.environ.pop(options.key_env, "").strip()  # taken out: the commands that are run here have no use for it
    if not (key.isascii() and key.isprintable()):
        parser.error(f"what {options.key_env} holds is no key")
    CodingAgent(Endpoint(options, key), options.model, options.rounds).run()


if __name__ == "__main__":
    main(sys.argv[1:])

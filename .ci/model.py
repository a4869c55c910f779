"""A stand-in for a language model, on a loopback port, that follows a script in the user's own prompt.

Speaks enough of two HTTP APIs for agents to work with: OpenAI's chat completions and Gemini's generateContent,
streaming or not. The script is what follows the word STEPS: in the last user message that has it, a JSON list: {"call":
TOOL, "with": {...}} calls a tool (when the request offers it), {"say": TEXT} answers, {"slow": N} says N words, five a
second.
A step is taken for each of the model's turns since that message; after the last, and without a script, it says DONE.
"""
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DONE = "The script is done."


def texts(value):
    """All text in a message's content, whatever its shape."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(texts(each) for each in value)
    if not isinstance(value, dict):
        return ""
    return texts(value.get("text") or value.get("parts") or value.get("content") or "")


def next_step(turns, tools):
    """turns: (role, text), role user, model or other."""
    steps, taken, last = [], 0, ""
    for role, text in turns:
        begin = text.rfind("STEPS:") if role == "user" else -1
        if begin >= 0:
            try:
                steps, taken = json.JSONDecoder().raw_decode(text[begin + 6:].lstrip())[0], 0
            except ValueError:
                continue
        taken += role == "model" and last != "model"
        last = role
    step = steps[taken] if taken < len(steps) else {"say": DONE}
    return {"say": f"There is no tool {step['call']}."} if step.get("call", "") not in ("", *tools) else step


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def whole(self, value, status=200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def event(self, value):
        data = f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def do_GET(self):
        self.whole({"object": "list", "data": [{"id": "model", "object": "model", "created": 1, "owned_by": "script"}]})

    def body(self):
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        data = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def do_POST(self):
        asked, path = json.loads(self.body() or b"{}"), self.path.split("?")[0]
        try:
            if path.endswith("/chat/completions"):
                self.chat(asked)
            elif path.endswith("enerateContent"):
                self.gemini(asked, path.endswith(":streamGenerateContent"))
            elif path.endswith(":countTokens"):
                self.whole({"totalTokens": 10})
            else:
                self.whole({"error": {"message": "not found"}}, 404)
        except (BrokenPipeError, ConnectionResetError):  # the agent has cancelled
            self.close_connection = True

    def words(self, step):
        for number in range(step.get("slow", 0)):
            time.sleep(0.2)
            yield f"word {number} "
        if "say" in step:
            yield from (word + " " for word in step["say"].split(" ")[:-1])
            yield step["say"].split(" ")[-1]

    def chat(self, asked):
        turns = [({"assistant": "model"}.get(each["role"], each["role"]), texts(each.get("content")))
                 for each in asked["messages"]]
        step = next_step(turns, [tool["function"]["name"] for tool in asked.get("tools") or ()])
        head = {"id": "answer", "created": 1, "model": asked.get("model")}
        usage = {"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19}
        call = [{"index": 0, "id": f"call-{time.monotonic_ns()}", "type": "function", "function": {
            "name": step["call"], "arguments": json.dumps(step["with"])}}] if "call" in step else None
        finish = "tool_calls" if call else "stop"
        if not asked.get("stream"):
            message = {"role": "assistant", "content": None if call else "".join(self.words(step)),
                       **({"tool_calls": call} if call else {})}
            return self.whole({**head, "object": "chat.completion", "usage": usage, "choices": [
                {"index": 0, "message": message, "finish_reason": finish}]})
        self.begin()

        def chunk(delta, finish=None):
            self.event({**head, "object": "chat.completion.chunk",
                        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
        chunk({"role": "assistant", "content": ""})
        if call:
            chunk({"tool_calls": call})
        for word in self.words(step):
            chunk({"content": word})
        chunk({}, finish)
        self.event({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def gemini(self, asked, streaming):
        turns = []
        for each in asked["contents"]:
            said = texts([part for part in each["parts"] if "text" in part])
            role = each.get("role", "user")
            turns.append(("other" if role == "user" and not said.strip() else role, said))
        step = next_step(turns, [one["name"] for tool in asked.get("tools") or ()
                                 for one in tool.get("functionDeclarations") or ()])
        usage = {"promptTokenCount": 12, "candidatesTokenCount": 7, "totalTokenCount": 19}

        def answer(part, finish=None):
            candidate = {"index": 0, "content": {"role": "model", "parts": [part]}}
            return {"usageMetadata": usage, "modelVersion": "model",
                    "candidates": [{**candidate, **({"finishReason": finish} if finish else {})}]}
        shape = (asked.get("generationConfig") or {}).get("responseJsonSchema")
        if "call" in step:
            answers = [answer({"functionCall": {"name": step["call"], "args": step["with"]}}, "STOP")]
        elif shape and not streaming:  # a router that wants a choice
            answers = [answer({"text": json.dumps(least(shape))}, "STOP")]
        elif not streaming:
            answers = [answer({"text": "".join(self.words(step))}, "STOP")]
        else:
            self.begin()
            for word in self.words(step):
                self.event(answer({"text": word}))
            self.event(answer({"text": ""}, "STOP"))
            return self.wfile.write(b"0\r\n\r\n")
        if not streaming:
            return self.whole(answers[0])
        self.begin()
        for each in answers:
            self.event(each)
        self.wfile.write(b"0\r\n\r\n")


def least(shape):
    """A smallest value that fits a JSON schema."""
    if shape.get("enum"):
        return shape["enum"][0]
    if str(shape.get("type", "object")).lower() == "object":
        return {name: least(each) for name, each in (shape.get("properties") or {}).items()}
    return {"array": [], "string": "x", "number": 1, "integer": 1}.get(str(shape["type"]).lower(), False)


def serve():
    """Starts one; returns its base URL. It ends with the process."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    server.daemon_threads = True
    server.handle_error = lambda request, address: None  # an agent that was cancelled or killed has hung up
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"

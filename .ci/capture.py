"""Writes down what the library itself sends, in the interpreter that imports this and wherever acp.py is loaded there.

For a test run: with the environment variable ACP_CAPTURE set to a folder, each process writes a file in it, a line a
message: a JSON object of what is known of it, a tab, the message as it went out. `captured.py` checks them against the
schemas. `install(folder)` of a virtual environment makes all its processes import this (a .pth file), so that agents
and clients that the tests start as processes are seen too. Nothing in the tests knows of it.

What is known: `role` (agent, client, or bare for a Connection used by itself), `version` (0: not negotiated), `method`
(of a response: the method that it answers), `test`, and `named`: that the caller gave method and params by name, with
Client.request and the like, so that they are not the library's words.
"""
import fcntl
import importlib.abc
import importlib.machinery
import json
import os
import sys
import threading

BIG = 1 << 20  # bytes; longer messages are counted, not written


def install(python):
    """Let all processes of this interpreter's environment import this module when ACP_CAPTURE is set."""
    import subprocess
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    folder = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, encoding="utf-8", check=True).stdout.strip()
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, "acp_capture.pth"), "w", encoding="utf-8") as file:
        file.write(f"import os, sys; os.environ.get('ACP_CAPTURE') and (sys.path.append({here!r}), "
                   "__import__('capture').begin())\n")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds a module called acp where the others would, and wraps it when it is loaded."""

    def find_spec(self, name, path=None, target=None):
        if name.rpartition(".")[2] != "acp":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin and os.path.basename(spec.origin) == "acp.py":
            load = spec.loader.exec_module

            def exec_module(module):
                load(module)
                wrap(module)
            spec.loader.exec_module = exec_module
            return spec
        return None


def begin():
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def wrap(acp):
    folder, local, lock = os.environ["ACP_CAPTURE"], threading.local(), threading.Lock()
    files = {}

    def file():
        with lock:  # by process: a fork gets its own
            if os.getpid() not in files:
                name = os.path.join(folder, f"{os.getpid()}-{id(acp):x}.lines")
                opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                # far up: tests look at which descriptors are given out next
                files[os.getpid()] = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, 900)
                os.close(opened)
            return files[os.getpid()]

    append, reply = acp.Connection.append, acp.Request._reply

    def captured_append(self, line, message=None):  # updates come as lines alone
        append(self, line, message)
        handler = getattr(self, "_handler", None)
        role = {"_AgentSide": "agent", "Client": "client"}.get(type(handler).__name__, "bare")
        answering = getattr(local, "request", None)
        version = getattr(handler, "version", 0) if role != "bare" else 0
        if role == "agent" and not version:
            version = self.version  # the answer of initialize is made before the side is said to be ready
        known = {"role": role, "version": version, "test": os.environ.get("PYTEST_CURRENT_TEST", ""),
                 "method": "session/update" if message is None else message.get("method") or (
                     answering.method if answering is not None else None),
                 "named": getattr(local, "named", 0)}
        data = line if len(line) <= BIG else b"null\n"
        os.write(file(), json.dumps(known).encode() + b"\t" + data)

    def captured_reply(self, message):
        before, local.request = getattr(local, "request", None), self
        try:
            return reply(self, message)
        finally:
            local.request = before

    def by_name(function):
        def call(self, *args, **options):
            if sys._getframe(1).f_globals is acp.__dict__:  # the library's own words
                return function(self, *args, **options)
            local.named = getattr(local, "named", 0) + 1
            try:
                return function(self, *args, **options)
            finally:
                local.named -= 1
        return call

    acp.Connection.append, acp.Request._reply = captured_append, captured_reply
    for cls in (acp.Connection, acp.Client, acp.AgentSession):
        for name in ("request", "notify"):
            setattr(cls, name, by_name(getattr(cls, name)))


if __name__ == "__main__":
    install(sys.argv[1])

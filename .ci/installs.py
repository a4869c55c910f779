"""What the gates need from the registries, kept in a cache so that a second run is quick.

The cache is $ACP_CI_CACHE, else acp-ci under $XDG_CACHE_HOME or ~/.cache. Each set of packages has a folder of its own,
named by what is in it; it is made beside its place and moved there when it is whole, so an interrupted run leaves none
that is half. Needs pip, and npm for what is made with it.
"""
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile

SDK = "@agentclientprotocol/sdk@2.4.0"  # the official TypeScript SDK; it also holds the JSON Schemas
ZOD = "zod@4.4.3"  # what it asks for beside itself
PYTHON_SDKS = ("0.12.1", "1.0.0rc3")  # releases of agent-client-protocol, the official Python SDK
JSONSCHEMA = "jsonschema==4.26.0"


def cache():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = os.environ.get("ACP_CI_CACHE") or os.path.join(base, "acp-ci")
    os.makedirs(folder, exist_ok=True)
    return folder


def made(words, make):
    """The folder that `make(folder)` fills, from the cache where it is there."""
    digest = hashlib.sha1(" ".join(words).encode()).hexdigest()[:10]
    name = re.sub(r"[^\w.]+", "-", "-".join(words[:2])).strip("-")[:40] + "-" + digest
    place = os.path.join(cache(), name)
    if os.path.isfile(os.path.join(place, "whole")):
        return place
    shutil.rmtree(place, ignore_errors=True)
    work = tempfile.mkdtemp(dir=cache(), prefix="making-")
    try:
        make(work)
        with open(os.path.join(work, "whole"), "w", encoding="utf-8") as file:
            file.write(" ".join(words) + "\n")
        try:
            os.rename(work, place)
        except OSError:  # somebody else was quicker
            if not os.path.isfile(os.path.join(place, "whole")):
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return place


def run(words, **options):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          encoding="utf-8", errors="replace", **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout[-3000:]}")
    return done.stdout


def npm(*packages):
    """A folder whose node_modules holds these packages of npm."""
    if shutil.which("npm") is None:
        raise SystemExit("npm is needed, and is not there")

    def make(folder):
        with open(os.path.join(folder, "package.json"), "w", encoding="utf-8") as file:
            file.write('{"private": true}\n')
        run(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *packages], cwd=folder)
    return made(["npm", *packages], make)


def python(*packages, interpreter=sys.executable):
    """The interpreter of a virtual environment with these packages of PyPI."""
    version = run([interpreter, "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])"]).strip()
    where = os.path.realpath(interpreter)

    def make(folder):
        # A virtual environment knows its path, so it is moved by name only: its scripts are not used, its python is.
        run([interpreter, "-m", "venv", os.path.join(folder, "venv")])
        run([os.path.join(folder, "venv", "bin", "python"), "-m", "pip", "install", "-q", *packages],
            env=dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1"))
    return os.path.join(made(["python", *packages, version, where], make), "venv", "bin", "python")


def interpreter(version):
    """The path of a Python of this version, such as "3.13": pyenv's newest, else the one on PATH."""
    found = []
    if shutil.which("pyenv"):
        root = run(["pyenv", "root"]).strip()
        found = sorted(glob.glob(os.path.join(root, "versions", version + ".*", "bin", "python")), reverse=True)
    for each in [*found, shutil.which("python" + version)]:
        if each and subprocess.run([each, "--version"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL).returncode == 0:
            return each
    raise SystemExit(f"Python {version} is needed, and is not there")


def again(*packages):
    """Run the calling script in an interpreter that has these packages; returns where it has them."""
    if os.environ.get("ACP_CI_INSIDE") == sys.argv[0]:
        return
    inside = python(*packages)
    sys.stdout.flush()
    os.execve(inside, [inside, *sys.argv], dict(os.environ, ACP_CI_INSIDE=sys.argv[0]))


def schemas():
    """The folder of the JSON Schemas: v1 and v2, each with schema.json and schema.unstable.json."""
    def make(folder):
        packed = run(["npm", "pack", "--silent", "--pack-destination", folder, SDK], cwd=folder).split()[-1]
        shutil.unpack_archive(os.path.join(folder, packed), folder)
        os.remove(os.path.join(folder, packed))
        for name in os.listdir(os.path.join(folder, "package")):
            if name != "schema":
                path = os.path.join(folder, "package", name)
                shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    return os.path.join(made(["schemas", SDK], make), "package", "schema")


if __name__ == "__main__":  # what .ci/run needs, before several gates want it at once
    schemas()
    npm(SDK, ZOD)
    python(JSONSCHEMA)
    for release in PYTHON_SDKS:
        python(f"agent-client-protocol=={release}")

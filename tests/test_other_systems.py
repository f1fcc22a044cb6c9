"""On a system without the modules and names of POSIX everything is imported, and what cannot work says so."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PROBE = '''
"""The standard library and others are loaded as on this system; modelyard then finds what Windows has."""
import builtins, json, os, select, signal, socket, sys
import asyncio, concurrent.futures, http.server, logging, multiprocessing, shutil, sqlite3, ssl, subprocess, tempfile
import click, cattrs, httpx, hypothesis, hypothesis.stateful, pytest, sqlite_utils, uvicorn

MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix", "syslog", "readline", "curses"}
NAMES = {
    os: """fork forkpty getuid geteuid getgid getpgid setsid killpg register_at_fork pread pwrite fdatasync uname
        sysconf statvfs fchmod chown mkfifo sched_getaffinity pidfd_open waitid WNOHANG WIFEXITED O_DIRECTORY O_NOFOLLOW
        O_CLOEXEC O_SYNC O_DSYNC""",
    signal: """SIGKILL SIGHUP SIGQUIT SIGALRM SIGCHLD SIGCONT SIGSTOP SIGUSR1 SIGUSR2 setitimer pthread_kill
        pthread_sigmask""",
    socket: "AF_UNIX SOCK_SEQPACKET",
    select: "poll epoll",
}
usual = builtins.__import__

def found(name, globals=None, *more, **options):
    asking = (globals or {}).get("__name__", "").partition(".")[0]
    if name.partition(".")[0] in MODULES and asking in ("modelyard", "pytest_modelyard"):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return usual(name, globals, *more, **options)

builtins.__import__ = found
for module, names in NAMES.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
'''
IMPORTS = """
import importlib, pkgutil, modelyard

failed = {}
for module in pkgutil.walk_packages(modelyard.__path__, "modelyard."):
    try:
        importlib.import_module(module.name)
    except Exception as error:
        failed[module.name] = repr(error)
import pytest_modelyard
print(json.dumps([failed, len([name for name in sys.modules if name.startswith("modelyard.")])]))
"""
WORKS = """
from modelyard import open_platform
from modelyard.backends import EchoBackend
from modelyard.errors import ModelyardError
from modelyard.executors import SubprocessExecutor
from modelyard.testing import use_cassette

said = []
for mode in ("new", "none"):
    with open_platform(backend=use_cassette(sys.argv[1] + "/echo.jsonl", EchoBackend(), mode=mode)) as platform:
        said.append(platform.chat.complete(model="echo", messages="hello").text)
refused = []
for refuse in (lambda: open_platform(sys.argv[1] + "/yard.db"), lambda: SubprocessExecutor("app:make")):
    try:
        refuse()
    except ModelyardError as error:
        refused.append(str(error))
print(json.dumps([said, refused]))
"""
NEED_EXTRAS = ("modelyard.parts.torch.", "modelyard.parts.torch.tiny_model", "modelyard.parts.mcp.server")


def on_another_system(code: str, *arguments: str) -> Any:
    done = subprocess.run([sys.executable, "-c", PROBE + code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_module_is_imported() -> None:
    failed, imported = on_another_system(IMPORTS)
    assert {name: error for name, error in failed.items() if not name.startswith(NEED_EXTRAS)} == {}
    assert imported > 300


def test_what_is_in_memory_and_cassettes_work_and_the_rest_is_refused_in_a_sentence(tmp_path: Path) -> None:
    reply, refused = on_another_system(WORKS, str(tmp_path))
    assert reply == ["hello", "hello"]
    files, processes = refused
    assert "artifacts in a folder need Linux or macOS: on Windows use WSL" in files
    assert "a process for each job needs Linux or macOS: on Windows use WSL" in processes


@pytest.mark.parametrize("absent", ["import fcntl", "import os; os.fork", "import signal; signal.SIGKILL"])
def test_the_other_system_lacks_what_it_should(absent: str) -> None:
    code = f"sys.modules.pop('fcntl', None)\nexec({absent!r}, {{'__name__': 'modelyard.probe'}})"
    with pytest.raises(AssertionError, match=r"ModuleNotFoundError|AttributeError"):
        on_another_system(code)

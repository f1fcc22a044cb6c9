"""Attempts of environments in processes of their own: how they end, and what they say."""

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from modelyard import open_platform
from modelyard.errors import InvalidInput
from modelyard.parts.episodes.environments import processes
from modelyard.parts.loops.loopback import LoopbackServer

PLAY = """
import os
import subprocess
import sys
import threading

from modelyard.parts.episodes.environments.processes import answer


def played(what, where):
    if what == "raise":
        raise ValueError("my\\n  rubric is broken")
    if what == "exit":
        raise SystemExit("no more")
    if what == "die":
        print("first\\nlast words\\n", flush=True)
        os._exit(3)
    if what == "leave":
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=open(where))
    if what == "hang":
        child = subprocess.Popen(["sleep", "600"])
        with open(where, "w") as file:
            file.write(f"{os.getpid()} {child.pid}")
        threading.Event().wait()
    return what


if __name__ == "__main__":
    answer(played)
"""
PARENT = """
from modelyard.parts.episodes.environments import processes

processes.result_of("play", "{url}/inference/v1", "{key}", {{"what": "hang", "where": "{where}"}})
"""

Played = Callable[..., object]
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    (tmp_path / "play.py").write_text(PLAY)
    monkeypatch.syspath_prepend(tmp_path)

    def run(what: str, where: object = "", url: str = "http://127.0.0.1:9", key: str = "none") -> object:
        return processes.result_of("play", f"{url}/inference/v1", key, {"what": what, "where": str(where)})

    return run


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    """A pipe into which an attempt that hangs writes its process and that of what it has started."""
    os.mkfifo(tmp_path / "pids")
    return tmp_path / "pids"


def end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def gone(pid: int) -> bool:
    """Wait until a process has ended. It may be a zombie whose parent is not this one."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], 60)[0])
    finally:
        os.close(watched)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("raise", "my rubric is broken"),
        ("exit", "SystemExit: no more"),
        ("die", "the process of the attempt ended with 3: last words"),
    ],
)
def test_what_has_failed_is_said_in_a_line(play: Played, what: str, said: str) -> None:
    with pytest.raises(RuntimeError) as raised:
        play(what)
    assert str(raised.value) == said


def test_what_an_attempt_leaves_behind_is_not_waited_for(play: Played, tmp_path: Path) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    writer = os.open(held, os.O_RDWR)  # so that what reads it waits until this is closed
    try:
        assert play("leave", held) == "leave"
    finally:
        os.close(writer)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for processes that are not its own")
def test_an_attempt_ends_with_its_key_and_takes_along_what_it_has_started(
    play: Played, pids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_platform() as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        server = LoopbackServer(platform._runtime)
        group = platform.episodes.group("g", model="p/m", size=1, url=server.url)
        failed: list[str] = []

        def attempt() -> None:
            try:
                play("hang", pids, server.url, group[0].key)
            except RuntimeError as error:
                failed.append(str(error))

        thread = threading.Thread(target=attempt)
        thread.start()
        found = [int(one) for one in pids.read_text().split()]
        group.close()
        try:
            assert all(map(gone, found))
        finally:
            for pid in found:
                end(pid)
            thread.join()
            server.close()
    assert failed == ["the process of the attempt ended with -9: it said nothing"]


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for processes that are not its own")
def test_an_attempt_ends_when_who_started_it_is_killed(play: Played, pids: Path) -> None:
    code = PARENT.format(url="http://127.0.0.1:9", key="none", where=pids)
    path = os.pathsep.join(sys.path)
    parent = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path})
    found = [int(one) for one in pids.read_text().split()]
    try:
        parent.kill()
        parent.wait()
        assert all(map(gone, found))
    finally:
        for pid in found:
            end(pid)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("a\n b"), "at: no: a b"),
        (KeyError("column"), "at: no: KeyError: 'column'"),
        (SystemExit(4), "at: no: SystemExit: 4"),
        (TimeoutError(), "at: no: TimeoutError"),
        (InvalidInput.at("other", msg="is wrong"), "other: is wrong"),
    ],
)
def test_whatever_a_package_raises_is_refused_in_a_line(error: BaseException, said: str) -> None:
    with pytest.raises(InvalidInput) as raised, processes.refused("at", "no"):
        raise error
    assert str(raised.value) == said

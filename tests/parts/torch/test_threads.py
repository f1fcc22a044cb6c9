"""How many threads torch computes on while a model that is served in process answers."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modelyard import open_platform
from modelyard.parts.torch import records as base_model
from modelyard.parts.torch import torch_import
from modelyard.parts.torch.serving.batching_engine import Engine
from modelyard.parts.torch.torch_import import idle_teams


@pytest.fixture
def threads() -> Iterator[int]:
    """Torch's own number of threads, as on a machine with two processors; put back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield 2
    torch.set_num_threads(before)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of threads that steps of engines compute on."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    seen: list[int] = []
    step = Engine._step

    def noting(engine: Engine) -> None:
        seen.append(torch.get_num_threads())
        step(engine)

    monkeypatch.setattr(Engine, "_step", noting)
    return seen


def answer(folder: Path) -> None:
    with open_platform() as platform:
        platform.add_base_model(folder, id="tiny")
        platform.chat.complete(model="tiny", messages="hello", max_tokens=3)


def test_a_small_model_is_served_on_one_thread_and_the_hosts_own_work_is_not(
    folder: Path, threads: int, used: list[int]
) -> None:
    answer(folder)
    assert set(used) == {1}
    assert torch.get_num_threads() == threads


def test_a_large_model_is_served_on_as_many_as_torch_takes(
    folder: Path, threads: int, used: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_model, "SMALL", 10)
    answer(folder)
    assert set(used) == {threads}


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_a_number_in_the_environment_stays(
    folder: Path, threads: int, used: list[int], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "2")
    answer(folder)
    assert set(used) == {2}


def test_a_number_that_the_host_has_set_stays(folder: Path, threads: int, used: list[int]) -> None:
    torch.set_num_threads(3)
    answer(folder)
    assert set(used) == {3}


PROGRAM = """
import os
from modelyard.parts.torch.torch_import import load_torch
before = dict(os.environ)
load_torch()
import torch
assert dict(os.environ) == before
"""


@pytest.mark.slow
@pytest.mark.parametrize(("chosen", "policy"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_threads_sleep_while_they_wait_unless_the_host_has_chosen(chosen: dict[str, str], policy: str) -> None:
    """The library of threads says itself what it was told; the environment is as it was."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**environment, **chosen, "OMP_DISPLAY_ENV": "TRUE"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.findall(r"OMP_WAIT_POLICY\s*=\s*'(\w+)'", ran.stderr) == [policy]


IDLE = """
import os, threading
import torch
from modelyard.parts.torch.torch_import import load_torch
torch.ones(2**20).add_(1)
own = len(os.listdir("/proc/self/task"))
for _ in range(2):
    before = dict(os.environ)
    load_torch()
    assert dict(os.environ) == before
    idle = sum(one.name == "modelyard-idle-team" for one in threading.enumerate())
    print(len(os.listdir("/proc/self/task")) - own, idle)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP is that of torch on Linux")
@pytest.mark.parametrize(
    ("chosen", "own"), [({}, False), ({"OMP_WAIT_POLICY": "ACTIVE"}, True), ({"GOMP_SPINCOUNT": "9"}, True)]
)
def test_a_torch_that_is_loaded_already_gets_idle_teams_once_unless_the_host_has_chosen(
    chosen: dict[str, str], own: bool
) -> None:
    processors = len(os.sched_getaffinity(0))
    threads = max(2, (processors + 1) // 2)
    wanted = 0 if own else idle_teams(processors, threads)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    ran = subprocess.run(
        [sys.executable, "-c", IDLE],
        env={**environment, **chosen, "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=True,
    )
    first, again = ran.stdout.splitlines()
    assert first == again
    added, idle = map(int, first.split())
    assert idle == wanted
    assert added == wanted * threads, "a team has a thread for each of its places"


@given(st.integers(1, 512), st.integers(1, 512))
def test_idle_teams_are_the_fewest_that_make_more_threads_than_processors(processors: int, threads: int) -> None:
    def managed(teams: int) -> int:
        return 1 + (teams + 1) * (threads - 1)

    teams = idle_teams(processors, threads)
    assert threads == 1 or managed(teams) > processors
    assert teams == 0 or managed(teams - 1) <= processors


def test_where_no_more_threads_are_allowed_there_are_no_idle_teams(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(torch_import, "idle_teams", lambda *_: 2)
    monkeypatch.setattr(threading.Thread, "start", refused)
    torch_import.add_idle_teams.__wrapped__()

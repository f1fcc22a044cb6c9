"""How many threads torch computes on while a model that is served in process answers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from modelyard import open_platform
from modelyard.parts.torch import records as base_model
from modelyard.parts.torch.serving.batching_engine import Engine


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

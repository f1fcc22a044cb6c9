"""One base model and many who load it at a time: it is read once, by one thread, and a failure to load passes."""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch

from modelyard import Message, Role, Settings, open_platform
from modelyard.parts.torch import network as networks
from modelyard.parts.torch import tokenizer as tokenizers
from modelyard.parts.torch.lora import LoraShape
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.records import Tuning
from modelyard.parts.torch.tokenizer import ChatTokenizer
from modelyard.parts.torch.training.trainable import attach_adapter

MANY = 6
ROWS = [{"messages": [{"role": "user", "content": "sea"}, {"role": "assistant", "content": "blue"}]}] * 4
Loads = list[int]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    """How many loads ran when each load began, itself included."""
    seen, stored = list[int](), networks._stored
    lock, now = threading.Lock(), 0

    def counted(*given: Any) -> Any:
        nonlocal now
        with lock:
            now += 1
            seen.append(now)
        try:
            return stored(*given)
        finally:
            with lock:
                now -= 1

    monkeypatch.setattr(networks, "_stored", counted)
    return seen


def at_once(do: Callable[[], Any]) -> list[Any]:
    start = threading.Barrier(MANY)

    def one(_: int) -> Any:
        start.wait(30)
        return do()

    with ThreadPoolExecutor(MANY) as pool:
        return list(pool.map(one, range(MANY)))


def test_networks_that_are_made_at_once_are_read_once_and_share_their_weights(
    folders: Callable[..., Path], loads: Loads, tmp_path: Path
) -> None:
    folder = copytree(folders(), tmp_path / "base")  # one that no other test has loaded
    made: list[Network] = at_once(lambda: Network(folder))
    assert loads == [1]
    places = [{name: weight.data_ptr() for name, weight in one.model.named_parameters()} for one in made]
    assert all(one == places[0] for one in places)
    own = Network(folder, own=True)
    assert not {*places[0].values()} & {weight.data_ptr() for weight in own.model.parameters()}


def test_templates_which_all_tokenizers_share_are_rendered_one_after_the_other(
    folders: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    chat, plain, inside = ChatTokenizer(folders()), tokenizers.render_jinja_template, threading.Lock()

    def alone(*given: Any, **options: Any) -> Any:
        assert inside.acquire(blocking=False), "another thread renders"
        try:
            return plain(*given, **options)
        finally:
            inside.release()

    monkeypatch.setattr(tokenizers, "render_jinja_template", alone)
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        at_once(lambda: [chat.prompt([Message(Role.USER, f"sea {number}")]) for number in range(50)])
    finally:
        sys.setswitchinterval(usual)


def test_an_adapter_belongs_to_the_network_to_which_it_was_attached(folders: Callable[..., Path]) -> None:
    one, other = Network(folders()), Network(folders())
    prompt, before = [[1, 2, 3]], other.read([[1, 2, 3]])
    adapter = attach_adapter(one.model, LoraShape(), 0, "base")
    with torch.no_grad():
        for weight in adapter.parameters:
            weight.add_(0.1)
    assert not torch.equal(one.read(prompt), before)
    assert torch.equal(other.read(prompt), before)


def test_networks_that_may_change_their_weights_are_read_one_after_the_other(
    folders: Callable[..., Path], loads: Loads, tmp_path: Path
) -> None:
    folder = copytree(folders(), tmp_path / "base")  # one that no other test has loaded
    at_once(lambda: Network(folder, own=True))
    assert loads == [1] * MANY


def test_a_network_is_read_anew_when_its_files_have_changed(folders: Callable[..., Path], loads: Loads) -> None:
    folder = folders("micro", seed=3)
    first = Network(folder)
    (folder / "generation_config.json").write_text("{}")
    second = Network(folder)
    assert loads == [1, 1]
    assert first.device == second.device


@pytest.mark.parametrize("tuning", [Tuning.LORA, Tuning.FULL])
def test_jobs_and_answers_of_one_base_model_that_begin_at_once_all_succeed(
    folders: Callable[..., Path], tuning: Tuning
) -> None:
    with open_platform(settings=Settings(poll=0.01)) as platform:
        platform.add_base_model(folders(), id="base", tuning=tuning)
        models = [platform.models.create(f"m{number}", base_model="base") for number in range(3)]
        jobs = [platform.training.sft(model, ROWS) for model in models]
        with platform.worker(concurrency=3):
            answers = at_once(lambda: platform.chat.complete(model="base", messages="sea", max_tokens=1))
            assert [(one.status, one.error_message) for one in (job.wait().refresh() for job in jobs)] == [
                ("succeeded", None)
            ] * 3
    assert len(answers) == MANY


@pytest.mark.parametrize(("failures", "status", "attempts"), [(2, "succeeded", 3), (1000, "failed", 10)])
def test_a_job_whose_base_model_cannot_be_loaded_is_given_back_a_few_times(
    folders: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failures: int,
    status: str,
    attempts: int,
) -> None:
    left, stored = [None] * failures, networks._stored

    def failing(*given: Any) -> Any:
        if left:
            left.pop()
            raise RuntimeError("the disk was away")
        return stored(*given)

    monkeypatch.setattr(networks, "_stored", failing)
    folder = copytree(folders(), tmp_path / "base")  # one that no other test has loaded
    with open_platform(settings=Settings(poll=0.001, lease=0.01)) as platform:
        platform.add_base_model(folder, id="base")
        job = platform.training.sft(platform.models.create("m", base_model="base"), ROWS)
        platform.worker().run_until_idle()
        ended = job.refresh()
    assert (ended.status, ended.attempts) == (status, attempts)
    assert status == "succeeded" or "the disk was away" in str(ended.error_message)

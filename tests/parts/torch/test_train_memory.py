"""A job's memory is reckoned before its first step: it is made to fit where that can be done, or refused in figures."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from training_kit import TINY, learner_of, micro, trainer_of

from modelyard.domain.training_config import SFTConfig
from modelyard.domain.training_run import AdapterConfig
from modelyard.errors import TrainingError
from modelyard.parts.contracts.trainer import context_of, conversation_about, followed
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.records import Tuning
from modelyard.parts.torch.training import memory_plan as memory
from modelyard.parts.torch.training import token_logprobs
from modelyard.parts.torch.training.examples import TokenRow
from modelyard.parts.torch.training.local_run import GivenRow
from modelyard.parts.torch.training.memory_plan import (
    MOST_TOKENS,
    UNSEEN,
    MemoryBudget,
    Need,
    Pass,
    _allowed,
    _available,
    free_memory,
)
from modelyard.parts.torch.training.shared_pass import WaitingPass, compute_as_one
from modelyard.parts.torch.training.token_logprobs import HEAD_LOGITS

EXAMPLES = [conversation_about("sea", "It is blue. " * count) for count in (1, 1, 16)]


def need(tuning: Tuning = Tuning.LORA) -> Need:
    learner, _ = learner_of({}, tuning=tuning)
    return learner._room._need


# ---- the reckoning ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tuning", Tuning)
def test_weights_gradients_and_moments_are_counted(tuning: Tuning) -> None:
    _, trained = learner_of({}, tuning=tuning)
    base = sum(parameter.numel() for parameter in Network(micro()).model.parameters())
    learning = sum(parameter.numel() for parameter in trained.parameters)
    assert need(tuning).weights == 4 * (base + (learning if tuning is Tuning.LORA else 0))
    assert need(tuning).moments == 12 * learning


@pytest.mark.parametrize("tuning", Tuning)
@pytest.mark.parametrize("recomputed", [False, True])
def test_a_pass_takes_what_was_reckoned(tuning: Tuning, recomputed: bool) -> None:
    """Beside what torch really held at once in a pass, counted by its profiler: never less, and not far more."""
    learner, _ = learner_of({}, tuning=tuning)
    row = TokenRow(tuple(3 + place % 200 for place in range(256)), tuple(range(1, 256)), (None,) * 255)
    with measured() as held:
        flat, _ = learner._scorer.logprobs([row] * 4, recomputed)
        flat.sum().backward()
    reckoned = learner._room._need
    gradients = reckoned.moments / 3
    passes = attrs.evolve(reckoned, spread=1).of_pass(4, 256, recomputed)
    assert held[0] / 1.3 < passes + gradients < held[0] * 2.5


@pytest.mark.parametrize("head", [True, False])
def test_a_pass_of_several_runs_takes_what_was_reckoned(head: bool) -> None:
    """Adapters of other ranks and layers; gradients are held once more until they are added."""
    trainer = trainer_of()
    configs = [AdapterConfig(rank=2**number, train_mlp=number % 2 > 0, train_unembed=head) for number in range(6)]
    runs = [trainer.open_run(TINY, config, frozenset(), lambda _: io.BytesIO()) for config in configs]
    row = GivenRow([3 + place % 200 for place in range(128)], [(5,)] * 128)

    def ones(flat: torch.Tensor, _: Any) -> Any:
        return [[1.0] * len(flat)]

    group = [
        WaitingPass(run._trained, run._room, Pass([0], [row], recomputed=False), learns=True, then=ones) for run in runs
    ]
    shared = trainer._bases._bases[TINY]
    shared._select(None)
    with measured() as held:
        compute_as_one(shared.scorer, group, shared._head)
    assert all(one.done and one.fault is None for one in group)
    needs = [(attrs.evolve(run._room._need, spread=1), 1) for run in runs]
    assert held[0] / 1.3 < Need.of_shared_pass(needs, 128) < held[0] * 2.5


def test_weights_of_an_adapter_are_counted_among_several_runs() -> None:
    trainer = trainer_of()
    base = sum(parameter.nbytes for parameter in Network(micro()).model.parameters())
    for rank in (4, 16):
        run = trainer.open_run(TINY, AdapterConfig(rank=rank), frozenset(), lambda _: io.BytesIO())
        learning = sum(one.numel() for one in run._trained.parameters)
        assert (run._room._need.weights, run._room._need.moments) == (base + 4 * learning, 12 * learning)


def test_a_shared_pass_is_reckoned_by_the_adapter_of_each_row() -> None:
    one = Need(9, 120, head=4, most_head=30, kept=10.0, squared=0.5, inputs=1, layers=2, spread=2.0)
    other = attrs.evolve(one, moments=12, kept=20.0)
    whole = 2 * 8 * (10 + 0.5 * 8) + 1 * 8 * (20 + 0.5 * 8)
    assert Need.of_shared_pass([(one, 2), (other, 1)], 8) == int((whole + whole + 32 - 2) * 2) + 44
    assert Need.of_shared_pass([(one, 2)], 8) == one.of_pass(2, 8, False) + 40


def test_layers_that_are_computed_twice_keep_less() -> None:
    learner, _ = learner_of({})
    row = TokenRow(tuple(3 + place % 200 for place in range(256)), (255,), (None,))
    found = []
    for recomputed in (False, True):
        with measured() as held:
            learner._scorer.logprobs([row] * 4, recomputed)[0].sum().backward()
        found += held
    assert found[1] < found[0] * 0.7


@contextmanager
def measured() -> Iterator[list[int]]:
    """The most memory that was held at once, without what was held before."""
    found = [0]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        yield found
    total = 0
    for event in sorted(_memory_events(profile), key=lambda event: event[0]):
        total += event[1]
        found[0] = max(found[0], total)


def _memory_events(profile: Any) -> list[tuple[int, int]]:
    events = profile.profiler.kineto_results.events()
    return [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]


# ---- what is done about it -------------------------------------------------------------------------------------------


def test_with_enough_memory_passes_are_as_large_as_is_of_use() -> None:
    assert MemoryBudget(need(), None).tokens == MOST_TOKENS
    assert MemoryBudget(need(), 2**40).tokens == MOST_TOKENS


def test_with_less_passes_become_smaller_and_then_are_computed_twice() -> None:
    one = Need(493824, 393216, head=4144, most_head=2**29, kept=9568.0, squared=0.0, inputs=512, layers=2, spread=1.4)
    row = TokenRow(tuple(range(3, 203)), (5,), (None,))

    def room_for(tokens: int, recomputed: bool) -> MemoryBudget:
        return MemoryBudget(one, one.fixed + one.of_pass(1, tokens, recomputed))

    smaller = room_for(2048, recomputed=False)
    assert smaller.tokens == 2048
    assert not any(one.recomputed for one in smaller.passes([row] * 30))
    twice = room_for(512, recomputed=True)
    assert twice.tokens == 512
    assert all(one.recomputed for one in twice.passes([row] * 4))
    assert [len(one.rows) for one in twice.passes([row] * 5)] == [2, 2, 1]


def test_each_row_comes_in_one_pass_with_rows_of_about_its_length() -> None:
    rows = [TokenRow(tuple(range(3, 4 + length)), (1,), (None,)) for length in (200, 10, 190, 12, 11)]
    room = MemoryBudget(need(), None, tokens=410)
    passes = list(room.passes(rows))
    assert [list(one.numbers) for one in passes] == [[1, 4, 3], [2, 0]]
    assert [one.rows for one in passes] == [[rows[number] for number in one.numbers] for one in passes]


def test_a_job_that_fits_only_recomputed_ends_with_the_same_weights() -> None:
    config, reckoned = SFTConfig(learning_rate=1e-3, batch_size=3), need()
    tight = reckoned.fixed + reckoned.of_pass(1, 256, recomputed=True)
    assert tight < reckoned.fixed + reckoned.of_pass(1, 220, recomputed=False)
    files = [
        followed(trainer_of(memory=memory).train("sft", config, EXAMPLES, context_of(TINY))).files
        for memory in (None, tight)
    ]
    assert files[0].keys() == files[1].keys()
    from safetensors.torch import load

    one, other = (load(found["adapter_model.safetensors"]) for found in files)
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("tuning", Tuning)
def test_a_job_that_cannot_fit_is_refused_with_the_figures_before_it_starts(tuning: Tuning) -> None:
    limit = need(tuning).fixed + 100_000
    items = trainer_of(tuning=tuning, memory=limit).train("sft", SFTConfig(), EXAMPLES, context_of(TINY))
    with pytest.raises(TrainingError) as refused:
        next(items)
    figures = [float(figure) for figure in re.findall(r"(\d+\.\d+) MiB", str(refused.value))]
    total, may, weights, moments, pass_ = figures
    assert total == pytest.approx(weights + moments + pass_, abs=0.2)
    assert may == pytest.approx(limit / 2**20, abs=0.1)
    assert "train on shorter rows" in str(refused.value)


def test_weights_that_do_not_fit_are_refused_before_they_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelyard.parts.torch.training.trainer.Network", None)
    with pytest.raises(TrainingError, match=r"weights take 0\.3 MiB"):
        next(trainer_of(memory=300_000).train("sft", SFTConfig(), EXAMPLES, context_of(TINY)))


def test_a_resumed_job_keeps_its_size_of_passes_for_any_free_memory() -> None:
    learner, _ = learner_of({})
    learner._room.tokens = 2048
    learner.step([], _nothing(), 1.0, 1)
    state = {name: b"".join(chunks) for name, chunks in learner.state().items()}
    again, _ = learner_of({})
    from safetensors.torch import load

    again.resume(load(state["optimizer.safetensors"]))
    assert again._room.tokens == 2048


def _nothing() -> Any:
    from modelyard.trainers.loop import Objective
    from modelyard.trainers.losses import supervised_loss

    return Objective(supervised_loss, linear=True)


# ---- what is free ----------------------------------------------------------------------------------------------------


def test_free_memory_is_what_the_system_and_the_control_group_leave(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:    3000 kB\n")
    assert _available(meminfo) == 3000 * 1024
    assert _available(tmp_path / "none") is None
    assert _allowed(tmp_path, "") is None
    assert (free_memory("cpu") or 2**40) > 2**20


NEW = {"memory.max": "5000\n", "memory.current": "2000\n", "memory.stat": "anon 1\ninactive_file 500\n"}
OLD = {
    "memory.limit_in_bytes": "5000\n",
    "memory.usage_in_bytes": "2000\n",
    "memory.stat": "inactive_file 7\ntotal_inactive_file 500\n",
}


@pytest.mark.parametrize(
    ("folder", "files", "own"),
    [
        ("", NEW, "0::/"),
        ("user.slice/run.scope", NEW, "0::/user.slice/run.scope"),
        ("user.slice", NEW, "0::/user.slice/run.scope"),
        ("", NEW, "0::/of/the/host"),
        ("memory", OLD, "9:name=systemd:/\n4:memory:/docker/1\n0::/"),
        ("memory/docker/1", OLD, "4:memory,hugetlb:/docker/1\n1:cpu:/\n0::/"),
    ],
    ids=["a container", "a unit", "a unit's slice", "a group of the host", "an old container", "an old group"],
)
def test_what_a_control_group_leaves_is_found(folder: str, files: dict[str, str], own: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (tmp_path / folder / name).write_text(text)
    assert _allowed(tmp_path, own) == 3500
    limit = tmp_path / folder / next(iter(files))
    limit.write_text("max\n" if files is NEW else f"{2**63 - 4096}\n")
    assert (_allowed(tmp_path, own) or 2**62) >= 2**62


def test_of_nested_control_groups_the_one_that_leaves_least_counts(tmp_path: Path) -> None:
    for folder, most in (("slice/scope", 9000), ("slice", 4000), ("", 8000)):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, text in {**NEW, "memory.max": f"{most}\n"}.items():
            (tmp_path / folder / name).write_text(text)
    assert _allowed(tmp_path, "0::/slice/scope") == 2500


def test_what_is_not_reckoned_is_left_free(monkeypatch: pytest.MonkeyPatch) -> None:
    for available, allowed, free in ((2**30, None, 2**30 - UNSEEN), (1000, None, 0), (2**30, 0, 0), (None, None, None)):
        monkeypatch.setattr(memory, "_available", lambda _, available=available: available)
        monkeypatch.setattr(memory, "_allowed", lambda *_, allowed=allowed: allowed)
        assert free_memory("cpu") == free


@pytest.mark.parametrize(
    ("tokens", "recomputed", "taken"), [(256, False, 950), (512, False, 1595), (1008, False, 2877)]
)
def test_what_a_model_of_135_million_weights_took_is_reckoned(tokens: int, recomputed: bool, taken: int) -> None:
    """In MiB, beside its mapped weights: 30 layers of 576, 49,152 tokens, an adapter of rank 16 in every layer."""
    head = memory._HEAD_COPIES * 4
    one = Need(18 * 2**20, 55 * 2**20, 49152 * head, HEAD_LOGITS * head, 1185 * 2**10, 0, 69120, 30, 1.4)
    reckoned = (one.fixed + one.of_pass(1, tokens, recomputed) + UNSEEN) / 2**20
    assert taken <= reckoned < 1.3 * taken


def test_a_processors_allocator_leaves_gaps() -> None:
    one = need()
    assert one.of_pass(4, 256, False) == pytest.approx(1.4 * attrs.evolve(one, spread=1).of_pass(4, 256, False))


def test_logits_are_counted_for_the_tokens_of_a_pass_and_no_more_than_are_computed_at_a_time() -> None:
    one = attrs.evolve(need(), kept=0, squared=0, spread=1)
    assert one.of_pass(1, 10, False) == 10 * 259 * 4 * 5
    assert one.of_pass(1000, 1000, False) == HEAD_LOGITS * 4 * 5


@pytest.mark.parametrize("recomputed", [True, False])
def test_free_pages_are_returned_before_the_head_of_a_recomputed_pass(
    recomputed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    monkeypatch.setattr(token_logprobs, "trim", lambda: told.append(True))
    learner, _ = learner_of({})
    learner._scorer.logprobs([TokenRow((3, 4, 5), (1, 2), (None, None))], recomputed)
    assert told == [True] * recomputed

"""Runs that their callers drive, on the torch engine."""

import gc
import io
import json
import math
import random
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from families import APART, OWN_LOGITS, SERVED, WINDOWS, build_family
from safetensors.torch import load
from training_kit import TINY, learner_of, trainer_of

from modelyard.domain.training_run import AdamParams, AdapterConfig, Loss, Objective, TargetRow
from modelyard.errors import InvalidInput, TrainingError, UnsupportedParameter
from modelyard.parts.contracts.step_trainer import cross_entropy, flat, read, target_rows, trained
from modelyard.parts.torch.lora import CONFIG_FILE, WEIGHTS_FILE, LoraShape
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.records import Tuning
from modelyard.parts.torch.training import shared_base
from modelyard.parts.torch.training import trainer as training
from modelyard.parts.torch.training.adapter_layers import shape_of
from modelyard.parts.torch.training.examples import TokenRow
from modelyard.parts.torch.training.local_run import GivenRow, LocalRun
from modelyard.parts.torch.training.memory_plan import Need, Pass
from modelyard.parts.torch.training.row_learner import MOMENTS_FILE
from modelyard.parts.torch.training.shared_base import SharedBase, Turns
from modelyard.parts.torch.training.shared_pass import WaitingPass, fit_together
from modelyard.parts.torch.training.token_logprobs import TokenScorer
from modelyard.parts.torch.training.trainable import Matrices, RowsUnknown, TrainedLinear
from modelyard.parts.torch.training.trainer import LocalTrainer
from modelyard.testing import StepTrainerContract
from modelyard.trainers import token_objective
from modelyard.trainers.losses import supervised_loss
from polling import until

ALL = AdapterConfig(rank=4, seed=3)


class TestLocalSteps(StepTrainerContract):
    @pytest.fixture
    def trainer(self) -> LocalTrainer:
        return trainer_of()

    @pytest.fixture
    def base_model(self) -> str:
        return TINY

    @pytest.fixture(params=[True, False], ids=["head", "body"])
    def adapter(self, request: pytest.FixtureRequest) -> AdapterConfig:
        return AdapterConfig(rank=4, seed=3, train_unembed=request.param)

    def test_runs_in_many_threads_do_not_notice_each_other(self, opens: Callable[..., Any]) -> None:
        """But for the rounding of passes that they share."""
        alone = [trained(opens(), seed).state() for seed in range(4)]
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda seed: trained(opens(), seed).state(), range(4)))
        for one, other in zip(map(read, alone), map(read, together), strict=True):
            assert one.keys() == other.keys()
            for name in (WEIGHTS_FILE, MOMENTS_FILE):
                weights, too = load(one[name]), load(other[name])
                assert weights.keys() == too.keys()
                for key, weight in weights.items():
                    torch.testing.assert_close(too[key], weight, rtol=1e-5, atol=1e-6)


def opened(trainer: LocalTrainer, adapter: AdapterConfig = ALL, files: dict[str, bytes] | None = None) -> LocalRun:
    held = files or {}
    return trainer.open_run(TINY, adapter, frozenset(held), lambda name: io.BytesIO(held[name]))


def gradients(run: Any) -> dict[str, torch.Tensor]:
    return {name: one.grad.clone() for name, one in run._trained.named.items()}


# ---- equal to the trainer of jobs ------------------------------------------------------------------------------------


def test_gradients_equal_those_of_the_trainer_of_jobs() -> None:
    """The same adapter, the mean cost of answers: as SFT computes it, and as weights of 1/n over all positions."""
    chance = random.Random(4)
    before = read(trained(opened(trainer_of(), AdapterConfig(rank=16, train_unembed=False)), 1).files())
    learner, trained_weights = learner_of(before)
    rows, given, columns = [], [], []
    for size in (12, 7, 20):
        ids = [chance.randrange(3, 259) for _ in range(size)]
        places = sorted(chance.sample(range(1, size), size // 2)) + [size]
        whole = (*ids, chance.randrange(3, 259))
        rows.append(TokenRow(whole, tuple(places), (None,) * len(places)))
        given.append(TargetRow(ids, whole[1:]))
        columns.append([1.0 if place + 1 in places else 0.0 for place in range(size)])
    count = sum(len(row.places) for row in rows)
    learner._gradient(rows, Objective(supervised_loss, linear=True))
    run = opened(trainer_of(), files=before)
    weights = [{"weights": [one / count for one in column]} for column in columns]
    run.accumulate(given, token_objective("cross_entropy", {}, given, weights))
    ours, theirs = gradients(run), {name: one.grad for name, one in trained_weights.named.items()}
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        assert float(gradient.abs().max()) > 0
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-5, atol=1e-6)


def test_gradients_are_those_of_autograd_through_the_whole_model() -> None:
    """With several targets for a position, through attention, feed-forward and head."""
    run = trained(opened(trainer_of()), 2)
    rows = target_rows(5, k=3)
    run.accumulate(rows, cross_entropy(rows, 0.7))
    shared = run._scorer._network.model
    total = 0.0
    for row in rows:
        logprobs = shared(torch.tensor([list(row.inputs)])).logits[0].log_softmax(-1)
        targets = torch.tensor(list(row.targets)).reshape(-1, 3)
        total = total - 0.7 * logprobs.gather(1, targets).sum()
    expected = torch.autograd.grad(total, run._trained.parameters)
    for ours, theirs in zip(gradients(run).values(), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_step_is_that_of_torch() -> None:
    run = trained(opened(trainer_of()), 3)
    rows = target_rows(6)
    run.accumulate(rows, cross_entropy(rows))
    params = AdamParams(learning_rate=0.01, beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.1, grad_clip_norm=0.5)
    copies = [torch.nn.Parameter(one.detach().clone()) for one in run._trained.parameters]
    for copy, one in zip(copies, run._trained.parameters, strict=True):
        assert one.grad is not None
        copy.grad = one.grad.clone()
    norm = torch.nn.utils.clip_grad_norm_(copies, 0.5)
    plain = torch.optim.AdamW(copies, lr=0.01, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1)
    for copy, one in zip(copies, run._trained.parameters, strict=True):
        plain.state[copy] = {name: torch.as_tensor(value).clone() for name, value in run._optimizer.state[one].items()}
    plain.step()
    assert run.optim_step(params)["grad_norm"] == pytest.approx(float(norm))
    for copy, one in zip(copies, run._trained.parameters, strict=True):
        torch.testing.assert_close(one, copy, rtol=1e-5, atol=1e-7)


def test_rows_in_many_passes_have_the_gradients_of_one() -> None:
    rows = target_rows(7, count=9)
    found = []
    for tokens in (8192, 12):
        run = trained(opened(trainer_of()), 4)
        run._room.tokens = tokens
        scores, loss = run.accumulate(rows, cross_entropy(rows))
        found.append((flat(scores), loss.value, torch.cat([one.flatten() for one in gradients(run).values()])))
    (scores, value, gradient), (in_passes, value_too, gradient_too) = found
    assert in_passes == pytest.approx(scores, abs=1e-5)
    assert value_too == pytest.approx(value)
    torch.testing.assert_close(gradient_too, gradient, rtol=1e-4, atol=1e-5)


# ---- side by side ----------------------------------------------------------------------------------------------------


def test_the_base_models_weights_are_in_memory_once_and_go_with_the_last_run(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []

    def counted(*given: Any, **options: Any) -> Network:
        loaded.append(weakref.ref(network := Network(*given, **options)))
        return network

    monkeypatch.setattr(training, "Network", counted)
    trainer = trainer_of(keep_base=0)
    runs = [opened(trainer, AdapterConfig(rank=rank)) for rank in (1, 8, 64)]
    assert len(loaded) == 1
    for run in runs:
        trained(run, 1)
    weights = next(loaded[0]().model.parameters()).data_ptr()
    assert {next(run._scorer._network.model.parameters()).data_ptr() for run in runs} == {weights}
    for run in runs:
        run.close()
    del run, runs
    gc.collect()
    assert loaded[0]() is None
    assert not trainer._bases._bases


def test_a_base_model_without_runs_is_kept_for_the_next_and_freed_for_other_work() -> None:
    trainer = trainer_of()
    run = opened(trainer)
    network = run._scorer._network
    run.close()
    again = opened(trainer)
    assert again._scorer._network is network
    again.close()
    trainer._bases.free()
    assert not trainer._bases._bases
    assert opened(trainer)._scorer._network is not network


def test_a_base_model_that_is_not_used_again_is_forgotten() -> None:
    trainer = trainer_of(keep_base=0.001)
    opened(trainer).close()
    until(lambda: not trainer._bases._bases)
    assert not trainer._bases._ending


CONFIGS = [
    AdapterConfig(rank=rank, seed=rank, train_mlp=mlp, train_unembed=head)
    for rank in (2, 5)
    for mlp in (True, False)
    for head in (True, False)
]
"""Adapters of other ranks and layers."""

STEP = AdamParams(learning_rate=0.01, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.01, grad_clip_norm=1.0)


def shared_by(trainer: LocalTrainer) -> SharedBase:
    return trainer._bases._bases[TINY]


def at_once(trainer: LocalTrainer, runs: Sequence[LocalRun], do: Callable[[LocalRun], Any]) -> list[Any]:
    """What each run gives, or its error, when all of them wait, in this order, before the first is computed."""

    def one(run: LocalRun) -> Any:
        try:
            return do(run)
        except Exception as fault:
            return fault

    shared = shared_by(trainer)
    with ThreadPoolExecutor(len(runs)) as pool:
        with shared._turns.one():
            doing = []
            for run in runs:
                doing.append(pool.submit(one, run))
                until(lambda: shared._turns._asked - shared._turns._served == 1 + len(doing))
        return [each.result() for each in doing]


def rows_of_nine(seed: int, k: int = 1) -> list[TargetRow]:
    """Three rows of up to nine tokens, with k targets for each."""
    draw = random.Random(seed)
    ids = [[draw.randrange(3, 259) for _ in range(size * (1 + k))] for size in (9, 8, 9)]
    return [TargetRow(row[: len(row) // (1 + k)], row[len(row) // (1 + k) :], k) for row in ids]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many runs were in each pass through the body."""
    found, whole = list[int](), TokenScorer.states

    def counted(self: TokenScorer, groups: Any, *given: Any) -> Any:
        found.append(len(groups))
        return whole(self, groups, *given)

    monkeypatch.setattr(TokenScorer, "states", counted)
    return found


def test_rows_of_several_runs_go_through_the_network_in_one_pass(passes: list[int]) -> None:
    """Losses, scores, gradients and weights are those of each run alone, within 1e-6 of their size."""
    rows = {config: rows_of_nine(number, k=1 + number % 2) for number, config in enumerate(CONFIGS)}

    def ready(trainer: LocalTrainer, config: AdapterConfig) -> LocalRun:
        return trained(opened(trainer, config), config.rank)

    def kept(run: LocalRun, config: AdapterConfig) -> tuple[Any, ...]:
        scores, loss = run.accumulate(rows[config], cross_entropy(rows[config]))
        return flat(scores), loss.value, gradients(run)

    def stepped(run: LocalRun) -> tuple[float, dict[str, torch.Tensor]]:
        norm = run.optim_step(STEP)["grad_norm"]
        return norm, {name: one.detach().clone() for name, one in run._trained.named.items()}

    alone = []
    for config in CONFIGS:
        run = ready(trainer_of(), config)
        alone.append((flat(run.score(rows[config])), *kept(run, config), *stepped(run)))
    trainer = trainer_of()
    runs = [ready(trainer, config) for config in CONFIGS]
    of = dict(zip(runs, CONFIGS, strict=True))
    passes.clear()
    scored = at_once(trainer, runs, lambda run: flat(run.score(rows[of[run]])))
    together = at_once(trainer, runs, lambda run: kept(run, of[run]))
    assert passes == [len(CONFIGS)] * 2
    for (before, scores, loss, slopes, norm, weights), found, score, run in zip(
        alone, together, scored, runs, strict=True
    ):
        assert score == pytest.approx(before, rel=1e-6)
        assert found[0] == pytest.approx(scores, rel=1e-6)
        assert found[1] == pytest.approx(loss, rel=1e-6)
        assert found[2].keys() == slopes.keys()
        for name, slope in slopes.items():
            assert float((found[2][name] - slope).abs().max()) <= 1e-6 * max(1.0, float(slope.abs().max()))
        now, after = stepped(run)
        assert now == pytest.approx(norm, rel=1e-6)
        for name, weight in weights.items():
            torch.testing.assert_close(after[name], weight, rtol=0, atol=1e-6)


def test_a_loss_that_fails_fails_its_own_run_alone(passes: list[int]) -> None:
    trainer = trainer_of()
    runs = [trained(opened(trainer, config), 1) for config in CONFIGS[:3]]
    rows = target_rows(5)
    alone = [run.accumulate(rows, cross_entropy(rows))[1].value for run in runs]
    expected = [gradients(run) for run in runs]
    for run in runs:
        run._optimizer.zero_grad(set_to_none=True)

    def failing(_: Any) -> Any:
        raise InvalidInput.at("rows", msg="has no loss")

    objectives = {runs[1]: Objective(failing)}
    passes.clear()
    first, second, third = at_once(
        trainer, runs, lambda run: run.accumulate(rows, objectives.get(run, cross_entropy(rows)))
    )
    assert passes == [3]
    assert isinstance(second, InvalidInput)
    assert (first[1].value, third[1].value) == (pytest.approx(alone[0]), pytest.approx(alone[2]))
    assert all(one.grad is None or not one.grad.any() for one in runs[1]._trained.parameters)
    for name, slope in gradients(runs[2]).items():
        torch.testing.assert_close(slope, expected[2][name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fault", [torch.OutOfMemoryError("full"), RowsUnknown()])
def test_what_cannot_be_computed_together_is_computed_alone(
    fault: Exception, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of()
    runs = [trained(opened(trainer, config), 1) for config in CONFIGS[:3]]
    rows, whole = target_rows(5), TokenScorer.states
    alone = [flat(run.score(rows)) for run in runs]

    def refusing(self: TokenScorer, groups: Any, *given: Any) -> Any:
        found = whole(self, groups, *given)
        if len(groups) > 1:
            raise fault
        return found

    monkeypatch.setattr(TokenScorer, "states", refusing)
    passes.clear()
    assert at_once(trainer, runs, lambda run: flat(run.score(rows))) == alone
    assert passes == [3, 1, 1, 1]
    assert shared_by(trainer)._shares == isinstance(fault, RuntimeError)


@pytest.mark.parametrize("call", [1, 3, 4])
def test_memory_that_runs_out_amid_a_shared_pass_costs_no_run_its_gradients(
    call: int, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the head of the first run or of the last, or in the body: losses are asked for once, gradients come once."""
    trainer = trainer_of()
    runs = [trained(opened(trainer, config), 1) for config in CONFIGS[:3]]
    rows = target_rows(5)
    alone = [learned(run, rows) for run in runs]
    asked, calls, whole = list[int](), list[int](), torch.autograd.grad

    def full(*given: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            raise torch.OutOfMemoryError("full")
        return whole(*given, **options)

    def counted(run: LocalRun) -> Any:
        objective = cross_entropy(rows)
        loss = lambda scores: (asked.append(1), objective.of(scores))[1]  # noqa: E731
        return run._gradient(run._read(rows), Objective(loss, linear=objective.linear))

    passes.clear()
    monkeypatch.setattr(torch.autograd, "grad", full)
    found = at_once(trainer, runs, counted)
    assert passes == [3, 1, 1, 1]
    assert len(asked) == 3
    for run, (scores, loss, entropy), (before, value, slopes) in zip(runs, found, alone, strict=True):
        assert (flat(scores), loss.value) == (pytest.approx(before, rel=1e-5), pytest.approx(value))
        assert 0 < entropy < sum(len(row.targets) for row in rows) * math.log(259)
        for name, slope in gradients(run).items():
            torch.testing.assert_close(slope, slopes[name], rtol=1e-5, atol=1e-6)


def test_a_run_that_is_interrupted_takes_no_other_along(passes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that computed for all of them: the others go on without it."""
    trainer = trainer_of()
    runs = [trained(opened(trainer, config), 1) for config in CONFIGS[:3]]
    rows, whole = target_rows(5), TokenScorer.states
    alone = [flat(run.score(rows)) for run in runs]

    def interrupted(self: TokenScorer, groups: Any, *given: Any) -> Any:
        found = whole(self, groups, *given)
        if len(groups) == 3:
            raise KeyboardInterrupt
        return found

    def scored(run: LocalRun) -> Any:
        try:
            return flat(run.score(rows))
        except KeyboardInterrupt:
            return "interrupted"

    monkeypatch.setattr(TokenScorer, "states", interrupted)
    passes.clear()
    assert at_once(trainer, runs, scored) == ["interrupted", *alone[1:]]
    assert passes == [3, 1, 1]
    assert not shared_by(trainer)._waiting


def learned(run: LocalRun, rows: Sequence[TargetRow]) -> tuple[list[float], float, dict[str, torch.Tensor]]:
    """What a run gives for rows, and its gradients, which are dropped."""
    scores, loss = run.accumulate(rows, cross_entropy(rows))
    found = gradients(run)
    run._optimizer.zero_grad(set_to_none=True)
    return flat(scores), loss.value, found


def test_numbers_that_are_not_finite_stay_in_their_run(passes: list[int]) -> None:
    """One run's weights and another's loss are not numbers: the third's step is that of its run alone."""
    rows = rows_of_nine(1)
    of_one = trained(opened(trainer_of(), CONFIGS[2]), 1)
    of_one.accumulate(rows, cross_entropy(rows))
    norm = of_one.optim_step(STEP)["grad_norm"]
    trainer = trainer_of()
    broken, endless, sound = runs = [trained(opened(trainer, config), 1) for config in CONFIGS[:3]]
    with torch.no_grad():
        for one in broken._trained.parameters:
            one.fill_(math.nan)
    weights = {endless: 1e39}
    passes.clear()
    at_once(trainer, runs, lambda run: run.accumulate(rows, cross_entropy(rows, weights.get(run, 1.0))))
    assert passes == [3]
    for run in (broken, endless):
        with pytest.raises(TrainingError, match="left out"):
            run.optim_step(STEP)
    assert sound.optim_step(STEP)["grad_norm"] == pytest.approx(norm, rel=1e-6)
    for ours, theirs in zip(sound._trained.parameters, of_one._trained.parameters, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


LOSSES = {
    "cross_entropy": ({}, lambda one: {"weights": [1.0, 0.5] * 4 + [1.0]}),
    "importance_sampling": ({}, lambda one: {"logprobs": [-5.0] * 9, "advantages": [1.0, -1.0, 0.5] * 3}),
    "ppo": ({}, lambda one: {"logprobs": [-5.5] * 9, "advantages": [1.0, -1.0, 0.5] * 3}),
    "cispo": ({}, lambda one: {"logprobs": [-5.5] * 9, "advantages": [1.0, -1.0, 0.5] * 3}),
}


def test_each_run_of_a_pass_has_its_own_loss(passes: list[int]) -> None:
    """Also one of its own, whose derivatives mix all tokens of the step."""
    ids = rows_of_nine(3)[0]
    rows = [TargetRow(ids.inputs, ids.targets)] * 2

    def spread(scores: Sequence[Sequence[float]]) -> Loss:
        total = sum(map(sum, scores))
        return Loss(total * total / 100, [[total / 50] * len(row) for row in scores], {})

    objectives = [
        token_objective(name, config, rows, [of(row) for row in rows]) for name, (config, of) in LOSSES.items()
    ]
    objectives.append(Objective(spread))
    configs = CONFIGS[: len(objectives)]
    alone = []
    for config, objective in zip(configs, objectives, strict=True):
        run = trained(opened(trainer_of(), config), 1)
        alone.append((run.accumulate(rows, objective)[1].value, gradients(run)))
    trainer = trainer_of()
    runs = [trained(opened(trainer, config), 1) for config in configs]
    of_run = dict(zip(runs, objectives, strict=True))
    passes.clear()
    found = at_once(trainer, runs, lambda run: run.accumulate(rows, of_run[run])[1].value)
    assert passes == [len(runs)]
    for run, value, (expected, slopes) in zip(runs, found, alone, strict=True):
        assert value == pytest.approx(expected, rel=1e-6)
        for name, slope in gradients(run).items():
            assert float((slope - slopes[name]).abs().max()) <= 1e-6 * max(1.0, float(slope.abs().max()))


def test_a_run_alone_is_computed_as_if_there_were_no_others(passes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """To the byte, with other runs open; nothing of a shared pass is used."""
    monkeypatch.setattr(shared_base, "compute_as_one", None)
    first = read(trained(opened(trainer_of(), CONFIGS[1]), 4).state())
    trainer = trainer_of()
    others = [trained(opened(trainer, config), 1) for config in CONFIGS[2:5]]
    run = trained(opened(trainer, CONFIGS[1]), 4)
    assert read(run.state()) == first
    assert set(passes) == {1}
    for other in others:
        other.close()


def test_a_small_pass_does_not_wait_for_what_came_after_it(passes: list[int]) -> None:
    """A pass of many tokens is computed alone, in its turn, and so are two of one run."""
    trainer = trainer_of()
    small, large, late = runs = [trained(opened(trainer, config), 1) for config in CONFIGS[:3]]
    rows = {small: [TargetRow([5] * 200, [6] * 200)], large: [TargetRow([5] * 200, [6] * 200)] * 5}
    rows[late] = rows[small]
    order: list[LocalRun] = []
    passes.clear()

    def scored(run: LocalRun) -> None:
        run.score(rows[run])
        order.append(run)

    at_once(trainer, runs, scored)
    assert passes == [2, 1]
    assert order.index(small) < order.index(large)
    assert order.index(late) < order.index(large)


def test_a_shared_pass_that_would_not_fit_is_split(passes: list[int]) -> None:
    """Two fit beside what all three have: the third is computed alone, and every number is that of a run alone."""
    trainer = trainer_of()
    runs = [trained(opened(trainer, config), 1) for config in CONFIGS[:3]]
    rows = rows_of_nine(2)
    alone = [learned(run, rows) for run in runs]
    rooms = [run._room for run in runs]
    needs = [room._need for room in rooms]
    fixed = needs[0].fixed + rooms[0]._others()
    for room in rooms:
        room._limit = fixed + Need.of_shared_pass([(need, 3) for need in needs[:2]], 9)
    assert Need.of_shared_pass([(need, 3) for need in needs], 9) + fixed > rooms[0]._limit
    passes.clear()
    found = at_once(trainer, runs, lambda run: run.accumulate(rows, cross_entropy(rows))[1].value)
    assert passes == [2, 1]
    assert found == [pytest.approx(value) for _, value, _ in alone]
    for run, (_, _, slopes) in zip(runs, alone, strict=True):
        for name, slope in gradients(run).items():
            torch.testing.assert_close(slope, slopes[name], rtol=1e-5, atol=1e-6)


def test_rows_of_other_lengths_and_passes_that_would_not_fit_are_computed_alone(passes: list[int]) -> None:
    trainer = trainer_of()
    short, long, other = (trained(opened(trainer, config), 1) for config in CONFIGS[:3])
    rows = {short: [TargetRow([5] * 4, [6] * 4)] * 2, long: [TargetRow([5] * 40, [6] * 40)]}
    at_once(trainer, [short, long], lambda run: run.score(rows[run]))
    assert passes[-2:] == [1, 1]
    same = [TargetRow([5] * 8, [6] * 8)] * 2
    other._room.tokens = 24
    at_once(trainer, [short, other], lambda run: run.score(same))
    assert passes[-2:] == [1, 1]
    other._room.tokens = 32
    at_once(trainer, [short, other], lambda run: run.score(same))
    assert passes[-1] == 2


FAMILIES = dict([SERVED[0], SERVED[8], SERVED[11], SERVED[12], SERVED[13], *OWN_LOGITS, WINDOWS[5], *APART])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_familys_shared_pass_has_the_gradients_of_passes_alone(
    folders: Callable[..., Path], tmp_path: Path, family: str
) -> None:
    folder, _ = build_family(folders(), tmp_path, family, FAMILIES[family])
    shared = SharedBase(Network(folder), None)
    made = [shared.add(LoraShape(rank, 2 * rank), rank, "base") for rank in (2, 5)]
    for adapter, _ in made:
        with torch.no_grad():
            for weights in adapter.parameters:
                weights.copy_(torch.randn_like(weights) * 0.2)
    rows = [[GivenRow(row.inputs, [(one,) for one in row.targets]) for row in rows_of_nine(seed)] for seed in (1, 2)]

    def computed(together: bool) -> list[tuple[list[float], list[torch.Tensor | None]]]:
        scores: list[list[float]] = [[], []]

        def then(number: int, flat: torch.Tensor, _: Any) -> Any:
            scores[number] = flat.tolist()
            return [[1.0 + len(row.ids)] * len(row.ids) for row in rows[number]]

        waiting = [
            WaitingPass(*made[number], Pass(range(3), rows[number], recomputed=False), True, partial(then, number))
            for number in range(2)
        ]
        assert fit_together(waiting)
        for group in [waiting] if together else [[one] for one in waiting]:
            shared._compute(group)
        assert all(one.done and one.fault is None for one in waiting)
        found = []
        for number, (adapter, _) in enumerate(made):
            found.append((scores[number], [one.grad for one in adapter.parameters]))
            for one in adapter.parameters:
                one.grad = None
        return found

    for (scores, slopes), (before, known) in zip(computed(together=True), computed(together=False), strict=True):
        assert scores == pytest.approx(before, rel=1e-5)
        for slope, expected in zip(slopes, known, strict=True):
            assert (slope is None) == (expected is None)
            if slope is not None and expected is not None:
                assert float((slope - expected).abs().max()) <= 1e-5 * max(1.0, float(expected.abs().max()))
    assert shared._shares


def test_a_layer_that_is_given_tokens_without_rows_refuses_several_adapters() -> None:
    layer = TrainedLinear(torch.nn.Linear(3, 2))
    one = Matrices(torch.nn.Parameter(torch.ones(1, 3)), torch.nn.Parameter(torch.ones(2, 1)), 2.0)
    layer.use_each([one, None], [1, 2])
    x = torch.ones(3, 4, 3)
    added = layer.added(x)
    assert added is not None
    assert added[:, 0, 0].tolist() == [6.0, 0.0, 0.0]
    for wrong in (x[0], x[:2], x.flatten(0, 1)):
        with pytest.raises(RowsUnknown):
            layer.added(wrong)


def test_an_adapter_is_found_in_no_network_after_its_run() -> None:
    trainer = trainer_of()
    rows = target_rows(8)
    base = flat(opened(trainer).score(rows))
    run = trained(opened(trainer), 5)
    assert flat(run.score(rows)) != base
    run.close()
    assert flat(opened(trainer).score(rows)) == base


def test_turns_are_taken_in_the_order_in_which_they_are_asked_for() -> None:
    turns, order, started = Turns(), [], []

    def ask(number: int) -> None:
        with turns.one():
            order.append(number)

    with turns.one():
        for number in range(5):
            thread = threading.Thread(target=ask, args=(number,))
            thread.start()
            started.append(thread)
            while turns._asked < number + 2:
                pass
    for thread in started:
        thread.join()
    assert order == list(range(5))


def test_a_turn_that_is_not_taken_holds_up_nobody() -> None:
    """What interrupts a wait, as ctrl-C does, gives up the turn."""
    turns = Turns()

    def interrupted() -> bool:
        raise KeyboardInterrupt

    with turns.one():
        with pytest.raises(KeyboardInterrupt), turns.one(unless=interrupted):
            pass
        with turns.one(unless=lambda: True):
            pass
        assert turns._served == 0
    with turns.one():
        assert turns._asked == turns._served + 1 == 4


# ---- which layers ----------------------------------------------------------------------------------------------------


def targets_of(**kinds: bool) -> set[str]:
    run = opened(trainer_of(), AdapterConfig(rank=2, **kinds))
    fields = json.loads(read(run.files())[CONFIG_FILE])
    assert (fields["r"], fields["lora_alpha"]) == (2, 32)
    assert {name.split(".")[-3] for name in load(read(run.files())[WEIGHTS_FILE])} == set(fields["target_modules"])
    return set(fields["target_modules"])


def test_layers_are_chosen_by_kind() -> None:
    attention, feed_forward = {"q_proj", "k_proj", "v_proj", "o_proj"}, {"gate_proj", "up_proj", "down_proj"}
    assert targets_of() == attention | feed_forward | {"lm_head"}
    assert targets_of(train_unembed=False) == attention | feed_forward
    assert targets_of(train_mlp=False, train_unembed=False) == attention
    assert targets_of(train_attn=False, train_unembed=False) == feed_forward
    assert targets_of(train_attn=False, train_mlp=False) == {"lm_head"}


def network_of(*names: str, head: Any = None) -> torch.nn.Module:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2) for name in names})
            self.lm_head = head

        def get_decoder(self) -> torch.nn.Module:
            return self.body

        def get_output_embeddings(self) -> torch.nn.Module | None:
            return self.lm_head

    return Model()


def test_a_kind_that_a_network_lacks_is_refused_by_name() -> None:
    def refused(model: torch.nn.Module, **kinds: bool) -> tuple[str | int, ...]:
        with pytest.raises(UnsupportedParameter) as caught:
            shape_of(AdapterConfig(**kinds), model)
        return caught.value.problems[0].loc

    assert refused(network_of("q_proj")) == ("train_mlp",)
    assert refused(network_of("up_proj")) == ("train_attn",)
    assert refused(network_of("in_proj"), train_mlp=False) == ("train_attn",)
    assert refused(network_of("q_proj"), train_mlp=False) == ("train_unembed",)
    assert refused(network_of("q_proj", head=torch.nn.Embedding(2, 2)), train_mlp=False) == ("train_unembed",)
    assert shape_of(AdapterConfig(train_unembed=False), network_of("in_proj")).targets == ("in_proj",)


def test_a_seed_is_that_of_the_first_weights() -> None:
    same, too, other = (read(opened(trainer_of(), AdapterConfig(seed=seed)).files()) for seed in (1, 1, 2))
    assert same == too
    assert same != other


def test_a_checkpoint_brings_its_own_rank_and_layers() -> None:
    narrow = trained(opened(trainer_of(), AdapterConfig(rank=2, train_mlp=False)), 6)
    again = opened(trainer_of(), AdapterConfig(rank=8), dict(read(narrow.files())))
    assert read(again.files()) == read(narrow.files())


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_a_base_model_that_is_trained_in_full_has_no_runs() -> None:
    with pytest.raises(TrainingError, match="in full"):
        opened(trainer_of(tuning=Tuning.FULL))


def test_an_unknown_base_model_and_files_of_another_kind_are_refused_and_leave_nothing() -> None:
    trainer = trainer_of(keep_base=0)
    with pytest.raises(TrainingError, match="not here"):
        trainer.open_run("other", ALL, frozenset(), lambda name: io.BytesIO())
    with pytest.raises(TrainingError, match="another kind of base model"):
        opened(trainer, files={"adapter.safetensors": b""})
    assert not trainer._bases._bases


def test_a_row_longer_than_memory_allows_is_refused_and_so_is_one_run_too_many() -> None:
    trainer = trainer_of(memory=8_000_000)
    runs = [opened(trainer, AdapterConfig(rank=64))]

    def fill() -> None:
        for _ in range(100):
            runs.append(opened(trainer, AdapterConfig(rank=64)))

    with pytest.raises(TrainingError, match="memory"):
        fill()
    rows = [TargetRow([5] * 250, [6] * 250)]
    with pytest.raises(TrainingError, match="of 250 tokens"):
        runs[-1].score(rows)
    runs[0].close()
    opened(trainer, AdapterConfig(rank=64)).close()


def test_runs_that_are_opened_later_are_counted_for_those_that_are_there() -> None:
    """Each run reckons with the adapters, gradients and moments of all, also as they come and go."""
    trainer = trainer_of(memory=2**40)
    first = opened(trainer, AdapterConfig(rank=8))
    alone = first._room._total(1, 9, recomputed=False)
    second = opened(trainer, AdapterConfig(rank=64))
    bytes_each = sum(one.nbytes for one in second._trained.parameters)
    assert first._room._total(1, 9, recomputed=False) - alone == bytes_each * 4
    theirs, ours = second._room._need, first._room._need
    assert theirs.fixed + second._room._others() == ours.fixed + first._room._others()
    second.close()
    assert first._room._total(1, 9, recomputed=False) == alone


def test_passes_become_smaller_when_other_runs_leave_less_memory() -> None:
    """They are as they were once those have ended; a planned pass is recomputed if that makes it fit."""
    trainer = trainer_of(memory=2**40)
    run = opened(trainer, AdapterConfig(rank=8))
    room, rows = run._room, [GivenRow(range(3, 203), [(5,)] * 200)] * 8
    need = room._need
    room._limit = need.fixed + need.of_pass(8, 200, recomputed=False)
    [before] = room.passes(rows)
    assert not before.recomputed
    other = opened(trainer, AdapterConfig(rank=1, train_mlp=False, train_unembed=False))
    [now] = room.passes(rows)
    assert now.recomputed
    assert room.now(before) == now
    room._limit = need.fixed + room._others() + need.of_pass(3, 200, recomputed=True)
    assert [len(one.rows) for one in room.passes(rows)] == [3, 3, 2]
    other.close()
    assert sum(len(one.rows) for one in room.passes(rows)) == 8
    assert len(next(room.passes(rows)).rows) > 3


def test_a_run_is_refused_that_would_leave_no_memory_for_the_rows_of_another() -> None:
    """It names what other runs have. Without such rows it is opened."""
    trainer = trainer_of(memory=2**40)
    first = opened(trainer, AdapterConfig(rank=8))
    need, rows = first._room._need, [TargetRow([5] * 200, [6] * 200)]
    first._room._limit = shared_by(trainer)._limit = need.fixed + need.of_pass(1, 200, recomputed=True)
    first.score(rows)
    with pytest.raises(TrainingError, match=r"those of other runs, .* 200 tokens; .* after other runs, or with more"):
        opened(trainer, AdapterConfig(rank=1))
    first.score(rows)
    first._room.longest = 1
    opened(trainer, AdapterConfig(rank=1))
    with pytest.raises(TrainingError, match="of 200 tokens"):
        first.score(rows)


def test_a_gradient_that_is_not_finite_leaves_the_step_out() -> None:
    run = trained(opened(trainer_of()), 7)
    before, rows = read(run.state()), target_rows(9)
    run.accumulate(rows, cross_entropy(rows, 1e39))
    with pytest.raises(TrainingError, match="left out"):
        run.optim_step(AdamParams())
    assert read(run.state()) == before
    run.optim_step(AdamParams(learning_rate=0.0))
    run.accumulate(rows, cross_entropy(rows))
    assert math.isfinite(run.optim_step(AdamParams())["grad_norm"])

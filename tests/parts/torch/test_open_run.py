"""Runs that their callers drive, on the torch engine."""

import gc
import io
import json
import math
import random
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from safetensors.torch import load
from training_kit import TINY, learner_of, trainer_of

from modelyard.domain.training_run import AdamParams, AdapterConfig, Objective, TargetRow
from modelyard.errors import TrainingError, UnsupportedParameter
from modelyard.parts.contracts.step_trainer import cross_entropy, flat, read, target_rows, trained
from modelyard.parts.torch.lora import CONFIG_FILE, WEIGHTS_FILE
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.records import Tuning
from modelyard.parts.torch.training import trainer as training
from modelyard.parts.torch.training.adapter_layers import shape_of
from modelyard.parts.torch.training.examples import TokenRow
from modelyard.parts.torch.training.local_run import LocalRun
from modelyard.parts.torch.training.shared_base import Turns
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
    with run._turn():
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


def test_runs_of_other_ranks_and_layers_take_turns_in_threads() -> None:
    """Eight at once on one network end as each would by itself, to the byte."""
    configs = [
        AdapterConfig(rank=rank, seed=rank, train_mlp=mlp, train_unembed=head)
        for rank in (2, 5)
        for mlp in (True, False)
        for head in (True, False)
    ]

    def ending(trainer: LocalTrainer, config: AdapterConfig) -> dict[str, bytes]:
        return dict(read(trained(opened(trainer, config), config.rank).state()))

    alone = [ending(trainer_of(), config) for config in configs]
    trainer = trainer_of()
    with ThreadPoolExecutor(len(configs)) as pool:
        assert list(pool.map(lambda config: ending(trainer, config), configs)) == alone


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

"""Several ranks of one job: their numbers are those of one, a job continues bit for bit, and no process is left."""

import subprocess
from collections.abc import Sequence
from typing import Any

import pytest
from training_kit import TINY, trainer_of

from modelyard.domain.training_config import RLConfig, SFTConfig
from modelyard.errors import TrainingError
from modelyard.parts.contracts.trainer import ANSWERS, WORDS, Run, context_of, conversation_about, followed, rewarded
from modelyard.parts.torch.records import Tuning
from modelyard.parts.torch.training import memory_plan, ranks
from modelyard.parts.torch.training.ranks import RankTask
from modelyard.protocols import Step

EXAMPLES = [conversation_about(word, ANSWERS[place % 4]) for place, word in enumerate(WORDS)]
SFT = SFTConfig(learning_rate=1e-3, batch_size=3)
RL = RLConfig(learning_rate=1e-3, packed_sequence_length=240, kl_penalty_coef=0.1)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    started: list[Any] = []
    real = subprocess.Popen

    def start(*args: Any, **options: Any) -> Any:
        started.append(real(*args, **options))
        return started[-1]

    monkeypatch.setattr(ranks.subprocess, "Popen", start)
    return started


def run(method: str, config: Any, data: Sequence[Any], context: Any = None, **options: Any) -> Run:
    trainer = trainer_of(save_every=1, **options)
    return followed(trainer.train(method, config, data, context or context_of(TINY)))


def assert_close(one: Run, two: Run) -> None:
    assert len(one.steps) == len(two.steps) > 1
    for mine, other in zip(one.steps, two.steps, strict=True):
        assert dict(mine.metrics) == pytest.approx(dict(other.metrics), rel=1e-6, abs=1e-6)


@pytest.mark.usefixtures("_warm_ranks")
def test_two_ranks_have_the_loss_of_one_and_resume_bit_for_bit(processes: list[Any]) -> None:
    one, two = run("sft", SFT, EXAMPLES), run("sft", SFT, EXAMPLES, ranks=2)
    assert_close(one, two)
    assert one.files.keys() == two.files.keys()
    resumed = run("sft", SFT, EXAMPLES, context_of(TINY, resume=(1, two.states[1])), ranks=2)
    assert resumed.files == two.files
    assert [step.metrics for step in resumed.steps] == [step.metrics for step in two.steps[1:]]
    assert [process.poll() is None for process in processes] == [False, False]


@pytest.mark.usefixtures("_warm_ranks")
def test_losses_that_need_all_of_a_step_and_another_model_are_those_of_one_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first step is one pass for each rank, the second several."""
    for name, tokens in (("MOST_TOKENS", 16), ("LEAST_TOKENS", 8)):
        monkeypatch.setattr(memory_plan, name, tokens)
    asked = spied(monkeypatch)
    groups = [rewarded("sea", [1.0, 0.0]), rewarded("sky", [1.0, 0.5, 0.2, 0.0])]
    one, two = (run("rl", RL, groups, tuning=Tuning.FULL, ranks=count) for count in (1, 2))
    assert_close(one, two)
    assert {RankTask.SCORE, RankTask.ASK, RankTask.DIFFERENTIATE} == {*asked}


def spied(monkeypatch: pytest.MonkeyPatch) -> list[RankTask]:
    """Note what the ranks are asked to do."""
    asked: list[RankTask] = []
    compute = ranks.Ranks.compute

    def noting(self: Any, shares: Any, derivatives: Any = None) -> Any:
        asked.append(shares[0].task)
        return compute(self, shares, derivatives)

    monkeypatch.setattr(ranks.Ranks, "compute", noting)
    return asked


def test_a_rank_that_ends_is_named(processes: list[Any]) -> None:
    items = trainer_of(ranks=2).train("sft", SFT, EXAMPLES, context_of(TINY))
    while not isinstance(next(items), Step):
        pass
    processes[0].kill()
    processes[0].wait()
    with pytest.raises(TrainingError, match="rank 1 of 2 ended"):
        list(items)


def test_a_rank_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks.sys, "executable", "/bin/false")
    with pytest.raises(TrainingError, match="rank 1 of 2 did not start"):
        list(trainer_of(ranks=2).train("sft", SFT, EXAMPLES, context_of(TINY)))

"""The local trainer keeps the contract and really learns, by an adapter or in full, and says what it cannot train."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from local_models import SHAPE, base_model
from training_kit import TINY, learner_of, micro, trainer_of

from modelyard.domain.completion import Message, Role, TokenLogprob
from modelyard.domain.training import Example, History, Preference, SampledChoice, Trajectory, TrajectoryGroup
from modelyard.domain.training_config import DPOConfig, RLConfig, SFTConfig
from modelyard.engines import LoraShape
from modelyard.errors import InvalidInput, TrainingError
from modelyard.parts.contracts.trainer import (
    WORDS,
    TrainerContract,
    context_of,
    conversation_about,
    followed,
    rewarded,
)
from modelyard.parts.torch.network import FULL_FILE
from modelyard.parts.torch.records import Tuning
from modelyard.parts.torch.tiny_model import build_tiny_model
from modelyard.parts.torch.training.trainer import LocalTrainer
from modelyard.trainers.loop import Objective
from modelyard.trainers.losses import Loss


class TestTheAdapterTrainer(TrainerContract):
    @pytest.fixture
    def trainer(self) -> LocalTrainer:
        return trainer_of(save_every=2, shape=SHAPE)

    @pytest.fixture
    def base_model(self) -> str:
        return TINY

    @pytest.fixture
    def examples(self) -> Sequence[Example]:
        return EXAMPLES[:6]

    @pytest.fixture
    def groups(self) -> Sequence[TrajectoryGroup]:
        return [rewarded(word, [1.0, 0.0]) for word in WORDS[:3]]


class TestTheFullTrainer(TestTheAdapterTrainer):
    @pytest.fixture
    def trainer(self) -> LocalTrainer:
        return trainer_of(tuning=Tuning.FULL, save_every=2)


# ---- it learns -----------------------------------------------------------------------------------------------------

RATES = {Tuning.LORA: 1e-2, Tuning.FULL: 4e-3}
LOSSES = {Tuning.LORA: 3.0, Tuning.FULL: 0.6}  # of a random model, which an adapter alone can hardly bend
EXAMPLES = [conversation_about(word, f"{word[::-1]}!") for word in WORDS]


@pytest.mark.parametrize("tuning", Tuning)
def test_sft_lowers_the_loss_of_the_examples(tuning: Tuning) -> None:
    config = SFTConfig(learning_rate=RATES[tuning], batch_size=8)
    run = followed(trainer_of(tuning=tuning).train("sft", config, EXAMPLES * 30, context_of(TINY)))
    losses = [step.metrics["loss"] for step in run.steps]
    assert losses[0] > 4
    assert losses[-1] < LOSSES[tuning]


def test_a_negated_reward_teaches_the_opposite() -> None:
    """The sampled answers of one group: after training the good one has become likelier, the bad one less likely."""
    config = RLConfig(learning_rate=1e-2)
    for sign in (1, -1):
        group = rewarded("sea", [sign, -sign])
        files = followed(trainer_of().train("rl", config, [group], context_of(TINY))).files
        before, after = ([_score(one, found) for one in group.trajectories] for found in ({}, files))
        gains = [new - old for new, old in zip(after, before, strict=True)]
        assert sign * gains[0] > 0 > sign * gains[1]


def _score(trajectory: Trajectory, files: dict[str, bytes]) -> float:
    learner, trained = learner_of(files)
    turns = learner.sampled(trajectory, without_logprobs=False).turns
    (row,) = learner.scores(trained.copy(), turns)
    return sum(row)


# ---- what is left out ------------------------------------------------------------------------------------------------


def long_example(words: int = 400) -> Example:
    return conversation_about("sea", "It is blue. " * words)


def test_a_row_beyond_the_context_is_left_out_and_counted() -> None:
    data = [EXAMPLES[0], long_example(), EXAMPLES[1], EXAMPLES[2]]
    run = followed(trainer_of().train("sft", SFTConfig(batch_size=2), data, context_of(TINY)))
    assert [step.metrics["num_overlong"] for step in run.steps] == [1, 1]
    assert run.metrics["num_overlong"] == 1
    (one, two) = (step.metrics["num_trainable_tokens"] for step in run.steps)
    assert one < two


def test_text_after_the_last_trained_token_does_not_exclude_a_row() -> None:
    long = Message(Role.USER, "and what else? " * 200)
    example = Example((*EXAMPLES[0].messages, long))
    run = followed(trainer_of().train("sft", SFTConfig(), [example], context_of(TINY)))
    assert "num_overlong" not in run.metrics
    assert run.metrics["num_trainable_tokens"] > 0


OVERLONG = r"no row fits: the longest has \d{4} tokens of a context of 256"


@pytest.mark.parametrize(
    ("method", "config", "data", "why"),
    [
        (
            "sft",
            SFTConfig(),
            [long_example(), long_example(600)],
            OVERLONG,
        ),
        ("sft", SFTConfig(), [Example((Message(Role.USER, "hello"),))], "no row has a token to train"),
        ("sft", SFTConfig(), [], "no row has a token to train"),
        (
            "dpo",
            DPOConfig(),
            [Preference(long_example().messages[:1], *(long_example(400 + more).messages[1] for more in (0, 1)))],
            OVERLONG,
        ),
    ],
    ids=["long", "silent", "none", "pairs"],
)
def test_a_job_in_which_no_token_is_trained_fails_and_says_why(method: str, config: Any, data: Any, why: str) -> None:
    with pytest.raises(TrainingError, match=why):
        followed(trainer_of().train(method, config, data, context_of(TINY)))


def test_a_step_without_a_token_measures_nothing() -> None:
    config = SFTConfig(batch_size=1, learning_rate=1e-3)
    run = followed(trainer_of().train("sft", config, [EXAMPLES[0], long_example()], context_of(TINY)))
    first, second = run.steps
    assert first.metrics["loss"] > 0
    assert second.metrics.keys() == {"num_trainable_tokens", "learning_rate", "num_overlong"}
    assert second.metrics["num_trainable_tokens"] == 0
    alone = followed(trainer_of().train("sft", config, EXAMPLES[:1], context_of(TINY)))
    assert run.files == alone.files


def test_trajectories_that_are_all_too_long_fail_and_say_so() -> None:
    prompt = tuple(range(3, 250)) * 2
    group = TrajectoryGroup(
        tuple(
            attrs.evolve(one, histories=(_with_prompt(one.histories[0], prompt),))
            for one in rewarded("sea", [1.0, 0.0]).trajectories
        )
    )
    with pytest.raises(TrainingError, match=r"no trajectory .* fits: the longest has \d+ tokens of a context of 256"):
        followed(trainer_of().train("rl", RLConfig(), [group], context_of(TINY)))
    equal = attrs.evolve(group, trajectories=tuple(attrs.evolve(one, reward=1.0) for one in group.trajectories))
    run = followed(trainer_of().train("rl", RLConfig(), [equal], context_of(TINY)))
    assert run.started[0].steps == 0
    assert run.metrics["num_overlong"] == 2


def _with_prompt(history: History, prompt: tuple[int, ...]) -> History:
    *before, choice = history.items
    assert isinstance(choice, SampledChoice)
    return History((*before, attrs.evolve(choice, prompt_token_ids=prompt)))


def test_missing_and_not_a_number_old_logprobs_count_as_a_ratio_of_one() -> None:
    def group(logprob: float) -> TrajectoryGroup:
        return TrajectoryGroup(tuple(_sampled_by_ids((7, 8, 9), logprob, reward) for reward in (1.0, 0.0)))

    run = followed(trainer_of().train("rl", RLConfig(), [group(math.nan)], context_of(TINY)))
    assert run.metrics["importance_ratio"] == 1
    assert run.metrics["kl_div"] == 0
    far = followed(trainer_of().train("rl", RLConfig(), [group(-30.0)], context_of(TINY)))
    assert far.metrics["importance_ratio"] > 100


def _sampled_by_ids(ids: tuple[int, ...], logprob: float, reward: float) -> Trajectory:
    logprobs = tuple(TokenLogprob("?", logprob) for _ in ids)
    choice = SampledChoice(Message(Role.ASSISTANT, "?"), logprobs=logprobs, token_ids=ids)
    return Trajectory((History((Message(Role.USER, "hi"), choice)),), reward)


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_tokens_of_another_model_are_refused_by_number() -> None:
    group = TrajectoryGroup(tuple(_sampled_by_ids((7, 70_000), -1.0, reward) for reward in (1.0, 0.0)))
    with pytest.raises(TrainingError, match="token 70000 is not one of this model's 259"):
        followed(trainer_of().train("rl", RLConfig(), [group], context_of(TINY)))


def test_an_ambiguous_row_is_refused_before_the_first_step() -> None:
    learner, _ = learner_of({})
    learner._chat.tokenizer.chat_template = (
        "{{ messages | length }}{% for message in messages %}<|im_start|>{{ message.role }} {{ message.content }}"
        "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
    )
    two_turns = Example((*EXAMPLES[0].messages, *EXAMPLES[1].messages))
    with pytest.raises(InvalidInput, match=r"messages\.1: cannot be trained: this model's chat template"):
        learner.sft_turns(two_turns, "all")


@pytest.mark.parametrize("tuning", Tuning)
def test_a_loss_that_is_nan_fails_the_job_naming_the_step_and_what_to_try(tuning: Tuning) -> None:
    """A learning rate that throws the weights far away overflows within a few steps."""
    config = SFTConfig(learning_rate=(1e30,) * 8, batch_size=1)
    with pytest.raises(TrainingError, match=r"diverged at step \d+.*try a learning rate far below 1e\+30"):
        followed(trainer_of(tuning=tuning).train("sft", config, EXAMPLES, context_of(TINY)))


def test_a_loss_that_is_nan_fails_the_job_even_with_a_finite_gradient() -> None:
    learner, _ = learner_of({})
    rows = learner.sft_turns(EXAMPLES[0], "all")
    broken = Objective(lambda new: Loss(math.nan, tuple((0.0,) * len(row) for row in new), {}))
    with pytest.raises(TrainingError, match="diverged at step 7"):
        learner.step(rows, broken, 1e-3, 7)


def test_an_adapter_of_another_base_is_refused(tmp_path: Path) -> None:
    other = LocalTrainer([base_model(build_tiny_model(tmp_path / "nano", "nano"), "nano")], device="cpu")
    files = followed(other.train("sft", SFTConfig(), EXAMPLES[:2], context_of("nano"))).files
    with pytest.raises(TrainingError, match=r"does not fit this base model.*another base model"):
        followed(trainer_of().train("sft", SFTConfig(), EXAMPLES[:2], context_of(TINY, parent=files)))


def test_full_training_cannot_continue_from_an_adapter_nor_the_other_way_round() -> None:
    kinds = {
        tuning: followed(trainer_of(tuning=tuning).train("sft", SFTConfig(), EXAMPLES[:2], context_of(TINY))).files
        for tuning in Tuning
    }
    for tuning, other in ((Tuning.LORA, Tuning.FULL), (Tuning.FULL, Tuning.LORA)):
        with pytest.raises(TrainingError, match="another kind of base model"):
            followed(
                trainer_of(tuning=tuning).train("sft", SFTConfig(), EXAMPLES[:2], context_of(TINY, parent=kinds[other]))
            )


def test_a_network_without_the_projections_that_an_adapter_goes_around_is_refused_with_a_way_out() -> None:
    trainer = trainer_of(shape=LoraShape(targets=("query_key_value",)))
    with pytest.raises(TrainingError, match="no linear layer named query_key_value; it has down_proj, gate_proj"):
        followed(trainer.train("sft", SFTConfig(), EXAMPLES[:2], context_of(TINY)))


# ---- full tuning -----------------------------------------------------------------------------------------------------


def test_full_training_changes_every_weight_and_saves_them_by_the_names_of_the_base() -> None:
    from safetensors.torch import load, load_file

    config = SFTConfig(learning_rate=1e-3)
    files = followed(trainer_of(tuning=Tuning.FULL).train("sft", config, EXAMPLES[:4], context_of(TINY))).files
    base, trained = load_file(micro() / FULL_FILE), load(files[FULL_FILE])
    assert base.keys() == trained.keys()
    assert all(not torch.equal(base[name], trained[name]) for name in base)

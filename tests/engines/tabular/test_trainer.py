"""The tabular trainer keeps the contract, and really learns: from examples, and from rewards alone."""

import io
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import attrs
import pytest

from each import each_case
from modelyard.domain.completion import FinishReason, Message, Role, TokenLogprob, Tool, ToolCall
from modelyard.domain.training import Example, History, SampledChoice, Trajectory, TrajectoryGroup
from modelyard.domain.training_config import RLConfig, SFTConfig
from modelyard.engines.tabular.adapter_file import ADAPTER_FILE, read_adapter
from modelyard.engines.tabular.base import BASE_MODELS, base_seed, conversation
from modelyard.engines.tabular.model import TabularModel, prompt_features
from modelyard.engines.tabular.tokenizer import END_OF_TURN, VOCABULARY_SIZE, encode, token_bytes, token_text
from modelyard.engines.tabular.trainer import TabularTrainer
from modelyard.engines.tabular.training_data import TabularTurn, example_turns, sampled_turns
from modelyard.errors import InvalidInput, TrainingError
from modelyard.parts.contracts.trainer import (
    ANSWERS,
    WORDS,
    TrainerContract,
    context_of,
    conversation_about,
    followed,
    rewarded,
)
from modelyard.protocols import SavedState, Started, Step, TrainContext, Trained, TrainItem

(BASE,) = BASE_MODELS


class TestTabularTrainer(TrainerContract):
    @pytest.fixture
    def trainer(self) -> TabularTrainer:
        return TabularTrainer(save_every=2)

    @pytest.fixture
    def base_model(self) -> str:
        return BASE


# ---- teeth ---------------------------------------------------------------------------------------------------------


class Tampered(TabularTrainer):
    """Yields what the tabular trainer yields, changed."""

    def change(self, items: Iterator[TrainItem], context: TrainContext) -> Iterator[TrainItem]:
        raise NotImplementedError

    def train(self, method: str, config: Any, data: Iterable[Any], context: TrainContext) -> Iterator[TrainItem]:
        return self.change(super().train(method, config, data, context), context)


class NeverStarts(Tampered):
    def change(self, items: Iterator[TrainItem], context: TrainContext) -> Iterator[TrainItem]:
        return (item for item in items if not isinstance(item, Started))


class CountsFromZero(Tampered):
    def change(self, items: Iterator[TrainItem], context: TrainContext) -> Iterator[TrainItem]:
        return (attrs.evolve(item, number=item.number - 1) if isinstance(item, Step) else item for item in items)


class SavesTooEarly(Tampered):
    def change(self, items: Iterator[TrainItem], context: TrainContext) -> Iterator[TrainItem]:
        return (attrs.evolve(item, number=item.number + 1) if isinstance(item, SavedState) else item for item in items)


class ReportsNothing(Tampered):
    def change(self, items: Iterator[TrainItem], context: TrainContext) -> Iterator[TrainItem]:
        return (attrs.evolve(item, metrics={"loss": math.nan}) if isinstance(item, Step) else item for item in items)


class WritesSomethingElseEachTime(Tampered):
    runs = 0

    def change(self, items: Iterator[TrainItem], context: TrainContext) -> Iterator[TrainItem]:
        self.runs += 1
        for item in items:
            yield attrs.evolve(item, files={"run": [b"%d" % self.runs]}) if isinstance(item, Trained) else item


class ResumesFromTheBeginning(TabularTrainer):
    def train(self, method: str, config: Any, data: Iterable[Any], context: TrainContext) -> Iterator[TrainItem]:
        return super().train(method, config, data, attrs.evolve(context, resume_step=0))


class ForgetsTheSavedState(TabularTrainer):
    def train(self, method: str, config: Any, data: Iterable[Any], context: TrainContext) -> Iterator[TrainItem]:
        return super().train(
            method, config, data, attrs.evolve(context, resume=context.parent, resume_files=context.parent_files)
        )


class ForgetsItsParent(TabularTrainer):
    def train(self, method: str, config: Any, data: Iterable[Any], context: TrainContext) -> Iterator[TrainItem]:
        return super().train(method, config, data, attrs.evolve(context, parent_files=frozenset()))


class RunsOn(Tampered):
    def change(self, items: Iterator[TrainItem], context: TrainContext) -> Iterator[TrainItem]:
        return chain(items)


class TrainsAnything(TabularTrainer):
    def methods(self, base_model: str) -> Collection[str]:
        return ("sft",)


class IgnoresRewards(TabularTrainer):
    def train(self, method: str, config: Any, data: Iterable[Any], context: TrainContext) -> Iterator[TrainItem]:
        return super().train(method, config, [rewarded("sea", [1, 0])] if method == "rl" else data, context)


class RoundsRates(TabularTrainer):
    def train(self, method: str, config: Any, data: Iterable[Any], context: TrainContext) -> Iterator[TrainItem]:
        return super().train(method, attrs.evolve(config, learning_rate=1e-6), data, context)


BROKEN: Mapping[type[TabularTrainer], str] = {
    NeverStarts: "test_it_starts_makes_numbered_steps_and_ends_with_files",
    CountsFromZero: "test_it_starts_makes_numbered_steps_and_ends_with_files",
    SavesTooEarly: "test_states_are_saved_behind_the_step_that_they_name",
    ReportsNothing: "test_metrics_are_finite_numbers",
    WritesSomethingElseEachTime: "test_the_same_job_gives_the_same_files",
    ResumesFromTheBeginning: "test_a_run_resumed_from_any_state_ends_like_an_undisturbed_one",
    ForgetsTheSavedState: "test_a_run_resumed_from_any_state_ends_like_an_undisturbed_one",
    ForgetsItsParent: "test_training_goes_on_from_its_parent",
    RunsOn: "test_a_run_can_be_broken_off_after_any_item",
    TrainsAnything: "test_it_knows_what_it_trains_and_by_which_methods",
    IgnoresRewards: "test_rl_learns_from_rewards",
    RoundsRates: "test_sft_takes_one_rate_for_each_batch_exactly_as_sent",
}


@each_case("broken", BROKEN)
def test_the_contract_catches_a_trainer_that(broken: type[TabularTrainer]) -> None:
    examples = [conversation_about(word, ANSWERS[place % 4]) for place, word in enumerate(WORDS)]
    groups = [rewarded(word, [1.0, 0.0]) for word in WORDS]

    def check(trainer: TabularTrainer) -> None:
        given: dict[str, Any] = {
            "train": lambda **context: trainer.train(
                "sft", SFTConfig(batch_size=1), examples, context_of(BASE, **context)
            ),
            "trainer": trainer,
            "base_model": BASE,
            "examples": examples,
            "groups": groups,
        }
        law = getattr(TrainerContract(), BROKEN[broken])
        law(**{name: given[name] for name in law.__code__.co_varnames[1 : law.__code__.co_argcount]})

    check(TabularTrainer(save_every=2))
    with pytest.raises(AssertionError):
        check(broken(save_every=2))


# ---- learning ------------------------------------------------------------------------------------------------------


def model_of(files: Mapping[str, bytes]) -> TabularModel:
    return TabularModel(base_seed(BASE), read_adapter(io.BytesIO(files[ADAPTER_FILE])))


def likelihood(model: TabularModel, word: str, answer: str) -> float:
    (turn,) = example_turns(conversation_about(word, answer), "all")
    return math.fsum(model.score(turn.answer.features, turn.ids))


def test_sft_lowers_the_loss_and_makes_the_answers_likelier() -> None:
    examples = [conversation_about(word, ANSWERS[place % 4]) for place, word in enumerate(WORDS)] * 20
    run = followed(TabularTrainer().train("sft", SFTConfig(batch_size=8), examples, context_of(BASE)))
    losses = [step.metrics["loss"] for step in run.steps]
    assert losses[-1] < losses[0] / 2
    base, tuned = TabularModel(base_seed(BASE)), model_of(run.files)
    assert likelihood(tuned, "sea", ANSWERS[0]) > likelihood(base, "sea", ANSWERS[0]) + 5
    assert likelihood(tuned, "sea", ANSWERS[0]) > likelihood(tuned, "sea", ANSWERS[1])


def test_rl_raises_what_was_rewarded_above_what_was_not() -> None:
    base = TabularModel(base_seed(BASE))
    groups = [group_by(base, word, ANSWERS[:2], [1.0, 0.0]) for word in WORDS]
    run = followed(TabularTrainer().train("rl", RLConfig(learning_rate=2e-5), groups, context_of(BASE)))
    after = model_of(run.files)
    for word in WORDS:
        before_gap = likelihood(base, word, ANSWERS[0]) - likelihood(base, word, ANSWERS[1])
        assert likelihood(after, word, ANSWERS[0]) - likelihood(after, word, ANSWERS[1]) > before_gap


def group_by(model: TabularModel, word: str, answers: Sequence[str], rewards: Sequence[float]) -> TrajectoryGroup:
    """A group of answers with the log-probabilities and ids that the model itself gives them."""
    trajectories = []
    for answer, reward in zip(answers, rewards, strict=True):
        (turn,) = example_turns(conversation_about(word, answer), "all")
        logprobs = tuple(
            TokenLogprob(token_text(id_), min(0.0, logprob), tuple(token_bytes(id_)))
            for id_, logprob in zip(turn.ids, model.score(turn.answer.features, turn.ids), strict=True)
        )
        choice = SampledChoice(Message(Role.ASSISTANT, answer), FinishReason.STOP, logprobs, turn.ids)
        trajectories.append(Trajectory((History((*turn.prompt, choice)),), reward))
    return TrajectoryGroup(tuple(trajectories))


def first_step(groups: Sequence[TrajectoryGroup], context: TrainContext | None = None, **options: Any) -> Step:
    config = RLConfig(**{"learning_rate": 1e-6, **options})
    return followed(TabularTrainer().train("rl", config, groups, context or context_of(BASE))).steps[0]


def test_on_policy_data_have_ratio_one_and_no_divergence() -> None:
    metrics = first_step([group_by(TabularModel(base_seed(BASE)), "sea", ANSWERS[:2], [1.0, 0.0])]).metrics
    assert metrics["importance_ratio"] == pytest.approx(1.0)
    assert metrics["kl_div"] == pytest.approx(0.0, abs=1e-12)
    assert metrics["reward"] == 0.5
    assert metrics["reward_std_dev"] == 0.5
    assert metrics["entropy"] > 0
    assert metrics["num_trainable_tokens"] == sum(len(encode(answer)) + 1 for answer in ANSWERS[:2])


def test_logprobs_can_be_recomputed_with_the_weights_before_the_update() -> None:
    groups = [rewarded("sea", [1.0, 0.0])]
    assert first_step(groups).metrics["importance_ratio"] != pytest.approx(1.0)
    assert first_step(groups, precalculate_logprobs=True).metrics["importance_ratio"] == pytest.approx(1.0)


def test_a_kl_penalty_holds_on_to_the_base_or_to_the_checkpoint_that_it_names() -> None:
    tuned = followed(
        TabularTrainer().train("sft", SFTConfig(), [conversation_about("sea", ANSWERS[0])] * 4, context_of(BASE))
    ).files
    groups = [group_by(model_of(tuned), "sea", ANSWERS[:2], [1.0, 0.0])]
    own = first_step(groups, context_of(BASE, parent=tuned, reference=tuned), kl_penalty_coef=0.1)
    base = first_step(groups, context_of(BASE, parent=tuned), kl_penalty_coef=0.1)
    named = first_step(groups, context_of(BASE, parent=tuned, reference=tuned), kl_penalty_reference_step=1)
    assert own.metrics["kl_div"] == pytest.approx(0.0, abs=1e-12)
    assert named.metrics["kl_div"] == pytest.approx(0.0, abs=1e-12)
    assert base.metrics["kl_div"] > 0.01


def test_trajectories_are_packed_by_their_tokens_prompts_included() -> None:
    groups = [rewarded(word, [1.0, 0.0]) for word in WORDS]
    one = sampled_turns(groups[0].trajectories[0])[0][-1].length
    started = [
        next(TabularTrainer().train("rl", RLConfig(packed_sequence_length=length), groups, context_of(BASE)))
        for length in (1, 2 * one, 100_000)
    ]
    assert started[0] == Started(16)
    assert started[2] == Started(1)
    assert isinstance(started[1], Started)
    assert 1 < started[1].steps < 16


def test_too_high_a_learning_rate_fails_with_what_to_try() -> None:
    examples = [conversation_about(word, ANSWERS[place % 4]) for place, word in enumerate(WORDS)] * 4
    with pytest.raises(TrainingError, match="learning rate"):
        followed(TabularTrainer().train("sft", SFTConfig(learning_rate=10.0), examples, context_of(BASE)))


def test_a_list_of_rates_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidInput, match="2 rates"):
        next(
            TabularTrainer().train(
                "sft", SFTConfig(learning_rate=(1e-5, 1e-5)), [conversation_about("a", "b")], context_of(BASE)
            )
        )


def test_a_parent_that_is_not_an_adapter_fails_with_what_to_do() -> None:
    with pytest.raises(TrainingError, match="train again"):
        next(TabularTrainer().train("sft", SFTConfig(), [], context_of(BASE, parent={ADAPTER_FILE: b"pickle"})))


# ---- tokens --------------------------------------------------------------------------------------------------------


def turns_of(*items: Message | SampledChoice, without_logprobs: bool = False) -> list[TabularTurn]:
    (turns,) = sampled_turns(Trajectory((History(items),)), without_logprobs)
    return turns


def answer_with(*entries: TokenLogprob, ids: tuple[int, ...] = ()) -> SampledChoice:
    return SampledChoice(Message(Role.ASSISTANT, "answer"), logprobs=entries, token_ids=ids)


def test_sampled_ids_are_used_exactly() -> None:
    entries = (TokenLogprob(" Hello", -1.0, tuple(b" Hello")), TokenLogprob("", -2.0, ()))
    (turn,) = turns_of(answer_with(*entries, ids=(300, 301)))
    assert (turn.ids, turn.logprobs) == ((300, 301), (-1.0, -2.0))


def test_without_ids_or_with_foreign_ones_tokens_are_found_by_their_bytes() -> None:
    entries = (
        TokenLogprob(" the", -1.0, tuple(b" the")),
        TokenLogprob(" thexq", -2.0, None),
        TokenLogprob("\ufffd", -3.0, (0xC3,)),
        TokenLogprob("\ufffd", -4.0, (0xC3, 0x28)),
        TokenLogprob("", -5.0, ()),
    )
    expected = [
        (encode(" the")[0], -1.0),
        *((piece, None) for piece in encode(" thexq")),
        (0xC3, -3.0),
        (0xC3, None),
        (0x28, None),
        (END_OF_TURN, -5.0),
    ]
    for ids in ((), (1, 2, 3, 4, VOCABULARY_SIZE)):
        (turn,) = turns_of(answer_with(*entries, ids=ids))
        assert list(zip(turn.ids, turn.logprobs, strict=True)) == expected


def test_each_choice_is_trained_in_the_context_of_all_before_it() -> None:
    first, second = answer_with(TokenLogprob("a", -1.0)), answer_with(TokenLogprob("b", -1.0))
    user, plain = Message(Role.USER, "hi"), Message(Role.ASSISTANT, "context only")
    turns = turns_of(user, first, plain, user, second)
    assert [turn.prompt for turn in turns] == [(user,), (user, first.message, plain, user)]


def test_without_logprobs_assistant_turns_count_only_on_request() -> None:
    stopped = SampledChoice(Message(Role.ASSISTANT, "one"))
    cut = SampledChoice(Message(Role.ASSISTANT, "two"), FinishReason.LENGTH)
    exact = SampledChoice(Message(Role.ASSISTANT, "x"), token_ids=(5, 6))
    items = (Message(Role.USER, "hi"), stopped, cut, exact, Message(Role.ASSISTANT, "three"))
    assert turns_of(*items) == []
    turns = turns_of(*items, without_logprobs=True)
    assert [turn.ids for turn in turns] == [
        (*encode("one"), END_OF_TURN),
        tuple(encode("two")),
        (5, 6),
        (*encode("three"), END_OF_TURN),
    ]
    assert all(logprob is None for turn in turns for logprob in turn.logprobs)
    groups = [rewarded("sea", [1.0, 0.0], logprobs=False)]
    assert first_step(groups, allow_training_without_logprobs=True).metrics["importance_ratio"] == 1.0


def test_examples_train_all_assistant_turns_or_the_last_with_their_tools() -> None:
    call = ToolCall("1", "look_up", "{}")
    messages = (
        Message(Role.USER, "hi"),
        Message(Role.ASSISTANT, None, tool_calls=(call,)),
        Message(Role.TOOL, "found", tool_call_id="1"),
        Message(Role.ASSISTANT, "here"),
    )
    example = Example(messages, (Tool("look_up", "finds"),))
    both = example_turns(example, "all")
    assert [turn.ids for turn in both] == [
        (*encode("look_up {}"), END_OF_TURN),
        (*encode("here"), END_OF_TURN),
    ]
    assert both[1].prompt == conversation(messages[:3], example.tools)
    assert example_turns(example, "last") == both[1:]
    assert prompt_features(both[0].prompt) == both[0].answer.features

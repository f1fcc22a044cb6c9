"""The contract of every trainer, to be run on your own:

    class TestMyTrainer(TrainerContract):
        @pytest.fixture
        def trainer(self):
            return MyTrainer(save_every=2)

        @pytest.fixture
        def base_model(self):
            return "my-base"

The trainer should save a state every few steps. A trainer of another model than a chat model of text also overrides
the fixtures `examples` and `groups`: at least six rows of each, with something to learn for RL.
"""

import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import attrs
import pytest

from modelyard.domain.completion import Message, Role, TokenLogprob
from modelyard.domain.training import Example, History, Preference, SampledChoice, Trajectory, TrajectoryGroup
from modelyard.domain.training_config import DistillConfig, DPOConfig, RLConfig, SFTConfig
from modelyard.errors import TrainingError
from modelyard.protocols import SavedState, Started, Step, TrainContext, Trained, Trainer, TrainItem

Files = Mapping[str, bytes]
WORDS = ("sea", "sky", "night", "grass", "snow", "fire", "sand", "rain")
ANSWERS = ("It is blue.", "It is green.", "It is black.", "It is white.")


@attrs.frozen
class Run:
    started: tuple[Started, ...]
    steps: tuple[Step, ...]
    states: Mapping[int, Files]
    files: Files
    metrics: Mapping[str, float]
    kinds: tuple[type, ...]
    stop_reason: str | None = None


def followed(items: Iterable[TrainItem]) -> Run:
    started, steps, kinds = [], [], []
    states: dict[int, Files] = {}
    trained: list[tuple[Files, Mapping[str, float], str | None]] = []
    for item in items:
        kinds.append(type(item))
        if isinstance(item, Started):
            started.append(item)
        elif isinstance(item, Step):
            steps.append(item)
        elif isinstance(item, SavedState):
            states[item.number] = _read(item.files)
        else:
            trained.append((_read(item.files), item.metrics, item.stop_reason))
    ((files, metrics, why),) = trained
    return Run(tuple(started), tuple(steps), states, files, metrics, tuple(kinds), why)


def _read(files: Mapping[str, Iterable[bytes]]) -> Files:
    return {name: b"".join(chunks) for name, chunks in files.items()}


def context_of(
    base_model: str,
    parent: Files | None = None,
    resume: tuple[int, Files] | None = None,
    reference: Files | None = None,
    held_out: Sequence[Any] = (),
) -> TrainContext:
    step, saved = resume or (0, {})
    parent, reference = parent or {}, reference or {}
    return TrainContext(
        base_model=base_model,
        seed=7,
        parent_files=frozenset(parent),
        parent=_opener(parent),
        resume_step=step,
        resume_files=frozenset(saved),
        resume=_opener(saved) if resume else None,
        reference_files=frozenset(reference),
        reference=_opener(reference) if reference else None,
        held_out=held_out,
    )


def _opener(files: Files) -> Callable[[str], BinaryIO]:
    return lambda name: io.BytesIO(files[name])


def conversation_about(word: str, answer: str) -> Example:
    return Example((Message(Role.USER, f"What colour is the {word}?"), Message(Role.ASSISTANT, answer)))


def preferred(example: Example) -> Preference:
    *prompt, answer = example.messages
    return Preference(tuple(prompt), answer, Message(Role.ASSISTANT, "I do not know."), example.tools)


def sampled(answer: str, logprobs: bool = True) -> SampledChoice:
    words = tuple(TokenLogprob(word, math.log(0.5), tuple(word.encode())) for word in answer.split(" ") if word)
    return SampledChoice(Message(Role.ASSISTANT, answer), logprobs=words if logprobs else None)


def taught_by_bytes(question: Message, answer: Message) -> Trajectory:
    """Create an answer of which a teacher has scored each byte, and another byte as half as likely. A tokenizer of
    bytes has a token for each."""
    text = answer.text.encode()
    entries = tuple(
        TokenLogprob("", math.log(0.5), (one,), (TokenLogprob("", math.log(0.25), (one ^ 1,)),)) for one in text
    )
    return Trajectory((History((question, SampledChoice(answer, teacher=entries))),))


def rewarded(word: str, rewards: Sequence[float], logprobs: bool = True) -> TrajectoryGroup:
    """Create a group of answers to one question, one for each reward."""
    question = Message(Role.USER, f"What colour is the {word}?")
    pairs = zip(ANSWERS, rewards, strict=False)
    return TrajectoryGroup(
        tuple(Trajectory((History((question, sampled(answer, logprobs))),), reward) for answer, reward in pairs)
    )


CONFIGS: Mapping[str, Any] = {
    "sft": SFTConfig(learning_rate=1e-5, batch_size=1),
    "rl": RLConfig(learning_rate=1e-6, packed_sequence_length=1),
    "dpo": DPOConfig(learning_rate=1e-5, batch_size=1),
    "distill": DistillConfig(learning_rate=1e-5, batch_size=1, beta=0.5),
}


def require_method(trainer: Trainer, base_model: str, method: str) -> None:
    if method not in trainer.methods(base_model):
        pytest.skip(f"the trainer does not list the method {method}")


class TrainerContract:
    """The laws of `modelyard.protocols.Trainer`, for the jobs that it runs."""

    @pytest.fixture
    def examples(self) -> Sequence[Example]:
        return [conversation_about(word, ANSWERS[place % 4]) for place, word in enumerate(WORDS)]

    @pytest.fixture
    def groups(self) -> Sequence[TrajectoryGroup]:
        return [rewarded(word, [place % 2, 1.0, 0.5, 0.0]) for place, word in enumerate(WORDS)]

    @pytest.fixture
    def rows(self, examples: Sequence[Example], groups: Sequence[TrajectoryGroup]) -> Mapping[str, Sequence[Any]]:
        preferences = [preferred(example) for example in examples]
        taught = [taught_by_bytes(*example.messages) for example in examples]
        return {"sft": examples, "rl": groups, "dpo": preferences, "distill": taught}

    @pytest.fixture(params=CONFIGS)
    def train(
        self,
        request: pytest.FixtureRequest,
        trainer: Trainer,
        base_model: str,
        rows: Mapping[str, Sequence[Any]],
    ) -> Callable[..., Iterator[TrainItem]]:
        """Begins a run of several steps by a method that the trainer lists: `train(**context)`."""
        method = request.param
        require_method(trainer, base_model, method)
        return lambda **context: trainer.train(method, CONFIGS[method], rows[method], context_of(base_model, **context))

    def test_it_knows_what_it_trains_and_by_which_methods(self, trainer: Trainer, base_model: str) -> None:
        assert set(trainer.methods(base_model)) & CONFIGS.keys()
        assert not trainer.methods("no-such-model")

    def test_it_starts_makes_numbered_steps_and_ends_with_files(
        self, train: Callable[..., Iterator[TrainItem]]
    ) -> None:
        run = followed(train())
        assert run.kinds[0] is Started
        assert run.kinds[-1] is Trained
        assert len(run.started) == 1
        assert [step.number for step in run.steps] == list(range(1, run.started[0].steps + 1))
        assert run.steps
        assert run.files

    def test_states_are_saved_behind_the_step_that_they_name(self, train: Callable[..., Iterator[TrainItem]]) -> None:
        last, saved = 0, 0
        for item in train():
            if isinstance(item, Step):
                last = item.number
            if isinstance(item, SavedState):
                saved += 1
                assert item.number == last
        assert saved, "give the contract a trainer that saves a state within a few steps"

    def test_metrics_are_finite_numbers(self, train: Callable[..., Iterator[TrainItem]]) -> None:
        run = followed(train())
        for metrics in (*(step.metrics for step in run.steps), run.metrics):
            for name, value in metrics.items():
                assert isinstance(name, str)
                assert type(value) in (int, float), name
                assert math.isfinite(value), name
        assert {"loss", "grad_norm", "learning_rate", "num_trainable_tokens"} <= run.steps[0].metrics.keys()

    def test_the_same_job_gives_the_same_files(self, train: Callable[..., Iterator[TrainItem]]) -> None:
        assert followed(train()) == followed(train())

    def test_a_run_resumed_from_any_state_ends_like_an_undisturbed_one(
        self, train: Callable[..., Iterator[TrainItem]]
    ) -> None:
        whole = followed(train())
        for number, files in whole.states.items():
            rest = followed(train(resume=(number, files)))
            assert rest.started == whole.started
            assert rest.steps == whole.steps[number:]
            assert (rest.files, rest.metrics) == (whole.files, whole.metrics)

    @pytest.mark.parametrize("method", ["sft", "dpo", "distill"])
    def test_held_out_rows_change_nothing_that_is_trained(
        self, trainer: Trainer, base_model: str, rows: Mapping[str, Sequence[Any]], method: str
    ) -> None:
        require_method(trainer, base_model, method)

        def train(*held_out: Any, resume: tuple[int, Files] | None = None) -> Run:
            context = context_of(base_model, resume=resume, held_out=held_out)
            return followed(trainer.train(method, CONFIGS[method], rows[method], context))

        plain, validated = train(), train(*rows[method][:2])
        assert (validated.files, validated.kinds) == (plain.files, plain.kinds)
        for without, measured in zip(plain.steps, validated.steps, strict=True):
            assert without.metrics.items() <= measured.metrics.items()
        number, files = next(iter(validated.states.items()))
        assert train(*rows[method][:2], resume=(number, files)).steps == validated.steps[number:]

    def test_a_run_resumed_after_a_parent_ends_like_an_undisturbed_one(
        self, train: Callable[..., Iterator[TrainItem]]
    ) -> None:
        parent = followed(train()).files
        whole = followed(train(parent=parent))
        for number, files in whole.states.items():
            assert followed(train(parent=parent, resume=(number, files))).files == whole.files

    def test_training_goes_on_from_its_parent(self, train: Callable[..., Iterator[TrainItem]]) -> None:
        first = followed(train()).files
        copy = dict(first)
        assert followed(train(parent=first)).files != first
        assert first == copy

    def test_a_run_can_be_broken_off_after_any_item(self, train: Callable[..., Iterator[TrainItem]]) -> None:
        whole = followed(train())
        for count in range(len(whole.kinds)):
            items = train()
            for _ in range(count):
                next(items)
            close = getattr(items, "close", None)
            assert close is not None, "closing the iterator cancels: make it a generator"
            close()
            assert next(items, None) is None

    def test_sft_makes_one_step_per_batch(self, trainer: Trainer, base_model: str, examples: Sequence[Example]) -> None:
        require_method(trainer, base_model, "sft")
        config = SFTConfig(learning_rate=1e-5, batch_size=3)
        run = followed(trainer.train("sft", config, examples, context_of(base_model)))
        assert len(run.steps) == math.ceil(len(examples) / 3)

    def test_sft_takes_one_rate_for_each_batch_exactly_as_sent(
        self, trainer: Trainer, base_model: str, examples: Sequence[Example]
    ) -> None:
        require_method(trainer, base_model, "sft")
        rates = tuple(1e-6 * number for number in range(1, len(examples) + 1))
        config = SFTConfig(learning_rate=rates, batch_size=1)
        run = followed(trainer.train("sft", config, examples, context_of(base_model)))
        assert tuple(step.metrics["learning_rate"] for step in run.steps) == rates

    def test_sft_leaves_out_messages_of_weight_0_and_fails_if_none_is_left(
        self, trainer: Trainer, base_model: str, examples: Sequence[Example]
    ) -> None:
        require_method(trainer, base_model, "sft")

        def tokens(data: Sequence[Example]) -> float:
            return followed(trainer.train("sft", SFTConfig(), data, context_of(base_model))).metrics[
                "num_trainable_tokens"
            ]

        first, second = examples[:2]
        both = Example((*first.messages, *second.messages))
        untrained = tuple(place for place in both.trained("all") if place < len(first.messages))
        assert tokens([attrs.evolve(both, untrained=untrained)]) == tokens([second])
        silent = attrs.evolve(first, untrained=tuple(first.trained("all")))
        with pytest.raises(TrainingError, match="has a token to train"):
            tokens([silent, silent])

    def test_sft_scales_the_loss_of_a_message_by_its_weight(
        self, trainer: Trainer, base_model: str, examples: Sequence[Example]
    ) -> None:
        require_method(trainer, base_model, "sft")

        def loss(row: Example) -> float:
            run = followed(trainer.train("sft", SFTConfig(learning_rate=1e-6), [row], context_of(base_model)))
            return run.steps[0].metrics["loss"]

        halves = attrs.evolve(examples[0], weights=dict.fromkeys(examples[0].trained("all"), 0.5))
        assert math.isclose(loss(halves), loss(examples[0]) / 2, rel_tol=1e-4)

    def test_rl_learns_from_rewards(self, trainer: Trainer, base_model: str, groups: Sequence[TrajectoryGroup]) -> None:
        require_method(trainer, base_model, "rl")
        config, where = RLConfig(learning_rate=1e-6), context_of(base_model)
        negated = [
            attrs.evolve(group, trajectories=tuple(attrs.evolve(one, reward=-one.reward) for one in group.trajectories))
            for group in groups
        ]
        learned = [followed(trainer.train("rl", config, rows, where)).files for rows in (groups, negated)]
        assert learned[0] != learned[1]

    def test_rl_without_a_difference_of_rewards_takes_no_step_and_keeps_the_weights(
        self, trainer: Trainer, base_model: str, groups: Sequence[TrajectoryGroup]
    ) -> None:
        require_method(trainer, base_model, "rl")
        parent = followed(trainer.train("rl", RLConfig(learning_rate=1e-6), groups, context_of(base_model))).files
        equal_rewards = [
            attrs.evolve(group, trajectories=tuple(attrs.evolve(one, reward=1.0) for one in group.trajectories))
            for group in groups
        ]
        for data in (equal_rewards, [TrajectoryGroup(())], []):
            run = followed(trainer.train("rl", RLConfig(), data, context_of(base_model, parent=parent)))
            assert run.started == (Started(0),)
            assert run.steps == ()
            assert run.files == parent

    def test_rl_without_logprobs_fails_and_says_so(self, trainer: Trainer, base_model: str) -> None:
        require_method(trainer, base_model, "rl")
        groups = [rewarded("sea", [1.0, 0.0], logprobs=False)]
        with pytest.raises(TrainingError, match="logprobs"):
            followed(trainer.train("rl", RLConfig(), groups, context_of(base_model)))

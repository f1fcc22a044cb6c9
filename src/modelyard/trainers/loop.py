"""The common part of all training methods that run on a learner. Each engine brings a `Learner`. The methods
(`modelyard.trainers.methods`) decide what the data are worth, which rows share an optimizer step, the losses, and what
is reported; all learners share them."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import attrs

from modelyard.domain.completion import Message
from modelyard.domain.training import Example, Trajectory
from modelyard.domain.training_config import AssistantTurns
from modelyard.domain.training_run import Objective, Rows
from modelyard.errors import InvalidInput, TrainingError
from modelyard.protocols import SavedState, Started, Step, Trained, TrainItem

Metrics = Mapping[str, float]
Files = Mapping[str, Iterable[bytes]]


class Turn(Protocol):
    """Tokens to learn from, in their context: one log-probability of the sampler's for each, None if unknown."""

    @property
    def logprobs(self) -> Sequence[float | None]:
        """As many as there are tokens to be trained: none if the turn is too long for the model. Such a turn is
        counted, and left out."""
        ...

    @property
    def length(self) -> int:
        """How many tokens the turn takes, its prompt included."""
        ...

    @property
    def weights(self) -> Sequence[float]:
        """The factor of the loss of each token to be trained; none if all are 1."""
        ...


class TaughtTurn(Turn, Protocol):
    """A turn with the distribution of a teacher: its log-probability of some tokens at each position, in `logprobs`."""

    @property
    def sizes(self) -> Sequence[int]:
        """Of how many tokens it is, at each position."""
        ...


@attrs.frozen
class TrainableTurns:
    """The trainable turns of a trajectory, and how many tokens it takes, prompts included."""

    turns: Sequence[Turn]
    length: int

    @property
    def tokens(self) -> int:
        """How many tokens are trained."""
        return sum(len(turn.logprobs) for turn in self.turns)


class Learner(Protocol):
    """A model in training, as an engine provides it."""

    @property
    def context_length(self) -> int | None:
        """How many tokens a turn may take; None for any number."""
        ...

    def sft_turns(self, example: Example, which: AssistantTurns) -> Sequence[Turn]:
        """Return the assistant turns of an example. Raises `InvalidInput`."""
        ...

    def sampled(self, trajectory: Trajectory, without_logprobs: bool) -> TrainableTurns:
        """Return the sampled choices of a trajectory; `without_logprobs` adds assistant turns that have none. All data
        are shown to this and to `sft_turns` before the first step: a learner refuses here what it can never train.
        Raises `InvalidInput`, `TrainingError`."""
        ...

    def taught(self, trajectory: Trajectory) -> Sequence[TaughtTurn]:
        """Return the choices of a trajectory of which a teacher's distribution is known. Raises `InvalidInput`, also
        where the teacher's tokens are not this model's."""
        ...

    def scores(self, model: object | None, turns: Sequence[Turn]) -> Rows:
        """Return the log-probability (nats) of each token of the turns, under a model that this learner knows; None
        is the one in training, as it is now. Of a taught turn, it is that of each token that the teacher has one for.
        """
        ...

    def step(self, turns: Sequence[Turn], loss: Objective, learning_rate: float, number: int) -> Metrics:
        """One optimizer step on some turns. Returns what the loss reports, `grad_norm` and `entropy`. Raises
        `TrainingError`, naming the step, when training has diverged."""
        ...

    def files(self) -> Files:
        """Return the files of a checkpoint."""
        ...

    def state(self) -> Files:
        """Return all that is needed to resume from here, bit for bit."""
        ...


@attrs.frozen
class Policies:
    """The fixed models that a loss compares with, if the configuration asks for them. `parent` is the checkpoint that
    the job starts from; `reference` is what a KL penalty refers to: the checkpoint that the job names, else the
    untouched base. Each is an argument of the learner's `scores`."""

    parent: object | None = None
    reference: object | None = None


# ---- from a plan to what the platform stores ---------------------------------------------------------------------


@attrs.frozen
class Plan:
    """The optimizer steps of a job: how many there are in all, the results of the remaining ones, made as they are
    pulled, and the metrics of the job as a whole. `validate` measures the present weights on all held-out rows."""

    total: int
    steps: Iterator[tuple[int, Metrics]]
    metrics: Metrics
    validate: Callable[[], Metrics] = dict


def run(learner: Learner, plan: Plan, save_every: int) -> Iterator[TrainItem]:
    """Follow a plan. The state after the last step is not saved, so that a resumed run reports that step's metrics."""
    yield Started(plan.total)
    metrics: Metrics = {}
    for number, found in plan.steps:
        metrics = {**found, **plan.metrics}
        yield Step(number, metrics)
        if number % save_every == 0 and number < plan.total:
            yield SavedState(number, learner.state())
    yield Trained(learner.files(), {**metrics, **plan.metrics})


# ---- shared by the methods ---------------------------------------------------------------------------------------


@attrs.define
class TurnTally:
    """What the rows of a job hold: turns and tokens to train, and turns that are too long for the model."""

    turns: int = 0
    tokens: int = 0
    overlong: int = 0
    longest: int = 0

    def add(self, turns: Iterable[Turn]) -> None:
        for turn in turns:
            self.turns += 1
            self.tokens += len(turn.logprobs)
            self.overlong += not turn.logprobs
            self.longest = max(self.longest, 0 if turn.logprobs else turn.length)

    def require_tokens(self, learner: Learner, unit: str) -> None:
        """Raise `TrainingError` if there is nothing to train, and say why."""
        if self.tokens:
            return
        if self.overlong:
            raise TrainingError(
                f"no {unit} fits: the longest has {self.longest} tokens of a context of {learner.context_length}; "
                "shorten them, or train a model with a longer context"
            )
        raise TrainingError(
            f"no {unit} has a token to train: the answers are empty, or have weight 0, or the chat template marks none"
        )


def check_text(messages: Sequence[Message]) -> None:
    """Raise `InvalidInput` for a part of a message that is not text."""
    for place, message in enumerate(messages):
        for number, part in enumerate(message.content if isinstance(message.content, tuple) else ()):
            if part.type != "text":
                msg = f"is {part.type}, which this model does not read; leave out the row"
                raise InvalidInput.at("messages", place, "content", number, msg=msg)


def length_metrics(overlong: int) -> Metrics:
    return {"num_overlong": float(overlong)} if overlong else {}


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0

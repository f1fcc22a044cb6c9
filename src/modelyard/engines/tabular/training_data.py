"""Training data as the tabular model reads it: prompts as conversations, assistant turns as tokens."""

from collections.abc import Iterator, Sequence
from itertools import chain

import attrs

from modelyard.domain.completion import FinishReason, Message, Role, TokenLogprob, Tool, token_bytes
from modelyard.domain.training import Example, History, SampledChoice, Trajectory
from modelyard.domain.training_config import AssistantTurns
from modelyard.engines.tabular.base import conversation
from modelyard.engines.tabular.learning import TargetAnswer
from modelyard.engines.tabular.model import prompt_features, prompt_ids
from modelyard.engines.tabular.tokenizer import END_OF_TURN, VOCABULARY_SIZE, encode, token_id
from modelyard.errors import InvalidInput, located_at
from modelyard.trainers.loop import check_text
from modelyard.trainers.taught import ids_of, spread, taught_choices


@attrs.frozen
class TabularTurn:
    """An assistant turn to learn from: the messages before it, its tokens, and for each its sampler's log-
    probability, and the factor of its loss if any is not 1. `several` are the tokens that a teacher has a log-
    probability for, instead of each of its own.
    """

    prompt: tuple[Message, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    weights: tuple[float, ...] = ()
    several: tuple[tuple[int, ...], ...] = ()

    @property
    def answer(self) -> TargetAnswer:
        """The turn as features and tokens."""
        return TargetAnswer(prompt_features(self.prompt), self.ids, self.several)

    @property
    def sizes(self) -> Sequence[int]:
        """How many tokens are scored at each position."""
        return [*map(len, self.several)]

    @property
    def length(self) -> int:
        """Tokens of prompt and turn."""
        return len(prompt_ids(self.prompt)) + len(self.ids)


# ---- examples ----------------------------------------------------------------------------------------------------


def example_turns(example: Example, which: AssistantTurns) -> list[TabularTurn]:
    """Return all assistant turns of an example, or the last."""
    messages = example.messages
    check_text(messages)
    for place in example.trained(which):
        if messages[place].reasoning:
            msg = "is not read or written by this model; leave it out"
            raise InvalidInput.at("messages", place, "reasoning_content", msg=msg)
    turns = {place: _imitated(messages[:place], example.tools, messages[place]) for place in example.trained(which)}
    weights = example.weights
    return [
        attrs.evolve(turn, weights=(weights[place],) * len(turn.ids)) if place in weights else turn
        for place, turn in turns.items()
    ]


def _imitated(before: Sequence[Message], tools: Sequence[Tool], message: Message) -> TabularTurn:
    (reply,) = conversation((message,))
    ids = (*encode(reply.text), END_OF_TURN)
    return TabularTurn(conversation(before, tools), ids, (None,) * len(ids))


# ---- trajectories ------------------------------------------------------------------------------------------------


def sampled_turns(trajectory: Trajectory, without_logprobs: bool = False) -> list[list[TabularTurn]]:
    """Return the turns of each history that can be trained: sampled choices with logprobs.

    `without_logprobs` adds the assistant turns that have none.
    """
    return [list(_turns(history, without_logprobs)) for history in trajectory.histories]


def _turns(history: History, without_logprobs: bool) -> Iterator[TabularTurn]:
    before: list[Message] = []
    for item in history.items:
        choice = item if isinstance(item, SampledChoice) else SampledChoice(item)
        trained = choice.logprobs is not None or (without_logprobs and choice.message.role is Role.ASSISTANT)
        if trained and not choice.prompt_token_ids:
            check_text([*before, choice.message])
        if choice.logprobs is not None:
            yield TabularTurn(conversation(before, history.tools), *_sampled(choice, choice.logprobs))
        elif trained:
            yield _without_logprobs(before, history.tools, choice)
        before.append(choice.message)


def _sampled(
    choice: SampledChoice, logprobs: Sequence[TokenLogprob]
) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    """Return the sampled tokens and their log-probabilities.

    Ids are used as they are. If there are none, or none of this model's, tokens are recovered from their bytes; if this
    model splits one into several, the log-probability of each of them is unknown.
    """
    if _are_ours(choice.token_ids):
        return choice.token_ids, tuple(entry.logprob for entry in logprobs)
    pairs = list(chain.from_iterable(map(_found_again, logprobs)))
    return tuple(id_ for id_, _ in pairs), tuple(logprob for _, logprob in pairs)


def _are_ours(ids: Sequence[int]) -> bool:
    return bool(ids) and max(ids) < VOCABULARY_SIZE


def _found_again(entry: TokenLogprob) -> list[tuple[int, float | None]]:
    raw = token_bytes(entry)
    known = token_id(raw)
    if known is not None:
        return [(known, entry.logprob)]
    return [(piece, None) for piece in _spelled(raw)]


def _spelled(raw: bytes) -> Sequence[int]:
    """Return the tokens of bytes that are not a token; those of broken text are the bytes themselves."""
    try:
        return encode(raw.decode())
    except UnicodeDecodeError:
        return raw


def _without_logprobs(before: Sequence[Message], tools: Sequence[Tool], choice: SampledChoice) -> TabularTurn:
    turn = _imitated(before, tools, choice.message)
    ids = choice.token_ids if _are_ours(choice.token_ids) else turn.ids
    if ids is turn.ids and choice.finish_reason is FinishReason.LENGTH:
        ids = ids[:-1]
    return attrs.evolve(turn, ids=ids, logprobs=(None,) * len(ids))


# ---- what a teacher says -----------------------------------------------------------------------------------------


def taught_turns(trajectory: Trajectory) -> list[TabularTurn]:
    """Return the choices that a teacher has scored, with what it finds likely at each token."""
    return list(_taught(trajectory))


def _taught(trajectory: Trajectory) -> Iterator[TabularTurn]:
    for at, number, place, choice in taught_choices(trajectory):
        history = trajectory.histories[number]
        before = [item.message if isinstance(item, SampledChoice) else item for item in history.items[:place]]
        check_text([*before, choice.message])
        with located_at(*at):
            entries, ids = choice.teacher or (), ids_of(choice)
            ids = ids if _are_ours(ids) else tuple(map(_known, entries))
            found = spread(entries, ids, token_id, VOCABULARY_SIZE)
        known = tuple(chain.from_iterable(logprobs for _, logprobs in found))
        yield TabularTurn(conversation(before, history.tools), ids, known, several=tuple(tokens for tokens, _ in found))


def _known(entry: TokenLogprob) -> int:
    token = token_id(token_bytes(entry))
    if token is None:
        raise InvalidInput.at(
            msg=f"has {entry.token!r}, which is no token of this model: the teacher has another tokenizer"
        )
    return token

"""Training data as rows of tokens, with the positions that are trained.

Sampled tokens are used as they were sampled: encoding their text again often gives other tokens. Turns of one history
share a row as long as each prompt begins with everything before it.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter

import attrs

from modelyard.domain.completion import FinishReason, Message, Role, TokenLogprob, Tool, token_bytes
from modelyard.domain.training import Example, History, SampledChoice, Trajectory
from modelyard.domain.training_config import AssistantTurns
from modelyard.errors import InvalidInput, located_at
from modelyard.parts.torch.tokenizer import ChatTokenizer
from modelyard.parts.torch.training.answer_turns import answer_turn, check_written
from modelyard.trainers.taught import Spread, ids_of, spread, taught_choices


@attrs.frozen
class TokenRow:
    """Tokens up to the last trained one, the positions of the trained ones, and for each the sampler's log-probability,
    and the factor of its loss if any is not 1. `taught` has, instead, what a teacher says at each of these positions:
    then `logprobs` are the teacher's, one for each token that it names.

    A row without positions is the rest of a row that is too long for the model: how long it was.
    """

    ids: tuple[int, ...]
    places: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    too_long: int = 0
    weights: tuple[float, ...] = ()
    taught: tuple[Spread, ...] = ()

    @classmethod
    def left_out(cls, row: "TokenRow") -> "TokenRow":
        return cls((), (), (), len(row.ids))

    @classmethod
    def of(cls, ids: Sequence[int], tokens: Sequence["TrainedToken"]) -> "TokenRow":
        """Return a row up to the last of some trained tokens."""
        places, known, weights = zip(*tokens, strict=True)
        ids, weights = tuple(ids[: places[-1] + 1]), () if set(weights) == {1} else weights
        if not isinstance(known[0], tuple):
            return cls(ids, places, known, weights=weights)
        return cls(ids, places, tuple(chain.from_iterable(one for _, one in known)), weights=weights, taught=known)

    @property
    def tokens(self) -> "list[TrainedToken]":
        weights = self.weights or (1.0,) * len(self.places)
        return [*zip(self.places, self.taught or self.logprobs, weights, strict=True)]

    @property
    def length(self) -> int:
        return self.too_long or len(self.ids)

    @property
    def before(self) -> Sequence[int]:
        """The positions before the scored tokens."""
        return [place - 1 for place in self.places]

    @property
    def targets(self) -> Sequence[Sequence[int]]:
        """The tokens that are scored at each of these positions: the present one, or those that a teacher names."""
        return [ids for ids, _ in self.taught] if self.taught else [(self.ids[place],) for place in self.places]

    @property
    def sizes(self) -> Sequence[int]:
        """How many tokens are scored at each of these positions."""
        return [*map(len, self.targets)]


Known = float | None | Spread

TrainedToken = tuple[int, Known, float]
"""The place of a token, its log-probability or what a teacher says there, and the factor of its loss."""


def _row(ids: Sequence[int], tokens: Sequence[TrainedToken]) -> Iterator[TokenRow]:
    """Yield a row, if anything in it is trained. The first token never is, as nothing precedes it to predict it."""
    trained = [one for one in tokens if one[0] > 0]
    if trained:
        yield TokenRow.of(ids, trained)


# ---- examples ----------------------------------------------------------------------------------------------------


def example_rows(
    chat: ChatTokenizer, example: Example, which: AssistantTurns, after_end: bool = False
) -> list[TokenRow]:
    """Return a conversation as rows in which its assistant turns, or the last, are trained with their end token.

    Each turn follows the prompt that it would be asked with. Turns share a row as long as each prompt begins with
    everything before it; a template that shortens earlier turns, or a token that joins two of them, begins another.
    `after_end` trains what the template writes after the end token, too.
    Raises `InvalidInput` for what the template leaves out, and for a variable that it does not read.
    """
    messages, tools = example.messages, example.tools
    chat = chat.given(example.template, tools)
    turns = [(place, answer_turn(chat, messages, place, tools, after_end)) for place in example.trained(which)]
    if turns:
        check_written(chat, messages, tools, turns)
    return list(
        _rows(
            (turn.prompt, turn.answer, turn.trained, [None] * len(turn.trained), example.weights.get(place, 1.0))
            for place, turn in turns
        )
    )


# ---- trajectories ------------------------------------------------------------------------------------------------


def trajectory_rows(chat: ChatTokenizer, trajectory: Trajectory, without_logprobs: bool) -> list[TokenRow]:
    """Return the rows of all histories, without those in which nothing is trained. Raises `InvalidInput`."""
    return [row for history in trajectory.histories for row in _rows(_turns(chat, history, without_logprobs))]


def taught_rows(chat: ChatTokenizer, trajectory: Trajectory, vocabulary: int) -> list[TokenRow]:
    """Return the rows in which a teacher's distribution is known. Raises `InvalidInput`."""
    turns = _taught(chat, trajectory, vocabulary)
    return [row for _, of_history in groupby(turns, itemgetter(0)) for row in _rows(turn for _, turn in of_history)]


_Turn = tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[Known], float]
"""The tokens of a prompt, those of the answer, the places of the trained ones in it, their log-probabilities, and the
factor of their losses.
"""


def _rows(turns: Iterable[_Turn]) -> Iterator[TokenRow]:
    ids: list[int] = []
    tokens: list[TrainedToken] = []
    for prompt, answer, trained, sampled, weight in turns:
        if [*prompt[: len(ids)]] != ids:
            yield from _row(ids, tokens)
            tokens = []
        ids = [*prompt, *answer]
        tokens += [(len(prompt) + place, known, weight) for place, known in zip(trained, sampled, strict=True)]
    yield from _row(ids, tokens)


def _turns(chat: ChatTokenizer, history: History, without_logprobs: bool) -> Iterator[_Turn]:
    before: list[Message] = []
    for item in history.items:
        choice = item if isinstance(item, SampledChoice) else SampledChoice(item)
        trained = choice.logprobs is not None or (without_logprobs and choice.message.role is Role.ASSISTANT)
        if trained:
            prompt = choice.prompt_token_ids or chat.prompt(_begun(before), history.tools)
            answer, logprobs = _answer(chat, choice, before, history.tools)
            yield prompt, answer, range(len(answer)), logprobs, 1.0
        before.append(choice.message)


def _taught(chat: ChatTokenizer, trajectory: Trajectory, vocabulary: int) -> Iterator[tuple[int, _Turn]]:
    for at, number, place, choice in taught_choices(trajectory):
        history = trajectory.histories[number]
        before = [item.message if isinstance(item, SampledChoice) else item for item in history.items[:place]]
        prompt = choice.prompt_token_ids or chat.prompt(_begun(before), history.tools)
        entries = choice.teacher or ()
        with located_at(*at):
            read = attrs.evolve(choice, logprobs=entries, token_ids=ids_of(choice))
            answer, known = _answer(chat, read, before, history.tools)
            if entries and None in known[: len(entries)]:
                raise InvalidInput.at(msg="are not tokens of this model: the teacher has another tokenizer")
            found = spread(entries, answer[: len(entries)], chat.token_of_bytes.get, vocabulary)
        yield number, (prompt, answer, range(len(found)), found, 1.0)


def _answer(
    chat: ChatTokenizer, choice: SampledChoice, before: Sequence[Message], tools: Sequence[Tool]
) -> tuple[Sequence[int], Sequence[float | None]]:
    """Return the sampled tokens, by their ids or their bytes; without either, those of the text."""
    logprobs = choice.logprobs or ()
    if choice.token_ids:
        return choice.token_ids, [entry.logprob for entry in logprobs] or [None] * len(choice.token_ids)
    written = _written(chat, choice, before, tools)
    found = _found_again(chat, logprobs, written)
    if not found:
        return written, [None] * len(written)
    known: list[float | None] = [entry.logprob for entry in logprobs]
    if choice.finish_reason is not FinishReason.LENGTH and written[-1:] != found[-1:] and _ends(chat, written):
        return [*found, written[-1]], [*known, None]  # an end that the sampler did not report
    return found, known


def _written(
    chat: ChatTokenizer, choice: SampledChoice, before: Sequence[Message], tools: Sequence[Tool]
) -> Sequence[int]:
    messages = (*_begun(before), choice.message)
    turn = answer_turn(chat, messages, len(before), tools)
    if choice.logprobs is None:
        check_written(chat, messages, tools, [(len(before), turn)])
    ids = turn.answer
    return ids[:-1] if choice.finish_reason is FinishReason.LENGTH and _ends(chat, ids) else ids


def _begun(before: Sequence[Message]) -> Sequence[Message]:
    if not before:
        msg = "is an assistant's: its beginning cannot be located; begin with a system or user message"
        raise InvalidInput.at("messages", 0, msg=msg)
    return before


def _found_again(chat: ChatTokenizer, logprobs: Sequence[TokenLogprob], written: Sequence[int]) -> list[int]:
    """Return the tokens with these bytes, nothing if some have none; a token without bytes ends the turn."""
    end = written[-1] if _ends(chat, written) else None
    found = [chat.token_of_bytes.get(raw, None if raw else end) for raw in map(token_bytes, logprobs)]
    return [] if None in found else [token for token in found if token is not None]


def _ends(chat: ChatTokenizer, ids: Sequence[int]) -> bool:
    return bool(ids) and ids[-1] in chat.end_tokens

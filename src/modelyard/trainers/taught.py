"""What a teacher says of the tokens of a choice, by the ids of the model that learns from it."""

import math
from collections.abc import Callable, Iterator, Sequence

from modelyard.domain.completion import TokenLogprob, token_bytes
from modelyard.domain.training import SampledChoice, Trajectory
from modelyard.errors import InvalidInput, located_at

Spread = tuple[tuple[int, ...], tuple[float, ...]]
"""Tokens, of which the first is the one that stands there, and the teacher's log-probability of each."""

TokenOf = Callable[[bytes], int | None]
MOST_TOGETHER = 1.05
"""Probabilities may add up to so much, as numbers of 16 bits do."""


def taught_choices(trajectory: Trajectory) -> Iterator[tuple[tuple[str | int, ...], int, int, SampledChoice]]:
    """Yield the choices that a teacher has scored: the place of each in the row, the number of its history, its place
    there, and itself."""
    for number, history in enumerate(trajectory.histories):
        at = ("additional_histories", number - 1) if number else ()
        for place, item in enumerate(history.items):
            if isinstance(item, SampledChoice) and item.teacher is not None:
                yield (*at, "messages_and_choices", place, "teacher_logprobs"), number, place, item


def ids_of(choice: SampledChoice) -> tuple[int, ...]:
    """Return the ids of a choice's tokens, by itself or by its teacher; none if they are not known."""
    named = [one.id for one in choice.teacher or () if one.id is not None]
    return choice.token_ids or (tuple(named) if len(named) == len(choice.teacher or ()) else ())


def spread(entries: Sequence[TokenLogprob], ids: Sequence[int], token_of: TokenOf, vocabulary: int) -> list[Spread]:
    """Return the teacher's distribution at each of these tokens. What it names that the model does not have belongs to
    the rest of its distribution. Raises `InvalidInput` where the tokens themselves are others, or if probabilities add
    up to more than 1."""
    found = []
    for place, (entry, token) in enumerate(zip(entries, ids, strict=True)):
        with located_at("content", place):
            _require_same(entry, token, token_of)
            named = {token: entry.logprob}
            for one in entry.top:
                known = token_of(token_bytes(one)) if one.id is None else one.id
                if known is not None and known < vocabulary:
                    named.setdefault(known, one.logprob)
            together = math.fsum(map(math.exp, named.values()))
            if together > MOST_TOGETHER:
                raise InvalidInput.at(msg=f"has probabilities that add up to {together:.3g}; they are at most 1")
        found.append((tuple(named), tuple(named.values())))
    return found


def _require_same(entry: TokenLogprob, token: int, token_of: TokenOf) -> None:
    known = token_of(token_bytes(entry)) if entry.id is None and token_bytes(entry) else entry.id
    if entry.id is None and entry.bytes and known is None:
        msg = f"has {entry.token!r}, which is no token of this model: teacher and model must share one tokenizer"
        raise InvalidInput.at(msg=msg)
    if known not in (None, token):
        msg = f"is token {known} to the teacher, and {token} stands there: they must share one tokenizer"
        raise InvalidInput.at(msg=msg)

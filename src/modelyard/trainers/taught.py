"""What a teacher says of the tokens of a choice, by the ids of the model that learns from it."""

from collections.abc import Callable, Iterator, Sequence

from modelyard.domain.completion import TokenLogprob, token_bytes
from modelyard.domain.training import History, SampledChoice
from modelyard.errors import InvalidInput, located_at

Spread = tuple[tuple[int, ...], tuple[float, ...]]
"""Tokens, of which the first is the one that stands there, and the teacher's log-probability of each."""

TokenOf = Callable[[bytes], int | None]


def taught_choices(history: History) -> Iterator[tuple[int, SampledChoice]]:
    """Yield the choices of a history that a teacher has scored, each with its place. Raises `InvalidInput` for one
    whose numbers differ."""
    for place, item in enumerate(history.items):
        if isinstance(item, SampledChoice) and item.teacher is not None:
            if item.token_ids and len(item.token_ids) != len(item.teacher):
                msg = f"has {len(item.teacher)} tokens for {len(item.token_ids)} token_ids; one each is due"
                raise InvalidInput.at("messages_and_choices", place, "teacher_logprobs", msg=msg)
            yield place, item


def spread(entries: Sequence[TokenLogprob], ids: Sequence[int], token_of: TokenOf) -> list[Spread]:
    """Return the teacher's distribution at each of these tokens. What it names that the model does not have belongs to
    the rest of its distribution. Raises `InvalidInput` where the tokens themselves are others."""
    found = []
    for place, (entry, token) in enumerate(zip(entries, ids, strict=True)):
        with located_at(place):
            _require_same(entry, token, token_of)
        named = {token: entry.logprob}
        for one in entry.top:
            known = _id_of(one, token_of)
            if known is not None:
                named.setdefault(known, one.logprob)
        found.append((tuple(named), tuple(named.values())))
    return found


def _id_of(entry: TokenLogprob, token_of: TokenOf) -> int | None:
    return token_of(token_bytes(entry)) if entry.id is None else entry.id


def _require_same(entry: TokenLogprob, token: int, token_of: TokenOf) -> None:
    raw = token_bytes(entry)
    known = token_of(raw) if raw and entry.id is None else entry.id
    if known not in (None, token):
        msg = f"is token {known} here, and {token} was sampled: teacher and model must share one tokenizer"
        raise InvalidInput.at(msg=msg)

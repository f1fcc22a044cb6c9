"""The end of a script's answer at a token of the request's `stop_token_ids`, where a server would end it."""

from collections.abc import Iterable, Iterator

import attrs

from modelyard.backends.echo import split_tokens, token_id
from modelyard.domain.completion import CompletionRequest, Delta, FinishReason
from modelyard.parts.scripted.parts import Item


def stopped(answer: Iterable[Item], request: CompletionRequest) -> Iterable[Item]:
    """Return each choice up to the first token that ends it, and this token, too.

    An id is that of the script's own token, else that of a word, as `EchoBackend` has it.
    """
    return _stopped(answer, request) if request.sampling.stop_token_ids else answer


def _stopped(answer: Iterable[Item], request: CompletionRequest) -> Iterator[Item]:
    ended = set[int]()
    for item in answer:
        if not isinstance(item, Delta):
            yield item
        elif item.index not in ended:
            kept = _up_to_stop(item, request.sampling.stop_token_ids)
            if kept is not item:
                ended.add(item.index)
            yield kept
        if len(ended) == request.n:
            return


def _up_to_stop(delta: Delta, stops: tuple[int, ...]) -> Delta:
    pieces = [entry.token for entry in delta.logprobs] or split_tokens(delta.text)
    ids = delta.token_ids or tuple(map(token_id, pieces))
    size = next((at + 1 for at, id_ in enumerate(ids) if id_ in stops), None)
    if size is None:
        return delta
    return attrs.evolve(
        delta,
        text="".join(pieces[:size]) if len(pieces) == len(ids) else delta.text,
        tokens=size,
        logprobs=delta.logprobs[:size],
        token_ids=delta.token_ids[:size],
        finish_reason=FinishReason.STOP,
    )

"""An answer that a backend gives all at once: read without what assembles, cuts and shows an answer in parts."""

from collections.abc import Iterator
from typing import Any

from modelyard.domain.completion import Delta, FinishReason
from modelyard.formats.chat.plain import is_unicode
from modelyard.platform.chat.assembly import MAX_TEXT
from modelyard.protocols import Deltas


def failing(error: Exception) -> Iterator[Deltas]:
    """Return an iterator that raises this."""

    def fail() -> Deltas:
        raise error

    return iter(fail, None)


def is_whole(delta: Any, most: int) -> bool:
    """Return whether this is all of a plain answer: text that ends, of at most `most` tokens, counted, not detailed.

    What is wrong with any other is for a `ResponseAssembler` to say.
    """
    return (
        type(delta) is Delta
        and type(delta.finish_reason) is FinishReason
        and type(delta.text) is str
        and type(delta.tokens) is int
        and 0 < delta.tokens <= most
        and len(delta.text) <= MAX_TEXT
        and (delta.text.isascii() or is_unicode(delta.text))
        and type(delta.index) is int
        and delta.index == 0
        and delta.tool_call is None
        and delta.usage is None
        and delta.stop_string is None
        and not (
            delta.logprobs or delta.token_ids or delta.prompt_token_ids or delta.prompt_logprobs or delta.reasoning
        )
    )

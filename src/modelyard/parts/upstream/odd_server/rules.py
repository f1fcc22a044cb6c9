"""What a dialect is made of: the choices that servers make where the format leaves one, or where they break it."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import attrs

from modelyard.domain.completion import FinishReason, Usage

Json = dict[str, Any]


class UsageAt(StrEnum):
    """Where a stream has the usage: in a chunk of its own, in the last one with a choice, in that choice, in each chunk
    with what there is so far, in the first and the last, as a member of an object of the server's, or among the members
    of the last chunk itself.
    """

    OWN = "own"
    LAST = "last"
    CHOICE = "choice"
    EACH = "each"
    SPLIT = "split"
    NESTED = "nested"
    MEMBERS = "members"
    NOWHERE = "nowhere"


class CallIndex(StrEnum):
    """How the calls of a stream are numbered: from 0, with null, not at all, or with 0 each."""

    NUMBERED = "numbered"
    NULL = "null"
    ABSENT = "absent"
    ZERO = "zero"


class CallId(StrEnum):
    """Which pieces of a call have its id: the first, each, or none."""

    FIRST = "first"
    EACH = "each"
    NONE = "none"


class PieceKind(StrEnum):
    """What the chunks of a stream have: deltas, deltas that are called messages, or the whole message so far."""

    DELTAS = "deltas"
    MESSAGES = "messages"
    WHOLE_MESSAGES = "whole_messages"


def openai_usage(usage: Usage) -> Json:
    return {
        **plain_usage(usage),
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens, "audio_tokens": 0},
    }


def plain_usage(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }


def text_part(text: str) -> Json:
    return {"type": "text", "text": text}


@attrs.frozen
class Rules:
    """How a server writes an answer. `usage` names its counts; `changed` is what becomes of each of them at last.

    `part` makes a part of a content of a text; `enveloped` puts something around an answer, or around each chunk.
    """

    usage: Callable[[Usage], Json] = openai_usage
    usage_at: UsageAt = UsageAt.OWN
    usage_name: str = "usage"
    changed: Callable[[Json], Json] = dict
    finish: Mapping[FinishReason, str] = attrs.field(factory=dict)
    reasoning: str = "reasoning_content"
    part: Callable[[str], Any] | None = None
    index: CallIndex = CallIndex.NUMBERED
    id: CallId = CallId.FIRST
    whole_calls: bool = False
    cut_names: bool = False
    repeated_names: bool = False
    objects: bool = False
    one_function: bool = False
    cumulative_arguments: bool = False
    cumulative_text: bool = False
    pieces: PieceKind = PieceKind.DELTAS
    enveloped: Callable[[Json], Json] = dict
    halves: bool = False
    reason_in_each: str | None = None
    filters: bool = False
    message_last: bool = False
    text_last: bool = False
    empty_usage_last: Json | None = None
    odd_chunks: tuple[Any, ...] = ()
    junk: str = ""

    @property
    def reasoning_in_parts(self) -> bool:
        """Whether reasoning stands among the parts of the content."""
        return self.reasoning == "parts"


@attrs.frozen
class Frame:
    """How an answer is written as bytes, and what its head says. In a stream, `beats` come between the chunks, and
    `done` after the last. `label` is the content type, "" for none; None stands for the right one. The body
    is `gzipped` so many times, and called compressed with `encoding`. A chunk that is `quoted` is the JSON of its JSON.
    """

    done: bytes = b"data: [DONE]\n\n"
    prefix: bytes = b"data: "
    newline: bytes = b"\n"
    begin: bytes = b""
    beats: tuple[bytes, ...] = ()
    held_open: bool = False
    cut: bool = False
    no_last_newline: bool = False
    status: str = "200 OK"
    label: str | None = None
    gzipped: int = 0
    encoding: str = ""
    quoted: bool = False

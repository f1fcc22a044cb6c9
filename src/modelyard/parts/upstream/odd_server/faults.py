"""What goes wrong in answers of servers that are complete nevertheless: each fault changes one rule, or two."""

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import Any

import attrs

from modelyard.domain.completion import FinishReason
from modelyard.parts.upstream.odd_server.rules import (
    CallId,
    CallIndex,
    Frame,
    Json,
    PieceKind,
    Rules,
    UsageAt,
    text_part,
)


class OddFault(StrEnum):
    """One thing that a server does otherwise than the format says."""

    # around the answer
    CREATED = "created"
    MISLABELLED = "mislabelled"
    UNLABELLED = "unlabelled"
    GZIPPED = "gzipped"
    GZIPPED_TWICE = "gzipped_twice"
    FALSELY_COMPRESSED = "falsely_compressed"
    ENVELOPED = "enveloped"
    ENVELOPED_AS_TEXT = "enveloped_as_text"
    # the stream
    NO_DONE = "no_done"
    HELD_OPEN = "held_open"
    CUT_AFTER_USAGE = "cut_after_usage"
    SPACED_DONE = "spaced_done"
    HEARTBEATS = "heartbeats"
    CR_LF = "cr_lf"
    NO_SPACE = "no_space"
    SPACED_FIELDS = "spaced_fields"
    BYTE_ORDER_MARK = "byte_order_mark"
    NO_LAST_NEWLINE = "no_last_newline"
    CHUNKS_AS_STRINGS = "chunks_as_strings"
    # chunks
    LISTS_AS_OBJECTS = "lists_as_objects"
    ODD_CHUNKS = "odd_chunks"
    JUNK_MEMBERS = "junk_members"
    EMPTY_REASONS = "empty_reasons"
    UNKNOWN_REASON = "unknown_reason"
    CONTENT_PARTS = "content_parts"
    PLAIN_PARTS = "plain_parts"
    ODD_PARTS = "odd_parts"
    HALVED_CHARACTERS = "halved_characters"
    WHOLE_MESSAGE_LAST = "whole_message_last"
    WHOLE_MESSAGE_IN_EACH = "whole_message_in_each"
    PIECES_AS_MESSAGES = "pieces_as_messages"
    CUMULATIVE_TEXT = "cumulative_text"
    WHOLE_TEXT_LAST = "whole_text_last"
    # usage
    SPLIT_USAGE = "split_usage"
    USAGE_IN_EACH = "usage_in_each"
    USAGE_IN_CHOICE = "usage_in_choice"
    EMPTY_USAGE_LAST = "empty_usage_last"
    ZERO_USAGE_LAST = "zero_usage_last"
    COUNTS_AS_FLOATS = "counts_as_floats"
    COUNTS_AS_TEXT = "counts_as_text"
    DETAILS_AS_LISTS = "details_as_lists"
    NO_USAGE = "no_usage"
    EMPTY_USAGE = "empty_usage"
    ZERO_USAGE = "zero_usage"
    NULL_USAGE = "null_usage"
    # calls
    CALLS_WITHOUT_INDEX = "calls_without_index"
    CALLS_WITH_NULL_INDEX = "calls_with_null_index"
    CALLS_WITH_ONE_INDEX = "calls_with_one_index"
    CALLS_WITHOUT_ID = "calls_without_id"
    ID_IN_EACH_PIECE = "id_in_each_piece"
    NAME_IN_EACH_PIECE = "name_in_each_piece"
    NAMES_IN_PIECES = "names_in_pieces"
    WHOLE_CALLS = "whole_calls"
    ARGUMENTS_AS_OBJECTS = "arguments_as_objects"
    CUMULATIVE_ARGUMENTS = "cumulative_arguments"
    FUNCTION_CALL = "function_call"


UNCOUNTED = frozenset({OddFault.NO_USAGE, OddFault.EMPTY_USAGE, OddFault.ZERO_USAGE, OddFault.NULL_USAGE})
"""With these faults the server counts nothing, so that the usage can only be estimated."""

_BEATS = (b": waiting\n\n", b"data:\n\n", b"data: ping\n\n", b"event: ping\ndata: {}\n\n", b"retry: 3000\n\n")
_ODD_CHUNKS: tuple[Any, ...] = (
    {"choices": [{"index": 0, "finish_reason": None, "content_filter_results": {}}]},
    {"choices": [{"index": 0, "delta": None, "finish_reason": None}]},
    {"choices": None},
    {"choices": []},
    {"choices": [None]},
    {"object": "ping", "usage": None},
)
_JUNK = '"seed":15478239417263476000,"timings_of_gpu":{"tps":NaN,"worst":-Infinity},"extra":[1e999],"extra":[]'


def _each_count(change: Callable[[Any], Any], usage: Json) -> Json:
    """Change the counts of a usage, and of what it holds."""
    return {name: _changed(change, value) for name, value in usage.items()}


def _changed(change: Callable[[Any], Any], value: Any) -> Any:
    if type(value) is dict:
        return _each_count(change, value)
    if type(value) is list:
        return [_changed(change, one) for one in value]
    return change(value) if type(value) is int else value


def _as_lists(usage: Json) -> Json:
    return {name: [value] if type(value) is dict and "details" in name else value for name, value in usage.items()}


def _plain_part(text: str) -> Json:
    return {"text": text}


def _odd_part(text: str) -> Json:
    return {"type": "answer_delta", "content": {"value": text}}


def _in_data(answer: Json) -> Json:
    return {"code": 0, "message": "OK", "data": answer}


def _in_text(answer: Json) -> Json:
    return {"statusCode": 200, "headers": {}, "body": json.dumps(answer)}


def _by_number(answer: Any) -> Any:
    """Return an answer in which each list of objects is an object of them by their numbers."""
    if isinstance(answer, dict):
        return {name: _by_number(value) for name, value in answer.items()}
    if isinstance(answer, list) and answer and all(isinstance(one, dict) for one in answer):
        return {str(at): _by_number(one) for at, one in enumerate(answer)}
    return answer


def _nothing(usage: Json) -> Json:
    return {}


_ZERO = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}

_RULES: Mapping[OddFault, Mapping[str, Any]] = {
    OddFault.ODD_CHUNKS: {"odd_chunks": _ODD_CHUNKS},
    OddFault.LISTS_AS_OBJECTS: {"enveloped": _by_number},
    OddFault.JUNK_MEMBERS: {"junk": _JUNK},
    OddFault.EMPTY_REASONS: {"reason_in_each": ""},
    OddFault.ENVELOPED: {"enveloped": _in_data},
    OddFault.ENVELOPED_AS_TEXT: {"enveloped": _in_text},
    OddFault.CONTENT_PARTS: {"part": text_part},
    OddFault.PLAIN_PARTS: {"part": _plain_part},
    OddFault.ODD_PARTS: {"part": _odd_part},
    OddFault.HALVED_CHARACTERS: {"halves": True},
    OddFault.WHOLE_MESSAGE_LAST: {"message_last": True},
    OddFault.WHOLE_MESSAGE_IN_EACH: {"pieces": PieceKind.WHOLE_MESSAGES},
    OddFault.PIECES_AS_MESSAGES: {"pieces": PieceKind.MESSAGES},
    OddFault.CUMULATIVE_TEXT: {"cumulative_text": True},
    OddFault.WHOLE_TEXT_LAST: {"text_last": True},
    OddFault.SPLIT_USAGE: {"usage_at": UsageAt.SPLIT},
    OddFault.USAGE_IN_EACH: {"usage_at": UsageAt.EACH},
    OddFault.USAGE_IN_CHOICE: {"usage_at": UsageAt.CHOICE},
    OddFault.EMPTY_USAGE_LAST: {"empty_usage_last": {}},
    OddFault.ZERO_USAGE_LAST: {"empty_usage_last": _ZERO},
    OddFault.COUNTS_AS_FLOATS: {"changed": partial(_each_count, float)},
    OddFault.COUNTS_AS_TEXT: {"changed": partial(_each_count, str)},
    OddFault.DETAILS_AS_LISTS: {"changed": _as_lists},
    OddFault.NO_USAGE: {"usage_at": UsageAt.NOWHERE},
    OddFault.EMPTY_USAGE: {"changed": _nothing},
    OddFault.ZERO_USAGE: {"changed": partial(_each_count, lambda _: 0)},
    OddFault.NULL_USAGE: {"changed": partial(_each_count, lambda _: None)},
    OddFault.CALLS_WITHOUT_INDEX: {"index": CallIndex.ABSENT},
    OddFault.CALLS_WITH_NULL_INDEX: {"index": CallIndex.NULL},
    OddFault.CALLS_WITH_ONE_INDEX: {"index": CallIndex.ZERO},
    OddFault.CALLS_WITHOUT_ID: {"id": CallId.NONE},
    OddFault.ID_IN_EACH_PIECE: {"id": CallId.EACH},
    OddFault.NAME_IN_EACH_PIECE: {"repeated_names": True},
    OddFault.NAMES_IN_PIECES: {"cut_names": True},
    OddFault.WHOLE_CALLS: {"whole_calls": True},
    OddFault.ARGUMENTS_AS_OBJECTS: {"objects": True, "whole_calls": True},
    OddFault.CUMULATIVE_ARGUMENTS: {"cumulative_arguments": True},
    OddFault.FUNCTION_CALL: {"one_function": True},
}
_FRAMES: Mapping[OddFault, Mapping[str, Any]] = {
    OddFault.CREATED: {"status": "201 Created"},
    OddFault.MISLABELLED: {"label": "text/plain; charset=utf-8"},
    OddFault.UNLABELLED: {"label": ""},
    OddFault.GZIPPED: {"gzipped": 1},
    OddFault.GZIPPED_TWICE: {"gzipped": 2},
    OddFault.FALSELY_COMPRESSED: {"encoding": "br"},
    OddFault.CHUNKS_AS_STRINGS: {"quoted": True},
    OddFault.NO_DONE: {"done": b""},
    OddFault.HELD_OPEN: {"done": b"", "held_open": True},
    OddFault.CUT_AFTER_USAGE: {"done": b"", "cut": True},
    OddFault.SPACED_DONE: {"done": b"data:  [DONE] \n\n"},
    OddFault.HEARTBEATS: {"beats": _BEATS},
    OddFault.CR_LF: {"newline": b"\r\n"},
    OddFault.NO_SPACE: {"prefix": b"data:"},
    OddFault.SPACED_FIELDS: {"prefix": b" data : "},
    OddFault.BYTE_ORDER_MARK: {"begin": b"\xef\xbb\xbf"},
    OddFault.NO_LAST_NEWLINE: {"done": b"", "no_last_newline": True},
}


def with_faults(rules: Rules, faults: frozenset[OddFault]) -> tuple[Rules, Frame]:
    """Return the rules of a server that has these faults, and how it writes a stream."""
    frame = Frame()
    for fault in OddFault:
        if fault in faults:
            rules = attrs.evolve(rules, **_RULES.get(fault, {}))
            frame = attrs.evolve(frame, **_FRAMES.get(fault, {}))
            if fault is OddFault.UNKNOWN_REASON:
                rules = attrs.evolve(rules, finish={**rules.finish, FinishReason.STOP: "the_end_of_it"})
    return rules, frame

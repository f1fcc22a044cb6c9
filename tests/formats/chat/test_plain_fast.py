"""The quick reading of a request's text says what parsing it under guard and structuring it says, or nothing."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from modelyard.errors import InvalidInput
from modelyard.formats.chat.bounds import ParsedRequest
from modelyard.formats.chat.plain_fast import read_plain_text
from modelyard.formats.chat.request import read_request
from modelyard.formats.json import MAX_STRUCTURE, loads

HELLO = '{"role": "user", "content": "hello"}'


def general(raw: bytes, details: bool) -> ParsedRequest | None:
    """The request as every other body is read; None where it is refused."""
    try:
        return read_request(loads(raw), details=details)
    except InvalidInput:
        return None


def written(members: list[tuple[str, str]]) -> str:
    """An object with these members, whose values are JSON; a name may stand twice."""
    return "{" + ", ".join(f"{json.dumps(name)}: {value}" for name, value in members) + "}"


_ODD = ["a", "", '"', "\\", '\\"', "\n", "\u00e9", "\U0001f600", "\ud800", '":', '"role": "user"', "{[", "\x00"]
_TEXTS = st.builds(
    lambda parts, plainly: json.dumps("".join(parts), ensure_ascii=plainly).encode(errors="surrogatepass").decode(),
    st.lists(st.sampled_from([text for text in _ODD if text != "\ud800"]), max_size=3),
    st.booleans(),
) | st.sampled_from(['"\\ud800"', '"\\ud83d\\ude00"', '"\\u0022"', '"\t"', "7", "null", "[]", '{"a": "b"}'])
_ROLES = st.sampled_from(['"user"', '"user"', '"system"', '"tool"', '"us\\u0065r"', "7", "null"])
_PARTS = st.lists(st.tuples(st.just("role"), _ROLES) | st.tuples(st.just("content"), _TEXTS), min_size=1, max_size=3)
_MESSAGES = st.lists(
    st.builds(lambda role, text: written([("role", role), ("content", text)]), _ROLES, _TEXTS)
    | _PARTS.map(written)
    | st.sampled_from(["7", "[]", '"x"']),
    max_size=3,
).map(lambda messages: f"[{', '.join(messages)}]")
_NUMBERS = ["0", "1", "0.5", "-1", "1e400", "NaN", "-Infinity", "9" * 25, "9" * 5000]
_NUMBERS += ["true", "null", '"1"', "1e0", "[1]"]
_PARAMETERS = [
    *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"),
    *("seed", "min_tokens", "n", "max_tokens", "max_completion_tokens", "logprobs", "return_token_ids", "stream"),
    *("parallel_tool_calls", "store", "stop", "user", "unknown", "tools"),
]
_MEMBERS = (
    st.tuples(st.just("model"), st.sampled_from(['"m"', '"m"', '"\\ud800"', '""', "7"]))
    | st.tuples(st.just("messages"), _MESSAGES)
    | st.tuples(st.sampled_from(_PARAMETERS), st.sampled_from(_NUMBERS))
)
_BODIES = st.builds(
    lambda messages, more, before: written([("model", '"m"'), ("messages", messages), *more][:: 1 if before else -1]),
    _MESSAGES | st.just(f"[{HELLO}]"),
    st.lists(_MEMBERS, max_size=3),
    st.booleans(),
)
_SPACES = st.sampled_from(["", "", "", " ", "\ufeff", "x", "{}"])
PLAIN = '{"model": "m", "messages": [' + HELLO + "]}"

TWICE = PLAIN.replace(HELLO, ", ".join([HELLO.replace("hello", "\\\\")] * 2)).replace("{", '{"n": 1, "n": 1, ', 1)
"""A member twice, and as many quotes that seem to be escaped as would hide that."""


@given(_BODIES, _SPACES, _SPACES, st.booleans())
@example(PLAIN.replace("{", '{"model": "other", ', 1), "", "", False)
@example(PLAIN.replace("user", 'system", "role": "user'), "", "", False)
@example(PLAIN.replace("hello", '\\", \\"'), "", "", True)
@example(PLAIN.replace("hello", "\\\\"), "", "", True)
@example(PLAIN.replace("hello", '\\\\", "role": "user'), "", "", False)
@example(TWICE, "", "", False)
@example("[" * 100_000, "", "", False)
def test_what_is_read_quickly_is_what_is_read_under_guard(body: str, before: str, after: str, details: bool) -> None:
    raw = (before + body + after).encode()
    quick = read_plain_text(raw, details)
    assert quick is None or quick == general(raw, details)


@pytest.mark.parametrize("content", ["hello", "two\nlines", 'he said "no"', "\u00e9\U0001f600", "{[:,]}", ""])
@pytest.mark.parametrize("more", [{}, {"temperature": 0.5, "seed": 7, "n": 2, "stream": True, "logprobs": False}])
@pytest.mark.parametrize("plainly", [False, True])
def test_a_plain_request_is_read_quickly(content: str, more: dict[str, Any], plainly: bool) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": content}] * 2, **more}
    raw = json.dumps(body, ensure_ascii=plainly).encode()
    assert read_plain_text(raw) == general(raw, False) is not None


def test_a_long_text_is_left_to_the_guards() -> None:
    raw = PLAIN.replace("hello", "x" * MAX_STRUCTURE).encode()
    assert read_plain_text(raw) is None
    assert general(raw, False) is not None

"""The quick reading of a request's text says what parsing it under guard and structuring it says, or nothing."""

import json
from collections.abc import Iterator
from sys import getsizeof
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from each import each_case
from example_counts import examples
from modelyard.errors import InvalidInput
from modelyard.formats.chat import kept_fast, plain_fast
from modelyard.formats.chat.bounds import ParsedRequest
from modelyard.formats.chat.kept_fast import SHARE, TENANTS, KeptMembers, read_member
from modelyard.formats.chat.plain_fast import Held, read_plain_text
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
_MORE = {
    "user": ['"ann"', '"\\ud800"', '"' + "x" * 1025 + '"', '"\u00e9"'],
    "stop": [
        '"END"',
        '["a", "b"]',
        "[]",
        '["a", ""]',
        '""',
        '["a", "b", "c", "d", "e"]',
        '["\\ud800"]',
        '["\\\\"]',
        "[1]",
    ],
    "metadata": ['{"a": "b"}', "{}", '{"a": 1}', '{"a": "b", "a": "c"}', '{"\\ud800": ""}', '{"\\"": "\\\\"}'],
    "logit_bias": [
        '{"1": 2}',
        '{"01": -100, "1": 0.5}',
        '{"-1": 2}',
        '{"1": 101}',
        '{"1": true}',
        '{"1": NaN}',
        '{"1": 1, "1": 2}',
    ],
    "tool_choice": ['"auto"', '"none"', '"required"', '"x"', '{"type": "function", "function": {"name": "f"}}'],
    "stream": ["true", "true", "false"],
    "stream_options": [
        "{}",
        '{"include_usage": true}',
        '{"include_usage": 1}',
        '{"include_usage": null}',
        '{"other": true}',
    ],
    "top_logprobs": ["0", "2", "21"],
    "banana": ["null", "1"],
    "\ud800": ["null"],
    "tools": [
        '[{"type": "function", "function": {"name": "f"}}]',
        '[{"type": "function", "function": {"name": "f", "parameters": {"a": [1.5, {"tools": []}]}, "strict": true}}]',
        '[{"type": "function", "function": {"name": "f", "name": "g"}}]',
        '[{"type": "function", "function": {"name": "f", "parameters": {"a": NaN}}}]',
        '[{"type": "function", "function": {"name": "f", "parameters": {"a": 1e400}}}]',
        '[{"type": "function", "function": {"name": "f", "description": "\\ud800"}}]',
        '[{"type": "function", "function": {"name": "f", "parameters": {"a": ' + "[" * 60 + "]" * 60 + "}}}]",
        '[{"type": "function", "function": {"name": "f", "parameters": {"a": ' + "[" * 59 + "]" * 59 + "}}}]",
        '[{"type": "function", "function": {"name": "f", "parameters": {"a": 1%s}}}]' % ("0" * 20),
        '[{"type": "function", "function": {"name": "f", "parameters": {"a": "\\\\", "a": ""}}}]',
        '[{"type": "function", "function": {"name": "f", "parameters": null}}]',
        '[{"type": "function", "function": {"name": "f", "parameters": []}}]',
        '[{"type": "function", "function": {"name": "f", "strict": null, "description": null}}]',
        '[{"type": "function", "function": {"name": "f", "strict": 1}}]',
        '[{"type": "function", "function": {"name": "f", "description": 1}}]',
        '[{"type": "function", "function": {"name": "f", "banana": 1}}]',
        '[{"type": "other", "function": {"name": "f"}}]',
        '[{"type": "function", "function": {}}]',
        '[{"type": "function", "function": "f"}, 7]',
        '[{"type": "function", "function": {"name": "f"}, "cache_control": {"type": "ephemeral"}}]',
        '[{"type": "function", "function": {"name": "f"}, "banana": 1}]',
        '[{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "f\\n"}}]',
        "[]",
        "NaN",
        "[}",
        '[{"type": "function", "function": {"name": "no name"}}]',
    ],
    "response_format": [
        '{"type": "text"}',
        '{"type": "json_object"}',
        '{"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}',
        '{"type": "json_schema", "json_schema": {"name": "a", "schema": {"a": 1, "a": 2}}}',
        '{"type": "other"}',
        "NaN",
    ],
}
_CALLS = [
    '[{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\\"a\\": 1}"}}]',
    '[{"id": "c", "function": {"name": "f", "arguments": ""}}]',
    '[{"id": "c", "type": "function", "function": {"name": "f", "arguments": "\\ud800"}}]',
    '[{"id": "c", "id": "d", "type": "function", "function": {"name": "f", "arguments": ""}}]',
    '[{"id": "c", "type": "function", "function": {"name": "\\ud800", "arguments": ""}}]',
    "[]",
    "null",
    "7",
]
_CONTENTS = [
    '[{"type": "text", "text": "a"}]',
    '[{"type": "text", "text": "a"}, {"type": "text", "text": "\\ud800"}]',
    '[{"type": "text", "text": "a", "text": "b"}]',
    '[{"type": "text"}]',
    '[{"type": "image_url", "image_url": {"url": "data:"}}]',
    "[]",
    "null",
    '"text"',
    "7",
]
_OTHER_MEMBERS = (
    st.tuples(st.just("content"), st.sampled_from(_CONTENTS))
    | st.tuples(st.just("tool_calls"), st.sampled_from(_CALLS))
    | st.tuples(st.sampled_from(["name", "tool_call_id"]), st.sampled_from(['"ann"', "null", '"\\ud800"', '""', "7"]))
    | st.tuples(st.sampled_from(["refusal", "audio", "banana", "annotations"]), st.sampled_from(["null", '"no"', "[]"]))
)
_OTHER_MESSAGES = st.builds(
    lambda role, more: written([("role", role), *more]),
    st.sampled_from(['"user"', '"assistant"', '"tool"', '"system"']),
    st.lists(_OTHER_MEMBERS, min_size=1, max_size=4),
)
_MEMBERS = (
    st.tuples(st.just("model"), st.sampled_from(['"m"', '"m"', '"\\ud800"', '""', "7"]))
    | st.tuples(st.just("messages"), _MESSAGES)
    | st.tuples(st.sampled_from(_PARAMETERS), st.sampled_from(_NUMBERS))
    | st.one_of([st.tuples(st.just(name), st.sampled_from(values)) for name, values in _MORE.items()])
)
_BODIES = st.builds(
    lambda messages, more, before: written([("model", '"m"'), ("messages", messages), *more][:: 1 if before else -1]),
    _MESSAGES | st.just(f"[{HELLO}]") | _OTHER_MESSAGES.map(lambda one: f"[{HELLO}, {one}]"),
    st.lists(_MEMBERS, max_size=4),
    st.booleans(),
)
_SPACES = st.sampled_from(["", "", "", " ", "\ufeff", "x", "{}"])
PLAIN = '{"model": "m", "messages": [' + HELLO + "]}"

TWICE = PLAIN.replace(HELLO, ", ".join([HELLO.replace("hello", "\\\\")] * 2)).replace("{", '{"n": 1, "n": 1, ', 1)
"""A member twice, and as many quotes that seem to be escaped as would hide that."""


KEPT = KeptMembers()
"""What earlier examples have sent is found again."""


def hold(name: str, text: str, at: int) -> Held:
    """Read a member as one that a tenant sends again and again."""
    return KEPT.read("acme", name, text, at)


def quickly(raw: bytes, details: bool) -> Iterator[ParsedRequest | None]:
    """What is read quickly: alone, with members that are kept, and with messages that are kept too, twice each."""
    yield read_plain_text(raw, details)
    for long in (plain_fast.LONG, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plain_fast, "LONG", long)
            yield read_plain_text(raw, details, hold)
            yield read_plain_text(raw, details, hold)


@pytest.mark.slow
@examples(400)
@given(_BODIES, _SPACES, _SPACES, st.booleans())
@example(PLAIN.replace("{", '{"model": "other", ', 1), "", "", False)
@example(PLAIN.replace("user", 'system", "role": "user'), "", "", False)
@example(PLAIN.replace("hello", '\\", \\"'), "", "", True)
@example(PLAIN.replace("hello", "\\\\"), "", "", True)
@example(PLAIN.replace("hello", '\\\\", "role": "user'), "", "", False)
@example(TWICE, "", "", False)
@example("[" * 100_000, "", "", False)
@example(PLAIN.replace("{", '{"tools": [], "tools": NaN, ', 1), "", "", False)
@example(PLAIN.replace("{", '{"metadata": {"tools": ["a"]}, "tools": NaN, ', 1), "", "", False)
@example(
    PLAIN.replace("{", '{"messages": {"tools": [{"type": "function", "function": {"name": "f"}}]}, ', 1), "", "", False
)
@example(
    PLAIN.replace("{", '{"user": {"tools": [{"type": "function", "function": {"name": "f"}}]}, "n": 1, ', 1),
    "",
    "",
    False,
)
@example(PLAIN.replace("{", '{"metadata": {"tools":[{"a": 1}]}, ', 1), "", "", False)
@example(PLAIN.replace("hello", '\\"tools\\":[1]'), "", "", False)
@example(PLAIN.replace('{"role', '{"tools":[], "role'), "", "", False)
def test_what_is_read_quickly_is_what_is_read_under_guard(body: str, before: str, after: str, details: bool) -> None:
    raw = (before + body + after).encode()
    for quick in quickly(raw, details):
        assert quick is None or quick == general(raw, details)
        assert repr(quick) in ("None", repr(general(raw, details)))  # 1 is not 1.0


def alike(body: str) -> None:
    """Compare what is read quickly, kept or not, with what is read under guard."""
    for details in (False, True):
        expected = repr(general(body.encode(), details))
        for found in quickly(body.encode(), details):
            assert repr(found) in ("None", expected)


@each_case("name", _MORE)
def test_each_value_of_a_member_is_read_alike(name: str) -> None:
    for value in [*_MORE[name], *_NUMBERS]:
        for stream in ([], [("stream", "true")]):
            alike(written([("model", '"m"'), (name, value), ("messages", f"[{HELLO}]"), *stream]))


@pytest.mark.slow
@pytest.mark.parametrize("role", ['"user"', '"assistant"', '"tool"', '"developer"', "7"])
def test_each_kind_of_message_is_read_alike(role: str) -> None:
    strings = ['"ann"', "null", '"\\ud800"', '""', f'"{"x" * 1025}"', "7"]
    more = [("name", one) for one in strings] + [("refusal", "null"), ("\ud800", "null"), ("refusal", '"no"')]
    more += [(one, "[]") for one in ("annotations", "banana")]
    parts = [("content", content) for content in _CONTENTS], [("tool_calls", calls) for calls in _CALLS]
    parts = [(), *parts[0]], [(), *parts[1]]  # type: ignore[assignment]
    ids = [(), *[("tool_call_id", one) for one in strings]]
    combined = [(content, calls, id_) for content in parts[0] for calls in parts[1] for id_ in ids]
    combined += [(content, one) for content in parts[0] for one in more]
    for members in combined:
        message = written([("role", role), *[one for one in members if one]])
        alike(written([("model", '"m"'), ("messages", f"[{HELLO}, {message}]")]))


QUICK: dict[str, Any] = {
    "null": {"tools": None, "stop": None, "banana": None, "stream": None},
    "user": {"user": "ann"},
    "stop": {"stop": ["a", "\\"]},
    "metadata": {"metadata": {"a": 'b"', "tools": "c"}},
    "bias": {"logit_bias": {"7": 1, "8": -0.5}},
    "options": {"stream": True, "stream_options": {"include_usage": True}},
    "choice": {"tool_choice": "none"},
    "tools": {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": ["b"]}}}]},
    "form": {"response_format": {"type": "json_object"}},
    "name": {"messages": [{"role": "user", "content": "a", "name": "ann"}]},
    "parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    },
    "history": {
        "messages": [
            {"role": "user", "content": "a\\n"},
            {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "\\n"}'}}],
            },
            {"role": "tool", "content": "b", "tool_call_id": "c"},
            {"role": "assistant", "content": "c"},
        ]
    },
}


@each_case("more", QUICK.values(), ids=QUICK)
def test_what_agents_send_is_read_quickly(more: dict[str, Any]) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], **more}
    for raw in (json.dumps(body).encode(), json.dumps(body, separators=(",", ":")).encode()):
        for _ in range(2):
            found = read_plain_text(raw, False, hold)
            assert found is not None
            assert repr(found) == repr(general(raw, False))


@pytest.mark.slow
@examples(200)
@given(st.lists(_MESSAGES | _OTHER_MESSAGES.map(lambda one: f"[{one}]"), min_size=2, max_size=5), st.booleans())
def test_a_conversation_that_grows_is_read_alike(turns: list[str], closely: bool) -> None:
    said: list[str] = []
    for turn in [f"[{HELLO}]", *turns]:
        if turn[1:-1]:
            said.append(turn[1:-1])
        alike(written([("model", '"m"'), ("messages", f"[{(',' if closely else ', ').join(said)}]"), ("n", "1")]))


@each_case(
    "after", ['"}X{"role": "user", "content": "b"}', 'y","name":"ann"}', '"} , {"role": "user", "content": "b"}', '"},']
)
def test_what_only_begins_like_a_conversation_is_read_alike(after: str) -> None:
    body = '{"model": "m", "messages": [{"role": "user", "content": "begun'
    alike(body + '"}]}')
    alike(f"{body}{after}]}}")


def test_of_a_conversation_that_grows_only_what_is_new_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, read = KeptMembers(), []
    monkeypatch.setattr(kept_fast, "read_member", lambda *asked: read.append(asked[1]) or read_member(*asked))
    messages = [{"role": "user", "content": str(at)} for at in range(20)]
    for size in (5, 5, 6, 6, 20):
        text = json.dumps(messages[:size])
        found = kept.read("acme", "messages", text + ", ", 0)
        assert (found.text, len(found.value)) == (text, size)
        assert [one.content for one in found.value] == [str(at) for at in range(size)]
    assert [text.count("role") for text in read] == [5, 1, 14]
    assert len(kept._kept["acme"]["messages"]) == 1
    assert kept.read("rival", "messages", text + ", ", 0) is not found
    kept.read("acme", "tools", '[{"type": "function", "function": {"name": "f"}}]', 0)
    assert kept.read("acme", "messages", text + "]", 0) is found


@each_case("letter", ["x", "\u0142", "\U0001f600"])
def test_each_tenant_has_a_share_of_what_is_kept(letter: str) -> None:
    """In bytes of memory, however many a character has."""
    kept = KeptMembers()
    size = (SHARE - 1024) // 3 // (getsizeof(letter * 1000) // 1000)

    def read(tenant: str, at: int) -> Held:
        function = {"name": f"f{at}", "description": letter * size}
        tools = json.dumps([{"type": "function", "function": function}], ensure_ascii=False)
        return kept.read(tenant, "tools", tools + ", ", 0)

    first = read("acme", 0)
    assert read("acme", 0) is first
    for at in range(100):
        read("rival", at)
    assert read("acme", 0) is first
    assert SHARE // 2 < sum(getsizeof(one.text) for one in kept._kept["rival"]["tools"]) <= SHARE
    assert read("rival", 99) is read("rival", 99)
    for at in range(TENANTS + 1):
        read(f"tenant {at}", 0)
    assert len(kept._kept) == TENANTS
    assert read("acme", 0) is not first
    whole = kept.read(
        "acme", "tools", json.dumps([{"type": "function", "function": {"name": "f", "description": "x" * SHARE}}]), 0
    )
    assert whole not in kept._kept["acme"]["tools"]


@each_case("content", ["hello", "two\nlines", 'he said "no"', "\u00e9\U0001f600", "{[:,]}", ""])
@each_case("more", [{}, {"temperature": 0.5, "seed": 7, "n": 2, "stream": True, "logprobs": False}])
@each_case("plainly", [False, True])
def test_a_plain_request_is_read_quickly(content: str, more: dict[str, Any], plainly: bool) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": content}] * 2, **more}
    raw = json.dumps(body, ensure_ascii=plainly).encode()
    assert read_plain_text(raw) == general(raw, False) is not None


def test_a_long_text_is_left_to_the_guards() -> None:
    raw = PLAIN.replace("hello", "x" * MAX_STRUCTURE).encode()
    assert read_plain_text(raw) is None
    assert general(raw, False) is not None


def test_nothing_is_kept_of_a_tenant_that_is_forgotten() -> None:
    kept = KeptMembers()
    text = '[{"role":"user","content":"my name is Ada"}]'
    for tenant in ("acme", "globex"):
        kept.read(tenant, "messages", text, 0)
    kept.forget("acme")
    assert kept._kept.keys() == {"globex"}

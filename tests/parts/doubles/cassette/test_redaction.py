"""No secret is written down: known shapes of keys, and what the host names."""

import re
from pathlib import Path

import pytest

from each import each_case
from modelyard import open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.domain.completion import ContentPart, Message, Role, Tool, ToolCall
from modelyard.parts.doubles.cassette.cassette import use_cassette
from modelyard.parts.doubles.cassette.redaction import Redactor
from modelyard.parts.scripted.backend import ScriptedBackend, call, reasoning, say
from modelyard.platform.keys.service import SECRET_BYTES, secret_of

KEYS = [
    secret_of(bytes(range(SECRET_BYTES))),
    "sk-proj-" + "Ab3_" * 10,
    "sk-ant-api03-" + "x-Y9" * 10,
    "gsk_" + "a1B2" * 8,
    "xai-" + "a1B2" * 8,
    "hf_" + "a1B2" * 8,
    "ghp_" + "a1B2" * 9,
    "github_pat_" + "a1B2_" * 9,
    "glpat-" + "a1B2-" * 5,
    "AKIA" + "A1B2" * 4,
    "AIza" + "a1B2_" * 7,
    "xoxb-" + "123-abc" * 3,
    "sk_live_" + "a1B2" * 6,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0x.SflKxwRJSMeKKF2QT4",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\nMIIE, and cut off",
]


@each_case("key", KEYS)
def test_a_key_of_a_known_shape_is_taken_out(key: str) -> None:
    assert Redactor().text(f"use '{key}") == "use '[redacted]"


@each_case(
    ("text", "clean"),
    [
        ("Authorization: Bearer abcdefgh12345678== and on", "Authorization: Bearer [redacted] and on"),
        ("postgres://user:hunter2@db.example/x", "postgres://[redacted]@db.example/x"),
        ("ask-me-anything-you-like-today", None),
        ("a task_live_long", None),
        ("https://example.com/a@b", None),
        ("my_model my_little_pony", None),
    ],
)
def test_what_is_not_a_key_stays(text: str, clean: str | None) -> None:
    assert Redactor().text(text) == (clean or text)


def test_the_host_names_texts_and_patterns() -> None:
    redactor = Redactor(['say "friend"', re.compile(r"\bEMP-\d+")])
    assert redactor.text('EMP-12: say "friend"!') == "[redacted]: [redacted]!"
    assert redactor.value({"EMP-3": [r"{\"password\": \"say \"friend\"\"}", 4]}) == {
        "[redacted]": [r"{\"password\": \"[redacted]\"}", 4]
    }


def test_a_string_is_also_found_as_it_stands_within_json() -> None:
    assert Redactor(['a"b']).text(r'{"key": "a\"b"}') == '{"key": "[redacted]"}'


def test_secrets_that_touch_or_overlap_are_one() -> None:
    assert Redactor(["abc", "cde", "efg"]).text("xabcdefgy") == "x[redacted]y"


CANARY = "sk-canary-0123456789abcdef"


def test_no_part_of_a_conversation_brings_a_secret_into_a_cassette(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    script = [
        say(
            reasoning("they have sk-canary-"),
            reasoning("0123456789abcdef"),
            "your key is sk-ca",
            "nary-0123456789",
            "abcdef, sir",
            call("save", key=CANARY, pin="hunter2"),
        ),
        say("ok"),
    ]
    conversation = [
        Message(Role.SYSTEM, f"key: {CANARY}"),
        Message(Role.USER, (ContentPart("text", f"it is {CANARY}"),), name="me"),
        Message(Role.ASSISTANT, "ok", tool_calls=(ToolCall("c", "save", f'{{"key": "{CANARY}"}}'),)),
        Message(Role.TOOL, f"saved {CANARY}", tool_call_id="c"),
    ]
    tools = [Tool("save", f"saves {CANARY}", {"properties": {"key": {"default": CANARY}}})]
    options = {"model": "scripted", "messages": conversation, "tools": tools, "user": CANARY, "logprobs": True}
    with open_platform(backend=use_cassette(path, ScriptedBackend(script), mode="new", redact=["hunter2"])) as platform:
        key = platform.keys.create().secret
        generated = platform.chat.complete(**options, return_token_ids=True)  # type: ignore[arg-type]
        assert CANARY in generated.text, "the application gets what the backend says"
        platform.chat.complete(model="scripted", messages=f"my key is {key}", metadata={"key": CANARY})
    written = path.read_text()
    assert "[redacted]" in written
    assert [word for word in ("canary", "0123456789", "hunter2", key) if word in written] == []
    assert str(list(CANARY.encode()))[1:-1] not in written
    with open_platform(backend=use_cassette(path, redact=["hunter2"])) as platform:
        again = platform.chat.complete(**options, return_token_ids=True)  # type: ignore[arg-type]
        assert again.text == "your key is [redacted], sir"
        assert set(again.choices[0].prompt_token_ids) == {0}


def test_a_request_with_another_key_is_the_same_request(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    with open_platform(backend=use_cassette(path, EchoBackend(), mode="new")) as platform:
        platform.chat.complete(model="echo", messages=f"use {CANARY}")
    with open_platform(backend=use_cassette(path)) as platform:
        assert platform.chat.complete(model="echo", messages=f"use {CANARY}2").text == "use [redacted]"


def test_the_error_for_what_is_not_recorded_names_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    with open_platform(backend=use_cassette(path, EchoBackend(), mode="new")) as platform:
        platform.chat.complete(model="echo", messages="hello")
    with open_platform(backend=use_cassette(path)) as platform:
        with pytest.raises(Exception, match="recorded 'hello', requested 'my key is \\[redacted\\]'") as refused:
            platform.chat.complete(model="echo", messages=f"my key is {CANARY}")
    assert "canary" not in str(refused.value)

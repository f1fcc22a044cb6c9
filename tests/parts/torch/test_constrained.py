"""Output that must have a form has it, from random weights that know nothing of it."""

import json
import re
from typing import Any

import attrs
import jsonschema
import pytest

from modelyard.domain.completion import FinishReason, ResponseFormat, ResponseType, Sampling, Tool, ToolChoice, ToolMode
from modelyard.errors import InvalidInput
from modelyard.parts.contracts.backend import choice_of, deltas_of, request_for, served
from modelyard.parts.torch.serving.backend import LocalBackend
from modelyard.parts.torch.serving.grammar import Grammars
from modelyard.parts.torch.tokenizer import ChatTokenizer
from modelyard.parts.torch.tool_calls import FORMATS, ToolReader

NESTED = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["sea", "sky"]},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
        "more": {
            "type": "object",
            "properties": {"yes": {"type": "boolean"}},
            "required": ["yes"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "kind", "sizes", "more"],
    "additionalProperties": False,
}
LOOK_UP, SEND = (
    Tool("look_up", "", NESTED),
    Tool("send", "", {"type": "object", "properties": {}, "additionalProperties": False}),
)


def answers(backend: LocalBackend, count: int, **fields: Any) -> list[Any]:
    deltas = deltas_of(backend, request_for("tiny", n=count, max_tokens=400, **fields))
    return [choice_of([delta for delta in deltas if delta.index == index]) for index in range(count)]


def test_a_schema_is_kept_16_times_out_of_16(shared_backend: LocalBackend) -> None:
    wanted = ResponseFormat(ResponseType.JSON_SCHEMA, "finding", NESTED)
    for answer in answers(shared_backend, 16, response_format=wanted):
        jsonschema.validate(json.loads(answer.message.text), NESTED)
        assert answer.finish_reason is FinishReason.STOP


def test_json_mode_gives_objects_16_times_out_of_16(shared_backend: LocalBackend) -> None:
    wanted = ResponseFormat(ResponseType.JSON_OBJECT)
    for answer in answers(shared_backend, 16, response_format=wanted):
        text = answer.message.text
        assert text.startswith("{")
        if answer.finish_reason is FinishReason.STOP:
            assert isinstance(json.loads(text), dict)
        else:
            assert len(text) > 100


@pytest.mark.parametrize("name", [None, "send"])
def test_a_forced_call_is_made_of_the_named_or_of_any_tool(shared_backend: LocalBackend, name: str | None) -> None:
    forced = ToolChoice(ToolMode.REQUIRED, name)
    called = set()
    for answer in answers(shared_backend, 16, tools=(LOOK_UP, SEND), tool_choice=forced):
        (call,) = answer.message.tool_calls
        assert not answer.message.text
        assert answer.finish_reason is FinishReason.TOOL_CALLS
        jsonschema.validate(json.loads(call.arguments), NESTED if call.name == "look_up" else dict(SEND.parameters))
        called.add(call.name)
    assert called == ({"look_up", "send"} if name is None else {name})


def test_a_grammar_holds_at_any_temperature_and_next_to_free_answers(shared_backend: LocalBackend) -> None:
    wanted = ResponseFormat(ResponseType.JSON_SCHEMA, "finding", NESTED)
    for sampling in (Sampling(temperature=0), Sampling(seed=3, temperature=2, top_p=0.5), Sampling(seed=3, top_k=1)):
        (answer,) = answers(shared_backend, 1, response_format=wanted, sampling=sampling)
        jsonschema.validate(json.loads(answer.message.text), NESTED)


def test_a_complete_form_at_the_limit_has_stopped_and_an_incomplete_one_was_cut(shared_backend: LocalBackend) -> None:
    wanted = ResponseFormat(ResponseType.JSON_SCHEMA, "", {"const": "sea"})
    for limit, reason in ((4, FinishReason.LENGTH), (5, FinishReason.STOP), (6, FinishReason.STOP)):
        requested = request_for("tiny", response_format=wanted, max_tokens=limit)
        answer = choice_of(deltas_of(shared_backend, requested))
        assert (answer.message.text, answer.finish_reason) == ('"sea"'[:limit], reason)


@pytest.mark.parametrize(
    "schema", [{"type": "integer", "minimum": 5, "maximum": 3}, {"type": "nonsense"}, {"enum": []}]
)
def test_a_schema_that_cannot_be_kept_is_refused(shared_backend: LocalBackend, schema: dict[str, Any]) -> None:
    wanted = ResponseFormat(ResponseType.JSON_SCHEMA, "", schema)
    with pytest.raises(InvalidInput, match="cannot be kept"):
        deltas_of(shared_backend, request_for("tiny", response_format=wanted))


MANY = {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(2000)}}
TOO_LARGE: dict[str, dict[str, Any]] = {
    "a repeated letter": {"response_format": ResponseFormat(ResponseType.REGEX, pattern="a{1000000000}")},
    "letters left out": {"response_format": ResponseFormat(ResponseType.REGEX, pattern="a?" * 480 + "a" * 480)},
    "many properties": {"response_format": ResponseFormat(ResponseType.JSON_SCHEMA, "", MANY)},
    "a tool of many": {"tools": (Tool("f", "", MANY),), "tool_choice": ToolChoice(ToolMode.REQUIRED, "f")},
}


@pytest.mark.parametrize("fields", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_grammar_that_is_too_large_is_the_requests_fault_however_late_that_is_known(
    chat: ChatTokenizer, fields: dict[str, Any]
) -> None:
    def follow() -> None:
        matcher = Grammars(chat, len(chat.token_bytes)).of(request_for("tiny", **fields), FORMATS[0])
        assert matcher is not None
        for _ in range(200):
            matcher.accept(next(token for token, allowed in enumerate(matcher.allowed()) if allowed))

    with pytest.raises(InvalidInput, match=r"is too large to be kept|cannot be kept"):
        follow()


def test_one_grammar_that_is_too_large_ends_its_own_answer_as_refused(shared_backend: LocalBackend) -> None:
    pattern = TOO_LARGE["letters left out"]["response_format"]
    with pytest.raises(InvalidInput):
        deltas_of(shared_backend, request_for("tiny", response_format=pattern, max_tokens=8))
    assert deltas_of(shared_backend, request_for("tiny", max_tokens=2))


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_what_a_grammar_of_each_format_allows_its_reader_reads(chat: ChatTokenizer, form: Any) -> None:
    """Always the first allowed token: the shortest way through."""
    requested = request_for("tiny", tools=(LOOK_UP, SEND), tool_choice=ToolChoice(ToolMode.REQUIRED, "send"))
    matcher = Grammars(chat, len(chat.token_bytes)).of(requested, form)
    assert matcher is not None
    generated, over = b"", False
    while not over:
        token = next(token for token, allowed in enumerate(matcher.allowed()) if allowed)
        generated += chat.token_bytes[token]
        over = matcher.accept(token)
    (call,) = ToolReader(form, "id", {"send"}).take(generated.decode(), over=True)
    assert (call.name, json.loads(call.arguments)) == ("send", {})  # type: ignore[union-attr]


# ---- references, and what cannot be kept ---------------------------------------------------------------------------

TREE = {
    "type": "object",
    "properties": {
        "kind": {"$ref": "#/$defs/Kind"},
        "inner": {"anyOf": [{"$ref": "#/$defs/Leaf"}, {"type": "null"}]},
    },
    "required": ["kind", "inner"],
    "additionalProperties": False,
    "$defs": {
        "Kind": {"enum": ["sea", "sky"]},
        "Leaf": {
            "type": "object",
            "properties": {"kind": {"$ref": "#/$defs/Kind"}},
            "required": ["kind"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize("name", [None, "grow"])
def test_definitions_of_a_forced_tool_are_those_of_its_own_parameters(
    shared_backend: LocalBackend, name: str | None
) -> None:
    other = {"type": "object", "properties": {"at": {"$ref": "#/$defs/Kind"}}, "required": ["at"]}
    other |= {"additionalProperties": False, "$defs": {"Kind": {"type": "boolean"}}}
    tools = (Tool("grow", "", TREE), Tool("cut", "", other))
    for answer in answers(shared_backend, 8, tools=tools, tool_choice=ToolChoice(ToolMode.REQUIRED, name)):
        (call,) = answer.message.tool_calls
        jsonschema.validate(json.loads(call.arguments), TREE if call.name == "grow" else other)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_each_format_has_its_definitions(chat: ChatTokenizer, form: Any) -> None:
    requested = request_for("tiny", tools=(Tool("grow", "", TREE),), tool_choice=ToolChoice(ToolMode.REQUIRED))
    assert Grammars(chat, len(chat.token_bytes)).of(requested, form) is not None


@pytest.mark.parametrize(
    ("schema", "loc"),
    [
        ({"type": "object", "properties": {"a": {"not": {"type": "null"}}}}, ("properties", "a", "not")),
        ({"type": "object", "propertyNames": {"enum": ["a"]}}, ("propertyNames",)),
        ({"anyOf": [{"type": "array", "contains": {"type": "integer"}}]}, ("anyOf", 0, "contains")),
        ({"$defs": {"A": {"$ref": "#/$defs/B"}}, "$ref": "#/$defs/A"}, ("$defs", "A", "$ref")),
        (
            {"type": "object", "properties": {"not": {"multipleOf": "x", "type": "number"}}},
            ("properties", "not", "multipleOf"),
        ),
    ],
)
def test_what_cannot_be_kept_is_named_at_its_place(
    shared_backend: LocalBackend, schema: dict[str, Any], loc: tuple[str | int, ...]
) -> None:
    wanted = ResponseFormat(ResponseType.JSON_SCHEMA, "", schema)
    with pytest.raises(InvalidInput, match="cannot be kept") as refused:
        deltas_of(shared_backend, request_for("tiny", response_format=wanted))
    assert refused.value.problems[0].loc == ("response_format", "json_schema", "schema", *loc)
    tools = (SEND, Tool("grow", "", schema))
    with pytest.raises(InvalidInput, match="cannot be kept") as refused:
        deltas_of(shared_backend, request_for("tiny", tools=tools, tool_choice=ToolChoice(ToolMode.REQUIRED)))
    assert refused.value.problems[0].loc == ("tools", 1, "function", "parameters", *loc)


def test_a_format_that_is_unknown_is_an_annotation_and_unique_items_are_left_to_the_model(
    shared_backend: LocalBackend,
) -> None:
    schema = {
        "type": "object",
        "properties": {
            "format": {"type": "string", "format": "binary", "maxLength": 5},
            "set": {"type": "array", "items": {"enum": [{"uniqueItems": 1}]}, "maxItems": 2, "uniqueItems": True},
        },
        "required": ["format", "set"],
        "additionalProperties": False,
    }
    wanted = ResponseFormat(ResponseType.JSON_SCHEMA, "", schema)
    for answer in answers(shared_backend, 4, response_format=wanted):
        found = json.loads(answer.message.text)
        assert len(found["format"]) <= 5
        assert all(one == {"uniqueItems": 1} for one in found["set"])


# ---- other forms ---------------------------------------------------------------------------------------------------


def test_a_choice_is_one_of_the_choices(shared_backend: LocalBackend) -> None:
    wanted = ResponseFormat(ResponseType.CHOICE, choices=("yes", 'n"o', "é"))
    found = {
        (answer.message.text, answer.finish_reason) for answer in answers(shared_backend, 16, response_format=wanted)
    }
    assert found <= {(choice, FinishReason.STOP) for choice in wanted.choices}
    assert len(found) > 1


def test_a_pattern_is_kept(shared_backend: LocalBackend) -> None:
    wanted = ResponseFormat(ResponseType.REGEX, pattern="[a-c]{3}/[0-9]?")
    for answer in answers(shared_backend, 8, response_format=wanted):
        assert re.fullmatch(wanted.pattern, answer.message.text)
    broken = ResponseFormat(ResponseType.REGEX, pattern="[")
    with pytest.raises(InvalidInput, match=r"structured_outputs\.regex: cannot be kept"):
        deltas_of(shared_backend, request_for("tiny", response_format=broken))


# ---- where an answer ends ------------------------------------------------------------------------------------------


def ended(backend: LocalBackend, **sampling: Any) -> Any:
    requested = request_for("tiny", max_tokens=60, return_token_ids=True, logprobs=True)
    requested = attrs.evolve(requested, sampling=Sampling(seed=3, **sampling))
    return choice_of(deltas_of(backend, requested))


def test_an_answer_ends_at_a_stop_token_which_is_not_content(shared_backend: LocalBackend) -> None:
    whole = ended(shared_backend, ignore_eos=True)
    assert (len(whole.token_ids), whole.finish_reason) == (60, FinishReason.LENGTH)
    last = whole.token_ids[9]
    cut = ended(shared_backend, stop_token_ids=(last,), ignore_eos=True)
    assert cut.token_ids == whole.token_ids[: whole.token_ids.index(last) + 1]
    assert cut.finish_reason is FinishReason.STOP
    assert cut.logprobs[-1].bytes == ()
    assert len(cut.message.text.encode()) < len(whole.message.text.encode())


@pytest.mark.parametrize("kind", ["end of turn", "stop token"])
def test_an_answer_has_at_least_min_tokens(shared_backend: LocalBackend, kind: str) -> None:
    """The end is as likely as can be, and yet it does not come before its time."""
    end = next(iter(shared_backend._model(served(shared_backend, "tiny")).chat.end_tokens))
    token = end if kind == "end of turn" else 40
    stops = () if kind == "end of turn" else (token,)
    for least in (0, 7):
        answer = ended(shared_backend, logit_bias={token: 100.0}, stop_token_ids=stops, min_tokens=least)
        assert (len(answer.token_ids), answer.token_ids[-1]) == (least + 1, token)
        assert token not in answer.token_ids[:-1]


def test_an_end_of_turn_may_be_ignored(shared_backend: LocalBackend) -> None:
    end = next(iter(shared_backend._model(served(shared_backend, "tiny")).chat.end_tokens))
    answer = ended(shared_backend, logit_bias={end: 100.0}, ignore_eos=True)
    assert (answer.token_ids, answer.finish_reason) == ((end,) * 60, FinishReason.LENGTH)


def test_a_form_that_is_complete_ends_before_min_tokens(shared_backend: LocalBackend) -> None:
    requested = request_for(
        "tiny", max_tokens=60, response_format=ResponseFormat(ResponseType.CHOICE, choices=("sea",))
    )
    for sampling in (Sampling(min_tokens=20), Sampling(min_tokens=20, ignore_eos=True)):
        answer = choice_of(deltas_of(shared_backend, attrs.evolve(requested, sampling=sampling)))
        assert (answer.message.text, answer.finish_reason) == ("sea", FinishReason.STOP)

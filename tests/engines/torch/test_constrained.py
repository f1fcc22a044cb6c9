"""Output that must have a form has it, from random weights that know nothing of it."""

import json
from typing import Any

import jsonschema
import pytest

from modelyard.domain.completion import FinishReason, ResponseFormat, ResponseType, Sampling, Tool, ToolChoice, ToolMode
from modelyard.engines.torch.serving.backend import LocalBackend
from modelyard.engines.torch.serving.grammar import Grammars
from modelyard.engines.torch.tokenizer import ChatTokenizer
from modelyard.errors import InvalidInput
from modelyard.formats.chat.tool_calls import FORMATS, ToolReader
from modelyard.testing.contracts.backend import choice_of, deltas_of, request_for

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


def test_a_form_is_kept_at_any_temperature_and_beside_free_answers(shared_backend: LocalBackend) -> None:
    wanted = ResponseFormat(ResponseType.JSON_SCHEMA, "finding", NESTED)
    for sampling in (Sampling(temperature=0), Sampling(seed=3, temperature=2, top_p=0.5), Sampling(seed=3, top_k=1)):
        (answer,) = answers(shared_backend, 1, response_format=wanted, sampling=sampling)
        jsonschema.validate(json.loads(answer.message.text), NESTED)


def test_a_complete_form_at_the_limit_has_stopped_and_an_incomplete_one_was_cut(shared_backend: LocalBackend) -> None:
    wanted = ResponseFormat(ResponseType.JSON_SCHEMA, "", {"const": "sea"})
    for limit, reason in ((4, FinishReason.LENGTH), (5, FinishReason.STOP), (6, FinishReason.STOP)):
        asked = request_for("tiny", response_format=wanted, max_tokens=limit)
        answer = choice_of(deltas_of(shared_backend, asked))
        assert (answer.message.text, answer.finish_reason) == ('"sea"'[:limit], reason)


@pytest.mark.parametrize(
    "schema", [{"type": "integer", "minimum": 5, "maximum": 3}, {"type": "nonsense"}, {"enum": []}]
)
def test_a_schema_that_cannot_be_kept_is_refused(shared_backend: LocalBackend, schema: dict[str, Any]) -> None:
    wanted = ResponseFormat(ResponseType.JSON_SCHEMA, "", schema)
    with pytest.raises(InvalidInput, match="cannot be kept"):
        deltas_of(shared_backend, request_for("tiny", response_format=wanted))


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_what_a_grammar_of_each_format_allows_its_reader_reads(chat: ChatTokenizer, form: Any) -> None:
    """Always the first allowed token: the shortest way through."""
    asked = request_for("tiny", tools=(LOOK_UP, SEND), tool_choice=ToolChoice(ToolMode.REQUIRED, "send"))
    matcher = Grammars(chat, len(chat.token_bytes)).of(asked, form)
    assert matcher is not None
    said, over = b"", False
    while not over:
        token = next(token for token, allowed in enumerate(matcher.allowed()) if allowed)
        said += chat.token_bytes[token]
        over = matcher.accept(token)
    (call,) = ToolReader(form, "id", {"send"}).take(said.decode(), over=True)
    assert (call.name, json.loads(call.arguments)) == ("send", {})  # type: ignore[union-attr]

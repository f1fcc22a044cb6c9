"""The public `openai` client, unmodified, against a served platform and against one in process.

Every pinned version runs it in its own lane.
"""

import asyncio
import json
from typing import Any

import pytest
from openai import (
    APIStatusError,
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
    OpenAI,
    PermissionDeniedError,
    RateLimitError,
)

from modelyard.testing import openai_client

pytestmark = pytest.mark.parts

HELLO = [{"role": "user", "content": "hello from the other side"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
            "required": ["city", "days"],
        },
    },
}


@pytest.fixture(params=["served", "in process"])
def client_at(served: Any, request: pytest.FixtureRequest) -> Any:
    """Makes a client for an interface, by its path."""

    def make(path: str) -> OpenAI:
        options: Any = {"api_key": served.key, "base_url": served.root + path, "max_retries": 0}
        return OpenAI(**options) if request.param == "served" else openai_client(served.platform, **options)

    return make


@pytest.fixture
def client(client_at: Any) -> Any:
    with client_at("/inference/v1") as client:
        yield client


@pytest.fixture
def training(client_at: Any) -> Any:
    with client_at("/v1") as client:
        yield client


def test_a_completion_has_text_usage_and_the_requested_model(client: Any) -> None:
    answer = client.chat.completions.create(model="echo", messages=HELLO)
    assert answer.object == "chat.completion"
    assert answer.model == "echo"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == "hello from the other side"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_says_the_same_as_the_whole_answer(client: Any) -> None:
    chunks = list(
        client.chat.completions.create(
            model="echo", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "hello from the other side"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens > 0
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1


def test_the_stream_helper_of_the_client_accumulates(client: Any) -> None:
    with client.chat.completions.stream(model="echo", messages=HELLO) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "hello from the other side"


def test_asynchronous_clients_work_side_by_side(served: Any) -> None:
    async def ask(client: Any, word: str) -> str:
        answer = await client.chat.completions.create(model="echo", messages=[{"role": "user", "content": word}])
        return str(answer.choices[0].message.content)

    async def main() -> list[str]:
        async with AsyncOpenAI(api_key=served.key, base_url=f"{served.root}/inference/v1") as client:
            return await asyncio.gather(*(ask(client, f"word-{number}") for number in range(20)))

    assert asyncio.run(main()) == [f"word-{number}" for number in range(20)]


def test_a_completion_and_a_stream_show_reasoning_which_is_sent_back(client: Any) -> None:
    asked: Any = {"model": "echo", "messages": HELLO, "reasoning_effort": "low"}
    answer = client.chat.completions.create(**asked)
    message = answer.choices[0].message
    assert (message.content, message.reasoning_content) == (HELLO[0]["content"], HELLO[0]["content"])
    assert answer.usage.completion_tokens_details.reasoning_tokens * 2 == answer.usage.completion_tokens
    chunks = [chunk.choices[0].delta for chunk in client.chat.completions.create(**asked, stream=True)]
    assert "".join(getattr(delta, "reasoning_content", "") for delta in chunks) == message.reasoning_content
    assert "".join(delta.content or "" for delta in chunks) == message.content
    again = client.chat.completions.create(model="echo", messages=[*HELLO, message, *HELLO])
    assert not hasattr(again.choices[0].message, "reasoning_content")


def test_several_choices_stop_limit_seed_and_logprobs(client: Any) -> None:
    answer = client.chat.completions.create(
        model="tabular-mini", messages=HELLO, n=3, max_tokens=5, seed=7, logprobs=True, top_logprobs=2
    )
    again = client.chat.completions.create(model="tabular-mini", messages=HELLO, n=3, max_tokens=5, seed=7)
    assert [choice.message.content for choice in answer.choices] == [choice.message.content for choice in again.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        assert choice.finish_reason in ("stop", "length")
        assert 1 <= len(choice.logprobs.content) <= 5
        assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
    assert answer.usage.completion_tokens == sum(len(choice.logprobs.content) for choice in answer.choices)


def test_the_text_never_contains_a_stop_string(client: Any) -> None:
    answer = client.chat.completions.create(model="echo", messages=HELLO, stop=["the other"])
    assert answer.choices[0].message.content == "hello from "
    assert answer.choices[0].finish_reason == "stop"


def test_a_forced_tool_call_has_arguments_that_fit_the_schema(client: Any) -> None:
    answer = client.chat.completions.create(
        model="echo", messages=HELLO, tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "weather"}}
    )
    (call,) = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls"
    assert call.function.name == "weather"
    arguments = json.loads(call.function.arguments)
    assert isinstance(arguments["city"], str)
    assert arguments["days"] >= 1


def test_a_streamed_tool_call_is_put_together_by_the_client(client: Any) -> None:
    stream = client.chat.completions.create(
        model="echo", messages=HELLO, tools=[WEATHER], tool_choice="required", stream=True
    )
    pieces = [
        chunk.choices[0].delta.tool_calls for chunk in stream if chunk.choices and chunk.choices[0].delta.tool_calls
    ]
    assert pieces[0][0].id
    assert pieces[0][0].function.name == "weather"
    assert all(piece[0].index == 0 for piece in pieces)
    assert json.loads("".join(piece[0].function.arguments or "" for piece in pieces))["days"] >= 1


def test_an_answer_under_a_schema_is_valid_json(client: Any) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    answer = client.chat.completions.create(
        model="echo",
        messages=HELLO,
        response_format={"type": "json_schema", "json_schema": {"name": "verdict", "schema": schema}},
    )
    assert isinstance(json.loads(answer.choices[0].message.content)["ok"], bool)


def test_what_a_backend_cannot_do_is_refused_by_name(client: Any) -> None:
    with pytest.raises(BadRequestError, match="tool_choice") as refused:
        client.chat.completions.create(model="tabular-mini", messages=HELLO, tools=[WEATHER], tool_choice="required")
    assert refused.value.param == "tool_choice"


def test_every_wrong_field_is_named_in_one_answer(client: Any) -> None:
    with pytest.raises(BadRequestError) as refused:
        client.chat.completions.create(model="echo", messages=HELLO, temperature=9, n=0, extra_body={"stream": "yes"})
    message = refused.value.body["message"]
    assert all(word in message for word in ("temperature", "n", "stream"))


def test_models_are_listed_and_each_listed_one_answers(client: Any) -> None:
    listed = [model.id for model in client.models.list()]
    assert {"echo", "tabular-mini"} <= set(listed)
    assert client.models.retrieve("echo").id == "echo"
    for model in listed:
        assert client.chat.completions.create(model=model, messages=HELLO, max_tokens=2).choices


def test_errors_arrive_as_the_client_s_own_classes(client: Any, served: Any) -> None:
    with pytest.raises(NotFoundError, match="nothing-like-it") as missing:
        client.chat.completions.create(model="nothing-like-it", messages=HELLO)
    assert missing.value.code == "model_not_found"
    with OpenAI(api_key="wrong", base_url=f"{served.root}/inference/v1", max_retries=0) as stranger:
        with pytest.raises(AuthenticationError):
            stranger.chat.completions.create(model="echo", messages=HELLO)


def test_a_project_attributes_usage_and_a_foreign_team_is_refused(served: Any) -> None:
    base = f"{served.root}/inference/v1"
    with OpenAI(api_key=served.key, base_url=base, project="acme/books", max_retries=0) as mine:
        mine.chat.completions.create(model="echo", messages=HELLO)
    totals = served.platform.usage.total(by=("entity", "project"))
    assert [total.requests for total in totals if (total.entity, total.project) == ("acme", "books")] == [1]
    with OpenAI(api_key=served.key, base_url=base, project="rival/books", max_retries=0) as foreign:
        with pytest.raises(PermissionDeniedError):
            foreign.chat.completions.create(model="echo", messages=HELLO)


def test_a_spent_budget_is_402_and_a_rate_limit_429(served: Any) -> None:
    limited = served.platform.keys.create("thrifty", requests_per_minute=1)
    with OpenAI(api_key=limited.secret, base_url=f"{served.root}/inference/v1", max_retries=0) as client:
        client.chat.completions.create(model="echo", messages=HELLO)
        with pytest.raises(RateLimitError) as slow:
            client.chat.completions.create(model="echo", messages=HELLO)
    assert int(slow.value.response.headers["retry-after"]) >= 1
    poor = served.platform.keys.create("poor")
    served.platform.usage.set_budget("0.0000000001", entity="poor")
    with OpenAI(api_key=poor.secret, base_url=f"{served.root}/inference/v1", max_retries=0) as client:
        with pytest.raises(APIStatusError) as spent:
            client.chat.completions.create(model="tabular-mini", messages=HELLO)
    assert spent.value.status_code == 402


def test_the_training_interface_gives_logprobs_and_token_ids_unasked(training: Any, served: Any) -> None:
    host = served.platform
    model = host.models.create("agent", project="proj", base_model="tabular-mini", entity="acme", return_existing=True)
    answer = training.chat.completions.create(model="wandb-artifact:///acme/proj/agent", messages=HELLO, max_tokens=6)
    choice = answer.choices[0]
    assert len(choice.logprobs.content) == len(choice.token_ids) <= 6
    assert choice.prompt_token_ids
    assert model.name == "agent"


# ---- responses ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_responses_are_answered_continued_shown_and_deleted(client: Any) -> None:
    first = client.responses.create(model="echo", input="first", instructions="Be brief.", metadata={"k": "v"})
    assert (first.status, first.output_text, first.metadata) == ("completed", "first", {"k": "v"})
    assert first.usage.total_tokens == first.usage.input_tokens + first.usage.output_tokens
    then = client.responses.create(model="echo", input="then", previous_response_id=first.id)
    assert client.responses.retrieve(then.id).output_text == "then"
    assert [item.content[0].text for item in client.responses.input_items.list(then.id)] == ["then"]
    client.responses.delete(first.id)
    with pytest.raises(NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model="echo", input="x", previous_response_id=then.id)
    assert refused.value.param == "previous_response_id"


@pytest.mark.slow
def test_a_streamed_response_says_what_the_whole_one_says(client: Any) -> None:
    with client.responses.stream(model="echo", input="one two") as stream:
        kinds = [event.type for event in stream]
        whole = stream.get_final_response()
    assert whole.output_text == "one two"
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    plain = list(client.responses.create(model="echo", input="one two", stream=True))
    assert [event.sequence_number for event in plain] == list(range(len(plain)))


@pytest.mark.slow
def test_a_response_has_its_reasoning_as_an_item_whole_streamed_and_in_the_background(client: Any) -> None:
    asked: Any = {"model": "echo", "input": "one two", "reasoning": {"effort": "low"}}
    whole = client.responses.create(**asked)
    item, message = whole.output
    assert (item.type, item.summary, item.content[0].text) == ("reasoning", [], "one two")
    assert (message.type, whole.output_text) == ("message", "one two")
    assert whole.usage.output_tokens_details.reasoning_tokens == 2
    with client.responses.stream(**asked) as stream:
        events = list(stream)
        streamed = stream.get_final_response()
    deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert ("".join(deltas), streamed.output_text) == ("one two", "one two")
    assert [one.type for one in streamed.output] == ["reasoning", "message"]
    later = list(client.responses.create(**asked, background=True, stream=True))
    assert [one.text for one in later if one.type == "response.reasoning_text.done"] == ["one two"]
    assert [one.type for one in later[-1].response.output] == ["reasoning", "message"]
    items = [{"role": "user", "content": "one two"}, *whole.output, {"role": "user", "content": "so?"}]
    assert client.responses.create(model="echo", input=items).output_text == "so?"
    assert client.responses.create(model="echo", input="so?", previous_response_id=whole.id).output_text == "so?"
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(**asked | {"model": "tabular-mini"})
    assert refused.value.param == "reasoning.effort"


def test_a_response_calls_a_function_and_reads_its_output(client: Any) -> None:
    tool = {"type": "function", "strict": False, **WEATHER["function"]}
    called = client.responses.create(model="echo", input="x", tools=[tool], tool_choice="required")
    (call,) = called.output
    assert json.loads(call.arguments).keys() == {"city", "days"}
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    items = [{"role": "user", "content": "x"}, call, output, {"role": "user", "content": "so?"}]
    assert client.responses.create(model="echo", input=items, tools=[tool]).output_text == "so?"
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model="echo", input="x", tools=[{"type": "web_search"}])
    assert refused.value.param == "tools[0].type"


def test_a_queued_response_is_cancelled_or_answered(client: Any) -> None:
    queued = client.responses.create(model="echo", input="later", background=True)
    assert queued.status in ("queued", "in_progress", "completed")
    assert client.responses.cancel(queued.id).status in ("cancelled", "completed")


@pytest.mark.slow
def test_a_response_in_the_background_is_streamed_and_continued_after_an_event(client: Any) -> None:
    events = list(client.responses.create(model="echo", input="one two", background=True, stream=True))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    for event in events:
        rest = client.responses.retrieve(events[0].response.id, stream=True, starting_after=event.sequence_number)
        assert [one.type for one in rest] == [one.type for one in events[events.index(event) + 1 :]]

"""Unmodified frameworks with their defaults, or asked to use responses, against a served platform."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("agents", reason="these clients have a lane of their own: tests/clients/lanes.py responses")
from agents import Agent, ModelSettings, RunConfig, Runner, function_tool, set_tracing_disabled
from agents.models.openai_provider import OpenAIProvider
from haystack.components.generators.chat import OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.utils import Secret
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from openai.types.shared import Reasoning
from pydantic import BaseModel
from pydantic_ai import Agent as TypedAgent
from pydantic_ai.messages import ThinkingPart
from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.providers.openai import OpenAIProvider as TypedProvider

set_tracing_disabled(True)

LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "look something up",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
    },
}


class Number(BaseModel):
    n: int


def text_of(message: Any) -> str:
    content = message.content
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


# ---- agents -------------------------------------------------------------------------------------------------------


@function_tool
def look(q: str) -> str:
    """Look something up."""
    return f"found {q}"


def run_agents(served: Any, tell: Callable[[Callable[..., Any], RunConfig], Awaitable[None]]) -> None:
    """Run agents on one event loop, by a client of its own."""

    async def run() -> None:
        async with AsyncOpenAI(api_key=served.key, base_url=served.root + "/v1", max_retries=0) as client:
            config = RunConfig(model_provider=OpenAIProvider(openai_client=client))
            await tell(partial(Runner.run, run_config=config), config)

    asyncio.run(run())


def test_agents_answer_by_responses_and_continue_them(served: Any) -> None:
    async def tell(run: Callable[..., Any], config: RunConfig) -> None:
        agent = Agent(name="helper", instructions="Be brief.", model="echo")
        done = await run(agent, "hello there")
        assert done.final_output == "hello there"
        again = await run(agent, [*done.to_input_list(), {"role": "user", "content": "and?"}])
        assert again.final_output == "and?"
        then = await run(agent, "so?", previous_response_id=done.last_response_id)
        assert then.final_output == "so?"
        messages = served.platform.compat.responses.messages(then.last_response_id)
        assert [message.text for message in messages] == ["hello there", "hello there", "so?", "so?"]

    run_agents(served, tell)


def test_agents_call_tools_stream_and_read_typed_answers(served: Any) -> None:
    async def tell(run: Callable[..., Any], config: RunConfig) -> None:
        settings = ModelSettings(tool_choice="required")
        caller = Agent(
            name="helper", model="echo", tools=[look], tool_use_behavior="stop_on_first_tool", model_settings=settings
        )
        assert (await run(caller, "look it up")).final_output.startswith("found")
        assert isinstance((await run(Agent(name="typed", model="echo", output_type=Number), "x")).final_output, Number)
        streamed = Runner.run_streamed(Agent(name="plain", model="echo"), "one two", run_config=config)
        kinds = [event.data.type async for event in streamed.stream_events() if event.type == "raw_response_event"]
        assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")

    run_agents(served, tell)


# ---- pydantic-ai --------------------------------------------------------------------------------------------------


def test_agents_keep_reasoning_items_and_send_them_back(served: Any) -> None:
    async def tell(run: Callable[..., Any], config: RunConfig) -> None:
        settings = ModelSettings(reasoning=Reasoning(effort="low"))
        agent = Agent(name="helper", model="echo", model_settings=settings, tools=[look])
        done = await run(agent, "hello there")
        assert [item.type for item in done.new_items] == ["reasoning_item", "message_output_item"]
        assert done.new_items[0].raw_item.content[0].text == done.final_output == "hello there"
        assert done.context_wrapper.usage.output_tokens_details.reasoning_tokens == 2
        again = await run(agent, [*done.to_input_list(), {"role": "user", "content": "and?"}])
        assert again.final_output == "and?"
        streamed = Runner.run_streamed(agent, "one two", run_config=config)
        events = [event.data async for event in streamed.stream_events() if event.type == "raw_response_event"]
        deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
        assert ("".join(deltas), streamed.final_output) == ("one two", "one two")

    run_agents(served, tell)


@pytest.fixture
def typed_model(served: Any) -> OpenAIResponsesModel:
    return OpenAIResponsesModel("echo", provider=TypedProvider(api_key=served.key, base_url=served.root + "/v1"))


def test_a_typed_agent_answers_streams_calls_and_continues(typed_model: OpenAIResponsesModel) -> None:
    agent = TypedAgent(typed_model, instructions="Be brief.")
    first = agent.run_sync("hello there")
    assert first.output == "hello there"
    assert agent.run_sync("and?", message_history=first.all_messages()).output == "and?"
    assert first.usage.total_tokens > 0
    assert isinstance(TypedAgent(typed_model, output_type=Number).run_sync("x").output, Number)

    async def streamed() -> str:
        async with agent.run_stream("one two") as stream:
            return str(await stream.get_output())

    assert asyncio.run(streamed()) == "one two"


def test_a_typed_agent_reads_reasoning_and_sends_it_back(typed_model: OpenAIResponsesModel) -> None:
    agent = TypedAgent(typed_model, model_settings=OpenAIResponsesModelSettings(openai_reasoning_effort="low"))
    first = agent.run_sync("hello there")
    thinking, text = first.all_messages()[-1].parts
    assert isinstance(thinking, ThinkingPart)
    assert (thinking.provider_details or {}).get("raw_content") == ["hello there"]
    assert first.output == text.content == "hello there"  # type: ignore[union-attr]
    assert agent.run_sync("and?", message_history=first.all_messages()).output == "and?"


# ---- haystack -----------------------------------------------------------------------------------------------------


def test_a_generator_answers_and_streams(served: Any) -> None:
    pieces: list[str] = []
    options: Any = {"api_key": Secret.from_token(served.key), "api_base_url": served.root + "/v1", "model": "echo"}
    whole = OpenAIResponsesChatGenerator(**options).run([ChatMessage.from_user("hello there")])
    assert whole["replies"][0].text == "hello there"
    streaming = OpenAIResponsesChatGenerator(**options, streaming_callback=lambda chunk: pieces.append(chunk.content))
    assert streaming.run([ChatMessage.from_user("one two")])["replies"][0].text == "one two"
    assert "".join(pieces) == "one two"
    tools = [{"type": "function", "name": "look", "parameters": LOOK["function"]["parameters"], "strict": False}]  # type: ignore[index]
    called = OpenAIResponsesChatGenerator(**options, tools=tools, generation_kwargs={"tool_choice": "required"})
    assert called.run([ChatMessage.from_user("x")])["replies"][0].tool_calls[0].tool_name == "look"


def test_a_generator_shows_reasoning(served: Any) -> None:
    options: Any = {"api_key": Secret.from_token(served.key), "api_base_url": served.root + "/v1", "model": "echo"}
    options["generation_kwargs"] = {"reasoning": {"effort": "low"}}
    user = ChatMessage.from_user("hello there")
    pieces: list[Any] = []
    for generator in (
        OpenAIResponsesChatGenerator(**options),
        OpenAIResponsesChatGenerator(**options, streaming_callback=pieces.append),
    ):
        (reply,) = generator.run([user])["replies"]
        assert reply.text == "hello there"
        assert reply.reasoning.reasoning_text == "hello there"
        assert generator.run([user, reply, ChatMessage.from_user("and?")])["replies"][0].text == "and?"


# ---- LangChain ----------------------------------------------------------------------------------------------------


@pytest.fixture
def chain(served: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model="echo", api_key=served.key, base_url=served.root + "/v1", use_responses_api=True, max_retries=0
    )


def test_a_chain_answers_streams_and_counts(chain: ChatOpenAI) -> None:
    answer = chain.invoke("hello there")
    assert text_of(answer) == "hello there"
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["total_tokens"] > 0
    assert "".join(text_of(chunk) for chunk in chain.stream("one two")) == "one two"

    async def asynchronously() -> str:
        return text_of(await chain.ainvoke("again"))

    assert asyncio.run(asynchronously()) == "again"


def test_a_chain_keeps_reasoning_and_sends_it_back(chain: ChatOpenAI) -> None:
    reasoning = chain.bind(reasoning={"effort": "low"})
    answer = reasoning.invoke("hello there")
    blocks = [block["type"] for block in answer.content]  # type: ignore[index]
    assert (blocks, text_of(answer)) == (["reasoning", "text"], "hello there")
    assert answer.usage_metadata["output_token_details"]["reasoning"] == 2  # type: ignore[attr-defined]
    whole = None
    for chunk in reasoning.stream("one two"):
        whole = chunk if whole is None else whole + chunk
    assert text_of(whole) == "one two"
    assert text_of(chain.invoke([HumanMessage("hello there"), answer, HumanMessage("and?")])) == "and?"


def test_a_chain_calls_tools_and_sends_their_results_back(chain: ChatOpenAI) -> None:
    called = chain.bind_tools([LOOK], tool_choice="look").invoke("hi")
    (call,) = called.tool_calls
    assert call["name"] == "look"
    result = ToolMessage("found", tool_call_id=call["id"])
    assert text_of(chain.invoke([HumanMessage("hi"), called, result, HumanMessage("so?")])) == "so?"
    streamed = None
    for chunk in chain.bind_tools([LOOK], tool_choice="any").stream("hi"):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed is not None
    assert [one["name"] for one in streamed.tool_calls] == ["look"]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_a_chain_reads_structured_answers(chain: ChatOpenAI, method: Any) -> None:
    assert isinstance(chain.with_structured_output(Number, method=method).invoke("x"), Number)


def test_a_chain_continues_by_the_id_of_a_response(chain: ChatOpenAI) -> None:
    first = chain.invoke("first")
    assert first.response_metadata["id"].startswith("resp_")
    then = chain.invoke("then", previous_response_id=first.response_metadata["id"])
    assert text_of(then) == "then"
    assert then.response_metadata["status"] == "completed"

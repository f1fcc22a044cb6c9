"""LangChain's own standard suite for chat models, run with its client of responses against a scripted model.

What the suite asks of a model (which tool it calls, with what) a script answers; what it asks of the interface is ours.
"""

import json
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from modelyard.backends.echo import EchoBackend, stream_message
from modelyard.domain.completion import CompletionRequest, Message, Role, ToolCall, ToolMode
from modelyard.protocols import ServedModel

pytest.importorskip("langchain_tests", reason="it has a lane of its own: tests/clients/lanes.py responses")

from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

from modelyard import open_platform
from modelyard.asgi import asgi_app
from modelyard.http.interface import Interface
from modelyard.parts.doubles.clients.server import asgi_server

# What the client itself warns of.
pytestmark = pytest.mark.filterwarnings("ignore")

ARGUMENTS: dict[str, dict[str, Any]] = {
    "magic_function": {"input": 3},
    "my_adder_tool": {"a": 1, "b": 2},
    "magic_function_no_args": {},
    "get_weather": {"location": "SF"},
    "greeting_generator": {"answer_style": "pirate"},
}
UNICODE = ("你好啊集团", "こんにちは株式会社")
"""Names of customers that the suite asks for."""


class Clever(EchoBackend):
    """Calls the tool that the suite asks for, and says what tools have found; else an echo."""

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Any]:
        call, last = _called(request), request.messages[-1] if request.messages else None
        if last is not None and last.role is Role.TOOL:
            return stream_message(Message(Role.ASSISTANT, f"It is {last.text}."), request)
        if call is not None and request.tool_choice.mode is not ToolMode.NONE:
            return stream_message(Message(Role.ASSISTANT, tool_calls=(call,)), request)
        return super().stream(request, model)


def _called(request: CompletionRequest) -> ToolCall | None:
    text = request.messages[-1].text if request.messages else ""
    for tool in request.tools:
        if request.tool_choice.name not in (None, tool.name):
            continue
        if tool.name in ARGUMENTS:
            return ToolCall("call_1", tool.name, json.dumps(ARGUMENTS[tool.name]))
        named = next((name for name in UNICODE if name in text), None)
        if named is not None:
            properties = tool.parameters["properties"]
            return ToolCall("call_1", tool.name, json.dumps(dict.fromkeys(properties, named)))
    return None


@pytest.fixture(scope="module", autouse=True)
def scripted() -> Iterator[Any]:
    """A served platform whose model is scripted."""
    with open_platform(backend=Clever()) as platform:
        with asgi_server(asgi_app(platform, list(Interface)), log_level="warning") as server:
            TestTheSuite.where = {"base_url": f"{server.url}/v1", "api_key": platform.keys.create("acme").secret}
            yield


class TestTheSuite(ChatModelIntegrationTests):
    where: ClassVar[dict[str, str]] = {}

    @property
    def chat_model_class(self) -> Any:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "echo", "use_responses_api": True, "max_retries": 0, **self.where}

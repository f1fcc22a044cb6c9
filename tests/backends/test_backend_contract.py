"""Every backend of ours keeps the contract."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from modelyard.backends.echo import EchoBackend
from modelyard.backends.router import Router
from modelyard.backends.scripted import Answer, ScriptedBackend, call, on, pause, say, token
from modelyard.backends.structure import forced_call, structured_text
from modelyard.backends.tabular import TabularBackend
from modelyard.domain.completion import CompletionRequest, Delta, Message, Role, ToolMode
from modelyard.protocols import AsyncBackend, Backend, Capabilities, ServedModel
from modelyard.testing.backend import BackendContract


class TestEcho(BackendContract):
    @pytest.fixture
    def backend(self) -> Backend:
        return EchoBackend(("echo", "parrot"))


class TestTabular(BackendContract):
    @pytest.fixture
    def backend(self) -> Backend:
        return TabularBackend(("tabular-mini", "tabular-other"))


def script(request: CompletionRequest) -> Answer:
    call = forced_call(request)
    if call is not None:
        return Message(Role.ASSISTANT, tool_calls=(call,))
    return structured_text(request) or f"{request.sampling.seed} times: hello from the script, line one\nline two 🌊"


class TestScripted(BackendContract):
    @pytest.fixture
    def backend(self) -> Backend:
        return ScriptedBackend(script)


class TestRouter(BackendContract):
    @pytest.fixture
    def backend(self) -> Backend:
        return Router([Router([EchoBackend()]), TabularBackend(), ScriptedBackend(script)])

    @pytest.fixture(params=["echo", "tabular-mini", "scripted"])
    def model(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)


class Asynchronous:
    """Any of ours, made asynchronous only."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    def entries(self) -> Any:
        return self.inner.entries()

    def capabilities(self, model: str) -> Capabilities:
        return self.inner.capabilities(model)

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int | None:
        return self.inner.prompt_tokens(request, model)

    async def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Delta]:
        for delta in self.inner.stream(request, model):
            await asyncio.sleep(0)
            yield delta


class TestAsynchronous(BackendContract):
    @pytest.fixture
    def backend(self) -> AsyncBackend:
        return Asynchronous(EchoBackend())


def is_forced(request: CompletionRequest) -> bool:
    return request.tool_choice.mode is ToolMode.REQUIRED


class TestScriptOfRules(BackendContract):
    @pytest.fixture
    def backend(self) -> Backend:
        found = {"found": True, "count": 2}
        return ScriptedBackend(
            [
                on(when=is_forced).answer(call("look_up", **found)),
                on(format="json_schema").answer(found),
                on(format="json_object").answer({}),
                on("the sea").answer(
                    say(token("All", -0.5, {"None": -1.5}), " of them:", pause(1), " depth,\n", "tides 🌊")
                ),
            ]
        )

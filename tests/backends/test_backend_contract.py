"""Every backend of ours keeps the contract."""

import pytest

from backends import OnLoops
from modelyard.backends.echo import EchoBackend
from modelyard.backends.json_schema.instances import forced_call, structured_text
from modelyard.backends.router import Router
from modelyard.domain.completion import CompletionRequest, Message, Role, ToolMode
from modelyard.engines.tabular.backend import TabularBackend
from modelyard.parts.scripted.backend import Answer, ScriptedBackend, call, on, pause, say, token
from modelyard.protocols import AsyncBackend, Backend
from modelyard.testing import BackendContract


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


class TestAsynchronous(BackendContract):
    @pytest.fixture
    def backend(self) -> AsyncBackend:
        return OnLoops(EchoBackend())


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
                on().answer(say(token("All", -0.5, {"None": -1.5}), " of them:", pause(1), " depth,\n", "tides 🌊")),
            ]
        )

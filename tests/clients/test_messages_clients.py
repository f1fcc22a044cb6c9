"""Unmodified clients of the messages format: anthropic, and the AI SDK's provider of it."""

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("anthropic", reason="it has a lane of its own: tests/clients/lanes.py embeddings")

from anthropic import (
    Anthropic,
    APITimeoutError,
    AsyncAnthropic,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
    beta_tool,
)
from anthropic._exceptions import OverloadedError

from modelyard import ScriptedBackend, open_platform
from modelyard.asgi import asgi_app
from modelyard.backends import call, pause, say
from modelyard.errors import Overloaded, RateLimited
from modelyard.parts.doubles.clients.server import asgi_server
from modelyard.testing import ManualClock, intercept
from modelyard.testing import served as serve
from node_packages import node_modules

pytestmark = pytest.mark.filterwarnings("ignore")

HERE = Path(__file__).parent / "embeddings"
HELLO: Any = [{"role": "user", "content": "hello there friend"}]
TOOL: Any = {
    "name": "look",
    "description": "looks",
    "input_schema": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
}


@pytest.fixture
def client(served: Any) -> Any:
    with Anthropic(base_url=served.root, api_key=served.key, max_retries=0) as client:
        yield client


def test_a_message_and_its_usage(client: Any) -> None:
    answer = client.messages.create(model="echo", max_tokens=20, messages=HELLO, system="be kind")
    assert (answer.content[0].text, answer.stop_reason) == ("hello there friend", "end_turn")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (5, 3)
    assert client.messages.count_tokens(model="echo", messages=HELLO).input_tokens == 3


@pytest.mark.parametrize("kind", [Anthropic, AsyncAnthropic])
def test_retries_and_time_outs_pass_on_the_clock(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client of the application, which is told of an overload as by its own vendor."""

    def refuse(seconds: float) -> None:
        raise AssertionError(f"slept for {seconds} s")

    async def aask(client: Any) -> Any:
        async with client:
            return await client.messages.create(model="m", max_tokens=20, messages=HELLO)

    def ask(**options: Any) -> str:
        client = kind(api_key="sk-mine", **options)
        asked: Any = {"model": "m", "max_tokens": 20, "messages": HELLO}
        whole = asyncio.run(aask(client)) if kind is AsyncAnthropic else client.messages.create(**asked)
        return str(whole.content[0].text)

    monkeypatch.setattr("time.sleep", refuse)
    monkeypatch.setattr("anyio.sleep", refuse)
    clock = ManualClock()
    answers: Any = [Overloaded("busy", retry_after=7), RateLimited("slow down", retry_after=7), "done"]
    script = ScriptedBackend([*answers, Overloaded("busy"), say(pause(300), "late")], ["m"], clock)
    with open_platform(clock=clock, backend=script) as platform, intercept(platform, ["api.anthropic.com"]):
        assert (ask(), clock.monotonic()) == ("done", 14)
        with pytest.raises(OverloadedError):
            ask(max_retries=0)
        with pytest.raises(APITimeoutError):
            ask(max_retries=0, timeout=20)
        assert clock.monotonic() == 34


def test_a_stream(client: Any) -> None:
    with client.messages.stream(model="echo", max_tokens=20, messages=HELLO) as stream:
        assert [*stream.text_stream] == ["hello", " there", " friend"]
        final = stream.get_final_message()
    assert (final.content[0].text, final.stop_reason, final.usage.output_tokens) == (
        "hello there friend",
        "end_turn",
        3,
    )
    assert final.usage.input_tokens == 3
    raw = [event.type for event in client.messages.create(model="echo", max_tokens=20, messages=HELLO, stream=True)]
    assert (raw[0], raw[-2:]) == ("message_start", ["message_delta", "message_stop"])


def test_thinking_and_a_schema(client: Any) -> None:
    asked: Any = {"model": "echo", "max_tokens": 20, "output_config": {"effort": "low"}}
    whole = client.messages.create(messages=HELLO, thinking={"type": "adaptive"}, **asked)
    assert [block.type for block in whole.content] == ["thinking", "text"]
    assert whole.content[0].thinking == whole.content[1].text == "hello there friend"
    with client.messages.stream(messages=HELLO, **asked) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()
    assert {"thinking", "text"} <= kinds
    assert final.content[0].thinking == "hello there friend"
    turns = [*HELLO, {"role": "assistant", "content": whole.content}, *HELLO]
    assert client.messages.create(model="echo", max_tokens=20, messages=turns).content[0].text == "hello there friend"
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    form: Any = {"format": {"type": "json_schema", "schema": schema}}
    answer = client.messages.create(model="echo", max_tokens=20, messages=HELLO, output_config=form)
    assert json.loads(answer.content[0].text) == {"n": 0}


def test_a_tool_is_called_and_answered(client: Any) -> None:
    options = {"model": "echo", "max_tokens": 50, "tools": [TOOL]}
    first = client.messages.create(messages=HELLO, tool_choice={"type": "tool", "name": "look"}, **options)
    (used,) = first.content
    assert (used.type, used.name, used.input, first.stop_reason) == ("tool_use", "look", {"x": 0}, "tool_use")
    with client.messages.stream(messages=HELLO, tool_choice={"type": "any"}, **options) as stream:
        assert stream.get_final_message().content[0].input == {"x": 0}
    result = {"type": "tool_result", "tool_use_id": used.id, "content": "found it"}
    turns = [*HELLO, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(messages=turns, **options).content[0].text == "hello there friend"


def test_the_tool_runner_goes_on_without_threads(served: Any) -> None:
    """It asks for a thread, and sends the whole conversation when it is told that there is none."""
    called: list[int] = []

    @beta_tool
    def look(x: int) -> str:
        """Look something up."""
        called.append(x)
        return f"found {x}"

    answers = [call("look", x=7), say("It is found.")]
    with open_platform(backend=ScriptedBackend(answers, models=("scripted",))) as platform:
        key = platform.keys.create("acme").secret
        with asgi_server(asgi_app(platform), log_level="warning") as server:
            asked: Any = {"model": "scripted", "max_tokens": 50, "messages": HELLO, "tools": [look]}
            with Anthropic(base_url=server.url, api_key=key, max_retries=0) as client:
                message = client.beta.messages.tool_runner(**asked).until_done()
    assert (called, message.content[0].text) == ([7], "It is found.")


def test_so_does_that_of_the_javascript_client(tmp_path: Path) -> None:
    program = shutil.copy(HERE.with_name("messages_js") / "runner.mjs", tmp_path)
    (tmp_path / "node_modules").symlink_to(node_modules(HERE.with_name("messages_js") / "package.json"))
    answers = [call("look", x=7), say("It is found."), call("look", x=8), say("So is this.")]
    with open_platform(backend=ScriptedBackend(answers, models=("scripted",))) as platform:
        key = platform.keys.create("acme").secret
        with asgi_server(asgi_app(platform), log_level="warning") as server:
            command = ["node", program, server.url, key]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout) == {"called": [7, 8], "texts": ["It is found.", "So is this."]}


def test_the_javascript_client_waits_before_a_retry_on_the_clock_of_the_platform(tmp_path: Path) -> None:
    program = shutil.copy(HERE.with_name("messages_js") / "retries.mjs", tmp_path)
    (tmp_path / "node_modules").symlink_to(node_modules(HERE.with_name("messages_js") / "package.json"))
    clock = ManualClock()
    answers: Any = [RateLimited("slow", retry_after=20), Overloaded("busy", retry_after=30), "at last"]
    with open_platform(backend=ScriptedBackend(answers, ["m"]), clock=clock) as platform, serve(platform) as url:
        command = ["node", program, url, platform.keys.create().secret]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (json.loads(done.stdout), clock.monotonic()) == ("at last", 50)


def test_hints_of_a_cache_and_thinking_with_a_budget(client: Any) -> None:
    asked: Any = {"model": "echo", "max_tokens": 20, "messages": HELLO}
    cached = client.messages.create(**asked, extra_body={"cache_control": {"type": "ephemeral"}})
    assert [block.type for block in cached.content] == ["text"]
    thought = client.messages.create(**asked, thinking={"type": "enabled", "budget_tokens": 1024})
    assert [block.type for block in thought.content] == ["thinking", "text"]
    with pytest.raises(BadRequestError, match="did you mean 'type'"):
        client.messages.create(**asked, extra_body={"cache_control": {"type": "ephemeral", "typ": 1}})


def test_on_an_event_loop_with_a_bearer_token(served: Any) -> None:
    async def main() -> list[str]:
        async with AsyncAnthropic(base_url=served.root, auth_token=served.key) as client:
            made = await asyncio.gather(
                *(client.messages.create(model="echo", max_tokens=9, messages=HELLO) for _ in range(4))
            )
            return [one.content[0].text for one in made]

    assert asyncio.run(main()) == ["hello there friend"] * 4


def test_errors_are_of_its_classes(served: Any, client: Any) -> None:
    with pytest.raises(NotFoundError):
        client.messages.create(model="nothing", max_tokens=9, messages=HELLO)
    search: Any = {"type": "web_search_20250305", "name": "web_search"}
    with pytest.raises(BadRequestError, match=r"must be 'custom'"):
        client.messages.create(model="echo", max_tokens=9, messages=HELLO, tools=[search])
    with Anthropic(base_url=served.root, api_key="wrong") as other, pytest.raises(AuthenticationError):
        other.messages.create(model="echo", max_tokens=9, messages=HELLO)


def test_the_ai_sdk(served: Any, tmp_path: Path) -> None:
    shutil.copy(HERE / "messages.mjs", tmp_path)
    (tmp_path / "node_modules").symlink_to(node_modules(HERE / "package.json"))
    command = ["node", "messages.mjs", served.root, served.key]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "text": "hello there friend",
        "reason": "stop",
        "tokens": [3, 3],
        "streamed": "hello there friend",
        "calls": [["look", {"x": 0}]],
        "status": 404,
    }

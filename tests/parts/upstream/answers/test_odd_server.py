"""Through a platform, the answers of every dialect and of every fault have their text, their calls and their bill."""

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from modelyard import Pricing, open_platform
from modelyard.backends import Timeouts, UpstreamBackend, discover, offer
from modelyard.domain.completion import FinishReason, ToolCall, Usage
from modelyard.errors import InvalidInput
from modelyard.parts.upstream import exchange
from modelyard.parts.upstream.odd_server.dialects import DIALECTS
from modelyard.parts.upstream.odd_server.faults import UNCOUNTED
from modelyard.testing import OddAnswer, OddDialect, OddFault, OddServer, odd_server

PRICE = Pricing(prompt=Decimal("0.001"), completion=Decimal("0.01"), input_cache_read=Decimal("0.0001"))
CALLS = (ToolCall("a", "look_up", '{"place": "Paris 🙂"}'), ToolCall("b", "pay", '{"sum": 123456789012345678901234}'))
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("look_up", "pay")
]
ANSWER = OddAnswer("so be it 🙂", "hm, let me see", CALLS, Usage(900, 90, 80, reasoning_tokens=40))


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is held open after a complete answer is given up sooner."""
    monkeypatch.setattr(exchange, "_LAST_READ", 0.02)


@pytest.fixture(params=[True, False], ids=["streamed", "whole"])
def streamed(request: pytest.FixtureRequest) -> Any:
    return request.param


def asked(server: OddServer, streamed: bool) -> tuple[Any, Any]:
    """The answer of a server as a completion, and what was booked for it."""
    model = offer("odd", context_length=100_000, pricing=PRICE)
    timeouts = Timeouts(retries=0, first_token=60, between_tokens=60)
    with (
        UpstreamBackend(server.url, models=[model], timeouts=timeouts) as backend,
        open_platform(backend=backend) as yard,
    ):
        request: dict[str, Any] = {"model": "odd", "messages": "word " * 40, "tools": TOOLS}
        if streamed:
            with yard.chat.stream(**request) as deltas:
                for _ in deltas:
                    pass
                completion = deltas.completion
        else:
            completion = yard.chat.complete(**request)
        (booked,) = yard.usage.list()
    return completion, booked


def check(server: OddServer, streamed: bool) -> None:
    completion, booked = asked(server, streamed)
    (choice,) = completion.choices
    assert (choice.message.text, choice.message.reasoning) == (ANSWER.text, ANSWER.reasoning)
    assert [(call.name, json.loads(call.arguments)) for call in choice.message.tool_calls] == [
        (call.name, json.loads(call.arguments)) for call in CALLS
    ]
    assert choice.finish_reason is FinishReason.TOOL_CALLS
    if server.faults & UNCOUNTED:
        assert booked.estimated
        assert booked.cost > 0
        assert booked.prompt_tokens > 40
        assert booked.completion_tokens > 10
        return
    cached = ANSWER.usage.cached_tokens if DIALECTS[server.dialect].tells_cached else 0
    assert (booked.prompt_tokens, booked.completion_tokens, booked.cached_tokens) == (900, 90, cached)
    assert not booked.estimated
    assert booked.cost == (900 - cached) * PRICE.prompt + cached * PRICE.input_cache_read + 90 * PRICE.completion


@pytest.mark.parametrize("dialect", OddDialect)
def test_a_dialect(dialect: OddDialect, streamed: bool) -> None:
    with odd_server(dialect, answer=ANSWER) as server:
        check(server, streamed)


@pytest.mark.parametrize("fault", OddFault)
def test_a_fault(fault: OddFault, streamed: bool) -> None:
    with odd_server("openai", [fault], ANSWER, sent_at_once=700) as server:
        check(server, streamed)


def test_many_faults_at_once() -> None:
    faults = [
        "heartbeats",
        "held_open",
        "odd_chunks",
        "junk_members",
        "calls_with_one_index",
        "cr_lf",
        "counts_as_text",
    ]
    with odd_server("deepseek", faults, ANSWER, sent_at_once=50) as server:
        check(server, True)


def test_the_docs_list_each_dialect_and_fault_that_is_tested_here() -> None:
    page = Path(__file__).parents[4] / "docs/reference/upstream-servers.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [line.split("`")[1] for line in lines if line.startswith("| `")] == [*OddDialect, *OddFault]


# ---- the server itself


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60) as client:
        yield client


def test_it_answers_whole_or_as_a_stream_and_keeps_the_requests(client: httpx.Client) -> None:
    with odd_server(answer=OddAnswer("bye")) as server:
        whole = client.post(server.url + "/chat/completions", json={"model": "x"})
        assert whole.json()["choices"][0]["message"]["content"] == "bye"
        stream = client.post(server.url + "/chat/completions", json={"model": "x", "stream": True})
        assert stream.text.endswith("data: [DONE]\n\n")
        server.dialect, server.faults, server.answer = (
            OddDialect.TOGETHER,
            frozenset({OddFault.NO_DONE}),
            OddAnswer("or not"),
        )
        again = client.post(server.url + "/chat/completions", json={"model": "y", "stream": True})
        assert "[DONE]" not in again.text
        assert '"finish_reason":"eos"' in again.text
        assert [request["model"] for request in server.requests] == ["x", "x", "y"]


def test_it_lists_a_model() -> None:
    with odd_server() as server:
        assert [model.entry.id for model in discover(server.url, pricing={"odd": PRICE}, context_length=100)] == ["odd"]


@pytest.mark.parametrize(("given", "says"), [({"dialect": "klingon"}, "dialect: "), ({"faults": ["late"]}, "faults: ")])
def test_what_is_not_known_is_refused_with_what_is(given: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=f"{says}must be one of .*, not "):
        with odd_server(**given):
            pass


def test_an_answer_ends_with_its_calls_unless_it_is_said_otherwise() -> None:
    assert OddAnswer().finish is FinishReason.STOP
    assert OddAnswer(calls=CALLS).finish is FinishReason.TOOL_CALLS
    assert OddAnswer(calls=CALLS, finish=FinishReason.LENGTH).finish is FinishReason.LENGTH

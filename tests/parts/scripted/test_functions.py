"""Functions of a script: asynchronous ones, slow ones, and what a script says that its models cost and read."""

import asyncio
import threading
from decimal import Decimal
from typing import Any

import httpx2
import openai
import pytest

from modelyard import Pricing, ScriptedBackend, open_platform
from modelyard.backends import on, say
from modelyard.domain.completion import Usage
from modelyard.errors import BackendError, NoAnswerPrepared, Overloaded, UnsupportedParameter
from modelyard.testing import ManualClock, async_openai_client, intercept, openai_client

ASK: Any = [{"role": "user", "content": "hello"}]


async def shout(request: Any) -> str:
    await asyncio.sleep(0)
    return str(request.messages[-1].text.upper())


async def fail(request: Any) -> str:
    raise Overloaded("busy")


async def misspell(request: Any) -> str:
    return str(request.mesages)


async def report(request: Any) -> Any:
    return say("Hi", usage=Usage(prompt_tokens=900, completion_tokens=5))


async def later(request: Any) -> Any:
    return shout


def complete(platform: Any, **options: Any) -> Any:
    return platform.chat.complete(model="scripted", messages="hello", **options)


def acomplete(platform: Any, **options: Any) -> Any:
    return asyncio.run(platform.chat.acomplete(model="scripted", messages="hello", **options))


def within_a_loop(platform: Any, **options: Any) -> Any:
    async def ask() -> Any:
        return complete(platform, **options)

    return asyncio.run(ask())


each_way = pytest.mark.parametrize("ask", [complete, acomplete, within_a_loop])


@each_way
@pytest.mark.parametrize("script", [shout, [shout], [on("hello").answer(shout)], later, lambda request: shout(request)])
def test_a_function_may_be_asynchronous(ask: Any, script: Any) -> None:
    with open_platform(backend=ScriptedBackend(script)) as platform:
        assert ask(platform).text == "HELLO"


@each_way
def test_what_an_asynchronous_function_raises_is_the_answer_or_its_fault(ask: Any) -> None:
    backend = ScriptedBackend([fail, misspell])
    with open_platform(backend=backend) as platform:
        with pytest.raises(Overloaded):
            ask(platform)
        with pytest.raises(NoAnswerPrepared, match="the script's function failed: AttributeError"):
            ask(platform)
    assert backend.raised == ["busy"]
    assert len(backend.missed) == 1


@each_way
def test_the_usage_that_an_asynchronous_function_reports_is_booked(ask: Any) -> None:
    with open_platform(backend=ScriptedBackend(report)) as platform:
        ask(platform)
        assert [entry.prompt_tokens for entry in platform.usage.list()] == [900]


def test_asynchronous_functions_wait_for_each_other_on_one_loop() -> None:
    both, reached = asyncio.Event(), list[int]()

    async def meet(request: Any) -> str:
        reached.append(1)
        if len(reached) == 2:
            both.set()
        await both.wait()
        return "met"

    async def ask(platform: Any) -> list[str]:
        asked = [platform.chat.acomplete(model="scripted", messages="hello") for _ in range(2)]
        return [answer.text for answer in await asyncio.gather(*asked)]

    with open_platform(backend=ScriptedBackend(meet)) as platform:
        assert asyncio.run(ask(platform)) == ["met", "met"]


def test_a_slow_function_times_a_client_out_at_its_own_limit() -> None:
    clock = ManualClock()

    def slow(request: Any) -> str:
        clock.sleep(300)
        return "late"

    async def aslow(request: Any) -> str:
        await clock.asleep(300)
        return "late"

    for script in (slow, aslow):
        began = clock.monotonic()
        with open_platform(backend=ScriptedBackend(script), clock=clock) as platform:
            with openai_client(platform, timeout=20, max_retries=0) as client, pytest.raises(openai.APITimeoutError):
                client.chat.completions.create(model="scripted", messages=ASK)
            assert clock.monotonic() == began + 20
            asked = async_openai_client(platform, timeout=20, max_retries=0)
            with pytest.raises(openai.APITimeoutError):
                asyncio.run(asked.chat.completions.create(model="scripted", messages=ASK))
            assert clock.monotonic() == began + 40
            address, body = "https://api.openai.com/v1/chat/completions", {"model": "scripted", "messages": ASK}
            with intercept(platform), httpx2.Client(timeout=20) as plain, pytest.raises(httpx2.ReadTimeout):
                plain.post(address, json=body, headers={"authorization": "Bearer sk-any"})


def test_a_function_is_called_in_the_thread_that_asks() -> None:
    threads = list[threading.Thread]()
    with open_platform(backend=ScriptedBackend(lambda request: threads.append(threading.current_thread()) or "x")) as p:
        complete(p)
        acomplete(p)
    assert threads == [threading.current_thread()] * 2


def test_a_script_has_prices() -> None:
    prices = Pricing(prompt=Decimal("0.5"), completion=Decimal(2))
    with open_platform(backend=ScriptedBackend(["one two three"], ["m"], pricing=prices)) as platform:
        platform.chat.complete(model="m", messages="hello")
        assert [entry.cost for entry in platform.usage.list()] == [Decimal("6.5")]
        assert platform.catalogue.get("m").pricing == prices


IMAGE: Any = [
    {"type": "text", "text": "What is this?"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
]


def test_a_script_reads_the_modalities_that_it_names() -> None:
    question: Any = [{"role": "user", "content": IMAGE}]
    with open_platform(backend=ScriptedBackend(["ok"])) as platform, pytest.raises(UnsupportedParameter):
        platform.chat.complete(model="scripted", messages=question)
    backend = ScriptedBackend([on("What is this?").answer("A cat.")], input_modalities=("text", "image"))
    with open_platform(backend=backend) as platform, openai_client(platform) as client:
        answer = client.chat.completions.create(model="scripted", messages=question)
        assert answer.choices[0].message.content == "A cat."
        assert [part.type for part in backend.requests[0].messages[0].content or ()] == ["text", "image_url"]  # type: ignore[union-attr]


def test_what_was_raised_and_missed_is_kept() -> None:
    backend = ScriptedBackend([on("a").answer(BackendError("cut"), say("x", BackendError("off")))])
    with open_platform(backend=backend) as platform:
        for _ in range(2):
            with pytest.raises(BackendError):
                "".join(delta.text for delta in platform.chat.stream(model="scripted", messages="a"))
        with pytest.raises(NoAnswerPrepared):
            platform.chat.complete(model="scripted", messages="b")
    assert backend.raised == ["cut", "off"]
    assert ["no rule of the script answers" in words for words in backend.missed] == [True]

"""Time in tests is one clock: a client's time-outs, its retries, and the application's own sleeps."""

import asyncio
import contextlib
import http.client
import json
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import sleep
from typing import Any

import httpx
import httpx2
import openai
import pytest
import requests
import urllib3
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from example_counts import examples
from modelyard import ScriptedBackend, open_platform
from modelyard.backends import pause, say
from modelyard.errors import Overloaded, RateLimited
from modelyard.parts.doubles.own_sleeps import sleeping_on
from modelyard.testing import Faults, ManualClock, Slow, Timeout, intercept, openai_client

URL = "https://api.openai.com/v1/chat/completions"
KEY = {"Authorization": "Bearer sk-of-another-service"}
HELLO: Any = [{"role": "user", "content": "one two three"}]
BODY: Any = {"model": "m", "messages": HELLO}

Ask = Callable[[bool, float], str]


def by_httpx(library: Any) -> Ask:
    def ask(stream: bool, limit: float) -> str:
        answer = library.post(URL, json={**BODY, "stream": stream}, headers=KEY, timeout=limit)
        return str(answer.text)

    return ask


def by_async_httpx(library: Any) -> Ask:
    async def ask(stream: bool, limit: float) -> str:
        async with library.AsyncClient(timeout=limit) as client:
            return str((await client.post(URL, json={**BODY, "stream": stream}, headers=KEY)).text)

    return lambda *asked: asyncio.run(ask(*asked))


def by_requests(stream: bool, limit: float) -> str:
    return requests.post(URL, json={**BODY, "stream": stream}, headers=KEY, timeout=limit).text


def by_urllib3(stream: bool, limit: float) -> str:
    body = {**BODY, "stream": stream}
    return urllib3.request("POST", URL, json=body, headers=KEY, timeout=limit, retries=False).data.decode()


def by_urllib(stream: bool, limit: float) -> str:
    sent = {**KEY, "Content-Type": "application/json"}
    asked = urllib.request.Request(URL, json.dumps({**BODY, "stream": stream}).encode(), sent, method="POST")
    with urllib.request.urlopen(asked, timeout=limit) as answer:
        return str(answer.read().decode())


def by_http_client(stream: bool, limit: float) -> str:
    with contextlib.closing(http.client.HTTPSConnection("api.openai.com", timeout=limit)) as connection:
        sent = {**KEY, "Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps({**BODY, "stream": stream}), sent)
        return connection.getresponse().read().decode()


def by_openai(stream: bool, limit: float) -> str:
    with openai.OpenAI(api_key="sk-mine", max_retries=0, timeout=limit) as client:
        asked: Any = client.chat.completions.create(model="m", messages=HELLO, stream=stream)
        return "".join(chunk.to_json() for chunk in asked) if stream else asked.to_json()


def by_async_openai(stream: bool, limit: float) -> str:
    async def ask() -> str:
        async with openai.AsyncOpenAI(api_key="sk-mine", max_retries=0, timeout=limit) as client:
            asked: Any = await client.chat.completions.create(model="m", messages=HELLO, stream=stream)
            return "".join([chunk.to_json() async for chunk in asked]) if stream else asked.to_json()

    return asyncio.run(ask())


WAYS: dict[str, Ask] = {
    "httpx": by_httpx(httpx),
    "httpx2": by_httpx(httpx2),
    "async httpx": by_async_httpx(httpx),
    "async httpx2": by_async_httpx(httpx2),
    "requests": by_requests,
    "urllib3": by_urllib3,
    "urllib": by_urllib,
    "http.client": by_http_client,
    "openai": by_openai,
    "async openai": by_async_openai,
}


@pytest.mark.parametrize("way", WAYS)
@given(slow=st.integers(1, 100), limit=st.integers(1, 100), stream=st.booleans(), first=st.booleans())
@examples(6)
def test_a_client_gives_up_at_its_own_limit_on_the_clock(
    way: str, slow: int, limit: int, stream: bool, first: bool
) -> None:
    """`first` is whether the model is slow before its first word."""
    clock = ManualClock()
    words = (pause(slow), "one", "two") if first else ("one", pause(slow), "two")
    script = ScriptedBackend([say(*words), "next"], ["m"], clock)
    with open_platform(clock=clock, backend=script) as platform, intercept(platform):
        try:
            read = WAYS[way](stream, limit)
        except Exception as error:
            seen = [error, error.__cause__, error.__context__, *error.args]
            assert any("time" in f"{type(one).__name__} {one}".lower() for one in seen), error
            assert (slow > limit, clock.monotonic()) == (True, limit)
        else:
            assert (slow <= limit, clock.monotonic()) == (True, slow)
            assert "two" in read
        assert "next" in WAYS[way](stream, limit)
        booked = [entry.prompt_tokens for entry in platform.usage.list()]
        assert booked in ([3, 3], [3] if first and slow > limit else [])  # nothing was made for the first


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_of_aiohttp_gives_up_at_its_limit_when_the_test_moves_the_clock(stream: bool, first: bool) -> None:
    """Its answer comes in a task of its own, so none is alone and moves the clock by itself."""
    aiohttp = pytest.importorskip("aiohttp")
    clock = ManualClock()
    words = (pause(300), "one") if first else ("one", pause(300), "two")
    seen: list[float] = []

    async def ask() -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as client:
            with pytest.raises(TimeoutError):
                async with client.post(URL, json={**BODY, "stream": stream}, headers=KEY) as answer:
                    await answer.text()
            seen.append(clock.monotonic())

    async def main() -> None:
        asked = asyncio.create_task(ask())
        while not clock._waiting:
            await asyncio.sleep(0)
        await clock.aadvance(300)
        await asked

    script = ScriptedBackend([say(*words)], ["m"], clock)
    with open_platform(clock=clock, backend=script) as platform, intercept(platform):
        asyncio.run(main())
    assert seen == [60]


@each_case("fault", [Slow(300), Timeout(700)])
@each_case("after", [0, 1])
def test_a_fault_of_the_connection_takes_no_longer_than_the_client_waits(fault: Any, after: int) -> None:
    faults = Faults()
    faults.connection(fault, after=after)
    with faults.open_platform() as platform:
        with openai_client(platform, faults=faults, timeout=20, max_retries=0) as client:
            with pytest.raises((openai.APITimeoutError, httpx.ReadTimeout, httpx2.ReadTimeout)):
                [*client.chat.completions.create(model="echo", messages=HELLO, stream=True)]
    assert faults.clock.monotonic() == 20
    faults.check()


def test_delays_of_the_connection_and_of_the_model_count_together() -> None:
    faults = Faults()
    faults.connection(Slow(15))
    faults.completion(Slow(15))
    with faults.open_platform() as platform:
        with openai_client(platform, faults=faults, timeout=20, max_retries=0) as client:
            with pytest.raises(openai.APITimeoutError):
                client.chat.completions.create(model="echo", messages=HELLO)
    assert faults.clock.monotonic() == 20


def test_a_client_that_timed_out_asks_again_by_itself() -> None:
    faults = Faults()
    faults.completion(Slow(300))
    with faults.open_platform() as platform:
        with openai_client(platform, faults=faults, timeout=20) as client:
            answer = client.chat.completions.create(model="echo", messages=HELLO)
    assert answer.choices[0].message.content == "one two three"
    assert 20 < faults.clock.monotonic() < 25


# ---- several at a time -------------------------------------------------------------------------------------------


def test_clients_that_wait_at_the_same_time_share_the_seconds() -> None:
    """They hung: no one moved the clock."""
    script = ScriptedBackend([*[RateLimited("slow down", retry_after=7)] * 20, "done"] + ["done"] * 19, ["m"])

    async def ask_all() -> list[Any]:
        async with openai.AsyncOpenAI(api_key="sk-mine") as client:
            asked = (client.chat.completions.create(model="m", messages=HELLO) for _ in range(20))
            return await asyncio.gather(*asked)

    with open_platform(clock=ManualClock(), backend=script) as platform, intercept(platform):
        answers = asyncio.run(ask_all())
        assert [one.choices[0].message.content for one in answers] == ["done"] * 20
        assert 7 <= platform.clock.monotonic() <= 21


def test_threads_that_wait_at_the_same_time_hold_up_none_of_them() -> None:
    script = ScriptedBackend([Overloaded("busy", retry_after=7)] * 8 + ["done"] * 8, ["m"])
    with open_platform(clock=ManualClock(), backend=script) as platform, intercept(platform):
        with openai.OpenAI(api_key="sk-mine", max_retries=20) as client, ThreadPoolExecutor(8) as threads:
            asked = [threads.submit(client.chat.completions.create, model="m", messages=HELLO) for _ in range(8)]
            assert [one.result().choices[0].message.content for one in asked] == ["done"] * 8
        assert 7 <= platform.clock.monotonic() <= 56


# ---- the application's own sleeps --------------------------------------------------------------------------------


def test_the_application_s_own_sleeps_move_the_clock(yard_clock: ManualClock, yard_sleeps: None) -> None:
    async def own() -> str:
        await asyncio.sleep(0)
        await asyncio.gather(asyncio.sleep(30), asyncio.sleep(40))
        return str(await asyncio.sleep(20, "result"))

    began = time.monotonic()
    time.sleep(3600)
    sleep(60)
    assert yard_clock.monotonic() == 3660
    assert asyncio.run(own()) == "result"
    assert yard_clock.monotonic() == 3720
    thread = threading.Thread(target=lambda: time.sleep(100))
    thread.start()
    thread.join()
    assert yard_clock.monotonic() == 3820
    assert time.monotonic() - began < 60


def test_afterwards_sleeps_are_the_real_ones() -> None:
    before = (time.sleep, asyncio.sleep, sleep)
    with sleeping_on(ManualClock()):
        assert (time.sleep is before[0], asyncio.sleep is before[1], sleep is before[2]) == (False, False, False)
    assert (time.sleep, asyncio.sleep, sleep) == before


def test_a_replaced_sleep_counts_none_of_the_library_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def counted(seconds: float) -> None:
        slept.append(seconds)

    async def ask() -> None:
        async with openai.AsyncOpenAI(api_key="sk-mine") as client:
            await client.chat.completions.create(model="m", messages=HELLO)
            stream = await client.chat.completions.create(model="m", messages=HELLO, stream=True)
            assert [chunk async for chunk in stream]

    monkeypatch.setattr(asyncio, "sleep", counted)
    with open_platform(clock=ManualClock(), backend=ScriptedBackend(["a b c"] * 2, ["m"])) as platform:
        with intercept(platform):
            asyncio.run(ask())
    assert slept == []

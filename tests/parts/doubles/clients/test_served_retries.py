"""Clients in other processes wait on the clock of the platform before they try again."""

from typing import Any

import httpx
import openai
import pytest

from modelyard import ScriptedBackend, open_platform
from modelyard.backends import on
from modelyard.clock import SystemClock
from modelyard.errors import Overloaded, RateLimited
from modelyard.testing import ManualClock, served

pytestmark = pytest.mark.servers

ASK: Any = [{"role": "user", "content": "hello"}]
CHAT = "/inference/v1/chat/completions"


def flaky(*texts: str) -> ScriptedBackend:
    answers = RateLimited("slow", retry_after=20), Overloaded("busy", retry_after=30), "done"
    return ScriptedBackend([on(text).answer(*answers) for text in texts], models=["m"])


def test_a_retry_lets_the_clock_pass_and_takes_no_real_time() -> None:
    clock = ManualClock()
    with open_platform(backend=flaky("hello"), clock=clock) as platform, served(platform) as url:
        key = platform.keys.create().secret
        with openai.OpenAI(base_url=f"{url}/inference/v1", api_key=key, max_retries=2) as client:
            assert client.chat.completions.create(model="m", messages=ASK).choices[0].message.content == "done"
    assert clock.monotonic() == 50


def test_the_pause_is_that_of_the_same_request_alone() -> None:
    clock = ManualClock()
    with open_platform(backend=flaky("one", "two"), clock=clock) as platform, served(platform) as url:
        headers = {"authorization": f"Bearer {platform.keys.create().secret}"}
        with httpx.Client(base_url=url, headers=headers) as client:

            def ask(text: str) -> httpx.Response:
                body = {"model": "m", "messages": [{"role": "user", "content": text}]}
                return client.post(CHAT, json=body)

            first = ask("one")
            assert (first.headers["retry-after"], first.headers["retry-after-ms"]) == ("20", "1")
            assert (ask("two").status_code, clock.monotonic()) == (429, 0)
            assert (ask("one").status_code, clock.monotonic()) == (503, 20)
            assert (ask("two").status_code, clock.monotonic()) == (503, 40)
            assert (ask("one").status_code, clock.monotonic()) == (200, 70)
            assert (ask("one").status_code, clock.monotonic()) == (200, 70)


def test_on_a_real_clock_nothing_is_changed() -> None:
    with open_platform(backend=flaky("hello"), clock=SystemClock()) as platform, served(platform) as url:
        headers = {"authorization": f"Bearer {platform.keys.create().secret}"}
        answer = httpx.post(f"{url}{CHAT}", json={"model": "m", "messages": ASK}, headers=headers)
        assert (answer.headers["retry-after"], "retry-after-ms" in answer.headers) == ("20", False)

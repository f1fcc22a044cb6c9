"""An echo as long as its question keeps no caller waiting, holds what is read only, and is bounded over its choices."""

import asyncio
import tracemalloc
from typing import Any

import pytest

from modelyard.backends import EchoBackend
from modelyard.compose import open_platform
from modelyard.errors import InvalidInput


def test_others_have_their_turn_while_a_long_answer_is_streamed() -> None:
    turns = 0

    async def main(platform: Any) -> None:
        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        waiting = asyncio.create_task(others())
        async for _ in platform.chat.astream(model="echo", messages="word " * 10_000):
            pass
        waiting.cancel()

    with open_platform() as platform:
        asyncio.run(main(platform))
    assert turns > 10


def test_what_is_not_read_is_not_made() -> None:
    with open_platform(backend=EchoBackend(context_length=10**7)) as platform:
        question = "word " * 200_000
        with platform.chat.stream(model="echo", messages=question) as warm:
            next(warm)
        tracemalloc.start()
        streams = [platform.chat.stream(model="echo", messages=question) for _ in range(10)]
        for stream in streams:
            next(stream)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        for stream in streams:
            stream.close()
    assert held < 10 * 2**20, "less than 1 MiB for each"


@pytest.mark.slow
def test_many_long_choices_are_refused_as_the_askers_affair() -> None:
    with open_platform(backend=EchoBackend(context_length=10**7)) as platform:
        with pytest.raises(InvalidInput, match="n: gives answers of more than"):
            platform.chat.complete(model="echo", messages="x" * 7_000_000, n=32)
        assert platform.chat.complete(model="echo", messages="x" * 7_000_000, n=2).choices[1].message.text[:1] == "x"

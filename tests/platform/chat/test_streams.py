"""A stream begins where it is made, awaited or entered: it is refused there, or its first deltas wait to be read."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from modelyard import Platform, open_platform
from modelyard.errors import BudgetExceeded, InvalidInput, ModelNotFound, NotFound

WORDS = "one two three four five"


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as platform:
        yield platform


def refused(platform: Platform) -> Any:
    platform.usage.set_budget("0", entity="local")
    return [
        (ModelNotFound, {"model": "nothing", "messages": "a"}),
        (InvalidInput, {"model": "echo", "messages": "a", "n": 0}),
        (BudgetExceeded, {"model": "tabular-mini", "messages": "a"}),
    ]


def test_a_refusal_is_raised_where_the_stream_is_made_awaited_or_entered(platform: Platform) -> None:
    async def main(error: type[Exception], options: Any) -> None:
        with pytest.raises(error):
            await platform.chat.astream(**options)
        with pytest.raises(error):
            async with platform.chat.astream(**options):
                raise AssertionError("it was entered")

    for error, options in refused(platform):
        asyncio.run(main(error, options))
        with pytest.raises(error):
            platform.chat.stream(**options)


@pytest.mark.parametrize("before", [0, 1, 2])
def test_no_delta_is_lost_however_often_it_is_begun(platform: Platform, before: int) -> None:
    """Also after some were read, and as many as there are if it is not begun."""
    asked: Any = {"model": "echo", "messages": WORDS}
    plain = [delta.text for delta in platform.chat.stream(**asked)]
    with platform.chat.stream(**asked) as stream:
        first = [next(stream).text for _ in range(before)]
        with stream as again:
            assert first + [delta.text for delta in again] == plain

    async def main() -> list[str]:
        stream = await platform.chat.astream(**asked)
        texts = [(await anext(stream)).text for _ in range(before)]
        async with await stream as again:
            return texts + [delta.text async for delta in again]

    assert asyncio.run(main()) == plain
    assert "".join(plain) == WORDS


@pytest.mark.parts
def test_a_refusal_is_raised_where_other_streams_are_made(platform: Platform) -> None:
    platform.usage.set_budget("0", entity="local")
    for model, error in (("nothing", ModelNotFound), ("tabular-mini", BudgetExceeded)):
        with pytest.raises(error):
            platform.compat.completions.stream(model=model, prompt="a")
        with pytest.raises(error):
            platform.compat.responses.stream(model=model, input="a")
    with pytest.raises(NotFound):
        platform.compat.responses.follow("resp_nothing")

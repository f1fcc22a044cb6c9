"""`follow=False` means the same for every kind of job and on every way: what there is now, and then the end."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from modelyard import Platform, open_platform
from modelyard.errors import InvalidInput, NotFound, RateLimited

EXAMPLES: Any = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}] * 4
ROWS = [{"prompt": "a", "expected": "a"}]

Ways = dict[str, Callable[..., Any]]


def read(events: Any) -> list[str]:
    async def aread() -> list[str]:
        return [event.type async for event in events]

    return asyncio.run(aread()) if hasattr(events, "__aiter__") else [event.type for event in events]


def of_training(platform: Platform) -> Ways:
    platform.models.create("m", project="p", base_model="tabular-mini")
    job = platform.training.sft("p/m", EXAMPLES)
    return {"handle": job.events, "async": job.aevents, "id": lambda **how: platform.training.events(job.id, **how)}


def of_evaluation(platform: Platform) -> Ways:
    run, of = platform.evaluations.submit("e", "echo", ROWS, project="p"), platform.evaluations
    return {"id": lambda **how: of.events(run.id, **how), "async": lambda **how: of.aevents(run.id, **how)}


@pytest.mark.parametrize("made", [of_training, of_evaluation])
def test_without_following_only_what_is_there_is_read(made: Callable[[Platform], Ways]) -> None:
    with open_platform() as platform:
        ways = made(platform)
        assert {name: read(way(follow=False)) for name, way in ways.items()} == {name: [] for name in ways}
        seen = {name: read(way(follow=True)) for name, way in ways.items()}
        (whole, *_) = seen.values()
        assert seen == dict.fromkeys(ways, whole)
        assert (whole[0].endswith("_started"), whole[-1].endswith(("_ended", "_completed"))) == (True, True), whole
        assert {name: read(way(follow=False)) for name, way in ways.items()} == dict.fromkeys(ways, whole)


def test_what_is_not_there_and_what_cannot_be_followed_is_refused() -> None:
    with open_platform() as platform:
        job = platform.training.sft(platform.models.create("m", project="p", base_model="tabular-mini"), EXAMPLES)
        with pytest.raises(InvalidInput, match="order"):
            platform.training.events(job.id, order="desc", follow=True)
        for follow in (True, False):
            with pytest.raises(NotFound):
                platform.evaluations.events("nothing", follow=follow)


def test_an_error_that_passes_says_when_and_every_other_one_that_it_does_not() -> None:
    assert RateLimited("slow").retry_after == 1.0
    assert RateLimited("slow", 7).retry_after == 7
    assert NotFound("Model", "x").retry_after is None

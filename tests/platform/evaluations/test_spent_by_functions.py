"""What functions spend that ask the platform: a function as model has usage and cost in its run, as a model has."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from decimal import Decimal
from typing import Any

import attrs
import pytest

from modelyard import Platform, open_platform
from modelyard.domain.catalogue import Pricing

ROWS = [{"prompt": f"say {'word ' * n}", "expected": "x"} for n in range(6)]


@pytest.fixture
def platform() -> Iterator[Platform]:
    pricing = Pricing(prompt=Decimal("0.01"), completion=Decimal("0.02"))
    with open_platform(project="p") as opened:
        opened.catalogue.register(attrs.evolve(opened.catalogue.get("echo"), pricing=pricing))
        yield opened


def spent(platform: Platform, model: Any, **options: Any) -> list[tuple[Any, ...]]:
    found = platform.evaluations.run("quiz", model, ROWS, "exact_match", **options)
    rows = platform.evaluations.predictions.list(run_id=found.run.id)
    return sorted((one.inputs["prompt"], one.prompt_tokens, one.completion_tokens, one.cost) for one in rows)


def asking(platform: Platform) -> dict[str, Callable[[Any], Any]]:
    """The ways in which a function asks, each once a row."""
    chat = platform.chat

    def plain(row: Any) -> str:
        return chat.complete(model="echo", messages=row["prompt"]).text

    async def awaited(row: Any) -> str:
        return (await chat.acomplete(model="echo", messages=row["prompt"])).text

    def streamed(row: Any) -> str:
        return "".join(
            delta.text for delta in chat.stream(model="echo", messages=row["prompt"]) if getattr(delta, "text", None)
        )

    async def tasks(row: Any) -> str:
        return await asyncio.create_task(awaited(row))

    async def to_thread(row: Any) -> str:
        return await asyncio.to_thread(plain, row)

    def in_a_thread(row: Any) -> str:
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(copy_context().run, plain, row).result()

    return {one.__name__: one for one in (plain, awaited, streamed, tasks, to_thread, in_a_thread)}


WAYS = ("plain", "awaited", "streamed", "tasks", "to_thread", "in_a_thread")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_function_that_asks_spends_what_the_model_alone_does(platform: Platform, way: str, concurrency: int) -> None:
    alone = spent(platform, "echo")
    assert all(cost > 0 for *_, cost in alone)
    assert spent(platform, asking(platform)[way], concurrency=concurrency) == alone


def test_what_is_admitted_by_a_budget_is_counted_too(platform: Platform) -> None:
    alone = spent(platform, "echo")
    platform.usage.set_budget(1_000_000_000, entity="local")
    assert spent(platform, asking(platform)["plain"]) == alone


def test_several_requests_of_a_row_are_added(platform: Platform) -> None:
    plain = asking(platform)["plain"]
    twice = spent(platform, lambda row: plain(row) + plain(row))
    assert twice == [(prompt, 2 * one, 2 * other, 2 * cost) for prompt, one, other, cost in spent(platform, plain)]


def test_a_function_that_asks_nothing_has_no_usage(platform: Platform) -> None:
    assert {one[1:] for one in spent(platform, lambda row: "x")} == {(None, None, None)}


def test_what_is_asked_outside_of_a_function_is_no_part_of_a_run(platform: Platform) -> None:
    before = platform.chat.complete(model="echo", messages="outside")
    assert before.usage.prompt_tokens
    plain = asking(platform)["plain"]
    assert spent(platform, plain) == spent(platform, plain)


def test_a_scorer_that_asks_is_paid_as_a_judge_is(platform: Platform) -> None:
    plain = asking(platform)["plain"]

    def judged(output: Any, row: Any) -> bool:
        return bool(plain(row))

    found = platform.evaluations.run("quiz", lambda row: "x", ROWS, {"judged": judged})
    usage = {one.role: one for one in platform.evaluations.report(found).aggregate.usage}
    assert usage["judge"].cost == sum((cost for *_, cost in spent(platform, "echo")), Decimal())


def test_two_prompts_that_are_compared_have_a_cost(platform: Platform) -> None:
    ask = asking(platform)["plain"]

    def kind(row: Any) -> str:
        return ask({"prompt": f"please be so kind and {row['prompt']}"})

    short, long = platform.evaluations.run_each("quiz", [ask, kind], ROWS, "exact_match")
    costs = [platform.evaluations.report(one).aggregate.cost for one in (short, long)]
    assert None not in costs
    assert costs == sorted(set(costs))

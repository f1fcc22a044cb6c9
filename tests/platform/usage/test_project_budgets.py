"""A project has a budget next to those of its entity and of keys: every door asks all that apply, before it answers."""

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard import Platform, open_platform
from modelyard.domain.catalogue import Pricing
from modelyard.domain.events import BudgetWarning
from modelyard.errors import BudgetExceeded, Forbidden, InvalidInput

PROJECTS = ("", "a", "b")
ROWS = [{"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good morning"}]}] * 4


@pytest.fixture
def platform() -> Iterator[Platform]:
    with opened() as platform:
        yield platform


def opened(**options: Any) -> Platform:
    platform = open_platform(**options)
    echo = platform.catalogue.get("echo")
    platform.catalogue.register(attrs.evolve(echo, pricing=Pricing(request=Decimal(1))))
    return platform


limits = st.none() | st.integers(0, 4)


@examples(40)
@given(st.tuples(limits, limits, limits, limits), st.lists(st.tuples(st.sampled_from(PROJECTS), st.booleans())))
def test_a_request_is_answered_if_every_budget_that_applies_can_pay(
    given: tuple[int | None, ...], requests: list[tuple[str, bool]]
) -> None:
    with opened() as platform:
        key = platform.keys.create("local").key
        tenant = platform.acting_as(key.principal())
        places: tuple[dict[str, str], ...] = ({}, {"project": "a"}, {"project": "b"}, {"key_id": key.id})
        for place, limit in zip(places, given, strict=True):
            if limit is not None:
                platform.usage.set_budget(limit, **place)
        left = dict(enumerate(given))
        for project, by_key in requests:
            applies = [0, *([PROJECTS.index(project)] if project else []), *([3] if by_key else [])]
            can = all(left[one] is None or left[one] > 0 for one in applies)  # type: ignore[operator]
            asked = tenant if by_key else platform
            if can:
                asked.chat.complete(model="echo", messages="x", project=project or None)
            else:
                with pytest.raises(BudgetExceeded):
                    asked.chat.complete(model="echo", messages="x", project=project or None)
            for one in applies if can else ():
                left[one] = None if left[one] is None else left[one] - 1  # type: ignore[operator]
        spent = [budget and budget.limit - budget.spent for place in places if (budget := _budget(platform, place), 1)]
        assert spent == [left[one] for one in range(4)]


def _budget(platform: Platform, place: dict[str, str]) -> Any:
    return platform.usage.get_budget(**place)


def _whole(platform: Platform) -> None:
    platform.chat.complete(model="echo", messages="x", project="a")


def _streamed(platform: Platform) -> None:
    list(platform.chat.stream(model="echo", messages="x", project="a"))


def _trained(platform: Platform) -> None:
    mini = platform.catalogue.get("tabular-mini")
    platform.catalogue.register(attrs.evolve(mini, pricing=Pricing(training=Decimal(1))))
    platform.training.sft(
        platform.models.create("bot", project="a", base_model="tabular-mini", return_existing=True), ROWS
    )


@pytest.mark.parametrize("door", [_whole, _streamed, _trained])
def test_every_door_is_closed_by_the_budget_of_its_project_and_by_no_other(
    platform: Platform, door: Callable[[Platform], None]
) -> None:
    platform.usage.set_budget(0, project="b")
    door(platform)
    platform.usage.set_budget(0, project="a")
    with pytest.raises(BudgetExceeded):
        door(platform)


def test_rows_of_an_evaluation_fail_by_the_budget_of_its_project(platform: Platform) -> None:
    platform.usage.set_budget(1, project="a")
    rows = [{"prompt": str(number), "expected": "x"} for number in range(3)]
    run = platform.evaluations.run("quiz", "echo", rows, project="a").run
    budget = platform.usage.get_budget(project="a")
    assert budget is not None
    assert (budget.spent, budget.reserved) == (1, 0)
    assert run.summary is not None
    assert run.summary["model_errors"] == 2


def test_a_budget_set_while_a_request_runs_holds_what_it_reserved(platform: Platform) -> None:
    platform.usage.set_budget(5, project="a")
    stream = platform.chat.stream(model="echo", messages="x", project="a")
    next(stream)
    platform.usage.remove_budget(project="a")
    assert platform.usage.set_budget(5, project="a").reserved == 1
    list(stream)
    budget = platform.usage.get_budget(project="a")
    assert budget is not None
    assert (budget.spent, budget.reserved) == (1, 0)


def test_it_is_listed_named_and_warned_of() -> None:
    seen: list[Any] = []
    with opened(observer=seen.append) as platform:
        made = platform.usage.set_budget(2, entity="acme", project="a", period="month", warn_at="0.5")
        assert (made.entity, made.project, made.key_id) == ("acme", "a", None)
        assert [one.project for one in platform.usage.list_budgets(entity="acme")] == ["a"]
        platform.chat.complete(model="echo", messages="x", entity="acme", project="a")
        assert [one for one in seen if isinstance(one, BudgetWarning)] == [
            BudgetWarning("acme", "", Decimal(1), Decimal(2), "month", "a")
        ]


def test_it_is_of_a_key_or_of_a_project_and_only_the_host_sets_it(platform: Platform) -> None:
    key = platform.keys.create("acme", ["b"]).key
    with pytest.raises(InvalidInput, match="project"):
        platform.usage.set_budget(1, entity="acme", key_id=key.id, project="b")
    with pytest.raises(InvalidInput, match="project"):
        platform.usage.set_budget(1, entity="acme", project="b/c")
    with pytest.raises(Forbidden):
        platform.acting_as(key.principal()).usage.set_budget(1, project="b")
    with pytest.raises(Forbidden):
        platform.acting_as(key.principal()).usage.get_budget(project="a")

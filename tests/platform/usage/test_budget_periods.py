"""Budgets of a day or a month begin again, and warn once when the share that was asked for is spent."""

import logging
import zipfile
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest

from each import each_case
from modelyard import open_platform
from modelyard.domain.catalogue import Pricing
from modelyard.domain.events import BudgetWarning
from modelyard.domain.usage import BudgetPeriod
from modelyard.errors import BudgetExceeded, Forbidden, InvalidInput
from modelyard.testing import ManualClock

DAY = timedelta(days=1)
NOON = datetime(2026, 1, 30, 12, tzinfo=UTC)


def opened(clock: ManualClock, seen: list[Any] | None = None, **options: Any) -> Any:
    platform = open_platform(clock=clock, observer=(seen if seen is not None else []).append, **options)
    echo = platform.catalogue.get("echo")
    platform.catalogue.register(attrs.evolve(echo, pricing=Pricing(request=Decimal(1))))
    return platform


def ask(platform: Any, times: int = 1) -> None:
    for _ in range(times):
        platform.chat.complete(model="echo", messages="x")


@pytest.mark.parametrize(("period", "days"), [("day", [1, 2, 30]), ("month", [2, 33, 65])])
def test_a_new_period_begins_with_nothing_spent(period: str, days: list[int]) -> None:
    clock = ManualClock(NOON)
    with opened(clock) as platform:
        platform.usage.set_budget(2, period=period)
        for day in [0, *days]:
            clock.advance((NOON + day * DAY - clock.now()).total_seconds())
            assert platform.usage.get_budget().spent == 0
            ask(platform, 2)
            with pytest.raises(BudgetExceeded):
                ask(platform)
            assert platform.usage.get_budget().spent == 2
            assert [budget.spent for budget in platform.usage.list_budgets()] == [2]


def test_a_month_does_not_begin_with_a_day_and_a_total_never_ends() -> None:
    clock = ManualClock(NOON)
    with opened(clock) as platform:
        key = platform.keys.create("local").key
        platform.usage.set_budget(5, period="month")
        platform.usage.set_budget(5, key_id=key.id)
        ask(platform.acting_as(key.principal()))
        clock.advance(DAY.total_seconds())
        assert [budget.spent for budget in platform.usage.list_budgets()] == [1, 1]
        clock.advance(DAY.total_seconds())  # February
        assert [(budget.key_id, budget.spent) for budget in platform.usage.list_budgets()] == [(None, 0), (key.id, 1)]


def test_what_runs_at_midnight_keeps_its_reservation_and_is_spent_in_the_new_day() -> None:
    clock = ManualClock(NOON + DAY / 2 - timedelta(minutes=1))
    with opened(clock) as platform:
        platform.usage.set_budget(2, period="day")
        ask(platform)
        stream = platform.chat.stream(model="echo", messages="x y")
        next(stream)
        clock.advance(minutes=2)
        budget = platform.usage.get_budget()
        assert (budget.spent, budget.reserved) == (0, 1)
        list(stream)
        budget = platform.usage.get_budget()
        assert (budget.spent, budget.reserved) == (1, 0)


def test_a_clock_that_steps_back_gives_nothing_back() -> None:
    clock = ManualClock(NOON)
    with opened(clock) as platform:
        platform.usage.set_budget(2, period="day")
        ask(platform)
        budget = platform.usage.get_budget()
        assert budget.at((NOON - DAY).timestamp()) == budget


def test_the_host_is_warned_once_a_period(caplog: pytest.LogCaptureFixture) -> None:
    clock, seen = ManualClock(NOON), []
    with opened(clock, seen) as platform, caplog.at_level(logging.WARNING):
        platform.usage.set_budget(4, period="day", warn_at="0.5")
        warnings = []
        for _ in range(3):
            ask(platform)
            warnings.append(sum(isinstance(event, BudgetWarning) for event in seen))
        assert warnings == [0, 1, 1]
        assert BudgetWarning("local", "", Decimal(2), Decimal(4), "day") in seen
        clock.advance(DAY.total_seconds())
        ask(platform, 2)
        assert sum(isinstance(event, BudgetWarning) for event in seen) == 2
    words = [record.getMessage() for record in caplog.records]
    assert words == ["the budget of local (4 USD, day) has 2 USD spent"] * 2


def test_a_changed_budget_keeps_what_was_spent_unless_its_period_changes() -> None:
    with opened(ManualClock(NOON)) as platform:
        platform.usage.set_budget(5, period="day")
        ask(platform)
        assert platform.usage.set_budget(9, period="day", warn_at="1").spent == 1
        assert platform.usage.set_budget(9, period="month").spent == 0
        assert platform.usage.get_budget().since == "2026-01-01"


@each_case("wrong", [{"period": "week"}, {"warn_at": "0"}, {"warn_at": "1.1"}, {"warn_at": "much"}])
def test_what_is_wrong_is_named(wrong: dict[str, str]) -> None:
    with open_platform() as platform, pytest.raises(InvalidInput, match=next(iter(wrong))):
        platform.usage.set_budget(1, **wrong)


def test_a_tenant_lists_its_own_budgets_only() -> None:
    with open_platform() as platform:
        acme = platform.acting_as(platform.keys.create("acme").key.principal())
        for entity in ("acme", "rival"):
            platform.usage.set_budget(1, entity=entity)
        assert [budget.entity for budget in acme.usage.list_budgets()] == ["acme"]
        with pytest.raises(Forbidden):
            acme.usage.list_budgets(entity="rival")
        assert [budget.id for budget in platform.usage.list_budgets().page(1, after="acme").items] == ["rival"]


def test_a_file_of_0_1_has_budgets_without_an_end_and_no_host_keys(tmp_path: Path) -> None:
    with zipfile.ZipFile(Path(__file__).parents[2] / "stores" / "files" / "yard-0.1.0.zip") as kept:
        kept.extractall(tmp_path)
    with open_platform(tmp_path / "yard.db") as platform:
        (budget,) = platform.usage.list_budgets()
        assert (budget.period, budget.since, budget.warn_at) == (BudgetPeriod.TOTAL, "", None)
        assert not any(key.host for key in platform.keys.list())
        assert platform.usage.set_budget(5, entity=budget.entity, period="day", warn_at="0.9").period == "day"
        assert platform.keys.create("acme", host=True).key.scope.entity is None

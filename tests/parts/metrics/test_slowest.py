"""The slowest answers of all processes, in Python, over HTTP and in the command line."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from http_client import client_of
from modelyard import Platform, ScriptedBackend, open_platform
from modelyard.cli import main
from modelyard.errors import Forbidden, InvalidInput, StoreBusy
from modelyard.parts.metrics.records import KEPT_A_DAY, SlowAnswer
from modelyard.parts.metrics.slowest import slowest_in
from modelyard.testing import Faults, ManualClock

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Waiting:
    """Open platforms over one store, as processes do; a prompt says how many seconds its answer takes."""

    def __init__(self, store: Any = None, now: datetime = NOON) -> None:
        self.clock = ManualClock(now)
        self.store = store

    def open(self) -> Platform:
        backend = ScriptedBackend(self._answer, models=["m"])
        platform = open_platform(self.store, backend=backend, clock=self.clock)
        platform.metrics.count()
        return platform

    def _answer(self, request: Any) -> str:
        self.clock.advance(float(request.messages[-1].text))
        return "fine"


def ask(platform: Platform, seconds: float, entity: str = "acme") -> None:
    platform.chat.complete(model="m", messages=str(seconds), entity=entity, project="support")


def upkeep(platform: Platform) -> None:
    for do in platform._runtime.upkeep.values():
        do()


@pytest.fixture
def waiting(tmp_path: Path) -> Waiting:
    return Waiting(tmp_path / "yard.db")


def test_those_of_all_processes_are_listed_the_slowest_first(waiting: Waiting) -> None:
    with waiting.open() as one, waiting.open() as two:
        for platform, times in ((one, (3, 1, 70)), (two, (2, 40))):
            for seconds in times:
                ask(platform, seconds)
            upkeep(platform)
        with waiting.open() as reader:
            assert [found.seconds for found in reader.metrics.slowest()] == [70, 40, 3, 2, 1]
            (first,) = reader.metrics.slowest(1)
            booked = {entry.id for entry in reader.usage.list()}
    assert first.id in booked
    assert (first.model, first.entity, first.project, first.key_id) == ("m", "acme", "support", "")


@examples(30)
@given(st.lists(st.lists(st.integers(0, 3600), max_size=2 * KEPT_A_DAY), max_size=4))
def test_the_slowest_of_a_day_are_kept_whatever_came_in_which_order(batches: list[list[int]]) -> None:
    waiting = Waiting()
    told: dict[str, list[float]] = {}
    with waiting.open() as platform:
        for batch in batches:
            for seconds in batch:
                ask(platform, seconds)
                told.setdefault(f"{waiting.clock.now():%Y-%m-%d}", []).append(seconds)
            upkeep(platform)
        found = platform.metrics.slowest(1000)
    kept = [time for times in told.values() for time in sorted(times, reverse=True)[:KEPT_A_DAY]]
    assert [one.seconds for one in found] == sorted(kept, reverse=True)


def test_each_entity_has_its_own_and_no_busy_one_takes_its_place(waiting: Waiting) -> None:
    with waiting.open() as platform:
        ask(platform, 0.5, entity="quiet")
        for seconds in range(2 * KEPT_A_DAY):
            ask(platform, 10 + seconds)
        assert len(platform.metrics.slowest(1000, entity="acme")) == KEPT_A_DAY
        assert [one.seconds for one in platform.metrics.slowest(entity="quiet")] == [0.5]


def test_old_days_go_and_ranges_choose(waiting: Waiting) -> None:
    with waiting.open() as platform:
        for seconds in (5, 6):
            ask(platform, seconds)
            upkeep(platform)
            waiting.clock.advance(timedelta(days=20).total_seconds())
        ask(platform, 1)
        assert [one.seconds for one in platform.metrics.slowest()] == [6, 1]
        assert platform._runtime.store.read(lambda snapshot: snapshot.count(SlowAnswer, "by_time")) == 2
        assert [one.seconds for one in platform.metrics.slowest(until=waiting.clock.now() - timedelta(days=2))] == [6]
        assert [one.seconds for one in platform.metrics.slowest(since=waiting.clock.now() - timedelta(days=2))] == [1]
        assert [one.seconds for one in platform.metrics.slowest(month="2026-04")] == [1]
        assert platform.metrics.slowest(month="2026-01") == []
        waiting.clock.advance(timedelta(days=40).total_seconds())
        upkeep(platform)
        assert platform._runtime.store.read(lambda snapshot: snapshot.count(SlowAnswer, "by_time")) == 0
        for wrong in ({"month": "2026-04", "since": NOON}, {"month": "now"}, {"limit": 0}, {"limit": True}):
            with pytest.raises(InvalidInput):
                platform.metrics.slowest(**wrong)  # type: ignore[arg-type]


def test_an_idle_process_writes_nothing_and_one_that_is_quicker_neither(waiting: Waiting) -> None:
    with waiting.open() as platform:
        for seconds in range(KEPT_A_DAY):
            ask(platform, 1 + seconds)
        upkeep(platform)
        ask(platform, 0.5)
        written = _steps(platform)
        assert next(written) == 0
        upkeep(platform)
        upkeep(platform)
        assert next(written) == 0


def _steps(platform: Platform) -> Iterator[int]:
    store, count = platform._runtime.store, 0
    transact = store.transact

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal count
        count += "metrics" in getattr(args[0], "func", args[0]).__module__
        return transact(*args, **options)

    store.transact = counted  # type: ignore[method-assign]
    while True:
        yield count


def test_what_the_store_does_not_take_is_kept_later() -> None:
    waiting = Waiting()
    faults = Faults(clock=waiting.clock)
    backend = ScriptedBackend(waiting._answer, models=["m"])
    with faults.open_platform(backend=backend) as platform:
        platform.metrics.count()
        ask(platform, 9)
        faults.transact(StoreBusy("locked"))
        upkeep(platform)
        assert [one.seconds for one in platform.metrics.slowest()] == [9]


def test_those_of_an_entity_go_with_it(waiting: Waiting) -> None:
    with waiting.open() as platform:
        ask(platform, 9)
        ask(platform, 8, entity="other")
        assert len(platform.metrics.slowest()) == 2
        platform.delete_entity("acme")
        assert [one.entity for one in platform.metrics.slowest()] == ["other"]


@pytest.mark.parametrize("refused", [False, True], ids=["noted", "waiting"])
def test_what_was_not_yet_kept_of_a_deleted_entity_is_never_kept(refused: bool) -> None:
    waiting = Waiting()
    faults = Faults(clock=waiting.clock)
    with faults.open_platform(backend=ScriptedBackend(waiting._answer, models=["m"])) as platform:
        platform.metrics.count()
        ask(platform, 9)
        if refused:
            faults.transact(StoreBusy("locked"))
            upkeep(platform)
        platform.delete_entity("acme")
        ask(platform, 1)
        assert [one.seconds for one in platform.metrics.slowest()] == [1]


def test_an_entity_that_begins_anew_has_its_slowest_at_once(waiting: Waiting) -> None:
    with waiting.open() as here, waiting.open() as there:
        for seconds in range(KEPT_A_DAY):
            ask(here, 10 + seconds)
        upkeep(here)
        there.delete_entity("acme")
        ask(here, 1)
        assert [one.seconds for one in here.metrics.slowest()] == [1]


def test_one_step_keeps_those_of_many_entities(waiting: Waiting) -> None:
    with waiting.open() as platform:
        for seconds in range(5):
            ask(platform, 1 + seconds, entity=f"e{seconds}")
        written = _steps(platform)
        assert next(written) == 0
        upkeep(platform)
        assert next(written) == 1
        assert len(platform.metrics.slowest()) == 5


def test_those_of_other_hours_of_the_day_are_read_in_large_pages(waiting: Waiting) -> None:
    with waiting.open() as platform:
        for at in range(120):
            ask(platform, 10, entity=f"e{at}")
        upkeep(platform)
        since, until = waiting.clock.now(), waiting.clock.now() + timedelta(hours=1)
        pages = Counter[str]()

        class Counting:
            def __init__(self, snapshot: Any) -> None:
                self._snapshot = snapshot

            def __getattr__(self, name: str) -> Any:
                pages[name] += 1
                return getattr(self._snapshot, name)

        found = platform._runtime.store.read(
            lambda snapshot: slowest_in(Counting(snapshot), 5, since, until, None)  # type: ignore[arg-type]
        )
        assert [one.entity for one in found] == ["e119"]
        assert pages["page"] <= 4


def test_over_http_for_the_host_alone(waiting: Waiting) -> None:
    with waiting.open() as platform:
        for seconds in (1, 3, 2):
            ask(platform, seconds)
        client = client_of(platform)
        host = platform.keys.create("ops", host=True).secret
        data = client.send("GET", "/v1/admin/slowest", query="limit=2&entity=acme&month=2026-03", key=host).json["data"]
        assert [one["seconds"] for one in data] == [3, 2]
        assert client.send("GET", "/v1/admin/slowest", query="limit=0", key=host).status == 422
        own = platform.keys.create("acme").secret
        assert client.send("GET", "/v1/admin/slowest", key=own).status == 403
        with pytest.raises(Forbidden):
            platform.acting_as(platform.keys.authenticate(own)).metrics.slowest()


def test_in_the_command_line(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path / "yard.db", datetime.now(UTC))
    with waiting.open() as platform:
        for seconds in (1, 3, 2.00049):
            ask(platform, seconds)
        upkeep(platform)

    def run(*words: str, status: int = 0) -> str:
        result = CliRunner().invoke(main, ["usage", "--store", str(waiting.store), *words])
        assert result.exit_code == status, result.output
        return result.output

    assert [one["seconds"] for one in json.loads(run("--slowest", "2", "--json"))] == [3, pytest.approx(2.00049)]
    assert [line.split()[0] for line in run("--slowest", "--entity", "acme").splitlines()] == [
        "seconds",
        "-------",
        "3.0",
        "2.0",
        "1.0",
    ]
    assert run("--slowest", "--until", "2026-03-01", "--json").strip() == "[]"
    assert run("--slowest", "1", "--csv").splitlines()[1].startswith("3.0,m,acme,support,1,1,")
    run("--slowest", "--project", "support", status=2)
    assert "--by" in run("--slowest", "--by", "model", status=2)
    with waiting.open() as platform:
        ask(platform, 0.017390608999448887)
        upkeep(platform)
    assert json.loads(run("--slowest", "10", "--json"))[-1]["seconds"] == pytest.approx(0.01739, abs=1e-5)

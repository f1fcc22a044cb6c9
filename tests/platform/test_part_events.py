"""What a part is told, in the transaction in which it happens, and its upkeep."""

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import attrs
import pytest

from modelyard import Platform, open_platform
from modelyard.domain.catalogue import Pricing
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.job import Job
from modelyard.domain.promotion import Promotion
from modelyard.domain.record import Index, Record
from modelyard.domain.schema import records_of
from modelyard.domain.usage import Budget
from modelyard.errors import Conflict
from modelyard.examples import support
from modelyard.http.lifespan import served
from modelyard.part import Part
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Tx
from modelyard.stores.memory import MemoryStore
from modelyard.testing import ManualClock, RunTwiceStore
from polling import until


@attrs.frozen
class Seen:
    id: str
    entity: str
    what: str
    said: str


ROWS = [{"prompt": "yes", "expected": "yes"}]
REF = "weave:///local/p/object/"
SEEN = Record(Seen, "seen", ("id",), indexes={"by_entity": Index(("entity",))})


def said(event: Any) -> str:
    match event:
        case Job():
            return f"{event.kind} {event.status}"
        case EvaluationRun():
            return str(event.state)
        case Promotion():
            return f"{event.change} {event.from_step} {event.step}"
        case Budget():
            return f"{event.spent:f} of {event.limit:f}"
    raise AssertionError(event)


def see(runtime: Runtime, tx: Tx, event: Any) -> None:
    tx.add(Seen(runtime.ids(), event.entity, type(event).__name__, said(event)))


LISTENER = Part("listener", records=lambda: (SEEN,), on_event=see)


@pytest.fixture(params=["once", "twice"])
def platform(request: pytest.FixtureRequest) -> Iterator[Platform]:
    store: Any = MemoryStore(records_of([LISTENER]))
    store = RunTwiceStore(store) if request.param == "twice" else store
    with open_platform(store=store, parts=[LISTENER], clock=ManualClock()) as platform:
        yield platform


def seen(platform: Platform, entity: str = "local") -> list[str]:
    found = platform._runtime.store.read(lambda snapshot: snapshot.page(Seen, "by_entity", entity))
    return [f"{one.what} {one.said}" for one in found]


@pytest.mark.slow
def test_an_end_of_a_job_and_a_move_of_an_alias_are_told(platform: Platform) -> None:
    platform.models.create("support", base_model="tabular-mini")
    job = platform.training.sft("default/support", support().train)
    job.wait()
    platform.models.promote("default/support", 1, "prod")
    platform.models.promote("default/support", 1, "prod")
    assert seen(platform) == ["Job sft succeeded", "Promotion promoted None 1"]
    cancelled = platform.training.sft("default/support", support().train)
    platform.jobs.cancel(cancelled.id)
    assert seen(platform)[2:] == ["Job sft cancelled"]


def test_the_end_of_a_run_is_told_whoever_ends_it(platform: Platform) -> None:
    platform.evaluations.run("quiz", "echo", ROWS, project="p")
    assert sorted(seen(platform)) == ["EvaluationRun completed", "Job evaluate succeeded"]


def test_a_cancelled_run_is_told_with_its_job(platform: Platform) -> None:
    run = platform.evaluations.submit("quiz", "echo", ROWS, project="p")
    platform.evaluations.runs.cancel(run.id)
    assert sorted(seen(platform)) == ["EvaluationRun cancelled", "Job evaluate cancelled"]


def test_a_run_that_its_client_ends_is_told_once(platform: Platform) -> None:
    runs = platform.evaluations.runs
    finished, failed = (runs.create(f"{REF}quiz", f"{REF}echo", project="p").id for _ in range(2))
    for _ in range(2):
        runs.finish(finished)
        runs.fail(failed)
    assert seen(platform) == ["EvaluationRun completed", "EvaluationRun failed"]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_budget_that_warns_is_told_once(streamed: bool) -> None:
    with open_platform(parts=[LISTENER]) as platform:
        priced = attrs.evolve(platform.catalogue.get("echo"), pricing=Pricing(request=Decimal(1)))
        platform.catalogue.register(priced)
        platform.usage.set_budget(4, warn_at="0.5")
        for _ in range(3):
            if streamed:
                list(platform.chat.stream(model="echo", messages="hello"))
            else:
                platform.chat.complete(model="echo", messages="hello")
        assert seen(platform) == ["Budget 2 of 4"]


def test_what_a_listener_raises_undoes_what_has_happened() -> None:
    def refuse(runtime: Runtime, tx: Tx, event: object) -> None:
        raise Conflict("not now")

    with open_platform(parts=[Part("refuser", on_event=refuse)]) as platform:
        run = platform.evaluations.submit("quiz", "echo", ROWS, project="p")
        with pytest.raises(Conflict):
            platform.evaluations.runs.cancel(run.id)
        assert platform.evaluations.runs.get(run.id).state == "running"


def test_a_part_is_kept_up_while_it_is_served_and_by_workers() -> None:
    turns: list[Runtime] = []

    def keep_up(runtime: Runtime) -> None:
        turns.append(runtime)
        if len(turns) == 1:
            raise ValueError("a fault is logged")

    async def serve(platform: Platform) -> None:
        async with served(platform, False, None):
            await asyncio.sleep(0)  # both wait for the clock now
            await clock.aadvance(2.5)

    clock = ManualClock()
    with open_platform(parts=[Part("keeper", upkeep=keep_up)], clock=clock) as platform:
        asyncio.run(serve(platform))
        assert len(turns) == 2
        turns.clear()
        with platform.worker():
            clock.advance(3)
            until(lambda: len(turns) >= 2)
        assert turns[0] is platform._runtime

"""A budget that is asked after an answer: it is as exact as one that is asked before, and costs one transaction."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from modelyard import Platform, open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.domain.catalogue import Pricing
from modelyard.domain.completion import CompletionRequest
from modelyard.domain.schema import RECORDS
from modelyard.domain.usage import Admission, Budget
from modelyard.errors import BudgetExceeded, RateLimited, StoreClosed
from modelyard.parts.postgres.store import PostgresStore
from modelyard.platform.usage.booking import close_requests
from modelyard.protocols import ServedModel
from modelyard.stores.memory import MemoryStore
from modelyard.stores.sqlite import SqliteStore

PRICE = Pricing(request=Decimal(1), completion=Decimal("0.1"))
ASK: dict[str, Any] = {"model": "echo", "messages": "hi", "max_tokens": 10}
WORST, REAL = Decimal(2), Decimal("1.1")


class _Watched(MemoryStore):
    """Calls `before` and `after` around each transaction, and counts them."""

    def __init__(self) -> None:
        super().__init__(RECORDS)
        self.transactions = 0
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None

    def transact(self, step: Any, durable: bool = True) -> Any:
        self.transactions += 1
        self.before()
        done = super().transact(step, durable)
        self.after()
        return done


@pytest.fixture
def store() -> _Watched:
    return _Watched()


@pytest.fixture
def platform(store: _Watched) -> Iterator[Platform]:
    with open_platform(store=store, backend=EchoBackend(pricing=PRICE)) as opened:
        yield opened


def budget(platform: Platform) -> tuple[Decimal, Decimal]:
    found = platform.usage.get_budget()
    assert found is not None
    return found.reserved, found.spent


def refuse(platform: Platform, **options: Any) -> None:
    with pytest.raises(BudgetExceeded):
        platform.chat.complete(**ASK, **options)


def test_a_whole_answer_under_a_budget_is_one_transaction(platform: Platform, store: _Watched) -> None:
    platform.usage.set_budget(100)
    for _ in range(3):
        before = store.transactions
        platform.chat.complete(**ASK)
        assert store.transactions == before + 1
    assert budget(platform) == (0, 3 * REAL)
    assert platform.usage.total()[0].cost == 3 * REAL


@pytest.mark.parametrize("limit", [WORST, WORST + REAL, WORST + 2 * REAL])
def test_what_a_budget_refuses_never_reaches_the_backend(limit: Decimal) -> None:
    asked: list[CompletionRequest] = []

    class Counted(EchoBackend):
        def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Any]:
            asked.append(request)
            return super().stream(request, model)

    with open_platform(backend=Counted(pricing=PRICE)) as platform:
        platform.usage.set_budget(limit)
        for _ in range(6):
            try:
                platform.chat.complete(**ASK)
            except BudgetExceeded:
                continue
        reserved, spent = budget(platform)
        assert (reserved, len(asked) * REAL) == (0, spent)
        assert limit - WORST < spent <= limit


def test_a_budget_that_another_process_has_spent_meanwhile_refuses(tmp_path: Path) -> None:
    backend = EchoBackend(pricing=PRICE)
    with (
        open_platform(tmp_path / "yard.db", backend=backend) as one,
        open_platform(tmp_path / "yard.db", backend=EchoBackend(pricing=PRICE)) as other,
    ):
        one.usage.set_budget(WORST + REAL)
        one.chat.complete(**ASK)
        other.chat.complete(**ASK)
        refuse(one, store=True)
        refuse(other)
        assert one._runtime.cache.bookings == {}
        assert budget(one) == budget(other) == (0, 2 * REAL)
        assert [*one.chat.list()] == []
        assert len([*one.usage.list()]) == 2


def test_a_lower_limit_that_another_process_sets_meanwhile_refuses(platform: Platform, store: _Watched) -> None:
    """It is set after the plan was found to be current, just before the transaction."""
    platform.usage.set_budget(100)
    platform.chat.complete(**ASK)

    def lower() -> None:
        store.before = lambda: None
        platform.usage.set_budget(REAL)

    store.before = lower
    refuse(platform)
    assert budget(platform) == (0, REAL)
    assert store._tables[Admission].rows == {}


def test_what_is_admitted_at_the_second_look_was_asked_for_once(store: _Watched) -> None:
    asked: list[CompletionRequest] = []

    class Closable(EchoBackend):
        def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Any]:
            asked.append(request)
            yield from super().stream(request, model)

    limits = iter([REAL, Decimal(100)])

    def change() -> None:
        before, store.before = store.before, lambda: None
        limit = next(limits, None)
        if limit is not None:
            platform.usage.set_budget(limit)
            store.before = before

    with open_platform(store=store, backend=Closable(pricing=PRICE)) as platform:
        platform.usage.set_budget(100)
        platform.chat.complete(**ASK)
        store.before = change
        platform.chat.complete(**ASK)
        assert len(asked) == 2
        assert budget(platform) == (0, 2 * REAL)


def test_a_budget_that_is_removed_meanwhile_refuses_nothing(platform: Platform, store: _Watched) -> None:
    platform.usage.set_budget(100)
    platform.chat.complete(**ASK)

    def remove() -> None:
        store.before = lambda: None
        platform.usage.remove_budget()

    store.before, before = remove, store.transactions
    platform.chat.complete(**ASK)
    assert store.transactions == before + 2  # the removal, and the one that books
    assert platform.usage.total()[0].requests == 2


@pytest.mark.parametrize("on_disk", [False, True])
def test_no_crowd_overruns_a_budget(on_disk: bool, tmp_path: Path) -> None:
    overrun_by_none(SqliteStore(tmp_path / "yard.db", RECORDS) if on_disk else MemoryStore(RECORDS))


def test_no_crowd_overruns_a_budget_on_a_server(yard_address: str) -> None:
    overrun_by_none(PostgresStore(yard_address, RECORDS))


def overrun_by_none(store: Any) -> None:
    """Eight threads ask for more than there is."""
    with closing(store), open_platform(store=store, backend=EchoBackend(pricing=PRICE)) as platform:
        platform.usage.set_budget(WORST + 20 * REAL)
        start = threading.Barrier(8)

        def is_let_in() -> bool:
            try:
                platform.chat.complete(**ASK)
            except BudgetExceeded:
                return False
            return True

        def attempt(_: int) -> int:
            start.wait(60)
            return [is_let_in() for _ in range(8)].count(True)

        with ThreadPoolExecutor(8) as pool:
            done = sum(pool.map(attempt, range(8)))
        while is_let_in():  # what was reserved while others were refused can be spent now
            done += 1
        assert done == 21
        assert budget(platform) == (0, done * REAL)
        assert platform.usage.total()[0].cost == done * REAL


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupt_records_all_or_nothing(platform: Platform, store: _Watched, when: str) -> None:
    platform.usage.set_budget(100)
    platform.chat.complete(**ASK)

    def interrupt() -> None:
        setattr(store, when, lambda: None)
        raise KeyboardInterrupt

    setattr(store, when, interrupt)
    with pytest.raises(KeyboardInterrupt):
        platform.chat.complete(**ASK)
    platform._runtime.cache.bookings.clear()  # nothing is left to the next beat
    (reserved, spent), total = budget(platform), platform.usage.total()[0].cost
    assert (reserved, spent, total) == (0, *[REAL if when == "before" else 2 * REAL] * 2)
    assert platform._runtime.cache.running == {}


def test_a_platform_that_is_closed_meanwhile_books_no_answer_that_nobody_got(
    platform: Platform, store: _Watched
) -> None:
    platform.usage.set_budget(REAL + WORST)
    platform.chat.complete(**ASK)

    def close() -> None:
        store.before = lambda: None
        store.transact(lambda tx: tx.replace(tx.get(Budget, "local").reserve(Decimal(1))))
        close_requests(platform._runtime)

    store.before = close
    with pytest.raises(StoreClosed):
        platform.chat.complete(**ASK)
    assert budget(platform) == (1, REAL)
    assert platform.usage.total()[0].requests == 1


def test_a_response_is_stored_with_its_booking_once(platform: Platform) -> None:
    platform.usage.set_budget(100)
    for _ in range(2):
        response = platform.compat.responses.create(model="echo", input="hi", max_output_tokens=10)
        assert platform.compat.responses.get(response.id).usage == response.usage
    assert budget(platform) == (0, 2 * REAL)


def test_a_key_with_a_limit_reserves_first(platform: Platform) -> None:
    """A limit bounds what runs: what it refuses is refused before the backend works."""
    platform.usage.set_budget(100, entity="acme")
    made = platform.keys.create("acme", requests_per_minute=1)
    caller = platform.acting_as(made.key.principal())
    caller.chat.complete(**ASK)
    with pytest.raises(RateLimited):
        caller.chat.complete(**ASK)
    assert platform.usage.total(entity="acme")[0].requests == 1

"""Money and limits: every cost exact, every sum that of its rows, no budget overrun, no caller refused in vain."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard import Platform, open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.domain.catalogue import CatalogueEntry, Pricing, Quantization
from modelyard.domain.completion import CompletionRequest, Delta, FinishReason, Usage
from modelyard.domain.identity import ApiKey, Limits, Principal, Scope, host
from modelyard.domain.schema import RECORDS
from modelyard.domain.usage import Admission, Budget, LedgerEntry, UsageSum, cost
from modelyard.errors import BackendError, BudgetExceeded, Forbidden, InvalidInput, NotFound, RateLimited
from modelyard.platform.chat.service import Chat
from modelyard.platform.usage.booking import book, close_requests
from modelyard.platform.usage.service import Ledger
from modelyard.protocols import Capabilities, ServedModel, Store
from modelyard.stores.memory import MemoryStore
from modelyard.stores.sqlite import SqliteStore
from modelyard.testing.clock import ManualClock
from modelyard.testing.run_twice_store import RunTwiceStore

HOST = host("acme")
PRICING = Pricing(prompt=Decimal("0.001"), completion=Decimal("0.01"), request=Decimal("0.1"))
MAX_TOKENS = 5
WORST = Decimal("0.001") * 3 + Decimal("0.01") * MAX_TOKENS + Decimal("0.1")
REAL = Decimal("0.001") * 3 + Decimal("0.01") * 2 + Decimal("0.1")
ASK = {"model": "m", "messages": "x", "max_tokens": MAX_TOKENS}


@attrs.define(eq=False)
class Priced:
    """Three tokens of prompt, two of answer; `during` runs between them."""

    during: Callable[[], object] = lambda: None
    blocking: bool = False

    def entries(self) -> tuple[CatalogueEntry, ...]:
        return (CatalogueEntry("m", "lab/m", "M", 0, Quantization.FP32, 1000, 100, PRICING),)

    def capabilities(self, model: str) -> Capabilities:
        return Capabilities()

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int:
        return 3

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        yield Delta("a", 1)
        self.during()
        yield Delta("b", 1, finish_reason=FinishReason.STOP)


MADE: list[Platform] = []


@pytest.fixture(autouse=True)
def closed_at_the_end() -> Iterator[None]:
    """Nothing beats any longer than its test."""
    yield
    while MADE:
        close_requests(MADE.pop()._runtime)


def make(backend: Any = None, store: Store | None = None, clock: ManualClock | None = None) -> Any:
    """What a platform with this backend runs on."""
    ids = count(1)
    name = object()
    clock = clock or ManualClock()
    platform = open_platform(
        entity="acme",
        store=store or RunTwiceStore(MemoryStore(RECORDS, clock)),
        backend=backend or Priced(),
        trainers=(),
        clock=clock,
        ids=lambda: f"{id(name)}-{next(ids):06}",
        randomness=bytes,
    )
    MADE.append(platform)
    return platform._runtime


def key(limits: Limits | None = None, name: str = "key-1", *projects: str) -> Principal:
    scope = Scope("acme", frozenset(projects) if projects else None)
    return Principal("caller", "acme", scope, name, limits or Limits())


def ask(runtime: Any, principal: Principal = HOST, **options: Any) -> Decimal:
    """Ask once; the cost that was booked."""
    before = spent(runtime)
    Chat(runtime, principal).complete(**{**ASK, **options})
    return spent(runtime) - before


def spent(runtime: Any) -> Decimal:
    (total,) = Ledger(runtime, HOST).total()
    return total.cost


def held(runtime: Any) -> list[Admission]:
    return runtime.store.read(lambda snapshot: snapshot.page(Admission, "by_entity", "acme"))


# ---- exact money -------------------------------------------------------------------------------------------------

prices = st.decimals(0, 10**14, places=30, allow_nan=False, allow_infinity=False).filter(
    lambda price: len(price.as_tuple().digits) <= 30
)
tokens = st.integers(0, 2**53)


@given(st.builds(Pricing, prices, prices, prices, prices, prices), tokens, tokens, tokens, tokens)
def test_a_cost_is_exact_in_any_decimal_context(
    pricing: Pricing, prompt: int, cached: int, completion: int, images: int
) -> None:
    used = Usage(prompt + cached, completion, cached, images)
    with localcontext() as context:
        context.prec = 3
        booked = cost(used, pricing)
    expected = (
        prompt * Fraction(pricing.prompt)
        + cached * Fraction(pricing.input_cache_read)
        + completion * Fraction(pricing.completion)
        + images * Fraction(pricing.image)
        + Fraction(pricing.request)
    )
    assert Fraction(booked) == expected


def test_a_completion_is_booked_at_its_price() -> None:
    runtime = make()
    assert ask(runtime) == REAL
    (entry,) = Ledger(runtime, HOST).list().page().items
    assert (entry.entity, entry.project, entry.key_id, entry.model, entry.base_model) == ("acme", "", "", "m", "m")
    assert (entry.prompt_tokens, entry.completion_tokens, entry.cost) == (3, 2, REAL)


# ---- sums --------------------------------------------------------------------------------------------------------

START = datetime(2026, 1, 1, tzinfo=UTC)
moments = st.builds(
    lambda quarters, more: START + timedelta(days=quarters / 4, microseconds=more),
    st.integers(0, 12),
    st.integers(-1, 1),
)
rows = st.builds(
    LedgerEntry,
    id=st.uuids().map(str),
    entity=st.sampled_from(["acme", "rival"]),
    project=st.sampled_from(["", "p", "q"]),
    key_id=st.sampled_from(["", "key-1", "key-2"]),
    model=st.sampled_from(["m", "n"]),
    base_model=st.just("m"),
    checkpoint_step=st.none(),
    prompt_tokens=st.integers(0, 100),
    cached_tokens=st.just(0),
    completion_tokens=st.integers(0, 100),
    images=st.just(0),
    estimated=st.booleans(),
    cost=st.decimals(0, 10, places=25, allow_nan=False, allow_infinity=False),
    created_at=moments,
)
fields = {"entity": "entity", "project": "project", "model": "model", "key": "key_id"}


def naive_sums(found: list[LedgerEntry], by: tuple[str, ...]) -> dict[tuple[str, ...], tuple[int, int, Fraction]]:
    sums: dict[tuple[str, ...], tuple[int, int, Fraction]] = {}
    for row in found:
        at = tuple(row.created_at.date().isoformat() if name == "day" else getattr(row, fields[name]) for name in by)
        requests, prompt, money = sums.get(at, (0, 0, Fraction(0)))
        sums[at] = requests + 1, prompt + row.prompt_tokens, money + Fraction(row.cost)
    return sums


@pytest.mark.slow
@examples(30)
@given(
    booked=st.lists(rows, max_size=25, unique_by=lambda row: row.id),
    by=st.lists(st.sampled_from(["entity", "project", "model", "key", "day"]), unique=True, max_size=3).map(tuple),
    since=st.none() | moments,
    until=st.none() | moments,
    entity=st.sampled_from([None, "acme", "nobody"]),
    project=st.sampled_from([None, "p", ""]),
)
def test_any_sum_over_any_period_is_that_of_its_rows(
    booked: list[LedgerEntry],
    by: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    entity: str | None,
    project: str | None,
) -> None:
    runtime = make(store=MemoryStore(RECORDS))
    for row in booked:
        runtime.store.transact(lambda tx, row=row: book(tx, row))  # type: ignore[misc]
    chosen = [
        row
        for row in booked
        if (since is None or since <= row.created_at)
        and (until is None or row.created_at < until)
        and entity in (None, row.entity)
        and project in (None, row.project)
    ]
    total = partial(Ledger(runtime, HOST).total, by, since=since, until=until, entity=entity, project=project)
    if since and until and until < since:
        with pytest.raises(InvalidInput, match="until: must not be before since"):
            total()
        return
    found = total()
    sums = {
        tuple(getattr(one, name) for name in by): (one.requests, one.prompt_tokens, Fraction(one.cost)) for one in found
    }
    assert sums == (naive_sums(chosen, by) or ({} if by else {(): (0, 0, Fraction(0))}))
    assert list(sums) == sorted(sums)


@pytest.mark.parametrize("hour", [0, 12])
def test_a_period_holds_its_first_moment_and_not_its_last(hour: int) -> None:
    runtime, moment, tick = make(), START + timedelta(hours=hour), timedelta(microseconds=1)
    for number, at in enumerate((moment - tick, moment, moment + tick)):
        row = LedgerEntry(str(number), "acme", "", "", "m", "m", None, 1, 0, 1, 0, False, Decimal(1), at)
        runtime.store.transact(lambda tx, row=row: book(tx, row))  # type: ignore[misc]
    ledger = Ledger(runtime, HOST)
    for since, until, rows_ in ((moment, moment + tick, 1), (moment, None, 2), (None, moment, 1), (moment, moment, 0)):
        (total,) = ledger.total(since=since, until=until)
        assert total.requests == total.cost == rows_


@examples(25)
@given(st.lists(rows, max_size=12, unique_by=lambda row: row.id), st.integers(1, 5), st.sampled_from([None, "acme"]))
def test_pages_of_the_ledger_are_its_rows_in_the_order_in_which_they_were_booked(
    booked: list[LedgerEntry], limit: int, entity: str | None
) -> None:
    runtime = make(store=MemoryStore(RECORDS))
    for row in booked:
        runtime.store.transact(lambda tx, row=row: book(tx, row))  # type: ignore[misc]
    ledger, found, after = Ledger(runtime, HOST), [], None
    while True:
        page = ledger.list(entity=entity).page(after=after, limit=limit)
        found += page.items
        if not page.has_more:
            break
        assert len(page.items) == limit
        after = page.items[-1].id
    assert found == [row for row in booked if entity in (None, row.entity)]


def test_booking_the_same_completion_again_changes_nothing() -> None:
    runtime = make()
    ask(runtime)
    (entry,) = Ledger(runtime, HOST).list().page().items
    runtime.store.transact(lambda tx: book(tx, entry))
    assert Ledger(runtime, HOST).total() == [UsageSum(requests=1, prompt_tokens=3, completion_tokens=2, cost=REAL)]


def test_a_key_sees_its_entity_alone_and_one_of_some_projects_sees_those() -> None:
    runtime = make()
    ask(runtime, HOST, entity="rival")
    ask(runtime, key(), project="p")
    ask(runtime, key(), project="q")
    ask(runtime, key())
    ask(runtime, key(None, "key-2", "p", "r"))
    whole, part = Ledger(runtime, key()), Ledger(runtime, key(None, "key-2", "p", "r"))
    assert [(one.entity, one.project) for one in whole.total(["entity", "project"])] == [
        ("acme", ""),
        ("acme", "p"),
        ("acme", "q"),
    ]
    assert [(one.project, one.requests) for one in part.total(["project"])] == [("", 1), ("p", 1)]
    assert {row.project for row in part.list()} == {"", "p"}
    assert [row.key_id for row in part.list() if not row.project] == ["key-2"]
    for refused in (lambda: whole.total(entity="rival"), lambda: part.list(project="q")):
        with pytest.raises(Forbidden):
            refused()


def test_a_row_of_another_tenant_is_neither_found_nor_a_cursor() -> None:
    runtime = make()
    ask(runtime, HOST, entity="rival")
    (foreign,) = Ledger(runtime, HOST).list(entity="rival").page().items
    reported, mine = set(), Ledger(runtime, key())
    assert Ledger(runtime, HOST).get(foreign.id) == foreign
    for after in (foreign.id, "nothing"):
        for look in (partial(mine.get, after), partial(mine.list().page, after=after)):
            with pytest.raises(NotFound) as missing:
                look()
            reported.add(str(missing.value).replace(after, ""))
    assert len(reported) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"by": ["weather"]},
        {"by": "entity"},
        {"since": datetime(2026, 1, 1)},
        {"until": datetime.max.replace(tzinfo=UTC)},
    ],
)
def test_a_sum_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        Ledger(make(), HOST).total(**options)


# ---- budgets -----------------------------------------------------------------------------------------------------


class Counting(MemoryStore):
    """Counts transactions."""

    def __init__(self) -> None:
        super().__init__(RECORDS)
        self.transactions = 0

    def transact(self, step: Any, durable: bool = True) -> Any:
        self.transactions += 1
        return super().transact(step, durable)


def test_without_a_budget_or_a_limit_a_completion_is_one_transaction_and_holds_nothing() -> None:
    store = Counting()
    runtime = make(Priced(during=lambda: held(runtime) and pytest.fail("something is held")), store)
    ask(runtime, key())
    assert store.transactions == 1


def test_a_budget_s_worst_case_is_reserved_while_the_backend_works_and_the_real_cost_is_spent() -> None:
    seen: list[Budget | None] = []
    runtime = make(Priced(during=lambda: seen.append(Ledger(runtime, HOST).get_budget())))
    Ledger(runtime, HOST).set_budget(1)
    ask(runtime)
    assert seen[0] is not None
    assert (seen[0].reserved, seen[0].spent) == (WORST, 0)
    after = Ledger(runtime, HOST).get_budget()
    assert after is not None
    assert (after.reserved, after.spent, after.remaining) == (0, REAL, 1 - REAL)
    assert held(runtime) == []


def test_a_request_is_refused_only_when_it_could_pass_the_limit() -> None:
    runtime = make()
    ledger = Ledger(runtime, HOST)
    ledger.set_budget(WORST)
    assert ask(runtime) == REAL
    with pytest.raises(BudgetExceeded, match="USD"):
        ask(runtime)
    ledger.set_budget(WORST + REAL)
    assert ask(runtime) == REAL
    assert held(runtime) == []


def test_n_choices_are_reserved_for() -> None:
    runtime = make()
    Ledger(runtime, HOST).set_budget(WORST + Decimal("0.04"))
    with pytest.raises(BudgetExceeded):
        ask(runtime, n=2)
    Ledger(runtime, HOST).set_budget(WORST + Decimal("0.05"))
    ask(runtime, n=2)


def test_both_the_entity_s_and_the_key_s_budget_bind_and_a_refusal_reserves_on_neither() -> None:
    runtime = make()
    ledger = Ledger(runtime, HOST)
    add_key(runtime, "key-1")
    ledger.set_budget(10)
    ledger.set_budget("0.01", key_id="key-1")
    with pytest.raises(BudgetExceeded):
        ask(runtime, key())
    entity, of_key = ledger.get_budget(), ledger.get_budget(key_id="key-1")
    assert entity is not None
    assert of_key is not None
    assert entity.reserved == of_key.reserved == 0
    assert ask(runtime, key(name="key-2")) == REAL
    ledger.set_budget(10, key_id="key-1")
    ask(runtime, key())
    budgets = ledger.get_budget(), ledger.get_budget(key_id="key-1"), ledger.get_budget(key_id="key-2")
    assert [budget and budget.spent for budget in budgets] == [2 * REAL, REAL, None]


def add_key(runtime: Any, name: str, entity: str = "acme") -> None:
    runtime.store.transact(lambda tx: tx.add(ApiKey(name, "my_x", name, name, entity, (), START)))


def test_a_budget_of_an_unknown_or_foreign_key_is_refused() -> None:
    runtime = make()
    add_key(runtime, "theirs", "rival")
    for name in ("nobody", "theirs"):
        with pytest.raises(NotFound):
            Ledger(runtime, HOST).set_budget(1, key_id=name)


@pytest.mark.parametrize("limit", [1.5, True, "ten", "-1", "NaN", "Infinity", "1e40", "1e-40", None])
def test_a_limit_must_be_an_exact_amount(limit: Any) -> None:
    with pytest.raises(InvalidInput, match="limit"):
        Ledger(make(), HOST).set_budget(limit)


def test_only_the_host_sets_budgets_and_a_key_reads_its_entity_s() -> None:
    runtime = make()
    Ledger(runtime, HOST).set_budget(3)
    mine = Ledger(runtime, key())
    budget = mine.get_budget()
    assert budget is not None
    assert budget.limit == 3
    for refused in (lambda: mine.set_budget(9), mine.remove_budget, lambda: mine.get_budget(entity="rival")):
        with pytest.raises(Forbidden):
            refused()


def test_a_budget_that_is_replaced_while_a_request_runs_is_neither_negative_nor_overrun() -> None:
    def replace_budget() -> None:
        ledger.remove_budget()
        assert ledger.set_budget(1).reserved == WORST

    runtime = make(Priced(during=replace_budget))
    ledger = Ledger(runtime, HOST)
    ledger.set_budget(1)
    ask(runtime)
    budget = ledger.get_budget()
    assert budget is not None
    assert (budget.reserved, budget.spent) == (0, REAL)
    ledger.remove_budget()
    ledger.remove_budget()
    assert ledger.get_budget() is None


class Fails(Exception):
    pass


def fails() -> None:
    raise Fails


@pytest.mark.parametrize("streamed", [False, True])
def test_a_backend_that_fails_half_way_is_booked_for_what_it_made_and_holds_nothing(streamed: bool) -> None:
    runtime = make(Priced(during=fails))
    ledger = Ledger(runtime, HOST)
    ledger.set_budget(1)
    chat = Chat(runtime, HOST)
    with pytest.raises(BackendError):
        list(chat.stream(**ASK)) if streamed else chat.complete(**ASK)
    (entry,) = ledger.list().page().items
    budget = ledger.get_budget()
    assert budget is not None
    assert (entry.completion_tokens, entry.cost) == (1, REAL - Decimal("0.01"))
    assert (budget.reserved, budget.spent) == (0, entry.cost)
    assert held(runtime) == []


def test_a_backend_that_makes_nothing_costs_nothing_and_holds_nothing() -> None:
    class Broken(Priced):
        def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
            raise Fails

    runtime = make(Broken())
    Ledger(runtime, HOST).set_budget(1)
    with pytest.raises(BackendError):
        ask(runtime)
    budget = Ledger(runtime, HOST).get_budget()
    assert budget is not None
    assert (budget.reserved, budget.spent, spent(runtime)) == (0, 0, 0)
    assert held(runtime) == []


class Meeting:
    """Where each of sixteen waits until all have come; a thread that comes later passes."""

    def __init__(self) -> None:
        self.come_so_far, self.change = 0, threading.Condition()

    def come(self) -> None:
        with self.change:
            self.come_so_far += 1
            self.change.notify_all()
            assert self.change.wait_for(lambda: self.come_so_far >= 16, timeout=60)


def let_in(chat: Chat, meeting: Meeting, refused: type[Exception]) -> int:
    """How many of sixteen threads are let in that ask at once; those that are not come to the meeting as well."""

    def attempt(_: int) -> bool:
        try:
            chat.complete(**ASK)
        except refused:
            meeting.come()
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(attempt, range(16))).count(True)


@pytest.mark.parametrize(("fitting", "on_disk"), [(16, False), (10, False), (0, False), (10, True)])
def test_of_sixteen_threads_exactly_those_that_fit_are_let_in(fitting: int, on_disk: bool, tmp_path: Path) -> None:
    """All that are let in run at once, so that the worst cases of all stand side by side."""
    meeting = Meeting()
    store: Store = SqliteStore(str(tmp_path / "yard.db"), RECORDS) if on_disk else MemoryStore(RECORDS)
    runtime = make(Priced(during=meeting.come), store)
    ledger = Ledger(runtime, HOST)
    ledger.set_budget(WORST * fitting)
    assert let_in(Chat(runtime, HOST), meeting, BudgetExceeded) == fitting
    budget = ledger.get_budget()
    assert budget is not None
    assert (budget.reserved, budget.spent) == (0, REAL * fitting)
    assert held(runtime) == []
    store.close()


def test_no_commit_of_a_crowd_overruns_its_budget() -> None:
    class Watching(MemoryStore):
        worst = Decimal(0)

        def transact(self, step: Any, durable: bool = True) -> Any:
            def watched(tx: Any) -> Any:
                outcome = step(tx)
                budget = tx.get(Budget, "acme")
                self.worst = max(self.worst, budget.spent + budget.reserved)
                return outcome

            return super().transact(watched if self._tables[Budget].rows else step, durable)

    store = Watching(RECORDS)
    runtime = make(store=store)
    limit = WORST * 3 + REAL * 17
    Ledger(runtime, HOST).set_budget(limit)

    def attempt(_: int) -> bool:
        try:
            Chat(runtime, HOST).complete(**ASK)
        except BudgetExceeded:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        let_in = list(pool.map(attempt, range(64))).count(True)
    while attempt(0):  # what was reserved while others were refused can be spent now
        let_in += 1
    assert 0 < store.worst <= limit
    assert spent(runtime) == REAL * let_in <= limit
    assert let_in >= 18


# ---- requests of a key at once -----------------------------------------------------------------------------------


def test_of_sixteen_threads_of_a_key_exactly_as_many_as_allowed_run_at_once_and_later_all_may() -> None:
    meeting = Meeting()
    runtime = make(Priced(during=meeting.come), MemoryStore(RECORDS))
    chat = Chat(runtime, key(Limits(concurrent_requests=4)))
    assert let_in(chat, meeting, RateLimited) == 4
    assert held(runtime) == []
    chat.complete(**ASK)


def test_a_stream_holds_its_slot_until_it_is_closed() -> None:
    runtime = make()
    chat = Chat(runtime, key(Limits(concurrent_requests=1)))
    stream = chat.stream(**ASK)
    next(stream)
    with pytest.raises(RateLimited):
        chat.complete(**ASK)
    stream.close()
    chat.complete(**ASK)


def test_a_cancelled_task_gives_back_its_slot_and_its_reservation() -> None:
    begun, go = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go.wait(60)

    runtime = make(Priced(during=wait, blocking=True))
    Ledger(runtime, HOST).set_budget(1)

    async def main() -> None:
        task = asyncio.create_task(Chat(runtime, key(Limits(concurrent_requests=1))).acomplete(**ASK))
        await asyncio.get_running_loop().run_in_executor(None, begun.wait, 60)
        task.cancel()
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    budget = Ledger(runtime, HOST).get_budget()
    assert held(runtime) == []
    assert budget is not None
    assert (budget.reserved, budget.spent) == (0, spent(runtime))
    assert spent(runtime) > 0


def test_the_echo_model_is_free_and_passes_an_exhausted_budget() -> None:
    runtime = make(EchoBackend())
    Ledger(runtime, HOST).set_budget(0)
    assert Chat(runtime, HOST).complete(model="echo", messages="hi").text == "hi"

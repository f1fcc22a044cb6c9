"""Every method of a store, with a fault at each thing that it asks of the server: an answer or a documented error."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import attrs
import psycopg
import pytest

from modelyard.errors import OutcomeUnknown, RecordNotFound, StoreBusy, StoreClosed
from modelyard.parts.postgres import store as store_module
from modelyard.parts.postgres.round_trips_fast import PipelinedConnection
from modelyard.parts.postgres.store import PostgresStore, migrate
from modelyard.protocols import MonthlyStore, Store
from modelyard.stores import Index, Record
from modelyard.testing import CONTRACT_RECORDS
from postgres_server import PostgresServer
from sampled import in_campaign
from store_calls import CALLS as STORE_CALLS
from store_calls import Call, methods_of, outcome_of, prepare


@attrs.frozen
class Line:
    id: str


IMPATIENT = 0.05
RECORDS = [*CONTRACT_RECORDS, Record(Line, "lines", ("id",), indexes={"all": Index(())}, months="id")]
Fault = Callable[[Any], None]


def _page_of_a_month(store: PostgresStore) -> None:
    for month in store.months(Line):
        store.month_page(Line, month, None, 10)


def _month_dropped(store: PostgresStore) -> None:
    for month in store.months(Line)[-1:]:
        store.drop_month(Line, month)


CALLS: Mapping[str, Sequence[Call]] = {
    "months": [lambda store: store.months(Line)],
    "month_page": [_page_of_a_month],
    "drop_month": [_month_dropped],
    "other_tables": [lambda store: store.other_tables()],
    **STORE_CALLS,  # the last one closes it
}


def test_no_method_is_left_out() -> None:
    assert methods_of(Store, MonthlyStore) <= {*CALLS}


# ---- faults --------------------------------------------------------------------------------------------------------


def _end(connection: Any, address: str) -> None:
    if not connection.closed:
        with psycopg.connect(address, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.info.backend_pid])


_TIMED_OUT = "DO $$ BEGIN RAISE EXCEPTION 'canceling statement due to timeout' USING ERRCODE = '57014'; END $$"


class Faults:
    """Has the server fail at the question `at`, and if `lasting` at each that follows. Counts them in `asked`."""

    def __init__(self, patched: pytest.MonkeyPatch, address: str, kind: str, at: int, lasting: bool) -> None:
        self.asked, self._address, self._kind, self._at, self._lasting = 0, address, kind, at, lasting
        for name in ("round_trip", "execute"):
            patched.setattr(PipelinedConnection, name, self._failing(name))
        connect = PipelinedConnection.connect

        def connecting(*given: Any, **more: Any) -> Any:
            if kind == "no connection is left" and self.asked >= at:
                raise psycopg.errors.TooManyConnections("sorry, too many clients already")
            return connect(*given, **more)

        patched.setattr(PipelinedConnection, "connect", connecting)

    def _failing(self, name: str) -> Callable[..., Any]:
        original = getattr(PipelinedConnection, name)

        def failing(connection: Any, asked: Any, *more: Any, **options: Any) -> Any:
            self.asked += 1
            if self.asked != self._at and not (self._lasting and self.asked > self._at):
                return original(connection, asked, *more, **options)
            if self._kind == "a statement takes too long":
                first = [(_TIMED_OUT, ()), *asked] if name == "round_trip" else _TIMED_OUT
                return original(connection, first, **options)
            if self._kind == "ended after it":
                result = original(connection, asked, *more, **options)
                _end(connection, self._address)
                return result
            _end(connection, self._address)
            return original(connection, asked, *more, **options)

        return failing


KINDS = [
    *itertools.product(["ended before it", "ended after it", "a statement takes too long"], [False, True]),
    ("no connection is left", False),
]
OFTEN = [kind if kind in {KINDS[0], KINDS[3], KINDS[4], KINDS[6]} else in_campaign(kind) for kind in KINDS]
"""Each kind is tried in each run, once or lasting; both by the campaign."""
MAY_BE = (StoreBusy, OutcomeUnknown, RecordNotFound)
"""The documented errors that these faults may end in: no other tells a caller to come back."""


def each_question(address: str, kind: str, lasting: bool, opened: Callable[[], Any], call: Callable[[Any], Any]) -> int:
    """Make the call on what is opened before the faults, once for each question that it asks; return how many."""
    for at in itertools.count(1):
        on = opened()
        with pytest.MonkeyPatch.context() as patched:
            faults = Faults(patched, address, kind, at, lasting)
            error = outcome_of(lambda on=on: call(on))
        assert error is None or isinstance(error, MAY_BE), f"question {at}: {error!r}"
        if faults.asked < at:
            return at - 1
    raise AssertionError


@pytest.fixture(scope="module")
def address(postgres: PostgresServer) -> Iterator[str]:
    address = postgres.create_database()
    yield address
    postgres.drop_database(address)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "lasting"), OFTEN)
def test_a_fault_at_any_question_ends_in_an_answer_or_in_an_error_that_is_documented(
    address: str, kind: str, lasting: bool
) -> None:
    with ExitStack() as stack:
        stores: list[PostgresStore] = []

        def opened(new: bool) -> PostgresStore:
            if not stores or new:
                stores.append(stack.enter_context(closing(PostgresStore(address, RECORDS, patience=IMPATIENT))))
            store = stores[-1]
            prepare(store)
            return store

        for name, calls in CALLS.items():
            for call in calls:
                asked = each_question(address, kind, lasting, partial(opened, name in ("close", "drop_month")), call)
                assert asked or name in ("settings_version", "subscribe")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "lasting"), OFTEN)
@pytest.mark.parametrize("open_it", [PostgresStore, migrate])
def test_a_fault_while_a_store_is_opened_ends_in_an_error_that_is_documented(
    address: str, monkeypatch: pytest.MonkeyPatch, kind: str, lasting: bool, open_it: Any
) -> None:
    monkeypatch.setattr(store_module, "_MIGRATION_PATIENCE", IMPATIENT)
    few = RECORDS[-1:]
    PostgresStore(address, few, "few").close()

    def call(_: None) -> None:
        opening = open_it(address, few, "few", **({} if open_it is migrate else {"patience": IMPATIENT}))
        if isinstance(opening, PostgresStore):
            opening.close()

    assert each_question(address, kind, lasting, lambda: None, call) > 3


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("FATAL:  sorry, too many clients already", "no connection left.*max_connections"),
        ("FATAL:  remaining connection slots are reserved for non-replication superuser", "no connection left"),
        ("FATAL:  the database system is not yet accepting connections", "starting or stopping.*try again"),
        ("FATAL:  the database system is shutting down", "starting or stopping"),
        ("could not connect: Connection refused", "cannot be reached.*is the server running"),
    ],
)
def test_a_connection_that_is_refused_says_why(monkeypatch: pytest.MonkeyPatch, words: str, expected: str) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise psycopg.OperationalError(words)

    monkeypatch.setattr(PipelinedConnection, "connect", refuse)
    with pytest.raises(StoreBusy, match=expected):
        PostgresStore("postgresql:///yard", [], patience=0)


def test_to_open_a_store_waits_for_a_server_that_comes_up(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connect, refusals = (
        PipelinedConnection.connect,
        ["is starting up", "not yet accepting connections", "too many clients"],
    )

    def refusing(*given: Any, **more: Any) -> Any:
        if refusals:
            raise psycopg.OperationalError(refusals.pop())
        return connect(*given, **more)

    monkeypatch.setattr(PipelinedConnection, "connect", refusing)
    PostgresStore(address, RECORDS, patience=60).close()
    assert not refusals


@pytest.mark.parametrize("name", [name for name in CALLS if name != "close"])
def test_a_closed_store_says_so(address: str, name: str) -> None:
    with closing(PostgresStore(address, RECORDS)) as store:
        prepare(store)
    for call in CALLS[name][:1] if name == "atransact" else CALLS[name]:
        assert isinstance(outcome_of(lambda call=call: call(store)), StoreClosed)

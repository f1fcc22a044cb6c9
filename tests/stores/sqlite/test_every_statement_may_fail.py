"""Every method of a store on a file, with a fault at each statement: an answer or a documented error."""

import itertools
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from failing_calls import Faults
from modelyard.errors import RecordNotFound, StoreError
from modelyard.protocols import Store, VerifiableStore
from modelyard.stores.sqlite import SqliteStore, connection
from modelyard.testing import CONTRACT_RECORDS
from store_calls import CALLS, methods_of, outcome_of, prepare

SQLITE_CALLS = {"verify": [lambda store: store.verify()], **CALLS}  # it is closed at last
CODES = {"busy": 5, "locked": 6, "read-only": 8, "interrupted": 9, "reading failed": 266, "corrupt": 11, "full": 13}
CODES |= {"cannot be opened": 14, "no database": 26, "removed": 1032}


def test_no_method_is_left_out() -> None:
    assert methods_of(Store) == {*CALLS}
    assert methods_of(Store, VerifiableStore) == {*SQLITE_CALLS}


def fault(words: str) -> sqlite3.Error:
    error = sqlite3.OperationalError(words)
    error.sqlite_errorcode = CODES[words]
    return error


class Asked:
    """Faults of the statements of connections that are made from now on."""

    faults: Faults | None = None

    def ask(self) -> None:
        if self.faults is not None:
            self.faults.ask()

    def connect(self, *given: Any, **more: Any) -> Any:
        asked = self

        class Cursor(sqlite3.Cursor):
            def execute(self, *statement: Any) -> Any:
                asked.ask()
                return super().execute(*statement)

        class Connection(sqlite3.Connection):
            def execute(self, *statement: Any) -> Any:
                asked.ask()
                return super().execute(*statement)

            def cursor(self, *_: Any) -> Any:
                return super().cursor(Cursor)

        return sqlite3.connect(*given, factory=Connection, **more)


def each_statement(asked: Asked, make: Callable[[], Any], lasting: bool, on: Any, call: Callable[[Any], Any]) -> None:
    for at in itertools.count(1):
        store = on()
        asked.faults = faults = Faults(make, at, lasting)
        error = outcome_of(lambda store=store: call(store))
        asked.faults = None
        assert error is None or isinstance(error, StoreError | RecordNotFound), f"statement {at}: {error!r}"
        if faults.asked < at:
            return


@pytest.mark.slow
@pytest.mark.parametrize("words", CODES)
def test_a_fault_at_any_statement_is_told_by_a_documented_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    asked = Asked()
    monkeypatch.setattr(connection, "sqlite3", SimpleNamespace(**{**vars(sqlite3), "connect": asked.connect}))
    stores: list[SqliteStore] = []

    def opened(new: bool) -> SqliteStore:
        if new or not stores:
            stores.append(SqliteStore(tmp_path / "yard.db", CONTRACT_RECORDS, patience=0.02))
        prepare(stores[-1])  # so it works after the fault
        return stores[-1]

    for name, calls in SQLITE_CALLS.items():
        for call in calls:
            each_statement(asked, lambda: fault(words), False, lambda name=name: opened(name == "close"), call)
    for store in stores:
        store.close()

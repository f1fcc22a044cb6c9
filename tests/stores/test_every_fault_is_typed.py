"""Every method of a closed store says that it is closed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from modelyard.errors import StoreClosed
from modelyard.protocols import Store, VerifiableStore
from modelyard.stores.memory import MemoryStore
from modelyard.stores.sqlite import SqliteStore
from modelyard.testing import CONTRACT_RECORDS, RunTwiceStore
from store_calls import CALLS, Call, methods_of, outcome_of, prepare

SQLITE_CALLS = {
    **CALLS,
    "verify": [lambda store: store.verify()],
    "other_tables": [lambda store: store.other_tables()],
}


def test_no_method_is_left_out() -> None:
    assert methods_of(Store) == {*CALLS}
    assert methods_of(Store, VerifiableStore) <= {*SQLITE_CALLS}


def _open_file(folder: Path) -> Store:
    return SqliteStore(folder / "yard.db", CONTRACT_RECORDS)


def _open_memory(folder: Path) -> Store:
    return MemoryStore(CONTRACT_RECORDS)


def _open_memory_twice(folder: Path) -> Store:
    return RunTwiceStore(MemoryStore(CONTRACT_RECORDS))


STORES: Mapping[Callable[[Path], Store], Mapping[str, Sequence[Call]]] = {
    _open_file: SQLITE_CALLS,
    _open_memory: CALLS,
    _open_memory_twice: CALLS,
}


@pytest.mark.parametrize(
    ("opened", "name"),
    [(opened, name) for opened, calls in STORES.items() for name in calls if name != "close"],
)
def test_a_closed_store_says_so(tmp_path: Path, opened: Callable[[Path], Store], name: str) -> None:
    with closing(opened(tmp_path)) as store:
        prepare(store)
    calls = STORES[opened][name]
    for call in calls[:1] if name == "atransact" else calls:  # the others of that look at documented errors themselves
        assert isinstance(outcome_of(lambda call=call: call(store)), StoreClosed)
    store.close()

"""Every method of a closed store says that it is closed."""

from contextlib import closing
from pathlib import Path

import pytest

from modelyard.errors import StoreClosed
from modelyard.protocols import Store, VerifiableStore
from modelyard.stores.sqlite import SqliteStore
from modelyard.testing import CONTRACT_RECORDS
from store_calls import CALLS, methods_of, outcome_of, prepare

SQLITE_CALLS = {
    **CALLS,
    "verify": [lambda store: store.verify()],
    "other_tables": [lambda store: store.other_tables()],
}


def test_no_method_is_left_out() -> None:
    assert methods_of(Store) == {*CALLS}
    assert methods_of(Store, VerifiableStore) <= {*SQLITE_CALLS}


@pytest.mark.parametrize("name", [name for name in SQLITE_CALLS if name not in ("atransact", "close")])
def test_a_closed_file_says_so(tmp_path: Path, name: str) -> None:
    with closing(SqliteStore(tmp_path / "yard.db", CONTRACT_RECORDS)) as store:
        prepare(store)
    for call in SQLITE_CALLS[name]:
        assert isinstance(outcome_of(lambda call=call: call(store)), StoreClosed)

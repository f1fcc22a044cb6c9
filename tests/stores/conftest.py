"""A SQLite store, and the file that it lies in."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from modelyard.stores.sqlite import SqliteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "yard.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    from modelyard.testing import CONTRACT_RECORDS

    with closing(SqliteStore(path, CONTRACT_RECORDS)) as store:
        yield store

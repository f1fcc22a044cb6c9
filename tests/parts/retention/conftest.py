"""A small yard: everything in memory, time moved by hand; and each store that ships."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from modelyard.domain.schema import RECORDS
from modelyard.parts.postgres.store import PostgresStore
from modelyard.protocols import Store
from modelyard.stores.memory import MemoryStore
from modelyard.stores.sqlite import SqliteStore
from yard_fixtures import build, platform, undisturbed, yard, yard_on_disk  # noqa: F401 - fixtures


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.servers)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    match request.param:
        case "memory":
            made: Store = MemoryStore(RECORDS)
        case "sqlite":
            made = SqliteStore(tmp_path / "store.db", RECORDS)
        case _:
            made = PostgresStore(request.getfixturevalue("yard_address"), RECORDS)
    with closing(made):
        yield made

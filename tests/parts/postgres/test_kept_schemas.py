"""Schemas that earlier versions made become, by `migrate`, what this version makes: tables, columns and indexes.

A fixture is `pg_dump --schema=modelyard --inserts` of an empty store of that commit, without comments and settings.
"""

import lzma
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from modelyard.errors import StoreCorrupt, StoreError
from modelyard.parts.postgres.store import PostgresStore, migrate
from modelyard.stores import RECORDS

FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("*.sql.xz"))

_COLUMNS = """
    SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE c.relnamespace = 'modelyard'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
"""
_INDEXES = """
    SELECT c.relname, t.relname, pg_get_indexdef(c.oid)
    FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid JOIN pg_class t ON t.oid = i.indrelid
    WHERE c.relnamespace = 'modelyard'::regnamespace AND NOT c.relispartition
"""


def schema_of(address: str) -> Sequence[object]:
    with psycopg.connect(address) as connection:
        return sorted([*connection.execute(_COLUMNS), *connection.execute(_INDEXES)], key=str)


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: path.name.partition(".")[0])
def test_a_migrated_schema_is_that_of_a_new_store(fixture: Path, postgres: object) -> None:
    old, new = postgres.create_database(), postgres.create_database()
    try:
        with psycopg.connect(old) as connection:
            connection.execute(lzma.decompress(fixture.read_bytes()).decode())
        with pytest.raises(StoreError, match="modelyard migrate"):
            PostgresStore(old, RECORDS)
        assert migrate(old, RECORDS)
        for address in (old, new):
            PostgresStore(address, RECORDS).close()
        assert schema_of(old) == schema_of(new)
    finally:
        for address in (old, new):
            postgres.drop_database(address)


@pytest.mark.parametrize("table", ["modelyard_migrations", "modelyard_commits", "ledger", "jobs"])
def test_a_schema_that_has_lost_a_table_is_corrupt(table: str, yard_address: str) -> None:
    PostgresStore(yard_address, RECORDS).close()
    with psycopg.connect(yard_address) as connection:
        connection.execute(f'DROP TABLE modelyard."{table}" CASCADE')
    with (
        pytest.raises(StoreCorrupt, match=f"has lost the tables.*{table}.*restore a backup"),
        closing(PostgresStore(yard_address, RECORDS)),
    ):
        pass

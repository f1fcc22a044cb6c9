"""A server whose disk is full refuses writes as `StorageFull` and still reads; with more room it continues."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from modelyard.errors import StorageFull
from modelyard.parts.contracts.store_values import Entry
from modelyard.parts.postgres.store import PostgresStore
from modelyard.protocols import Tx
from modelyard.testing import CONTRACT_RECORDS
from postgres_server import PostgresServer

SIZE = "48m"
TEXT = "x" * 900


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A disk of a few megabytes that the server's user may write to."""
    folder = Path(tempfile.mkdtemp(prefix="yard-disk-", dir="/tmp"))
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        folder.rmdir()
        pytest.skip("a small disk cannot be mounted here: it takes root, on Linux")
    shutil.chown(folder, "nobody", "nogroup")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)
    folder.rmdir()


@pytest.fixture
def address_on_it(postgres: PostgresServer, small_disk: Path) -> Iterator[str]:
    """The address of a database there. A failed test drops it, too: the server would go on writing to it."""
    postgres.execute(f"CREATE TABLESPACE small LOCATION '{small_disk}'")
    postgres.execute("CREATE DATABASE full_disk TABLESPACE small")
    postgres.execute("CHECKPOINT")  # a new database is copied with holes, which take room once they are written back
    address = postgres.address("full_disk")
    yield address
    postgres.drop_database(address)
    postgres.execute("DROP TABLESPACE small")


def add(store: PostgresStore, name: str, count: int) -> list[str]:
    """Store so many entries in one step, and return their ids."""
    names = [f"{name}-{number}" for number in range(count)]

    def step(tx: Tx) -> None:
        for each in names:
            tx.add(Entry(each, text=TEXT))

    store.transact(step)
    return names


def test_a_full_disk_refuses_writes_and_only_until_there_is_room(small_disk: Path, address_on_it: str) -> None:
    filler = small_disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 8 * 2**20)
    stored: list[str] = []
    with closing(PostgresStore(address_on_it, CONTRACT_RECORDS, patience=3)) as store:
        with pytest.raises(StorageFull):
            stored.extend(name for batch in range(500) for name in add(store, f"{batch}", 100))
        assert store.read(lambda snapshot: snapshot.count(Entry, "all")) == len(stored) > 0
        with pytest.raises(StorageFull):
            add(store, "late", 1000)
        filler.unlink()
        stored += add(store, "after", 1)
        assert store.read(lambda snapshot: snapshot.count(Entry, "all")) == len(stored)

"""Opening a file costs what is opened, however much is in it; damage is found where a page is read, and by `verify`."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from modelyard import open_platform
from modelyard.compose import open_store
from modelyard.errors import StoreCorrupt
from modelyard.parts.contracts.store_values import Counter, Specimen
from modelyard.stores.sqlite import SqliteStore, connection, store
from modelyard.testing import CONTRACT_RECORDS

_IO = Path("/proc/self/io")
_ROWS = """
    WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {})
    INSERT INTO {} SELECT {} FROM numbers
"""


def enlarge(path: Path, rows: int) -> None:
    """Give the ledger and the events of a job so many rows."""
    with closing(sqlite3.connect(path)) as file:
        for table in ("ledger_indexed", "job_events"):
            columns = [*file.execute(f'SELECT name, type FROM pragma_table_info("{table}")')]
            values = {"TEXT": "printf('%08d', n)", "INTEGER": "n", "REAL": "n"}
            file.execute(_ROWS.format(rows, f'"{table}"', ", ".join(values[kind] for _, kind in columns)))
        file.commit()


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A file of few rows, and one of many."""
    paths = []
    for rows in (1_000, 300_000):
        paths.append(tmp_path_factory.mktemp("sizes") / "yard.db")
        open_platform(paths[-1]).close()
        enlarge(paths[-1], rows)
    return paths


class Counted:
    """The bytes that this process has read, and the instructions of SQLite's machine."""

    bytes = steps = 0

    def step(self) -> int:
        self.steps += 1
        return 0


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    counted = Counted()

    def connect(*arguments: Any, **options: Any) -> Any:
        made = real(*arguments, **options)
        made.set_progress_handler(counted.step, 1)
        return made

    def read() -> int:
        return int(_IO.read_text().split()[1])

    real = connection.connect
    with monkeypatch.context() as patched:
        for module in (connection, store):
            patched.setattr(module, "connect", connect)
        before = read()
        yield counted
        counted.bytes = read() - before


def answer(path: Path) -> None:
    with open_platform(path) as platform:
        assert platform.chat.complete(model="echo", messages="hello").text


@pytest.mark.slow
@pytest.mark.skipif(not _IO.exists(), reason="what a process reads is counted on Linux alone")
@pytest.mark.parametrize("use", [lambda path: open_platform(path).close(), answer], ids=["open", "first answer"])
def test_opening_reads_as_much_of_a_large_file_as_of_a_small_one(
    sizes: list[Path], use: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sizes[1].stat().st_size > 50 * sizes[0].stat().st_size
    for path in sizes:
        use(path)  # modules are loaded, and the file has what the first use of it writes
    costs = []
    for path in sizes:
        with counting(monkeypatch) as counted:
            use(path)
        costs.append(counted)
    small, large = costs
    assert small.steps > 100
    assert large.steps <= 1.2 * small.steps
    assert large.bytes <= 1.2 * small.bytes + 2**16  # the trees of a large file are a page or two deeper


def spoil(path: Path, table: str) -> None:
    """Overwrite the pages of a table, but not its first."""
    with closing(sqlite3.connect(path)) as file:
        size = file.execute("PRAGMA page_size").fetchone()[0]
        found = file.execute("SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf'", [table])
        pages = [page for (page,) in found]
    with path.open("r+b") as raw:
        for page in pages:
            raw.seek((page - 1) * size)
            raw.write(b"\xff" * size)


@pytest.fixture
def damaged(path: Path) -> Path:
    with closing(SqliteStore(path, CONTRACT_RECORDS, "process")) as whole:
        whole.transact(lambda tx: [tx.add(Specimen(f"s{n}", text="x" * 500)) for n in range(300)])
        whole.verify()
    spoil(path, "specimens")
    return path


def test_a_damaged_page_is_found_where_it_is_read_and_by_verify_and_backup(damaged: Path, tmp_path: Path) -> None:
    with closing(SqliteStore(damaged, CONTRACT_RECORDS)) as opened:
        opened.transact(lambda tx: tx.add(Counter("c")))
        for reads in (
            lambda: opened.read(lambda snapshot: snapshot.get(Specimen, "s250")),
            lambda: opened.transact(lambda tx: tx.get(Specimen, "s250")),
            opened.verify,
            lambda: opened.backup(str(tmp_path / "copy.db")),
        ):
            with pytest.raises(StoreCorrupt):
                reads()
    assert not os.path.lexists(tmp_path / "copy.db")


def test_doctor_finds_damage_that_opening_does_not(tmp_path: Path) -> None:
    path = tmp_path / "yard.db"
    open_platform(path).close()
    enlarge(path, 1000)
    spoil(path, "ledger_by_time")
    open_store(path).close()
    with open_platform(path) as platform:
        assert platform.health.system_check().store.success
        check = platform.health.system_check(deep=True)
    assert not check.store.success
    assert "damaged" in (check.store.error or "")

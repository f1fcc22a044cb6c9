"""The file of a SQLite store: what it looks like, what is refused, how it grows older and is copied."""

import errno
import os
import sqlite3
import stat
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import attrs
import pytest

from modelyard.domain.record import Index, Record
from modelyard.errors import StorageFull, StoreCorrupt, StoreError, StoreTooNew
from modelyard.parts.contracts.store_values import Colour, Counter, Item, Specimen
from modelyard.protocols import Tx
from modelyard.stores.sqlite import Migration, SqliteStore
from modelyard.stores.sqlite import store as opening
from modelyard.testing import CONTRACT_RECORDS


def fill(path: Path, size: int = 300) -> None:
    """A closed store with some hundred kilobytes in it."""
    with closing(SqliteStore(path, CONTRACT_RECORDS, "process")) as store:
        store.transact(lambda tx: [tx.add(Specimen(f"s{n}", text="x" * 500)) for n in range(size)])


def contents(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


def refused(path: Path, error: type[StoreError], **options: object) -> None:
    """Opening raises, twice alike, and changes no byte of any file."""
    before = contents(path.parent)
    for _ in range(2):
        with pytest.raises(error):
            SqliteStore(path, CONTRACT_RECORDS, **options)
    assert contents(path.parent) == before


# ---- what it looks like ----------------------------------------------------------------------------------------------


def test_only_its_owner_may_read_a_new_file(store: SqliteStore, path: Path) -> None:
    assert {stat.S_IMODE(entry.stat().st_mode) for entry in path.parent.iterdir()} == {0o600}


def test_any_sqlite_tool_reads_the_rows(store: SqliteStore, path: Path) -> None:
    store.transact(lambda tx: tx.add(Specimen("s", text="é", colour=Colour.BLUE, mapping={"k": ["ü", 1.5]})))
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        row = dict(connection.execute("SELECT * FROM specimens").fetchone())
        strict = connection.execute("SELECT strict FROM pragma_table_list WHERE name = 'specimens'").fetchone()[0]
    assert (row["text"], row["colour"], row["mapping"]) == ("é", "blue", '{"k":["ü",1.5]}')
    assert row["at"] == "2026-01-01T00:00:00.000000+00:00"
    assert (row["flag"], row["price"], row["maybe_text"]) == (0, "0", None)
    assert strict == 1


def test_a_relative_path_stays_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with closing(SqliteStore("yard.db", CONTRACT_RECORDS)) as store:
        monkeypatch.chdir(tmp_path / "elsewhere")
        store.transact(lambda tx: tx.add(Counter("c")))
        assert store.read(lambda snapshot: snapshot.get(Counter, "c")) == Counter("c")


def test_a_name_that_means_something_in_a_uri_is_only_a_name(tmp_path: Path) -> None:
    path = tmp_path / "a?mode=memory&x=%41#b.db"
    with closing(SqliteStore(path, CONTRACT_RECORDS)) as store:
        store.transact(lambda tx: tx.add(Counter("c")))
    assert path.stat().st_size > 0


def test_check_reports_the_facts(store: SqliteStore) -> None:
    facts = store.check()
    assert (facts["engine"], facts["version"], facts["journal"]) == ("sqlite", sqlite3.sqlite_version, "wal")
    assert (facts["warning"] is None) == (sqlite3.sqlite_version_info >= (3, 51, 3))


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_a_database_is_refused(path: Path) -> None:
    path.write_text("The yard opens at eight.\n" * 100)
    refused(path, StoreCorrupt)


def test_a_database_of_another_application_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE theirs (id INTEGER)")
    refused(path, StoreCorrupt)


def test_a_log_that_a_crash_left_is_not_copied_into_a_refused_file(path: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.db"
    with closing(sqlite3.connect(theirs)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE theirs (id INTEGER)")
        crashed = {suffix: Path(f"{theirs}{suffix}").read_bytes() for suffix in ("", "-wal")}
    for suffix, data in crashed.items():
        Path(f"{path}{suffix}").write_bytes(data)
    with pytest.raises(StoreCorrupt):
        SqliteStore(path, CONTRACT_RECORDS)
    assert {suffix: Path(f"{path}{suffix}").read_bytes() for suffix in ("", "-wal")} == crashed


def test_a_log_that_a_crash_left_is_read(path: Path, tmp_path: Path) -> None:
    with closing(SqliteStore(path, CONTRACT_RECORDS)) as store:
        store.transact(lambda tx: tx.add(Counter("c")))
        for suffix in ("", "-wal"):
            Path(f"{tmp_path}/copy.db{suffix}").write_bytes(Path(f"{path}{suffix}").read_bytes())
    with closing(SqliteStore(tmp_path / "copy.db", CONTRACT_RECORDS)) as copy:
        assert copy.read(lambda snapshot: snapshot.get(Counter, "c")) == Counter("c")


def test_a_truncated_file_is_refused(path: Path) -> None:
    fill(path)
    os.truncate(path, path.stat().st_size // 2)
    refused(path, StoreCorrupt)


def test_a_file_with_a_damaged_first_page_is_refused(path: Path) -> None:
    fill(path)
    with path.open("r+b") as file:
        file.write(b"\xff" * 4096)
    refused(path, StoreCorrupt)


def test_a_newer_file_is_refused(path: Path) -> None:
    newer = Migration("0002_of_the_future", lambda database: None)
    SqliteStore(path, CONTRACT_RECORDS, migrations=[newer]).close()
    refused(path, StoreTooNew)


def test_other_columns_than_the_declared_ones_are_refused(path: Path) -> None:
    SqliteStore(path, CONTRACT_RECORDS).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE counters ADD COLUMN colour TEXT")
    with pytest.raises(StoreCorrupt, match=r"counters .* \['colour'\]"):
        SqliteStore(path, CONTRACT_RECORDS)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("colour = 'ultraviolet'", "ultraviolet"),
        ("mapping = '{} {}'", "more text after the JSON value"),
        ("mapping = '{'", "JSONDecodeError"),
    ],
)
def test_a_row_that_no_record_has_written_is_corruption(store: SqliteStore, path: Path, change: str, why: str) -> None:
    store.transact(lambda tx: tx.add(Specimen("s")))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE specimens SET {change}")
        connection.commit()
    with pytest.raises(StoreCorrupt, match=why):
        store.read(lambda snapshot: snapshot.get(Specimen, "s"))


def test_a_folder_that_is_missing_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        SqliteStore(tmp_path / "missing" / "yard.db", CONTRACT_RECORDS)
    with pytest.raises(StoreError):
        SqliteStore(tmp_path, CONTRACT_RECORDS)


def test_an_unknown_durability_is_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="durability"):
        SqliteStore(path, CONTRACT_RECORDS, "none")  # type: ignore[arg-type]
    assert not path.exists()


# ---- how it grows older ----------------------------------------------------------------------------------------------


@attrs.frozen
class Person:
    id: str
    name: str


@attrs.frozen
class PersonWithAge:
    id: str
    name: str
    age: int | None = None


def people(cls: type, **indexes: Index) -> tuple[Record, ...]:
    return (Record(cls, "people", key=("id",), indexes=indexes),)


def _add_age(database) -> None:
    database["people"].add_column("age", int)
    database["people"].create_index(["age", "id"], "people_by_age")


ADD_AGE = Migration("0002_age", _add_age)
AGED = people(PersonWithAge, by_age=Index(("age",)))


@pytest.fixture
def old(path: Path) -> Path:
    with closing(SqliteStore(path, people(Person), migrations=[])) as store:
        store.transact(lambda tx: tx.add(Person("p", "Ada")))
    return path


def test_an_older_file_is_migrated_once_and_keeps_its_records(old: Path) -> None:
    for _ in range(2):
        with closing(SqliteStore(old, AGED, migrations=[ADD_AGE])) as store:
            assert store.read(lambda s: s.page(PersonWithAge, "by_age", None)) == [PersonWithAge("p", "Ada")]
    with pytest.raises(StoreTooNew):
        SqliteStore(old, people(Person), migrations=[])


def test_a_new_file_has_the_declared_schema_and_runs_no_migration(path: Path) -> None:
    for _ in range(2):
        with closing(SqliteStore(path, AGED, migrations=[ADD_AGE])) as store:
            assert store.read(lambda s: s.count(PersonWithAge, "by_age", None)) == 0


def test_a_migration_that_fails_changes_nothing(old: Path) -> None:
    def fail(database) -> None:
        _add_age(database)
        raise LookupError

    with pytest.raises(LookupError):
        SqliteStore(old, AGED, migrations=[Migration("0002_age", fail)])
    with closing(SqliteStore(old, people(Person), migrations=[])) as store:
        assert store.read(lambda s: s.get(Person, "p")) == Person("p", "Ada")


def test_a_forgotten_migration_is_noticed(old: Path) -> None:
    with pytest.raises(StoreCorrupt, match="age"):
        SqliteStore(old, AGED)


def at_once(action: Callable[[], None], threads: int = 4) -> list[Exception]:
    errors, start = [], threading.Barrier(threads)

    def run() -> None:
        start.wait()
        try:
            action()
        except Exception as error:
            errors.append(error)

    crowd = [threading.Thread(target=run) for _ in range(threads)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    return errors


def test_a_new_file_may_be_opened_by_several_at_once(path: Path) -> None:
    def use() -> None:
        with closing(SqliteStore(path, CONTRACT_RECORDS)) as store:
            store.transact(lambda tx: tx.add(Counter(str(threading.get_ident()))))

    assert at_once(use) == []
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM counters").fetchone()[0] == 4


def test_opening_waits_for_another_that_makes_or_closes_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first and the last connection hold the whole file for a moment, also against those that only read."""
    look, locked = opening.up_to_date, [True, True]

    def up_to_date(*wanted: object) -> bool:
        if locked:
            locked.pop()
            busy = sqlite3.OperationalError("database is locked")
            busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise busy
        return look(*wanted)

    monkeypatch.setattr(opening, "up_to_date", up_to_date)
    with closing(SqliteStore(path, CONTRACT_RECORDS)) as store:
        store.transact(lambda tx: tx.add(Counter("a")))
    assert not locked


def test_an_older_file_may_be_migrated_by_several_at_once(old: Path) -> None:
    assert at_once(lambda: SqliteStore(old, AGED, migrations=[ADD_AGE]).close()) == []


@attrs.frozen
class Odd:
    key: str
    price: complex


@attrs.frozen
class Loose:
    key: str | None


@pytest.mark.parametrize("declaration", [Record(Odd, "odd", ("key",)), Record(Loose, "loose", ("key",))])
def test_what_cannot_be_a_column_is_refused_before_a_file_is_made(path: Path, declaration: Record) -> None:
    with pytest.raises(TypeError):
        SqliteStore(path, [declaration])
    assert not path.exists()


# ---- how it is copied ------------------------------------------------------------------------------------------------


def test_a_backup_is_a_private_whole_store(store: SqliteStore, tmp_path: Path) -> None:
    store.transact(lambda tx: tx.add(Item("a", 1, "x")))
    copy = tmp_path / "copies"
    copy.mkdir()
    store.backup(str(copy / "copy.db"))
    store.transact(lambda tx: tx.add(Item("a", 2)))
    assert [entry.name for entry in copy.iterdir()] == ["copy.db"]
    assert stat.S_IMODE((copy / "copy.db").stat().st_mode) == 0o600
    with closing(SqliteStore(copy / "copy.db", CONTRACT_RECORDS)) as restored:
        assert restored.read(lambda s: s.page(Item, "by_shelf", "a")) == [Item("a", 1, "x")]


def test_a_backup_replaces_nothing(store: SqliteStore, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    with pytest.raises(FileExistsError):
        store.backup(str(taken))
    assert taken.read_text() == "mine"


def test_a_backup_into_a_missing_folder_is_a_store_error(store: SqliteStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        store.backup(str(tmp_path / "missing" / "copy.db"))


def test_a_failed_backup_leaves_no_files(store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "link", full)
    (tmp_path / "copies").mkdir()
    with pytest.raises(StorageFull):
        store.backup(str(tmp_path / "copies" / "copy.db"))
    assert list((tmp_path / "copies").iterdir()) == []


def test_a_backup_taken_among_writes_holds_whole_steps(store: SqliteStore, tmp_path: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        numbers = iter(range(10**6))
        while not stop.is_set():
            number = next(numbers)

            def pair(tx: Tx, number: int = number) -> None:
                tx.add(Item("left", number))
                tx.add(Item("right", number))

            store.transact(pair, durable=False)

    writer = threading.Thread(target=write)
    writer.start()
    for number in range(3):
        store.backup(str(tmp_path / f"copy{number}.db"))
    stop.set()
    writer.join()
    for number in range(3):
        with closing(SqliteStore(tmp_path / f"copy{number}.db", CONTRACT_RECORDS)) as copy:
            left, right = (
                copy.read(lambda s, side=side: s.count(Item, "by_shelf", side)) for side in ("left", "right")
            )
            assert left == right

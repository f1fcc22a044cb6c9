"""`modelyard copy` and `modelyard migrate`: a team moves to PostgreSQL, and back."""

from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from modelyard import open_platform
from modelyard.cli import main
from modelyard.errors import StoreError
from modelyard.parts.contracts.store_values import Entry, Item, Specimen
from modelyard.protocols import Store
from modelyard.stores import PostgresStore, SqliteStore, copying
from modelyard.testing import CONTRACT_RECORDS

EXAMPLE = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


def _ignore(_: int) -> None:
    pass


def _fill(store: Store) -> None:
    def step(tx: object) -> None:
        for number in range(1100):
            tx.add(Item(f"shelf {number % 7}\0", number, f"label {number}"))
        for name in "dcab":
            tx.add(Entry(name))
        tx.add(Specimen("s", mapping={"a": (1.5, {"b": "\1"})}, names=("x",)))

    store.transact(step)
    store.transact(lambda tx: tx.remove(Entry, "b"))


def test_a_file_moves_to_a_server_and_back_with_numbers_and_all(yard_address: str, tmp_path: Path) -> None:
    with (
        closing(SqliteStore(tmp_path / "one.db", CONTRACT_RECORDS)) as one,
        closing(PostgresStore(yard_address, CONTRACT_RECORDS)) as server,
        closing(SqliteStore(tmp_path / "two.db", CONTRACT_RECORDS)) as two,
    ):
        _fill(one)
        copying.copy_store(one, server, CONTRACT_RECORDS, _ignore)
        copying.copy_store(server, two, CONTRACT_RECORDS, _ignore)
        numbers = []
        for store in (one, server, two):
            store.transact(lambda tx: tx.add(Entry("new")))
            numbers.append([entry.seq for entry in store.read(lambda snapshot: snapshot.page(Entry, "all"))])
        assert numbers == [[1, 2, 3, 5]] * 3
        assert [e.id for e in two.read(lambda snapshot: snapshot.page(Entry, "all"))] == ["d", "c", "a", "new"]


def test_an_interrupted_copy_continues(yard_address: str, tmp_path: Path) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(count: int) -> None:
        noted.append(count)
        if len(noted) == 2:
            raise Interrupted

    noted: list[int] = []
    with (
        closing(SqliteStore(tmp_path / "one.db", CONTRACT_RECORDS)) as one,
        closing(PostgresStore(yard_address, CONTRACT_RECORDS)) as server,
    ):
        _fill(one)
        with pytest.raises(Interrupted):
            copying.copy_store(one, server, CONTRACT_RECORDS, interrupt)
        some = copying.size_of(server, CONTRACT_RECORDS)
        whole = copying.size_of(one, CONTRACT_RECORDS)
        assert 0 < some < whole
        noted.clear()
        copying.copy_store(one, server, CONTRACT_RECORDS, noted.append)
        assert sum(noted) == 3 * whole - some
        assert copying.size_of(server, CONTRACT_RECORDS) == whole


def test_a_copy_that_differs_is_reported(yard_address: str, tmp_path: Path) -> None:
    with (
        closing(SqliteStore(tmp_path / "one.db", CONTRACT_RECORDS)) as one,
        closing(PostgresStore(yard_address, CONTRACT_RECORDS)) as server,
    ):
        _fill(one)
        server.transact(lambda tx: tx.add(Specimen("s", text="another")))
        with pytest.raises(StoreError, match="specimens differ"):
            copying.copy_store(one, server, CONTRACT_RECORDS, _ignore)


def test_the_command_copies_a_platform_and_shows_progress(yard_address: str, tmp_path: Path) -> None:
    path = tmp_path / "yard.db"
    with open_platform(path) as platform:
        model = platform.models.create("support", base_model="tabular-mini", project="desk")
        with platform.worker():
            platform.training.sft(model, [EXAMPLE]).wait()
    copied = CliRunner().invoke(main, ["copy", str(path), yard_address])
    assert copied.exit_code == 0, copied.output
    assert " records of " in copied.output
    back = tmp_path / "back.db"
    assert CliRunner().invoke(main, ["copy", yard_address, str(back)]).exit_code == 0
    with open_platform(yard_address) as server, open_platform(back) as file:
        for moved in (server, file):
            assert moved.models.find("support", project="desk").id == model.id
            assert [job.status.value for job in moved.jobs.list()] == ["succeeded"]


def test_the_command_migrates(yard_address: str, tmp_path: Path) -> None:
    missing = CliRunner().invoke(main, ["migrate", "--store", str(tmp_path / "missing.db")])
    assert missing.exit_code == 1
    assert "there is no store" in missing.output
    open_platform(yard_address).close()
    open_platform(tmp_path / "yard.db").close()
    for store in (yard_address, str(tmp_path / "yard.db")):
        done = CliRunner().invoke(main, ["migrate", "--store", store])
        assert done.exit_code == 0, done.output
        assert "up to date" in done.output

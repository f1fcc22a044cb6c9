"""`modelyard copy` and `modelyard migrate`: a team moves to PostgreSQL, and back."""

from contextlib import closing
from itertools import count, pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from modelyard import open_platform
from modelyard.cli import main
from modelyard.domain.record import KEY
from modelyard.errors import StoreCorrupt, StoreError
from modelyard.parts import copying
from modelyard.parts.contracts.store_values import Entry, Item, Specimen
from modelyard.protocols import Store
from modelyard.stores import PostgresStore, SqliteStore
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
    def change(_: int) -> None:
        server.transact(lambda tx: tx.find(Specimen, KEY, "other") or tx.add(Specimen("other")))

    with (
        closing(SqliteStore(tmp_path / "one.db", CONTRACT_RECORDS)) as one,
        closing(PostgresStore(yard_address, CONTRACT_RECORDS)) as server,
    ):
        _fill(one)
        with pytest.raises(StoreError, match="specimens differ"):
            copying.copy_store(one, server, CONTRACT_RECORDS, change)
    with pytest.raises(StoreCorrupt, match="a copy that was not completed"):
        PostgresStore(yard_address, CONTRACT_RECORDS)


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


# ---- copies that are not completed -------------------------------------------------------------------------------


def test_a_copy_that_was_not_completed_says_so_and_does_not_open(
    yard_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_platform(tmp_path / "a.db") as platform:
        platform.chat.complete(model="echo", messages="hi")
    digest = copying._digest

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    names = [str(tmp_path / "a.db"), yard_address, str(tmp_path / "b.db"), str(tmp_path / "c.db")]
    for requests, (source, target) in enumerate(pairwise(names), 1):
        monkeypatch.setattr(copying, "_digest", interrupt)
        assert CliRunner().invoke(main, ["copy", source, target]).exit_code != 0
        for _ in range(2):
            with pytest.raises(StoreCorrupt, match="a copy that was not completed"):
                open_platform(target, artifacts="memory://")
        monkeypatch.setattr(copying, "_digest", digest)
        done = CliRunner().invoke(main, ["copy", source, target])
        assert done.exit_code == 0, done.output
        again = CliRunner().invoke(main, ["copy", source, target])
        assert again.exit_code == 1
        assert "has records already" in again.output
        with open_platform(target, artifacts="memory://") as platform:
            assert sum(one.requests for one in platform.usage.total()) == requests
            platform.chat.complete(model="echo", messages="it is written to")


@pytest.mark.parametrize("from_server", [False, True])
def test_a_copy_of_a_store_in_use_is_one_snapshot(yard_address: str, tmp_path: Path, from_server: bool) -> None:
    stores = PostgresStore(yard_address, CONTRACT_RECORDS), SqliteStore(tmp_path / "one.db", CONTRACT_RECORDS)
    source, target = stores if from_server else reversed(stores)
    with closing(source), closing(target):
        _fill(source)
        whole = copying.size_of(source, CONTRACT_RECORDS)
        numbers = count()

        def write(_: int) -> None:
            number = next(numbers)
            source.transact(lambda tx: [tx.add(Item("written", number)), tx.add(Entry(f"written {number}"))])

        copying.copy_store(source, target, CONTRACT_RECORDS, write)
        written = next(numbers)
        assert written > 2
        begun_again = 2 * from_server  # with its second statement, after one write of two records
        assert copying.size_of(target, CONTRACT_RECORDS) == whole + begun_again
        with pytest.raises(StoreError, match="has records already"):
            copying.copy_store(source, target, CONTRACT_RECORDS, _ignore)

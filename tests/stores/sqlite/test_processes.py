"""What a SQLite store owes to processes: those that are killed, that share the file, or that fork."""

import os
import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from modelyard.errors import UsedAfterFork
from modelyard.parts.contracts.store_values import Colour, Counter, Item
from modelyard.stores.sqlite import SqliteStore
from modelyard.testing import CONTRACT_RECORDS

pytestmark = pytest.mark.crash

CHILD = Path(__file__).with_name("store_child.py")


def start(action: str, path: Path) -> "subprocess.Popen[str]":
    """A child that waits for `go`."""
    child = subprocess.Popen(
        [sys.executable, str(CHILD), action, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "ready\n"
    return child


def go(child: "subprocess.Popen[str]") -> None:
    child.stdin.write("\n")
    child.stdin.flush()


def kill_after(child: "subprocess.Popen[str]", lines: int) -> list[str]:
    """What a child had said, whole lines only, when it was killed some time after saying this many."""
    go(child)
    reply = [child.stdout.readline() for _ in range(lines)]
    child.kill()
    rest, _ = child.communicate()
    return [line.rstrip("\n") for line in (*reply, *rest.splitlines(keepends=True)) if line.endswith("\n")]


def test_no_acknowledged_event_is_lost_by_a_kill_and_none_leaves_a_gap(path: Path) -> None:
    with closing(SqliteStore(path, CONTRACT_RECORDS)) as store:
        store.transact(lambda tx: [tx.add(Counter(shelf)) for shelf in "abcd"])
    acknowledged = dict.fromkeys("abcd", 0)
    kills = random.Random(11)
    for _ in range(10):
        for line in kill_after(start("append", path), kills.randint(1, 60)):
            shelf, number = line.split()
            acknowledged[shelf] = max(acknowledged[shelf], int(number))
        with closing(SqliteStore(path, CONTRACT_RECORDS)) as store:
            for shelf, least in acknowledged.items():
                events = store.read(lambda s, shelf=shelf: s.page(Item, "by_shelf", shelf, limit=100_000))
                last = store.read(lambda s, shelf=shelf: s.get(Counter, shelf)).value
                assert [event.number for event in events] == list(range(1, last + 1))
                assert last >= least
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_two_processes_claim_everything_once(store: SqliteStore, path: Path) -> None:
    store.transact(lambda tx: [tx.add(Item("a", number)) for number in range(200)])
    children = [start("claim", path) for _ in range(2)]
    for child in children:
        go(child)
    claimed = [int(line) for child in children for line in child.communicate()[0].split()]
    assert sorted(claimed) == list(range(200))
    assert store.read(lambda snapshot: snapshot.count(Item, "by_colour", Colour.BLUE)) == 200


def test_a_full_disk_loses_nothing_acknowledged_and_is_survived(path: Path) -> None:
    child = start("fill", path)
    reply, _ = child.communicate("\n")
    full, read, written = reply.split("\n")[:3]
    assert child.returncode == 0
    assert int(full.removeprefix("full ")) == int(read.removeprefix("read ")) > 10
    assert written == "written"


def test_a_forked_child_is_refused_and_leaves_the_parent_alone(store: SqliteStore) -> None:
    store.transact(lambda tx: tx.add(Counter("c")))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        answers = []
        for use in (
            lambda: store.transact(lambda tx: None),
            lambda: store.read(lambda s: None),
            store.check,
            store.sync,
        ):
            try:
                use()
                answers.append("used")
            except UsedAfterFork:
                answers.append("refused")
        store.close()
        os.write(write, " ".join(answers).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"refused refused refused refused"
    os.close(read)
    os.close(write)
    store.transact(lambda tx: tx.replace(Counter("c", 1)))
    assert store.read(lambda snapshot: snapshot.get(Counter, "c")) == Counter("c", 1)

"""What another process does to a store: python store_child.py ACTION PATH. It says "ready", then waits for a line."""

import resource
import sys
import threading
from itertools import count

import attrs

from modelyard.errors import StorageFull
from modelyard.parts.contracts.store_values import Colour, Counter, Item, Specimen
from modelyard.protocols import Tx
from modelyard.stores.sqlite import SqliteStore
from modelyard.testing import CONTRACT_RECORDS


def say(text: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def append(store: SqliteStore, shelf: str) -> int:
    """The next event of a job, as training records it: number and event in one step."""

    def step(tx: Tx) -> int:
        counter = tx.get(Counter, shelf)
        tx.replace(attrs.evolve(counter, value=counter.value + 1))
        tx.add(Item(shelf, counter.value + 1))
        return counter.value + 1

    return store.transact(step)


def append_for_ever(store: SqliteStore) -> None:
    def work(shelf: str) -> None:
        while True:
            say(f"{shelf} {append(store, shelf)}")

    for shelf in "abcd":
        threading.Thread(target=work, args=(shelf,)).start()


def claim_all(store: SqliteStore) -> None:
    def step(tx: Tx) -> int | None:
        for item in tx.page(Item, "by_colour", Colour.RED, limit=1):
            tx.replace(attrs.evolve(item, colour=Colour.BLUE))
            return item.number
        return None

    while (number := store.transact(step)) is not None:
        say(number)


def fill_the_disk(store: SqliteStore) -> None:
    """Add until no file may grow, free the limit, add one more; say how many were acknowledged."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
    acknowledged = 0
    try:
        for number in count():
            store.transact(lambda tx, n=number: tx.add(Specimen(f"{n:06}", text="x" * 2000)))
            acknowledged += 1
    except StorageFull:
        say(f"full {acknowledged}")
    say(f"read {len(store.read(lambda s: s.page(Specimen, 'by_colour', None, limit=10_000)))}")
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    store.transact(lambda tx: tx.add(Specimen("afterwards")))
    say("written")


if __name__ == "__main__":
    action, path = sys.argv[1:]
    opened = SqliteStore(path, CONTRACT_RECORDS)
    say("ready")
    sys.stdin.readline()
    {"append": append_for_ever, "claim": claim_all, "fill": fill_the_disk}[action](opened)

"""Broken platforms, each of which the checks must find out. They break what is theirs to break inside one process."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from unittest.mock import ANY

import attrs
from moments import Moments

from modelyard.domain.job import Claim, JobEvent
from modelyard.platform.jobs import claims
from modelyard.protocols import Store, TrainContext, Trainer, TrainItem, Tx
from modelyard.stores.sqlite.store import SqliteStore


def no_fence(store: Store, trainer: Trainer, _: Moments) -> tuple[Any, Any]:
    """Every claim is as good as the newest."""
    look = claims.fenced

    def fenced(tx: Tx, claim: Claim) -> Any:
        return look(tx, Claim(claim.job_id, ANY, ANY))

    for name, module in list(sys.modules.items()):
        if name.startswith("modelyard.") and getattr(module, "fenced", None) is look:
            module.fenced = fenced  # type: ignore[attr-defined]
    return store, trainer


def no_immediate_transaction(store: Store, trainer: Trainer, _: Moments) -> tuple[Any, Any]:
    """Transactions begin as readers, and ask for the right to write when they write."""
    assert isinstance(store, SqliteStore)
    store._writer._begin = lambda: store._writer._execute("BEGIN DEFERRED")
    return store, trainer


def event_before_state(store: Store, trainer: Trainer, moments: Moments) -> tuple[Any, Any]:
    """An event is committed first, and what it tells about after it. `torn` is the moment between the two."""
    return _TornStore(store, moments), trainer


class _TornStore:
    def __init__(self, store: Store, moments: Moments) -> None:
        self._store, self._moments = store, moments

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def transact(self, step: Callable[[Tx], Any], durable: bool = True) -> Any:
        torn = _TornStep(step)
        result = self._store.transact(torn.events, durable)
        if torn.reported:
            self._moments.next("torn")
        self._store.transact(torn.rest, durable)
        return result


class _TornStep:
    """The two halves of a step. It is also the transaction of its first half."""

    def __init__(self, step: Callable[[Tx], Any]) -> None:
        self._step = step
        self.reported = False

    def events(self, tx: Tx) -> Any:
        self._tx: Any = tx
        self._waiting: list[tuple[str, tuple[Any, ...]]] = []
        return self._step(self)  # type: ignore[arg-type]

    def rest(self, tx: Tx) -> None:
        for verb, values in self._waiting:
            getattr(tx, verb)(*values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    def add(self, record: object) -> None:
        if isinstance(record, JobEvent):
            self._tx.add(record)
            self.reported = True
        else:
            self._waiting.append(("add", (record,)))

    def add_all(self, records: Iterable[object]) -> None:
        for record in records:
            self.add(record)

    def replace(self, record: object) -> None:
        self._waiting.append(("replace", (record,)))

    def remove(self, *values: Any) -> None:
        self._waiting.append(("remove", values))


def early_acknowledgement(store: Store, trainer: Trainer, _: Moments) -> tuple[Any, Any]:
    """A step is acknowledged at once, and committed before the next."""
    return _EarlyStore(store), trainer


class _Undone(Exception):
    """Carries a result out of a transaction that stores nothing."""


class _EarlyStore:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[Callable[[Tx], Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def transact(self, step: Callable[[Tx], Any], durable: bool = True) -> Any:
        while self._waiting:
            self._store.transact(self._waiting.pop(), durable)

        def undone(tx: Tx) -> None:
            raise _Undone(step(tx))

        try:
            self._store.transact(undone, durable)
        except _Undone as done:
            self._waiting.append(step)
            return done.args[0]


@attrs.define
class _ForgetfulTrainer:
    """Continues after the saved step, but with the weights that the job began with."""

    trainer: Trainer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.trainer, name)

    def train(self, method: str, config: Any, data: Iterable[Any], context: TrainContext) -> Iterator[TrainItem]:
        return self.trainer.train(method, config, data, attrs.evolve(context, resume=None))


def forgotten_state(store: Store, trainer: Trainer, _: Moments) -> tuple[Any, Any]:
    """A resumed run has lost the steps before."""
    return store, _ForgetfulTrainer(trainer)


Mutant = Callable[[Store, Trainer, Moments], tuple[Any, Any]]

MUTANTS: Mapping[str, Mutant] = {
    mutant.__name__: mutant
    for mutant in (no_fence, no_immediate_transaction, event_before_state, early_acknowledgement, forgotten_state)
}
"""What is broken, by name: each takes the store and the trainer of a process and answers those to use."""

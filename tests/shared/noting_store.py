"""A store that notes which records were written by transactions that were not durable."""

from collections.abc import Callable
from typing import Any

from modelyard.protocols import DomainStep, Tx
from modelyard.testing import RunTwiceStore


class _NotingTx:
    def __init__(self, tx: Tx, note: Callable[[object], None]) -> None:
        self._tx, self._note = tx, note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    def add(self, record: object) -> None:
        self._note(record)
        self._tx.add(record)

    def add_all(self, records: Any) -> None:
        for record in records:
            self._note(record)
        self._tx.add_all(records)


class NotingStore(RunTwiceStore):
    """Notes the records that were added, by whether their transaction was durable."""

    blocking = False
    durability = "power"

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.added: dict[bool, list[object]] = {True: [], False: []}

    def transact(self, step: Any, durable: bool = True) -> Any:
        return self._store.transact(self._noting(step, durable), durable)

    async def atransact(self, step: Any, durable: bool = True) -> Any:
        return await self._store.atransact(self._noting(step, durable), durable)

    def _noting(self, step: Any, durable: bool) -> Any:
        def noting(tx: Tx) -> Any:
            return step(_NotingTx(tx, self.added[durable].append))  # type: ignore[arg-type]

        return DomainStep(noting, step.domains) if isinstance(step, DomainStep) else noting

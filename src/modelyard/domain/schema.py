"""Every kind of record, for a store to be opened with."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from types import ModuleType
from typing import Any

from modelyard.domain import catalogue, completion, identity, job, models, training, usage, worker
from modelyard.domain import promotion as alias
from modelyard.domain.evaluation import objects as versioned
from modelyard.domain.evaluation import run as evaluation
from modelyard.domain.record import Record
from modelyard.part import Part, standard_parts


class _Declarations(Sequence[Record]):
    """What modules declare, one after the other: each is loaded when who reads along comes to it.

    So a store that looks for a class as far as it must loads nothing of what a platform never uses.
    """

    def __init__(self, *declared: Callable[[], Iterable[Record]]) -> None:
        self._declared = declared

    def __iter__(self) -> Iterator[Record]:
        for records in self._declared:
            yield from records()

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice) or at < 0:
            return [*iter(self)][at]
        for record in islice(self, at, None):
            return record
        raise IndexError(at)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _of(module: ModuleType) -> Callable[[], Iterable[Record]]:
    return lambda: module.RECORDS


_CORE = tuple(
    map(_of, (catalogue, completion, identity, usage, job, worker, models, training, alias, evaluation, versioned))
)


def records_of(parts: Iterable[Part]) -> Sequence[Record]:
    """Return the records of the core and of these parts."""
    return _Declarations(*_CORE, *(lambda part=part: part.records() for part in parts))


RECORDS: Sequence[Record] = _Declarations(*_CORE, lambda: (r for part in standard_parts() for r in part.records()))
"""The records of the core and of the standard parts."""

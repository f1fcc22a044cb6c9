"""Every kind of record, for a store to be opened with."""

from collections.abc import Iterator, Sequence
from itertools import islice
from types import ModuleType
from typing import Any

from modelyard.domain import (
    catalogue,
    completion,
    idempotency,
    identity,
    job,
    models,
    process,
    retention,
    training,
    usage,
    worker,
)
from modelyard.domain import promotion as alias
from modelyard.domain.evaluation import objects as versioned
from modelyard.domain.evaluation import prediction
from modelyard.domain.evaluation import run as evaluation
from modelyard.domain.record import Record
from modelyard.parts.annotations import records as annotation
from modelyard.parts.batches.files import records as file
from modelyard.parts.responses import records as response
from modelyard.parts.tinker import records as run_log
from modelyard.parts.torch import records as base_model
from modelyard.parts.traces import records as trace
from modelyard.parts.uploads import records as upload


class _Declarations(Sequence[Record]):
    """What modules declare, one after the other: each is loaded when who reads along comes to it.

    So a store that looks for a class as far as it must loads nothing of what a platform never uses.
    """

    def __init__(self, *modules: ModuleType) -> None:
        self._modules = modules

    def __iter__(self) -> Iterator[Record]:
        for module in self._modules:
            yield from module.RECORDS

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice) or at < 0:
            return [*iter(self)][at]
        for record in islice(self, at, None):
            return record
        raise IndexError(at)

    def __len__(self) -> int:
        return sum(1 for _ in self)


RECORDS: Sequence[Record] = _Declarations(
    catalogue,
    completion,
    identity,
    usage,
    process,
    response,
    job,
    worker,
    upload,
    file,
    models,
    training,
    retention,
    alias,
    evaluation,
    prediction,
    versioned,
    base_model,
    trace,
    idempotency,
    annotation,
    run_log,
)

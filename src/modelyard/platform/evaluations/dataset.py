"""The rows that a run is about, on their way to where it reads them: checked, counted, never whole in memory."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from modelyard.domain.evaluation.objects import ObjectKind, ObjectVersion
from modelyard.domain.identity import Principal
from modelyard.errors import InvalidInput
from modelyard.formats.jsonl import dump_row, in_chunks, read_rows
from modelyard.platform.evaluations.objects import Objects
from modelyard.platform.evaluations.spec import RunSpec
from modelyard.platform.runtime import Runtime

RowData = Iterable[Mapping[str, Any]] | ObjectVersion | str | os.PathLike[str]
"""Rows as they come; the version of a dataset, or the reference of one; or the path of a JSON Lines file."""

_ROWS = (
    "mappings, one for each row; a version of a dataset, or its reference, such as "
    "weave:///<entity>/<project>/object/<name>; or the path of a JSON Lines file"
)


def kept_rows(runtime: Runtime, principal: Principal, orders: Sequence[RunSpec], rows: RowData) -> Iterator[RunSpec]:
    """The orders, with the rows that they are about: kept once for each, because each run ends when it does."""
    if isinstance(rows, str) and "://" in rows:
        rows = Objects(runtime, principal).resolve(ObjectKind.DATASET, rows)
    if isinstance(rows, ObjectVersion):
        artifact, count = _artifact_of(rows), _counted(rows.rows or 0)
        return (_with_rows(order, count, dataset=artifact) for order in orders)
    if isinstance(rows, str | os.PathLike):
        rows = _rows_of_file(principal, rows)
    if not isinstance(rows, Iterable):
        raise InvalidInput.at("rows", msg=f"must be {_ROWS}")
    return _spooled(runtime, orders, rows)


def _counted(rows: int) -> int:
    if rows == 0:
        raise InvalidInput.at("rows", msg="there are none; an iterator that was read before has none left")
    return rows


def _rows_of_file(principal: Principal, path: str | os.PathLike[str]) -> Iterator[Mapping[str, Any]]:
    if principal.scope.entity is not None:
        raise InvalidInput.at("rows", msg="only the host may name a file; publish a dataset, and give its reference")
    if not os.path.isfile(path):
        raise InvalidInput.at("rows", msg=f"{os.fspath(path)!r} is no file; they must be {_ROWS}")
    with open(path, "rb") as file:
        yield from read_rows(file)


def _spooled(runtime: Runtime, orders: Sequence[RunSpec], rows: Iterable[Mapping[str, Any]]) -> Iterator[RunSpec]:
    count = 0

    def lines() -> Iterator[bytes]:
        nonlocal count
        for count, row in enumerate(rows, 1):
            yield dump_row(row, count - 1)

    names = [runtime.artifacts.put(in_chunks(lines())).name]
    try:
        _counted(count)
        names += [_copy(runtime, names[0]) for _ in orders[1:]]
        for order in orders:
            yield _with_rows(order, count, artifact=names.pop())
    finally:
        for name in names:
            runtime.artifacts.remove(name)


def _copy(runtime: Runtime, name: str) -> str:
    with runtime.artifacts.open(name) as file:
        return runtime.artifacts.put(iter(partial(file.read, 2**16), b"")).name


def _with_rows(order: RunSpec, count: int, **source: str) -> RunSpec:
    spec = {**order.job.spec, **source, "total": count * order.job.spec["trials"]}
    return attrs.evolve(order, job=attrs.evolve(order.job, spec=spec))


def _artifact_of(dataset: ObjectVersion) -> str:
    if dataset.kind is not ObjectKind.DATASET or dataset.rows_artifact is None:
        raise InvalidInput.at("rows", msg="must be rows, or a version of a dataset that has not been deleted")
    return dataset.rows_artifact

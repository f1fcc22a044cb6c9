"""The rows of a run as a caller passes them: they are checked, counted and stored before the run begins, never all in
memory."""

import csv
import os
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from threading import Lock
from typing import Any

import attrs

from modelyard.domain.evaluation.objects import ObjectKind, ObjectRef, ObjectVersion, OneObject
from modelyard.domain.evaluation.run import PROMPTS
from modelyard.domain.evaluation.scorers import slots
from modelyard.domain.identity import Principal
from modelyard.errors import InvalidInput, NotFound, ObjectDeleted, nearest
from modelyard.formats.jsonl import MAX_ROW, dump_row, in_chunks, read_rows
from modelyard.platform.evaluations.objects import Objects
from modelyard.platform.evaluations.scorers import NamedScorer, Scorers, name_scorers
from modelyard.platform.evaluations.spec import (
    EVALUATION_OPTIONS,
    OneModel,
    RunSpec,
    build_spec,
    check_models,
    check_options,
    evaluation_ref,
)
from modelyard.platform.paging import named_place
from modelyard.platform.runtime import Runtime

# ---- what a caller passes

RowData = Iterable[Mapping[str, Any]] | ObjectVersion | str | os.PathLike[str]
"""Any rows; the version of a dataset, or the reference of one; or the path of a file, CSV or JSON Lines."""

RunSpecs = Generator[RunSpec, None, None]
"""Specs that are made one by one. Closing it removes the rows of specs that were not taken."""

_ROWS = (
    "mappings, one for each row; a version of a dataset, or its reference, such as "
    "modelyard:///<entity>/<project>/object/<name>; or the path of a JSON Lines file, or of a table that ends in .csv"
)


def build_specs(
    runtime: Runtime,
    principal: Principal,
    evaluation: OneObject,
    models: Sequence[OneModel],
    rows: RowData | None,
    scorers: Scorers | None,
    options: Mapping[str, Any],
    portable: bool = False,
) -> RunSpecs:
    """Build the spec of a run of each model. Everything is checked when the first is taken. Without `rows`, the
    evaluation must be published: its version then gives the rows, and by default scorers and trials. A `portable` run
    must not need functions. Raises as `build_spec`."""
    check_options(options, EVALUATION_OPTIONS, "run")
    namespace = named_place(runtime, principal, options.get("entity"), options.get("project"))
    models, objects = check_models(models), Objects(runtime, principal)
    if rows is None:
        published = Published.of(objects, evaluation_ref(evaluation, namespace))
        evaluation, rows = str(published.ref), published.dataset
        scorers = published.scorers if scorers is None else scorers
        options = {"trials": published.trials, **options}
    named = name_scorers("exact_match" if scorers is None else scorers, objects)
    specs = [build_spec(runtime, principal, evaluation, model, named, namespace, options) for model in models]
    for spec in specs:
        if portable or spec.shards > 1:
            spec.check_portable()
    prompts: AskedFor = {(name,): slots(options.get(name) or "") for name in PROMPTS}
    turns: AskedFor = dict.fromkeys((_TURNS for spec in specs if spec.needs_messages), frozenset())
    return _with_dataset(runtime, principal, specs, rows, {**fields_scored(named), **prompts, **turns})


AskedFor = Mapping[tuple[str, ...], Set[str]]
_TURNS = ("messages",)  # in what is asked for: the first row must have messages, or a prompt


def fields_scored(scorers: Sequence[NamedScorer]) -> AskedFor:
    rules = ((one.name, one.rule) for one in scorers if one.rule is not None)
    return {
        ("scorers", name, "expected" if hasattr(rule, "expected") else "prompt"): rule.asked_for for name, rule in rules
    }


def check_fields(asked_for: AskedFor, rows: Iterable[Mapping[str, Any]]) -> None:
    """Read rows until they have had every field that is asked for. Raises `InvalidInput` if one is in none."""
    left = set().union(*asked_for.values())
    for row in _read(asked_for, rows):
        left.difference_update(row)
        if not left:
            break


def _read(asked_for: AskedFor, rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows, and then refuse a prompt or a scorer that asks for a field that none has: the model would be paid
    for answers that cannot be judged."""
    seen: set[str] = set()
    for number, row in enumerate(rows):
        if number == 0 and _TURNS in asked_for and isinstance(row, Mapping) and not row.keys() & {"messages", "prompt"}:
            has, asked = ", ".join(map(repr, row)) or "no fields", f'"{{{next(iter(row), "name")}}}"'
            msg = f"has {has}, and neither messages nor prompt; give prompt={asked} (in a shell: --prompt {asked})"
            raise InvalidInput.at("rows", 0, msg=msg)
        seen.update(row if isinstance(row, Mapping) else ())
        yield row
    for place, fields in asked_for.items():
        if seen and (missing := sorted(fields - seen)):
            msg = f"asks for {{{missing[0]}}}, which no row has{nearest(missing[0], [*seen, 'output'])}"
            raise InvalidInput.at(*place, msg=msg)


@attrs.frozen
class Published:
    ref: ObjectRef
    dataset: ObjectVersion
    scorers: Sequence[str]
    trials: int

    @classmethod
    def of(cls, objects: Objects, evaluation: ObjectRef) -> "Published":
        try:
            version = objects.resolve(ObjectKind.EVALUATION, evaluation)
        except ObjectDeleted:
            raise
        except NotFound as unknown:
            raise NotFound(unknown.kind, unknown.id, "publish it, or give rows and scorers") from None
        content = version.content
        dataset = objects.resolve(ObjectKind.DATASET, content["dataset"])
        return cls(version.ref, dataset, tuple(content.get("scorers", ())), content.get("trials", 1))


def _with_dataset(
    runtime: Runtime, principal: Principal, specs: Sequence[RunSpec], rows: RowData, asked_for: AskedFor
) -> RunSpecs:
    """Add the rows to the specs, stored once for each, because a run removes its rows when it ends."""
    if isinstance(rows, str) and "://" in rows:
        rows = Objects(runtime, principal).resolve(ObjectKind.DATASET, rows)
    if isinstance(rows, ObjectVersion):
        artifact, count = _artifact_of(rows), _counted(rows.rows or 0)
        check_fields(asked_for, _rows_stored(runtime, artifact))
        return (spec.with_items(count, dataset=artifact) for spec in specs)
    return _spooled(runtime, specs, _read(asked_for, rows_given(runtime, principal, rows)))


def rows_given(runtime: Runtime, principal: Principal, rows: RowData) -> Iterable[Mapping[str, Any]]:
    if isinstance(rows, str) and "://" in rows:
        rows = Objects(runtime, principal).resolve(ObjectKind.DATASET, rows)
    if isinstance(rows, ObjectVersion):
        return _rows_stored(runtime, _artifact_of(rows))
    if isinstance(rows, str | os.PathLike):
        return _rows_of_file(principal, rows)
    if not isinstance(rows, Iterable):
        raise InvalidInput.at("rows", msg=f"must be {_ROWS}")
    return rows


def _rows_stored(runtime: Runtime, artifact: str) -> Iterator[Mapping[str, Any]]:
    with runtime.artifacts.open(artifact) as file:
        yield from read_rows(file)


def _counted(rows: int) -> int:
    if rows == 0:
        raise InvalidInput.at("rows", msg="there are none; an iterator that was read before has none left")
    return rows


def _rows_of_file(principal: Principal, path: str | os.PathLike[str]) -> Iterator[Mapping[str, Any]]:
    if principal.scope.entity is not None:
        raise InvalidInput.at("rows", msg="only the host may name a file; publish a dataset, and give its reference")
    if not os.path.isfile(path):
        hint = "" if set("./\\") & {*os.fspath(path)} else ", and a published dataset is named by its reference"
        raise InvalidInput.at("rows", msg=f"{os.fspath(path)!r} is not a file{hint}; rows must be {_ROWS}")
    row = None
    try:
        with open(path, "rb") as file:
            table = os.fspath(path).lower().endswith(".csv")
            for row in (one for _, one in csv_rows(path)) if table else read_rows(file):
                yield row
        if row is None:
            raise InvalidInput.at(msg="has no rows; give at least one")
    except InvalidInput as wrong:
        raise _as_what_it_was_read(os.fspath(path), wrong) from None


def _as_what_it_was_read(path: str, wrong: InvalidInput) -> InvalidInput:
    """Locate a problem in a file, which may be a table of another name."""
    first = wrong.problems[0]
    if first.type == "json_invalid" and not path.lower().endswith(("jsonl", "ndjson", "json")):
        msg = f"{first.msg}; the file is read as JSON Lines, as its name does not end in .csv"
        wrong = InvalidInput([attrs.evolve(first, msg=msg)])
    return wrong.below(path)


_ESCAPED = re.compile("[\udc80-\udcff]")
_CSV = Lock()
"""Held while the limit of the module csv is another one, which holds for the whole process."""


def _check_delimiter(names: Sequence[str]) -> None:
    """Refuse a table of one column that has another delimiter in its name: each row would be one cell."""
    other = next((one for one in ";\t|" if len(names) == 1 and one in names[0]), None)
    if other is not None:
        msg = f"names one column, {names[0]!r}; separate columns by commas and not by {other!r}"
        raise InvalidInput.at("line", 1, msg=msg)


def csv_rows(path: str | os.PathLike[str]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield the rows of a table in UTF-8, all values strings, with their lines; line 1 has the names of the columns."""
    with open(path, newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        lines = csv.reader(_sound_lines(file), strict=True)
        try:
            names = _next_cells(lines) or []
            if len(set(names)) < len(names):
                raise InvalidInput.at("line", 1, msg="must name each column once")
            _check_delimiter(names)
            first = lines.line_num + 1
            while (cells := _next_cells(lines)) is not None:
                if cells and len(cells) != len(names):
                    msg = f"has {len(cells)} cells, and the first line has {len(names)}"
                    raise InvalidInput.at("line", lines.line_num, msg=msg)
                if cells:
                    yield first, dict(zip(names, cells, strict=True))
                first = lines.line_num + 1
        except csv.Error as error:
            raise InvalidInput.at("line", lines.line_num, msg=f"is not valid CSV: {error}") from None


def _sound_lines(file: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        if not line.isascii() and _ESCAPED.search(line):
            raise InvalidInput.at("line", number, msg="is not UTF-8; save the table in UTF-8")
        yield line


def _next_cells(lines: Iterator[list[str]]) -> list[str] | None:
    """Return the next cells, each of up to `MAX_ROW` characters."""
    with _CSV:
        usual = csv.field_size_limit(MAX_ROW)
        try:
            return next(lines, None)
        finally:
            csv.field_size_limit(usual)


def _spooled(runtime: Runtime, specs: Sequence[RunSpec], rows: Iterable[Mapping[str, Any]]) -> RunSpecs:
    count = 0

    def lines() -> Iterator[bytes]:
        nonlocal count
        for count, row in enumerate(rows, 1):
            yield dump_row(row, count - 1)

    names = [runtime.artifacts.put(in_chunks(lines())).name]
    try:
        _counted(count)
        names += [_copy(runtime, names[0]) for _ in specs[1:]]
        for spec in specs:
            yield spec.with_items(count, artifact=names.pop())
    finally:
        for name in names:
            runtime.artifacts.remove(name)


def _copy(runtime: Runtime, name: str) -> str:
    with runtime.artifacts.open(name) as file:
        return runtime.artifacts.put(iter(partial(file.read, 2**16), b"")).name


def _artifact_of(dataset: ObjectVersion) -> str:
    if dataset.kind is not ObjectKind.DATASET or dataset.rows_artifact is None:
        raise InvalidInput.at("rows", msg="must be rows, or a version of a dataset that has not been deleted")
    return dataset.rows_artifact

"""Records of any kind as data frames. pandas is imported when the first is made."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from importlib import import_module
from typing import Any

import attrs

from modelyard.domain.evaluation.run import EvaluationRun, RowResult
from modelyard.domain.models import Checkpoint
from modelyard.errors import MissingExtra
from modelyard.platform.training.metrics import MetricRow
from modelyard.report.numbers import ref_text

_INDEX = {Checkpoint: "step", RowResult: "index", MetricRow: "step"}
"""The columns that are the index; of other records `id`."""


def load_pandas() -> Any:
    try:
        return import_module("pandas")
    except ImportError as missing:
        raise MissingExtra("pandas") from missing


def data_frame(items: Iterable[Any]) -> Any:
    """Return a data frame with a line for each record of one class, and a column for each of its members. The members
    of a mapping, such as metrics, options or scores, are columns of their own; one whose name another column has gets
    that of the mapping before it, as in "metrics.step".

    Raises `MissingExtra` if pandas is not installed.
    """
    pandas, items = load_pandas(), list(items)
    if items and isinstance(items[0], EvaluationRun):
        return runs_frame(items)
    if not items or not attrs.has(type(items[0])):
        return pandas.DataFrame([{"value": item} for item in items])
    of = [field.name for field in attrs.fields(type(items[0])) if not field.name.startswith("_")]
    spread = {name for name in of if _is_spread([getattr(item, name) for item in items])}
    names = {name: _free(name, items, set(of) - spread) for name in of if name in spread}
    frame = pandas.DataFrame([dict(_cells(item, of, names)) for item in items])
    index = _INDEX.get(type(items[0]), "id")
    return frame.set_index(index) if index in of else frame


def _is_spread(values: Sequence[Any]) -> bool:
    """Whether these are mappings, and not all of mappings, as the files of checkpoints are."""
    members = [member for value in values if isinstance(value, Mapping) for member in value.values()]
    return all(isinstance(value, Mapping) for value in values) and (
        not members or not all(isinstance(member, Mapping) for member in members)
    )


def _free(name: str, items: Sequence[Any], taken: set[str]) -> Mapping[str, str]:
    """Return the columns of the members of a mapping, which no other column has, and add them to `taken`."""
    columns: dict[str, str] = {}
    for member in dict.fromkeys(member for item in items for member in getattr(item, name)):
        column = str(member)
        while column in taken:
            column = f"{name}.{column}"
        taken.add(column)
        columns[member] = column
    return columns


def _cells(item: Any, of: Sequence[str], names: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, object]]:
    for name in of:
        value = getattr(item, name)
        if name not in names:
            yield name, _cell(value)
            continue
        for member, one in value.items():
            yield names[name][member], _cell(one)


def _cell(value: Any) -> object:
    if isinstance(value, Enum):
        return value.value
    return float(value) if isinstance(value, Decimal) else value


# ---- runs


def runs_frame(runs: Sequence[EvaluationRun]) -> Any:
    """Return a data frame with a line for each evaluation run."""
    pandas = load_pandas()
    index = pandas.Index([run.id for run in runs], name="run")
    prompts, metrics = _names(runs)
    return pandas.DataFrame([dict(_line(run, prompts, metrics)) for run in runs], index=index)


def _names(runs: Sequence[EvaluationRun]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the columns of all prompts and of all metrics by their names, which no other column has."""
    taken = {"project", "evaluation", "model", "state", "started_at", "finished_at", "trials"}

    def free(kind: str, names: Iterable[str], *with_it: str) -> Iterator[tuple[str, str]]:
        for name in sorted(names):
            column = name
            while taken & {column, *(column + end for end in with_it)}:
                column = f"{kind}.{column}"
            taken.update((column, *(column + end for end in with_it)))
            yield name, column

    prompts = dict(free("prompt", {name for run in runs for name in run.prompts}))
    return prompts, dict(free("metric", {name for run in runs for name, _ in _metrics(run)}, ".scored"))


def _metrics(run: EvaluationRun) -> Iterator[tuple[str, Mapping[str, object]]]:
    scorers = (run.summary or {}).get("scorers")
    for name, one in scorers.items() if isinstance(scorers, Mapping) else ():
        if isinstance(one, Mapping):
            yield name, one


def _line(run: EvaluationRun, prompts: Mapping[str, str], metrics: Mapping[str, str]) -> Iterator[tuple[str, object]]:
    yield from (("project", run.project), ("evaluation", ref_text(run.evaluation)), ("model", ref_text(run.model)))
    yield from ((prompts[name], prompt) for name, prompt in run.prompts.items())
    yield from (("state", str(run.state)), ("started_at", run.started_at), ("finished_at", run.finished_at))
    yield "trials", (run.summary or {}).get("trials")
    for name, one in _metrics(run):
        yield metrics[name], one.get("mean")
        yield f"{metrics[name]}.scored", one.get("scored")

"""Runs as a data frame: `platform.evaluations.to_pandas`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.identity import Principal
from modelyard.errors import InvalidInput, MissingExtra
from modelyard.platform.evaluations.result import AnyRun, run_id_of
from modelyard.platform.evaluations.service import Evaluations
from modelyard.platform.runtime import Runtime
from modelyard.report.numbers import ref_text


class ToPandas:
    """`platform.evaluations.to_pandas`."""

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._evaluations = Evaluations(runtime, principal)

    def __call__(self, runs: Iterable[AnyRun]) -> Any:
        """Return a data frame with a line for each run, in their order, under its id: what was evaluated, by which
        prompts, its state and times, its `trials`, and for each metric its mean and how many trials it scored.
        A name that another column has gets "prompt." or "metric." before it.

        Raises `NotFound`, `InvalidInput`, `MissingExtra` if pandas is not installed.
        """
        if isinstance(runs, str | EvaluationRun) or not isinstance(runs, Iterable):
            raise InvalidInput.at("runs", msg="must be several runs, such as platform.evaluations.runs.list()")
        try:
            pandas = import_module("pandas")
        except ImportError as missing:
            raise MissingExtra("pandas") from missing
        found = [one if isinstance(one, EvaluationRun) else self._evaluations.runs.get(run_id_of(one)) for one in runs]
        index = pandas.Index([run.id for run in found], name="run")
        prompts, metrics = _names(found)
        return pandas.DataFrame([dict(_line(run, prompts, metrics)) for run in found], index=index)


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

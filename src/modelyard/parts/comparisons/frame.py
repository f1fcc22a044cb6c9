"""Runs as a data frame: `platform.evaluations.to_pandas`."""

from collections.abc import Iterable, Iterator, Mapping
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
        return pandas.DataFrame([dict(_line(run)) for run in found], index=index)


def _line(run: EvaluationRun) -> Iterator[tuple[str, object]]:
    yield from (("project", run.project), ("evaluation", ref_text(run.evaluation)), ("model", ref_text(run.model)))
    yield from run.prompts.items()
    yield from (("state", str(run.state)), ("started_at", run.started_at), ("finished_at", run.finished_at))
    summary = run.summary or {}
    yield "trials", summary.get("trials")
    scorers = summary.get("scorers")
    for name, one in scorers.items() if isinstance(scorers, Mapping) else ():
        if isinstance(one, Mapping):
            yield name, one.get("mean")
            yield f"{name}.scored", one.get("scored")

"""Runs as a data frame: `platform.evaluations.to_pandas`."""

from collections.abc import Iterable
from typing import Any

from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.identity import Principal
from modelyard.errors import InvalidInput
from modelyard.parts.reports.frames import load_pandas, runs_frame
from modelyard.platform.evaluations.result import AnyRun, run_id_of
from modelyard.platform.evaluations.service import Evaluations
from modelyard.platform.runtime import Runtime


class ToPandas:
    """Runs as a data frame: `platform.evaluations.to_pandas`."""

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
        load_pandas()
        return runs_frame(
            [one if isinstance(one, EvaluationRun) else self._evaluations.runs.get(run_id_of(one)) for one in runs]
        )

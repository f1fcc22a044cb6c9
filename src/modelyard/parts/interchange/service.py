"""`platform.evaluations.inspect`: runs from logs of Inspect, and logs of runs."""

import os
from collections.abc import Mapping
from typing import Any

from modelyard.domain.evaluation.objects import ObjectRef, RefKind, object_id
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.identity import Principal
from modelyard.domain.record import EMPTY
from modelyard.errors import InvalidInput, located_at
from modelyard.parts.interchange.given_runs import GivenRun, derived_id, keep_run, scorer_ref
from modelyard.parts.interchange.inspect_logs import InspectLog, read_log
from modelyard.parts.interchange.written_logs import EVALUATION_KEPT, MODEL_KEPT, SCORERS_KEPT, write_log
from modelyard.platform.evaluations.result import AnyRun, run_id_of
from modelyard.platform.evaluations.runs import find_run
from modelyard.platform.evaluations.stored_run import StoredRun
from modelyard.platform.paging import named_place
from modelyard.platform.runtime import Runtime


class InspectLogs:
    """Logs of the evaluation framework Inspect.

    run = platform.evaluations.inspect.read("logs/2026-11-29_quiz.eval", project="demo")
    platform.evaluations.inspect.write(run, "quiz.json")
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def read(
        self, path: str | os.PathLike[str], *, project: str | None = None, entity: str | None = None
    ) -> EvaluationRun:
        """Keep a log (.eval or .json) as a run: its samples, scores, usage and times. The same log is the same run.

        The grades C, I and N are bools, P is 0.5. Raises `InvalidInput` naming the file and what is wrong with it,
        `Forbidden`, OSError.
        """
        self._require_host()
        place = named_place(self._runtime, self._principal, entity, project)
        since = self._runtime.clock.monotonic()
        with located_at(os.fspath(path)):
            return self._kept(place, read_log(path), since)

    def _kept(self, place: tuple[str, str], log: InspectLog, since: float) -> EvaluationRun:
        (began, ended), scorers = log.times(), log.kept.get(SCORERS_KEPT)
        known = scorers if isinstance(scorers, Mapping) else EMPTY
        evaluation, model = (str(ObjectRef(*place, RefKind.OBJECT, name)) for name in _names(log))
        given = GivenRun(
            derived_id("inspect", *place, log.digest),
            *place,
            _kept_here(place, log.kept.get(EVALUATION_KEPT)) or evaluation,
            _kept_here(place, log.kept.get(MODEL_KEPT)) or model,
            began,
            ended,
            {name: _kept_here(place, known.get(name)) or scorer_ref(place, name) for name in log.scorers},
            log.reason,
            log.prompts,
            "a log of Inspect",
        )
        return keep_run(self._runtime, given, log.answers(), since)

    def write(self, run: AnyRun, path: str | os.PathLike[str]) -> None:
        """Write a run as a log, by the ending JSON or an archive (.eval), for `inspect view` and `read_eval_log`.

        Bools are the grades C and I. The metadata of a sample have its row. Raises `NotFound`, `InvalidInput`.
        """
        self._require_host()
        found = find_run(self._runtime, self._principal, run_id_of(run))
        write_log(found, StoredRun(self._runtime, found.id).full(), path)

    def _require_host(self) -> None:
        if self._principal.scope.entity is not None:
            raise InvalidInput.at("path", msg="only the host may name a file")


def _names(log: InspectLog) -> tuple[str, str]:
    return object_id(log.task) or "task", object_id(log.model) or "model"


def _kept_here(place: tuple[str, str], text: Any) -> str | None:
    """Return the reference that a run had here when it was written as a log; None for one of another place."""
    ref = ObjectRef.parse(text) if isinstance(text, str) else None
    return str(ref) if ref is not None and (ref.entity, ref.project) == place else None

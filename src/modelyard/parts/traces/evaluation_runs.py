"""Evaluations that a program traces with its SDK, kept as runs: their rows, outputs and scores."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import attrs

from modelyard.domain.evaluation.objects import ObjectRef, RefKind, object_id
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.identity import Principal
from modelyard.errors import ModelyardError
from modelyard.lazy import log
from modelyard.parts.interchange.given_runs import (
    GivenAnswer,
    GivenRun,
    GivenScore,
    derived_id,
    keep_run,
    scorer_ref,
    seconds_of,
    tokens_of,
)
from modelyard.parts.traces.objects import PublishedObjects
from modelyard.parts.traces.records import TracedCall, TracedRow
from modelyard.platform.paging import get_or_none, iter_index_live
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot

EVALUATE, ROW = "Evaluation.evaluate", "Evaluation.predict_and_score"
"""The ops of an evaluation, and of one row of it."""

Place = tuple[str, str]


def run_id_of(call: TracedCall) -> str:
    """Return the id of the run that an evaluation is kept as."""
    return derived_id("weave", call.entity, call.project, call.id)


def keep_evaluations(runtime: Runtime, principal: Principal, place: Place, ended: Sequence[str]) -> list[EvaluationRun]:
    """Keep the evaluations among calls that have ended as runs, and those that others of these calls belong to."""
    kept: list[EvaluationRun] = []
    with _logged("traced evaluations are not kept as runs"):
        for call in runtime.store.read(partial(_evaluations, place, ended)) if ended else ():
            with _logged(f"the traced evaluation {call.id} is not kept as a run"):
                kept.append(_Evaluation(runtime, principal, place, call).keep())
    return kept


@contextmanager
def _logged(what: str) -> Iterator[None]:
    """Log what goes wrong: the calls are recorded all the same, and their sender would send them again."""
    try:
        yield
    except ModelyardError as odd:
        log.warning("%s: %s", what, odd)
    except Exception:  # noqa: BLE001 - it is logged
        log.exception("%s", what)


def _evaluations(place: Place, ended: Sequence[str], snapshot: Snapshot) -> list[TracedCall]:
    calls = [call for one in ended if (call := get_or_none(snapshot, TracedCall, *place, one)) is not None]
    ids = dict.fromkeys(call.id for call in calls if call.op == EVALUATE)
    above = (get_or_none(snapshot, TracedCall, *place, one) for one in {call.parent_id for call in calls} if one)
    rows = (call for call in (*calls, *filter(None, above)) if call.op == ROW)
    ids |= dict.fromkeys(call.parent_id for call in rows if call.parent_id is not None)
    whole = (get_or_none(snapshot, TracedCall, *place, one) for one in ids)
    return [call for call in whole if call is not None and call.op == EVALUATE and call.ended_at is not None]


@attrs.define
class _Evaluation:
    """One traced evaluation. `scorers` are the references of the scorers that were met, by their names."""

    runtime: Runtime
    principal: Principal
    place: Place
    call: TracedCall
    scorers: dict[str, str] = attrs.field(factory=dict)
    rows: dict[str, Any] = attrs.field(factory=dict)

    def keep(self) -> EvaluationRun:
        since = self.runtime.clock.monotonic()
        call, answers = self.call, [*self._answers()]
        given = GivenRun(
            run_id_of(call),
            *self.place,
            self._reference("self", "evaluation"),
            self._reference("model", "model"),
            call.started_at,
            call.ended_at or call.started_at,
            self.scorers,
            _message(call.exception),
        )
        return keep_run(self.runtime, given, answers, since)

    def _reference(self, name: str, otherwise: str) -> str:
        value = self.call.inputs.get(name)
        if isinstance(value, str) and ObjectRef.parse(value) is not None:
            return value
        return str(
            ObjectRef(*self.place, RefKind.OBJECT, object_id(value if isinstance(value, str) else "") or otherwise)
        )

    def _made_by(self, call: TracedCall) -> Iterator[TracedCall]:
        return iter_index_live(self.runtime, TracedCall, "by_parent", *self.place, call.id)

    def _answers(self) -> Iterator[GivenAnswer]:
        for call in self._made_by(self.call):
            if call.op == ROW and call.ended_at is not None:
                yield self._answer(call, [*self._made_by(call)])

    def _answer(self, call: TracedCall, made: Sequence[TracedCall]) -> GivenAnswer:
        value, example = _members(call.output.get("value")), self._resolved(call.inputs.get("example"))
        scores = _members(self._resolved(value.get("scores")))
        failed = made[0].exception if made and not scores else None
        seconds = seconds_of(value.get("model_latency"))
        return GivenAnswer(
            call.id,
            example if isinstance(example, Mapping) else {"example": example},
            self._resolved(value.get("output", value.get("model_output"))),
            call.started_at,
            call.latency if seconds is None else seconds,
            _message(call.exception or failed),
            {name: self._score(name, score, made) for name, score in scores.items()},
            _tokens(call, ("prompt_tokens", "input_tokens")),
            _tokens(call, ("completion_tokens", "output_tokens")),
        )

    def _score(self, name: str, value: Any, made: Iterable[TracedCall]) -> GivenScore:
        scored = next((one for one in made if one.op in (name, f"{name}.score")), None)
        ref = None if scored is None else ObjectRef.parse(scored.op_name)
        version = None if ref is None else ref.version
        self.scorers.setdefault(name, scorer_ref(self.place, name, version))
        return GivenScore(self._resolved(value), error=_message(None if scored is None else scored.exception))

    # ---- values that are references

    def _resolved(self, value: Any) -> Any:
        """Return what a reference leads to; any other value, and a reference that leads nowhere, as it is."""
        ref = ObjectRef.parse(value) if isinstance(value, str) and "://" in value else None
        if ref is None:
            return value
        ids = [at for at, (step, _) in enumerate(ref.path) if step == "id"]
        if len(ids) == 1 and (ref.entity, ref.project) == self.place:  # a row, which its digest finds at once
            found = self._row(ref.path[ids[0]][1])
            for step, name in ref.path[ids[0] + 1 :]:
                found = _members(found).get(name) if step in ("key", "attr") else None
            return value if found is None else found
        with suppress(ModelyardError):
            return PublishedObjects(self.runtime, self.principal).read(str(value))
        return value

    def _row(self, digest: str) -> Any:
        if digest not in self.rows:
            row = self.runtime.store.read(lambda snapshot: get_or_none(snapshot, TracedRow, *self.place, digest))
            self.rows[digest] = None if row is None else row.content.get("value")
        return self.rows[digest]


def _members(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _message(exception: str | None) -> str:
    """Return the message of an exception, which the SDK sends as text or as JSON."""
    if not exception:
        return ""
    with suppress(ValueError, RecursionError):
        parsed = _members(json.loads(exception))
        if parsed.get("message"):
            return f"{parsed.get('type', 'error')}: {parsed['message']}"
    return exception


def _tokens(call: TracedCall, names: Sequence[str]) -> int | None:
    used = map(_members, _members(call.summary.get("usage")).values())
    return tokens_of(next((one[name] for name in names if type(one.get(name)) is int), None) for one in used)

"""Whether a checkpoint is good enough to be promoted: its run beside that of what the alias points to."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from modelyard.domain.alias import NotWorse
from modelyard.domain.comparison import MetricComparison
from modelyard.domain.evaluation import EvaluationRun, RunState
from modelyard.domain.identity import Principal
from modelyard.domain.lineage import checkpoint_ref
from modelyard.domain.reference import ObjectRef, same_scheme
from modelyard.domain.training import Model
from modelyard.domain.versioned import OneObject
from modelyard.errors import InvalidInput, PromotionRefused
from modelyard.protocols import Snapshot
from modelyard.report.comparison import ComparisonReport
from modelyard.service.asserting import check_not_worse
from modelyard.service.evaluation import Evaluations
from modelyard.service.evaluation_name import evaluation_ref, held, versions_of
from modelyard.service.lineage import runs_on
from modelyard.service.ports import Ports

FEW = 10
"""How many things a refusal names at most of each kind."""

Pair = tuple[EvaluationRun, EvaluationRun]
"""The run of the candidate and that of what the alias points to."""


def verdict(
    ports: Ports, principal: Principal, model: Model, step: int, current: int | None, require: NotWorse
) -> Mapping[str, Any]:
    """The numbers with which the checkpoint of a step meets a requirement, beside that of the step `current`.

    Raises `PromotionRefused` where it does not, or where there is nothing to judge by; `NotFound`, `InvalidInput`.
    """
    if current is None:
        return {"outcome": "there was nothing to compare with"}
    evaluations = Evaluations(ports, principal)
    if require.evaluation is not None:
        pair = ports.store.read(partial(_newest, principal, require.evaluation, model, (step, current)))
    else:
        pair = _named(evaluations, require.runs or (), model, (step, current))
    candidate, baseline = pair
    report = evaluations.compare(baseline, candidate, confidence=require.confidence)
    try:
        check_not_worse(report, require.metric, require.margin)
    except AssertionError as failed:
        raise PromotionRefused(str(failed)) from None
    return _numbers(report, require)


def _named(evaluations: Evaluations, run_ids: Sequence[str], model: Model, steps: tuple[int, int]) -> Pair:
    """The runs of these ids, which must have judged these checkpoints and be completed."""
    candidate, baseline = (evaluations.get(run_id) for run_id in run_ids)
    for name, run, step in (("candidate", candidate, steps[0]), ("baseline", baseline, steps[1])):
        if same_scheme(run.model) != str(checkpoint_ref(model, step)) or run.state is not RunState.COMPLETED:
            raise InvalidInput.at("runs", name, msg=f"must be a completed run on step {step} of {model.name}")
    return candidate, baseline


def _newest(
    principal: Principal, evaluation: OneObject, model: Model, steps: tuple[int, int], snapshot: Snapshot
) -> Pair:
    """The newest completed runs of both checkpoints on one evaluation, in one and the same version."""
    wanted = held(snapshot, principal, evaluation_ref(evaluation, (model.entity, model.project)))
    candidates, baselines = (list(_judging(snapshot, principal, wanted, model, step)) for step in steps)
    for version, candidate in candidates:
        for same, baseline in baselines:
            if version == same:
                return candidate, baseline
    lacking = [str(step) for step, runs in zip(steps, (candidates, baselines), strict=True) if not runs]
    which = f"step {' and step '.join(lacking)}" if lacking else "the same version of it for both steps"
    named = evaluation if isinstance(evaluation, str) else str(wanted)
    raise PromotionRefused(
        f"there is no completed run of {named!r} on {which} of {model.name}; evaluate it first"
        + _what_there_is(snapshot, principal, wanted, model, steps)
    )


def _judging(
    snapshot: Snapshot, principal: Principal, wanted: ObjectRef, model: Model, step: int
) -> Iterator[tuple[ObjectRef, EvaluationRun]]:
    """The completed runs on a step that are of an evaluation, the newest first, each with the version that it is of."""
    for run in _visible(snapshot, principal, model, step):
        ref = ObjectRef.parse(run.evaluation)
        if ref is not None and (ref.entity, ref.project, ref.name) == (wanted.entity, wanted.project, wanted.name):
            version = held(snapshot, principal, ref)
            if wanted.version in (None, version.version):
                yield version, run


def _visible(snapshot: Snapshot, principal: Principal, model: Model, step: int) -> Iterator[EvaluationRun]:
    for run in runs_on(snapshot, model, step):
        if principal.scope.covers(run.entity, run.project) and run.state is RunState.COMPLETED:
            yield run


def _what_there_is(
    snapshot: Snapshot, principal: Principal, wanted: ObjectRef, model: Model, steps: tuple[int, int]
) -> str:
    """What a refusal adds: the published versions of the evaluation, and on what the steps were judged instead."""
    told, versions = "", versions_of(snapshot, principal, wanted)
    if versions:
        told += f"; published of it: {', '.join(versions[-FEW:])}"
    for step in steps:
        others = dict.fromkeys(run.evaluation for run in islice(_visible(snapshot, principal, model, step), FEW))
        if others:
            told += f"; step {step} was judged on {', '.join(others)}"
    return told


def _numbers(report: ComparisonReport, require: NotWorse) -> Mapping[str, Any]:
    """What is kept of a comparison."""
    compared = report.comparison.metrics if require.metric is None else [report.comparison.metric(require.metric)]
    return {
        "outcome": "not worse",
        "evaluation": report.candidate.evaluation,
        "candidate_run": report.candidate.id,
        "baseline_run": report.baseline.id,
        "margin": require.margin,
        "confidence": require.confidence,
        "rows": report.comparison.rows,
        "metrics": {one.name: _metric(one) for one in compared},
    }


def _metric(one: MetricComparison) -> Mapping[str, Any]:
    interval = one.paired.interval
    return {
        "verdict": one.verdict.value,
        "rows": one.paired.count,
        "baseline": one.baseline,
        "candidate": one.candidate,
        "difference": one.paired.difference,
        "low": None if interval is None else interval.low,
        "high": None if interval is None else interval.high,
        "p": one.corrected,
    }

"""Whether a checkpoint is good enough to be promoted: its run beside that of what the alias points to."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from modelyard.domain.alias import NotWorse
from modelyard.domain.comparison import MetricComparison
from modelyard.domain.evaluation import EvaluationRun, RunState
from modelyard.domain.identity import Principal
from modelyard.domain.lineage import checkpoint_ref
from modelyard.domain.reference import ObjectRef, object_id, same_scheme
from modelyard.domain.training import Model
from modelyard.errors import InvalidInput, PromotionRefused
from modelyard.protocols import Snapshot
from modelyard.report.comparison import ComparisonReport
from modelyard.service.asserting import check_not_worse
from modelyard.service.evaluation import Evaluations
from modelyard.service.lineage import runs_on
from modelyard.service.ports import Ports

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
    if require.runs is not None:
        pair = _named(evaluations, require.runs, model, (step, current))
    else:
        pair = ports.store.read(partial(_newest, principal, require.evaluation or "", model, (step, current)))
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


def _newest(principal: Principal, evaluation: str, model: Model, steps: tuple[int, int], snapshot: Snapshot) -> Pair:
    """The newest completed runs of both checkpoints on one evaluation, in one and the same version."""
    wanted = _evaluation(evaluation, model)
    candidates, baselines = (list(_judging(snapshot, principal, wanted, model, step)) for step in steps)
    for candidate in candidates:
        for baseline in baselines:
            if same_scheme(candidate.evaluation) == same_scheme(baseline.evaluation):
                return candidate, baseline
    lacking = [str(step) for step, runs in zip(steps, (candidates, baselines), strict=True) if not runs]
    which = f"step {' and step '.join(lacking)}" if lacking else "the same version of it for both steps"
    raise PromotionRefused(f"there is no completed run of {evaluation!r} on {which} of {model.name}; evaluate it first")


def _judging(
    snapshot: Snapshot, principal: Principal, wanted: ObjectRef, model: Model, step: int
) -> Iterator[EvaluationRun]:
    for run in runs_on(snapshot, model, step):
        ref = ObjectRef.parse(run.evaluation)
        visible = principal.scope.covers(run.entity, run.project) and run.state is RunState.COMPLETED
        if visible and ref is not None and _is_of(ref, wanted):
            yield run


def _is_of(ref: ObjectRef, wanted: ObjectRef) -> bool:
    same = (ref.entity, ref.project, ref.name) == (wanted.entity, wanted.project, wanted.name)
    return same and wanted.version in (None, ref.version)


def _evaluation(evaluation: str, model: Model) -> ObjectRef:
    """The reference of an evaluation that is given by it, or by its name in the model's project."""
    text = evaluation
    if "://" not in evaluation:
        text = f"weave:///{model.entity}/{model.project}/object/{object_id(evaluation)}"
    ref = ObjectRef.parse(text)
    if ref is None:
        raise InvalidInput.at("evaluation", msg="must be a name, or the reference of an evaluation")
    return ref


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

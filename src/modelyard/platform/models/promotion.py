"""Promoting checkpoints: pointing an alias such as `prod` at one, if a requirement is met."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from modelyard.domain.evaluation.comparison import MetricComparison
from modelyard.domain.evaluation.objects import ObjectRef, OneObject, same_scheme
from modelyard.domain.evaluation.run import EvaluationRun, RunState
from modelyard.domain.identity import Principal
from modelyard.domain.models import Model
from modelyard.domain.promotion import Alias, Change, NotWorse, Promotable, Promotion, check_alias
from modelyard.domain.record import EMPTY, Order
from modelyard.errors import InvalidInput, NotFound, PromotionRefused, nearest
from modelyard.platform.checkpoints.aliases import aliases_of, promote
from modelyard.platform.checkpoints.lookup import found_checkpoint, named_model
from modelyard.platform.evaluations.compare import compare_runs
from modelyard.platform.evaluations.references import pinned, versions_of
from modelyard.platform.evaluations.runs import find_run
from modelyard.platform.evaluations.spec import evaluation_ref
from modelyard.platform.lineage import runs_on
from modelyard.platform.listing import Cursor, Listing, short_listing
from modelyard.platform.paging import cursor_at, get_or_none, index_listing
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx
from modelyard.report.evaluations.comparison import ComparisonReport, regression_text
from modelyard.report.numbers import ref_text

PROD = "prod"
FEW = 10
ALONE = "there was nothing to compare with"
Pair = tuple[EvaluationRun, EvaluationRun]
Place = tuple[Promotable, int]


def promotion_evidence(
    runtime: Runtime, principal: Principal, model: Promotable, step: int, current: int | None, require: NotWorse
) -> Mapping[str, Any]:
    """Return the evidence that the checkpoint of a step meets a requirement, compared with that of the step `current`.
    Raises `PromotionRefused` if it does not, or if no runs can decide it; `NotFound`, `InvalidInput`."""
    if current is None or current == step:
        _check_alone(runtime, principal, model, step, require)
        return {"outcome": ALONE} if current is None else EMPTY
    if require.runs is not None:
        read = partial(_named, runtime, principal)
        candidate, baseline = read("candidate", require, (model, step)), read("baseline", require, (model, current))
    else:
        newest = partial(_newest, principal, require.evaluation or "", model, (step, current))
        candidate, baseline = runtime.store.read(newest)
    if (evidence := require.decide(runtime, principal, baseline, candidate)) is not None:
        return evidence
    report = compare_runs(
        runtime, baseline, candidate, confidence=require.confidence, lower_is_better=require.lower_is_better
    )
    check = report.comparison.check_not_worse(require.metric, require.margin)
    if check.not_compared:
        raise PromotionRefused(f"the runs have no scored rows to compare: {'; '.join(check.not_compared)}\n\n{report}")
    if not check.passed:
        raise PromotionRefused(
            f"the candidate is worse than the promoted {model.word}\n{regression_text(report, check)}"
        )
    return _numbers(report, require)


def _named(
    runtime: Runtime, principal: Principal, name: Literal["candidate", "baseline"], require: NotWorse, place: Place
) -> EvaluationRun:
    assert require.runs is not None
    run, (model, step) = find_run(runtime, principal, require.runs[name]), place
    if same_scheme(run.model) != model.ref_of(step) or run.state is not RunState.COMPLETED:
        raise InvalidInput.at("runs", name, msg=f"must be a completed run on {model.word} {step} of {model.name}")
    return run


def _newest(
    principal: Principal, evaluation: OneObject, model: Promotable, steps: Sequence[int], snapshot: Snapshot
) -> Pair:
    """Return the newest runs on steps: the candidate's, and the baseline's if there are two."""
    wanted = pinned(snapshot, principal, evaluation_ref(evaluation, (model.entity, model.project)))
    runs = [list(_judging(snapshot, principal, wanted, model, step)) for step in steps]
    candidates, baselines = runs[0], runs[-1]
    for version, candidate in candidates:
        for same, baseline in baselines:
            if version == same:
                return candidate, baseline
    missing = [str(step) for step, found in zip(steps, runs, strict=True) if not found]
    word = model.word
    which = f"{word} {f' and {word} '.join(missing)}" if missing else f"the same version of it for both {word}s"
    named = evaluation if isinstance(evaluation, str) else ref_text(str(wanted))
    raise PromotionRefused(
        f"there is no completed run of {named!r} on {which} of {model.project}/{model.name}; evaluate it first"
        + _what_there_is(snapshot, principal, wanted, model, steps)
    )


def _judging(
    snapshot: Snapshot, principal: Principal, wanted: ObjectRef, model: Promotable, step: int
) -> Iterator[tuple[ObjectRef, EvaluationRun]]:
    for run in _visible(snapshot, principal, model, step):
        ref = ObjectRef.parse(run.evaluation)
        if ref is not None and (ref.entity, ref.project, ref.name) == (wanted.entity, wanted.project, wanted.name):
            version = pinned(snapshot, principal, ref)
            if wanted.version in (None, version.version):
                yield version, run


def _visible(snapshot: Snapshot, principal: Principal, model: Promotable, step: int) -> Iterator[EvaluationRun]:
    for run in runs_on(snapshot, model, step):
        if principal.scope.covers(run.entity, run.project) and run.state is RunState.COMPLETED:
            yield run


def _what_there_is(
    snapshot: Snapshot, principal: Principal, wanted: ObjectRef, model: Promotable, steps: Sequence[int]
) -> str:
    text, versions, names = "", versions_of(snapshot, principal, wanted), set[str]()
    if versions:
        text += f"; published of it: {', '.join(versions[-FEW:])}"
    for step in steps:
        runs = islice(_visible(snapshot, principal, model, step), FEW)
        others = dict.fromkeys(_in_words(run.evaluation, wanted) for run in runs)
        if others:
            text += f"; {model.word} {step} was evaluated on {', '.join(others)}"
        names |= {one.partition(":")[0].partition(" ")[0] for one in others} - {wanted.name}
    return text + nearest(wanted.name, names)


def _in_words(evaluation: str, wanted: ObjectRef) -> str:
    ref = ObjectRef.parse(evaluation)
    elsewhere = "" if ref is None or ref.project == wanted.project else f" in project {ref.project}"
    return f"{ref_text(evaluation)}{elsewhere}"


def _numbers(report: ComparisonReport, require: NotWorse) -> Mapping[str, Any]:
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


# ---- aliases


class _Evidence(NamedTuple):
    """The step to promote, the target of the alias when the requirement was checked, and the numbers of that check."""

    step: int | None = None
    current: int | None = None
    numbers: Mapping[str, Any] = EMPTY


def promote_step(
    runtime: Runtime, principal: Principal, model: Model | str, step: int, alias: str, require: NotWorse | None
) -> Promotion:
    check_alias(alias)
    evidence = _evidence(runtime, principal, model, step, alias, require)
    return change_alias(
        runtime, principal, model, alias, Change.PROMOTED, lambda tx, new, _: promote(tx, new), evidence
    )


def change_alias(
    runtime: Runtime,
    principal: Principal,
    model: Model | str,
    alias: str,
    change: Change,
    make: Callable[[Tx, Promotion, Model], Promotion],
    evidence: _Evidence | None = None,
) -> Promotion:
    check_alias(alias)
    id_, now, by = runtime.ids(), runtime.clock.now(), principal.key_id or principal.name

    def step(tx: Tx) -> Promotion:
        found = named_model(tx, principal, model)
        key = (found.id, found.entity, found.project, alias)
        at, current, numbers = evidence or _Evidence()
        made = make(tx, Promotion(id_, *key, 0, change, at, current, by, now, verdict=numbers), found)
        if made.id == id_:
            runtime.tell(tx, made)
        return made

    return runtime.store.transact(step)


def list_aliases(runtime: Runtime, model_id: str) -> Listing[Alias]:
    read = runtime.store.read
    threads = runtime.store_threads("")
    return short_listing(lambda: read(lambda snapshot: [*aliases_of(snapshot, model_id)]), attrgetter("name"), threads)


def list_promotions(runtime: Runtime, model_id: str, alias: str, order: Order) -> Listing[Promotion]:
    place = partial(_place, model_id, alias)
    return index_listing(runtime, Promotion, "by_alias", model_id, alias, place=place, order=order)


def _evidence(
    runtime: Runtime, principal: Principal, model: Model | str, step: int, alias: str, require: NotWorse | None
) -> _Evidence:
    if require is None:
        return _Evidence(step)
    if not isinstance(require, NotWorse):
        raise InvalidInput.at("require", msg='must be NotWorse("<evaluation>"), or nothing')
    found, now = runtime.store.read(lambda snapshot: _pointed(snapshot, principal, model, step, alias))
    current = None if now is None else now.step
    return _Evidence(step, current, promotion_evidence(runtime, principal, found, step, current, require))


def _check_alone(runtime: Runtime, principal: Principal, model: Promotable, step: int, require: NotWorse) -> None:
    """Refuse a step that has not completed the evaluation, and what no run meets, such as a misspelt metric, though
    nothing is compared. Raises `PromotionRefused`, `InvalidInput`."""
    if require.runs is not None:
        run = _named(runtime, principal, "candidate", require, (model, step))
    else:
        run, _ = runtime.store.read(partial(_newest, principal, require.evaluation or "", model, (step,)))
    same = compare_runs(runtime, run, run, confidence=require.confidence, lower_is_better=require.lower_is_better)
    same.comparison.check_not_worse(require.metric, require.margin)


def _pointed(
    snapshot: Snapshot, principal: Principal, model: Model | str, step: int, alias: str
) -> tuple[Model, Alias | None]:
    found = named_model(snapshot, principal, model)
    found_checkpoint(snapshot, found, step)
    return found, get_or_none(snapshot, Alias, found.id, alias)


def _place(model_id: str, alias: str, promotion_id: str, snapshot: Snapshot) -> Cursor:
    promotion = get_or_none(snapshot, Promotion, promotion_id)
    if promotion is None or (promotion.model_id, promotion.alias) != (model_id, alias):
        raise NotFound("Promotion", promotion_id)
    return cursor_at(Promotion, "by_alias", promotion)

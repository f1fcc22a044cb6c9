"""Promoting checkpoints: letting an alias such as `prod` point to one, and taking that back."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from modelyard.domain.evaluation.comparison import MetricComparison
from modelyard.domain.evaluation.objects import OneObject
from modelyard.domain.evaluation.references import ObjectRef, same_scheme
from modelyard.domain.evaluation.run import EvaluationRun, RunState
from modelyard.domain.identity import Principal
from modelyard.domain.lineage import checkpoint_ref
from modelyard.domain.models import Model
from modelyard.domain.paging import Order
from modelyard.domain.promotion import Alias, Change, NotWorse, Promotion, PromotionRuns, check_alias
from modelyard.domain.record import EMPTY
from modelyard.errors import InvalidInput, NotFound, PromotionRefused
from modelyard.platform.checkpoints.aliases import aliases_of, promote, remove_alias, roll_back
from modelyard.platform.checkpoints.lookup import ModelView, found_checkpoint
from modelyard.platform.evaluations.compare import compare_runs
from modelyard.platform.evaluations.references import evaluation_ref, pinned, versions_of
from modelyard.platform.evaluations.runs import find_run
from modelyard.platform.lineage import runs_on
from modelyard.platform.listing import Cursor, Listing, short_listing
from modelyard.platform.paging import cursor_at, get_or_none, index_listing
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx
from modelyard.report.evaluations.comparison import ComparisonReport, regression_text

FEW = 10
"""How many things a refusal names at most of each kind."""

Pair = tuple[EvaluationRun, EvaluationRun]
"""The run of the candidate and that of what the alias points to."""


def verdict(
    runtime: Runtime, principal: Principal, model: Model, step: int, current: int | None, require: NotWorse
) -> Mapping[str, Any]:
    """Return the evidence that the checkpoint of a step meets a requirement, compared with that of the step `current`.

    Raises `PromotionRefused` where it does not, or where there is nothing to judge by; `NotFound`, `InvalidInput`.
    """
    if current is None:
        return {"outcome": "there was nothing to compare with"}
    if require.runs is None:
        assert require.evaluation is not None
        pair = runtime.store.read(partial(_newest, principal, require.evaluation, model, (step, current)))
    else:
        pair = _named(runtime, principal, require.runs, model, (step, current))
    candidate, baseline = pair
    report = compare_runs(runtime, baseline, candidate, confidence=require.confidence)
    check = report.comparison.check_not_worse(require.metric, require.margin)
    if check.not_compared:
        why = "; ".join(check.not_compared)
        raise PromotionRefused(f"the runs have no scored rows to compare: {why}\n\n{report}")
    if not check.passed:
        raise PromotionRefused(f"the candidate is worse than the promoted step\n{regression_text(report, check)}")
    return _numbers(report, require)


def _named(runtime: Runtime, principal: Principal, runs: PromotionRuns, model: Model, steps: tuple[int, int]) -> Pair:
    """Return the runs of these ids, which must have evaluated these checkpoints and be completed."""
    candidate, baseline = (find_run(runtime, principal, run_id) for run_id in (runs["candidate"], runs["baseline"]))
    for name, run, step in (("candidate", candidate, steps[0]), ("baseline", baseline, steps[1])):
        if same_scheme(run.model) != str(checkpoint_ref(model, step)) or run.state is not RunState.COMPLETED:
            raise InvalidInput.at("runs", name, msg=f"must be a completed run on step {step} of {model.name}")
    return candidate, baseline


def _newest(
    principal: Principal, evaluation: OneObject, model: Model, steps: tuple[int, int], snapshot: Snapshot
) -> Pair:
    """Return the newest completed runs of both checkpoints on the same version of one evaluation."""
    wanted = pinned(snapshot, principal, evaluation_ref(evaluation, (model.entity, model.project)))
    candidates, baselines = (list(_judging(snapshot, principal, wanted, model, step)) for step in steps)
    for version, candidate in candidates:
        for same, baseline in baselines:
            if version == same:
                return candidate, baseline
    missing = [str(step) for step, runs in zip(steps, (candidates, baselines), strict=True) if not runs]
    which = f"step {' and step '.join(missing)}" if missing else "the same version of it for both steps"
    named = evaluation if isinstance(evaluation, str) else str(wanted)
    raise PromotionRefused(
        f"there is no completed run of {named!r} on {which} of {model.name}; evaluate it first"
        + _what_there_is(snapshot, principal, wanted, model, steps)
    )


def _judging(
    snapshot: Snapshot, principal: Principal, wanted: ObjectRef, model: Model, step: int
) -> Iterator[tuple[ObjectRef, EvaluationRun]]:
    """Yield the completed runs of an evaluation on a step, the newest first, each with its version."""
    for run in _visible(snapshot, principal, model, step):
        ref = ObjectRef.parse(run.evaluation)
        if ref is not None and (ref.entity, ref.project, ref.name) == (wanted.entity, wanted.project, wanted.name):
            version = pinned(snapshot, principal, ref)
            if wanted.version in (None, version.version):
                yield version, run


def _visible(snapshot: Snapshot, principal: Principal, model: Model, step: int) -> Iterator[EvaluationRun]:
    for run in runs_on(snapshot, model, step):
        if principal.scope.covers(run.entity, run.project) and run.state is RunState.COMPLETED:
            yield run


def _what_there_is(
    snapshot: Snapshot, principal: Principal, wanted: ObjectRef, model: Model, steps: tuple[int, int]
) -> str:
    """Return what a refusal adds: the published versions of the evaluation, and on what the steps were evaluated."""
    text, versions = "", versions_of(snapshot, principal, wanted)
    if versions:
        text += f"; published of it: {', '.join(versions[-FEW:])}"
    for step in steps:
        others = dict.fromkeys(run.evaluation for run in islice(_visible(snapshot, principal, model, step), FEW))
        if others:
            text += f"; step {step} was evaluated on {', '.join(others)}"
    return text


def _numbers(report: ComparisonReport, require: NotWorse) -> Mapping[str, Any]:
    """Return what is stored of a comparison."""
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


PROD = "prod"
"""The alias that is meant where none is named."""


class _Judged(NamedTuple):
    """A step that is to be promoted: where the alias pointed when it was judged, and the numbers of that."""

    step: int | None = None
    current: int | None = None
    verdict: Mapping[str, Any] = EMPTY


class Promotions(ModelView):
    """The part of `platform.models` that is about aliases.

    platform.models.promote("bots/support", step=3)
    platform.chat.complete(model="acme/bots/support:prod", messages="hello")
    platform.models.rollback("bots/support")

    A model is given by value, by its id or by its name ("project/name", "entity/project/name").
    """

    def promote(
        self, model: Model | str, step: int, alias: str = PROD, *, require: NotWorse | None = None
    ) -> Promotion:
        """Let an alias point to the checkpoint of a step; it is served as `<entity>/<project>/<name>:<alias>`.

        The change is kept: who made it, when, from which step, and the numbers with which it met what was required.
        Doing it again changes nothing. Raises `NotFound`, `InvalidInput`, `PromotionRefused`, and `Conflict` where the
        alias was moved while that was judged.
        """
        check_alias(alias)
        judged = self._judged(model, step, alias, require)
        return self._changed(model, alias, Change.PROMOTED, lambda tx, _, asked: promote(tx, asked), judged)

    def rollback(self, model: Model | str, alias: str = PROD) -> Promotion:
        """Let an alias point to where it pointed before its last promotion; again, to where before that.

        The history grows by this change. Raises `NotFound`, and `Conflict` where nothing was before.
        """
        return self._changed(model, alias, Change.ROLLED_BACK, lambda tx, model, asked: roll_back(tx, asked, model))

    def remove_alias(self, model: Model | str, alias: str) -> Promotion:
        """Let an alias point to nothing; its history stays. Raises `NotFound`."""
        return self._changed(model, alias, Change.REMOVED, lambda tx, model, asked: remove_alias(tx, asked, model))

    def aliases(self, model: Model | str) -> Listing[Alias]:
        """List the aliases of a model by name, with the steps that they point to. Raises `NotFound`."""
        read = self._runtime.store.read
        model_id = read(lambda snapshot: self._named(snapshot, model)).id
        return short_listing(lambda: read(lambda snapshot: [*aliases_of(snapshot, model_id)]), attrgetter("name"))

    def promotions(
        self,
        model: Model | str,
        alias: str = PROD,
        *,
        order: Order = "asc",
    ) -> Listing[Promotion]:
        """List every change of an alias in order, also of one that was removed. Raises `NotFound`."""
        found = self._runtime.store.read(lambda snapshot: self._named(snapshot, model))
        place = partial(_place, found.id, alias)
        return index_listing(self._runtime, Promotion, "by_alias", found.id, alias, place=place, order=order)

    def _judged(self, model: Model | str, step: int, alias: str, require: NotWorse | None) -> "_Judged":
        """Check the requirement for promoting `step`. Returns the evidence that is stored with the promotion."""
        if require is None:
            return _Judged(step)
        if not isinstance(require, NotWorse):
            raise InvalidInput.at("require", msg='must be NotWorse("<evaluation>"), or nothing')
        found, now = self._runtime.store.read(lambda snapshot: self._pointed(snapshot, model, step, alias))
        if now is not None and now.step == step:
            return _Judged(step)
        current = None if now is None else now.step
        return _Judged(step, current, verdict(self._runtime, self._principal, found, step, current, require))

    def _pointed(self, snapshot: Snapshot, model: Model | str, step: int, alias: str) -> tuple[Model, Alias | None]:
        found = self._named(snapshot, model)
        found_checkpoint(snapshot, found, step)
        return found, get_or_none(snapshot, Alias, found.id, alias)

    def _changed(
        self,
        model: Model | str,
        alias: str,
        change: Change,
        make: Callable[[Tx, Model, Promotion], Promotion],
        judged: "_Judged | None" = None,
    ) -> Promotion:
        check_alias(alias)
        id_, now, by = self._runtime.ids(), self._runtime.clock.now(), self._principal.key_id or self._principal.name

        def act(tx: Tx) -> Promotion:
            found = self._named(tx, model)
            step, current, numbers = judged or _Judged()
            place = (found.id, found.entity, found.project, alias)
            return make(tx, found, Promotion(id_, *place, 0, change, step, current, by, now, verdict=numbers))

        return self._runtime.store.transact(act)


def _place(model_id: str, alias: str, promotion_id: str, snapshot: Snapshot) -> Cursor:
    """Return the cursor after a change of an alias. Raises `NotFound`."""
    promotion = get_or_none(snapshot, Promotion, promotion_id)
    if promotion is None or (promotion.model_id, promotion.alias) != (model_id, alias):
        raise NotFound("Promotion", promotion_id)
    return cursor_at(Promotion, "by_alias", promotion)

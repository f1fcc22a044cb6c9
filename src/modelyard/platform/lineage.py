"""The sources of runs, checkpoints and completions: walking what records say of each other, on a snapshot."""

from collections import deque
from collections.abc import Iterator, Mapping
from heapq import merge
from itertools import islice
from typing import Protocol, TypeVar

from modelyard.domain.completion import StoredCompletion
from modelyard.domain.evaluation.objects import ObjectRef, RefKind
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.identity import Principal
from modelyard.domain.job import Job
from modelyard.domain.models import Checkpoint, Model, ModelName, Tombstone
from modelyard.domain.promotion import Alias, CheckpointLineage, CompletionLineage, Promotable, RunLineage, TrainedStep
from modelyard.domain.record import EMPTY
from modelyard.domain.usage import LedgerEntry
from modelyard.errors import NotFound
from modelyard.platform.paging import get_or_none, iter_index
from modelyard.protocols import Snapshot

T = TypeVar("T")

MOST = 1000


# ---- runs --------------------------------------------------------------------------------------------------------


def run_lineage(snapshot: Snapshot, principal: Principal, run: EvaluationRun) -> RunLineage:
    sources, more_sources = _cut(_sources(snapshot, principal, run))
    derived, more_derived = _cut(_derived(snapshot, principal, run))
    missing = None if more_sources else (sources or (run,))[-1].source_evaluation_run_id
    evaluated = _evaluated(snapshot, principal, run)
    return RunLineage(run, sources, missing, derived, evaluated, more_sources or more_derived)


def _cut(found: Iterator[T]) -> tuple[tuple[T, ...], bool]:
    some = tuple(islice(found, MOST + 1))
    return some[:MOST], len(some) > MOST


def _sources(snapshot: Snapshot, principal: Principal, run: EvaluationRun) -> Iterator[EvaluationRun]:
    seen = {run.id}
    while run.source_evaluation_run_id is not None and run.source_evaluation_run_id not in seen:
        source = get_or_none(snapshot, EvaluationRun, run.source_evaluation_run_id)
        if source is None or not _covers(principal, source):
            return
        yield source
        seen.add(source.id)
        run = source


def _derived(snapshot: Snapshot, principal: Principal, run: EvaluationRun) -> Iterator[EvaluationRun]:
    seen, waiting = {run.id}, deque([run.id])
    while waiting:
        for made in iter_index(snapshot, EvaluationRun, "by_source", waiting.popleft()):
            if made.id not in seen and _covers(principal, made):
                seen.add(made.id)
                waiting.append(made.id)
                yield made


def _covers(principal: Principal, run: EvaluationRun) -> bool:
    return principal.scope.covers(run.entity, run.project)


def _evaluated(snapshot: Snapshot, principal: Principal, run: EvaluationRun) -> CheckpointLineage | None:
    ref = ObjectRef.parse(run.model)
    if ref is None or ref.kind is not RefKind.OBJECT or ref.version is None:
        return None
    return _named(snapshot, principal, f"{ref.entity}/{ref.project}/{ref.name}:{ref.version}")


def _named(snapshot: Snapshot, principal: Principal, name: str) -> CheckpointLineage | None:
    named = ModelName.parse(name)
    if named is None or named.step is None or not principal.scope.covers(named.entity, named.project):
        return None
    model = snapshot.find(Model, "name", named.entity, named.project, named.name)
    checkpoint = None if model is None else snapshot.find(Checkpoint, "step", model.id, named.step)
    if model is None or checkpoint is None:
        return None
    return checkpoint_lineage(snapshot, principal, model, checkpoint)


# ---- checkpoints -------------------------------------------------------------------------------------------------


def checkpoint_lineage(
    snapshot: Snapshot, principal: Principal, model: Model, checkpoint: Checkpoint
) -> CheckpointLineage:
    steps, more_steps = _cut(_steps(snapshot, checkpoint))
    runs, more_runs = _cut(run for run in runs_on(snapshot, model, checkpoint.step) if _covers(principal, run))
    aliases = tuple(
        alias.name for alias in iter_index(snapshot, Alias, "by_model", model.id) if alias.step == checkpoint.step
    )
    return CheckpointLineage(model, checkpoint, steps, aliases, runs, more_steps or more_runs)


def runs_on(snapshot: Snapshot, model: Promotable, step: int) -> Iterator[EvaluationRun]:
    ref = model.ref_of(step)
    spelled = (ref, ref.replace("weave", "modelyard", 1))
    runs = (iter_index(snapshot, EvaluationRun, "by_model", text, descending=True) for text in spelled)
    return merge(*runs, key=lambda run: (run.started_at, run.id), reverse=True)


def _steps(snapshot: Snapshot, checkpoint: Checkpoint) -> Iterator[TrainedStep]:
    while True:
        yield _trained(snapshot, checkpoint)
        if checkpoint.parent_id is None:
            return
        parent = get_or_none(snapshot, Checkpoint, checkpoint.parent_id)
        if parent is None:
            buried = get_or_none(snapshot, Tombstone, checkpoint.parent_id)
            yield from () if buried is None else (TrainedStep(buried.step, deleted=True),)
            return
        checkpoint = parent


def _trained(snapshot: Snapshot, checkpoint: Checkpoint) -> TrainedStep:
    job = None if checkpoint.job_id is None else get_or_none(snapshot, Job, checkpoint.job_id)
    if job is None:
        return TrainedStep(checkpoint.step, checkpoint.digest, checkpoint.job_id)
    data = (job.spec.get("digest"), job.spec.get("url"))
    return TrainedStep(checkpoint.step, checkpoint.digest, job.id, job.kind, *data)


# ---- completions -------------------------------------------------------------------------------------------------


def completion_lineage(snapshot: Snapshot, principal: Principal, id: str) -> CompletionLineage:
    kept, booked = get_or_none(snapshot, StoredCompletion, id), get_or_none(snapshot, LedgerEntry, id)
    if kept is None or booked is None or not may_read(principal, kept):
        raise NotFound("stored completion", id)
    return lineage_of(snapshot, principal, booked, kept)


class KeptAnswer(Protocol):
    """A stored answer, which names the checkpoint that made it, and its prices."""

    @property
    def checkpoint_id(self) -> str | None:
        """The id of the checkpoint, if one answered."""

    @property
    def price(self) -> Mapping[str, str]:
        """The prices at the time, as `Pricing.texts`."""


def lineage_of(
    snapshot: Snapshot, principal: Principal, booked: LedgerEntry, kept: KeptAnswer | None
) -> CompletionLineage:
    """Return the source of an answer, stored or not, from its row of the ledger, which the principal may read."""
    of = (
        booked.id,
        booked.model,
        booked.base_model,
        booked.checkpoint_step,
        _answering(snapshot, principal, kept, booked),
    )
    price = EMPTY if kept is None else kept.price
    return CompletionLineage(*of, booked.prompt_tokens, booked.completion_tokens, booked.cost, booked.created_at, price)


def _answering(
    snapshot: Snapshot, principal: Principal, kept: KeptAnswer | None, booked: LedgerEntry
) -> CheckpointLineage | None:
    """Return the lineage of the checkpoint that answered, if one did, it exists and the principal may see its model.
    Completions that were not stored, or before their checkpoint was recorded, name it by the model and its step."""
    if kept is None or kept.checkpoint_id is None:
        step = booked.checkpoint_step
        return None if step is None else _named(snapshot, principal, f"{booked.model}:step{step}")
    checkpoint = get_or_none(snapshot, Checkpoint, kept.checkpoint_id)
    model = None if checkpoint is None else get_or_none(snapshot, Model, checkpoint.model_id)
    if checkpoint is None or model is None or not principal.scope.covers(model.entity, model.project):
        return None
    return checkpoint_lineage(snapshot, principal, model, checkpoint)


def may_read(principal: Principal, kept: StoredCompletion | LedgerEntry) -> bool:
    projects = principal.scope.projects
    return principal.scope.covers(kept.entity) and (projects is None or kept.project in projects)

"""Runs that wait for workers: each is queued once, however often its request is sent under an idempotency key."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.objects import ObjectRef, ObjectVersion, OneObject
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.evaluation.scorers import DeclarativeScorer
from modelyard.domain.identity import Principal, check_idempotency_key
from modelyard.domain.job import Job, JobKind, files_of
from modelyard.errors import InvalidInput
from modelyard.platform.evaluations.input_rows import RowData, build_specs
from modelyard.platform.evaluations.references import Namespace
from modelyard.platform.evaluations.rescore import build_rescore_spec
from modelyard.platform.evaluations.runs import find_run
from modelyard.platform.evaluations.scorers import Scorers
from modelyard.platform.evaluations.spec import OneModel, RunSpec
from modelyard.platform.jobs.queue import announce, asked_before
from modelyard.platform.paging import named_place
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Tx


def queue_evaluation(
    runtime: Runtime,
    principal: Principal,
    key: str | None,
    evaluation: OneObject,
    models: Sequence[OneModel],
    rows: RowData | None,
    scorers: Scorers | None,
    options: Mapping[str, Any],
) -> EvaluationRun:
    """Queue a run of one model, or return the one that an equal request under the key has made. Raises as `build_specs`
    does, and `RateLimited`, `IdempotencyKeyUsed`, and `NotFound` if that run was deleted."""
    place = named_place(runtime, principal, options.get("entity"), options.get("project"))
    asked = (evaluation, models, rows, scorers, options)
    request = _keyed(runtime, JobKind.EVALUATE, place, key, *asked)
    return _queue_once(
        runtime, principal, request, lambda: next(build_specs(runtime, principal, *asked, portable=True))
    )


def queue_rescore(
    runtime: Runtime,
    principal: Principal,
    key: str | None,
    source: EvaluationRun,
    scorers: Scorers,
    options: Mapping[str, Any],
) -> EvaluationRun:
    """Queue a rescoring, or return the run that an equal request under the key has made. Raises as `build_rescore_spec`
    and `queue_evaluation` do."""
    place = (source.entity, source.project)
    request = _keyed(runtime, JobKind.RESCORE, place, key, source.id, scorers, options)

    def build() -> RunSpec:
        spec = build_rescore_spec(runtime, principal, source, scorers, options)
        spec.check_portable()
        return spec

    return _queue_once(runtime, principal, request, build)


# ---- under a key


def _keyed(runtime: Runtime, kind: str, namespace: Namespace, key: str | None, *arguments: object) -> Job | None:
    """Return what identifies a request under an idempotency key, as a job without a run; None where there is no key.

    The arguments count as they were passed: what they name may have changed when the request is sent again. Raises
    `InvalidInput` for a key that is not valid, and for arguments that cannot be compared with those of another request.
    """
    if check_idempotency_key(key) is None:
        return None
    request = {"request": digest(_plain(arguments))}
    return Job("", kind, *namespace, "", runtime.clock.now(), request, idempotency_key=key)


def _plain(value: object) -> Any:
    if isinstance(value, ObjectVersion | ObjectRef):
        return str(value.ref if isinstance(value, ObjectVersion) else value)
    if isinstance(value, DeclarativeScorer):
        return _plain(value.plain())
    if isinstance(value, Mapping):
        return {str(name): _plain(member) for name, member in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(member) for member in value]
    if value is None or isinstance(value, str | int | float):
        return value
    msg = f"cannot be used with a {type(value).__name__} among the arguments; pass names, references or JSON data"
    raise InvalidInput.at("idempotency_key", msg=msg)


# ---- in the queue


def _queue_once(
    runtime: Runtime, principal: Principal, request: Job | None, build: Callable[[], RunSpec]
) -> EvaluationRun:
    """Queue the run that `build` specifies, and return it; or return the run that an earlier, equal request made."""
    known = None if request is None else runtime.store.read(lambda snapshot: asked_before(snapshot, request))
    if known is None:
        spec = _under_key(build(), request)
        known = spec.store(lambda tx: _add(tx, spec))
        if known.id == spec.job.id:
            for job in (spec.job, *spec.more):
                announce(runtime, job)
            return spec.run
        for name in files_of(spec.job):  # the same request, sent twice at a time
            runtime.artifacts.remove(name)
    return find_run(runtime, principal, known.subject)


def _under_key(spec: RunSpec, request: Job | None) -> RunSpec:
    if request is None:
        return spec
    job = attrs.evolve(spec.job, spec={**spec.job.spec, **request.spec}, idempotency_key=request.idempotency_key)
    return attrs.evolve(spec, job=job)


def _add(tx: Tx, spec: RunSpec) -> Job:
    known = asked_before(tx, spec.job)
    if known is None:
        spec.add(tx)
    return known or spec.job

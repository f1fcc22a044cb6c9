"""Who requested a job, as its record keeps it: a worker acts for them later."""

from collections.abc import Mapping
from typing import Any

import attrs

from modelyard.domain.identity import ApiKey, Limits, Principal, Scope
from modelyard.domain.job import Job
from modelyard.errors import EvaluationError
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime


def requester_spec(runtime: Runtime, principal: Principal) -> Mapping[str, Any]:
    """Return what a job keeps of its requester: the id of an API key, to look it up again, or else all permissions."""
    if principal.key_id and _api_key(runtime, principal.key_id) is not None:
        return {"key_id": principal.key_id}
    scope = principal.scope
    projects = None if scope.projects is None else sorted(scope.projects)
    return {
        "key_id": principal.key_id,
        "name": principal.name,
        "scope": {"entity": scope.entity, "projects": projects},
        "limits": attrs.asdict(principal.limits),
    }


def requester_principal(runtime: Runtime, job: Job) -> Principal:
    """Return the principal that a job runs as: the key's current holder, or as recorded. Raises `EvaluationError`."""
    asker = job.spec["asker"]
    if "scope" not in asker:
        return _holder(runtime, asker["key_id"])
    entity, projects = asker["scope"]["entity"], asker["scope"]["projects"]
    scope = Scope(entity, None if projects is None else frozenset(projects))
    return Principal(asker["name"], job.entity, scope, asker["key_id"], Limits(**asker["limits"]))


def _holder(runtime: Runtime, key_id: str) -> Principal:
    key = _api_key(runtime, key_id)
    if key is None or not key.alive(runtime.clock.now()):
        raise EvaluationError("the key that asked for this run is no longer valid; ask for it with another")
    return key.principal()


def _api_key(runtime: Runtime, key_id: str) -> ApiKey | None:
    return runtime.store.read(lambda snapshot: get_or_none(snapshot, ApiKey, key_id))

"""Since when the name of a model means the version that it means now."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any

from modelyard.domain.evaluation.objects import ObjectRef
from modelyard.domain.identity import Principal
from modelyard.domain.models import Checkpoint, Model, ModelName
from modelyard.domain.promotion import Alias
from modelyard.errors import ModelyardError
from modelyard.platform.evaluations.model_under_test import chat_name
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot

VARIANTS, _LATEST = "variants", "latest"


def since(runtime: Runtime, principal: Principal, model: str, meant: str) -> Iterator[datetime]:
    """Yield the time from which on the name of a model means this reference; nothing if it always does, as the name of
    a base model or of one version."""
    ref = ObjectRef.parse(meant)
    if ref is None:
        return
    with suppress(ModelyardError):
        name = chat_name(runtime, principal, model)
        if ref.name.startswith(f"{VARIANTS}."):
            yield from _of_variant(runtime, principal, name)
        elif (trained := ModelName.within(principal.entity, name)) is not None and trained.step is None:
            yield from runtime.store.read(lambda snapshot: list(_of_model(snapshot, trained, ref)))


def _of_model(snapshot: Snapshot, name: ModelName, ref: ObjectRef) -> Iterator[datetime]:
    model = snapshot.find(Model, "name", name.entity, name.project, name.name)
    if model is None:
        return
    alias = get_or_none(snapshot, Alias, model.id, name.alias) if name.alias else None
    step = (ref.version or "").removeprefix("step")
    checkpoint = snapshot.find(Checkpoint, "step", model.id, int(step)) if step.isdigit() else None
    if alias is not None:
        yield alias.updated_at
    if checkpoint is not None:
        yield checkpoint.created_at


def _of_variant(runtime: Runtime, principal: Principal, name: str) -> Iterator[datetime]:
    version = name.partition("@")[2] or _LATEST
    if version.isdigit():
        return
    variants = part_resource(runtime, principal, VARIANTS)
    if variants is not None:
        yield variants.version(name).created_at
        yield from (alias.updated_at for alias in variants.aliases(name) if alias.name == version)


def part_resource(runtime: Runtime, principal: Principal, name: str) -> Any:
    """Return what a part adds to a platform under its own name; None if it is not there."""
    found = (part.resources[name] for part in runtime.parts if part.name == name)
    return next((made()(runtime, principal) for made in found), None)

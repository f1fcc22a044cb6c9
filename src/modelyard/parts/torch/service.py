"""Base models in local folders: checked once, recorded in the store, offered by the platform that opens it."""

import os
from importlib.util import find_spec

import attrs

from modelyard.domain.catalogue import CatalogueEntry, Pricing, check_entry
from modelyard.errors import Conflict, InvalidInput, MissingExtra, RecordConflict
from modelyard.parts.torch.model_folder import Progress, read_base_folder
from modelyard.parts.torch.records import Tuning
from modelyard.platform.runtime import Runtime


def add_base_model(
    runtime: Runtime,
    path: str | os.PathLike[str],
    id: str,
    *,
    name: str | None,
    pricing: Pricing,
    tuning: Tuning,
    progress: Progress | None,
) -> CatalogueEntry:
    """Check the folder, record the base model, and offer it from now on. Adding the same folder again changes nothing.

    Raises `InvalidInput`, `MissingExtra`, `Conflict` for an id that is already offered.
    """
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            raise MissingExtra(package, "torch")
    base = read_base_folder(path, progress).base_model(id, name or id, tuning, runtime.clock.now(), pricing.texts)
    check_entry(base.entry((), (), ()))
    offered = runtime.base_models
    if offered is None:
        raise InvalidInput.at(
            "backend", msg="was given by the host, who must put a LocalBackend of this base model into it instead"
        )
    known = next((one for one in offered if one.id == id), None)
    if known is not None and attrs.evolve(known, created_at=base.created_at) == base:
        return _entry(runtime, id)
    if known is not None or any(entry.id == id for entry in runtime.backend.entries()):
        raise Conflict(f"a model {id!r} is already offered; choose another id")
    try:
        runtime.store.transact(lambda tx: tx.add(base))
    except RecordConflict:
        raise Conflict(f"a base model {id!r} is kept in this store already; choose another id") from None
    offered.append(base)
    return _entry(runtime, id)


def _entry(runtime: Runtime, id: str) -> CatalogueEntry:
    return next(entry for entry in runtime.backend.entries() if entry.id == id)

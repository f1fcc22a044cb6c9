"""Base models in local folders: checked once, recorded in the store, offered by the platform that opens it."""

import os
from importlib.util import find_spec
from operator import attrgetter

import attrs

from modelyard.domain.catalogue import CatalogueEntry, Pricing, check_entry
from modelyard.domain.identity import Principal, require_host
from modelyard.errors import Conflict, InvalidInput, MissingExtra, RecordConflict
from modelyard.parts.torch.engine import TorchEngine
from modelyard.parts.torch.model_folder import Progress, read_base_folder
from modelyard.parts.torch.records import BaseModel, Tuning
from modelyard.platform.listing import Listing, short_listing
from modelyard.platform.runtime import Runtime

_id = attrgetter("id")


class AddBaseModel:
    """`platform.add_base_model`, which only the host may call."""

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        require_host(principal)
        self._runtime = runtime

    def __call__(
        self,
        path: str | os.PathLike[str],
        *,
        id: str,
        name: str | None = None,
        pricing: Pricing = Pricing(),  # noqa: B008 - frozen
        tuning: Tuning | None = None,
        progress: Progress | None = None,
    ) -> CatalogueEntry:
        """Offer the causal language model in the folder `path`, in the transformers format, and train on it.

        Every file is checked and its digest stored, which reads all weights once: `progress` is called with the bytes
        read and the total. `tuning` sets what training changes, by default an adapter. Other processes offer the model
        when they next open the platform. Adding the same folder again changes nothing.

        Raises `InvalidInput` naming the file at fault, `Conflict` for an id that is taken, `MissingExtra`.
        """
        runtime = self._runtime
        for package in ("torch", "transformers"):
            if find_spec(package) is None:
                raise MissingExtra(package, "torch")
        folder, kept_as = read_base_folder(path, progress), tuning or Tuning.LORA
        base = folder.base_model(id, name or id, kept_as, runtime.clock.now(), pricing.texts)
        check_entry(base.entry((), (), ()))
        offered = base_models_of(runtime)
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


class ListBaseModels:
    """`platform.base_models`, which only the host may call."""

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        require_host(principal)
        self._runtime = runtime

    def __call__(self) -> Listing[BaseModel]:
        """List the base models in local folders by id."""
        return short_listing(lambda: sorted(base_models_of(self._runtime) or (), key=_id), _id, None)


def base_models_of(runtime: Runtime) -> list[BaseModel] | None:
    """Return the base models that the platform offers; None where the host brought its own backend."""
    return next((engine.base_models for engine in runtime.engines if isinstance(engine, TorchEngine)), None)


def _entry(runtime: Runtime, id: str) -> CatalogueEntry:
    return next(entry for entry in runtime.backend.entries() if entry.id == id)

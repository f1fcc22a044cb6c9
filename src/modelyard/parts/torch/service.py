"""Base models in local folders: checked once, recorded in the store, offered by the platform that opens it."""

import os
from operator import attrgetter

import attrs

from modelyard.domain.catalogue import CatalogueEntry, Pricing, check_entry
from modelyard.domain.identity import Principal, require_host
from modelyard.errors import Conflict, InvalidInput, RecordConflict
from modelyard.parts.torch.engine import TorchEngine
from modelyard.parts.torch.model_folder import Progress
from modelyard.parts.torch.records import BaseModel, Tuning, WeightFormat, weight_format
from modelyard.parts.torch.serving.room import Room
from modelyard.parts.torch.sources import BaseSource, read_source
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
        id: str | None = None,
        name: str | None = None,
        revision: str | None = None,
        pricing: Pricing = Pricing(),  # noqa: B008 - frozen
        tuning: Tuning | None = None,
        weights: str | None = None,
        progress: Progress | None = None,
        local_only: bool = False,
    ) -> CatalogueEntry:
        """Offer a causal language model, and train on it.

        `path` is a folder in the transformers format; a GGUF file, of which such a folder is made beside it; or the
        name of a model of a hub, such as "org/name", which is fetched at `revision` (a branch, a tag or a commit),
        or with `local_only` taken from the hub's cache. Its id is by default this name, or that of the folder.

        Every file is checked and its digest stored, which reads all weights once: `progress` is called with the bytes
        fetched and read, and the total. `tuning` sets what training changes, by default an adapter. Other processes
        offer the model when they next open the platform. Adding the same again changes nothing.

        `weights` is the format of the weights in memory, in serving and training: "float32", "bfloat16" or "int8"; by
        default float32 on processors and bfloat16 on graphics cards.

        Raises `InvalidInput` naming the file at fault, `Conflict` for an id that is taken, `MissingExtra`; and of a hub
        `NotFound`, `Forbidden`, `Overloaded`, `StorageFull`, `BackendError`.
        """
        form = weight_format(weights, tuning)
        read = read_source(path, revision, progress, local_only=local_only)
        return self.record(read, id=id, name=name, pricing=pricing, tuning=tuning, weights=form)

    def record(
        self,
        read: BaseSource,
        *,
        id: str | None,
        name: str | None,
        pricing: Pricing,
        tuning: Tuning | None,
        weights: WeightFormat | None,
    ) -> CatalogueEntry:
        """Offer a base model that was looked through. Raises `Conflict`, `InvalidInput`."""
        runtime, named = self._runtime, id or read.id
        base = read.folder.base_model(named, name or named, tuning or Tuning.LORA, runtime.clock.now(), pricing.texts)
        base = attrs.evolve(base, source=read.source).stored_as(weights)
        check_entry(base.entry((), (), ()))
        offered = base_models_of(runtime)
        if offered is None:
            raise InvalidInput.at(
                "backend", msg="was given by the host, who must put a LocalBackend of this base model into it instead"
            )
        known = next((one for one in offered if one.id == named), None)
        if known is not None and known.is_as(base):
            return _entry(runtime, named)
        if known is not None or any(entry.id == named for entry in runtime.backend.entries()):
            raise Conflict(f"a model {named!r} is already offered; choose another id")
        try:
            runtime.store.transact(lambda tx: tx.add(base))
        except RecordConflict:
            raise Conflict(f"a base model {named!r} is kept in this store already; choose another id") from None
        offered.append(base)
        return _entry(runtime, named)


class ListBaseModels:
    """`platform.base_models`, which only the host may call."""

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        require_host(principal)
        self._runtime = runtime

    def __call__(self) -> Listing[BaseModel]:
        """List the base models in local folders by id."""
        return short_listing(lambda: sorted(base_models_of(self._runtime) or (), key=_id), _id, None)

    def give_memory(self, memory: int) -> None:
        """Have serving take at most so many bytes for the keys and values of each base model, by default 1 GiB,
        or on a graphics card 40 % of what is free.

        To be called before the first request; this process alone is meant. Raises `InvalidInput`, also where the host
        brought its own backend.
        """
        engine = _engine_of(self._runtime)
        if engine is None:
            raise InvalidInput.at("backend", msg="was given by the host; give its LocalBackend a Room(memory=...)")
        engine.memory = Room(memory=memory).memory


def base_models_of(runtime: Runtime) -> list[BaseModel] | None:
    """Return the base models that the platform offers; None where the host brought its own backend."""
    engine = _engine_of(runtime)
    return None if engine is None else engine.base_models


def _engine_of(runtime: Runtime) -> TorchEngine | None:
    return next((engine for engine in runtime.engines if isinstance(engine, TorchEngine)), None)


def _entry(runtime: Runtime, id: str) -> CatalogueEntry:
    return next(entry for entry in runtime.backend.entries() if entry.id == id)

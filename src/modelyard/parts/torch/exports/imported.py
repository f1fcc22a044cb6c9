"""Adapters from elsewhere: a folder as peft saves it becomes a checkpoint of a model."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.identity import Principal, require_host
from modelyard.domain.models import Checkpoint, Model, ModelName
from modelyard.errors import InvalidInput, NotFound
from modelyard.parts.torch.model_folder import check_unchanged
from modelyard.parts.torch.records import BaseModel
from modelyard.parts.torch.service import base_models_of
from modelyard.platform.artifacts import remove_loose
from modelyard.platform.models.service import Models
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Tx

_CHUNK = 2**20


class ImportAdapter:
    """`platform.models.import_adapter`, which only the host may call: it reads a folder of this machine."""

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        require_host(principal)
        self._runtime, self._models = runtime, Models(runtime, principal)
        self._entity = principal.entity

    def __call__(
        self,
        folder: str | os.PathLike[str],
        model: str,
        *,
        project: str | None = None,
        entity: str | None = None,
        base_model: str | None = None,
    ) -> Checkpoint:
        """Add the adapter in a folder, as peft saves it, to a model as its next checkpoint.

        `model` names one that is there, or a new one, as "project/name" or in `project`. The base model of a new one is
        `base_model` (an id), or else the one of this store that the adapter names: by its id, its name on a hub or its
        folder. An adapter that was exported from here has the digest that it had.

        Raises `InvalidInput` naming the file at fault, for anything but a plain LoRA that fits the base model,
        `NotFound` for a base model that is not here, `StorageFull`.
        """
        from modelyard.parts.torch.exports import adapter_reading  # noqa: PLC0415 - needs torch

        place = Path(folder)
        config = adapter_reading.read_config(place)
        known = self._known(model, project, entity)
        base = self._base(config, base_model if known is None else known.base_model)
        check_unchanged(base)
        shape = adapter_reading.checked_shape(place, config, base)
        if known is None:
            known = self._created(model, base.id, project, entity)
        return self._add(known, place, shape.config(base.id))

    def _known(self, model: str, project: str | None, entity: str | None) -> Model | None:
        if "/" not in model:
            return self._models.find(model, project=project, entity=entity)
        named = self._named(model)
        try:
            return self._models.get(model)
        except NotFound:
            if named is None or named.step is not None or named.alias is not None:
                raise
        for word, given in (("project", project), ("entity", entity)):
            if given not in (None, getattr(named, word)):
                raise InvalidInput.at(word, msg=f"is {getattr(named, word)!r} by the model's name; leave it out")
        return None

    def _named(self, model: str) -> ModelName | None:
        return ModelName.within(self._entity, model)

    def _created(self, model: str, base_model: str, project: str | None, entity: str | None) -> Model:
        if "/" in model and (named := self._named(model)) is not None:
            model, project, entity = named.name, named.project, named.entity
        return self._models.create(model, base_model=base_model, project=project, entity=entity)

    def _base(self, config: Mapping[str, Any], named: str | None) -> BaseModel:
        """Find the base model of an adapter. Raises `NotFound`."""
        wanted = named or str(config.get("base_model_name_or_path"))
        offered = base_models_of(self._runtime) or []
        for one in offered:
            names = {one.id} if named else {one.id, one.path, one.source.get("hub_id")}
            if wanted in names or (not named and _is_folder(wanted, one)):
                return one
        known = ", ".join(one.id for one in offered) or "none"
        raise NotFound("Base model", wanted, f"the base models of this store are: {known}; add it, or name one of them")

    def _add(self, model: Model, folder: Path, config: bytes) -> Checkpoint:
        from modelyard.parts.torch.lora import CONFIG_FILE, WEIGHTS_FILE  # noqa: PLC0415 - needs torch

        runtime, loose = self._runtime, list[str]()
        runtime.require_room()
        with remove_loose(runtime.artifacts, loose), (folder / WEIGHTS_FILE).open("rb") as weights:
            files: dict[str, Any] = {}
            for name, chunks in (
                (CONFIG_FILE, iter([config])),
                (WEIGHTS_FILE, iter(lambda: weights.read(_CHUNK), b"")),
            ):
                stored = runtime.artifacts.put(chunks)
                loose.append(stored.name)
                files[name] = {"artifact": stored.name, "size": stored.size, "digest": stored.digest}
            own_id, now = runtime.ids(), runtime.clock.now()
            content = digest({name: file["digest"] for name, file in files.items()})

            def step(tx: Tx) -> Checkpoint:
                owner = tx.get(Model, model.id)
                place = (owner.entity, owner.project, owner.last_step + 1, now)
                added = Checkpoint(own_id, owner.id, *place, content, {}, files)
                tx.add(added)
                tx.replace(attrs.evolve(owner, last_step=added.step))
                return added

            checkpoint = runtime.store.transact(step)
            loose.clear()
        return checkpoint


def _is_folder(named: str, base: BaseModel) -> bool:
    return os.path.isdir(named) and os.path.realpath(named) == os.path.realpath(base.path)

"""What serves and trains base models in local folders by default. Torch is loaded when one of them is first used."""

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from modelyard.lazy import deferred
from modelyard.parts.torch import records
from modelyard.parts.torch.entries import LocalOffer
from modelyard.parts.torch.serving import backend as local
from modelyard.parts.torch.torch_import import load_torch
from modelyard.parts.torch.training import trainer as local_training
from modelyard.protocols import Backend, Snapshot, Store, Trainer

_MOST_BASE_MODELS = 1000

SLOW_TO_IMPORT = ("modelyard.parts.torch.training.trainer", "transformers.modeling_utils")
"""What training a local model of any architecture imports: seconds of processor time."""


class TorchEngine:
    """The backend and the trainer of base models in local folders, which share the growing list `base_models`.

    `store` holds the base models that were added before; None where there can be none.
    """

    def __init__(self, store: Store | None) -> None:
        self.base_models: list[records.BaseModel] = [] if store is None else store.read(_kept)
        self.memory: int | None = None
        """Bytes for keys and values of each base model that is served; None for the default."""
        offer = LocalOffer(self.base_models)
        self._made: list[local.LocalBackend] = []
        self.backend: Backend = deferred(lambda: self._serve(offer), entries=offer.entries)
        self.trainers: Sequence[Trainer] = (deferred(self._train, methods=offer.methods),)

    def _serve(self, offer: LocalOffer) -> Backend:
        self._made.append(local.LocalBackend(offer, memory=self.memory))
        return self._made[0]

    def _train(self) -> Trainer:
        if find_spec("torch") is not None:
            load_torch()
        return local_training.LocalTrainer(self.base_models)

    def folder_of(self, base_model: str) -> str | None:
        """Return the folder of a base model."""
        return next((one.path for one in self.base_models if one.id == base_model), None)

    def source_of(self, base_model: str) -> Mapping[str, str]:
        """Return the name and the commit of a base model of a hub. Where files of this machine are stays here."""
        found = next((one.source for one in self.base_models if one.id == base_model), {})
        return {name: found[name] for name in ("hub_id", "revision") if name in found}

    def prepare(self) -> Sequence[str]:
        """Set how many threads torch uses, and that no model hub is searched; return the modules that load slowly.

        Variables that the environment already has stay. Threads that spin while they wait cost a busy machine more
        than they gain.
        """
        if not self.base_models:
            return ()
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        if all(base.small for base in self.base_models):
            os.environ.setdefault("OMP_NUM_THREADS", "1")
        return SLOW_TO_IMPORT

    def prefix_counts(self) -> Mapping[str, tuple[int, int]]:
        """Return those of its backend, without loading it."""
        return {name: counts for backend in self._made for name, counts in backend.prefix_counts().items()}

    def close(self) -> None:
        for backend in self._made:
            backend.close()


def _kept(snapshot: Snapshot) -> "list[records.BaseModel]":
    return snapshot.page(records.BaseModel, "listed", records.OFFER, limit=_MOST_BASE_MODELS)

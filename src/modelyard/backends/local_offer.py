"""What base models in local folders offer to the catalogue, apart from torch: a listing need not load it."""

from collections.abc import Sequence

import attrs

from modelyard.backends.listing import features, sampling_parameters
from modelyard.domain import base_model
from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import Sampling
from modelyard.protocols import Capabilities

CAPABILITIES = Capabilities(
    parameters=frozenset(field.name for field in attrs.fields(Sampling)),
    logprobs=True,
    top_logprobs=20,
    token_ids=True,
    choices=True,
    tools=True,
    trainable=True,
)


class LocalOffer:
    """The entries of base models that may become more."""

    def __init__(self, base_models: "Sequence[base_model.BaseModel]") -> None:
        self._base_models = base_models
        self._entries: tuple[CatalogueEntry, ...] = ()

    def entries(self) -> tuple[CatalogueEntry, ...]:
        """One entry per base model; the same tuple as long as they are the same."""
        if len(self._entries) != len(self._base_models):
            listed = sampling_parameters(CAPABILITIES), features(CAPABILITIES)
            self._entries = tuple(base.entry(*listed) for base in self._base_models)
        return self._entries

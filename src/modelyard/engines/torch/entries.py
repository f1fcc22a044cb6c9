"""What base models in local folders offer to the catalogue, apart from torch: a listing need not load it."""

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

import attrs

from modelyard.backends.entries import features, sampling_parameters
from modelyard.domain import base_model
from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import SAMPLING_PARAMETERS
from modelyard.errors import ModelNotFound
from modelyard.protocols import Capabilities


class LocalOffer:
    """The entries of base models that may become more, and what each can do."""

    def __init__(self, base_models: "Sequence[base_model.BaseModel]") -> None:
        self._base_models = base_models
        self._entries: tuple[CatalogueEntry, ...] = ()
        self._limits: dict[str, int] = {}

    def entries(self) -> tuple[CatalogueEntry, ...]:
        """One entry per base model; the same tuple as long as they are the same."""
        if len(self._entries) != len(self._base_models):
            self._entries = tuple(_entry(base, self._limits.get(base.id)) for base in self._base_models)
        return self._entries

    def limit(self, id: str, tokens: int) -> None:
        """From now on a model is listed with a context of so many tokens, unless its own is shorter."""
        if self._limits.get(id) != tokens:
            self._limits[id] = tokens
            self._entries = ()

    def base_model(self, id: str) -> "base_model.BaseModel":
        """The base model of this id. Raises `ModelNotFound`."""
        for base in self._base_models:
            if base.id == id:
                return base
        raise ModelNotFound("base model", id)


@cache
def capabilities(tool_format: str) -> Capabilities:
    """What a base model can do that writes tool calls so: constrained output needs llguidance."""
    constrained = find_spec("llguidance") is not None
    return Capabilities(
        parameters=frozenset(SAMPLING_PARAMETERS),
        logprobs=True,
        top_logprobs=20,
        token_ids=True,
        choices=True,
        tools=bool(tool_format),
        forced_tools=bool(tool_format) and constrained,
        json_mode=constrained,
        structured_outputs=constrained,
        trainable=True,
    )


def _entry(base: "base_model.BaseModel", limit: int | None) -> CatalogueEntry:
    can = capabilities(base.tool_format)
    context = min(base.context_length, limit or base.context_length)
    return attrs.evolve(base, context_length=context).entry(sampling_parameters(can), features(can))

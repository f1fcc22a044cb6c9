"""Catalogue entries of base models in local folders; listing them does not load torch."""

from collections.abc import Collection, Sequence
from functools import cache
from importlib.util import find_spec

import attrs

from modelyard.backends.entries import features, output_modalities, sampling_parameters
from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import SAMPLING_PARAMETERS, TEMPLATE
from modelyard.errors import ModelNotFound
from modelyard.parts.torch import model_folder, pooling
from modelyard.parts.torch import records as base_model
from modelyard.parts.torch.training import options
from modelyard.protocols import Capabilities


class LocalOffer:
    """The entries and capabilities of a growing list of base models."""

    def __init__(self, base_models: "Sequence[base_model.BaseModel]") -> None:
        self._base_models = base_models
        self._entries: tuple[CatalogueEntry, ...] = ()
        self._limits: dict[str, int] = {}

    def entries(self) -> tuple[CatalogueEntry, ...]:
        """Return one entry per base model; the same tuple as long as nothing has changed."""
        if len(self._entries) != len(self._base_models):
            self._entries = tuple(_entry(base, self._limits.get(base.id)) for base in self._base_models)
        return self._entries

    def limit(self, id: str, tokens: int) -> None:
        """List a model with at most this context length, in tokens, from now on."""
        if self._limits.get(id) != tokens:
            self._limits[id] = tokens
            self._entries = ()

    def methods(self, id: str) -> Collection[str]:
        """Return the training methods for a base model: none for an encoder, or one that is not in the list."""
        return options.CONFIGS if any(base.id == id and not base.encodes for base in self._base_models) else ()

    def base_model(self, id: str) -> "base_model.BaseModel":
        """Return the base model of this id. Raises `ModelNotFound`."""
        for base in self._base_models:
            if base.id == id:
                return base
        raise ModelNotFound("base model", id)


def capabilities(base: "base_model.BaseModel") -> Capabilities:
    """Return the capabilities of a base model: those of its chat template and of what is installed."""
    if base.encodes:
        return Capabilities(completions=False, embedding_size=pooling.sentence_size(base.path))
    effort, marks = model_folder.takes_reasoning_effort(base.path), model_folder.writes_reasoning(base.path)
    return _capabilities(base.tool_format, effort, effort or marks, pooling.embedding_size(base.path))


@cache
def _capabilities(tool_format: str, reasoning_effort: bool, reasoning: bool, embedding_size: int) -> Capabilities:
    """Return the capabilities of a base model with this tool format; constrained output needs llguidance."""
    constrained = find_spec("llguidance") is not None
    effort = ("reasoning_effort",) if reasoning_effort else ()
    return Capabilities(
        parameters=frozenset((*SAMPLING_PARAMETERS, TEMPLATE, *effort)),
        logprobs=True,
        top_logprobs=20,
        token_ids=True,
        choices=True,
        tools=bool(tool_format),
        forced_tools=bool(tool_format) and constrained,
        json_mode=constrained,
        structured_outputs=constrained,
        guided=frozenset({"choice", "regex"}) if constrained else frozenset(),
        reasoning=reasoning,
        trainable=True,
        embedding_size=embedding_size,
        prompts=True,
        prompt_logprobs=True,
    )


def _entry(base: "base_model.BaseModel", limit: int | None) -> CatalogueEntry:
    can = capabilities(base)
    context = min(base.context_length, limit or base.context_length)
    return attrs.evolve(base, context_length=context).entry(
        sampling_parameters(can), features(can), output_modalities(can)
    )

"""Catalogue entries of the backends that ship with modelyard (specification 2.1)."""

from datetime import UTC, datetime

from modelyard.domain.catalogue import EMBEDDINGS, CatalogueEntry, Feature, Pricing, Quantization, SamplingParameter
from modelyard.protocols import Capabilities

FIRST_OFFERED = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())


def entry_for(model: str, capabilities: Capabilities, pricing: Pricing, context_length: int) -> CatalogueEntry:
    """Return the entry of a text model that ships with modelyard; its answers may fill the whole context."""
    return CatalogueEntry(
        id=model,
        hub_id=f"modelyard/{model}",
        name=model.replace("-", " ").title(),
        created=FIRST_OFFERED,
        quantization=Quantization.FP32,
        context_length=context_length,
        max_output_length=context_length,
        pricing=pricing,
        supported_sampling_parameters=sampling_parameters(capabilities),
        supported_features=features(capabilities),
        output_modalities=output_modalities(capabilities),
    )


def sampling_parameters(capabilities: Capabilities) -> tuple[SamplingParameter, ...]:
    supported = {*capabilities.parameters, SamplingParameter.STOP}
    return tuple(parameter for parameter in SamplingParameter if parameter in supported)


def features(capabilities: Capabilities) -> tuple[Feature, ...]:
    synthesised = capabilities.synthesises_structure
    offered = {
        Feature.TOOLS: capabilities.tools,
        Feature.JSON_MODE: capabilities.json_mode or synthesised,
        Feature.STRUCTURED_OUTPUTS: capabilities.structured_outputs or synthesised,
        Feature.REASONING: capabilities.reasoning,
    }
    return tuple(feature for feature, supported in offered.items() if supported)


def output_modalities(capabilities: Capabilities) -> tuple[str, ...]:
    makes = {"text": capabilities.completions, EMBEDDINGS: capabilities.embedding_size > 0}
    return tuple(modality for modality, made in makes.items() if made)

"""What a backend offers to the catalogue: capabilities in the specification's words (specification 2.1)."""

from datetime import UTC, datetime

from modelyard.domain.catalogue import CatalogueEntry, Feature, Pricing, Quantization, SamplingParameter
from modelyard.protocols import Capabilities

FIRST_OFFERED = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
"""When the models that ship with modelyard came to be, in Unix seconds: the same on every machine."""


def entry_for(model: str, capabilities: Capabilities, pricing: Pricing, context_length: int) -> CatalogueEntry:
    """The entry of a text model that ships with modelyard; its answers may fill the whole context."""
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
    )


def sampling_parameters(capabilities: Capabilities) -> tuple[SamplingParameter, ...]:
    """What can be listed of the parameters that are honoured; stop strings always are, by the core."""
    honoured = {*capabilities.parameters, SamplingParameter.STOP}
    return tuple(parameter for parameter in SamplingParameter if parameter in honoured)


def features(capabilities: Capabilities) -> tuple[Feature, ...]:
    """What can be listed of the rest: a double that makes up valid structure answers such requests as well."""
    made_up = capabilities.synthesises_structure
    offered = {
        Feature.TOOLS: capabilities.tools,
        Feature.JSON_MODE: capabilities.json_mode or made_up,
        Feature.STRUCTURED_OUTPUTS: capabilities.structured_outputs or made_up,
        Feature.REASONING: capabilities.reasoning,
    }
    return tuple(feature for feature, there in offered.items() if there)

"""The values of a catalogue entry, for hosts that list their own models."""

from typing import TYPE_CHECKING

from modelyard.lazy import lazy_exports

if TYPE_CHECKING:
    from modelyard.domain.catalogue import CatalogueEntry, Datacenter, Feature, Quantization, SamplingParameter
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {"domain.catalogue": ("CatalogueEntry", "Datacenter", "Feature", "Quantization", "SamplingParameter")},
    )

__all__ = ["CatalogueEntry", "Datacenter", "Feature", "Quantization", "SamplingParameter"]

"""The model platform that you import: a catalogue, chat completions, models with checkpoints, SFT and RL training jobs,
and evaluation runs, as one in-process Python object.

PYTEST_DONT_REWRITE: a program may import this before it runs pytest, which would otherwise warn of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modelyard.compose import open_platform
    from modelyard.domain.catalogue import CatalogueEntry, Datacenter, Feature, Pricing, Quantization, SamplingParameter
    from modelyard.domain.completion import Completion, CompletionRequest, Delta, Message, Role, Sampling, Tool
    from modelyard.domain.identity import Principal, Scope
    from modelyard.domain.promotion import NotWorse
    from modelyard.domain.training import Example, History, SampledChoice, Trajectory, TrajectoryGroup
    from modelyard.platform.platform import Platform
    from modelyard.platform.runtime import Settings
    from modelyard.platform.training.rollout import Rollout, gather
    from modelyard.version import __version__

__all__ = [
    "CatalogueEntry",
    "Completion",
    "CompletionRequest",
    "Datacenter",
    "Delta",
    "Example",
    "Feature",
    "History",
    "Message",
    "NotWorse",
    "Platform",
    "Pricing",
    "Principal",
    "Quantization",
    "Role",
    "Rollout",
    "SampledChoice",
    "Sampling",
    "SamplingParameter",
    "Scope",
    "Settings",
    "Tool",
    "Trajectory",
    "TrajectoryGroup",
    "__version__",
    "gather",
    "open_platform",
]

_HOMES = {
    "compose": ("open_platform",),
    "domain.promotion": ("NotWorse",),
    "domain.catalogue": ("CatalogueEntry", "Datacenter", "Feature", "Pricing", "Quantization", "SamplingParameter"),
    "domain.completion": ("Completion", "CompletionRequest", "Delta", "Message", "Role", "Sampling", "Tool"),
    "domain.identity": ("Principal", "Scope"),
    "domain.training": ("Example", "History", "SampledChoice", "Trajectory", "TrajectoryGroup"),
    "platform.platform": ("Platform",),
    "platform.runtime": ("Settings",),
    "platform.training.rollout": ("Rollout", "gather"),
    "version": ("__version__",),
}
"""Where the public names live: each module is loaded when the first of its names is asked for."""


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return globals().setdefault(name, getattr(import_module(f"{__name__}.{module}"), name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

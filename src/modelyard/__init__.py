"""The model platform that you import: a catalogue, chat completions, models with checkpoints, SFT and RL training jobs,
and evaluation runs, as one in-process Python object.
"""

from modelyard.compose import open_platform
from modelyard.domain.catalogue import CatalogueEntry, Datacenter, Feature, Pricing, Quantization, SamplingParameter
from modelyard.domain.completion import Completion, CompletionRequest, Delta, Message, Role, Sampling, Tool
from modelyard.domain.identity import Principal, Scope
from modelyard.domain.training import Example, History, SampledChoice, Trajectory, TrajectoryGroup
from modelyard.service.platform import Platform
from modelyard.service.ports import Settings
from modelyard.service.rollout import Rollout, gather
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

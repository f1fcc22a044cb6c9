"""The model platform that you import: a catalogue, chat completions, models with checkpoints, SFT and RL training jobs,
and evaluation runs, as one in-process Python object.

PYTEST_DONT_REWRITE: a program may import this before it runs pytest, which would otherwise warn of it.
"""

from typing import TYPE_CHECKING

from modelyard.lazy import lazy_exports

if TYPE_CHECKING:
    from modelyard import errors, events, examples, results
    from modelyard.asgi import asgi_app
    from modelyard.backends.echo import EchoBackend
    from modelyard.backends.router import Router
    from modelyard.compose import open_platform
    from modelyard.domain.catalogue import Pricing
    from modelyard.domain.completion import (
        Choice,
        Completion,
        CompletionRequest,
        Delta,
        FinishReason,
        Message,
        Role,
        Sampling,
        Tool,
        Usage,
    )
    from modelyard.domain.embedding import EmbeddedBatch, EmbeddingRequest, EmbeddingResult
    from modelyard.domain.evaluation.filters import field
    from modelyard.domain.evaluation.results import Sort
    from modelyard.domain.evaluation.scorers import Unscored
    from modelyard.domain.events import (
        BudgetWarning,
        CompletionBooked,
        CompletionFailed,
        JobChanged,
        JobEventRecorded,
        LeaseTaken,
        RequestAnswered,
    )
    from modelyard.domain.identity import Principal, Scope
    from modelyard.domain.models import Checkpoint, Model
    from modelyard.domain.promotion import NotWorse
    from modelyard.domain.record import Page
    from modelyard.domain.training import Example, History, Preference, SampledChoice, Trajectory, TrajectoryGroup
    from modelyard.domain.usage import Budget
    from modelyard.parts.doors import top as _parts
    from modelyard.parts.doors.top import *  # noqa: F403
    from modelyard.platform.evaluations.result import EvaluationResult
    from modelyard.platform.listing import Listing
    from modelyard.platform.platform import Platform
    from modelyard.platform.runtime import Settings
    from modelyard.platform.training.handle import JobHandle
    from modelyard.version import __version__

    __all__ = [
        "Budget",
        "BudgetWarning",
        "Checkpoint",
        "Choice",
        "Completion",
        "CompletionBooked",
        "CompletionFailed",
        "CompletionRequest",
        "Delta",
        "EchoBackend",
        "EmbeddedBatch",
        "EmbeddingRequest",
        "EmbeddingResult",
        "EvaluationResult",
        "Example",
        "FinishReason",
        "History",
        "JobChanged",
        "JobEventRecorded",
        "JobHandle",
        "LeaseTaken",
        "Listing",
        "Message",
        "Model",
        "NotWorse",
        "Page",
        "Platform",
        "Preference",
        "Pricing",
        "Principal",
        "RequestAnswered",
        "Role",
        "Router",
        "SampledChoice",
        "Sampling",
        "Scope",
        "Settings",
        "Sort",
        "Tool",
        "Trajectory",
        "TrajectoryGroup",
        "Unscored",
        "Usage",
        "__version__",
        "asgi_app",
        "errors",
        "events",
        "examples",
        "field",
        "open_platform",
        "results",
    ]
    __all__ += _parts.__all__
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "asgi": ("asgi_app",),
            "backends.echo": ("EchoBackend",),
            "backends.router": ("Router",),
            "compose": ("open_platform",),
            "domain.catalogue": ("Pricing",),
            "domain.completion": ("Delta", "FinishReason", "Message", "Role", "Sampling", "Tool", "Usage"),
            "domain.evaluation.filters": ("field",),
            "domain.evaluation.results": ("Sort",),
            "domain.evaluation.scorers": ("Unscored",),
            "domain.identity": ("Principal", "Scope"),
            "domain.promotion": ("NotWorse",),
            "domain.training": ("Example", "History", "Preference", "SampledChoice", "Trajectory", "TrajectoryGroup"),
            "errors": ("errors",),
            "events": ("events",),
            "examples": ("examples",),
            "platform.platform": ("Platform",),
            "platform.runtime": ("Settings",),
            "results": ("results",),
            "version": ("__version__",),
        },
        {
            "domain.completion": ("Choice", "Completion", "CompletionRequest"),
            "domain.embedding": ("EmbeddedBatch", "EmbeddingRequest", "EmbeddingResult"),
            "domain.events": (
                "BudgetWarning",
                "CompletionBooked",
                "CompletionFailed",
                "JobChanged",
                "JobEventRecorded",
                "LeaseTaken",
                "RequestAnswered",
            ),
            "domain.models": ("Checkpoint", "Model"),
            "domain.record": ("Page",),
            "domain.usage": ("Budget",),
            "platform.evaluations.result": ("EvaluationResult",),
            "platform.listing": ("Listing",),
            "platform.training.handle": ("JobHandle",),
        },
    )

"""The types of what a platform returns, for hints."""

from modelyard.domain.completion import Choice, Completion
from modelyard.domain.embedding import EmbeddingResult
from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.record import Page
from modelyard.domain.usage import Budget
from modelyard.platform.evaluations.result import EvaluationResult
from modelyard.platform.listing import Listing
from modelyard.platform.training.handle import JobHandle

__all__ = [
    "Budget",
    "Checkpoint",
    "Choice",
    "Completion",
    "EmbeddingResult",
    "EvaluationResult",
    "JobHandle",
    "Listing",
    "Model",
    "Page",
]

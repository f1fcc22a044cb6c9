"""What an observer is called with: `open_platform(observer=)`."""

from modelyard.domain.events import (
    BudgetWarning,
    CompletionBooked,
    CompletionFailed,
    JobChanged,
    JobEventRecorded,
    LeaseTaken,
    RequestAnswered,
)

__all__ = [
    "BudgetWarning",
    "CompletionBooked",
    "CompletionFailed",
    "JobChanged",
    "JobEventRecorded",
    "LeaseTaken",
    "RequestAnswered",
]

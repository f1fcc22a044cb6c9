"""Frozen values and pure functions: no I/O, no clock, no ids, no wire shapes, no SQL."""

from modelyard.lazy import defer_modules

defer_modules(
    __name__,
    "embedding",
    "events",
    "job",
    "models",
    "promotion",
    "training",
    "training_config",
    "training_run",
    "worker",
)

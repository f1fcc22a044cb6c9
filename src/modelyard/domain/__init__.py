"""Frozen values and pure functions: no I/O, no clock, no ids, no wire shapes, no SQL."""

from modelyard.deferred import defer_modules

defer_modules(
    __name__,
    "alias",
    "base_model",
    "evaluation",
    "job",
    "lineage",
    "observed",
    "prediction",
    "retention",
    "training",
    "training_config",
    "upload",
    "versioned",
)

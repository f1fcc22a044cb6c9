"""Frozen values and pure functions: no I/O, no clock, no ids, no wire shapes, no SQL."""

from modelyard.lazy import defer_modules

defer_modules(
    __name__,
    "base_model",
    "batch",
    "collection",
    "embedding",
    "events",
    "file",
    "fine_tuning",
    "idempotency",
    "job",
    "lineage",
    "models",
    "promotion",
    "resources",
    "response",
    "retention",
    "run_log",
    "trace",
    "training",
    "training_config",
    "upload",
)

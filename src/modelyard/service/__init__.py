"""Use cases: the only place that sequences steps. Each resource of the platform is one module, named by its noun."""

from modelyard.deferred import defer_modules

defer_modules(
    __name__,
    "base_model",
    "erasure",
    "evaluation",
    "evaluation_job",
    "health",
    "identity",
    "jobs",
    "lineage",
    "logger",
    "model",
    "sweep",
    "training",
    "usage",
    "verdict",
    "worker",
)

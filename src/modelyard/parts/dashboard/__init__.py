"""The dashboard: pages about jobs, models, runs, usage and keys, rendered by the server and readable without script."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "app")

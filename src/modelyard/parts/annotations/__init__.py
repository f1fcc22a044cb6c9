"""`platform.annotations`: tags and notes on jobs, runs, models and checkpoints."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "records", "service")

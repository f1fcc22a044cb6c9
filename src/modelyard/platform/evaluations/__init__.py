"""`platform.evaluations`: evaluation runs."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "job", "runs", "service", "shards")

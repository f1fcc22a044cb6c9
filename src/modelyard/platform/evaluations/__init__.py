"""`platform.evaluations`: evaluation runs, and what they are made of."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "job", "runs", "service", "shards")

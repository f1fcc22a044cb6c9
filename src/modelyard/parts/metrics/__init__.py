"""`platform.metrics`: the counts of this process, and the state of the queue and the store."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "service")

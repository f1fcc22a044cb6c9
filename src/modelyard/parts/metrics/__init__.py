"""`platform.metrics`: what this process has counted, and where the queue and the store stand."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "service")

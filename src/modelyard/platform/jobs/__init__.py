"""`platform.jobs`: the queue, and what runs it."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "process_workers", "service", "worker")

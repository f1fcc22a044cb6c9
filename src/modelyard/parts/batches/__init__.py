"""`platform.compat.batches`: files of requests that a job answers."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "ends", "job", "records", "service")

"""`platform.compat.files`: files that clients keep for later."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "records", "service")

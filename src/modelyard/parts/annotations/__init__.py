"""`platform.annotations`: tags and notes."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "records", "service")

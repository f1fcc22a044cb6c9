"""`platform.compat.uploads`: training data that clients upload."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "records", "service")

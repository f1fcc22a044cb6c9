"""`platform.traffic`: training data made of stored answers."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "handle", "job", "records", "service")

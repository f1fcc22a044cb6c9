"""`platform.traffic`: from what was asked and answered to training data."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "handle", "job", "service")

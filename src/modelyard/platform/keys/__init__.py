"""`platform.keys`: API keys."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "service")

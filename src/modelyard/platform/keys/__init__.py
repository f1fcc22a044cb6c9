"""`platform.keys`: API keys, and whose they are."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "service")

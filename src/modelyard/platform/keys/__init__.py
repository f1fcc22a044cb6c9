"""`platform.keys`: API keys and the sessions of browsers."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "service", "sessions")

"""`platform.models`: trainable models and their checkpoints."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "promotion", "service")

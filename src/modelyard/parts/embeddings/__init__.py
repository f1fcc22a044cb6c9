"""`platform.embeddings`: vectors that stand for texts."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "service")

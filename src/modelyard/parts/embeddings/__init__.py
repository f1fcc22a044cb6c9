"""`platform.embeddings`: vectors of texts."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "service")

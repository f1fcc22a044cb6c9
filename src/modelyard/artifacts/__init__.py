"""Where checkpoint files and training data lie."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "folder", "memory")

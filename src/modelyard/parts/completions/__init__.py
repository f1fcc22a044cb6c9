"""`platform.compat.completions`: prompts that are continued as they are, and tokens."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "service")

"""`platform.training`: SFT and RL jobs."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "service")

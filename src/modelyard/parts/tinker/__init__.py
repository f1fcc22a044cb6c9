"""`platform.compat.training_runs`: models that clients train command by command."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "held_run", "job", "records", "service", "silent_sessions")

"""`platform.compat.traces`: calls that programs trace, feedback on them, and the objects that they name."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "call_query", "calls", "feedback", "objects", "records", "service", "tables")

"""`platform.compat.responses`: answers that the platform keeps."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "background", "records", "service")

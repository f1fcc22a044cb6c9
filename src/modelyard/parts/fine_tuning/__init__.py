"""`platform.compat.fine_tuning`: training jobs as the chat format's own clients ask for them."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "records", "service")

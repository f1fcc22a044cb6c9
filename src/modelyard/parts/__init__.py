"""Parts that may be deleted: each folder is one optional capability, and the core works without it."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "postgres")

"""`platform.usage`: the ledger, and budgets."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "booking", "presence", "service")

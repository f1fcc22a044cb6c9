"""The vocabulary of evaluation runs: what is stored, how it is scored, aggregated and compared."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "objects", "run")

"""Where records are kept: `memory` for tests and short lives, `sqlite` for one file that outlives the process."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "sqlite")

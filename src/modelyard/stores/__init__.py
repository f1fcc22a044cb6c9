"""Where records are kept: `memory` for tests and short lives, `sqlite` for one file that outlives the process."""

from modelyard.deferred import defer_modules

defer_modules(__name__, "sqlite")

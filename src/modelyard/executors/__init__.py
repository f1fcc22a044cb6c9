"""Where a claimed job runs: in the calling thread, or in threads."""

from modelyard.deferred import defer_modules

defer_modules(__name__, "thread")

"""Where a claimed job runs: in the calling thread, in threads, or in processes."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "thread")

"""Where a claimed job runs: in the calling thread, in threads, or in processes."""

from typing import TYPE_CHECKING

from modelyard.lazy import defer_modules, lazy_exports

if TYPE_CHECKING:
    from modelyard.executors.inline import InlineExecutor
    from modelyard.executors.isolating import IsolatingExecutor
    from modelyard.executors.subprocess import SubprocessExecutor
    from modelyard.executors.thread import ThreadExecutor
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "executors.inline": ("InlineExecutor",),
            "executors.isolating": ("IsolatingExecutor",),
            "executors.subprocess": ("SubprocessExecutor",),
            "executors.thread": ("ThreadExecutor",),
        },
    )

__all__ = [
    "InlineExecutor",
    "IsolatingExecutor",
    "SubprocessExecutor",
    "ThreadExecutor",
]

defer_modules(__name__, "thread")

"""Where a claimed job runs: in the calling thread, in threads, in processes, or in a cluster."""

from typing import TYPE_CHECKING

from modelyard.lazy import defer_modules, lazy_exports

if TYPE_CHECKING:
    from modelyard.executors.inline import InlineExecutor
    from modelyard.executors.isolating import IsolatingExecutor
    from modelyard.executors.subprocess import SubprocessExecutor
    from modelyard.executors.thread import ThreadExecutor
    from modelyard.parts.doors import executors as _parts
    from modelyard.parts.doors.executors import *  # noqa: F403

    __all__ = ["InlineExecutor", "IsolatingExecutor", "SubprocessExecutor", "ThreadExecutor"]
    __all__ += _parts.__all__
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


defer_modules(__name__, "thread")

"""The backends that ship with modelyard, for `open_platform(backend=...)`."""

from typing import TYPE_CHECKING

from modelyard.lazy import defer_modules, lazy_exports

if TYPE_CHECKING:
    from modelyard.backends.echo import EchoBackend
    from modelyard.backends.entries import entry_for
    from modelyard.backends.router import Router
    from modelyard.parts.doors import backends as _parts
    from modelyard.parts.doors.backends import *  # noqa: F403

    __all__ = ["EchoBackend", "Router", "entry_for"]
    __all__ += _parts.__all__
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {"backends.echo": ("EchoBackend",), "backends.entries": ("entry_for",), "backends.router": ("Router",)},
    )

defer_modules(__name__, "word_embedding")

"""Language models that modelyard runs itself, each with its backend and its trainer."""

from typing import TYPE_CHECKING

from modelyard.lazy import lazy_exports

if TYPE_CHECKING:
    from modelyard.engines.tabular.backend import TabularBackend
    from modelyard.engines.tabular.trainer import TabularTrainer
    from modelyard.parts.doors import engines as _parts
    from modelyard.parts.doors.engines import *  # noqa: F403

    __all__ = ["TabularBackend", "TabularTrainer"]
    __all__ += _parts.__all__
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {"engines.tabular.backend": ("TabularBackend",), "engines.tabular.trainer": ("TabularTrainer",)},
    )

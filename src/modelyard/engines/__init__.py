"""Language models that modelyard runs itself, each with its backend and its trainer."""

from typing import TYPE_CHECKING

from modelyard.lazy import lazy_exports

if TYPE_CHECKING:
    from modelyard.engines.tabular.backend import TabularBackend
    from modelyard.engines.tabular.trainer import TabularTrainer
    from modelyard.parts.torch.serving.backend import LocalBackend
    from modelyard.parts.torch.serving.model_pool import Room
    from modelyard.parts.torch.training.trainer import LocalTrainer
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "engines.tabular.backend": ("TabularBackend",),
            "engines.tabular.trainer": ("TabularTrainer",),
            "parts.torch.serving.backend": ("LocalBackend",),
            "parts.torch.serving.model_pool": ("Room",),
            "parts.torch.training.trainer": ("LocalTrainer",),
        },
    )

__all__ = [
    "LocalBackend",
    "LocalTrainer",
    "Room",
    "TabularBackend",
    "TabularTrainer",
]

"""Names of parts in `modelyard.engines`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modelyard.parts.torch.lora import LoraShape
    from modelyard.parts.torch.serving.backend import LocalBackend
    from modelyard.parts.torch.serving.room import Room
    from modelyard.parts.torch.training.trainer import LocalTrainer

HOMES = {
    "parts.torch.lora": ("LoraShape",),
    "parts.torch.serving.backend": ("LocalBackend",),
    "parts.torch.serving.room": ("Room",),
    "parts.torch.training.trainer": ("LocalTrainer",),
}

__all__: list[str] = [
    "LocalBackend",
    "LocalTrainer",
    "LoraShape",
    "Room",
]

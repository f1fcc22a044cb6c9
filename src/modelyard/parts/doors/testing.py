"""Names of parts in `modelyard.testing`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modelyard.parts.torch.tiny_model import build_tiny_model
    from modelyard.parts.upstream.fake_vllm.misbehaviour import (
        Abort,
        Break,
        CutConnection,
        FallSilent,
        Garble,
        Gate,
        Hold,
        Refuse,
    )
    from modelyard.parts.upstream.fake_vllm.server import LOAD_ADAPTER, FakeVllm
    from modelyard.parts.upstream.recording import record

HOMES = {
    "parts.upstream.recording": ("record",),
    "parts.upstream.fake_vllm.misbehaviour": (
        "Abort",
        "Break",
        "CutConnection",
        "FallSilent",
        "Garble",
        "Gate",
        "Hold",
        "Refuse",
    ),
    "parts.upstream.fake_vllm.server": ("LOAD_ADAPTER", "FakeVllm"),
    "parts.torch.tiny_model": ("build_tiny_model",),
}

__all__: list[str] = [
    "LOAD_ADAPTER",
    "Abort",
    "Break",
    "CutConnection",
    "FakeVllm",
    "FallSilent",
    "Garble",
    "Gate",
    "Hold",
    "Refuse",
    "build_tiny_model",
    "record",
]

"""Names of parts in `modelyard.testing.servers`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    from modelyard.parts.upstream.odd_server.answer import OddAnswer
    from modelyard.parts.upstream.odd_server.dialects import OddDialect
    from modelyard.parts.upstream.odd_server.faults import OddFault
    from modelyard.parts.upstream.odd_server.server import OddServer, odd_server

HOMES = {
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
    "parts.upstream.odd_server.answer": ("OddAnswer",),
    "parts.upstream.odd_server.dialects": ("OddDialect",),
    "parts.upstream.odd_server.faults": ("OddFault",),
    "parts.upstream.odd_server.server": ("OddServer", "odd_server"),
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
    "OddAnswer",
    "OddDialect",
    "OddFault",
    "OddServer",
    "Refuse",
    "odd_server",
]

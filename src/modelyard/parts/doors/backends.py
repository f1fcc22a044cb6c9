"""Names of parts in `modelyard.backends`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modelyard.parts.scripted.answers import call, pause, reasoning, say, token
    from modelyard.parts.scripted.backend import ScriptedBackend
    from modelyard.parts.scripted.rules import Rule, on
    from modelyard.parts.scripted.script_file import load_script
    from modelyard.parts.upstream.adapters.adapters import LoraAdapters
    from modelyard.parts.upstream.backend import UpstreamBackend, discover
    from modelyard.parts.upstream.exchange import Adapters
    from modelyard.parts.upstream.fallback import Fallback
    from modelyard.parts.upstream.models import COMMON, VLLM, UpstreamModel, offer
    from modelyard.parts.upstream.timeouts import Timeouts

HOMES = {
    "parts.upstream.fallback": ("Fallback",),
    "parts.scripted.answers": ("call", "pause", "reasoning", "say", "token"),
    "parts.scripted.backend": ("ScriptedBackend",),
    "parts.scripted.rules": ("Rule", "on"),
    "parts.scripted.script_file": ("load_script",),
    "parts.upstream.adapters.adapters": ("LoraAdapters",),
    "parts.upstream.backend": ("UpstreamBackend", "discover"),
    "parts.upstream.exchange": ("Adapters",),
    "parts.upstream.models": ("COMMON", "VLLM", "UpstreamModel", "offer"),
    "parts.upstream.timeouts": ("Timeouts",),
}

__all__: list[str] = [
    "COMMON",
    "VLLM",
    "Adapters",
    "Fallback",
    "LoraAdapters",
    "Rule",
    "ScriptedBackend",
    "Timeouts",
    "UpstreamBackend",
    "UpstreamModel",
    "call",
    "discover",
    "load_script",
    "offer",
    "on",
    "pause",
    "reasoning",
    "say",
    "token",
]

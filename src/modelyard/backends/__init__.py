"""The backends that ship with modelyard, for `open_platform(backend=...)`."""

from typing import TYPE_CHECKING

from modelyard.lazy import defer_modules, lazy_exports

if TYPE_CHECKING:
    from modelyard.backends.echo import EchoBackend
    from modelyard.backends.entries import entry_for
    from modelyard.backends.router import Router
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
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "backends.echo": ("EchoBackend",),
            "backends.entries": ("entry_for",),
            "parts.upstream.fallback": ("Fallback",),
            "backends.router": ("Router",),
            "parts.scripted.answers": ("call", "pause", "reasoning", "say", "token"),
            "parts.scripted.backend": ("ScriptedBackend",),
            "parts.scripted.rules": ("Rule", "on"),
            "parts.scripted.script_file": ("load_script",),
            "parts.upstream.adapters.adapters": ("LoraAdapters",),
            "parts.upstream.backend": ("UpstreamBackend", "discover"),
            "parts.upstream.exchange": ("Adapters",),
            "parts.upstream.models": ("COMMON", "VLLM", "UpstreamModel", "offer"),
            "parts.upstream.timeouts": ("Timeouts",),
        },
    )

defer_modules(__name__, "word_embedding")

__all__ = [
    "COMMON",
    "VLLM",
    "Adapters",
    "EchoBackend",
    "Fallback",
    "LoraAdapters",
    "Router",
    "Rule",
    "ScriptedBackend",
    "Timeouts",
    "UpstreamBackend",
    "UpstreamModel",
    "call",
    "discover",
    "entry_for",
    "load_script",
    "offer",
    "on",
    "pause",
    "reasoning",
    "say",
    "token",
]

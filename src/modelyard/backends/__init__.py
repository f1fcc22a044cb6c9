"""The backends that ship with modelyard, for `open_platform(backend=...)`."""

from typing import TYPE_CHECKING

from modelyard.lazy import defer_modules, lazy_exports

if TYPE_CHECKING:
    from modelyard.backends.echo import EchoBackend
    from modelyard.backends.entries import entry_for
    from modelyard.backends.fallback import Fallback
    from modelyard.backends.router import Router
    from modelyard.backends.scripted.answers import call, pause, reasoning, say, token
    from modelyard.backends.scripted.backend import ScriptedBackend
    from modelyard.backends.scripted.rules import Rule, on
    from modelyard.backends.scripted.script_file import load_script
    from modelyard.backends.upstream.adapters.adapters import LoraAdapters
    from modelyard.backends.upstream.backend import UpstreamBackend, discover
    from modelyard.backends.upstream.exchange import Adapters
    from modelyard.backends.upstream.models import COMMON, VLLM, UpstreamModel, offer
    from modelyard.backends.upstream.timeouts import Timeouts
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "backends.echo": ("EchoBackend",),
            "backends.entries": ("entry_for",),
            "backends.fallback": ("Fallback",),
            "backends.router": ("Router",),
            "backends.scripted.answers": ("call", "pause", "reasoning", "say", "token"),
            "backends.scripted.backend": ("ScriptedBackend",),
            "backends.scripted.rules": ("Rule", "on"),
            "backends.scripted.script_file": ("load_script",),
            "backends.upstream.adapters.adapters": ("LoraAdapters",),
            "backends.upstream.backend": ("UpstreamBackend", "discover"),
            "backends.upstream.exchange": ("Adapters",),
            "backends.upstream.models": ("COMMON", "VLLM", "UpstreamModel", "offer"),
            "backends.upstream.timeouts": ("Timeouts",),
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

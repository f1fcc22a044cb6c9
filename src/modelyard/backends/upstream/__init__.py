"""Any server of the chat-completion format as a backend: vLLM, SGLang, llama.cpp, Ollama, a hosted one."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from modelyard.lazy import defer_modules

if TYPE_CHECKING:
    from modelyard.backends.upstream.adapters.adapters import LoraAdapters
    from modelyard.backends.upstream.backend import UpstreamBackend, discover
    from modelyard.backends.upstream.exchange import Adapters
    from modelyard.backends.upstream.models import COMMON, VLLM, UpstreamModel, offer
    from modelyard.backends.upstream.timeouts import Timeouts

__all__ = [
    "COMMON",
    "VLLM",
    "Adapters",
    "LoraAdapters",
    "Timeouts",
    "UpstreamBackend",
    "UpstreamModel",
    "discover",
    "offer",
]

_HOMES = {
    "COMMON": "models",
    "VLLM": "models",
    "Adapters": "exchange",
    "LoraAdapters": "adapters.adapters",
    "Timeouts": "timeouts",
    "UpstreamBackend": "backend",
    "UpstreamModel": "models",
    "discover": "backend",
    "offer": "models",
}
"""Where the names of this package live: each module is loaded when the first of its names is asked for."""

defer_modules(__name__, "address", "transport")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(f"{__name__}.{_HOMES[name]}"), name))

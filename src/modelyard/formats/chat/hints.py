"""What requests may say that changes no answer: hints to caches and queues of hosted services. It is checked all the
same, so that a misspelt hint is refused. `WITHOUT_EFFECT` has the reasons."""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from modelyard.formats.constraints import hint

CACHED = "a cache changes how fast a prompt is read, not the answer"
PADDED = "events are not padded"
IDENTIFIES = "it names the end user to the operator of the model"
QUEUED = "it chooses a queue of the hosted service"
GUESSED = "a guess at the answer may only make it faster"

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity = Literal["low", "medium", "high"]
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
Retention = Literal["in_memory", "in-memory", "24h"]


@attrs.frozen
class DirectCaller:
    """The model itself, which calls a tool."""

    type: Literal["direct"]


DIRECT = "every tool is called by the model itself"


@attrs.frozen
class CacheControl:
    """Until where a prompt is to be cached, and for how long."""

    type: Literal["ephemeral"] = "ephemeral"
    ttl: Literal["5m", "1h"] | None = None


@attrs.frozen
class CacheBreakpoint:
    """A place up to which a prompt is to be cached, and for how long."""

    mode: Literal["explicit"] = "explicit"
    ttl: Literal["30m", "12h"] | None = None


@attrs.frozen
class CacheOptions:
    """Whether a prompt is cached by itself or up to explicit places, and for how long."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None


@attrs.frozen(kw_only=True, weakref_slot=False)
class Cacheable:
    """What may be the end of a cached prompt."""

    cache_control: CacheControl | None = attrs.field(default=None, metadata=hint(CACHED))
    prompt_cache_breakpoint: CacheBreakpoint | None = attrs.field(default=None, metadata=hint(CACHED))


WITHOUT_EFFECT: Mapping[str, str] = {
    "safety_identifier": IDENTIFIES,
    "service_tier": QUEUED,
    "prompt_cache_key": CACHED,
    "prompt_cache_options": CACHED,
    "prompt_cache_retention": CACHED,
    "prediction": GUESSED,
}
"""Parameters that every model accepts although they change no answer, and why. Servers are sent them."""


def sent(value: Any) -> Any:
    """Return the JSON of a parameter as a server is sent it."""
    if not attrs.has(type(value)):
        return value
    return {name: one for name, one in attrs.asdict(value).items() if one is not None}

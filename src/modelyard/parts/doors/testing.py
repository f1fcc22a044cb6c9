"""Names of parts in `modelyard.testing`."""

from typing import TYPE_CHECKING

from modelyard.parts.doors import testing_contracts, testing_servers

if TYPE_CHECKING:
    from modelyard.parts.doors.testing_contracts import *  # noqa: F403
    from modelyard.parts.doors.testing_servers import *  # noqa: F403
    from modelyard.parts.doubles.cassette.cassette import use_cassette
    from modelyard.parts.doubles.clients.httpx import HttpxTransport
    from modelyard.parts.doubles.clients.httpx2 import Httpx2Transport
    from modelyard.parts.doubles.clients.sdk_clients import (
        anthropic_client,
        async_anthropic_client,
        async_openai_client,
        openai_client,
    )
    from modelyard.parts.doubles.clients.server import served
    from modelyard.parts.doubles.faults.faults import Faults
    from modelyard.parts.doubles.faults.kinds import Cut, Disconnect, Killed, Malformed, Slow, TakenOver, Timeout
    from modelyard.parts.doubles.intercept.interception import intercept
    from modelyard.parts.doubles.network_guard import LeftLoopback, LoopbackGuard
    from modelyard.parts.doubles.requests.expectation import expect
    from modelyard.parts.doubles.requests.request_log import RequestLog, watch_requests
    from modelyard.parts.torch.tiny_model import build_tiny_model
    from modelyard.parts.upstream.recording import record

HOMES = {
    "parts.doubles.cassette.cassette": ("use_cassette",),
    "parts.doubles.clients.httpx": ("HttpxTransport",),
    "parts.doubles.clients.httpx2": ("Httpx2Transport",),
    "parts.doubles.clients.sdk_clients": (
        "anthropic_client",
        "async_anthropic_client",
        "async_openai_client",
        "openai_client",
    ),
    "parts.doubles.clients.server": ("served",),
    "parts.doubles.faults.faults": ("Faults",),
    "parts.doubles.faults.kinds": ("Cut", "Disconnect", "Killed", "Malformed", "Slow", "TakenOver", "Timeout"),
    "parts.doubles.intercept.interception": ("intercept",),
    "parts.doubles.network_guard": ("LeftLoopback", "LoopbackGuard"),
    "parts.doubles.requests.expectation": ("expect",),
    "parts.doubles.requests.request_log": ("RequestLog", "watch_requests"),
    "parts.torch.tiny_model": ("build_tiny_model",),
    "parts.upstream.recording": ("record",),
}

UNLISTED = {**testing_contracts.HOMES, **testing_servers.HOMES}

__all__: list[str] = [
    "Cut",
    "Disconnect",
    "Faults",
    "Httpx2Transport",
    "HttpxTransport",
    "Killed",
    "LeftLoopback",
    "LoopbackGuard",
    "Malformed",
    "RequestLog",
    "Slow",
    "TakenOver",
    "Timeout",
    "anthropic_client",
    "async_anthropic_client",
    "async_openai_client",
    "build_tiny_model",
    "expect",
    "intercept",
    "openai_client",
    "record",
    "served",
    "use_cassette",
    "watch_requests",
]

if TYPE_CHECKING:
    __all__ += testing_contracts.__all__
    __all__ += testing_servers.__all__

"""An answer that waits for more of it has begun all the same: the time for the first token is over."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from modelyard.backends import Timeouts
from modelyard.errors import BackendError
from modelyard.flow import iterate
from modelyard.parts.upstream.errors import Head
from modelyard.parts.upstream.exchange import Exchange, Upstream
from modelyard.testing.clock import ManualClock
from upstream_asking import backend_at, request_of, served

STEP = 10.0
PIECES = [{"choices": [{"index": 0, "delta": {"content": "x"}}]}] * 4
ENTRIES = {"content": [{"token": "x", "logprob": -1.0}] * 4}
LAST = {"choices": [{"index": 0, "delta": {}, "logprobs": ENTRIES, "finish_reason": "stop"}]}


class Slow:
    """Carries chunks that come one by one, so many seconds apart."""

    def __init__(self, clock: ManualClock, chunks: Sequence[Any]) -> None:
        self.clock = clock
        self.pieces = [b"data: " + json.dumps(one).encode() + b"\n\n" for one in chunks]

    def enter(self, seconds: float) -> None: ...

    def send(self, method: str, path: str, body: bytes, target: Any, seconds: float) -> Head:
        return Head(200, "text/event-stream")

    def read(self, seconds: float) -> bytes:
        self.clock.advance(min(seconds, STEP))
        if seconds < STEP:
            raise TimeoutError
        return self.pieces.pop(0) if self.pieces else b""

    def close(self) -> None: ...


def read(chunks: Sequence[Any], **limits: float) -> str:
    clock = ManualClock()
    upstream = Upstream(None, Timeouts(retries=0, **limits), clock, lambda: 0.0, None)
    with backend_at("http://127.0.0.1:9") as backend:
        through: Any = Slow(clock, chunks)
        exchange = Exchange(
            upstream, through, backend._model("echo"), request_of(logprobs=True, streamed=True), served(backend)
        )
        found = [delta for deltas in iterate(exchange.flow(), [through]) for delta in deltas]
    return "".join(delta.text for delta in found)


def test_text_that_waits_for_its_log_probabilities_is_heard() -> None:
    assert read([*PIECES, LAST], first_token=15, between_tokens=15) == "xxxx"


@pytest.mark.parametrize(("first", "between"), [(5, 15), (15, 5)])
def test_each_limit_holds_nevertheless(first: float, between: float) -> None:
    with pytest.raises(BackendError, match="within 5 s"):
        read([*PIECES, LAST], first_token=first, between_tokens=between)

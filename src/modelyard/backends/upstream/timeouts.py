"""How long to wait for a server, and how often to try."""

import attrs

from modelyard.clock import backoff
from modelyard.errors import InvalidInput

_LONGEST_PAUSE = 8.0
"""Seconds between two attempts at most, where the server requests no other pause."""


@attrs.frozen
class Timeouts:
    """Times are in seconds.

    `connect` is for a connection, `first_token` for the first token once the request is sent (for a whole answer: for
    all of it), `between_tokens` for the next one; a synchronous stream that falls silent altogether is noticed after
    the longer of these two. A request that fails before its first token, and may succeed later, is sent `retries` times
    more, with pauses of about `backoff`, doubled each time, or as long as the server requests; `deadline` is until when
    a request may wait for its turn or begin another attempt.
    """

    connect: float = 5.0
    first_token: float = 600.0
    between_tokens: float = 60.0
    retries: int = 2
    backoff: float = 0.5
    deadline: float = 30.0

    def __attrs_post_init__(self) -> None:
        for name in ("connect", "first_token", "between_tokens", "backoff", "deadline"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InvalidInput.at(name, msg="must be a number of seconds above 0")
        if self.retries < 0:
            raise InvalidInput.at("retries", msg="must be 0 or more")

    def pause(self, attempt: int, requested: float | None, jitter: float) -> float:
        """Return how long to wait after the attempt of this number (from 0). `jitter` is from 0 to 1."""
        if requested is not None:
            return requested + self.backoff * jitter
        return backoff(attempt, self.backoff, _LONGEST_PAUSE) * (0.5 + jitter / 2)

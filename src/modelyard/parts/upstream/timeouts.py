"""How long to wait for a server, and how often to try."""

import attrs

from modelyard.clock import backoff
from modelyard.errors import InvalidInput

_LONGEST_PAUSE = 8.0
"""Seconds between two attempts at most, where the server requests no other pause."""


@attrs.frozen
class Timeouts:
    """Times are in seconds.

    `connect` is for a connection, `first_token` for the first token once the request is sent, and `between_tokens` for
    each one after it. A whole answer that is not streamed has `first_token` for all of it: give more if answers are
    long. A server that falls silent, as vLLM may while it shuts down, is given up after these times, and the closed
    connection lets it exit. A request that fails before its first token, and may succeed later, is sent `retries` times
    more, with pauses of about `backoff`, doubled each time, or as long as the server requests; `deadline` is until when
    a request may wait for its turn or begin another attempt.
    """

    connect: float = 5.0
    first_token: float = 300.0
    between_tokens: float = 30.0
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

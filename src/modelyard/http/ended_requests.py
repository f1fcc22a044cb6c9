"""What becomes of a request that has ended: a count in the metrics, an event for the observer, a line of the log."""

import logging
from typing import Any

from modelyard.domain.events import CALLER_LEFT, RequestAnswered
from modelyard.domain.usage import LedgerEntry
from modelyard.platform.meters import Meters
from modelyard.platform.platform import Platform

log: logging.Logger = logging.getLogger("modelyard.access")
if log.level == logging.NOTSET:
    log.setLevel(logging.WARNING)  # a line a request, at level INFO, is written where the host asks this logger for it


class EndedRequests:
    """Counts and reports the requests of an endpoint. `meters` is None where no metrics are mounted."""

    def __init__(self, platform: Platform, meters: Meters | None) -> None:
        self._platform, self._meters = platform, meters
        self._observed, self._now = platform.observer is not None, platform.clock.monotonic

    def add(
        self, request_id: str, method: str, route: str, status: int, began: float, caller: Any, booked: Any
    ) -> None:
        """Add a request: of `status`, or `CALLER_LEFT` where there is none, with what was `booked` for it."""
        seconds = self._now() - began
        if self._meters is not None:
            self._meters.answered(method if route else "", route, status or CALLER_LEFT, seconds)
        logs = log.isEnabledFor(logging.INFO)
        if not self._observed and not logs:
            return
        ended = RequestAnswered(request_id, method, route, status or CALLER_LEFT, *_named(caller), seconds)
        if self._observed:
            self._platform.observe(ended)
        if logs:
            _log(ended, booked)


def _named(caller: Any) -> tuple[str, str]:
    """Return the entity and the key of a caller; empty where no caller was identified."""
    return ("", "") if caller is None else (caller.entity, caller.key_id)


def _log(ended: RequestAnswered, booked: LedgerEntry | None) -> None:
    """Write the line. Its parts are also in the record, as `access`, for formatters that write them in another way."""
    parts: dict[str, object] = {
        "request": ended.request_id,
        "method": ended.method,
        "route": ended.route or "-",
        "status": ended.status,
        "seconds": round(ended.duration, 6),
    }
    if ended.entity:
        parts |= {"entity": ended.entity, "key": ended.key_id or "host"}
    if booked is not None:
        parts |= {
            "project": booked.project or "-",
            "model": booked.model,
            "prompt_tokens": booked.prompt_tokens,
            "completion_tokens": booked.completion_tokens,
            "cost": f"{booked.cost:f}",
        }
    log.info(" ".join(f"{name}=%s" for name in parts), *parts.values(), extra={"access": parts})

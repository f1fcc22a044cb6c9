"""Reports of requests that have ended: an event for the observer, a line of the log."""

import logging
from typing import Any

from modelyard.domain.events import RequestAnswered
from modelyard.domain.usage import LedgerEntry
from modelyard.platform.platform import Platform

log: logging.Logger = logging.getLogger("modelyard.access")
if log.level == logging.NOTSET:
    log.setLevel(logging.WARNING)  # a line a request, at level INFO, is written where the host asks this logger for it


def report_ended(
    platform: Platform,
    request_id: str,
    method: str,
    route: str,
    status: int,
    seconds: float,
    caller: Any,
    booked: LedgerEntry | None,
    asked: str = "",
) -> None:
    ended = RequestAnswered(request_id, method, route, status, *_named(caller), seconds)
    platform.observe(ended)
    if log.isEnabledFor(logging.INFO):
        _log(ended, booked, asked)


def _named(caller: Any) -> tuple[str, str]:
    return ("", "") if caller is None else (caller.entity, caller.key_id)


def _log(ended: RequestAnswered, booked: LedgerEntry | None, asked: str) -> None:
    """Write the line. Its parts are also in the record, as `access`, for formatters."""
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
        parts |= {"asked": asked} if asked else {}
    log.info(" ".join(f"{name}=%s" for name in parts), *parts.values(), extra={"access": parts})

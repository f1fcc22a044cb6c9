"""What differs between the requests that a test expects and those that were sent."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from modelyard.parts.doubles.requests.logged_request import LoggedRequest, last_text, plain, shown, without_secrets

_GONE = object()
_SHOWN = 200


def differences(wanted: Sequence[object], sent: Sequence[LoggedRequest]) -> list[str]:
    """Return lines that say what differs; none if nothing does."""
    lines = list[str]()
    for number, (one, request) in enumerate(zip(wanted, sent, strict=False), 1):
        if found := [*_differing(one, request)]:
            lines += [f"request {number}, {request.method} {request.path}:", *(f"  {line}" for line in found)]
    if len(wanted) != len(sent):
        lines.append(f"{len(wanted)} requests were expected, and {len(sent)} were sent:")
        lines += [f"  {number}. {request}" for number, request in enumerate(sent, 1)]
    return [*map(without_secrets, lines)]


def _differing(wanted: object, request: LoggedRequest) -> Iterator[str]:
    logged = isinstance(wanted, LoggedRequest)
    wanted = wanted.body if isinstance(wanted, LoggedRequest) else wanted
    if isinstance(wanted, str) and not logged:
        if wanted != request.text:
            yield _both("the last message", wanted, request.text)
        return
    if not isinstance(wanted, Mapping):
        yield from _compared("body", plain(wanted), request.body)
        return
    body = request.body if isinstance(request.body, dict) else {}
    for name, value in wanted.items():
        own = name in ("path", "status") and name not in body
        yield from _compared(name, plain(value), getattr(request, name) if own else body.get(name, _GONE))


def _compared(place: str, wanted: Any, sent: Any) -> Iterator[str]:
    if isinstance(wanted, dict) and isinstance(sent, dict):
        for name, value in wanted.items():
            yield from _compared(f"{place}.{name}", value, sent.get(name, _GONE))
    elif isinstance(wanted, list) and isinstance(sent, list):
        for at, (value, found) in enumerate(zip(wanted, sent, strict=False)):
            yield from _compared(f"{place}[{at}]", value, found)
        if len(wanted) != len(sent):
            yield f"{place}: expected {len(wanted)} items, sent {len(sent)}: {shown(sent, _SHOWN)}"
    elif isinstance(wanted, str) and isinstance(sent, dict):
        text = last_text({"messages": [sent]})
        if wanted != text:
            yield _both(place, wanted, text)
    elif sent is _GONE or not _equal(wanted, sent):
        yield _both(place, wanted, sent)


def _equal(wanted: Any, sent: Any) -> bool:
    """Compare values; `True` is no 1, as in JSON. Of other objects, such as matchers, their own equality decides."""
    plain_types = isinstance(wanted, bool | int | float) and isinstance(sent, bool | int | float)
    return bool(wanted == sent) and not (plain_types and isinstance(wanted, bool) is not isinstance(sent, bool))


def _both(place: str, wanted: object, sent: object) -> str:
    return (
        f"{place}: expected {shown(wanted, _SHOWN)}, {'not sent' if sent is _GONE else f'sent {shown(sent, _SHOWN)}'}"
    )

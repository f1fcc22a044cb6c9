"""The formats of strings in a schema, such as "date": a script's answer is held against those that servers constrain.

Times and dates are read as Python reads ISO 8601, so that one without an offset is one, as a naive `datetime` has it.
Formats that are not named here say nothing of a string.
"""

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from ipaddress import IPv4Address, IPv6Address

from modelyard.backends.json_schema.schemas import Document

_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_CLOCK = r"(?:T(?=\d)(?:\d+H)?(?:\d+M)?(?:\d+(?:\.\d+)?S)?)?"
_SHAPES = {
    "duration": re.compile(rf"[+-]?P(?=.)(?:\d+W|(?:\d+Y)?(?:\d+M)?(?:\d+D)?{_CLOCK})", re.ASCII),
    "email": re.compile(r"[^@\s]+@[^@\s]+"),
    "hostname": re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII),
    "uri": re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:\S*"),
    "uuid": re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
}
_PARSED: Mapping[str, Callable[[str], object]] = {
    "date-time": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "ipv4": IPv4Address,
    "ipv6": IPv6Address,
}


class StrictDocument(Document):
    """A schema whose formats are checked, too."""

    def has_format(self, text: str, name: str) -> bool:
        """Return whether a string is in the format of this name."""
        if name in _SHAPES:
            return _SHAPES[name].fullmatch(text) is not None
        try:
            _PARSED.get(name, str)(text)
        except ValueError:
            return False
        return True

"""Members of an inference request that are not known: refused, unless the caller asks to have them ignored. Then the
answer names them in a header, so that none is ignored in silence."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from modelyard.errors import InvalidInput
from modelyard.formats.converter import UNKNOWN
from modelyard.http.headers import Header
from modelyard.http.route import Body, Parameter, RouteCall

UNKNOWN_MEMBERS = Parameter(
    "X-Modelyard-Unknown",
    {"type": "string", "enum": ["refuse", "ignore"]},
    "With `ignore`, members of the body that are not known are left out, and named in `X-Modelyard-Ignored`.",
)
_LONGEST = 4096
"""Characters of the header that names what was ignored."""


def ignore_unknown(call: RouteCall, taken: Body, refused: InvalidInput) -> list[str]:
    """Remove from the body of a call what it was refused for only because it is not known, and return the places.
    Raises the refusal if there is none, or if the caller has not asked for this."""
    places = [
        problem.loc[1:] for problem in refused.problems if problem.type == UNKNOWN and problem.loc[:1] == ("body",)
    ]
    if not places or taken is not Body.CHAT or not _may_ignore(call):
        raise refused
    for *owner, name in places:
        found: Any = call.body
        for step in owner:
            found = found[step]
        del found[name]
    return [".".join(map(str, place)) for place in places]


def _may_ignore(call: RouteCall) -> bool:
    asked = call.headers.text(b"x-modelyard-unknown") or call.platform.settings.unknown_members
    if asked not in ("refuse", "ignore"):
        raise InvalidInput.at("header", "X-Modelyard-Unknown", msg="must be 'refuse' or 'ignore'", type="literal_error")
    return asked == "ignore"


def ignored_header(places: Sequence[str]) -> Header:
    """Return the header that names what was ignored: `tools.0.banana, nvext`, percent-encoded."""
    return "x-modelyard-ignored", ", ".join(quote(place, safe="") for place in places)[:_LONGEST]

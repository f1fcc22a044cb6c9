"""Where another format has the members of a chat's request, so that a refusal names what its caller has sent."""

from collections.abc import Mapping

import attrs

from modelyard.errors import InvalidInput

Place = tuple[str | int, ...]


def moved(wrong: InvalidInput, places: Mapping[str, str]) -> InvalidInput:
    """Return problems where another format has their members. `places` are beginnings of dotted places, with "*" for a
    number; the longest one counts. After "..." nothing more is kept, as what is there has other numbers.

    >>> wrong = InvalidInput.at("tools", 1, "function", "name", msg="is required")
    >>> moved(wrong, {"tools.*.function": "tools.*"}).problems[0].loc
    ('tools', 1, 'name')
    """
    return type(wrong)([attrs.evolve(one, loc=_moved(one.loc, places)) for one in wrong.problems])


def _moved(loc: Place, places: Mapping[str, str]) -> Place:
    steps = ["*" if isinstance(step, int) else step for step in loc]
    size = next((size for size in range(len(loc), 0, -1) if ".".join(steps[:size]) in places), 0)
    place = places[".".join(steps[:size])] if size else ""
    numbers = iter([step for step in loc[:size] if isinstance(step, int)])
    begin = [next(numbers) if step == "*" else step for step in place.removesuffix("...").split(".") if step]
    return (*begin, *(() if place.endswith("...") else loc[size:]))

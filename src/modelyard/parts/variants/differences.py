"""How two texts differ, line by line."""

from collections.abc import Iterator, Sequence
from difflib import unified_diff

COMPARED = 1000
"""Between how many lines the ones that stayed are looked for: that takes a time that may grow with their square."""

AROUND = 3


def unified(before: Sequence[str], after: Sequence[str], name: str, other: str) -> str:
    """Return a unified diff of lines, "" if they are the same. Of long texts, what is between their equal beginning and
    end is shown as removed and added."""
    if max(_changed(before, after)) <= COMPARED:
        return "".join(unified_diff(before, after, name, other, n=AROUND))
    return "".join(_whole(before, after, name, other))


def _begin(before: Sequence[str], after: Sequence[str]) -> int:
    return next(
        (at for at, (one, two) in enumerate(zip(before, after, strict=False)) if one != two),
        min(len(before), len(after)),
    )


def _ends(before: Sequence[str], after: Sequence[str]) -> tuple[int, int]:
    """Return how many lines are equal at the beginning, and at the end of what follows."""
    begin = _begin(before, after)
    return begin, _begin(before[begin:][::-1], after[begin:][::-1])


def _changed(before: Sequence[str], after: Sequence[str]) -> tuple[int, int]:
    begin, end = _ends(before, after)
    return len(before) - begin - end, len(after) - begin - end


def _whole(before: Sequence[str], after: Sequence[str], name: str, other: str) -> Iterator[str]:
    (begin, _), (removed, added) = _ends(before, after), _changed(before, after)
    first = max(0, begin - AROUND)
    last = [*before[begin + removed : begin + removed + AROUND]]
    around = begin - first + len(last)
    yield f"--- {name}\n+++ {other}\n@@ -{first + 1},{removed + around} +{first + 1},{added + around} @@\n"
    yield from (f" {line}" for line in before[first:begin])
    yield from (f"-{line}" for line in before[begin : begin + removed])
    yield from (f"+{line}" for line in after[begin : begin + added])
    yield from (f" {line}" for line in last)

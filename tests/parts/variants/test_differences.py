"""How two texts differ: few lines as a unified diff, many of them in a time that does not grow with their square."""

from itertools import cycle, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.parts.variants import differences
from modelyard.parts.variants.differences import COMPARED, unified

LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n"]), max_size=12)


def patched(before: list[str], diff: str) -> list[str]:
    """Return what a diff makes of lines."""
    made, at = list[str](), 0
    for line in diff.splitlines(keepends=True)[2:]:
        if line.startswith("@@"):
            start = int(line.split()[1].split(",")[0][1:])
            begin = max(0, start - 1) if before else 0
            made += before[at:begin]
            at = begin
        elif line[0] == "+":
            made.append(line[1:])
        else:
            assert before[at] == line[1:]
            made += [line[1:]] if line[0] == " " else []
            at += 1
    return made + before[at:]


@pytest.mark.slow
@given(LINES, LINES, st.sampled_from([0, 2, COMPARED]))
def test_a_diff_makes_the_one_of_the_other(before: list[str], after: list[str], compared: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(differences, "COMPARED", compared)
        found = unified(before, after, "one", "two")
    assert (found == "") == (before == after)
    if before:
        assert patched(before, found) == after


def test_hostile_texts_are_compared_at_once() -> None:
    words = [f"{number}\n" for number in range(100)]
    before, after = (list(islice(cycle(way), 60_000)) for way in (words, words[::-1]))
    found = unified(["same\n", *before], ["same\n", *after], "one", "two")
    assert found.startswith("--- one\n+++ two\n@@ -1,60001 +1,60001 @@\n same\n-0\n")
    assert found.count("\n") == 3 + 1 + 2 * 60_000

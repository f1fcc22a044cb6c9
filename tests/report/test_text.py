"""Reports as text: what was evaluated first, the first scorer before the others, and the ids where they are needed."""

import pytest

from modelyard import open_platform
from modelyard.errors import InvalidInput

ROWS = [{"prompt": str(number), "expected": str(number)} for number in range(4)]


def test_reports_begin_with_what_was_evaluated_and_the_first_scorer() -> None:
    with open_platform() as platform:
        runs = [platform.evaluations.run("quiz", "echo", ROWS, ["token_f1", "exact_match"]).run for _ in range(2)]
        report = platform.evaluations.report(runs[0])
        head, counted, _, _, _, first, second, *_ = str(report).splitlines()
        compared = str(platform.evaluations.compare(*runs)).splitlines()
    assert head == f"echo on quiz  (run {runs[0].id}, completed)"
    assert counted.startswith("4 rows, 4 trials")
    assert (first.split()[0], second.split()[0]) == ("token_f1", "exact_match")
    names = [line.split()[0] for line in compared if line.startswith(("token_f1", "exact_match"))]
    assert names[:2] == ["token_f1", "exact_match"]
    with pytest.raises(InvalidInput, match=r"must be a metric of the run: .*; did you mean 'exact_match'\?$"):
        report.metric("exact_mach")

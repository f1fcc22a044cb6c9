"""What is shown of rows where a debugger or a failed test prints them: nothing is read for it."""

from collections.abc import Callable, Iterator

import pytest

from modelyard import open_platform
from modelyard.platform.evaluations.result import EvaluationResult, Rows
from modelyard.platform.platform import Platform
from modelyard.stores import MemoryStore

QUESTIONS = [{"prompt": "a", "expected": "a"}, {"prompt": "b", "expected": "c"}]
SHOWN: list[Callable[[EvaluationResult], EvaluationResult | Rows]] = [
    lambda result: result,
    lambda result: result.rows,
    lambda result: result.errors,
]


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform(project="demo") as opened:
        yield opened


@pytest.mark.parametrize("part", SHOWN)
def test_a_repr_reads_nothing_and_outlives_the_store(
    platform: Platform, part: Callable[[EvaluationResult], EvaluationResult | Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = platform.evaluations.run("quiz", "echo", QUESTIONS)
    open_one = repr(part(result))
    reads: list[object] = []
    monkeypatch.setattr(MemoryStore, "read", lambda _, query: reads.append(query))
    assert (repr(part(result)), reads) == (open_one, [])
    monkeypatch.undo()
    platform.close()
    assert repr(part(result)) == open_one
    assert result.run.id in open_one

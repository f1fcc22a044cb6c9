"""A scorer that compares meanings, in an evaluation."""

from typing import Any

import pytest

from modelyard import SemanticSimilarity, open_platform

ROWS = [
    {"input": "where is my order", "expected": "where is my order"},
    {"input": "where is my order", "expected": ["a cat sat", "my order: where is it"]},
    {"input": "where is my order", "expected": "a cat sat"},
    {"input": "where is my order", "expected": ""},
]


def said(row: dict[str, Any]) -> str:
    answer: str = row["input"]
    return answer


def test_what_means_the_same_scores_higher() -> None:
    with open_platform() as platform:
        alike = SemanticSimilarity(platform, "echo")
        run = platform.evaluations.run("alike", said, ROWS, {"alike": alike}, project="demo")
        values = [alike(row["input"], row) for row in ROWS]
        assert values[0] == pytest.approx(1)
        assert values[0] > values[1] > values[2] + 0.3
        assert values[3] == 0.0
        assert run.run.summary["scorers"]["alike"]["mean"] == pytest.approx(sum(values) / 4)


def test_an_empty_output_asks_for_nothing() -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("asked")

    with open_platform() as platform:
        platform.embeddings.create = refuse  # type: ignore[method-assign]
        assert SemanticSimilarity(platform, "echo")(" ", ROWS[0]) == 0.0

"""The gate of a promotion: the evaluation runs of the version and of the one that the alias points to."""

from collections.abc import Iterator
from typing import Any

import pytest

from modelyard import NotWorse, Platform, open_platform
from modelyard.errors import Conflict, InvalidInput, PromotionRefused
from modelyard.parts.variants.records import VariantMove

NAME = "desk/support"
GOOD, BAD = "Customer: {question}", "{question}"
ROWS = [{"question": f"q{number}", "expected": f"Customer: q{number}"} for number in range(40)]


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        for template in (GOOD, BAD, GOOD + "{{}}"):
            opened.variants.publish(NAME, model="echo", template=template)
        yield opened


def evaluated(platform: Platform, *numbers: int) -> list[str]:
    return [platform.evaluations.run("quiz", f"variants/{NAME}@{one}", ROWS, project="desk").run.id for one in numbers]


def promoted(platform: Platform, number: int, **require: Any) -> VariantMove:
    return platform.variants.promote(NAME, number, require=NotWorse(**require or {"evaluation": "quiz"}))


def test_a_version_passes_only_with_a_run_that_does_not_show_it_to_be_worse(platform: Platform) -> None:
    with pytest.raises(PromotionRefused, match=r"no completed run of 'quiz' on version 2 of desk/support"):
        promoted(platform, 2)
    first = evaluated(platform, 2)
    assert promoted(platform, 2).verdict == {"outcome": "there was nothing to compare with"}
    with pytest.raises(PromotionRefused, match=r"no completed run of 'quiz' on version 1 of desk/support"):
        promoted(platform, 1)
    runs = first + evaluated(platform, 1)
    made = promoted(platform, 1)
    assert (made.verdict["outcome"], made.verdict["baseline_run"], made.verdict["candidate_run"]) == (
        "not worse",
        *runs,
    )
    assert made.verdict["metrics"]["exact_match"]["difference"] == 1.0
    with pytest.raises(PromotionRefused, match="the candidate is worse than the promoted version"):
        promoted(platform, 2)
    assert promoted(platform, 2, evaluation="quiz", margin=1.0).number == 2
    assert platform.variants.rollback(NAME).number == 1
    assert [move.number for move in platform.variants.moves(NAME)] == [2, 1, 2, 1]


def test_runs_are_named_and_must_be_of_these_versions(platform: Platform) -> None:
    one, two = evaluated(platform, 1, 2)
    promoted(platform, 2)
    assert promoted(platform, 1, runs={"baseline": two, "candidate": one}).number == 1
    with pytest.raises(InvalidInput, match="must be a completed run on version 2 of support"):
        promoted(platform, 2, runs={"baseline": two, "candidate": one})


def test_an_alias_that_moved_meanwhile_refuses(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    from modelyard.parts.variants import service

    platform.variants.promote(NAME, 2)
    evaluated(platform, 1, 2)
    checked = service.promotion_evidence

    def slow(*of: Any) -> Any:
        platform.variants.promote(NAME, 3)
        return checked(*of)

    monkeypatch.setattr(service, "promotion_evidence", slow)
    with pytest.raises(Conflict, match="was moved while"):
        promoted(platform, 1)
    assert platform.variants.version(f"{NAME}@prod").number == 3


def test_a_requirement_is_one(platform: Platform) -> None:
    wrong: Any = "quiz"
    with pytest.raises(InvalidInput, match="NotWorse"):
        platform.variants.promote(NAME, 1, require=wrong)


def test_a_misspelt_metric_is_refused_though_nothing_is_compared(platform: Platform) -> None:
    evaluated(platform, 2)
    for _ in range(2):
        with pytest.raises(InvalidInput, match="must be a metric of both runs: exact_match"):
            promoted(platform, 2, evaluation="quiz", metric="exact_mach")
        assert promoted(platform, 2, evaluation="quiz", metric="exact_match").number == 2

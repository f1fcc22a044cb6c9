"""What the pages say of a promotion: what its comparison has shown, and no more."""

from collections.abc import Mapping
from typing import Any

import pytest

from modelyard.parts.dashboard.view import verdict_chip


def compared(**metrics: str) -> Mapping[str, Any]:
    return {"outcome": "not worse", "metrics": {name: {"verdict": verdict} for name, verdict in metrics.items()}}


NO, UNCLEAR = "no difference shown", "unclear: rows without a value"


@pytest.mark.parametrize(
    ("verdict", "text", "kind"),
    [
        ({}, "no requirement", "quiet"),
        ({"outcome": "there was nothing to compare with"}, "there was nothing to compare with", "chip"),
        (compared(right=NO), "not worse", "chip"),
        (compared(right=UNCLEAR, f1=NO), "not worse", "chip"),
        (compared(right="better"), "better on right", "chip better"),
        (compared(right="better", f1=NO, rouge="better"), "better on right, rouge", "chip better"),
        (compared(right="worse"), "worse on right", "chip"),
        (compared(right="better", f1="worse"), "better on right; worse on f1", "chip"),
    ],
)
def test_a_promotion_says_what_its_comparison_has_shown(verdict: Mapping[str, Any], text: str, kind: str) -> None:
    shown = verdict_chip(verdict)
    assert f">{text}<" in shown
    assert f'class="{kind}"' in shown

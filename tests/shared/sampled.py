"""What each run tries of a long list of parameters; a run with `--whole` tries them all."""

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(values: Iterable[Any], every: int, *, at: int = 0) -> list[Any]:
    """Mark parameters for `--whole`, but for each `every`th from the one at `at` on, the first, and the last."""
    kept = list(values)
    tried = {0, len(kept) - 1, *range(at, len(kept), every)}
    return [value if place in tried else in_campaign(value) for place, value in enumerate(kept)]


def in_campaign(value: Any) -> Any:
    """Mark a parameter for `--whole`. A tuple is the values of several names."""
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.campaign)

"""Settings that choose among values take those and no others, where they are made and not at the first request."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard import Settings
from modelyard.domain.evaluation.objects import RefMode
from modelyard.errors import InvalidInput

CHOICES: dict[str, set[Any]] = {
    "reference_mode": {mode.value for mode in RefMode},
    "unknown_members": {"refuse", "ignore"},
    "strict_conversations": {True, False},
    "durable_usage": {True, False},
}


@pytest.mark.parametrize("name", CHOICES)
@given(st.sampled_from(["lenient", "syntax", "resolve", "refuse", "ignore", "no", "false", "", True, False, None, 2]))
def test_a_setting_takes_its_values_only(name: str, value: Any) -> None:
    if value in CHOICES[name]:
        assert getattr(Settings(**{name: value}), name) == value
        return
    with pytest.raises(InvalidInput) as refused:
        Settings(**{name: value})
    assert refused.value.problems[0].loc == ("settings", name)
    assert all(repr(one) in str(refused.value) for one in CHOICES[name])

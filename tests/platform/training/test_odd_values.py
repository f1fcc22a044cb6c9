"""Options of a training job, retention and rows of the host's own types are what the json module writes for them, or
refused at their place."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.shared.example_counts import examples
from tests.shared.odd_values import REFUSED, STANDS_FOR_JSON, Count, Level, odd_values

from modelyard import Platform, open_platform
from modelyard.errors import InvalidInput, JobFailed

QUESTION = {"role": "user", "content": "hello"}
ANSWER = {"role": "assistant", "content": "hi"}
OPTIONS = {
    "sft": ("learning_rate", "batch_size", "epochs", "assistant_turns"),
    "dpo": ("beta", "label_smoothing", "learning_rate", "batch_size"),
}
ROWS = {
    "sft": {"messages": [QUESTION, ANSWER]},
    "dpo": {"messages": [QUESTION], "chosen": "hi", "rejected": "no"},
}


@pytest.fixture(scope="module")
def opened() -> Iterator[Platform]:
    with open_platform() as platform:
        yield platform


def trained(platform: Platform, kind: str, row: Any, **options: Any) -> None:
    """Train, or be refused at a place; a rate may be too high for the model."""
    model = platform.models.create("m", project="d", base_model="tabular-mini", return_existing=True)
    try:
        getattr(platform.training, kind)(model, [row], **options).result()
    except InvalidInput as wrong:
        assert wrong.problems[0].loc
    except JobFailed as failed:
        assert "diverged" in str(failed)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in OPTIONS.items() for name in names])
@examples(40)
@given(value=odd_values)
def test_an_option_is_its_json_or_refused_at_its_place(opened: Platform, kind: str, name: str, value: Any) -> None:
    trained(opened, kind, ROWS[kind], **{name: value})


@pytest.mark.slow
@examples(40)
@given(odd_values)
def test_a_row_is_its_json_or_refused_at_its_place(opened: Platform, value: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "x": value}}}
    trained(opened, "sft", {"messages": [QUESTION, ANSWER], "tools": [tool]})
    trained(opened, "sft", {"messages": [{**QUESTION, "content": value}, ANSWER]})
    trained(opened, "dpo", {**ROWS["dpo"], "chosen": value})


@given(st.sampled_from([Count(3), Level.HIGH]), st.sampled_from(["keep_last", "best"]))
def test_a_count_may_be_an_enum(opened: Platform, count: Any, rule: str) -> None:
    model = opened.models.create("m", project="d", base_model="tabular-mini", return_existing=True)
    rules: Any = {"keep_last": count} if rule == "keep_last" else {"keep_best": ("loss", count)}
    opened.models.set_retention(model, **rules)
    found = opened.models.get_retention(model)
    assert found is not None
    assert 3 in (found.keep_last, found.keep_best)


@pytest.mark.parametrize("value", [one for one in (*STANDS_FOR_JSON, *REFUSED) if not isinstance(one, int)])
def test_what_is_no_count_is_refused(opened: Platform, value: Any) -> None:
    model = opened.models.create("m", project="d", base_model="tabular-mini", return_existing=True)
    with pytest.raises(InvalidInput):
        opened.models.set_retention(model, keep_last=value)

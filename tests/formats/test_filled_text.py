"""What is stored of a completion: its text is written once, and read when somebody looks into it."""

import copy
import json
import pickle
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.domain.completion import CompletionRequest, ContentPart, Message, Role, Sampling, Tool, ToolCall
from modelyard.domain.record import WrittenMapping, frozen_mapping
from modelyard.errors import InvalidInput
from modelyard.formats.converter import filled_text, unstructure
from modelyard.stores import json_values

texts = st.text(st.characters(codec="utf-8"), max_size=5)
data = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
contents = st.none() | texts | st.lists(st.builds(ContentPart, st.just("text"), texts), max_size=2).map(tuple)
calls = st.lists(st.builds(ToolCall, texts, texts, texts), max_size=2).map(tuple)
requests = st.builds(
    CompletionRequest,
    texts,
    st.lists(st.builds(Message, st.sampled_from(Role), contents, tool_calls=calls), max_size=2).map(tuple),
    st.just(Sampling()) | st.builds(Sampling, seed=st.none() | st.integers(0, 9), logit_bias=st.just({7: -1.0})),
    n=st.integers(1, 3),
    max_tokens=st.none() | st.integers(0, 5),
    stop=st.lists(texts, max_size=2).map(tuple),
    logprobs=st.booleans(),
    tools=st.lists(st.builds(Tool, texts, texts, st.dictionaries(texts, data, max_size=2)), max_size=2).map(tuple),
    user=st.none() | texts,
    metadata=st.dictionaries(texts, texts, max_size=2),
    extras=st.dictionaries(texts, data, max_size=2),
    prompt=st.none() | st.just(()) | st.just((1, 2)) | texts,
)


def filled(value: Any) -> Any:
    """Every field that is neither None nor empty, looked at one by one."""
    if attrs.has(type(value)):
        parts = [(field, getattr(value, field.name)) for field in attrs.fields(type(value))]
        return {
            field.name: filled(part)
            for field, part in parts
            if part is not None and (field.default is None or part not in ((), {}))
        }
    if isinstance(value, tuple | list):
        return [filled(part) for part in value]
    if isinstance(value, Mapping):
        return {str(name): filled(part) for name, part in value.items()}
    return unstructure(value)


@given(requests)
def test_what_is_written_has_each_field_that_is_neither_none_nor_empty(request: CompletionRequest) -> None:
    assert json.loads(filled_text(request)) == filled(request)


@given(st.dictionaries(texts, data, max_size=4))
def test_a_mapping_by_its_text_is_the_one_that_was_written(members: dict[str, Any]) -> None:
    kept = json_values.frozen(members)
    written = WrittenMapping(json_values.dump(kept))
    assert written == kept
    assert kept == written
    assert json_values.frozen(written) is written
    assert frozen_mapping(written) is written
    assert json_values.load(json_values.dump(written)) == kept
    assert copy.deepcopy(written) == pickle.loads(pickle.dumps(written)) == kept
    assert all(type(part) is not dict and type(part) is not list for part in written.values())


@given(data)
def test_freezing_changes_no_value_and_leaves_nothing_that_can_change(value: Any) -> None:
    kept = json_values.frozen(value)
    assert filled(kept) == filled(value)
    assert json_values.frozen(kept) is kept

    def held(part: Any) -> bool:
        inner = part.values() if type(part) is MappingProxyType else part if type(part) is tuple else ()
        return type(part) not in (dict, list) and all(map(held, inner))

    assert held(kept)


@pytest.mark.parametrize("extra", ["\ud800", float("nan"), float("inf"), 2**64], ids=repr)
def test_what_no_store_can_keep_is_refused(extra: Any) -> None:
    with pytest.raises((ValueError, InvalidInput), match=r"(surrogates)|(JSON)|(beyond 64 bits)"):
        filled_text(CompletionRequest("m", (), extras={"x": [extra]}))


def nested(levels: int, inside: Any, whole: bool) -> Any:
    for level in range(levels):
        inside = [inside] if whole or level % 2 else {"[": inside}
    return inside


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("levels", [1, 50, 98, 99, 100, 101, 102, 103, 300, 900, 5_000, 100_000])
def test_what_is_written_is_as_deep_as_what_is_kept_otherwise(levels: int, whole: bool) -> None:
    """Brackets in strings are no levels, nor are containers beside each other."""
    value = {"deep": nested(levels, ["]}" * 200, *[{}] * 200], whole)}

    def refused(write: Any) -> bool:
        try:
            write(value)
        except (ValueError, InvalidInput) as error:
            return "nested" in str(error)
        return False

    assert refused(filled_text) is refused(json_values.frozen)
    if not refused(filled_text):
        assert json_values.load(filled_text(value)) == json_values.frozen(value)


def test_what_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="contains itself"):
        filled_text(CompletionRequest("m", (), extras={"x": endless}))

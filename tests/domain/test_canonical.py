"""The canonical text and its digests, against vectors that were recorded elsewhere."""

import json
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.domain import canonical
from modelyard.domain.canonical import canonical_json, digest, json_encoder, table_digest

ROW_0 = "TFKydpYsmURbtXPF1Wdz3kXzqT4TUzTU7aLmV9s30C4"
ROW_1 = "9MzGRfAETMmGOW0GuTkt8MvWOsootF2v1Mk6hTXrMLc"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@each_case(
    ("value", "expected"),
    [
        ({}, "RBNvo1WzZ4oRRq0W9XhknpT7T8If536DEMBg9hyqY4o"),
        ({"b": 1, "a": [1, 2.5, "é"]}, "hQR39XGprcllY2gO68NSNxAZ93tD5N8zY4wxU0h8fvU"),
        ({"question": "q0", "expected": "0"}, ROW_0),
        ({"question": "q1", "expected": "1"}, ROW_1),
    ],
)
def test_digests_equal_the_vectors(value: object, expected: str) -> None:
    assert digest(value) == expected


def test_the_digest_of_a_table_is_that_of_its_rows_in_order() -> None:
    assert table_digest([ROW_0, ROW_1]) == "14e85c7d56c9fe17c4617af54dd78d1b301ebd7ae504773709aec2664c53ebab"
    assert table_digest([ROW_1, ROW_0]) != table_digest([ROW_0, ROW_1])
    assert table_digest([]) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.slow
@given(st.dictionaries(st.text(), json_values, max_size=5), st.randoms(use_true_random=False))
def test_the_order_of_members_does_not_matter(value: dict[str, object], random: object) -> None:
    names = list(value)
    random.shuffle(names)  # type: ignore[attr-defined]
    assert canonical_json({name: value[name] for name in names}) == canonical_json(value)


@given(json_values)
def test_the_text_is_ascii_and_reads_back_as_the_value(value: object) -> None:
    text = canonical_json(value)
    assert text.isascii()
    assert json.loads(text) == value


@given(json_values, st.booleans(), st.booleans())
def test_an_encoder_writes_what_json_does_with_and_without_its_accelerator(
    value: object, sort_keys: bool, ensure_ascii: bool
) -> None:
    expected = json.dumps(value, sort_keys=sort_keys, ensure_ascii=ensure_ascii, separators=("; ", "= "))
    with pytest.MonkeyPatch.context() as patch:
        for _ in range(2):
            encode = json_encoder(dict, ("; ", "= "), sort_keys=sort_keys, ensure_ascii=ensure_ascii)
            assert "".join(encode(value, 0)) == expected
            patch.setattr(canonical, "c_make_encoder", None)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(RecursionError):
        canonical_json(value)


def test_a_read_only_mapping_has_the_text_of_its_contents() -> None:
    assert canonical_json(MappingProxyType({"a": (1, MappingProxyType({}))})) == '{"a": [1, {}]}'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [-float("inf")]}])
def test_a_number_that_json_has_not_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(value)


def test_what_is_not_a_json_value_is_refused() -> None:
    with pytest.raises(TypeError, match="set is not a JSON value"):
        canonical_json({1})

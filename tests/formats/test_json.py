"""JSON of strangers: what fits is parsed exactly as the standard library does, everything else is refused in words."""

import json
import math
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.errors import InvalidInput
from modelyard.formats.json import checked_dumps, dumps, loads

TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('[]{},:"\\\u2028'))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def refusal(raw: bytes, **limits: int) -> str:
    with pytest.raises(InvalidInput) as caught:
        loads(raw, at=("body", 3), **limits)
    (problem,) = caught.value.problems
    assert problem.loc[:2] == ("body", 3)
    return problem.msg


def depth_of(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


def structure_of(value: object) -> int:
    if isinstance(value, dict):
        return 2 + len(value) + max(len(value) - 1, 0) + sum(map(structure_of, value.values()))
    return 2 + max(len(value) - 1, 0) + sum(map(structure_of, value)) if isinstance(value, list) else 0


@given(VALUES, st.booleans())
def test_a_value_survives_the_way_there_and_back(value: object, ascii_only: bool) -> None:
    assert loads(json.dumps(value, ensure_ascii=ascii_only).encode()) == value
    assert loads(dumps(value)) == value


@given(VALUES, st.booleans())
def test_depth_and_structure_are_measured_exactly(value: object, ascii_only: bool) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only).encode()
    depth, structure = depth_of(value), structure_of(value)
    assert loads(raw, max_depth=depth, max_structure=structure) == value
    if depth:
        assert refusal(raw, max_depth=depth - 1) == f"is nested deeper than {depth - 1} levels"
        assert "structural characters" in refusal(raw, max_structure=structure - 1)


@given(st.binary(max_size=60) | st.text(st.sampled_from('[]{},:"\\ue0d8 19.-+EaNI'), max_size=60).map(str.encode))
def test_any_bytes_are_parsed_or_refused_but_never_crash(raw: bytes) -> None:
    try:
        value = loads(raw)
    except InvalidInput:
        return
    assert value == json.loads(raw)
    assert dumps(value)


@each_case(
    ("raw", "says"),
    [
        (b"", "not valid JSON: Expecting value at line 1"),
        (b"{} {}", "not valid JSON: Extra data"),
        (b'{"secret": sesame}', "not valid JSON: Expecting value at line 1, column 12"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        ("{}".encode("utf-16"), "not UTF-8"),
        (b'"\xc0\xaf"', "not UTF-8: byte 1"),
        (b'"\xed\xa0\x80"', "not UTF-8"),
        (b'"\\ud800"', "surrogate"),
        (b'["\\\\\\udc00"]', "surrogate"),
        (b'"\\udc00\\ud800"', "surrogate"),
        (b"NaN", "NaN"),
        (b"[-Infinity]", "Infinity"),
        (b"1e400", "64-bit float"),
        (b"-1E+0999", "64-bit float"),
        (b"1" * 400 + b".5", "64-bit float"),
        (b"9223372036854775808", "beyond 64 bits"),
        (b"1" * 5000, "beyond 64 bits"),
        (b'{"a": 1, "b": 2, "a": 1}', "same key twice"),
        (b"[" * 65 + b"]" * 65, "nested deeper than 64"),
        (b"[" * 300_000, "structural"),
        (b"[" * 100_000, "nested deeper"),
        (b"[" + b"{}," * 100_000 + b"{}]", "structural characters"),
    ],
)
@each_case("padding", [b"", b" " * 3000], ids=["short", "long"])
def test_what_no_store_could_keep_is_refused_in_words(raw: bytes, says: str, padding: bytes) -> None:
    message = refusal(raw + padding)
    assert says in message
    assert "sesame" not in message


def test_a_long_text_is_not_a_structure() -> None:
    text = '[{,"\\' * 100_000
    assert loads(dumps([text])) == [text]


def test_escaped_pairs_and_escaped_backslashes_are_fine() -> None:
    assert loads(b'["\\ud83d\\ude00", "\\\\ud800"]') == ["\N{GRINNING FACE}", "\\ud800"]


def test_numbers_at_the_edge_are_kept_exactly() -> None:
    edge = [2**63 - 1, -(2**63), 1.7976931348623157e308, 5e-324, 0.1 + 0.2]
    assert loads(json.dumps(edge).encode()) == edge


def test_output_is_ascii_without_nan_and_takes_read_only_mappings() -> None:
    assert dumps(MappingProxyType({"a": ("é", 1)})) == b'{"a":["\\u00e9",1]}'
    with pytest.raises(ValueError, match="JSON compliant"):
        dumps(math.nan)


@each_case(
    ("raw", "place"),
    [
        (b'{"seed": 18446744073709551616}', ("seed",)),
        (b'{"a": [1, {"b": NaN}], "c": Infinity}', ("a", 1, "b")),
        (b"[0, 1e999]", (1,)),
        (b"-Infinity", ()),
        (b'{"a": 1, "a": 18446744073709551616}', ()),
    ],
)
def test_a_refused_number_is_refused_at_its_place(raw: bytes, place: tuple[str | int, ...]) -> None:
    with pytest.raises(InvalidInput) as refused:
        loads(raw, at=("body",))
    assert refused.value.problems[0].loc == ("body", *place)


def test_half_of_a_character_is_named_as_such() -> None:
    for value, place in (({"a": ["\ud83d"]}, r"rows\.1\.a\.0"), ({"\udc00": 1}, r"rows\.1"), ("\ud83d", r"rows\.1")):
        with pytest.raises(InvalidInput, match=rf"^{place}: cannot be kept as JSON: has half of a surrogate pair"):
            checked_dumps(value, at=("rows", 1))


def test_a_value_that_is_not_finite_is_refused_at_its_place() -> None:
    with pytest.raises(InvalidInput, match=r"data\.0\.trajectories\.1\.reward: must be a finite number"):
        checked_dumps({"trajectories": [{"reward": 1.0}, {"reward": math.nan}]}, at=("data", 0))
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(InvalidInput, match="cannot be kept as JSON: too deep, or contains itself"):
        checked_dumps(endless)


LINES = "\\n" * 30_000


@pytest.mark.parametrize("text", [f'"{LINES}', f'["{LINES}\x01"]', f'"{LINES}\\x"'])
def test_a_broken_string_of_many_escapes_is_refused(text: str) -> None:
    assert "is not valid JSON" in refusal(text.encode())

"""The incremental reader says the same as parsing at once, however the text is cut, and holds one value at a time."""

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from example_counts import examples
from modelyard.errors import InvalidInput
from modelyard.formats import json_stream
from modelyard.formats.json import loads
from modelyard.formats.json_stream import JsonReader, file_chunks

TEXT = st.text(st.sampled_from('[]{},:"\\ abé\N{GRINNING FACE}\n'), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(-1e9, 1e9) | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=25,
)


def walk(reader: JsonReader, value: Any, *place: str | int) -> Any:
    """Read the whole structure through `members` and `elements`, knowing only of which kind each value is."""
    if isinstance(value, dict):
        return {name: walk(reader, value[name], *place, name) for name in reader.members(*place)}
    if isinstance(value, list):
        return [walk(reader, value[number], *place, number) for number in reader.elements(*place)]
    return reader.take(*place)


def cut(raw: bytes, sizes: list[int]) -> Iterator[bytes]:
    while raw:
        size = sizes.pop() if sizes else 7
        yield raw[:size]
        raw = raw[size:]


CUTS = st.lists(st.integers(0, 20), max_size=60)


@given(VALUES, CUTS, st.sampled_from([None, 2]), st.booleans())
def test_walking_gives_what_parsing_gives(
    value: object, sizes: list[int], indent: int | None, ascii_only: bool
) -> None:
    raw = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    reader = JsonReader(cut(raw, sizes))
    assert walk(reader, value) == value
    reader.end()


@pytest.mark.slow
@given(st.lists(VALUES, max_size=6), CUTS)
def test_taking_whole_values_gives_what_parsing_gives(values: list[object], sizes: list[int]) -> None:
    reader = JsonReader(cut(json.dumps({"rows": values, "last": 1}).encode(), sizes))
    rest: dict[str, object] = {}
    for name in reader.members():
        if name == "rows":
            assert [reader.take(number) for number in reader.elements()] == values
        else:
            rest[name] = reader.take(name)
    reader.end()
    assert rest == {"last": 1}


@each_case("value", [[], [[1, 2]], {"a": [3], "b": "]"}, "x", {"a": [[4], 5]}], ids=json.dumps)
@each_case("size", [5, 64, 2**18])
def test_a_long_row_of_small_values_is_one_value(value: object, size: int) -> None:
    values = [[value] * 299, [value] * 300]
    raw = json.dumps(values).encode()
    reader = JsonReader(cut(raw, [size] * len(raw)))
    assert [reader.take(number) for number in reader.elements()] == values
    reader.end()


@pytest.mark.slow
@examples(100)
@given(VALUES, st.data())
def test_a_damaged_text_is_refused_exactly_when_parsing_refuses_it(value: object, data: st.DataObject) -> None:
    raw = bytearray(json.dumps([value, value]).encode())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.sampled_from([b"", b"]", b'"', b"\\", b",", b"{", b"x"]))
    try:
        expected = loads(bytes(raw))
    except InvalidInput:
        expected = InvalidInput
    try:
        reader = JsonReader(cut(bytes(raw), data.draw(CUTS)))
        got: object = reader.take()
        reader.end()
    except InvalidInput:
        got = InvalidInput
    assert got == expected


@each_case(
    ("raw", "loc", "says"),
    [
        (b"", (), "Expecting value"),
        (b"[]", (), "must be an object"),
        (b"nul", (), "not valid JSON"),
        (b'{"groups": {}}', ("groups",), "must be a list"),
        (b'{"groups": [{"a": 1}, {"a": NaN}]}', ("groups", 1, "a"), "NaN"),
        (b'{"groups": [1, {"a": 1, "a": 2}]}', ("groups", 1), "same key twice"),
        (b'{"groups": [1], "groups": [2]}', (), "same key twice"),
        (b'{"groups": [[[1]', ("groups", 0), "ends too early"),
        (b'{"groups": [1 2]}', ("groups",), "',' or ']' is missing"),
        (b'{"groups": [1,]}', ("groups", 1), "not valid JSON"),
        (b'{"groups": [1}', ("groups",), "',' or ']' is missing"),
        (b'{"groups" [1]}', (), "':' is missing"),
        (b"{groups: [1]}", (), "name of a member is missing"),
        (b'{"groups": [1],}', (), "name of a member is missing"),
        (b'{"groups": []} {}', (), "something follows"),
        (b'{"groups": [' + b"[" * 100, ("groups", 0), "nested"),
        (b'{"groups": [[' + b"[[1]]," * 300_000, ("groups", 0), "too many"),
        (b'{"groups": ["\\ud800"]}', ("groups", 0), "surrogate"),
        (b'{"groups": ["abc', ("groups", 0), "not valid JSON"),
    ],
)
def test_faults_are_named_at_their_place(raw: bytes, loc: tuple[str | int, ...], says: str) -> None:
    def read() -> None:
        reader = JsonReader(cut(raw, [len(raw) // 2]), at=("body",))
        for name in reader.members():
            for number in reader.elements(name):
                reader.take(name, number)
        reader.end()

    with pytest.raises(InvalidInput) as caught:
        read()
    (problem,) = caught.value.problems
    assert problem.loc == ("body", *loc)
    assert says in problem.msg


def test_null_can_be_recognised_before_it_is_read() -> None:
    reader = JsonReader([b'{"groups": null}'])
    for _ in reader.members():
        assert reader.is_null()
        assert reader.take() is None


def test_memory_stays_at_one_value_for_any_size() -> None:
    row = json.dumps({"text": "x" * 50_000}).encode()

    def chunks() -> Iterator[bytes]:
        yield b'{"rows": ['
        for _ in range(400):
            yield row
            yield b","
        yield row + b"]}"

    tracemalloc.start()
    try:
        reader = JsonReader(chunks())
        for name in reader.members():
            assert sum(len(reader.take()["text"]) for _ in reader.elements(name)) == 401 * 50_000  # type: ignore[index]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * len(row)


def test_a_string_of_many_chunks_is_looked_at_only_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[bool] = []
    read_on = JsonReader._read_on
    monkeypatch.setattr(JsonReader, "_read_on", lambda reader: reads.append(True) or read_on(reader))
    chunks = [b'["', *[b"\\\\" * 500] * 1000, b'"]']
    assert len(JsonReader(chunks).take()[0]) == 500_000  # type: ignore[index]
    assert len(reads) < 20


def test_a_file_is_read_chunk_by_chunk(tmp_path: Any) -> None:
    (tmp_path / "file").write_bytes(b"abcdefgh")
    with (tmp_path / "file").open("rb") as file:
        assert list(file_chunks(file, 3)) == [b"abc", b"def", b"gh"]


def test_a_value_that_is_too_large_is_refused_before_it_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "MAX_VALUE", 1000)
    chunks = iter([b'{"a": "', *[b"x" * 100] * 100, b'"}'])
    reader = JsonReader(chunks)
    members = reader.members()
    name = next(members)
    with pytest.raises(InvalidInput, match="more than 1000 bytes"):
        reader.take(name)
    assert sum(map(len, chunks)) > 5000

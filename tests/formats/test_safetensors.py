"""Tensors survive the way there and back; a header that lies about its file is refused before anything is read."""

import io
import json
import os
import tracemalloc
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from example_counts import examples
from modelyard.formats.safetensors import MAX_HEADER, Tensor, read, write_tensors

SIZES = {"F64": 8, "F32": 4, "I64": 8, "U8": 1}


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(sorted(SIZES)))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    size = SIZES[dtype]
    for length in shape:
        size *= length
    return Tensor(dtype, shape, draw(st.binary(min_size=size, max_size=size)))


def file_of(header: object, data: bytes = b"") -> io.BytesIO:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return io.BytesIO(len(raw).to_bytes(8, "little") + raw + data)


def entry(begin: int, end: int, dtype: object = "U8", shape: object = None) -> dict[str, object]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


NAMES = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda name: name != "__metadata__")


@given(st.dictionaries(NAMES, tensors(), max_size=4))
def test_tensors_survive_the_way_there_and_back(values: dict[str, Tensor]) -> None:
    assert read(io.BytesIO(b"".join(write_tensors(values)))) == values


def test_the_reserved_name_of_the_format_is_not_a_tensor() -> None:
    with pytest.raises(ValueError, match="no tensor can have the name __metadata__"):
        b"".join(write_tensors({"a": Tensor("U8", (1,), b"x"), "__metadata__": Tensor("U8", (1,), b"x")}))


@given(st.dictionaries(st.text("ab"), tensors(), min_size=1, max_size=3), st.data())
def test_a_damaged_file_is_read_or_refused_but_never_crashes(values: dict[str, Tensor], data: st.DataObject) -> None:
    raw = bytearray(b"".join(write_tensors(values)))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read(io.BytesIO(bytes(raw)))
    except ValueError:
        return
    assert sum(len(tensor.data) for tensor in found.values()) <= len(raw)


def test_the_bytes_are_those_of_the_published_format() -> None:
    raw = b"".join(write_tensors({"w": Tensor("F64", (2,), array("d", [1.0, -2.0]).tobytes())}))
    length = int.from_bytes(raw[:8], "little")
    assert json.loads(raw[8 : 8 + length]) == {"w": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}}
    assert length % 8 == 0
    assert raw[8 + length :] == bytes.fromhex("000000000000f03f 00000000000000c0")


def test_a_file_is_read_from_where_it_stands_and_metadata_are_passed_over() -> None:
    file = file_of({"__metadata__": {"format": "pt"}, "b": entry(2, 3), "a": entry(0, 2)}, b"xyz")
    assert read(file) == {"a": Tensor("U8", (2,), b"xy"), "b": Tensor("U8", (1,), b"z")}
    shifted = io.BytesIO(b"before" + file.getvalue())
    shifted.seek(6)
    assert read(shifted)["b"].data == b"z"


@each_case(
    ("file", "says"),
    [
        (io.BytesIO(b""), "cannot hold a header"),
        (io.BytesIO(b"\1\0\0"), "cannot hold a header"),
        (io.BytesIO(b"\xff" * 8 + b"{}"), "cannot hold a header"),
        (io.BytesIO(b"\x10" + bytes(7) + b"{}"), "cannot hold a header"),
        (file_of(b"{"), "its header is not valid JSON"),
        (file_of(b"\x80\x04K\x01."), "its header is not UTF-8"),
        (file_of([]), "must be an object"),
        (file_of(b'{"a": %b, "a": %b}' % ((json.dumps(entry(0, 2)).encode(),) * 2), b"xy"), "same key twice"),
        (file_of(b"{} {}"), "something follows"),
        (file_of({"a": 5}), "not a tensor"),
        (file_of({"a": {}}), "not a tensor"),
        (file_of({"a": entry(0, 2, dtype="F17")}, b"xy"), "not a tensor"),
        (file_of({"a": entry(0, 2, dtype=["U8"])}, b"xy"), "not a tensor"),
        (file_of({"a": entry(0, 2, shape=[True, 2])}, b"xy"), "not a tensor"),
        (file_of({"a": entry(0, 2, shape=[-1, -2])}, b"xy"), "not a tensor"),
        (file_of({"a": entry(0, 2, shape=[2.0])}, b"xy"), "not a tensor"),
        (file_of({"a": entry(0, 2, shape=[3])}, b"xy"), "not a tensor"),
        (file_of({"a": entry(0, 2, shape="xy")}, b"xy"), "not a tensor"),
        (file_of({"a": entry(2, 0, shape=[2])}, b"xy"), "not a tensor"),
        (file_of({"a": entry(-2, 0)}, b"xy"), "not a tensor"),
        (file_of({"a": entry(0, 2**62)}, b"xy"), "describes"),
        (file_of({"a": entry(0, 2), "b": entry(1, 3)}, b"xyz"), "begin at 1, not at 2"),
        (file_of({"a": entry(0, 1), "b": entry(2, 3)}, b"xyz"), "begin at 2, not at 1"),
        (file_of({"a": entry(0, 2)}, b"xyz"), "2 bytes of data, but there are 3"),
        (file_of({"a": entry(0, 2)}, b"x"), "2 bytes of data, but there are 1"),
        (file_of({}, b"x"), "0 bytes of data, but there are 1"),
    ],
)
def test_a_header_that_lies_is_refused(file: io.BytesIO, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read(file)


class Padded(io.RawIOBase):
    """A file whose header is padded with spaces to a length, which are made when they are read."""

    def __init__(self, header: bytes, length: int, data: bytes) -> None:
        self._parts = [length.to_bytes(8, "little") + header, length - len(header), data]
        self._size, self._at = 8 + length + len(data), 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (self._size if whence == os.SEEK_END else 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        wanted = self._size - self._at if size is None or size < 0 else size
        head, spaces, data = self._parts
        first = head[self._at : self._at + wanted]
        start = max(self._at - len(head), 0)
        padding = b" " * max(min(wanted - len(first), spaces - start), 0)
        start = max(self._at + len(first) + len(padding) - len(head) - spaces, 0)
        found = first + padding + (data[start : start + wanted - len(first) - len(padding)])
        self._at += len(found)
        return found


@pytest.mark.slow
def test_a_header_as_long_as_the_format_allows_is_read_in_little_memory() -> None:
    header = json.dumps({"a": entry(0, 2)}).encode()
    tracemalloc.start()
    try:
        found = read(Padded(header, MAX_HEADER, b"xy"))  # type: ignore[arg-type]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == {"a": Tensor("U8", (2,), b"xy")}
    assert peak < 4 * 2**20
    with pytest.raises(ValueError, match="limit 100000000"):
        read(Padded(header, MAX_HEADER + 1, b"xy"))  # type: ignore[arg-type]


@examples(10)
@given(st.integers(0, 600), st.integers(0, 10**6))
def test_a_file_of_many_tensors_is_read_whatever_its_padding(count: int, padding: int) -> None:
    header = json.dumps({f"layer.{number}": entry(number, number + 1) for number in range(count)}).encode()
    found = read(Padded(header, len(header) + padding, b"x" * count))  # type: ignore[arg-type]
    assert found == {f"layer.{number}": Tensor("U8", (1,), b"x") for number in range(count)}


def test_a_tensor_whose_bytes_do_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="not a F64 tensor"):
        Tensor("F64", (2,), b"x")
    with pytest.raises(ValueError, match="not a I9 tensor"):
        Tensor("I9", (1,), b"x")

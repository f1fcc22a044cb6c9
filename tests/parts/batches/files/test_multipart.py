"""Forms are read as they were sent, whatever the pieces; what is not a form to its end is refused."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from example_counts import examples
from forms import BOUNDARY, form
from modelyard.errors import InvalidInput
from modelyard.http.message import boundary_of
from modelyard.parts.batches.files import multipart
from modelyard.parts.batches.files.multipart import read_form

NAMES = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=8)


def read(raw: bytes) -> list[tuple[str, str | None, bytes]]:
    return [(part.name, part.filename, b"".join(part.content)) for part in read_form(io.BytesIO(raw), BOUNDARY)]


@given(
    st.dictionaries(NAMES, NAMES, max_size=4),
    st.binary(max_size=40) | st.lists(st.sampled_from([b"\r\n", b"--", b"-", b"a-boundary", b"x"])).map(b"".join),
    st.integers(1, 40),
)
@examples(60)
def test_a_form_is_read_as_it_was_sent(fields: dict[str, str], content: bytes, size: int) -> None:
    fields.pop("file", None)
    if f"\r\n--{BOUNDARY}".encode() in b"\r\n" + content:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multipart, "CHUNK", size)
        found = read(form(fields, content))
    assert found == [
        *((name, None, value.encode()) for name, value in fields.items()),
        ("file", "train.jsonl", content),
    ]


def test_what_was_not_read_of_a_part_is_stepped_over() -> None:
    raw = form({"a": "1", "b": "2"}, b"x" * 1000)
    assert [part.name for part in read_form(io.BytesIO(b"preamble\r\n" + raw + b"epilogue"), BOUNDARY)] == [
        "a",
        "b",
        "file",
    ]


@each_case("size", range(0, len(form({"a": "1"}, b"xyz")) - 4, 3))
def test_a_form_that_was_cut_off_is_refused(size: int) -> None:
    with pytest.raises(InvalidInput, match="cut off"):
        read(form({"a": "1"}, b"xyz")[:size])


def headed(head: str) -> bytes:
    return f"--{BOUNDARY}\r\n{head}\r\n\r\nx\r\n--{BOUNDARY}--\r\n".encode()


@each_case(
    ("raw", "says"),
    [
        (b"hello", "cut off"),
        (f"--{BOUNDARY}x\r\n".encode(), "on the line of a boundary"),
        (headed("Content-Type: text/plain"), "without Content-Disposition"),
        (headed('Content-Disposition: attachment; name="a"'), "without Content-Disposition"),
        (headed("Content-Disposition: form-data"), "without Content-Disposition"),
        (headed('Content-Disposition: form-data; name="a"\r\nContent-Transfer-Encoding: base64'), "bytes as they are"),
        (headed(f'Content-Disposition: form-data; name="{"a" * 20_000}"'), "longer than 16384"),
        (form({str(number): "x" for number in range(70)}), "more than 64 parts"),
        (b'--a-boundary\r\nContent-Disposition: form-data; name="\xff"\r\n\r\nx\r\n--a-boundary--', "UTF-8"),
        (b"--a-boundary\r\n\r\nx\r\n--a-boundary--", "without Content-Disposition"),
    ],
)
def test_what_is_no_form_is_refused_in_words(raw: bytes, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        read(raw)


def test_a_value_is_bounded_and_is_text() -> None:
    for value, says in ((b"x" * 70_000, "longer than"), (b"\xff", "UTF-8")):
        part = next(read_form(io.BytesIO(form({}, value)), BOUNDARY))
        with pytest.raises(InvalidInput, match=says):
            part.value()


@each_case(
    ("header", "boundary"),
    [
        ("multipart/form-data; boundary=abc", "abc"),
        ('Multipart/Form-Data; charset=utf-8; boundary="a b"', "a b"),
        ("multipart/form-data", None),
        ("multipart/form-data; boundary=", None),
        (f"multipart/form-data; boundary={'a' * 71}", None),
        ("multipart/mixed; boundary=abc", None),
        ("application/json", None),
        (None, None),
    ],
)
def test_the_boundary_is_that_of_the_header(header: str | None, boundary: str | None) -> None:
    assert boundary_of(header) == boundary


@each_case(
    ("given_", "name"),
    [('filename="a%22b"', 'a"b'), (r'filename="a\"b"', 'a"b'), ("filename*=utf-8''%C3%A4.txt", "ä.txt"), ("x=1", None)],
)
def test_a_files_name_is_read_as_clients_write_it(given_: str, name: str | None) -> None:
    assert read(headed(f'Content-Disposition: form-data; name="file"; {given_}')) == [("file", name, b"x")]

"""Server-sent events: the same data however the bytes are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.errors import InvalidInput
from modelyard.parts.upstream.events import EventReader

line_ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
values = st.binary(max_size=20).map(lambda raw: raw.replace(b"\n", b"").replace(b"\r", b""))


@st.composite
def written(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """Bytes of a stream, and the data of its events."""
    raw, events = b"", []
    for lines in draw(st.lists(st.lists(values, min_size=1, max_size=3), max_size=6)):
        end = draw(line_ends)
        raw += draw(st.sampled_from([b"", b": a comment" + end, b"event: message" + end, b": alone" + end + end]))
        raw += b"".join(b"data: " + line + end for line in lines) + end
        events.append(b"\n".join(lines))
    return raw, events


@given(written(), st.lists(st.integers(0, 200), max_size=12))
def test_any_cut_of_the_bytes_gives_the_events_that_were_written(
    stream: tuple[bytes, list[bytes]], cuts: list[int]
) -> None:
    raw, events = stream
    places = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    reader = EventReader()
    found = [event for begin, end in pairwise(places) for event in reader.take(raw[begin:end])]
    assert found == events
    one_by_one = EventReader()
    assert [event for byte in raw for event in one_by_one.take(bytes([byte]))] == events


def test_a_space_after_the_colon_may_be_missing_and_only_one_is_removed() -> None:
    assert EventReader().take(b"data:a\n\ndata:  b\n\n") == [b"a", b" b"]


def test_an_event_without_its_end_is_none() -> None:
    assert EventReader().take(b"data: [DONE]\n") == []


@pytest.mark.parametrize("piece", [b"x", b": nothing\n", b"data: x\n"])
def test_an_event_that_never_ends_is_refused(piece: bytes) -> None:
    reader = EventReader(most=1000)
    with pytest.raises(InvalidInput, match="more than 1000 bytes"):
        any(reader.take(piece) for _ in range(2000))


def test_comments_between_events_add_up_to_nothing() -> None:
    reader = EventReader(most=100)
    for _ in range(1000):
        assert reader.take(b": still at it\n\n") == []
    assert reader.take(b"data: here\n\n") == [b"here"]

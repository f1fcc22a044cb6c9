"""Every message of a request to score rows refuses a field that it does not know, at its place."""

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.errors import InvalidInput
from modelyard.parts.tinker.formats.forward_backward import IGNORED, read_rows
from modelyard.parts.tinker.formats.wire import FIXED32, FIXED64, LENGTH, VARINT, packed, within
from unknown_members import has_reasons

Place = tuple[str | int, ...]


@attrs.frozen
class Message:
    """A message by hand: where it stands, and its fields, each with its number."""

    place: Place
    fields: Sequence[tuple[int, Any]]


def number_of(value: int) -> bytes:
    """Write a varint."""
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + number_of(rest) if rest else bytes([low])


def field(number: int, wire: int, payload: bytes) -> bytes:
    return number_of(number << 3 | wire) + payload


def written(message: Message, more: Any = None) -> bytes:
    """Write a message; the one at the place of `more` gets its field besides."""
    raw = b""
    for number, value in message.fields:
        if isinstance(value, Message):
            value = written(value, more)
        raw += within(number, value) if isinstance(value, bytes | str) else value(number)
    return raw + more[1] if more is not None and more[0] is message else raw


def integer(value: int) -> Any:
    return lambda number: field(number, VARINT, number_of(value))


def double(raw: bytes) -> Any:
    return lambda number: field(number, FIXED64, raw)


ROW: Place = ("data", 0)
INPUTS: Place = (*ROW, "loss_fn_inputs")
TARGETS: Place = (*INPUTS, "target_tokens")
WEIGHTS: Place = (*INPUTS, "weights")
HALF = b"\x00\x00\x00\x00\x00\x00\xe0\x3f"


def span(kind: int, place: Place) -> Message:
    return Message(place, [(kind, Message(place, [(1, "s"), (2, integer(1)), (3, integer(2))]))])


SPARSE = Message(WEIGHTS, [(1, packed("f", [1.0, 0.5])), (2, packed("q", [0, 1, 2])), (3, packed("q", [0, 0]))])
FULL = Message(
    (),
    [
        (1, "run"),
        (2, integer(1)),
        (
            3,
            Message(
                ROW,
                [
                    (1, Message((*ROW, "model_input", "chunks", 0), [
                        (1, Message((*ROW, "model_input", "chunks", 0), [(1, packed("i", [5]))]))
                    ])),
                    (1, Message((*ROW, "model_input", "chunks", 1), [
                        (1, Message((*ROW, "model_input", "chunks", 1), [(1, packed("i", [6]))]))
                    ])),
                    (2, Message(INPUTS, [(1, "target_tokens"), (2, Message(TARGETS, [
                        (1, packed("q", [6, 7])), (3, integer(2)), (4, integer(2))
                    ]))])),
                    (2, Message(INPUTS, [(1, "weights"), (2, Message(WEIGHTS, [
                        (2, SPARSE), (3, integer(1)), (4, b"\x02\x01")
                    ]))])),
                    (3, span(1, (*ROW, "model_input_spans", 0))),
                    (4, span(1, (*ROW, "loss_fn_input_spans", 0))),
                    (4, span(2, (*ROW, "loss_fn_input_spans", 1))),
                ],
            ),
        ),
        (4, "ppo"),
        (5, Message(("loss_fn_config",), [(1, "beta"), (2, double(HALF))])),
        (6, integer(1)),
        (7, Message(("loss_fn_config",), [(1, "beta"), (2, Message(("loss_fn_config", "beta"), [(1, double(HALF))]))])),
    ],
)  # fmt: skip


def messages(message: Message) -> Iterator[Message]:
    """Yield a message, and all that are in it."""
    yield message
    for _, value in message.fields:
        if isinstance(value, Message):
            yield from messages(value)


ALL = [*messages(FULL)]
PAYLOADS = {VARINT: b"\x01", FIXED64: bytes(8), LENGTH: b"\x01a", FIXED32: bytes(4)}
TAKES = {0: "an integer", 1: "a number of 64 bits", 2: "bytes", 5: "a number of 32 bits"}


def refusal(raw: bytes) -> tuple[Place, str]:
    with pytest.raises(InvalidInput) as caught:
        read_rows(raw)
    (problem,) = caught.value.problems
    return problem.loc, problem.msg


def test_the_full_request_is_read() -> None:
    found = read_rows(written(FULL))
    assert (found.rows[0].inputs, list(found.rows[0].targets)) == ([5, 6], [6, 7])
    assert (list(found.columns[0]["weights"]), found.loss, found.settings) == ([1.0, 0.5], "ppo", {"beta": 0.5})
    assert len(ALL) == 20


@pytest.mark.parametrize("message", ALL, ids=lambda one: ".".join(map(str, one.place)) or "request")
@given(number=st.integers(8, 2**29 - 1) | st.integers(8, 40), wire=st.sampled_from([*PAYLOADS]))
def test_a_field_that_is_not_known_is_refused_at_its_place(message: Message, number: int, wire: int) -> None:
    raw = written(FULL, (message, field(number, wire, PAYLOADS[wire])))
    assert refusal(raw) == (("body", *message.place), f"field {number} is not known")


@each_case("message", ALL, ids=lambda one: ".".join(map(str, one.place)) or "request")
def test_a_field_of_another_type_is_refused_at_its_place(message: Message) -> None:
    """The head alone, which tells whose turn it is, is read before."""
    for number, value in message.fields:
        own = LENGTH if not callable(value) else value(number)[0] & 7
        for wire in PAYLOADS.keys() - {own}:
            if number == 4 and {own, wire} == {VARINT, LENGTH} and message.place in (TARGETS, WEIGHTS):
                continue  # a shape may be packed or not
            loc, msg = refusal(written(FULL, (message, field(number, wire, PAYLOADS[wire]))))
            assert loc[: len(message.place) + 1] == ("body", *message.place), (number, wire)
            assert f"field {number} is {TAKES[wire]}" in msg or message is FULL, (number, wire, msg)


def test_settings_that_older_clients_send_count_and_may_not_contradict_the_newer_ones() -> None:
    kept = [one for one in FULL.fields if one[0] != 7]
    assert read_rows(written(Message((), kept))).settings == {"beta": 0.5}
    other = Message(("loss_fn_config",), [(1, "other"), (2, double(HALF))])
    assert refusal(written(Message((), [*FULL.fields, (5, other)])))[0] == ("body", "loss_fn_config", "other")


def test_what_changes_nothing_is_listed_with_a_reason() -> None:
    has_reasons(IGNORED, "model_input_spans", "loss_fn_input_spans")

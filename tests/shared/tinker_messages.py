"""Messages of Tinker's client, written by hand: what its protobuf classes would send."""

from collections.abc import Mapping, Sequence

from modelyard.parts.tinker.formats.wire import named_numbers, packed, varint, within

Row = tuple[Sequence[int], Sequence[int], Sequence[float]]
"""The tokens of a row, its targets, and their weights."""


def tensor(typecode: str, values: Sequence[float], shape: Sequence[int] | None = None) -> bytes:
    """A dense tensor of one dimension, or of a shape."""
    dtype = {"f": 1, "q": 2, "i": 3}[typecode]
    sizes = b"".join(varint(4, size) or b"\x20\x00" for size in (shape or [len(values)]))
    return within(1, packed(typecode, values)) + varint(3, dtype) + sizes


def datum(inputs: Sequence[int], tensors: Mapping[str, bytes]) -> bytes:
    """A row, whose loss reads these tensors."""
    chunk = within(1, within(1, within(1, packed("i", inputs))))
    named = [within(2, within(1, name) + within(2, value)) for name, value in tensors.items()]
    return b"".join([chunk, *named])


def request(
    run_id: str,
    number: int,
    data: Sequence[bytes],
    loss: str = "cross_entropy",
    config: Mapping[str, float] | None = None,
    forward_only: bool = False,
) -> bytes:
    """A request to score rows, or to learn from them."""
    settings = [
        within(7, within(1, name) + within(2, b"\x09" + named_numbers(1, {"": value})[-8:]))
        for name, value in (config or {}).items()
    ]
    head = within(1, run_id) + varint(2, number)
    rows = [within(3, one) for one in data]
    return b"".join([head, *rows, within(4, loss), *settings, varint(6, forward_only)])


def forward_backward(run_id: str, number: int, rows: Sequence[Row], forward_only: bool = False) -> bytes:
    """A request with the loss cross_entropy."""
    data = [
        datum(inputs, {"target_tokens": tensor("q", goals), "weights": tensor("f", weights)})
        for inputs, goals, weights in rows
    ]
    return request(run_id, number, data, forward_only=forward_only)

"""The request to score rows, or to learn from them, and its answer: protobuf both.

The messages and their numbers are from tinker 0.38 (`tinker_public_pb2`). A row is a datum: the tokens that the model
reads, the target tokens, which get log-probabilities, and what the loss reads besides.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from math import prod
from typing import Any

import attrs

from modelyard.domain.training_run import Rows, TargetRow
from modelyard.parts.tinker.formats.wire import fields_of, numbers, numbers_in, packed, refuse, text_of, varint, within

MAX_ROWS = 4096
"""Rows of one request; the client sends 1024 at most."""

MAX_NUMBERS = 2**24
"""Numbers that a request may have, the zeros of sparse tensors included."""

TARGETS = "target_tokens"
_CHUNKS = {1: "text", 2: "an image", 3: "audio"}
_TYPES = {1: "f", 2: "q", 3: "i"}
_FLOAT32 = 1


@attrs.frozen
class ScoredRows:
    """A request. `columns` has what the loss reads of each row besides its tokens, one number for each target."""

    run_id: str
    number: int
    rows: Sequence[TargetRow]
    columns: Sequence[Mapping[str, Sequence[float]]]
    loss: str
    settings: Mapping[str, float]
    forward_only: bool

    @property
    def tokens(self) -> int:
        """How many tokens the model reads."""
        return sum(len(row.inputs) for row in self.rows)


@attrs.frozen
class RequestHead:
    """Which run a request is for, and the number of its command there."""

    run_id: str
    number: int
    forward_only: bool


def read_head(raw: bytes) -> RequestHead:
    """Read which command a request is, and nothing else. Raises `InvalidInput`."""
    found: dict[int, Any] = {}
    for number, _, value in fields_of(memoryview(raw)):
        if number in (1, 2, 6):
            found[number] = value
    sequence = found.get(2, 0)
    if type(sequence) is not int or not 0 < sequence < 2**31:
        refuse("must be a number from 1", "seq_id")
    return RequestHead(text_of(found.get(1), "model_id"), sequence, bool(found.get(6, 0)))


def read_rows(raw: bytes) -> ScoredRows:
    head, loss, settings = read_head(raw), "", dict[str, float]()
    rows, columns = list[TargetRow](), list[Mapping[str, Sequence[float]]]()
    budget = _Budget(MAX_NUMBERS)
    for number, _, value in fields_of(memoryview(raw)):
        if number == 3:
            if len(rows) >= MAX_ROWS:
                refuse(f"has more than {MAX_ROWS} items; send fewer at once", "data")
            row, given = _row(value, budget, ("data", len(rows)))
            rows.append(row)
            columns.append(given)
        elif number == 4:
            loss = text_of(value, "loss_fn")
        elif number == 7:
            name, setting = _setting(value)
            settings[name] = setting
    if not rows:
        refuse("is empty; send at least one datum", "data")
    return ScoredRows(head.run_id, head.number, rows, columns, loss, settings, head.forward_only)


@attrs.define
class _Budget:
    """How many more numbers a request may have."""

    left: int

    def take(self, numbers: int, loc: tuple[str | int, ...]) -> None:
        self.left -= numbers
        if self.left < 0:
            refuse(f"makes the request one of more than {MAX_NUMBERS} numbers; send less at once", *loc)


def _row(raw: object, budget: _Budget, loc: tuple[str | int, ...]) -> tuple[TargetRow, Mapping[str, Sequence[float]]]:
    inputs, tensors = list[int](), dict[str, tuple[Sequence[float], tuple[int, ...]]]()
    for number, _, value in fields_of(_message(raw, loc), *loc):
        if number == 1:
            inputs += _chunk(value, (*loc, "model_input"))
        elif number == 2:
            name, tensor = _named_tensor(value, budget, (*loc, "loss_fn_inputs"))
            tensors[name] = tensor
    budget.take(len(inputs), loc)
    if TARGETS not in tensors:
        refuse("is missing", *loc, "loss_fn_inputs", TARGETS)
    targets, shape = tensors.pop(TARGETS)
    if not all(isinstance(token, int) for token in targets[:1]):
        refuse("must be integers", *loc, "loss_fn_inputs", TARGETS)
    k = shape[1] if len(shape) == 2 else 1
    if len(shape) > 2 or shape[0] != len(inputs) or k < 1:
        msg = f"must be {len(inputs)} token ids, or as many rows of them: one for each token of model_input"
        refuse(msg, *loc, "loss_fn_inputs", TARGETS)
    columns = {name: values for name, (values, _) in tensors.items()}
    return TargetRow(inputs, targets, k), columns  # type: ignore[arg-type]


def _message(raw: object, loc: tuple[str | int, ...]) -> memoryview:
    if not isinstance(raw, memoryview):
        refuse("is not a message", *loc)
    return raw


def _chunk(raw: object, loc: tuple[str | int, ...]) -> Sequence[int]:
    found: Sequence[int] = ()
    for number, _, value in fields_of(_message(raw, loc), *loc):
        if number != 1:
            refuse(f"has {_CHUNKS.get(number, 'an unknown chunk')}, which is not supported: send tokens", *loc)
        for inner, _, tokens in fields_of(_message(value, loc), *loc):
            if inner == 1:
                found = numbers_in("i", tokens, *loc)
    return found


def _named_tensor(
    raw: object, budget: _Budget, loc: tuple[str | int, ...]
) -> tuple[str, tuple[Sequence[float], tuple[int, ...]]]:
    name, tensor = "", memoryview(b"")
    for number, _, value in fields_of(_message(raw, loc), *loc):
        if number == 1:
            name = text_of(value, *loc)
        elif number == 2:
            tensor = _message(value, loc)
    return name, _tensor(tensor, budget, (*loc, name))


def _tensor(raw: memoryview, budget: _Budget, loc: tuple[str | int, ...]) -> tuple[Sequence[float], tuple[int, ...]]:
    dense: object = None
    sparse: memoryview | None = None
    type_, shape = 0, list[int]()
    for number, _, value in fields_of(raw, *loc):
        if number == 1:
            dense = value
        elif number == 2:
            sparse = _message(value, loc)
        elif number == 3:
            type_ = value
        elif number == 4:
            shape += _integers(value, loc)
    if type_ not in _TYPES:
        refuse("must be of float32 or int64", *loc)
    if sparse is not None:
        return _written_out(sparse, _TYPES[type_], shape, budget, loc)
    values = numbers_in(_TYPES[type_], memoryview(b"") if dense is None else dense, *loc)
    budget.take(len(values), loc)
    if prod(shape) != len(values) and shape:
        refuse(f"has {len(values)} numbers, which is not its shape {shape}", *loc)
    return values, tuple(shape) or (len(values),)


def _integers(value: object, loc: tuple[str | int, ...]) -> list[int]:
    """Read a repeated integer, packed or not."""
    if isinstance(value, int):
        return [value]
    from_packed = []
    raw = _message(value, loc)
    number = shift = 0
    for byte in raw:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            from_packed.append(number)
            number = shift = 0
        elif shift > 63:
            refuse("is not a whole protobuf message", *loc)
    return from_packed


def _written_out(
    raw: memoryview, typecode: str, shape: Sequence[int], budget: _Budget, loc: tuple[str | int, ...]
) -> tuple[Sequence[float], tuple[int, ...]]:
    """Write out compressed sparse rows: what they leave out is 0."""
    parts: dict[int, object] = {1: memoryview(b""), 2: memoryview(b""), 3: memoryview(b"")}
    parts |= {number: value for number, _, value in fields_of(raw, *loc)}
    values = numbers_in(typecode, parts[1], *loc)
    starts, columns = numbers_in("q", parts[2], *loc), numbers_in("q", parts[3], *loc)
    if len(shape) != 2 or min(shape) < 0 or len(starts) != shape[0] + 1 or len(columns) != len(values):
        refuse("is not a sparse matrix of its shape", *loc)
    width = shape[1]
    budget.take(shape[0] * width, loc)
    whole: list[float] = [0 if typecode != "f" else 0.0] * (shape[0] * width)
    for row, (begin, end) in enumerate(pairwise(starts)):
        if not 0 <= begin <= end <= len(values):
            refuse("is not a sparse matrix of its shape", *loc)
        for at in range(begin, end):
            if not 0 <= columns[at] < width:
                refuse("is not a sparse matrix of its shape", *loc)
            whole[row * width + columns[at]] = values[at]
    return whole, (shape[0], width)


def _setting(raw: object) -> tuple[str, float]:
    name, number = "", 0.0
    for field, _, value in fields_of(_message(raw, ("loss_fn_config",)), "loss_fn_config"):
        if field == 1:
            name = text_of(value, "loss_fn_config")
        elif field == 2:
            for inner, _, one in fields_of(_message(value, ("loss_fn_config", name)), "loss_fn_config", name):
                if inner == 2:
                    refuse("is a text; settings of losses are numbers here", "loss_fn_config", name)
                if not isinstance(one, float):
                    refuse("must be a number", "loss_fn_config", name)
                number = one
    return name, number


# ---- the answer --------------------------------------------------------------------------------------------------


def output_message(rows: Sequence[TargetRow], scores: Rows, metrics: Mapping[str, float]) -> bytes:
    """Write the answer: the log-probabilities of each row's targets, and metrics with how they add up over calls."""
    records = []
    scored = list(zip(rows, scores, strict=True))
    for k, group in groupby(scored, key=lambda one: one[0].k):
        of_group = [row_scores for _, row_scores in group]
        records.append(within(2, _record(k, of_group)))
    return b"".join([within(1, "ArrayRecord"), *records, numbers(3, metrics)])


def _record(k: int, scores: Rows) -> bytes:
    offsets, size = [0], 0
    for row in scores:
        size += 4 * len(row)
        offsets.append(size)
    data = b"".join(packed("f", row) for row in scores)
    trailing = b"" if k == 1 else within(4, bytes(varint(1, k)[1:]))
    tensor = within(1, data) + within(2, packed("q", offsets)) + varint(3, _FLOAT32) + trailing
    return within(2, within(1, "logprobs") + within(2, tensor)) + varint(3, len(scores))

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
from modelyard.parts.tinker.formats.wire import (
    FIXED64,
    LENGTH,
    VARINT,
    Known,
    Loc,
    fields_of,
    named_numbers,
    numbers_in,
    packed,
    refuse,
    text_of,
    varint,
    within,
)

MAX_ROWS = 4096
"""Rows of one request; the client sends 1024 at most."""

MAX_NUMBERS = 2**24
"""Numbers that a request may have, the zeros of sparse tensors included."""

TARGETS = "target_tokens"

IGNORED: Mapping[str, str] = dict.fromkeys(
    ("model_input_spans", "loss_fn_input_spans"),
    "no loss that is offered reads where tokens come from",
)
"""Members of a row that change nothing, with the reason."""

# The fields of each message
_REQUEST: Known = dict.fromkeys((1, 3, 4, 5, 7), (LENGTH,)) | {2: (VARINT,), 6: (VARINT,)}
_HEAD: Known = {number: _REQUEST[number] for number in (1, 2, 6)}
_ROW: Known = dict.fromkeys((1, 2, 3, 4), (LENGTH,))
_SPAN: Known = dict.fromkeys((1, 2), (LENGTH,))
_SPAN_TOKENS: Known = {1: (LENGTH,), 2: (VARINT,), 3: (VARINT,)}
_CHUNK: Known = dict.fromkeys((1, 2, 3), (LENGTH,))
_TEXT_CHUNK: Known = {1: (LENGTH,)}
_TENSOR: Known = {1: (LENGTH,), 2: (LENGTH,), 3: (VARINT,), 4: (VARINT, LENGTH)}
_SPARSE: Known = dict.fromkeys((1, 2, 3), (LENGTH,))
_NAMED: Known = dict.fromkeys((1, 2), (LENGTH,))
_NAMED_NUMBER: Known = {1: (LENGTH,), 2: (FIXED64,)}
_SETTING: Known = {1: (FIXED64,), 2: (LENGTH,)}

_SPANS_OF_ROW = dict(zip((3, 4), IGNORED, strict=True))
_UNSUPPORTED_CHUNKS = {2: "an image", 3: "audio"}
_TYPECODES = {1: "f", 2: "q", 3: "i"}
_FLOAT32 = 1
_NOTHING = memoryview(b"")

Tensor = tuple[Sequence[float], tuple[int, ...]]
"""Numbers, and their shape."""


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
    found = dict(fields_of(memoryview(raw), _HEAD, exactly=False))
    sequence = found.get(2, 0)
    if not 0 < sequence < 2**31:
        refuse("must be a number from 1", "seq_id")
    return RequestHead(text_of(found.get(1, _NOTHING), "model_id"), sequence, bool(found.get(6, 0)))


def read_rows(raw: bytes) -> ScoredRows:
    head, loss = read_head(raw), ""
    settings, legacy = dict[str, float](), dict[str, float]()
    rows, columns = list[TargetRow](), list[Mapping[str, Sequence[float]]]()
    budget = _Budget(MAX_NUMBERS)
    for number, value in fields_of(memoryview(raw), _REQUEST):
        if number == 3:
            if len(rows) >= MAX_ROWS:
                refuse(f"has more than {MAX_ROWS} items; send fewer at once", "data")
            row, given = _row(value, budget, ("data", len(rows)))
            rows.append(row)
            columns.append(given)
        elif number == 4:
            loss = text_of(value, "loss_fn")
        elif number == 5:
            legacy |= _legacy_setting(value)
        elif number == 7:
            settings |= _setting(value)
    if not rows:
        refuse("is empty; send at least one datum", "data")
    chosen = _agreed(settings, legacy)
    return ScoredRows(head.run_id, head.number, rows, columns, loss, chosen, head.forward_only)


@attrs.define
class _Budget:
    """How many more numbers a request may have."""

    left: int

    def take(self, numbers: int, loc: Loc) -> None:
        self.left -= numbers
        if self.left < 0:
            refuse(f"makes the request one of more than {MAX_NUMBERS} numbers; send less at once", *loc)


# ---- rows --------------------------------------------------------------------------------------------------------


def _row(raw: memoryview, budget: _Budget, loc: Loc) -> tuple[TargetRow, Mapping[str, Sequence[float]]]:
    inputs, tensors = list[int](), dict[str, Tensor]()
    counts = dict.fromkeys(_ROW, 0)
    for number, value in fields_of(raw, _ROW, *loc):
        if number == 1:
            inputs += _chunk(value, (*loc, "model_input", "chunks", counts[number]))
        elif number == 2:
            name, tensor = _named_tensor(value, budget, (*loc, "loss_fn_inputs"))
            tensors[name] = tensor
        else:
            _check_span(value, (*loc, _SPANS_OF_ROW[number], counts[number]))
        counts[number] += 1
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


def _chunk(raw: memoryview, loc: Loc) -> Sequence[int]:
    found: Sequence[int] = ()
    for number, value in fields_of(raw, _CHUNK, *loc):
        if number in _UNSUPPORTED_CHUNKS:
            refuse(f"has {_UNSUPPORTED_CHUNKS[number]}, which is not supported: send tokens", *loc)
        for _, tokens in fields_of(value, _TEXT_CHUNK, *loc):
            found = numbers_in("i", tokens, *loc)
    return found


def _check_span(raw: memoryview, loc: Loc) -> None:
    """Refuse what is not known in a span, which changes nothing."""
    for _, span in fields_of(raw, _SPAN, *loc):
        for _ in fields_of(span, _SPAN_TOKENS, *loc):
            pass


# ---- tensors -----------------------------------------------------------------------------------------------------


def _named_tensor(raw: memoryview, budget: _Budget, loc: Loc) -> tuple[str, Tensor]:
    found = dict(fields_of(raw, _NAMED, *loc))
    name = text_of(found.get(1, _NOTHING), *loc)
    return name, _tensor(found.get(2, _NOTHING), budget, (*loc, name))


def _tensor(raw: memoryview, budget: _Budget, loc: Loc) -> Tensor:
    found, shape = dict[int, Any](), list[int]()
    for number, value in fields_of(raw, _TENSOR, *loc):
        if number == 4:
            shape += _integers(value, loc)
        else:
            found[number] = value
    typecode = _TYPECODES.get(found.get(3, 0))
    if typecode is None:
        refuse("must be of float32 or int64", *loc)
    if 2 in found:
        return _dense(found[2], typecode, shape, budget, loc)
    values = numbers_in(typecode, found.get(1, _NOTHING), *loc)
    budget.take(len(values), loc)
    if prod(shape) != len(values) and shape:
        refuse(f"has {len(values)} numbers, which is not its shape {shape}", *loc)
    return values, tuple(shape) or (len(values),)


def _integers(value: int | memoryview, loc: Loc) -> list[int]:
    """Read a repeated integer, packed or not."""
    if isinstance(value, int):
        return [value]
    from_packed = []
    number = shift = 0
    for byte in value:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            from_packed.append(number)
            number = shift = 0
        elif shift > 63:
            refuse("is not a whole protobuf message", *loc)
    return from_packed


def _dense(raw: memoryview, typecode: str, shape: Sequence[int], budget: _Budget, loc: Loc) -> Tensor:
    """Write out compressed sparse rows: what they leave out is 0."""
    parts = dict.fromkeys(_SPARSE, _NOTHING) | dict(fields_of(raw, _SPARSE, *loc))
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


# ---- settings ----------------------------------------------------------------------------------------------------


def _setting(raw: memoryview) -> Mapping[str, float]:
    found = dict(fields_of(raw, _NAMED, "loss_fn_config"))
    name = text_of(found.get(1, _NOTHING), "loss_fn_config")
    value = dict(fields_of(found.get(2, _NOTHING), _SETTING, "loss_fn_config", name))
    if 2 in value:
        refuse("is a text; settings of losses are numbers here", "loss_fn_config", name)
    return {name: value.get(1, 0.0)}


def _legacy_setting(raw: memoryview) -> Mapping[str, float]:
    found = dict(fields_of(raw, _NAMED_NUMBER, "loss_fn_config"))
    return {text_of(found.get(1, _NOTHING), "loss_fn_config"): found.get(2, 0.0)}


def _agreed(settings: Mapping[str, float], legacy: Mapping[str, float]) -> Mapping[str, float]:
    """Return the settings of a loss. Newer clients send them in both forms, older ones in that of `legacy` alone."""
    if not settings:
        return legacy
    for name, value in legacy.items():
        if settings.get(name) != value:
            refuse("is not what loss_fn_config_v2 has", "loss_fn_config", name)
    return settings


# ---- the answer --------------------------------------------------------------------------------------------------


def output_message(rows: Sequence[TargetRow], scores: Rows, metrics: Mapping[str, float]) -> bytes:
    """Write the answer: the log-probabilities of each row's targets, and metrics with how they add up over calls."""
    records = []
    scored = list(zip(rows, scores, strict=True))
    for k, group in groupby(scored, key=lambda one: one[0].k):
        of_group = [row_scores for _, row_scores in group]
        records.append(within(2, _record(k, of_group)))
    return b"".join([within(1, "ArrayRecord"), *records, named_numbers(3, metrics)])


def _record(k: int, scores: Rows) -> bytes:
    offsets, size = [0], 0
    for row in scores:
        size += 4 * len(row)
        offsets.append(size)
    data = b"".join(packed("f", row) for row in scores)
    trailing = b"" if k == 1 else within(4, bytes(varint(1, k)[1:]))
    tensor = within(1, data) + within(2, packed("q", offsets)) + varint(3, _FLOAT32) + trailing
    return within(2, within(1, "logprobs") + within(2, tensor)) + varint(3, len(scores))

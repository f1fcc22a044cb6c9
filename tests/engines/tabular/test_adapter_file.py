"""The tabular model's adapter as a file."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.engines.tabular.adapter_file import read_adapter, write_adapter
from modelyard.engines.tabular.model import Adapter
from modelyard.formats.safetensors import Tensor, write_tensors

rows = st.dictionaries(
    st.integers(0, 2**48 - 1),
    st.dictionaries(st.integers(0, 511), st.floats(-100, 100), min_size=1, max_size=4),
    max_size=6,
)


@given(rows)
def test_what_is_written_is_read_and_equal_adapters_are_equal_bytes(weights: dict[int, dict[int, float]]) -> None:
    data = b"".join(write_adapter(Adapter(weights)))
    assert read_adapter(io.BytesIO(data)) == Adapter(weights)
    backwards = {feature: dict(reversed(row.items())) for feature, row in reversed(weights.items())}
    assert b"".join(write_adapter(Adapter(backwards))) == data


COLUMN = Tensor("I64", (1,), bytes(8))
WEIGHT = Tensor("F64", (1,), bytes(8))


@each_case(
    "tensors",
    [
        {},
        {"parameters": COLUMN},
        {"parameters": COLUMN, "weights": COLUMN},
        {"parameters": WEIGHT, "weights": WEIGHT},
        {"parameters": Tensor("I64", (1, 1), bytes(8)), "weights": WEIGHT},
        {"parameters": Tensor("I64", (2,), bytes(16)), "weights": Tensor("F64", (2,), bytes(16))},
        {"parameters": COLUMN, "weights": Tensor("F64", (1,), b"\xff" * 8)},
        {"parameters": Tensor("I64", (1,), b"\xff" * 8), "weights": WEIGHT},
    ],
)
def test_anything_else_is_refused(tensors: dict[str, Tensor]) -> None:
    with pytest.raises(ValueError, match=r"column|adapter"):
        read_adapter(io.BytesIO(b"".join(write_tensors(tensors))))

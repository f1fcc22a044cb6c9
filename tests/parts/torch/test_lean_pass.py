"""Tokens that are read by operations of our own come out as the modules give them, but for the last digits."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from families import GROUPED, SERVED, WINDOWS, build_family
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from local_models import SHAPE, adapter_weights
from torch.autograd.profiler import profile

from modelyard.parts.torch.kv_cache import RowCache
from modelyard.parts.torch.lean_pass import KINDS
from modelyard.parts.torch.lora import AdapterBank
from modelyard.parts.torch.mapped_weights import use_huge_pages
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.records import WeightFormat

LEAN = [
    *((family, options) for family, options in SERVED if family in KINDS),
    ("llama", {"num_key_value_heads": 2, "head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    ("llama", {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2, "hidden_act": "gelu"}),
    ("llama", {**GROUPED, "tie_word_embeddings": True}),
    ("qwen3", {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "attention_bias": True}),
]
MOST, ROWS = 24, 3
PARTS = st.lists(st.lists(st.integers(1, 6), min_size=ROWS, max_size=ROWS), min_size=1, max_size=4)
"""Passes, each with as many tokens of each row: of one row more than of another it is padded, as serving does."""


@pytest.fixture
def made(folders: Callable[..., Path], tmp_path: Path) -> Callable[[str, dict[str, Any]], Path]:
    """A folder of a tiny model of a family; its norms and biases differ, too."""

    def folder(family: str, options: dict[str, Any]) -> Path:
        place, model = build_family(folders("nano"), tmp_path, family, options)
        with torch.no_grad():
            for weights in model.parameters():
                if weights.ndim == 1:
                    weights.add_(torch.rand_like(weights) * 0.5)
        model.save_pretrained(place)
        return place

    return folder


def states(network: Network, passes: list[list[int]], bank: AdapterBank, slots: list[int]) -> list[torch.Tensor]:
    """The states of every token of rows that are read in these passes."""
    cache = RowCache(network.config, ROWS, MOST + 8, network.dtype, network.device)
    draw, starts, found = torch.Generator().manual_seed(0), [0] * ROWS, list[torch.Tensor]()
    with torch.inference_mode():
        for widths in passes:
            width = max(widths)
            ids = torch.randint(0, network.vocabulary, (ROWS, width), generator=draw)
            positions, mask = cache.begin(0, starts, width)
            bank.select(slots)
            hidden = network.hidden(ids, positions, mask, cache)
            found += [hidden[row, :count] for row, count in enumerate(widths)]
            starts = [start + count for start, count in zip(starts, widths, strict=True)]
    return found


def difference(found: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    """The greatest, as a part of the greatest number."""
    one, other = torch.cat(found), torch.cat(others)
    return float((one - other).abs().max() / other.abs().max())


def by_modules(network: Network, *wanted: Any) -> list[torch.Tensor]:
    lean, network.lean = network.lean, None
    try:
        return states(network, *wanted)
    finally:
        network.lean = lean


@pytest.mark.usefixtures("packs_all")
@pytest.mark.parametrize(("family", "options"), LEAN)
@pytest.mark.parametrize("laid_out", [False, True])
def test_states_are_those_of_the_modules(
    made: Callable[..., Path], family: str, options: dict[str, Any], laid_out: bool
) -> None:
    folder = made(family, options)
    network = Network(folder)
    if laid_out:
        network.lay_out()
    bank = AdapterBank(network.model, 3, SHAPE.rank)
    for slot in (1, 2):
        bank.load(slot, SHAPE, adapter_weights(folder, SHAPE, seed=slot))
    assert network.lean is not None

    @settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(PARTS, st.sampled_from([[0, 0, 0], [1, 1, 1], [0, 2, 1]]))
    def check(passes: list[list[int]], slots: list[int]) -> None:
        assert difference(states(network, passes, bank, slots), by_modules(network, passes, bank, slots)) < 1e-5

    check()


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_context_of_few_tokens_is_read_so_too(made: Callable[..., Path], length: int) -> None:
    network = Network(made("llama", {**GROUPED, "max_position_embeddings": length}))
    assert network.lean is not None
    assert network.in_rows


@pytest.mark.parametrize("other", [torch.float16, torch.float64])
def test_a_network_that_is_loaded_as_another_type_is_the_default_is_the_same(
    made: Callable[..., Path], other: torch.dtype
) -> None:
    """While another thread loads a model, its type is the default of the process."""
    folder = made("llama", {**GROUPED, "rms_norm_eps": 1e-8})
    network, plain = Network(folder), torch.get_default_dtype()
    torch.set_default_dtype(other)
    try:
        network._check()
    finally:
        torch.set_default_dtype(plain)
    assert network.lean is not None
    assert float(network.lean._epsilon) == pytest.approx(1e-8)


@pytest.mark.parametrize("size", [64, 4096])
def test_a_norm_is_as_exact_as_32_bits_are(made: Callable[..., Path], size: int) -> None:
    """Also of a state of which one number is far greater than the others, as in what models give for a first token."""
    lean, x = Network(made("llama", GROUPED)).lean, torch.randn(16, size, generator=torch.Generator().manual_seed(0))
    assert lean is not None
    x[:, 3] = 3000
    exact = x.double() * (x.double().square().mean(-1, keepdim=True) + lean._epsilon.double()).rsqrt()
    assert float((lean._unit(x) / exact - 1).abs().max()) < 5e-7


@pytest.mark.parametrize("in_place", [True, False])
def test_no_pass_stores_the_scores_of_all_tokens(
    made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, in_place: bool
) -> None:
    """Of a long prompt they take gigabytes; older builds of torch compute them so if heads share keys."""
    network = Network(made("llama", {"num_attention_heads": 4, "num_key_value_heads": 2}))
    assert network.lean is not None
    if not in_place:
        monkeypatch.setattr("modelyard.parts.torch.lean_pass._reads_groups", lambda: False)
    wanted = [[6, 6, 6], [4, 4, 4], [5, 2, 1], [1, 1, 1]], AdapterBank(network.model, 1, 8), [0, 0, 0]
    with profile(use_cpu=True) as run:
        found = states(network, *wanted)
    names = {event.name for event in run.function_events}
    assert any("flash_attention" in name for name in names)
    assert not any("softmax" in name for name in names)
    assert difference(found, by_modules(network, *wanted)) < 1e-5


@pytest.mark.parametrize("form", [WeightFormat.BFLOAT16, WeightFormat.INT8])
def test_narrow_weights_are_read_so_too(made: Callable[..., Path], form: WeightFormat) -> None:
    network = Network(made("llama", GROUPED), dtype=torch.float32, form=form)
    assert network.lean is not None
    wanted = [[3, 5, 1], [1, 1, 1], [2, 1, 4]], AdapterBank(network.model, 1, 8), [0, 0, 0]
    assert difference(states(network, *wanted), by_modules(network, *wanted)) < 1e-5


@pytest.mark.parametrize(("family", "options"), [*WINDOWS, ("gemma", GROUPED), ("phi3", {"sliding_window": None})])
def test_other_models_are_read_by_their_modules(
    made: Callable[..., Path], family: str, options: dict[str, Any]
) -> None:
    network = Network(made(family, options))
    assert network.lean is None
    assert network.in_rows


ODD: dict[str, Callable[[Any, pytest.MonkeyPatch], None]] = {
    "a scaled residual": lambda layer, patch: patch.setattr(layer, "forward", _times(layer.forward, 1.01)),
    "another norm": lambda layer, patch: patch.setattr(
        type(layer.input_layernorm), "forward", _times(type(layer.input_layernorm).forward, 1.01)
    ),
    "another feed-forward": lambda layer, patch: patch.setattr(layer.mlp, "forward", _times(layer.mlp.forward, 1.01)),
    "another scale of scores": lambda layer, patch: patch.setattr(layer.self_attn, "forward", _scaled(layer.self_attn)),
}


def _times(plain: Callable[..., Any], factor: float) -> Callable[..., Any]:
    return lambda *given, **named: plain(*given, **named) * factor


def _scaled(attention: Any) -> Callable[..., Any]:
    plain = attention.forward

    def forward(*given: Any, **named: Any) -> Any:
        own, attention.scaling = attention.scaling, attention.scaling * 1.1
        try:
            return plain(*given, **named)
        finally:
            attention.scaling = own

    return forward


@pytest.mark.parametrize("name", ODD)
def test_a_model_that_does_something_else_is_read_by_its_modules(
    made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    network = Network(made("llama", GROUPED))
    ODD[name](network.body.layers[0], monkeypatch)
    network.lean, network.in_rows = None, False
    network._check()
    assert network.lean is None
    assert network.in_rows


def test_a_model_without_a_part_is_read_by_its_modules(
    made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modelyard.parts.torch.lean_pass.KINDS", ("gemma2", "phi3"))
    assert Network(made("phi3", {"sliding_window": None})).lean is None


def _huge(tensor: torch.Tensor) -> int:
    """KiB of huge pages in the mapping of a tensor's memory."""
    inside = False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            first = line.split()[0]
            if "-" in first and not first.endswith(":"):
                start, end = (int(part, 16) for part in first.split("-"))
                inside = start <= tensor.data_ptr() < end
            elif inside and first == "AnonHugePages:":
                return int(line.split()[1])
    return 0


def test_memory_in_huge_pages_keeps_its_numbers() -> None:
    numbers = torch.arange(3 * 2**20, dtype=torch.float32)
    use_huge_pages([(numbers.data_ptr(), numbers.nbytes)])
    assert torch.equal(numbers, torch.arange(3 * 2**20, dtype=torch.float32))
    if sys.platform == "linux" and not _huge(numbers):
        pytest.skip("this system gives no huge pages")


def test_where_there_are_no_huge_pages_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = torch.ones(2**20)
    use_huge_pages([(2**46, 2**21), (numbers.data_ptr(), 1), (numbers.data_ptr(), 0)])
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("ctypes.CDLL", lambda *_: pytest.fail("asked the system"))
    use_huge_pages([(numbers.data_ptr(), numbers.nbytes)])
    assert math.isclose(float(numbers.sum()), 2**20)

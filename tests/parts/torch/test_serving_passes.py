"""A pass over any rows, at one place or at many, gives what one pass over whole sequences gives."""

import gc
import weakref
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from itertools import chain, takewhile
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import pytest
import torch
from families import GROUPED, build_family
from hypothesis import example, given
from hypothesis import strategies as st
from local_models import answered, prompts, requested
from transformers import AutoModelForCausalLM

from modelyard.errors import Overloaded
from modelyard.parts.torch import network as networks
from modelyard.parts.torch.kv_cache import RowCache
from modelyard.parts.torch.lora import AdapterBank
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.packed_weights import PackedLinear, TiedHead, can_pack, pack, pack_layers
from modelyard.parts.torch.serving.batching_engine import Engine
from modelyard.parts.torch.serving.cache_slots import _BLOCK, _shared
from modelyard.parts.torch.serving.sequence import SampledToken

pytestmark = pytest.mark.usefixtures("packs_all")

PASSES = {
    "in parts at one place": [([0, 0, 0], 20), ([20, 20, 20], 30)],
    "token by token at one place": [([0, 0, 0], 48), ([48, 48, 48], 1), ([49, 49, 49], 1)],
    "at places of their own": [([0, 0, 0], 10), ([10, 4, 7], 40), ([50, 44, 47], 1)],
}
"""For three rows of 51 tokens: where each pass begins in each row, and how many tokens it reads."""


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def network(request: pytest.FixtureRequest, folders: Callable[..., Path]) -> Network:
    return Network(folders(architecture=request.param))


@pytest.mark.parametrize("passes", PASSES.values(), ids=PASSES)
@torch.inference_mode()
def test_hidden_states_are_those_of_the_whole_sequences(network: Network, passes: list[tuple[list[int], int]]) -> None:
    ids = torch.randint(3, 259, (3, 51), generator=torch.Generator().manual_seed(1))
    whole = network.body(input_ids=ids, use_cache=False).last_hidden_state
    cache = RowCache(network.config, 5, 256, network.dtype, network.device)
    for starts, width in passes:
        part = torch.stack([row[start : start + width] for row, start in zip(ids, starts, strict=True)])
        found = network.hidden(part, *cache.begin(1, starts, width), cache)
        for row, start in enumerate(starts):
            torch.testing.assert_close(found[row], whole[row, start : start + width], atol=1e-4, rtol=1e-4)


TOKENS = st.lists(st.integers(0, 1), max_size=2 * _BLOCK + 3)


@given(prompt=TOKENS, parts=st.lists(TOKENS, max_size=3))
@example(prompt=[0] * _BLOCK * 2, parts=[[0] * (_BLOCK + 1), [0] * 5])
@example(prompt=[0, 1, 0], parts=[[0, 0], [1, 0]])
@example(prompt=[0, 1], parts=[[0, 1, 1], [1]])
def test_a_prompt_shares_as_much_as_it_begins_alike(prompt: list[int], parts: list[list[int]]) -> None:
    shared = takewhile(lambda pair: pair[0] == pair[1], zip(prompt, chain(*parts), strict=False))
    assert _shared(prompt, parts) == len(list(shared))


def linear_layers(network: Network) -> dict[str, torch.nn.Linear]:
    return {name: layer for name, layer in network.model.named_modules() if isinstance(layer, torch.nn.Linear)}


def test_weights_are_packed_when_an_engine_is_made_and_keep_their_values(folders: Callable[..., Path]) -> None:
    """Those of all linear layers, of adapters' layers too, but of a head that is the embeddings."""
    plain, network = Network(folders()), Network(folders())
    embeddings = network.model.get_input_embeddings().weight
    bank = AdapterBank(network.model, 2, 8)
    Engine(network, bank, frozenset())
    layers = linear_layers(network)
    assert {name: type(layer) for name, layer in layers.items() if type(layer) is not PackedLinear} == {
        "lm_head": TiedHead
    }
    assert all(bank._plain[name] is layer for name, layer in layers.items())
    for name, layer in linear_layers(plain).items():
        assert torch.equal(layers[name].weight, layer.weight)
    assert network.model.get_input_embeddings().weight is embeddings
    for ids in (torch.arange(3, 20)[None], torch.tensor([[5]]), torch.arange(3, 9)[:, None]):
        torch.testing.assert_close(network.model(ids).logits, plain.model(ids).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("llama", [["down_proj"], ["gate_proj", "up_proj"], ["o_proj"], ["q_proj", "k_proj", "v_proj"]]),
        ("gpt_neox", [["dense"], ["dense_4h_to_h"], ["dense_h_to_4h"], ["query_key_value"]]),
        ("gpt2", []),
    ],
)
def test_layers_that_are_given_the_same_are_one_product(
    folders: Callable[..., Path], tmp_path: Path, family: str, expected: list[list[str]]
) -> None:
    network = Network(build_family(folders("nano"), tmp_path, family, {})[0])
    network.lay_out()
    together: dict[int, list[str]] = {}
    for name, layer in linear_layers(network).items():
        if isinstance(layer, PackedLinear) and "s.0." in name:
            together.setdefault(id(layer.packed), []).append(name.rpartition(".")[2])
    assert sorted(together.values()) == expected


BIASES = ((False,), (True,), (False, False), (True, False, True))


@pytest.mark.parametrize("shape", [(1,), (1, 1), (5,), (3, 1), (2, 4), (0,)])
@pytest.mark.parametrize("biases", BIASES)
def test_packed_layers_compute_as_plain_ones(shape: tuple[int, ...], biases: tuple[bool, ...]) -> None:
    """In any order, with tensors of the same and of other numbers, with and without derivatives."""
    layers = [torch.nn.Linear(48, 80 - 8 * at, bias=bias).requires_grad_(False) for at, bias in enumerate(biases)]
    packed = deepcopy(layers)
    pack_layers(packed)
    x, other = torch.rand(*shape, 48), torch.rand(*shape, 48)
    for one in (x, other, x.transpose(0, -2), x.flatten(0, -2)[0] if x.numel() else x):
        for at in (*range(len(layers)), *reversed(range(len(layers)))):
            assert torch.equal(packed[at].weight, layers[at].weight)
            torch.testing.assert_close(packed[at](one), layers[at](one), atol=1e-6, rtol=1e-6)
    first, second = x.clone().requires_grad_(), x.clone().requires_grad_()
    packed[-1](first).sum().backward()
    layers[-1](second).sum().backward()
    torch.testing.assert_close(first.grad, second.grad)


class Reader(torch.nn.Module):
    """Layers that are called in the way that a test gives, of as many numbers as they return."""

    def __init__(self, read: Callable[..., torch.Tensor], count: int = 2) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(count)).requires_grad_(False)
        self.read = read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return self.read(x.clone(), *self.layers)


def packed_reader(read: Callable[..., torch.Tensor], count: int = 2) -> tuple[Reader, list[type]]:
    """A model whose layers are packed, which still gives what it gave, and the kinds of its layers."""
    plain = Reader(read, count)
    packed = deepcopy(plain)
    pack(packed, torch.empty(0), lambda: packed(torch.zeros(1, 2, 8)))
    for shape in ((1, 2, 8), (3, 5, 8), (1, 1, 8)):
        x = torch.rand(shape)
        for _ in range(2):
            torch.testing.assert_close(packed(x), plain(x), atol=1e-5, rtol=1e-5)
    return packed, [type(layer) for layer in packed.layers]


def test_layers_that_are_called_by_keyword_are_packed() -> None:
    found, kinds = packed_reader(lambda x, one, other: one(input=x) + other(input=x))
    assert kinds == [PackedLinear] * 2
    assert found.layers[0].packed is found.layers[1].packed
    embeddings = torch.nn.Linear(8, 8)
    pack(embeddings, embeddings.weight, lambda: None)
    assert torch.allclose(embeddings(input=torch.ones(2, 8)), embeddings(torch.ones(2, 8)))


def test_layers_are_given_the_same_only_if_its_numbers_are_the_same() -> None:
    found, _ = packed_reader(lambda x, one, other: one(x) + other(x.add_(1)))
    assert found.layers[0].packed is not found.layers[1].packed


def test_the_first_layer_does_not_believe_what_a_pass_left_that_did_not_end() -> None:
    layers = [torch.nn.Linear(8, 8).requires_grad_(False) for _ in range(2)]
    plain = deepcopy(layers)
    pack_layers(layers)
    with torch.inference_mode():
        x = torch.rand(2, 8)
        layers[0](x)  # and an error before the second is called
        x.add_(1)
        for one, expected in zip(layers, plain, strict=True):
            torch.testing.assert_close(one(x), expected(x))


def test_layers_whose_weights_are_read_stay_plain() -> None:
    """As those of Mamba: they would be made anew in each pass."""
    _, kinds = packed_reader(lambda x, one, two, three: x @ one.weight + two(x) + three(x).to(three.weight.dtype), 3)
    assert kinds == [torch.nn.Linear, PackedLinear, torch.nn.Linear]


def test_layers_are_apart_if_the_model_needs_what_they_give_in_one_piece() -> None:
    found, kinds = packed_reader(lambda x, one, other: one(x).view(-1) + other(x).view(-1))
    assert kinds == [PackedLinear] * 2
    assert found.layers[0].packed is not found.layers[1].packed


def test_layers_that_see_stay_plain(folders: Callable[..., Path], tmp_path: Path) -> None:
    """They are not called: their weights stay in the file."""
    network = Network(build_family(folders("nano"), tmp_path, "gemma3", GROUPED, seeing=True)[0])
    network.lay_out()
    layers = linear_layers(network)
    seeing = {name for name in layers if "vision" in name}
    assert seeing
    assert {name for name, layer in layers.items() if not isinstance(layer, PackedLinear | TiedHead)} == seeing


def test_weights_that_layers_share_are_packed_once() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3))).requires_grad_(False)
    model[2].weight, model[2].bias = model[0].weight, model[0].bias
    plain, x = deepcopy(model), torch.rand(3, 8)
    pack(model, torch.empty(0), lambda: model(torch.zeros(2, 8)))
    assert model[0].packed is model[2].packed is not model[1].packed
    torch.testing.assert_close(model(x), plain(x))


def test_memory_of_packed_weights_is_given_back_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(5))).requires_grad_(False), []
    monkeypatch.setattr(
        "modelyard.parts.torch.packed_weights.trim", lambda: given.append(sum(one() is not None for one in packed))
    )
    packed: list[weakref.ref[torch.Tensor]] = []
    pack(model, torch.empty(0), partial(model, torch.zeros(2, 8)))
    packed = [weakref.ref(layer.packed._packed) for layer in model]
    gc.disable()  # which says of what it finds that it is gone before it is
    try:
        del model
    finally:
        gc.enable()
    assert given == [0, 0]  # when they were packed, and when the last was gone


def test_packing_draws_no_random_numbers_of_the_program() -> None:
    before = torch.random.get_rng_state()
    assert can_pack.__wrapped__()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_packing_is_possible_while_another_thread_loads_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which has the initial weights of layers left as they are, and another type of numbers, in all threads."""
    monkeypatch.setattr(torch.nn.Linear, "reset_parameters", lambda self: self.weight.data.fill_(torch.nan))
    plain = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        assert can_pack.__wrapped__()
    finally:
        torch.set_default_dtype(plain)


def test_without_memory_to_pack_weights_the_model_is_overloaded(
    folders: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(networks, "pack", full)
    with pytest.raises(Overloaded, match="no memory to load this model"):
        Network(folders()).lay_out()


def test_without_memory_to_map_weights_the_model_is_overloaded(
    folders: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("unable to mmap 64 bytes from file <model.safetensors>: Cannot allocate memory (12)")

    monkeypatch.setattr(networks, "_stored", full)
    with pytest.raises(Overloaded, match="no memory to load this model"):
        Network(folders(), own=True)


def test_packed_layers_keep_nothing_of_a_pass() -> None:
    layers = [torch.nn.Linear(8, 8).requires_grad_(False) for _ in range(3)]
    pack_layers(layers)
    x = torch.rand(4, 8)
    given = weakref.ref(x)
    for layer in layers:
        layer(x)
    del x
    assert given() is None


@pytest.mark.parametrize("inner", [64, 576, 1536])
def test_a_packed_layer_gives_a_token_the_same_alone_and_among_others(inner: int) -> None:
    layer, x = torch.nn.Linear(inner, 100).requires_grad_(False), torch.rand(100, inner)
    pack_layers([layer])
    whole = layer(x)
    for count in (1, 2, 3, 5, 6, 7, 8, 31, 32, 33):
        assert torch.equal(layer(x[:count]), whole[:count]), count
        assert torch.equal(layer(x[-count:]), whole[-count:]), count


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(0,), (1,), (1, 1), (2,), (4, 2), (9,), (3, 7)])
def test_a_head_that_is_the_embeddings_computes_as_any(shape: tuple[int, ...], bias: bool) -> None:
    head, x = torch.nn.Linear(48, 300, bias=bias).requires_grad_(False), torch.rand(*shape, 48)
    expected = head(x)
    pack(torch.nn.ModuleList([head]), head.weight, lambda: None)
    assert type(head) is TiedHead
    torch.testing.assert_close(head(x), expected, atol=1e-6, rtol=1e-6)
    assert head(x).is_contiguous()


def test_answers_to_prompts_of_one_length_are_the_same_alone_and_together(folders: Callable[..., Path]) -> None:
    """To the last bit, but for the log-probabilities of a head that is the embeddings."""
    asked_for = [(prompt * 24)[:24] for prompt in prompts(8)]

    def answers(*some: list[int]) -> list[list[SampledToken]]:
        network = Network(folders(architecture="llama"))
        wanted = [requested(prompt, 12) for prompt in some]
        answered(Engine(network, AdapterBank(network.model, 1, 8), frozenset()), *wanted)
        return [one.sampled for one in wanted]

    for found, prompt in zip(answers(*asked_for), asked_for, strict=True):
        (alone,) = answers(prompt)
        assert [one.token for one in found] == [one.token for one in alone]
        assert [one.logprob for one in found] == pytest.approx([one.logprob for one in alone], abs=2e-6)


def test_weights_of_a_file_of_16_bits_are_in_memory_once(
    folders: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no file has as it is computed with is kept packed alone, but for embeddings."""
    stored = AutoModelForCausalLM.from_pretrained(folders(), dtype=torch.bfloat16)
    copytree(folders(), tmp_path / "bf16", ignore=ignore_patterns("*.safetensors"))
    stored.save_pretrained(tmp_path / "bf16")
    network = Network(tmp_path / "bf16")
    plain = [weakref.ref(layer.weight) for layer in linear_layers(network).values()]
    held, dropped = weakref.ref(network._held), []

    def packed(*given: Any) -> None:
        dropped.append(held() is None)  # each is freed when it is packed
        pack(*given)

    monkeypatch.setattr(networks, "pack", packed)
    network.lay_out()
    gc.collect()
    embeddings = network.model.get_input_embeddings().weight
    assert dropped == [True]
    assert all(one() is None or one() is embeddings for one in plain)


def test_where_torch_cannot_pack_weights_stay_plain(
    folders: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "can_pack", lambda: False)
    network = Network(folders())
    network.lay_out()
    assert not any(isinstance(layer, PackedLinear | TiedHead) for layer in network.model.modules())


def test_small_layers_stay_plain(folders: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that are one product count together."""
    network = Network(folders(architecture="llama"))
    sizes = {name.rpartition(".")[2]: layer.weight.numel() for name, layer in linear_layers(network).items()}
    monkeypatch.setattr("modelyard.parts.torch.packed_weights.SMALLEST", 2 * sizes["up_proj"])
    assert 2 * sizes["up_proj"] > sum(sizes[name] for name in ("q_proj", "k_proj", "v_proj"))
    network.lay_out()
    packed = {name.rpartition(".")[2] for name, one in linear_layers(network).items() if type(one) is PackedLinear}
    assert packed == {"gate_proj", "up_proj"}

"""A pass over any rows, at one place or at many, gives what one pass over whole sequences gives."""

import gc
import sys
import weakref
from collections.abc import Callable
from itertools import chain, takewhile
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from modelyard.parts.torch import network as networks
from modelyard.parts.torch.kv_cache import RowCache
from modelyard.parts.torch.lora import AdapterBank
from modelyard.parts.torch.mapped_weights import is_mapped
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.packed_weights import PackedLinear
from modelyard.parts.torch.serving.batching_engine import Engine
from modelyard.parts.torch.serving.cache_slots import _BLOCK, _shared

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


def test_weights_are_packed_when_an_engine_is_made_and_keep_their_values(folders: Callable[..., Path]) -> None:
    """Those of all linear layers; embeddings are looked up as before, also where the head multiplies with them."""
    plain, network = Network(folders()), Network(folders())
    Engine(network, AdapterBank(network.model, 1, 8), frozenset())
    packed = {name: layer for name, layer in network.model.named_modules() if isinstance(layer, PackedLinear)}
    linear = [name for name, layer in plain.model.named_modules() if isinstance(layer, torch.nn.Linear)]
    assert list(packed) == linear
    for name, layer in packed.items():
        assert torch.equal(layer.weight, plain.model.get_submodule(name).weight)
    for ids in (torch.arange(3, 20)[None], torch.tensor([[5]])):
        torch.testing.assert_close(network.model(ids).logits, plain.model(ids).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (5,), (3, 1), (2, 4), (0,)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_computes_as_the_plain_one(shape: tuple[int, ...], bias: bool) -> None:
    layer, x = torch.nn.Linear(48, 80, bias=bias).requires_grad_(False), torch.rand(*shape, 48)
    packed = PackedLinear(layer)
    assert torch.equal(packed.weight, layer.weight)
    torch.testing.assert_close(packed(x), layer(x), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(packed(x.transpose(0, -2)), layer(x.transpose(0, -2)), atol=1e-6, rtol=1e-6)


def test_weights_of_a_file_of_16_bits_are_in_memory_once(folders: Callable[..., Path], tmp_path: Path) -> None:
    """What no file has as it is computed with is kept packed alone, but for embeddings."""
    from transformers import AutoModelForCausalLM

    stored = AutoModelForCausalLM.from_pretrained(folders(), dtype=torch.bfloat16)
    copytree(folders(), tmp_path / "bf16", ignore=ignore_patterns("*.safetensors"))
    stored.save_pretrained(tmp_path / "bf16")
    network = Network(tmp_path / "bf16")
    plain = [weakref.ref(layer.weight) for layer in network._held.modules() if type(layer) is torch.nn.Linear]
    network.lay_out()
    gc.collect()
    assert not any(one() is not None for one in plain)
    left = [layer for layer in network.model.modules() if type(layer) is torch.nn.Linear]
    assert [layer.weight for layer in left] == [network.model.get_input_embeddings().weight]


def test_where_torch_cannot_pack_weights_stay_plain(
    folders: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "can_pack", lambda: False)
    network = Network(folders())
    network.lay_out()
    assert not any(isinstance(layer, PackedLinear) for layer in network.model.modules())


def test_only_memory_of_a_file_is_said_to_be_mapped(folders: Callable[..., Path]) -> None:
    weight = Network(folders()).model.model.layers[0].mlp.up_proj.weight
    assert is_mapped(weight) == (sys.platform == "linux")
    assert not is_mapped(weight.clone())

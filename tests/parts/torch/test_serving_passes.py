"""A pass over any rows, at one place or at many, gives what one pass over whole sequences gives."""

from collections.abc import Callable
from itertools import chain, takewhile
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from modelyard.parts.torch.kv_cache import RowCache
from modelyard.parts.torch.lora import AdapterBank
from modelyard.parts.torch.network import Network
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


def test_weights_are_stored_along_their_longer_side_and_keep_their_values(folders: Callable[..., Path]) -> None:
    """By columns where a layer has more results than inputs, all but the embeddings, which are the head's weights, too.

    An engine does it when it is made.
    """
    plain, network = Network(folders()), Network(folders())
    Engine(network, AdapterBank(network.model, 1, 8), frozenset())
    by_columns = set()
    for (name, weight), before in zip(network.model.named_parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(weight, before)
        if not weight.is_contiguous():
            by_columns.add(name.split(".")[-2])
    assert by_columns == {"gate_proj", "up_proj"}
    ids = torch.arange(3, 20)[None]
    torch.testing.assert_close(network.model(ids).logits, plain.model(ids).logits, atol=1e-4, rtol=1e-4)

"""With 16-bit weights, as on a graphics card, logits and log-probabilities are 32-bit floats, never rounded before."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from local_models import END, SHAPE, adapter_weights, answered, prompts, requested
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from tape import Recorder
from torch import nn
from transformers import Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM

from modelyard.domain.completion import Sampling
from modelyard.parts.torch import network as head
from modelyard.parts.torch.lora import AdapterBank, LoraShape
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.serving.batching_engine import Engine
from modelyard.parts.torch.training.examples import TokenRow
from modelyard.parts.torch.training.token_logprobs import TokenScorer
from modelyard.parts.torch.training.trainable import attach_adapter

BF16 = torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [False, True])
def test_logits_are_exact_sums_of_the_products_of_what_is_there(dtype: torch.dtype, bias: bool) -> None:
    layer = nn.Linear(64, 300, bias=bias, dtype=dtype).requires_grad_(False)
    hidden = torch.randn(2, 5, 64, dtype=dtype)
    exact = layer.double()(hidden.double())
    found = head.logits(layer.to(dtype), hidden)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=1e-5)
    assert (layer(hidden).double() - exact).abs().max() > 1e-4


def test_states_of_32_bits_are_rounded_as_the_model_rounds_them() -> None:
    layer = nn.Linear(64, 300, bias=False, dtype=BF16).requires_grad_(False)
    hidden = torch.randn(5, 64)
    assert torch.equal(head.logits(layer, hidden), head.logits(layer, hidden.to(BF16)))


def test_logits_that_a_model_scales_are_exact_sums_too() -> None:
    shape = {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model: Any = GraniteForCausalLM(GraniteConfig(**shape, intermediate_size=8, logits_scaling=8.0))
    model.to(BF16).requires_grad_(False)
    hidden = torch.randn(2, 5, 64, dtype=BF16)
    exact = hidden.double() @ model.lm_head.weight.double().T / 8
    found = head.ModelHead(model)(hidden)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("cap", "own"), [(30.0, True), (None, False)])
def test_a_cap_that_16_bits_would_hide_is_found(tmp_path: Path, cap: float | None, own: bool) -> None:
    """All logits of this model are far below it."""
    shape = {"vocab_size": 259, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16}
    config = Gemma2Config(**shape, intermediate_size=8, num_key_value_heads=1, final_logit_softcapping=cap)
    torch.manual_seed(0)
    Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    assert (Network(tmp_path, dtype=BF16)._own_head is not None) == own


def test_gradients_reach_the_hidden_states() -> None:
    layer = nn.Linear(64, 300, bias=False, dtype=BF16).requires_grad_(False)
    hidden = torch.randn(7, 64, dtype=BF16, requires_grad=True)
    wanted = torch.randn(7, 300)
    (found,) = torch.autograd.grad(head.logits(layer, hidden), hidden, wanted)
    torch.testing.assert_close(found.float(), wanted @ layer.weight.float(), atol=0.05, rtol=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_a_head_that_is_trained_itself_gets_its_gradients(dtype: torch.dtype) -> None:
    layer = nn.Linear(64, 300, bias=False, dtype=dtype)
    head.logits(layer, torch.randn(7, 64, dtype=dtype)).sum().backward()
    assert layer.weight.grad is not None


def engine_of(folder: Path, recorder: Recorder | None = None) -> Engine:
    network = Network(folder, dtype=BF16)
    return Engine(network, AdapterBank(network.model, 3, 8), frozenset({END}), recorder=recorder and (lambda: recorder))


def test_log_probabilities_are_those_of_the_whole_model_also_when_passes_are_recorded(folder: Path) -> None:
    model = Network(folder, dtype=BF16)
    for recorder in (None, Recorder()):
        engine = engine_of(folder, recorder)
        answers = [requested(prompt, 10, Sampling(seed=place)) for place, prompt in enumerate(prompts(6))]
        answered(engine, *answers)
        for answer in answers:
            ids = torch.tensor([answer.prompt + answer.answer])
            with torch.no_grad():
                states = model.body(input_ids=ids, use_cache=False).last_hidden_state
                logprobs = model.logits(states)[0].log_softmax(-1)
            for place, sampled in enumerate(answer.sampled, len(answer.prompt) - 1):
                assert abs(float(logprobs[place, sampled.token]) - sampled.logprob) < 0.1


class Attending(nn.Module):
    """Two projections of one input."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.q_proj = nn.Linear(64, 48, bias=False, dtype=dtype)
        self.k_proj = nn.Linear(64, 32, bias=False, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.q_proj(x), self.k_proj(x)], -1)


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_an_adapter_in_training_computes_and_learns_as_that_of_peft(dtype: torch.dtype) -> None:
    """Beside 16-bit weights both are of 32-bit floats; they round once more or less when they add what they found."""
    torch.manual_seed(0)
    model = Attending(dtype).requires_grad_(False)
    theirs = get_peft_model(deepcopy(model), LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "k_proj"]))
    trained = attach_adapter(model, LoraShape(4, 8, ("q_proj", "k_proj")), 0, "base")
    drawn = {name: torch.randn(weight.shape) for name, weight in trained.named.items()}
    trained.load(drawn)
    set_peft_model_state_dict(theirs, drawn)
    x, wanted = torch.randn(2, 7, 64, dtype=dtype), torch.randn(2, 7, 80, dtype=dtype)
    found: list[tuple[torch.Tensor, Any]] = []
    for one in (model, theirs):
        given = x.clone().requires_grad_()
        generated = one(given)
        generated.backward(wanted)
        found.append((generated.detach(), given.grad))
    tolerance = 0.02 if dtype is BF16 else 1e-5
    for ours, peft in zip(*found, strict=True):
        assert float((ours - peft).abs().max()) < tolerance * float(peft.abs().max())
    named = {name.replace(".default", ""): weight.grad for name, weight in theirs.named_parameters()}
    for name, weight in trained.named.items():
        torch.testing.assert_close(weight.grad, named[name], rtol=1e-3, atol=2e-5)


def test_projections_of_one_input_keep_it_once_and_in_16_bits() -> None:
    """A copy in 32 bits for each would be half as much again as all else that a network keeps for its derivatives."""
    model = Attending(BF16).requires_grad_(False)
    attach_adapter(model, LoraShape(4, 8, ("q_proj", "k_proj")), 0, "base")
    kept: dict[int, torch.Tensor] = {}
    x = torch.randn(1, 7, 64, dtype=BF16, requires_grad=True)

    def keep(one: torch.Tensor) -> torch.Tensor:
        kept[one.untyped_storage().data_ptr()] = one
        return one

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
        model(x)
    assert [one.dtype for one in kept.values() if one.numel() == x.numel()] == [BF16]


def test_the_sampler_and_the_trainer_agree_on_what_an_adapter_says(folder: Path) -> None:
    """The trainer's adapter is of 32-bit floats, the sampler's of 16: as far as those go they say the same."""
    engine, weights = engine_of(folder), adapter_weights(folder, SHAPE, seed=1, scale=0.1)
    engine.load(1, SHAPE, weights)
    network = Network(folder, dtype=BF16)
    trained = attach_adapter(network.model, SHAPE, 0, "base")
    trained.load(weights)
    scorer, differences = TokenScorer(network), []
    for number, prompt in enumerate(prompts(8)):
        answer = requested(prompt, 12, Sampling(seed=number), slot=1)
        answered(engine, answer)
        ids = [*answer.prompt, *answer.answer]
        places = tuple(range(len(answer.prompt), len(ids)))
        with torch.no_grad():
            found, _ = scorer.logprobs([TokenRow(tuple(ids), places, (None,) * len(places))])
        differences += [abs(one.logprob - other) for one, other in zip(answer.sampled, found.tolist(), strict=True)]
    assert found.dtype is torch.float32
    assert max(differences) < 0.1
    assert sum(differences) / len(differences) < 0.01

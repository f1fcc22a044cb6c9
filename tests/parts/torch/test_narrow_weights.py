"""Weights of 16-bit floats and of 8-bit numbers: what is stored, what is computed with them, and how close it is."""

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from local_models import END, SHAPE, adapter_weights, answered, prompts, requested
from torch import nn
from torch.nn import functional

from modelyard import Settings, open_platform
from modelyard.cli import main
from modelyard.domain.catalogue import Quantization
from modelyard.errors import BackendError, InvalidInput
from modelyard.parts.torch import narrow_weights
from modelyard.parts.torch.lora import AdapterBank, LoraLinear, linear_layers
from modelyard.parts.torch.narrow_weights import NarrowEmbedding, NarrowLinear
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.records import Tuning, WeightFormat
from modelyard.parts.torch.serving.batching_engine import Engine
from modelyard.parts.torch.training.trainable import attach_adapter

BFLOAT16, INT8 = WeightFormat.BFLOAT16, WeightFormat.INT8
NARROW = [BFLOAT16, INT8]
ROWS = [
    {"messages": [{"role": "user", "content": word}, {"role": "assistant", "content": word[::-1]}]}
    for word in ("sea", "blue", "shore", "tide")
]


def narrow_layer(form: WeightFormat, weight: torch.Tensor, bias: torch.Tensor | None = None) -> NarrowLinear:
    stored, scale = narrow_weights._stored("layer", weight, form)
    return NarrowLinear(stored, scale, None if bias is None else nn.Parameter(bias))


def engine_of(network: Network, slots: int = 3) -> Engine:
    return Engine(network, AdapterBank(network.model, slots, 8), frozenset({END}), rows=8)


def logprobs(network: Network, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return network.logits(network.read([ids]))[0].log_softmax(-1)


# ---- a layer ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 100, 2**18])
@pytest.mark.parametrize("form", NARROW)
def test_a_layer_computes_with_the_weights_that_it_shows_whatever_the_blocks(
    form: WeightFormat, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(narrow_weights, "_BLOCK", block)
    torch.manual_seed(0)
    layer = narrow_layer(form, torch.randn(37, 24), torch.randn(37))
    x, wanted = torch.randn(2, 3, 24, requires_grad=True), torch.randn(2, 3, 37)
    found, plain = layer(x), functional.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(found, plain)
    gradients = [torch.autograd.grad(one, x, wanted)[0] for one in (found, plain)]
    torch.testing.assert_close(*gradients)


def test_8_bits_are_within_half_a_step_of_each_output_and_16_bits_are_the_nearest_floats() -> None:
    weight = torch.randn(50, 64) * torch.logspace(-6, 3, 50)[:, None]
    step = weight.abs().amax(1, keepdim=True) / 127
    assert bool(((narrow_layer(INT8, weight).weight - weight).abs() <= step * 0.5001).all())
    assert torch.equal(narrow_layer(BFLOAT16, weight).weight, weight.bfloat16().float())


def test_an_output_without_weights_is_zero() -> None:
    assert torch.equal(narrow_layer(INT8, torch.zeros(3, 4))(torch.ones(2, 4)), torch.zeros(2, 3))


def test_16_bit_floats_are_multiplied_as_such() -> None:
    layer = narrow_layer(INT8, torch.randn(37, 24))
    x = torch.randn(5, 24, dtype=torch.bfloat16)
    assert layer(x).dtype is torch.bfloat16
    torch.testing.assert_close(layer(x).float(), x.float() @ layer.weight.T, rtol=0.02, atol=0.1)


# ---- a network -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "kind"), [(BFLOAT16, torch.int16), (INT8, torch.int8)])
def test_all_linear_layers_are_narrow_and_the_ends_have_16_bits(
    folder: Path, form: WeightFormat, kind: torch.dtype
) -> None:
    network = Network(folder, form=form)
    layers = [layer for _, layer in linear_layers(network.model)]
    assert layers
    assert {(type(one), one.stored.dtype) for one in layers if isinstance(one, NarrowLinear)} == {(NarrowLinear, kind)}
    ends: list[Any] = [network.model.get_input_embeddings(), network.model.get_output_embeddings()]
    assert [type(one) for one in ends] == [NarrowEmbedding, NarrowLinear]
    assert [one.stored.dtype for one in ends] == [torch.int16] * 2
    plain = sum(one.nbytes for one in Network(folder).model.parameters())
    assert sum(one.nbytes for one in network.model.parameters()) < plain * {BFLOAT16: 0.55, INT8: 0.5}[form]
    assert network.dtype is torch.float32
    assert network.in_rows


def test_a_model_of_16_bits_loses_nothing(folder: Path, tmp_path: Path) -> None:
    plain = Network(folder, dtype=torch.bfloat16, own=True).model
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    plain.save_pretrained(tmp_path)
    for prompt in prompts(4):
        found, wanted = (logprobs(Network(tmp_path, form=form), prompt) for form in (BFLOAT16, None))
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("form", "bound"), [(BFLOAT16, 0.02), (INT8, 0.05)])
def test_log_probabilities_are_close_to_those_of_32_bits(folder: Path, form: WeightFormat, bound: float) -> None:
    plain, narrow = Network(folder), Network(folder, form=form)
    far = [float((logprobs(narrow, one) - logprobs(plain, one)).abs().max()) for one in prompts(8)]
    assert 0 < max(far) < bound


def test_networks_share_narrow_weights_but_not_with_those_of_another_format(folder: Path) -> None:
    made = [Network(folder, form=form) for form in (INT8, INT8, BFLOAT16)]
    places = [{one.data_ptr() for one in network.model.parameters()} for network in made]
    assert places[0] == places[1]
    assert not places[0] & places[2]


@pytest.mark.parametrize("form", NARROW)
def test_several_adapters_answer_in_one_pass_as_each_does_alone(folder: Path, form: WeightFormat) -> None:
    weights = [adapter_weights(folder, SHAPE, seed=seed) for seed in (1, 2)]

    def loaded() -> Engine:
        engine = engine_of(Network(folder, form=form))
        for slot, one in enumerate(weights, 1):
            engine.load(slot, SHAPE, one)
        return engine

    asked = [(prompt, slot) for prompt in prompts(2) for slot in (0, 1, 2)]
    together = answered(loaded(), *(requested(prompt, 8, slot=slot) for prompt, slot in asked))
    alone = loaded()
    assert together == [answered(alone, requested(prompt, 8, slot=slot))[0] for prompt, slot in asked]
    assert together[0] != together[1] != together[2]


@pytest.mark.parametrize("form", NARROW)
def test_an_adapter_learns_through_weights_that_stay(folder: Path, form: WeightFormat) -> None:
    """Its gradients are those of the same weights in 32 bits."""
    found = []
    for wide in (False, True):
        network = Network(folder, form=form)
        if wide:
            _widen(network.model)
        adapter = attach_adapter(network.model, SHAPE, 0, "base")
        adapter.load(adapter_weights(folder, SHAPE, seed=3))
        network.logits(network.read([[5, 9, 20, 31]])).log_softmax(-1)[0, :, 7].sum().backward()
        found.append({name: one.grad for name, one in adapter.named.items()})
        stored = [one for name, one in network.model.named_parameters() if name.endswith(".stored")]
        assert wide or (stored and all(one.grad is None and not one.requires_grad for one in stored))
    for name, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][name], rtol=1e-3, atol=1e-5)


def _widen(model: nn.Module) -> None:
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            if isinstance(layer, NarrowLinear) and not isinstance(module, LoraLinear):
                wide = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
                wide.weight = nn.Parameter(layer.weight, requires_grad=False)
                if layer.bias is not None:
                    wide.bias = layer.bias
                setattr(module, name, wide)


def test_weights_that_are_not_numbers_are_named(folder: Path, tmp_path: Path) -> None:
    model = Network(folder, own=True).model
    name, layer = next(linear_layers(model))
    layer.weight.data[3, 2] = float("nan")
    model.save_pretrained(tmp_path)
    with pytest.raises(BackendError, match=f"not all numbers.*{name}.weight"):
        Network(tmp_path, form=INT8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_weights_are_numbers_and_others_are_not(dtype: torch.dtype) -> None:
    weights = torch.full((3, 4), 3e38, dtype=dtype)
    assert not weights.sum().isfinite()
    assert narrow_weights.are_numbers(weights)
    for odd in (float("nan"), float("inf"), -float("inf")):
        some = torch.zeros(3, 4, dtype=dtype)
        some[1, 2] = odd
        assert not narrow_weights.are_numbers(some)
    both = torch.tensor([float("inf"), -float("inf")], dtype=dtype)
    assert not narrow_weights.are_numbers(both)


# ---- a platform ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_a_job_trains_an_adapter_on_narrow_weights_which_is_served(folder: Path, weights: str) -> None:
    with open_platform(settings=Settings(poll=0.01)) as yard:
        yard.add_base_model(folder, id="base", weights=weights)
        job = yard.training.sft(yard.models.create("m", base_model="base"), ROWS, epochs=4, learning_rate=0.01)
        yard.worker().run_until_idle()
        assert job.refresh().status == "succeeded", job.error_message
        losses = [row.values["loss"] for row in job.metrics() if "loss" in row.values]
        assert losses[-1] < losses[0] - 0.1
        assert yard.chat.complete(model="default/m", messages="sea", max_tokens=4).choices


def test_the_catalogue_has_the_format_and_a_store_keeps_it(folder: Path, tmp_path: Path) -> None:
    with open_platform(tmp_path / "yard.db") as yard:
        assert yard.add_base_model(folder, id="usual").quantization is Quantization.FP32
        assert yard.add_base_model(folder, id="eight", weights="int8").quantization is Quantization.INT8
        assert yard.add_base_model(folder, id="sixteen", weights="bfloat16").quantization is Quantization.BF16
    with open_platform(tmp_path / "yard.db") as yard:
        assert [(one.id, one.weights) for one in yard.base_models()] == [
            ("eight", INT8),
            ("sixteen", BFLOAT16),
            ("usual", None),
        ]
        answers = [
            yard.chat.complete(model=id, messages="sea", max_tokens=2, temperature=0) for id in ("eight", "usual")
        ]
        assert all(one.usage.completion_tokens for one in answers)


@pytest.mark.parametrize(
    ("weights", "tuning", "problem"),
    [
        ("int4", None, "int4 is not possible: .* use int8"),
        ("fp8", None, "'fp8' is unknown; give one of float32, bfloat16, int8"),
        ("int8", Tuning.FULL, "int8 cannot be trained in full"),
        ("bfloat16", Tuning.FULL, "bfloat16 cannot be trained in full"),
    ],
)
def test_other_formats_are_refused_by_name(folder: Path, weights: str, tuning: Tuning | None, problem: str) -> None:
    with open_platform() as yard:
        with pytest.raises(InvalidInput, match=problem) as refused:
            yard.add_base_model(folder, id="base", weights=weights, tuning=tuning)
        assert "weights" in str(refused.value)
        assert not list(yard.base_models())


def test_the_command_takes_the_format_and_refuses_others_before_a_store_is_made(folder: Path, tmp_path: Path) -> None:
    def added(*words: str) -> Result:
        store = ["--store", str(tmp_path / "yard.db")]
        return CliRunner().invoke(main, ["base-models", "add", str(folder), "--id", "tiny", *words, *store])

    refused = added("--weights", "int8", "--full")
    assert refused.exit_code
    assert "int8 cannot be trained in full" in refused.output
    assert not list(tmp_path.iterdir())
    assert added("--weights", "int8").exit_code == 0
    with open_platform(tmp_path / "yard.db") as yard:
        assert [one.weights for one in yard.base_models()] == [INT8]

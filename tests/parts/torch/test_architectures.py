"""Models of many families are answered as transformers itself answers them, or refused before they are listed."""

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from families import APART, GROUPED, LINEAR, LONG, ONE_BY_ONE, OWN_LOGITS, SERVED, WINDOW, WINDOWS, build_family
from local_models import answered, prompts, requested
from peft import PeftModel
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from modelyard import open_platform
from modelyard.errors import InvalidInput
from modelyard.parts.torch import model_config as base_config
from modelyard.parts.torch.lora import CONFIG_FILE, AdapterBank, LoraShape
from modelyard.parts.torch.model_folder import read_base_folder
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.serving.batching_engine import Engine
from modelyard.parts.torch.training.examples import TokenRow
from modelyard.parts.torch.training.token_logprobs import TokenScorer
from modelyard.parts.torch.training.trainable import all_weights, attach_adapter

pytestmark = pytest.mark.usefixtures("packs_all")

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("bert", {"is_decoder": True}, "sees what comes after a token"),
    ("trocr", {"decoder_layers": 1, "d_model": 32, "decoder_attention_heads": 2}, "answers an encoder"),
]

Made = Callable[[str, dict[str, Any]], Path]


@pytest.fixture
def made(folders: Callable[..., Path], tmp_path: Path) -> Made:
    return lambda family, options: build_family(folders("nano"), tmp_path, family, options)[0]


def generated(model: Any, prompt: list[int], count: int) -> list[int]:
    """What transformers answers, alone."""
    ids = torch.tensor([prompt])
    options: dict[str, Any] = {"max_new_tokens": count, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    found: list[int] = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)[0].tolist()
    return found[len(prompt) :]


def named(one: object) -> str:
    return one if isinstance(one, str) else ""


@pytest.mark.parametrize(("family", "options"), [*SERVED, *WINDOWS, *OWN_LOGITS, *APART], ids=named)
def test_what_is_registered_answers_as_transformers_does(made: Made, family: str, options: dict[str, Any]) -> None:
    """Short ones next to long ones, below and above where windows and scaled positions would differ."""
    folder = made(family, options)
    longest = read_base_folder(folder).context_length
    network = Network(folder)
    assert network.in_rows == ((family, options) not in APART)
    assert network.can_batch == network.can_pad == (not network.in_rows and family not in ONE_BY_ONE)
    engine = Engine(network, AdapterBank(network.model, 1, 8), frozenset())
    lengths = (5, 20, longest // 2, longest - 24)
    beside = [(prompt * longest)[:length] for prompt, length in zip(prompts(4), lengths, strict=True)]
    asked_for = [requested(prompt, 24) for prompt in beside]
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    expected = [generated(theirs, one.prompt, one.max_tokens) for one in asked_for]
    assert answered(engine, *asked_for) == expected


@pytest.mark.parametrize(("family", "options", "reported"), REFUSED, ids=named)
def test_what_would_be_answered_wrongly_is_refused_when_it_is_registered(
    made: Made, family: str, options: dict[str, Any], reported: str
) -> None:
    with pytest.raises(InvalidInput, match=reported):
        read_base_folder(made(family, options))


LONG_RANGES: list[tuple[str, dict[str, Any]]] = [
    ("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 64}),
    ("llama", {"rope_parameters": LONG}),
]


@pytest.mark.parametrize(("family", "options"), LONG_RANGES)
def test_a_context_is_listed_as_short_as_it_is_before_and_after_the_model_is_loaded(
    made: Made, family: str, options: dict[str, Any]
) -> None:
    folder = made(family, {**GROUPED, "sliding_window": None, **options})
    with open_platform() as yard:
        entry = yard.add_base_model(folder, id="long")
        assert (entry.context_length, entry.max_output_length) == (64, 64)
        yard.chat.complete(model="long", messages="hi", max_tokens=2)
        assert yard.catalogue.get("long") == entry


def add(folder: Path, **changes: str) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with open_platform() as yard:
        yard.add_base_model(folder, id="changed")


def test_a_family_that_transformers_does_not_know_is_refused_when_it_is_added(made: Made) -> None:
    folder = made("llama", GROUPED)
    with pytest.raises(InvalidInput, match="model_type 'llama-next', of which this transformers knows no") as refused:
        add(folder, model_type="llama-next")
    assert refused.value.problems[0].loc == ("path", "config.json")


def test_a_family_that_the_host_has_taught_transformers_is_added(made: Made) -> None:
    class Taught(LlamaConfig):
        model_type = "taught"

    folder = made("llama", GROUPED)
    AutoConfig.register("taught", Taught)
    try:
        add(folder, model_type="taught")
    finally:
        del CONFIG_MAPPING._extra_content["taught"]


@pytest.mark.parametrize("table", ["", "TABLE = {'llama': 1}", "TABLE = made()", "TABLE = made([1])", "TABLE = ("])
def test_another_layout_of_transformers_keeps_no_model_out(
    made: Made, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, table: str
) -> None:
    """Then what it does not know is reported when the model is loaded."""
    file = tmp_path_factory.mktemp("table") / "table.py"
    file.write_text(table)
    monkeypatch.setattr(base_config, "_TABLE", "TABLE")
    monkeypatch.setattr(base_config, "_TABLE_FILE", file)
    add(made("llama", GROUPED))


REGISTERING = """
import sys
from modelyard import open_platform
from modelyard.errors import InvalidInput
with open_platform() as yard:
    yard.add_base_model(sys.argv[1], id="known")
    try:
        yard.add_base_model(sys.argv[2], id="unknown")
    except InvalidInput as refused:
        print(refused)
print("transformers" in sys.modules)
"""


def test_adding_a_base_model_knows_the_families_without_loading_transformers(made: Made, folder: Path) -> None:
    other = made("llama", GROUPED)
    path = other / "config.json"
    path.write_text(path.read_text().replace('"llama"', '"llama-next"'))
    command = [sys.executable, "-c", REGISTERING, str(folder), str(other)]
    reported, loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert "llama-next" in reported
    assert loaded == "False"


def test_a_window_without_effect_is_served_as_the_whole_model_computes(made: Made) -> None:
    """Llama knows no window, and the cache that transformers makes for a configuration with one keeps no more than it:
    so there is none to go on from.
    """
    network = Network(made("llama", {**GROUPED, "sliding_window": 16}))
    assert (network.in_rows, network.has_cache) == (False, False)
    prompt = (prompts(1)[0] * 99)[:60]
    (found,) = answered(Engine(network, AdapterBank(network.model, 1, 8), frozenset()), requested(prompt, 8))
    for place, token in enumerate(found):
        with torch.no_grad():
            scores = network.model(torch.tensor([[*prompt, *found[:place]]]), use_cache=False).logits[0, -1]
        assert int(scores.argmax()) == token


# ---- models that also see ----------------------------------------------------------------------------------------

SEEING: list[tuple[str, dict[str, Any]]] = [
    ("gemma3", {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]}),
    ("qwen3_5", {**GROUPED, **LINEAR, "layer_types": ["linear_attention", "full_attention"]}),
]


@pytest.fixture
def seeing(folders: Callable[..., Path], tmp_path: Path) -> Callable[..., tuple[Path, Any]]:
    """The folder of a model with a part that sees, and the model."""

    return lambda family, options: build_family(folders("nano"), tmp_path, family, options, seeing=True)


@pytest.mark.parametrize(("family", "options"), SEEING, ids=named)
def test_of_a_model_that_also_sees_the_language_model_answers_and_learns(
    seeing: Any, family: str, options: dict[str, Any]
) -> None:
    folder, theirs = seeing(family, options)
    read = read_base_folder(folder)
    assert (read.architecture.endswith("ForConditionalGeneration"), read.context_length) == (True, 256)
    assert read.vocabulary_size == 259
    network = Network(folder)
    wanted = [requested((prompt * 9)[:size], 12) for prompt, size in zip(prompts(3), (5, 20, 60), strict=True)]
    expected = [generated(theirs, one.prompt, one.max_tokens) for one in wanted]
    assert answered(Engine(network, AdapterBank(network.model, 1, 8), frozenset()), *wanted) == expected
    trained = attach_adapter(network.model, LoraShape(rank=4, alpha=8), 0, "base")
    row = TokenRow(tuple(wanted[1].prompt), (5, 9), (None,) * 2)
    found, _ = TokenScorer(network).logprobs([row])
    torch.testing.assert_close(found, _logprobs(theirs, row), atol=1e-4, rtol=1e-4)
    found.sum().backward()
    assert all(weights.grad is not None for weights in trained.parameters)


def test_transformers_fills_in_what_a_configuration_leaves_out(seeing: Any) -> None:
    folder, _ = seeing(*SEEING[0])
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for name in ("max_position_embeddings", "vocab_size"):
        del config["text_config"][name]
    path.write_text(json.dumps(config))
    read = read_base_folder(folder)
    assert (read.context_length, read.vocabulary_size) == (131_072, 262_208)


def test_a_family_without_a_causal_language_model_is_refused_when_it_is_added(seeing: Any) -> None:
    folder, _ = seeing(*SEEING[0])
    with pytest.raises(InvalidInput, match="'mistral3', of which this transformers knows no causal language model"):
        add(folder, model_type="mistral3")


# ---- training ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "options"), [SERVED[0], *WINDOWS[-2:], *OWN_LOGITS[2:], *APART[:1], *APART[-2:]], ids=named
)
def test_what_is_trained_is_what_transformers_computes_in_one_pass_and_in_many(
    made: Made, family: str, options: dict[str, Any]
) -> None:
    """Rows of three lengths, padded, layers kept and recomputed: the log-probabilities of the whole model, row by row,
    and their derivatives."""
    network = Network(made(family, options))
    whole = deepcopy(network.model).requires_grad_(True)
    trained, scorer = all_weights(network.model), TokenScorer(network)
    rows = [
        TokenRow(tuple((prompt * 100)[:size]), (3, size - 1), (None,) * 2)
        for prompt, size in zip(prompts(3), (5, 40, 90), strict=True)
    ]
    expected = torch.cat([_logprobs(whole, row) for row in rows])
    expected.sum().backward()
    derivatives = [weights.grad for weights in whole.parameters()]
    for recomputed in (False, True):
        network.model.zero_grad()
        found, _ = scorer.logprobs(rows, recomputed)
        found.sum().backward()
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
        for weights, derivative in zip(trained.parameters, derivatives, strict=True):
            if derivative is None:
                assert weights.grad is None
            else:
                assert weights.grad is not None
                scale = float(derivative.abs().max()) or 1.0
                torch.testing.assert_close(weights.grad / scale, derivative / scale, atol=2e-3, rtol=1e-2)


def _logprobs(model: Any, row: TokenRow) -> torch.Tensor:
    scores = model(torch.tensor([row.ids]), use_cache=False).logits[0].log_softmax(-1)
    return torch.stack([scores[place - 1, row.ids[place]] for place in row.places])


ADAPTED: list[tuple[str, dict[str, Any], set[str]]] = [
    ("phi3", {**GROUPED, "sliding_window": None}, {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}),
    ("gpt_neox", {}, {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}),
    (*OWN_LOGITS[3], {"c_attn", "c_proj", "c_fc"}),
    (*APART[1], {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}),
    (*APART[0], {"in_proj", "x_proj", "dt_proj"}),
    (*APART[4], {"q_proj", "k_proj", "v_proj", "o_proj"}),
    (*SERVED[-1], {"q_proj", "k_proj", "v_proj", "o_proj"}),
]


@pytest.mark.parametrize(("stacked", "targets"), [(True, {"q_proj"}), (False, {"q_proj", "up_proj"})])
def test_experts_that_are_layers_are_adapted_and_what_lies_next_to_a_stack_of_them_is_not(
    stacked: bool, targets: set[str]
) -> None:
    experts = nn.Module() if stacked else nn.ModuleList([nn.ModuleDict({"up_proj": nn.Linear(4, 4)})])
    if stacked:
        experts.weights = nn.Parameter(torch.zeros(2, 4, 4))
    beside = nn.ModuleDict({"up_proj": nn.Linear(4, 4)}) if stacked else nn.ModuleDict()
    parts = {"q_proj": nn.Linear(4, 4), "experts": experts, "shared_experts": beside}
    assert set(LoraShape().resolve(nn.ModuleDict(parts)).targets) == targets


@pytest.mark.parametrize(("family", "options", "targets"), ADAPTED, ids=named)
def test_an_adapter_finds_the_layers_of_a_family_and_is_served_as_it_was_trained(
    made: Made, tmp_path_factory: pytest.TempPathFactory, family: str, options: dict[str, Any], targets: set[str]
) -> None:
    """By us, and by peft."""
    folder, adapter = made(family, options), tmp_path_factory.mktemp("adapter")
    network, serving = Network(folder), Network(folder)
    trained = attach_adapter(network.model, LoraShape(rank=4, alpha=8), 0, "base")
    shape = LoraShape.from_config(trained.other_files[CONFIG_FILE])
    assert set(shape.targets) == targets
    row = TokenRow(tuple(prompts(1)[0]) * 3, (9, 30), (None,) * 2)
    untouched, _ = TokenScorer(network).logprobs([row])
    trained.load({name: torch.randn_like(weights) * 0.3 for name, weights in trained.named.items()})
    expected, _ = TokenScorer(network).logprobs([row])
    assert (expected - untouched).abs().max() > 0.1
    for name, parts in trained.files().items():
        (adapter / name).write_bytes(b"".join(parts))
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = PeftModel.from_pretrained(plain, adapter).eval()
    torch.testing.assert_close(_logprobs(theirs, row), expected, atol=1e-3, rtol=1e-3)
    engine = Engine(serving, AdapterBank(serving.model, 2, 8), frozenset(), rows=2)
    engine.load(1, shape, trained.named)
    for place, wanted in zip(row.places, expected.tolist(), strict=True):
        one = requested(row.ids[:place], 1, slot=1, top_logprobs=259)
        beside = requested(row.ids[:place], 1)
        answered(engine, one, beside)
        assert dict(one.sampled[0].top)[row.ids[place]] == pytest.approx(wanted, abs=2e-3)


def test_a_checkpoint_of_a_model_with_states_is_trained_and_served_alongside_its_base(made: Made) -> None:
    folder = made(*APART[4])
    examples = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "zz"}]}]
    with open_platform() as yard:
        yard.add_base_model(folder, id="hybrid")
        yard.models.create("m", project="p", base_model="hybrid")
        yard.training.sft("p/m", examples * 4, learning_rate=0.05).result()
        before, after = (
            yard.chat.complete(model=name, messages="a", max_tokens=8, temperature=0, logprobs=True)
            for name in ("hybrid", "local/p/m")
        )
        again = yard.chat.complete(model="hybrid", messages="a", max_tokens=8, temperature=0, logprobs=True)
    assert before.choices[0].logprobs == again.choices[0].logprobs
    assert before.choices[0].logprobs != after.choices[0].logprobs

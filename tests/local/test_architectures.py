"""Models of many families are answered as transformers itself answers them, or refused before they are listed."""

import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from local_models import answered, asked, prompts
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from modelyard import open_platform
from modelyard.backends.local.engine import Engine
from modelyard.causal_lm.lora import AdapterBank
from modelyard.causal_lm.network import Network
from modelyard.errors import BackendError, InvalidInput
from modelyard.formats.base_folder import read_base_folder

SHAPE = {
    "vocab_size": 259,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED: dict[str, Any] = {"num_key_value_heads": 1, "head_dim": 16}
EXPERTS: dict[str, Any] = {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
ROPE = {"rope_theta": 10000.0, "original_max_position_embeddings": 64}
LONG = {**ROPE, "rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
WINDOW: dict[str, Any] = {**GROUPED, "sliding_window": 8}
QWEN_WINDOW = {**WINDOW, "use_sliding_window": True, "max_window_layers": 0}

SERVED: list[tuple[str, dict[str, Any]]] = [
    ("llama", GROUPED),
    ("llama", {**GROUPED, "rope_parameters": {**ROPE, "rope_type": "yarn", "factor": 4.0}}),
    ("llama", {**GROUPED, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "dynamic", "factor": 2.0}}),
    ("mistral", {**GROUPED, "sliding_window": 256}),
    ("qwen2", GROUPED),
    ("qwen3", GROUPED),
    ("gemma", GROUPED),
    ("gemma3_text", {**GROUPED, "layer_types": ["full_attention"] * 2}),
    ("phi", {}),
    ("phi3", {**GROUPED, "sliding_window": None}),
    ("phi3", {**GROUPED, "sliding_window": None, "rope_parameters": LONG, "original_max_position_embeddings": 64}),
    ("gpt_neox", {}),
    ("mixtral", {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    ("qwen3_moe", EXPERTS),
]

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("mistral", WINDOW, "sliding_attention"),
    ("qwen2", QWEN_WINDOW, "sliding_attention"),
    ("qwen3", QWEN_WINDOW, "sliding_attention"),
    ("phi3", WINDOW, "sliding_attention"),
    ("gemma2", WINDOW, "sliding_attention"),
    ("gemma2", {**GROUPED, "layer_types": ["full_attention"] * 2}, "caps its logits"),
    ("gemma3_text", WINDOW, "sliding_attention"),
    ("llama4_text", {**GROUPED, "num_local_experts": 2, "attention_chunk_size": 8}, "chunked_attention"),
    ("qwen3_next", GROUPED, "linear_attention"),
    ("mamba", {}, "keeps a state"),
    ("jamba", GROUPED, "keeps a state"),
    ("cohere", GROUPED, "scales its logits"),
]

Made = Callable[[str, dict[str, Any]], Path]


@pytest.fixture
def made(folders: Callable[..., Path], tmp_path: Path) -> Made:
    """The folder of a model of a family, whose weights are large, so that every token matters to those behind it."""

    def make(family: str, options: dict[str, Any]) -> Path:
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model: Any = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**deepcopy({**SHAPE, **options})))
        with torch.no_grad():
            for weights in model.parameters():
                weights.mul_(8 if weights.ndim > 1 else 1)
        for path in folders("nano").iterdir():
            if path.name not in ("config.json", "generation_config.json", "model.safetensors"):
                shutil.copy(path, tmp_path)
        model.save_pretrained(tmp_path)
        return tmp_path

    return make


def generated(model: Any, prompt: list[int], count: int) -> list[int]:
    """What transformers answers, alone."""
    ids = torch.tensor([prompt])
    options: dict[str, Any] = {"max_new_tokens": count, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    found: list[int] = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)[0].tolist()
    return found[len(prompt) :]


@pytest.mark.parametrize(("family", "options"), SERVED, ids=lambda one: one if isinstance(one, str) else "")
def test_what_is_registered_answers_as_transformers_does(made: Made, family: str, options: dict[str, Any]) -> None:
    """Short ones beside long ones, below and above where windows and scaled positions would tell."""
    folder = made(family, options)
    longest = read_base_folder(folder).context_length
    network = Network(folder)
    engine = Engine(network, AdapterBank(network.model, 1, 8), frozenset())
    lengths = (5, 20, longest // 2, longest - 24)
    beside = [(prompt * longest)[:length] for prompt, length in zip(prompts(4), lengths, strict=True)]
    asked_for = [asked(prompt, 24) for prompt in beside]
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    expected = [generated(theirs, one.prompt, one.max_tokens) for one in asked_for]
    assert answered(engine, *asked_for) == expected


@pytest.mark.parametrize(("family", "options", "told"), REFUSED, ids=lambda one: one if isinstance(one, str) else "")
def test_what_would_be_answered_wrongly_is_refused_when_it_is_registered(
    made: Made, family: str, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidInput, match=told):
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
    with pytest.raises(InvalidInput, match="model_type 'llama-next', which this transformers does not know") as refused:
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
    pytest.importorskip("transformers.models.auto.auto_mappings", reason="this transformers tells only with torch")
    other = made("llama", GROUPED)
    path = other / "config.json"
    path.write_text(path.read_text().replace('"llama"', '"llama-next"'))
    command = [sys.executable, "-c", REGISTERING, str(folder), str(other)]
    told, loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert "llama-next" in told
    assert loaded == "False"


def test_a_window_that_no_configuration_tells_is_found_when_the_network_loads(made: Made) -> None:
    """Here what the configuration says is hidden from the check at registration."""
    folder = made("mistral", WINDOW)
    with pytest.raises(BackendError, match="MistralForCausalLM makes its logits in a way of its own"):
        Network(folder)

"""Checkpoints as GGUF files: read by transformers' own loader, they have the same weights and answers."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from families import build_family
from safetensors.torch import load_file, save_file
from test_exports import answered_here, assert_same_answer, random_adapter, trained
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from modelyard import open_platform
from modelyard.errors import Conflict, InvalidInput

gguf = pytest.importorskip("gguf")

from modelyard.parts.torch.exports.gguf_families import FAMILIES, added_tensors, family_of  # noqa: E402
from modelyard.parts.torch.exports.gguf_tokenizer import read_tokenizer  # noqa: E402

GROUPED = {"num_key_value_heads": 1, "head_dim": 16}
MADE: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "mistral": {**GROUPED, "sliding_window": None},
    "qwen2": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "qwen3": {"num_key_value_heads": 1, "head_dim": 128},  # transformers reads files of this size alone
}
KINDS = ("f32", "f16", "bf16", "q8_0")


def rounded(weights: torch.Tensor, kind: str) -> torch.Tensor:
    """What is left of a matrix in a file; vectors stay as they are."""
    if weights.ndim < 2:
        return weights
    stored = gguf.GGMLQuantizationType[kind.upper()]
    return torch.from_numpy(gguf.dequantize(gguf.quantize(weights.float().numpy(), stored), stored).copy())


@pytest.fixture(scope="module")
def bases(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for family, options in MADE.items():
        place = tmp_path_factory.mktemp(family)
        made[family], _ = build_family(folder, place, family, options)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", MADE)
def test_a_file_comes_back_with_its_weights_and_answers(
    family: str, kind: Any, bases: dict[str, Path], tmp_path: Path
) -> None:
    with open_platform() as yard:
        yard.add_base_model(bases[family], id="base")
        yard.models.import_adapter(
            random_adapter(bases[family], tmp_path / "adapter"), "tuned", project="d", base_model="base"
        )
        yard.models.export("d/tuned", tmp_path / "merged", merged=True)
        yard.models.export("d/tuned", tmp_path / "file.gguf", gguf=kind)
        yard.add_base_model(tmp_path / "file.gguf", id="back")
        want = load_file(tmp_path / "merged" / "model.safetensors")
        found = load_file(tmp_path / "file" / "model.safetensors")
        assert found.keys() == want.keys()
        for name in want:
            assert torch.equal(found[name].float(), rounded(want[name].float(), kind)), name
        if kind == "f32":
            assert_same_answer(answered_here(yard, "back"), answered_here(yard, "local/d/tuned:step1"))
            assert {one.id: one.source.get("lost") for one in yard.base_models()}["back"] == ""


def test_the_template_and_the_tokens_are_carried(folder: Path, tmp_path: Path) -> None:
    with open_platform() as yard:
        yard.add_base_model(folder, id="tiny")
        yard.models.export(trained(yard, "tiny"), tmp_path / "file.gguf", gguf="f16", license="mit")
    reader = gguf.GGUFReader(tmp_path / "file.gguf")
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["tokenizer.chat_template"] == (folder / "chat_template.jinja").read_text()
    assert (fields["general.architecture"], fields["general.name"]) == ("qwen3", "counter step 1")
    assert (fields["general.license"], fields["tokenizer.ggml.pre"]) == ("mit", "gpt-2")
    assert fields["tokenizer.ggml.add_bos_token"] is False
    assert fields["tokenizer.ggml.eos_token_id"] == 2
    types = dict(zip(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"], strict=True))
    assert (types["<|im_end|>"], types["a"]) == (gguf.TokenType.CONTROL, gguf.TokenType.NORMAL)
    assert len(types) == 259


def test_nothing_is_written_over_and_a_refusal_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "base")
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"][0, 0] = 1e6
    save_file(weights, tmp_path / "base" / "model.safetensors", {"format": "pt"})
    with open_platform() as yard:
        yard.add_base_model(tmp_path / "base", id="tiny")
        yard.models.create("counter", project="demo", base_model="tiny")
        with pytest.raises(InvalidInput, match=r"too large for f16"):
            yard.models.export("demo/counter", tmp_path / "file.gguf", gguf="f16")
        assert os.listdir(tmp_path) == ["base"]
        yard.models.export("demo/counter", tmp_path / "file.gguf", gguf="bf16")
        with pytest.raises(Conflict, match="there already"):
            yard.models.export("demo/counter", tmp_path / "file.gguf", gguf="bf16")
        with pytest.raises(InvalidInput, match="q2_k"):
            yard.models.export("demo/counter", tmp_path / "other.gguf", gguf="q2_k")  # type: ignore[arg-type]


def test_a_family_that_is_not_known_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    base, _ = build_family(folder, tmp_path, "gpt_neox", {})
    with open_platform() as yard:
        yard.add_base_model(base, id="base")
        yard.models.create("counter", project="demo", base_model="base")
        with pytest.raises(InvalidInput, match=r"GPTNeoXForCausalLM.*LlamaForCausalLM"):
            yard.models.export("demo/counter", tmp_path / "file.gguf", gguf="f16")
    assert not (tmp_path / "file.gguf").exists()


@pytest.mark.parametrize(
    ("family", "options", "said"),
    [
        ("llama", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ("llama", {"hidden_act": "gelu"}, "gelu"),
        ("mistral", {"sliding_window": 8}, "sliding_window"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8}, "use_sliding_window"),
    ],
    ids=["positions", "activation", "mistral", "qwen2"],
)
def test_a_configuration_without_a_place_is_refused_by_name(family: str, options: dict[str, Any], said: str) -> None:
    config = AutoConfig.for_model(family, **options)
    named = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}[family]
    with pytest.raises(InvalidInput, match=said):
        family_of(named, config)
    family_of(named, AutoConfig.for_model(family, sliding_window=None))
    assert named in FAMILIES


def test_scaled_positions_are_those_of_transformers() -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = AutoConfig.for_model("llama", head_dim=128, max_position_embeddings=131072, rope_parameters=rope)
    want, _ = ROPE_INIT_FUNCTIONS["llama3"](config, device="cpu")
    plain = 1 / 500000.0 ** (torch.arange(0, 128, 2) / 128)
    ((name, factors),) = added_tensors(config)
    assert name == "rope_freqs.weight"
    torch.testing.assert_close(plain / torch.from_numpy(factors), want, rtol=1e-5, atol=0)


# ---- tokenizers ----------------------------------------------------------------------------------------------------

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def split(pattern: str) -> dict[str, Any]:
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    one = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [one, bytes_only]}


def digits() -> dict[str, Any]:
    usual = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    return {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, usual]}


@pytest.fixture
def merging(tmp_path: Path) -> Any:
    """A folder with a tokenizer that merges, changed as asked."""

    def folder(**changes: Any) -> Path:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=300, initial_alphabet=alphabet, special_tokens=["<s>"], show_progress=False
        )
        tokenizer.train_from_iterator(["the cat that sat on the mat " * 9] * 9, trainer=trainer)
        tokenizer.add_tokens(["<think>"])
        described = json.loads(tokenizer.to_str())
        described["model"]["ignore_merges"] = changes.pop("ignore_merges", False)
        described["model"]["type"] = changes.pop("kind", "BPE")
        (tmp_path / "tokenizer.json").write_text(json.dumps(described | changes))
        (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>", "add_bos_token": true}')
        (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
        return tmp_path

    return folder


def test_tokens_have_types_and_the_rest_is_padding(merging: Any) -> None:
    found = read_tokenizer(merging(), 400)
    kinds = dict(zip(found.tokens, found.types, strict=True))
    assert (kinds["<s>"], kinds["<think>"]) == (gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED)
    assert (kinds["Ġthe"], kinds["[PAD399]"]) == (gguf.TokenType.NORMAL, gguf.TokenType.UNUSED)
    assert len(found.tokens) == 400
    assert "t h" in found.special.merges
    assert (found.special.special_token_ids["bos"], found.special.add_special_token["bos"]) == (0, True)


def test_further_templates_are_carried(merging: Any) -> None:
    folder = merging()
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    assert read_tokenizer(folder, 400).special.chat_template == [
        {"name": "default", "template": "{{ messages }}"},
        {"name": "tool_use", "template": "{{ tools }}"},
    ]


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({}, "gpt-2"),
        ({"pre_tokenizer": digits()}, "smollm"),
        ({"pre_tokenizer": split(LLAMA_3), "ignore_merges": True}, "llama-bpe"),
        ({"pre_tokenizer": split(LLAMA_3.replace("{1,3}", "")), "normalizer": {"type": "NFC"}}, "qwen2"),
    ],
    ids=["usual", "digits", "llama3", "qwen2"],
)
def test_a_rule_of_splitting_has_the_name_that_llama_cpp_has(merging: Any, changes: dict[str, Any], rule: str) -> None:
    assert read_tokenizer(merging(**changes), 400).rule == rule


@pytest.mark.parametrize(
    "changes",
    [
        {"pre_tokenizer": split("x+")},
        {"pre_tokenizer": split(LLAMA_3)},
        {"ignore_merges": True},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}},
        {"pre_tokenizer": {"type": "Metaspace"}},
        {"pre_tokenizer": None},
        {"normalizer": {"type": "Lowercase"}},
        {"kind": "Unigram"},
    ],
    ids=["rule", "llama3 without whole tokens", "whole tokens", "prefix", "metaspace", "none", "lowercase", "unigram"],
)
def test_a_tokenizer_that_llama_cpp_would_read_otherwise_is_refused(merging: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="merged"):
        read_tokenizer(merging(**changes), 400)


def test_more_tokens_than_weights_are_refused(merging: Any) -> None:
    with pytest.raises(InvalidInput, match="of 20 only"):
        read_tokenizer(merging(), 20)

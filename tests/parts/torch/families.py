"""Tiny models of many families of transformers, by how they are served."""

import shutil
import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, cache_utils
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

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

WINDOWS: list[tuple[str, dict[str, Any]]] = [
    ("mistral", WINDOW),
    ("qwen3", QWEN_WINDOW),
    ("qwen2", {**QWEN_WINDOW, "layer_types": ["full_attention", "sliding_attention"]}),
    ("phi3", WINDOW),
    ("gemma2", WINDOW),
    ("gemma3_text", {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]}),
]
"""Some layers, or all, see but the last tokens; in some, what they see and the logits are capped too."""

OWN_LOGITS: list[tuple[str, dict[str, Any]]] = [
    ("gemma2", {**GROUPED, "layer_types": ["full_attention"] * 2, "final_logit_softcapping": 3.0}),
    ("cohere", {**GROUPED, "logit_scale": 0.25}),
    ("granite", {**GROUPED, "logits_scaling": 8.0, "embedding_multiplier": 2.0}),
    ("gpt2", {}),
]

LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
COMPRESSED = {
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim"), 8),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "num_key_value_heads": 2,
    "v_head_dim": 16,
}

APART: list[tuple[str, dict[str, Any]]] = [
    ("mamba", {"state_size": 4}),
    ("bloom", {}),
    ("gpt_neo", {"attention_types": [[["global", "local"], 1]], "window_size": 8, "num_layers": 2}),
    ("llama4_text", {**GROUPED, "num_local_experts": 2, "attention_chunk_size": 8, "intermediate_size_mlp": 64}),
    ("qwen3_next", {**EXPERTS, **LINEAR, "layer_types": ["linear_attention", "full_attention"]}),
    ("deepseek_v3", COMPRESSED),
]
"""What they keep of a sequence does not lie in rows."""

_STATES = () if hasattr(cache_utils, "LinearAttentionLayer") else ("mamba", "qwen3_next")
ONE_BY_ONE = ("bloom", "llama4_text", *_STATES)
"""Of these, those of whom not even a token more can be read of many at a time; with an older transformers more."""

VISION = dict.fromkeys(("hidden_size", "intermediate_size", "out_hidden_size"), 16)
VISION |= dict.fromkeys(("num_hidden_layers", "num_attention_heads", "depth", "num_heads"), 1)
VISION |= {"image_size": 28, "patch_size": 14}


def build_family(
    words: Path, folder: Path, family: str, options: dict[str, Any], seeing: bool = False, times: float = 8
) -> tuple[Path, Any]:
    """The folder of a model of a family, with the tokenizer of another folder, and the model. Its weights are some
    `times` as large as they are drawn, so that every token matters to those after it.
    """
    torch.manual_seed(0)
    shape = deepcopy({**SHAPE, **options})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if seeing:
            config = CONFIG_MAPPING[family](text_config=shape, vision_config=VISION)
            model: Any = AutoModelForImageTextToText.from_config(config)
        else:
            model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**shape))
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(times if weights.ndim > 1 else 1)
    for path in words.iterdir():
        if path.name not in ("config.json", "generation_config.json", "model.safetensors"):
            shutil.copy(path, folder)
    model.save_pretrained(folder)
    return folder, model.eval()

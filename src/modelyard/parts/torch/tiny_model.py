"""A causal language model of a few thousand random weights, generated for tests and examples, never downloaded.

It has everything that a real base model has: a folder in the transformers format with a byte-level tokenizer, a chat
template with tools, and safetensors. Its answers are noise until it is trained.
"""

import os
from pathlib import Path
from typing import Any, Literal

from modelyard.errors import MissingExtra

try:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging as transformers_logging
except ImportError as error:
    raise MissingExtra("torch", "torch") from error

Size = Literal["nano", "micro", "mini"]
Architecture = Literal["qwen3", "llama"]

_SIZES: dict[str, dict[str, int]] = {
    "nano": {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "ffn": 64},
    "micro": {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "ffn": 128},
    "mini": {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "ffn": 256},
}
"""27 thousand, 91 thousand and 329 thousand weights, each in two layers."""

_CLASSES: dict[str, tuple[Any, Any]] = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
}
_END, _TURN, _TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

# An untrained head is so flat that an adapter, which leaves it as it is, could never make an answer likely.
_HEAD_SCALE = 3.0

TEMPLATE = (
    "{%- if tools %}<|im_start|>system\n# Tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    'Call one with <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>\n{% endif %}'
    "{%- for message in messages %}"
    "{%- if message.role == 'assistant' %}<|im_start|>assistant\n{% generation %}{{ message.content or '' }}"
    "{%- for call in (message.tool_calls or []) %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>{% endgeneration %}"
    "{%- else %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tiny_model(
    folder: str | os.PathLike[str],
    size: Size = "micro",
    *,
    architecture: Architecture = "qwen3",
    seed: int = 0,
    context_length: int = 1024,
) -> Path:
    """Write a model into `folder`, which is created; return its path. Equal arguments give equal weights."""
    path = Path(folder)
    tokenizer = _tokenizer()
    transformers_logging.disable_progress_bar()
    _network(size, architecture, seed, context_length, tokenizer).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def _tokenizer() -> Any:
    """Create a tokenizer with one token for each byte, and three special tokens: 259 in all."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    marks = [_END, _TURN, _TURN_END]
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + len(marks), initial_alphabet=alphabet, special_tokens=marks, show_progress=False
    )
    tokenizer.train_from_iterator([], trainer=trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=_TURN_END, pad_token=_END)
    made.chat_template = TEMPLATE
    return made


def _network(size: Size, architecture: Architecture, seed: int, context_length: int, tokenizer: Any) -> Any:
    make_config, make_network = _CLASSES[architecture]
    shape = dict(_SIZES[size])
    config = make_config(
        vocab_size=len(tokenizer),
        intermediate_size=shape.pop("ffn"),
        num_hidden_layers=2,
        max_position_embeddings=context_length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **shape,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = make_network(config)
    with torch.no_grad():
        network.get_output_embeddings().weight.mul_(_HEAD_SCALE)
    return network

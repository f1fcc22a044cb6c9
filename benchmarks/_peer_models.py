"""A tiny local model, answered by our engine and by other libraries, each in an environment of its own.

    python benchmarks/_peer_models.py FOLDER     writes the model and what `generate()` answers; needs torch

All compute with 32-bit floats on one thread, greedily and without a cache of prompts. Before it is measured, each has
given the answers of `generate()`: ours, and vLLM's, to the last token; llama.cpp adds in another order, so that two
words that are nearly as likely may change places late in an answer.
"""

import json
import os
import random
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

TOKENS = 64
ROWS = (1, 8, 32)
"""Answers at once."""

PROMPT = 24
LENGTH = 256
"""Tokens that a prompt and its answer may have."""

SAME = 8
"""Tokens that llama.cpp must give as the others do."""

SHAPE = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "layer_types": ["full_attention"] * 8,
    "max_window_layers": 8,
    "tie_word_embeddings": False,
}
"""25 million weights behind the words of the tiny model."""

Tokens = list[int]
Answers = Callable[[Sequence[Tokens]], list[Tokens]]


def model() -> Path:
    """The folder of the model."""
    return Path(os.environ["PEER_MODEL"])


def prompts(rows: int, seed: int) -> list[Tokens]:
    """Random prompts; those of one seed are always the same."""
    draw = random.Random(f"{rows} {seed}")
    return [[draw.randrange(3, 256) for _ in range(PROMPT)] for _ in range(rows)]


def answering(rows: int, answers: Answers, same: int = TOKENS) -> Callable[[int], object]:
    """Answers to prompts that were never seen, when the answers to the first are right up to the token `same`."""
    expected = json.loads((model() / "expected.json").read_text())[str(rows)]
    found = answers(prompts(rows, 0))
    assert [len(answer) for answer in found] == [TOKENS] * rows
    assert [answer[:same] for answer in found] == [answer[:same] for answer in expected], found
    seeds = count(1)
    return lambda calls: [answers(prompts(rows, next(seeds))) for _ in range(calls)]


# ---- who answers -------------------------------------------------------------------------------------------------


def engine(rows: int) -> Callable[[int], object]:
    """Our local engine."""
    import torch
    from _answering import answered, engine_of

    from modelyard.parts.torch.network import Network

    torch.set_num_threads(1)
    ours = engine_of(Network(model()), rows)
    return answering(rows, lambda requested: answered(ours, requested, TOKENS))


def generate(rows: int) -> Callable[[int], object]:
    """`generate()` of transformers, with the same torch."""
    import torch
    from _answering import generated
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    theirs = AutoModelForCausalLM.from_pretrained(model(), dtype=torch.float32).eval()
    return answering(rows, lambda requested: generated(theirs, requested, TOKENS))


def vllm(rows: int) -> Callable[[int], object]:
    """vLLM on the processor, compiled as it is by default, with its engine in this process."""
    processor = max(os.sched_getaffinity(0))
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(processor),
        "VLLM_CACHE_ROOT": str(Path(os.environ["PEER_HOME"]) / "compiled"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
    }
    import vllm as library

    options = {"dtype": "float32", "max_model_len": LENGTH, "max_num_seqs": max(ROWS), "enable_prefix_caching": False}
    theirs = library.LLM(str(model()), disable_log_stats=True, **options)
    how = library.SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)

    def answers(requested: Sequence[Tokens]) -> list[Tokens]:
        made = theirs.generate([{"prompt_token_ids": prompt} for prompt in requested], how, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in made]

    return answering(rows, answers)


def llama_cpp(rows: int) -> Callable[[int], object]:
    """The server of llama.cpp in this process, with a slot for each answer."""
    import xllamacpp as library

    params = library.CommonParams()
    params.model.path = str(written_as_gguf(Path(os.environ["PEER_HOME"]) / "model.gguf"))
    params.n_parallel, params.n_ctx = rows, rows * LENGTH
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_type_k = params.cache_type_v = library.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = library.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED  # slower, and less exact
    params.cache_prompt, params.cache_ram_mib = False, 0
    server, threads = library.Server(params), ThreadPoolExecutor(rows)
    asked = {"n_predict": TOKENS, "temperature": 0, "ignore_eos": True, "cache_prompt": False}

    def answer(prompt: Tokens) -> Tokens:
        text = server.handle_completions({"prompt": prompt, **asked})["choices"][0]["text"]
        return [int(word) for word in text.split(",")[:-1]]

    return answering(rows, lambda requested: list(threads.map(answer, requested)), SAME)


# ---- the model ---------------------------------------------------------------------------------------------------


def write(folder: Path) -> None:
    """Write a model of random weights, and what `generate()` answers to the first prompts."""
    import torch
    from _answering import generated
    from transformers import AutoConfig, AutoModelForCausalLM

    from modelyard.parts.torch.tiny_model import build_tiny_model

    torch.set_num_threads(1)
    build_tiny_model(folder, "mini")
    config = AutoConfig.from_pretrained(folder)
    config.update(SHAPE)
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        network.get_output_embeddings().weight.mul_(3)  # else all words are about as likely
    network.save_pretrained(folder)
    expected = {rows: generated(network, prompts(rows, 0), TOKENS) for rows in ROWS}
    (folder / "expected.json").write_text(json.dumps(expected), encoding="utf-8")


def written_as_gguf(path: Path) -> Path:
    """Write the model as llama.cpp reads it. Its words are the numbers of the tokens, so that a text tells them."""
    import gguf

    folder, architecture = model(), gguf.MODEL_ARCH.QWEN3
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"{number}," for number in range(config["vocab_size"])])
    writer.add_token_types([gguf.TokenType.NORMAL] * config["vocab_size"])
    writer.add_token_merges(["a b"])  # there must be one
    writer.add_eos_token_id(config["eos_token_id"])
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    for name, values in weights_of(folder / "model.safetensors"):
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def weights_of(path: Path) -> list[tuple[str, Any]]:
    """The tensors of a safetensors file of 32-bit floats, as arrays of numpy."""
    import numpy as np

    raw = path.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    found = []
    for name, told in json.loads(raw[8:begin]).items():
        if name != "__metadata__":
            assert told["dtype"] == "F32", name
            low, high = told["data_offsets"]
            values = np.frombuffer(raw, np.float32, (high - low) // 4, begin + low)
            found.append((name, values.reshape(told["shape"])))
    return found


if __name__ == "__main__":
    write(Path(sys.argv[1]))

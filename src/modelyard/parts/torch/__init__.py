"""Causal language models on torch: the network, its adapters and its tokenizer, served and trained."""

from modelyard.lazy import defer_modules

defer_modules(
    __name__, "cuda_graphs", "kv_cache", "lora", "model_folder", "network", "pooling", "records", "service", "tokenizer"
)

"""Serving causal language models on torch: continuous batching with an adapter for each request."""

from modelyard.lazy import defer_modules

defer_modules(
    __name__, "backend", "batching_engine", "loaded_model", "model_pool", "sampler", "sentence_encoder", "sequence"
)

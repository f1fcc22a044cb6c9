"""A causal language model on torch: its tokens and chat template, its network, and its adapters.

What serving and training share. Nothing here is loaded before a local model is used.
"""

from modelyard.deferred import defer_modules

defer_modules(__name__, "cache", "chat", "graphs", "head", "lora", "network")

"""The LoRA adapters of checkpoints, loaded into and evicted from an upstream server."""

"""Checkpoints for elsewhere: adapter folders, merged folders, GGUF files, hubs and object stores."""

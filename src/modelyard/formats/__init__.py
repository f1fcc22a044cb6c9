"""Bytes as they lie in files and bodies, read and written incrementally: JSON, JSON Lines, safetensors."""

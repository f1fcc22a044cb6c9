"""Bytes of files and bodies, read and written incrementally: JSON, JSON Lines, safetensors."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "converter")

"""How a folder of the transformers format makes one vector of a text, as sentence-transformers describes it there.

`1_Pooling/config.json` names the way: the mean of the hidden states of all tokens, or the state of the last one. A
folder without it is a language model, of which the last token's state is taken, as vLLM does. Vectors are always scaled
to length 1.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

from modelyard.errors import InvalidInput
from modelyard.parts.torch.model_config import CONFIG, language_model
from modelyard.parts.torch.sentence_folder import read_settings

POOLING = "1_Pooling/config.json"
_LARGEST = 2**16
"""Bytes of that file at most."""

_SIZES = ("hidden_size", "n_embd", "d_model")


class Pooling(StrEnum):
    """How the hidden states of a text's tokens become one vector."""

    MEAN = "mean"
    LAST = "last"


@lru_cache
def pooling_of(path: str) -> Pooling | None:
    """Return the pooling that a folder describes, or None if it is unknown here."""
    described = Path(path) / POOLING
    if not described.is_file():
        return Pooling.LAST
    modes = _object(described)
    wanted = {name for name, on in modes.items() if name.startswith("pooling_mode_") and on is True}
    known = {"pooling_mode_mean_tokens": Pooling.MEAN, "pooling_mode_lasttoken": Pooling.LAST}
    return known.get(wanted.pop()) if len(wanted) == 1 else None


@lru_cache
def embedding_size(path: str) -> int:
    """Return how many numbers an embedding has: 0 if the folder is gone, or its pooling is unknown."""
    if pooling_of(path) is None:
        return 0
    try:
        sizes = language_model(_object(Path(path) / CONFIG))
    except InvalidInput:
        return 0
    found = next((sizes[name] for name in _SIZES if name in sizes), 0)
    return found if type(found) is int and found > 0 else 0


@lru_cache
def sentence_size(path: str) -> int:
    """Return how many numbers an embedding of a sentence encoder has: 0 if its folder is gone."""
    try:
        return read_settings(Path(path), _object(Path(path) / CONFIG)).size
    except (InvalidInput, KeyError):
        return 0


def _object(path: Path) -> Mapping[str, Any]:
    """Return the JSON object in a small file; an empty object if it holds none."""
    try:
        value = json.loads(path.read_bytes()) if path.stat().st_size <= _LARGEST else None
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}

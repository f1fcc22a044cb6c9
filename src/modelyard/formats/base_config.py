"""The configuration of a causal language model (transformers' `config.json`): whether what it asks for is served."""

import sys
from collections.abc import Container, Mapping
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any

from modelyard.errors import InvalidInput

CONFIG = "config.json"

_CAUSAL, _OTHER = ("ForCausalLM", "LMHeadModel"), "WithLMHeadModel"
_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_UNSCALED = "original_max_position_embeddings"
_AUTO = "transformers.models.auto.configuration_auto"
_TABLE = "models/auto/auto_mappings.py"


def check_config(config: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` for a model that would be answered wrongly or not at all, as far as it can be told here."""
    _check_class(config)
    _check_family(config)
    _check_kind(config)
    context_length(config)
    _positive(config, "vocab_size")


def _refused(msg: str) -> InvalidInput:
    return InvalidInput.at("path", CONFIG, msg=msg)


def _check_class(config: Mapping[str, Any]) -> None:
    named = config.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
        raise _refused("must name one class in `architectures`")
    if not named[0].endswith(_CAUSAL) or named[0].endswith(_OTHER):
        raise _refused(f"is of a {named[0]}; only causal language models of classes named ...{_CAUSAL[0]} are served")


def _check_family(config: Mapping[str, Any]) -> None:
    family, known = config.get("model_type"), _families()
    if not isinstance(family, str):
        raise _refused("must say model_type, the family of this model in transformers")
    if known is not None and family not in known:
        raise _refused(
            f"is of model_type {family[:100]!r}, which this transformers does not know; install one that does, or "
            "choose another base model",
        )


def _families() -> Container[str] | None:
    """What the transformers that is installed knows, as far as it tells without being imported, which takes seconds:
    None for nothing. Some versions have no such table, and tell when the model is loaded.
    """
    known: Container[str] | None
    if _AUTO in sys.modules:
        known = sys.modules[_AUTO].CONFIG_MAPPING  # with those of the host
        return known
    package = find_spec("transformers")
    if package is None or package.origin is None:
        return None
    try:
        known = run_path(str(Path(package.origin).parent / _TABLE)).get("CONFIG_MAPPING_NAMES")
    except (OSError, ImportError):
        return None
    return known


_ODD: Mapping[str, tuple[str, tuple[object, ...]]] = {
    "type_vocab_size": ("sees what comes behind a token", (None,)),
    "decoder_layers": ("answers an encoder", (None,)),
    "quantization_config": ("has quantized weights", (None,)),
}
"""What a configuration says of a model that is no causal one of plain weights, and where it does not mean it."""


def _check_kind(config: Mapping[str, Any]) -> None:
    for name, (what, harmless) in _ODD.items():
        if name in config and config[name] not in harmless:
            raise _refused(f"is of a model that {what} ({name}), which is not served; choose another base model")


def context_length(config: Mapping[str, Any]) -> int:
    """How many tokens a model of this configuration is served and trained with. Raises `InvalidInput`.

    Where longrope changes the positions of all tokens when a sequence passes a length, it ends there: what was read
    before, and what is read beside it, would be wrong.
    """
    most = _positive(config, next((name for name in _LENGTHS if name in config), _LENGTHS[0]))
    return min([most, *(length for rope in _ropes(config) for length in _unscaled(config, rope))])


def _ropes(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """How positions are scaled: in all layers, or in those of one kind each."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise _refused("says how positions are scaled (rope_parameters, rope_scaling), which must be an object")
    return [one for one in rope.values() if isinstance(one, Mapping)] or [rope]


def _unscaled(config: Mapping[str, Any], rope: Mapping[str, Any]) -> list[int]:
    """Up to where longrope leaves positions as they are; nothing where they are scaled in another way."""
    kind = rope.get("rope_type", rope.get("type"))
    if kind == "su":
        raise _refused("asks for scaled positions of type 'su', which transformers now calls 'longrope'")
    if kind != "longrope":
        return []
    told = [_positive(where, _UNSCALED) for where in (rope, config) if where.get(_UNSCALED) is not None]
    if not told:
        raise _refused(f"asks for longrope, and must say {_UNSCALED}: the context ends there")
    return told


def _positive(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if type(value) is not int or value < 1:
        raise _refused(f"must say {name}, a whole number above 0")
    return value

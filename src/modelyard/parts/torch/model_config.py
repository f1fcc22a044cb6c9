"""The configuration of a causal language model (transformers' `config.json`): whether what it asks for is served."""

import ast
import sys
from collections.abc import Container, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from modelyard.errors import InvalidInput

CONFIG = "config.json"

_CAUSAL, _OTHER = ("ForCausalLM", "LMHeadModel"), "WithLMHeadModel"
_SEEING = "ForConditionalGeneration"
_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_UNSCALED = "original_max_position_embeddings"
_AUTO = "transformers.models.auto.configuration_auto"
_TABLE, _TABLE_FILE = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "models/auto/modeling_auto.py"


def check_config(config: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` for a model that would be answered wrongly or not at all, as far as this file shows."""
    _check_class(config)
    _check_family(config)
    _check_kind(config)
    context_length(config)
    vocabulary_size(config)


def _refused(msg: str) -> InvalidInput:
    return InvalidInput.at("path", CONFIG, msg=msg)


def _check_class(config: Mapping[str, Any]) -> None:
    named = config.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
        raise _refused("must name one class in `architectures`")
    causal = named[0].endswith(_CAUSAL) and not named[0].endswith(_OTHER)
    if not (causal or (named[0].endswith(_SEEING) and "text_config" in config)):
        raise _refused(f"is of a {named[0]}; only causal language models of classes named ...{_CAUSAL[0]} are served")


def _check_family(config: Mapping[str, Any]) -> None:
    family, known = config.get("model_type"), _families()
    if not isinstance(family, str):
        raise _refused("must say model_type, the family of this model in transformers")
    if known is not None and family not in known:
        raise _refused(
            f"is of model_type {family[:100]!r}, of which this transformers knows no causal language model; install "
            "one that does, or choose another base model",
        )


def _families() -> Container[str] | None:
    """Return the families that the installed transformers has causal language models of; None if that is unknown.

    Transformers is read, and not imported: that takes seconds.
    """
    package = find_spec("transformers")
    if package is None or package.origin is None:
        return None
    try:
        found = _named_in_table(ast.parse((Path(package.origin).parent / _TABLE_FILE).read_bytes()))
    except (OSError, SyntaxError, ValueError, TypeError):
        return None
    taught = getattr(sys.modules[_AUTO].CONFIG_MAPPING, "_extra_content", ()) if _AUTO in sys.modules else ()
    return {*found, *taught} if found else None  # what the host has taught it too


def _named_in_table(tree: ast.Module) -> set[str]:
    """Return the first of each pair of the table; nothing if there is no such table."""
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(args=[pairs])) if name == _TABLE:
                return {family for family, _ in ast.literal_eval(pairs)}
    return set()


# ---- the language model ------------------------------------------------------------------------------------------


def language_model(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a configuration that describes the language model.

    In the configuration of a model that also sees or hears, that is a separate part. Sizes that are left to the
    defaults of the family are added if transformers is installed.
    """
    own = config.get("text_config")
    declared = own if isinstance(own, Mapping) else config
    if "vocab_size" in declared and any(name in declared for name in _LENGTHS):
        return declared
    return {**_default_sizes(config.get("model_type")), **declared}


def _default_sizes(family: Any) -> Mapping[str, Any]:
    if not isinstance(family, str) or find_spec("transformers") is None:
        return {}
    from transformers import AutoConfig  # noqa: PLC0415 - it takes a second, and is seldom needed

    try:
        sizes = AutoConfig.for_model(family).get_text_config().to_dict()
    except Exception:  # noqa: BLE001 - what the configuration lacks is reported instead
        return {}
    return {name: sizes[name] for name in ("vocab_size", *_LENGTHS) if name in sizes}


def vocabulary_size(config: Mapping[str, Any]) -> int:
    return _positive(language_model(config), "vocab_size")


_ODD: Mapping[str, tuple[str, tuple[object, ...]]] = {
    "type_vocab_size": ("sees what comes after a token", (None,)),
    "decoder_layers": ("answers an encoder", (None,)),
    "is_encoder_decoder": ("answers an encoder", (None, False)),
    "quantization_config": ("has quantized weights", (None,)),
}
"""Members of a configuration whose model is not a causal one of plain weights, and their values that are harmless."""


def _check_kind(config: Mapping[str, Any]) -> None:
    for name, (what, harmless) in _ODD.items():
        if name in config and config[name] not in harmless:
            raise _refused(f"is of a model that {what} ({name}), which is not served; choose another base model")


def context_length(config: Mapping[str, Any]) -> int:
    """Return how many tokens a model of this configuration is served and trained with. Raises `InvalidInput`.

    If longrope changes the positions of all tokens when a sequence passes a length, the context ends there: what was
    read before, and what is read next to it, would be wrong.
    """
    declared = language_model(config)
    most = _positive(declared, next((name for name in _LENGTHS if name in declared), _LENGTHS[0]))
    return min([most, *(length for rope in _ropes(declared) for length in _unscaled(declared, rope))])


def _ropes(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the scalings of positions: one of all layers, or one of each kind of layer."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise _refused("says how positions are scaled (rope_parameters, rope_scaling), which must be an object")
    return [one for one in rope.values() if isinstance(one, Mapping)] or [rope]


def _unscaled(config: Mapping[str, Any], rope: Mapping[str, Any]) -> list[int]:
    """Return the lengths up to which longrope leaves positions as they are; nothing for another scaling."""
    kind = rope.get("rope_type", rope.get("type"))
    if kind == "su":
        raise _refused("asks for scaled positions of type 'su', which transformers now calls 'longrope'")
    if kind != "longrope":
        return []
    lengths = [_positive(where, _UNSCALED) for where in (rope, config) if where.get(_UNSCALED) is not None]
    if not lengths:
        raise _refused(f"asks for longrope, and must say {_UNSCALED}: the context ends there")
    return lengths


def _positive(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if type(value) is not int or value < 1:
        raise _refused(f"must say {name}, a whole number above 0")
    return value

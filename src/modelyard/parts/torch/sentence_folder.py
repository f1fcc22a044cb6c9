"""A sentence encoder in a local folder: what sentence-transformers describes beside the model of the BERT family.

`modules.json` lists what is done one after the other: the transformer, the pooling, and mostly a scaling to length 1.
What else it may list is refused by name.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import attrs

from modelyard.errors import InvalidInput

MODULES, SENTENCES, SETTINGS = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
FAMILIES = ("bert", "distilbert", "mpnet", "roberta", "xlm-roberta")
"""The `model_type`s that are served."""

_LARGEST = 2**16
"""Bytes of these files at most."""

_FIRST_POSITIONS = {"roberta": 2, "xlm-roberta": 2, "mpnet": 2}
"""Positions that no token has, of families that count them from behind the padding."""


class SentencePooling(StrEnum):
    """How the hidden states of a text's tokens become one vector: their mean, or the state of the first."""

    MEAN = "mean_tokens"
    CLS = "cls_token"


@attrs.frozen
class SentenceSettings:
    """How texts become vectors. `longest` is in tokens, special ones included. `prompt` is put before each text."""

    pooling: SentencePooling
    size: int
    longest: int
    prompt: str = ""
    lowered: bool = False


def is_sentence_encoder(config: Mapping[str, Any]) -> bool:
    """Return whether a configuration is of a family of encoders, and not of a causal language model."""
    named = config.get("architectures")
    first = named[0] if isinstance(named, list) and named else None
    causal = isinstance(first, str) and first.endswith(("ForCausalLM", "LMHeadModel"))
    return config.get("model_type") in FAMILIES and not causal and not config.get("is_decoder")


def read_settings(folder: Path, config: Mapping[str, Any]) -> SentenceSettings:
    """Read how a folder makes vectors of texts. Raises `InvalidInput` for what is missing, or not served."""
    pooling = read_pooling(folder, _pooling_path(folder))
    sentences, settings = _object(folder, SENTENCES), _object(folder, SETTINGS)
    positions = _number(config, "max_position_embeddings") - _FIRST_POSITIONS.get(config["model_type"], 0)
    told = sentences.get("max_seq_length")
    return SentenceSettings(
        pooling,
        _number(config, "dim" if "dim" in config else "hidden_size"),
        positions if told is None else min(positions, _number(sentences, "max_seq_length")),
        _default_prompt(settings),
        bool(sentences.get("do_lower_case")),
    )


def _pooling_path(folder: Path) -> str:
    """Return the folder of the pooling. Raises `InvalidInput` for other modules than these three."""
    try:
        listed = json.loads(_text(folder, MODULES))
        kinds = [(str(listed[at]["type"]).rpartition(".")[2], str(listed[at]["path"])) for at in range(len(listed))]
        names = [kind for kind, _ in kinds]
        transformer, pooling = kinds[0][1], kinds[1][1]
    except (ValueError, TypeError, LookupError, RecursionError):
        raise _refused(MODULES, "is missing or not a list of modules: it says how a text becomes a vector") from None
    if names[:2] != ["Transformer", "Pooling"] or names[2:] not in ([], ["Normalize"]):
        odd = [name for name in names if name not in ("Transformer", "Pooling", "Normalize")]
        raise _refused(MODULES, f"lists {', '.join(odd or names)}; Transformer, Pooling and Normalize are served")
    if transformer or not pooling or Path(pooling).name != pooling:
        raise _refused(MODULES, "must have the transformer in the folder itself, and the pooling in one within it")
    return f"{pooling}/config.json"


def read_pooling(folder: Path, name: str) -> SentencePooling:
    """Read the one way of pooling that is on. Raises `InvalidInput`."""
    modes = _object(folder, name)
    wanted = sorted(
        key.removeprefix("pooling_mode_") for key, on in modes.items() if key[:13] == "pooling_mode_" and on
    )
    if len(wanted) != 1 or wanted[0] not in {*SentencePooling}:
        raise _refused(
            name, f"asks for {' and '.join(wanted) or 'no pooling'}; one of mean_tokens and cls_token is served"
        )
    if modes.get("include_prompt") is False:
        raise _refused(name, "leaves the tokens of prompts out (include_prompt), which is not served")
    return SentencePooling(wanted[0])


def _default_prompt(settings: Mapping[str, Any]) -> str:
    """Return the text that is put before each input unless something else is asked for."""
    named, prompts = settings.get("default_prompt_name"), settings.get("prompts")
    if named is None:
        return ""
    text = prompts.get(named) if isinstance(prompts, Mapping) else None
    if not isinstance(text, str):
        raise _refused(SETTINGS, f"names the prompt {named!r}, and has none of that name")
    return text


def _refused(name: str, msg: str) -> InvalidInput:
    return InvalidInput.at("path", name, msg=msg)


def _text(folder: Path, name: str) -> str:
    path = folder / name
    if not path.is_file():
        return ""
    if path.stat().st_size > _LARGEST:
        raise _refused(name, f"is larger than {_LARGEST} bytes")
    return path.read_text(encoding="utf-8", errors="replace")


def _object(folder: Path, name: str) -> Mapping[str, Any]:
    """Return the JSON object in a file; an empty one if there is no file."""
    try:
        value = json.loads(_text(folder, name) or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _refused(name, "must be a JSON object")
    return value


def _number(values: Mapping[str, Any], name: str) -> int:
    value = values.get(name)
    if type(value) is not int or value < 1:
        raise InvalidInput.at("path", msg=f"its configuration must say {name}, a whole number above 0")
    return value

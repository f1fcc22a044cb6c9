"""A causal language model in a local folder of the transformers format: what is in it, checked without loading it.

Only data are looked at: JSON, a chat template, and weights as safetensors. Pickled weights are never read, and a folder
that needs its own code to be run is refused.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import attrs

from modelyard.domain.catalogue import Quantization
from modelyard.errors import BackendError, InvalidInput
from modelyard.formats.safetensors import read_shapes
from modelyard.parts.torch.model_config import CONFIG, check_config, context_length, vocabulary_size
from modelyard.parts.torch.pooling import POOLING
from modelyard.parts.torch.reasoning import CLOSING
from modelyard.parts.torch.records import BaseModel, Tuning
from modelyard.parts.torch.sentence_folder import MODULES, SENTENCES, SETTINGS, is_sentence_encoder, read_settings
from modelyard.parts.torch.tool_calls import format_of

TOKENIZER, TEMPLATE = "tokenizer.json", "chat_template.jinja"
TOKENIZER_CONFIG, GENERATION_CONFIG = "tokenizer_config.json", "generation_config.json"
MORE_TEMPLATES = "additional_chat_templates"
WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"

_OPTIONAL = (GENERATION_CONFIG, TOKENIZER_CONFIG, TEMPLATE, WEIGHTS_INDEX, POOLING)
SMALL_FILES = (CONFIG, TOKENIZER, *_OPTIONAL)
"""What is read besides the weights and further chat templates."""

_FORMATS = {"BF16": Quantization.BF16, "F16": Quantization.FP16, "F32": Quantization.FP32}

MAX_JSON = 64 * 2**20
"""Bytes of a JSON file at most: tokenizers of large vocabularies take about 20 MB."""

_CHUNK = 2**20
_EFFORT = re.compile(r"\breasoning_effort\b")

Progress = Callable[[int, int], None]
"""Told how many bytes of how many have been read."""


@attrs.frozen
class BaseFolder:
    """The facts that the files of a base model state.

    `architecture` is the name of its transformers class, `dtypes` are the number formats of its weights in safetensors'
    words, `parameters` is how many weights there are. `tool_format` names how it writes tool calls, "" if its template
    knows none. Lengths are in tokens. `files` holds the SHA-256 digest in hex of everything that serving and training
    read, by file name.
    """

    path: str
    architecture: str
    context_length: int
    vocabulary_size: int
    parameters: int
    tool_format: str
    dtypes: frozenset[str]
    files: Mapping[str, str]

    @property
    def quantization(self) -> Quantization:
        """The format of nearly all weights, as norms often stay in 32 bits. Raises `InvalidInput` for other formats."""
        known = [_FORMATS[dtype] for dtype in _FORMATS if dtype in self.dtypes]
        if not known:
            problem = f"the weights are {', '.join(sorted(self.dtypes))}; give 16- or 32-bit floats"
            raise InvalidInput.at("path", msg=problem)
        return known[0]

    def base_model(
        self, id: str, name: str, tuning: Tuning, created_at: datetime, prices: Mapping[str, str]
    ) -> BaseModel:
        return BaseModel(
            id=id,
            name=name,
            path=self.path,
            architecture=self.architecture,
            quantization=self.quantization,
            context_length=self.context_length,
            parameters=self.parameters,
            tuning=tuning,
            tool_format=self.tool_format,
            created_at=created_at,
            digests=self.files,
            prices=prices,
        )


def read_base_folder(path: str | os.PathLike[str], progress: Progress | None = None) -> BaseFolder:
    """Look through a folder. Reads every byte of it once, for the digests.

    Raises `InvalidInput`, saying which file is at fault and what to do about it.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise InvalidInput.at("path", msg=f"{folder} is not a folder; give one with a model in the transformers format")
    config = _json(folder, CONFIG)
    if is_sentence_encoder(config):
        return _read_encoder(folder, config, progress)
    config, template = check_small_files(folder)
    form = format_of(template)
    more = sorted(str(path.relative_to(folder)) for path in (folder / MORE_TEMPLATES).glob("*.jinja"))
    names = (*_OPTIONAL, *more)
    tools = "" if form is None else form.name
    return _described(folder, config, context_length(config), tools, names, progress)


def _read_encoder(folder: Path, config: Mapping[str, Any], progress: Progress | None) -> BaseFolder:
    _json(folder, TOKENIZER)
    settings = read_settings(folder, config)
    names = (*_OPTIONAL, MODULES, SENTENCES, SETTINGS)
    return _described(folder, config, settings.longest, "", names, progress)


def _described(
    folder: Path,
    config: Mapping[str, Any],
    context_length: int,
    tool_format: str,
    optional: Iterable[str],
    progress: Progress | None,
) -> BaseFolder:
    weights = _weight_files(folder)
    shapes = [shape for name in weights for shape in _shapes(folder / name)]
    names = [CONFIG, TOKENIZER, *(name for name in optional if (folder / name).is_file()), *weights]
    return BaseFolder(
        path=str(folder.resolve()),
        architecture=config["architectures"][0],
        context_length=context_length,
        vocabulary_size=vocabulary_size(config),
        parameters=sum(math.prod(shape) for _, shape in shapes),
        tool_format=tool_format,
        dtypes=frozenset(dtype for dtype, _ in shapes),
        files=_digests(folder, sorted(names), progress),
    )


def check_small_files(folder: Path) -> tuple[Mapping[str, Any], str]:
    """Check all files but the weights. Return the configuration, and the chat template for conversations with tools.

    Raises `InvalidInput`.
    """
    config = _json(folder, CONFIG)
    check_config(config)
    _json(folder, TOKENIZER)
    return config, _templates(folder)[-1]


@lru_cache
def takes_reasoning_effort(path: str) -> bool:
    """Return whether the chat template in this folder has the variable `reasoning_effort`; False if the template is
    gone.
    """
    return bool(_EFFORT.search(_template_if_any(path)))


@lru_cache
def writes_reasoning(path: str) -> bool:
    """Return whether the chat template in this folder has the marks of reasoning; False if the template is gone."""
    return CLOSING in _template_if_any(path)


def check_unchanged(base: BaseModel) -> None:
    """Check that the folder of a base model still has the files that were looked through. Raises `BackendError`.

    Weights are read only if they were written since then: reading them may take as long as loading them.
    """
    folder = Path(base.path)
    if not folder.is_dir():
        raise BackendError(
            f"the folder {folder.name!r} of the base model {base.id!r} is gone; the host must put it back"
        )
    changed = sorted(name for name in base.digests if not _unchanged(folder, name, base))
    if changed:
        raise BackendError(
            f"the folder {folder.name!r} of the base model {base.id!r} is not as it was when it was added "
            f"({', '.join(changed)}): the host must put back what was there, or add it again under another id"
        )


def _unchanged(folder: Path, name: str, base: BaseModel) -> bool:
    path = folder / name
    if not path.is_file():
        return False
    trusted = path.suffix == ".safetensors" and path.stat().st_mtime < base.created_at.timestamp()
    return trusted or _digests(folder, [name], None)[name] == base.digests[name]


# ---- one file after the other ------------------------------------------------------------------------------------


def _refused(name: str, msg: str) -> InvalidInput:
    return InvalidInput.at("path", name, msg=msg)


def _json(folder: Path, name: str) -> Mapping[str, Any]:
    path = folder / name
    if not path.is_file():
        raise _refused(name, "is missing; this is not a model in the transformers format")
    if path.stat().st_size > MAX_JSON:
        raise _refused(name, f"is larger than {MAX_JSON} bytes")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise _refused(name, f"is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise _refused(name, "must be an object")
    if "auto_map" in value:
        raise _refused(name, "wants code from the folder to be run (auto_map), which is never done")
    return value


def _template_if_any(path: str) -> str:
    """Return the chat templates, or "" if they cannot be read."""
    try:
        return "\n".join(_templates(Path(path)))
    except (InvalidInput, OSError):
        return ""


def _templates(folder: Path) -> list[str]:
    """Return the chat template, and the one for conversations with tools if the folder has another for them."""
    known = _json(folder, TOKENIZER_CONFIG) if (folder / TOKENIZER_CONFIG).is_file() else {}
    own, more = folder / TEMPLATE, folder / MORE_TEMPLATES
    named = _named(known.get("chat_template"))
    if own.is_file():
        named = {"default": own.read_text(errors="replace")}
    named |= {path.stem: path.read_text(errors="replace") for path in sorted(more.glob("*.jinja"))}
    found = [named[name] for name in ("default", "tool_use") if named.get(name, "").strip()]
    if not named.get("default", "").strip():
        raise _refused(
            TEMPLATE,
            "is missing or empty, and tokenizer_config.json has no chat_template, or several without a 'default': put "
            "there the template of this model",
        )
    return found


def _named(templates: Any) -> dict[str, str]:
    """Return the chat templates of a tokenizer's configuration by name: it has one, or a list of named ones."""
    if not isinstance(templates, list):
        return {"default": templates} if isinstance(templates, str) else {}
    pairs = [(one.get("name"), one.get("template")) for one in templates if isinstance(one, dict)]
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}


def _weight_files(folder: Path) -> list[str]:
    if (folder / WEIGHTS).is_file():
        return [WEIGHTS]
    if not (folder / WEIGHTS_INDEX).is_file():
        pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
        hint = f"; {pickled[0]} is pickled and never read: save the model as safetensors" if pickled else ""
        raise _refused(WEIGHTS, f"is missing, and there is no {WEIGHTS_INDEX}{hint}")
    return indexed_weights(folder, lambda name: (folder / name).is_file())


def indexed_weights(folder: Path, is_there: Callable[[str], bool]) -> list[str]:
    """Return the files that the index of weights in a folder names. Raises `InvalidInput` unless all are there."""
    listed = _json(folder, WEIGHTS_INDEX).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise _refused(WEIGHTS_INDEX, "must hold a weight_map")
    for name in listed.values():
        if not isinstance(name, str) or not _is_weights(name) or not is_there(name):
            raise _refused(WEIGHTS_INDEX, f"names {str(name)[:100]!r}, which is not a safetensors file of this folder")
    return sorted({*listed.values()})


def _is_weights(name: str) -> bool:
    return Path(name).name == name and name.endswith(".safetensors")


def _shapes(path: Path) -> list[tuple[str, tuple[int, ...]]]:
    try:
        with path.open("rb") as file:
            return list(read_shapes(file).values())
    except ValueError as error:
        raise _refused(path.name, str(error)) from None


def _digests(folder: Path, names: list[str], progress: Progress | None) -> Mapping[str, str]:
    total, read = sum((folder / name).stat().st_size for name in names), 0
    digests = {}
    for name in names:
        digest = hashlib.sha256()
        for chunk in _chunks(folder / name):
            digest.update(chunk)
            read += len(chunk)
            if progress is not None:
                progress(read, total)
        digests[name] = digest.hexdigest()
    return digests


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk

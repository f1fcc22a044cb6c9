"""Loading of a GGUF file by transformers, and saving what it made of it."""

import json
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from modelyard.errors import InvalidInput, MissingExtra
from modelyard.parts.torch.loading import LOADING

try:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, modeling_gguf_pytorch_utils
    from transformers.utils import logging
except ImportError as error:
    raise MissingExtra("torch", "torch") from error


def write(path: Path, dtype: str, folder: Path) -> bool:
    """Write the model in a GGUF file into a folder, in the transformers format. Returns whether its tokenizer splits
    text by the usual rule of byte-level tokenizers. Raises `InvalidInput`, `OSError`.
    """
    where = {"gguf_file": "model.gguf", "local_files_only": True, "trust_remote_code": False}
    with LOADING, _without_bar(), warnings.catch_warnings(), tempfile.TemporaryDirectory() as alone:
        (Path(alone) / "model.gguf").symlink_to(path)  # transformers reads what lies beside a file, too, code as well
        warnings.simplefilter("ignore")
        logging.disable_progress_bar()
        try:
            tokenizer = AutoTokenizer.from_pretrained(alone, **where)
            model, loaded = AutoModelForCausalLM.from_pretrained(
                alone, **where, dtype=getattr(torch, dtype), output_loading_info=True
            )
        except (MemoryError, MissingExtra):
            raise
        except Exception as fault:
            raise _refused(path, f"transformers cannot read it ({type(fault).__name__}: {str(fault)[:300]})") from fault
        _check(path, tokenizer, loaded)
        _as_plain(model)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        split = json.loads(tokenizer.backend_tokenizer.to_str())["pre_tokenizer"] or {}
        return split.get("type") == "ByteLevel" and bool(split.get("use_regex"))


@contextmanager
def _without_bar() -> Iterator[None]:
    """Read weights without the bar that transformers shows of them, which its own settings do not hide."""

    def plain(tensors: Iterable[Any], **_: Any) -> Iterable[Any]:
        return tensors

    shown = getattr(modeling_gguf_pytorch_utils, "tqdm", None)
    modeling_gguf_pytorch_utils.tqdm = plain
    try:
        yield
    finally:
        modeling_gguf_pytorch_utils.tqdm = shown


def _check(path: Path, tokenizer: Any, loaded: Any) -> None:
    """Raise `InvalidInput` if weights are missing, which would be random, or the template."""
    missing = sorted(loaded["missing_keys"])
    if missing:
        raise _refused(path, f"{len(missing)} weights of the model are not in it, such as {missing[0]}")
    if not tokenizer.chat_template:
        raise _refused(path, "it has no chat template")


def _as_plain(model: Any) -> None:
    """Take away what says that the model is quantized: its weights are floats."""
    model.hf_quantizer, model.is_quantized = None, False
    for name in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(model.config, name):
            delattr(model.config, name)


def _refused(path: Path, why: str) -> InvalidInput:
    return InvalidInput.at("path", msg=f"{path.name}: {why}; take the model in the transformers format instead")

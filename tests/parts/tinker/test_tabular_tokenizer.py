"""The folder from which Tinker's client reads the tokenizer of tabular models, in the format of transformers.

python tests/parts/tinker/test_tabular_tokenizer.py        writes it again
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from modelyard import EchoBackend, Router, open_platform
from modelyard.engines import TabularBackend
from modelyard.engines.tabular.tokenizer import CHUNKS, END_OF_TURN, VOCABULARY_SIZE, token_bytes
from modelyard.parts.tinker import tabular_tokenizer

FOLDER = Path(*tabular_tokenizer.__path__)
END = "<|end_of_turn|>"
SPLITTING = {"type": "Split", "behavior": "Isolated", "invert": False}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def letters() -> list[str]:
    """The letter that stands for each byte in this format: itself if it can be seen, else one beyond a byte."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte if byte in seen else next(others)) for byte in range(256)]


def written() -> Mapping[str, Any]:
    """Text is cut into the longest chunks; a letter that is none of them is cut into its bytes."""
    alphabet = letters()
    vocabulary = {"".join(alphabet[byte] for byte in token_bytes(id_)) or END: id_ for id_ in range(VOCABULARY_SIZE)}
    longest_first = "|".join(map(re.escape, sorted(CHUNKS, key=len, reverse=True)))
    end = {"id": END_OF_TURN, "content": END, "special": True, "normalized": False}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**end, "single_word": False, "lstrip": False, "rstrip": False}],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{**SPLITTING, "pattern": {"Regex": rf"{longest_first}|[\s\S]"}}, BYTES],
        },
        "post_processor": None,
        "decoder": BYTES,
        "model": {
            "type": "WordPiece",
            "unk_token": END,
            "continuing_subword_prefix": "",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END,
        "clean_up_tokenization_spaces": False,
    }
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": config}


def as_text(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, indent=1) + "\n"


def test_the_folder_is_the_tokenizer_of_tabular_models() -> None:
    for name, data in written().items():
        assert (FOLDER / name).read_text(encoding="utf-8") == as_text(data), "write it again: run this file"


@pytest.mark.parametrize(("model", "folder"), [("tabular-mini", str(FOLDER)), ("echo", None), ("nothing", None)])
def test_a_run_names_the_folder_of_its_base_model(model: str, folder: str | None) -> None:
    with open_platform() as platform:
        assert platform.compat.training_runs.tokenizer_of(model) == folder


def test_so_does_one_behind_a_router() -> None:
    with open_platform(backend=Router([EchoBackend(["echo"]), TabularBackend(["small"])])) as platform:
        found = [platform.compat.training_runs.tokenizer_of(model) for model in ("small", "echo", "tabular-mini")]
    assert found == [str(FOLDER), None, None]


if __name__ == "__main__":
    for name, data in written().items():
        (FOLDER / name).write_text(as_text(data), encoding="utf-8")

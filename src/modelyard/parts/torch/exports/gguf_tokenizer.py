"""A byte-level BPE tokenizer as GGUF files have it: tokens with their types, merges, and the rule that splits text."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import gguf

from modelyard.parts.torch.exports.stored_weights import refused
from modelyard.parts.torch.model_folder import MORE_TEMPLATES, TEMPLATE, TOKENIZER

_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_2 = _LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")

_RULES: Mapping[tuple[str, ...], tuple[str, bool]] = {
    ("usual",): ("gpt-2", False),
    ("digits", "usual"): ("smollm", False),
    (_LLAMA_3, "bytes"): ("llama-bpe", True),
    (_QWEN_2, "bytes"): ("qwen2", False),
}
"""By the steps that split text before merges: llama.cpp's name, and whether it takes whole tokens before it merges."""


@attrs.frozen
class GgufTokenizer:
    """The tokens of a model in order with their types, and what else is said of its tokenizer."""

    tokens: Sequence[str]
    types: Sequence[int]
    rule: str
    special: Any

    def add_to(self, writer: Any) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.rule)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        self.special.load_merges = bool(self.special.merges)  # or else the package warns of none
        if not self.special.merges:
            writer.add_token_scores([0.0] * len(self.tokens))  # of which readers make merges: none
        self.special.add_to_gguf(writer, quiet=True)
        if "bos" not in self.special.add_special_token:
            writer.add_add_bos_token(False)


def read_tokenizer(folder: Path, size: int) -> GgufTokenizer:
    """Read the tokenizer of a folder, for a model of so many tokens. Raises `InvalidInput` for one of another kind."""
    described = json.loads((folder / TOKENIZER).read_bytes())
    rule = _rule(described)
    special = gguf.SpecialVocab(folder, load_merges=True, n_vocab=size)
    if (folder / TEMPLATE).is_file():  # which comes before the one in tokenizer_config.json
        special.chat_template = _templates(folder)
    tokens, types = _tokens(described, size)
    return GgufTokenizer(tokens, types, rule, special)


def _templates(folder: Path) -> str | list[dict[str, str]]:
    default = (folder / TEMPLATE).read_text(encoding="utf-8")
    more = sorted((folder / MORE_TEMPLATES).glob("*.jinja"))
    if not more:
        return default
    named = [{"name": path.stem, "template": path.read_text(encoding="utf-8")} for path in more]
    return [{"name": "default", "template": default}, *named]


def _rule(described: Mapping[str, Any]) -> str:
    """Return llama.cpp's name of the rule that splits text."""
    model, normalizer = described["model"], described.get("normalizer")
    steps = tuple(map(_step, _steps(described.get("pre_tokenizer"))))
    rule, takes_whole = _RULES.get(steps, ("", False))
    kind = model.get("type")
    if kind != "BPE" or model.get("byte_fallback") or "bytes" not in (*steps, "bytes" if "usual" in steps else ""):
        raise refused(
            f"has a tokenizer of the kind {kind} that is not byte-level, and is not written as GGUF; export it merged"
        )
    if not rule or bool(model.get("ignore_merges")) is not takes_whole or not _keeps_text(normalizer):
        raise refused(
            "splits text by a rule that has no name here, so llama.cpp would see other tokens; export it merged, and "
            "convert that folder with llama.cpp's convert_hf_to_gguf.py"
        )
    return rule


def _steps(found: Any) -> list[Mapping[str, Any]]:
    if not isinstance(found, dict):
        return []
    return list(found["pretokenizers"]) if found.get("type") == "Sequence" else [found]


def _step(one: Mapping[str, Any]) -> str:
    """Name one step of splitting: "usual" is the rule of GPT-2, "bytes" splits nothing."""
    kind = one.get("type")
    if kind == "ByteLevel" and not one.get("add_prefix_space"):
        return "usual" if one.get("use_regex", True) else "bytes"
    if kind == "Digits" and one.get("individual_digits"):
        return "digits"
    if kind == "Split" and one.get("behavior") == "Isolated" and not one.get("invert"):
        return str(one.get("pattern", {}).get("Regex"))
    return "unknown"


def _keeps_text(normalizer: Any) -> bool:
    """Return whether text stays as it is, or is composed (NFC), which llama.cpp leaves out: most text is so already."""
    return normalizer is None or normalizer == {"type": "NFC"} or normalizer == {"type": "Sequence", "normalizers": []}


def _tokens(described: Mapping[str, Any], size: int) -> tuple[list[str], list[int]]:
    kinds = gguf.TokenType
    known = {int(place): (token, kinds.NORMAL) for token, place in described["model"]["vocab"].items()}
    for one in described.get("added_tokens", ()):
        known[int(one["id"])] = (one["content"], kinds.CONTROL if one["special"] else kinds.USER_DEFINED)
    if max(known) >= size:
        raise refused(f"has a tokenizer of {max(known) + 1} tokens, and weights of {size} only")
    padded = [known.get(place, (f"[PAD{place}]", kinds.UNUSED)) for place in range(size)]
    return [token for token, _ in padded], [int(kind) for _, kind in padded]

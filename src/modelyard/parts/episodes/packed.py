"""What was sampled, as a turn keeps it: numbers in few characters, and each text once."""

import sys
from array import array
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from modelyard.domain.completion import Message, TokenLogprob

IDS, LOGPROBS = "I", "d"
"""Whole numbers of 32 bits, and floats of 64."""


def packed(kind: str, numbers: Sequence[float]) -> str | list[float]:
    """Return numbers as base64 of their bytes, the lowest first; as a list if they are of another kind."""
    try:
        return b64encode(_ordered(array(kind, numbers)).tobytes()).decode()
    except (OverflowError, TypeError):
        return list(numbers)


def unpacked(kind: str, given: str | Sequence[Any]) -> tuple[Any, ...]:
    """Return the numbers. A list is what turns had before they were packed."""
    if not isinstance(given, str):
        return tuple(given)
    numbers = array(kind)
    numbers.frombytes(b64decode(given))
    return tuple(_ordered(numbers))


def _ordered(numbers: "array[Any]") -> "array[Any]":
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def sampled(entries: tuple[TokenLogprob, ...] | None, answer: Message) -> dict[str, Any]:
    """Return the log-probabilities of the answer, and the text of each token, by its length where all of them make up
    the content; its bytes if they are not that text."""
    if entries is None:
        return {"logprobs": None}
    texts = [one.token for one in entries]
    whole = "".join(texts)
    odd = {} if whole.isascii() and _are_texts(entries, whole) else _odd(entries)
    cut = whole == answer.content
    return {
        "logprobs": packed(LOGPROBS, [one.logprob for one in entries]),
        **({"lengths": packed(IDS, list(map(len, texts)))} if cut else {"texts": texts}),
        **({"bytes": odd} if odd else {}),
    }


def _are_texts(entries: tuple[TokenLogprob, ...], whole: str) -> bool:
    """Return whether the bytes of each token are those of its text, of texts in ASCII."""
    given = [one.bytes for one in entries]
    if None in given or list(map(len, given)) != [len(one.token) for one in entries]:  # type: ignore[arg-type]
        return False
    return b"".join(map(bytes, given)) == whole.encode()  # type: ignore[arg-type]


def _odd(entries: tuple[TokenLogprob, ...]) -> dict[str, Any]:
    return {str(at): one.bytes for at, one in enumerate(entries) if not _is_text(one)}


def _is_text(entry: TokenLogprob) -> bool:
    return entry.bytes is None or bytes(entry.bytes) == entry.token.encode("utf-8", "surrogatepass")


def entries_of(body: Mapping[str, Any], answer: Message) -> tuple[TokenLogprob, ...] | None:
    """Return the log-probabilities of an answer."""
    if body["logprobs"] is None:
        return None
    odd = body.get("bytes", {})
    texts = body["texts"] if "texts" in body else _cut(answer.text, unpacked(IDS, body["lengths"]))
    pairs = enumerate(zip(texts, unpacked(LOGPROBS, body["logprobs"]), strict=True))
    return tuple(TokenLogprob(text, logprob, _bytes(odd, at, text)) for at, (text, logprob) in pairs)


def _cut(text: str, lengths: Sequence[int]) -> list[str]:
    return [text[begin:end] for begin, end in pairwise(accumulate(lengths, initial=0))]


def _bytes(odd: Mapping[str, Any], at: int, text: str) -> tuple[int, ...]:
    return tuple(odd[str(at)]) if str(at) in odd else tuple(text.encode("utf-8", "surrogatepass"))

"""Token ids and log-probabilities in an answer of another server."""

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

import attrs

from modelyard.domain.completion import TokenLogprob, token_bytes, trimmed
from modelyard.parts.upstream.answers.values import (
    count_of,
    list_of,
    logprob_of,
    object_of,
    objects_of,
    size_of,
    string_of,
    tokens_of,
)


def read_token_ids(choice: Mapping[str, Any]) -> tuple[int, ...]:
    """Read the ids where vLLM puts them, or where LiteLLM puts those of a vLLM."""
    return read_ids(choice.get("token_ids")) or read_ids(
        object_of(choice.get("provider_specific_fields")).get("token_ids")
    )


def read_ids(value: Any) -> tuple[int, ...]:
    """Read a list of token ids; none of one that has anything else."""
    ids = [count_of(one) for one in list_of(value)]
    return tuple(one for one in ids if one is not None) if None not in ids else ()


def read_logprobs(value: Any) -> tuple[TokenLogprob, ...]:
    """Read the log-probabilities of a choice: a list of entries, or of tokens and their numbers apart."""
    data = object_of(value)
    entries = objects_of(list_of(value)) or list_of(data.get("content")) or list_of(data.get("refusal"))
    return tuple(map(_sampled, entries or _apart(data)))


def _apart(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the entries of the older form, which has a list for each of their members."""
    tokens, scores, tops = (list_of(data.get(name)) for name in ("tokens", "token_logprobs", "top_logprobs"))
    return [
        {"token": token, "logprob": score, "top_logprobs": _others(top)}
        for token, score, top in zip_longest(tokens, scores[: len(tokens)], tops[: len(tokens)])
    ]


def _others(top: Any) -> Any:
    """Return the alternatives of a token: a list of entries, or an object with a number for each."""
    return [{"token": name, "logprob": score} for name, score in top.items()] if isinstance(top, Mapping) else top


def _sampled(value: Any) -> TokenLogprob:
    """Read a token and its alternatives, the likeliest first: vLLM puts the sampled token before the others."""
    data = object_of(value)
    top = sorted(map(_entry, map(object_of, list_of(data.get("top_logprobs")))), key=lambda other: -other.logprob)
    return attrs.evolve(_entry(data), top=tuple(top)) if top else _entry(data)


def _entry(data: Mapping[str, Any]) -> TokenLogprob:
    raw = _byte_values(data.get("bytes"))
    token = string_of(data.get("token")) or (bytes(raw).decode(errors="replace") if raw else "")
    return TokenLogprob(token, logprob_of(data.get("logprob")), raw)


def _byte_values(value: Any) -> tuple[int, ...] | None:
    values = [count_of(one) for one in list_of(value)] if isinstance(value, list | tuple) else [None]
    return tuple(byte for byte in values if byte is not None) if all(byte in range(256) for byte in values) else None


def fitting(entries: tuple[TokenLogprob, ...], content: str) -> tuple[TokenLogprob, ...]:
    """Return the entries without the text of an end-of-turn token or of a stop string, which is not content."""
    written, size = b"".join(map(token_bytes, entries)), content.encode("utf-8", "surrogatepass")
    return tuple(trimmed(entries, len(size))) if written.startswith(size) else entries


Passed = tuple[str, tuple[TokenLogprob, ...], tuple[int, ...]]
"""Text, the log-probabilities of its tokens, and their ids."""


@attrs.define(eq=False)
class TokensOfText:
    """Text and the log-probabilities of its tokens, of which either may come first: each waits for the other.

    Where the two differ, as if tokens are written in a spelling of their own, what has come goes on together.
    """

    text: str = ""
    entries: tuple[TokenLogprob, ...] = ()
    ids: tuple[int, ...] = ()

    def take(self, text: str, entries: tuple[TokenLogprob, ...], ids: tuple[int, ...]) -> None:
        """Take what has come. Ids belong to the entries of their places."""
        self.text, self.entries, self.ids = self.text + text, self.entries + entries, self.ids + ids

    def fitting(self) -> Passed:
        """Return the text that can go on with the log-probabilities of its tokens."""
        raw, count, end, size = self.text.encode("utf-8", "surrogatepass"), 0, 0, 0
        for at, entry in enumerate(self.entries):
            of_token = token_bytes(entry)
            if raw[size : size + len(of_token)] != of_token[: len(raw) - size]:
                return self.end()
            size += len(of_token)
            if size > len(raw):
                break
            if size == len(raw) or raw[size] & 0xC0 != 0x80:  # between two characters
                count, end = at + 1, size
        return self._passed(count, raw[:end].decode("utf-8", "surrogatepass"))

    def end(self) -> Passed:
        return self._passed(max(len(self.entries), len(self.ids)), self.text)

    def _passed(self, count: int, text: str) -> Passed:
        entries, ids = self.entries[:count], self.ids[:count]
        self.text, self.entries, self.ids = self.text[len(text) :], self.entries[count:], self.ids[count:]
        return text, entries, ids if not entries or len(ids) == len(entries) else ()

    @property
    def tokens(self) -> int:
        """The tokens that wait: those that are shown, else by the bytes of their text."""
        return max(len(self.entries), len(self.ids)) or tokens_of(size_of(self.text))

    def __bool__(self) -> bool:
        return bool(self.text or self.entries or self.ids)

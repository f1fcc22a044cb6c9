"""Removal of secrets from recordings: known shapes of keys, and what the host names. A secret is also found across the
pieces of a stream: they are searched as one text."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import attrs

from modelyard.domain.completion import Delta, TokenLogprob

MARK = "[redacted]"

KNOWN_SHAPES: Mapping[str, str] = {
    "modelyard": r"\bmy_[0-9A-Za-z]{8}_[0-9A-Za-z]{43}",
    "OpenAI, Anthropic, OpenRouter and similar": r"\bsk-[0-9A-Za-z_-]{16,}",
    "Groq": r"\bgsk_[0-9A-Za-z]{20,}",
    "xAI": r"\bxai-[0-9A-Za-z]{20,}",
    "Hugging Face": r"\bhf_[0-9A-Za-z]{20,}",
    "GitHub": r"\b(?:gh[opsur]_[0-9A-Za-z]{20,}|github_pat_[0-9A-Za-z_]{20,})",
    "GitLab": r"\bglpat-[0-9A-Za-z_-]{20,}",
    "AWS": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "Google": r"\bAIza[0-9A-Za-z_-]{35}",
    "Slack": r"\bxox[abeoprs]-[0-9A-Za-z-]{10,}",
    "Stripe": r"\b[rs]k_(?:live|test)_[0-9A-Za-z]{16,}",
    "JSON Web Token": r"\beyJ[0-9A-Za-z_-]{10,}\.[0-9A-Za-z_-]{10,}\.[0-9A-Za-z_-]{10,}",
    "private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.*?-----END [A-Z ]*PRIVATE KEY-----|.*)",
    "bearer token": r"(?i:(?<=\bbearer ))[0-9A-Za-z._~+/=-]{16,}",
    "password in a URL": r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)",
}


class Redactor:
    """Replaces every secret by `[redacted]`: known shapes, and the host's `patterns` (strings or regular expressions).

    >>> Redactor(["hunter2"]).text("log in with hunter2")
    'log in with [redacted]'
    """

    def __init__(self, patterns: Iterable[str | re.Pattern[str]] = ()) -> None:
        self._patterns = [re.compile(shape, re.DOTALL) for shape in KNOWN_SHAPES.values()]
        self._patterns += [_literal(given) if isinstance(given, str) else given for given in patterns]

    def text(self, text: str) -> str:
        return self.pieces([text])[0]

    def value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.value(name): self.value(part) for name, part in value.items()}
        return [self.value(part) for part in value] if isinstance(value, list) else value

    def pieces(self, pieces: Sequence[str]) -> Sequence[str]:
        """Return the pieces of one text without its secrets; the mark is in the piece where a secret began."""
        spans = self._spans("".join(pieces))
        if not spans:
            return pieces
        kept, at = [], 0
        for piece in pieces:
            kept.append("".join(_outside(piece, at, spans)))
            at += len(piece)
        return kept

    def deltas(self, deltas: Sequence[Delta]) -> list[Delta]:
        """Return the deltas of an answer without secrets in text, reasoning, arguments of calls, or tokens. A token of
        a secret keeps its log-probability and loses its alternatives; the ids of its delta become 0."""
        clean = list(deltas)
        for choice in {delta.index for delta in deltas}:
            places = [at for at, delta in enumerate(deltas) if delta.index == choice]
            self._rewrite(clean, places, lambda delta: delta.text, _with_text)
            self._rewrite(clean, places, lambda delta: delta.reasoning, _with_reasoning)
            for call in {delta.tool_call.index for delta in deltas if delta.tool_call}:
                calls = [at for at in places if (piece := deltas[at].tool_call) and piece.index == call]
                self._rewrite(clean, calls, _arguments, _with_arguments)
            self._rewrite_tokens(clean, places)
        return clean

    def _rewrite(
        self, deltas: list[Delta], places: list[int], read: Callable[[Delta], str], write: Callable[[Delta, str], Delta]
    ) -> None:
        before = [read(deltas[at]) for at in places]
        for at, old, new in zip(places, before, self.pieces(before), strict=True):
            if new != old:
                deltas[at] = write(deltas[at], new)

    def _rewrite_tokens(self, deltas: list[Delta], places: list[int]) -> None:
        entries = [(at, entry) for at in places for entry in deltas[at].logprobs]
        texts = self.pieces([entry.token for _, entry in entries])
        clean = [(at, _renamed(entry, text)) for (at, entry), text in zip(entries, texts, strict=True)]
        if clean == entries:
            return
        for at, group in groupby(clean, key=lambda pair: pair[0]):
            deltas[at] = _with_tokens(deltas[at], tuple(entry for _, entry in group))

    def _spans(self, text: str) -> list[tuple[int, int]]:
        found = sorted(match.span() for pattern in self._patterns for match in pattern.finditer(text) if match[0])
        merged: list[tuple[int, int]] = []
        for start, end in found:
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return merged


def _literal(secret: str) -> re.Pattern[str]:
    return re.compile(f"{re.escape(secret)}|{re.escape(json.dumps(secret)[1:-1])}")


def _outside(piece: str, at: int, spans: list[tuple[int, int]]) -> Iterator[str]:
    here, end = at, at + len(piece)
    for first, last in spans:
        if last <= at or first >= end:
            continue
        if first >= at:
            yield piece[here - at : first - at] + MARK
        here = min(last, end)
    yield piece[here - at :]


# ---- deltas ------------------------------------------------------------------------------------------------------


def without_prompt_ids(delta: Delta) -> Delta:
    return attrs.evolve(delta, prompt_token_ids=(0,) * len(delta.prompt_token_ids))


def _with_text(delta: Delta, text: str) -> Delta:
    return attrs.evolve(delta, text=text, token_ids=(0,) * len(delta.token_ids))


def _with_reasoning(delta: Delta, reasoning: str) -> Delta:
    return attrs.evolve(delta, reasoning=reasoning, token_ids=(0,) * len(delta.token_ids))


def _arguments(delta: Delta) -> str:
    assert delta.tool_call is not None
    return delta.tool_call.arguments


def _with_arguments(delta: Delta, arguments: str) -> Delta:
    assert delta.tool_call is not None
    call = attrs.evolve(delta.tool_call, arguments=arguments)
    return attrs.evolve(delta, tool_call=call, token_ids=(0,) * len(delta.token_ids))


def _with_tokens(delta: Delta, entries: tuple[TokenLogprob, ...]) -> Delta:
    if entries == delta.logprobs:
        return delta
    return attrs.evolve(delta, logprobs=entries, token_ids=(0,) * len(delta.token_ids))


def _renamed(entry: TokenLogprob, text: str) -> TokenLogprob:
    return (
        entry
        if text == entry.token
        else TokenLogprob(text, entry.logprob, tuple(text.encode("utf-8", "surrogatepass")))
    )

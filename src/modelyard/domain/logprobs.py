"""Log-probabilities of tokens. A token is bytes: a character may take several tokens."""

from collections.abc import Iterable

import attrs


@attrs.frozen
class TokenLogprob:
    """A token and its natural-log probability (<= 0). An end-of-turn token has empty text and bytes. `rank` counts from
    1, the likeliest; tokens of a prompt have it."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None = None
    top: "tuple[TokenLogprob, ...]" = ()
    id: int | None = None
    rank: int | None = None


def token_bytes(entry: TokenLogprob) -> bytes:
    return entry.token.encode("utf-8", "surrogatepass") if entry.bytes is None else bytes(entry.bytes)


def trimmed(entries: Iterable[TokenLogprob], size: int) -> list[TokenLogprob]:
    """Cut the entries after `size` bytes. An entry beyond them keeps its log-probability and loses its text."""
    kept = []
    for entry in entries:
        raw = token_bytes(entry)
        if len(raw) > size:
            raw = raw[:size]
            entry = attrs.evolve(entry, token=raw.decode(errors="replace"), bytes=tuple(raw))
        kept.append(entry)
        size -= len(raw)
    return kept

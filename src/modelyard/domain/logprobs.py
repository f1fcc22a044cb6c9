"""What the entries of log-probabilities are entries of: bytes, of which characters may take several tokens."""

from collections.abc import Iterable

import attrs

from modelyard.domain.completion import TokenLogprob


def token_bytes(entry: TokenLogprob) -> bytes:
    """The bytes of a token: those that came with it, else those of its text."""
    return entry.token.encode("utf-8", "surrogatepass") if entry.bytes is None else bytes(entry.bytes)


def trimmed(entries: Iterable[TokenLogprob], size: int) -> list[TokenLogprob]:
    """Entries whose bytes are the first `size` of theirs; what lies behind keeps its logprob and loses its text."""
    kept = []
    for entry in entries:
        raw = token_bytes(entry)
        if len(raw) > size:
            raw = raw[:size]
            entry = attrs.evolve(entry, token=raw.decode(errors="replace"), bytes=tuple(raw))
        kept.append(entry)
        size -= len(raw)
    return kept

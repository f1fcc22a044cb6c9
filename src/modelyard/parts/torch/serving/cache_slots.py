"""The assignment of sequences to rows of the cache, within a fixed amount of memory.

The first rows belong to running sequences, without a gap. The rows after them keep recent answers, so that the next
turn of a conversation need not read its beginning again.

Invariant: a running row contains finite numbers only. A mask hides what follows a sequence, but attention still
multiplies it by 0, and NaN would stay NaN.
"""

from collections import OrderedDict
from collections.abc import Iterator
from collections.abc import Sequence as Tokens

from modelyard.errors import ContextLengthExceeded, Problem
from modelyard.parts.torch.kv_cache import RowCache, bytes_per_token
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.serving.sequence import Sequence

SHORTEST = 256
"""The shortest row, in tokens; longer rows double it, so that rows are seldom resized."""

KEPT_SHARE = 4
"""One row in this many keeps a finished answer."""

_BLOCK = 64


class CacheSlots:
    """Up to `most` running sequences within `memory` bytes: the longer the longest of them, the fewer.

    No row reserves what it may need later: rows become longer when one of them is full, and sequences that no longer
    fit must wait and are read again.
    """

    def __init__(self, network: Network, most: int, memory: int) -> None:
        each = bytes_per_token(network.config, network.dtype)
        self._most, self._tokens = most, memory // each
        self.whole: int = network.context_length * each
        """Bytes of one sequence of the greatest length."""
        self.longest: int = min(self._tokens, network.context_length)
        """The longest sequence, in tokens, if nothing else runs."""
        self.running: list[Sequence] = []
        self._kept: OrderedDict[int, tuple[int, list[int]]] = OrderedDict()
        self._unclean: set[int] = set()
        length, useful = self._length_for(1), min(self._tokens, (most + max(1, most // KEPT_SHARE)) * self.longest)
        self.cache: RowCache = RowCache(
            network.config, self._all(length), length, network.dtype, network.device, useful
        )

    @property
    def most_now(self) -> int:
        """How many sequences can run in rows of the present length; further rows keep finished answers."""
        return self._count(self.cache.length)

    def admit(self, sequence: Sequence) -> bool:
        """Give a sequence the next row, with what is known of its beginning; return whether there was a row."""
        length, count = self._needed([*self.running, sequence]), len(self.running)
        if count >= self._count(length):
            return False
        self._resize(max(length, self.cache.length) if count < self._count(self.cache.length) else length)
        self._clean({count})
        self._copy_beginning(sequence, count)
        self.running.append(sequence)
        return True

    def crowded(self) -> list[Sequence]:
        """Return the sequences in the last rows that do not fit if each gets one more token."""
        staying = list(self.running)
        while len(staying) > max(1, self._count(self._needed(staying))):
            staying.pop()
        return self.running[len(staying) :]

    def lengthen(self) -> None:
        self._resize(max(self._needed(self.running), self.cache.length))

    def drop(self, sequence: Sequence, *, failed: bool = False) -> None:
        """Free its row: the last row moves there.

        A sequence that `failed`, or from which no token was sampled, is not kept, as its rows may contain NaN.
        """
        row, last = self.running.index(sequence), len(self.running) - 1
        if sequence.read and not failed:
            self._keep(sequence, row)
        else:
            self._unclean |= {row, *range(last, self.most_now)}
            self._clean({row})
        moved = self.running.pop()
        if row != last:
            self.cache.copy(last, row, moved.cached)
            self.running[row] = moved

    def clear(self) -> None:
        self.running.clear()
        self._kept.clear()
        self._unclean.update(range(self.most_now))

    def forget(self, slot: int) -> None:
        """Forget the answers of this adapter slot, because another adapter is loaded into it."""
        for row in [row for row, (kept, _) in self._kept.items() if kept == slot]:
            self._kept[row] = (-1, [])

    # ---- room

    def _needed(self, sequences: Tokens[Sequence]) -> int:
        return self._length_for(max((one.length for one in sequences), default=0) + 1)

    def _length_for(self, tokens: int) -> int:
        return min(max(SHORTEST, 1 << (tokens - 1).bit_length()), max(self.longest, tokens))

    def _count(self, length: int) -> int:
        possible = self._possible(length)
        return min(self._most, possible - possible // KEPT_SHARE)

    def _possible(self, length: int) -> int:
        return self._tokens // length

    def _all(self, length: int) -> int:
        """Return the number of rows, including rows that keep finished answers."""
        count = self._count(length)
        return min(count + max(1, count // KEPT_SHARE), self._possible(length))

    def _resize(self, length: int) -> None:
        if length == self.cache.length:
            return
        self._kept.clear()
        self._clean(self._unclean)
        self.cache.resize(self._all(length), length, len(self.running))

    def _clean(self, rows: set[int]) -> None:
        """Clear the rows among these that may contain NaN."""
        for row in rows & self._unclean:
            self.cache.clear(row)
            self._unclean.remove(row)

    # ---- known prefixes

    def unread(self, sequence: Sequence) -> int:
        return sequence.length - self._beginning(sequence)[0]

    def _beginning(self, sequence: Sequence) -> tuple[int, int]:
        """Return the length of its longest known prefix, and the row that holds it; none if its prompt is to be scored.

        The last token is always read again, because its logits are needed.
        """
        best, source, tokens = 0, -1, sequence.tokens
        if sequence.unscored:
            return best, source
        for row, parts, cached in self._known(sequence.slot):
            shared = min(_shared(tokens, parts), cached, len(tokens) - 1)
            if shared > best:
                best, source = shared, row
        return best, source

    def _copy_beginning(self, sequence: Sequence, row: int) -> None:
        sequence.cached, source = self._beginning(sequence)
        if sequence.cached:
            self.cache.copy(source, row, sequence.cached)
        if source in self._kept:
            self._kept.move_to_end(source)

    def _known(self, slot: int) -> Iterator[tuple[int, Tokens[list[int]], int]]:
        """Yield rows of this adapter slot: the row, its tokens in parts, and the number of tokens with cached keys."""
        for row, one in enumerate(self.running):
            if one.slot == slot and one.cached:
                yield row, (one.prompt, one.answer), one.cached
        for row, (kept, tokens) in self._kept.items():
            if kept == slot:
                yield row, (tokens,), len(tokens)

    def _keep(self, sequence: Sequence, row: int) -> None:
        spare = range(self._count(self.cache.length), self._all(self.cache.length))
        if not spare or not sequence.cached:
            return
        free = [target for target in spare if target not in self._kept]
        target = free[0] if free else next(iter(self._kept))
        self.cache.copy(row, target, sequence.cached)
        self._kept[target] = (sequence.slot, sequence.tokens[: sequence.cached])
        self._kept.move_to_end(target)


def bound(sequence: Sequence, longest: int) -> None:
    """Limit an answer to what fits into `longest` tokens. Raises `ContextLengthExceeded` if nothing does."""
    prompt = len(sequence.prompt)
    if prompt >= longest:
        msg = (
            f"This model's maximum context length is {longest} tokens, because this host has no memory for more.  "
            f"The messages have {prompt}; shorten them, or ask the host for a larger Room(memory=...)."
        )
        raise ContextLengthExceeded([Problem(("messages",), msg, ContextLengthExceeded.code)])
    sequence.max_tokens = min(sequence.max_tokens, longest - prompt)


def _shared(prompt: list[int], parts: Tokens[list[int]]) -> int:
    whole = 0
    for part in parts:
        common = _common_length(prompt, whole, part)
        whole += common
        if common < len(part):
            break
    return whole


def _common_length(prompt: list[int], start: int, part: list[int]) -> int:
    """Count the tokens of the prompt from `start` on that equal the tokens of the part, comparing blocks first."""
    most, place = min(len(prompt) - start, len(part)), 0
    while place < most and prompt[start + place : start + place + _BLOCK] == part[place : place + _BLOCK]:
        place += _BLOCK
    place = min(place, most)
    while place < most and prompt[start + place] == part[place]:
        place += 1
    return place

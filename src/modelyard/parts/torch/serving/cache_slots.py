"""The assignment of sequences to rows of the cache, within a fixed amount of memory.

The first rows belong to running sequences, without a gap. All others keep recent answers, so that the next turn of a
conversation need not read its beginning again: an answer is kept until its row is needed, and a row for it is made
where there is one that was not used for longer.

Invariant: a running row contains finite numbers only. A mask hides what follows a sequence, but attention still
multiplies it by 0, and NaN would stay NaN.
"""

from collections import OrderedDict
from collections.abc import Iterator
from collections.abc import Sequence as Tokens

import attrs

from modelyard.errors import ContextLengthExceeded, Problem
from modelyard.parts.torch.kv_cache import RowCache, bytes_per_token
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.serving.sequence import Sequence

SHORTEST = 256
"""The shortest row, in tokens; longer rows double it, so that rows are seldom resized."""

KEPT_SHARE = 4
"""One row in this many keeps a finished answer, however many sequences run."""

_BLOCK = 64

_TAIL = 64
"""A prompt that has all but so many tokens of a kept answer takes its row; others get a copy."""


@attrs.frozen
class KnownPrefix:
    """The tokens of a finished answer whose keys are in a row, and the slot of its adapter."""

    slot: int
    tokens: list[int]


class CacheSlots:
    """Up to `most` running sequences within `memory` bytes: the longer the longest of them, the fewer.

    No row reserves what it may need later: rows become longer when one of them is full, and sequences that no longer
    fit must wait and are read again. `padded` is whether passes may write to the last place of rows that do not run.
    `reused` counts the tokens of prompts that were known, `evicted` the kept answers that gave way.
    """

    def __init__(self, network: Network, most: int, memory: int, padded: bool = False) -> None:
        each = bytes_per_token(network.config, network.dtype)
        self._most, self._tokens, self._padded = most, memory // each, padded
        self.reused: int = 0
        self.evicted: int = 0
        self.whole: int = network.context_length * each
        """Bytes of one sequence of the greatest length."""
        self.longest: int = min(self._tokens, network.context_length)
        """The longest sequence, in tokens, if nothing else runs."""
        self.running: list[Sequence] = []
        self._kept: OrderedDict[int, KnownPrefix] = OrderedDict()  # by row, the least recently used first
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
        length = max(length, self.cache.length) if count < self._count(self.cache.length) else length
        if length != self.cache.length:
            self._use(self._beginning(sequence)[1])
            self._resize(length)
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
        """Free its row: the last row moves there, and what was answered is kept in that one.

        A sequence that `failed`, or from which no token was sampled, is not kept, as its rows may contain NaN.
        """
        row, last = self.running.index(sequence), len(self.running) - 1
        keep = sequence.read and not failed
        if not keep:
            self._unclean |= {row, *(range(last, self.most_now) if self._padded else (last,))}
            self._clean({row})
        if row != last:
            moved = self.running[last]
            self.cache.swap(row, sequence.cached if keep else 0, last, moved.cached)
            self.running[row] = moved
        self.running.pop()
        if keep and sequence.cached:
            self._kept[last] = KnownPrefix(sequence.slot, sequence.tokens[: sequence.cached])

    def clear(self) -> None:
        self.running.clear()
        self._kept.clear()
        self._unclean.update(range(self.most_now))

    def forget(self, slot: int) -> None:
        """Forget the answers of this adapter slot, because another adapter is loaded into it."""
        for row in [row for row, kept in self._kept.items() if kept.slot == slot]:
            del self._kept[row]

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
        self._clean({*self._unclean})
        count = self._gather(self._all(length) - len(self.running), length - 1)
        self.cache.resize(self._all(length), length, count)

    def _gather(self, most: int, longest: int) -> int:
        """Put the kept answers into the rows after the running ones: `most` of them, cut to `longest` tokens.

        Return how many rows are in use then.
        """
        staying = {row: self._kept[row] for row in [*self._kept][max(0, len(self._kept) - most) :]}
        self.evicted += len(self._kept) - len(staying)
        places = dict(zip(sorted(staying), range(len(self.running), self._all(self.cache.length)), strict=False))
        for row, place in places.items():
            if row != place:
                self.cache.copy(row, place, len(staying[row].tokens))
        self._kept = OrderedDict(
            (places[row], KnownPrefix(kept.slot, kept.tokens[:longest])) for row, kept in staying.items()
        )
        return len(self.running) + len(staying)

    def _clean(self, rows: set[int]) -> None:
        """Clear the rows among these that may contain NaN, but for what is kept there."""
        for row in rows & self._unclean:
            self.cache.clear(row, len(self._kept[row].tokens) if row in self._kept else 0)
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
        """Prepare a row that is free to run, with what is known of the beginning of its sequence."""
        sequence.cached, source = self._beginning(sequence)
        if not sequence.answer:
            sequence.reused = sequence.cached
            self.reused += sequence.cached
        self._use(source)
        self._clean({row})
        if source in self._kept and len(self._kept[source].tokens) - sequence.cached <= _TAIL:
            self._take(source, row, sequence.cached)
            return
        if row in self._kept:
            self._give_way(row)
        if sequence.cached and source != row:
            self.cache.copy(source, row, sequence.cached)

    def _take(self, source: int, row: int, tokens: int) -> None:
        """Run on in `row` what is kept in `source`: what is kept in `row` goes there."""
        other = self._kept.get(row)
        if source != row:
            self.cache.swap(row, len(other.tokens) if other else 0, source, tokens)
        staying = [(place, one) for place, one in self._kept.items() if place != source]
        self._kept = OrderedDict((source if place == row else place, one) for place, one in staying)

    def _use(self, row: int) -> None:
        if row in self._kept:
            self._kept.move_to_end(row)

    def _give_way(self, row: int) -> None:
        """Keep the answer of this row in another one, unless all others were used after it."""
        free = [other for other in range(row + 1, self._all(self.cache.length)) if other not in self._kept]
        target = free[0] if free else next(iter(self._kept))
        self.evicted += not free
        if target == row:
            del self._kept[row]
            return
        self._kept.pop(target, None)
        self._clean({target})
        self.cache.copy(row, target, len(self._kept[row].tokens))
        self._kept = OrderedDict((target if place == row else place, one) for place, one in self._kept.items())

    def _known(self, slot: int) -> Iterator[tuple[int, Tokens[list[int]], int]]:
        """Yield rows of this adapter slot: the row, its tokens in parts, and the number of tokens with cached keys."""
        for row, one in enumerate(self.running):
            if one.slot == slot and one.cached:
                yield row, (one.prompt, one.answer), one.cached
        for row, kept in self._kept.items():
            if kept.slot == slot:
                yield row, (kept.tokens,), len(kept.tokens)


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

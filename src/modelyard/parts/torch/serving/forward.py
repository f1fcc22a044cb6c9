"""Forward passes of cached sequences through the network: tokens in, logits out."""

from collections.abc import Sequence as Many

import torch

from modelyard.parts.torch.cuda_graphs import NewRecorder, RecordedDecoding
from modelyard.parts.torch.lora import AdapterBank
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.serving.cache_slots import CacheSlots
from modelyard.parts.torch.serving.prompt_scores import score
from modelyard.parts.torch.serving.sequence import Sequence

PREFILL_TOKENS = 2048
"""Prompt tokens that are read in one pass: this bounds the memory of a pass apart from the cache."""


def side_by_side(rows: int, tokens: int) -> bool:
    return rows * tokens <= PREFILL_TOKENS


class ForwardPass:
    """Runs passes for up to `most` sequences that have a row, each with the adapter in its slot of the bank.

    With a `recorder`, passes of one token per row are recorded and replayed. Logits are sequences x vocabulary.
    """

    def __init__(
        self, network: Network, bank: AdapterBank, rows: CacheSlots, most: int, recorder: NewRecorder | None
    ) -> None:
        self._network, self._bank, self._rows = network, bank, rows
        self._recorded = recorder and RecordedDecoding(network, bank, rows.cache, most, recorder)

    def read(self, new: Many[Sequence]) -> torch.Tensor:
        """Read the unread rest of the sequences in the last rows; return the logits after their last token.

        Right-padded: values of the padding in the cache are overwritten before they are used.
        """
        found: list[torch.Tensor | None] = [None] * len(new)
        tokens, first = [one.tokens for one in new], len(self._rows.running) - len(new)
        width = max(1, PREFILL_TOKENS // len(new))
        while any(logits is None for logits in found):
            parts = [whole[one.cached : one.cached + width] for one, whole in zip(new, tokens, strict=True)]
            hidden = self._hidden(first, new, parts, [one.cached for one in new])
            for row, (one, part) in enumerate(zip(new, parts, strict=True)):
                if one.unscored:
                    self._bank.select_of_head([one.slot])
                    score(self._network, one, hidden[row, : len(part)], one.cached)
                one.cached += len(part)
                if found[row] is None and one.cached == one.length:
                    found[row] = hidden[row, len(part) - 1]
        return self._logits(torch.stack([state for state in found if state is not None]), new)

    def decode(self, running: Many[Sequence]) -> torch.Tensor:
        states = self._last_states(running)
        for sequence in running:
            sequence.cached = sequence.length
        return self._logits(states, running)

    def _logits(self, states: torch.Tensor, sequences: Many[Sequence]) -> torch.Tensor:
        self._bank.select_of_head([one.slot for one in sequences])
        return self._network.logits(states)

    def _last_states(self, running: Many[Sequence]) -> torch.Tensor:
        tokens, places = [one.answer[-1] for one in running], [one.length - 1 for one in running]
        if self._recorded is not None:
            found = self._recorded.states(tokens, places, [one.slot for one in running], self._rows.most_now)
            if found is not None:
                return found
        return self._hidden(0, running, [[token] for token in tokens], places)[:, -1]

    def _hidden(self, first: int, sequences: Many[Sequence], parts: Many[list[int]], starts: Many[int]) -> torch.Tensor:
        """Return the hidden states of these parts of sequences, right-padded, which begin at `starts`."""
        longest = max(map(len, parts))
        ids = torch.tensor([part + [0] * (longest - len(part)) for part in parts], device=self._network.device)
        positions, mask = self._rows.cache.begin(first, starts, longest)
        self._bank.select([one.slot for one in sequences])
        return self._network.hidden(ids, positions, mask, self._rows.cache)

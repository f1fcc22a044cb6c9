"""Log-probabilities of trained tokens, with as little memory as requested."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, islice
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from modelyard.parts.torch.mapped_weights import trim
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.network_checks import tried

HEAD_LOGITS = 2**25
"""Logits that are computed at a time. If a pass has more, they are computed again for their derivatives."""


class ScoredRow(Protocol):
    """Tokens to read, the positions of some of them, and for each of these the tokens to score there next."""

    @property
    def ids(self) -> Sequence[int]:
        """The ids of the tokens to read."""
        ...

    @property
    def before(self) -> Sequence[int]:
        """The positions, at least one."""
        ...

    @property
    def targets(self) -> Sequence[Sequence[int]]:
        """The tokens to score after each, at least one."""
        ...


class TokenScorer:
    """The network as training uses it."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.layers: Layers = Layers(network.model.get_decoder())
        self.vocabulary: int = network.vocabulary

    def logprobs(
        self, rows: Sequence[ScoredRow], recomputed: bool = False, packed: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probability (nats) of each target, row after row, and the entropy of each position.

        Logits are computed at these positions only: with a large vocabulary they cost more than everything else. Rows
        are right-padded, where no token attends, or `packed` one after the other, where none attends to another row. If
        `recomputed`, layers are computed again for their derivatives.
        """
        return self.of_states(rows, self.states([rows], recomputed, packed)[0])

    def states(
        self, groups: Sequence[Sequence[ScoredRow]], recomputed: bool = False, packed: bool = False
    ) -> list[Tensor]:
        """Return the body's results at the positions of each group of rows. All rows go through it in one pass."""
        every, device = [row for rows in groups for row in rows], self._network.device
        inputs, starts = (_packed if packed else _padded)(every, device)
        with self.layers.recomputed(recomputed):
            hidden = self._network.body(**inputs, use_cache=False).last_hidden_state.flatten(0, 1)
        if recomputed and device.type == "cpu":  # the gaps between the inputs of layers were as large as the head
            trim()
        first = iter(starts)
        places = [
            [start + place for row, start in zip(rows, first, strict=False) for place in row.before] for rows in groups
        ]
        return [hidden.index_select(0, torch.tensor(before, device=device)) for before in places]

    def of_states(self, rows: Sequence[ScoredRow], hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return what `logprobs` does, from the body's results."""
        targets, device = [tokens for row in rows for tokens in row.targets], self._network.device
        most = max(map(len, targets))
        padded = torch.tensor([[*tokens, *[0] * (most - len(tokens))] for tokens in targets], device=device)
        found, entropies = self._of_tokens(hidden, padded)
        if any(len(tokens) < most for tokens in targets):
            there = torch.tensor([[place < len(tokens) for place in range(most)] for tokens in targets], device=device)
            return found[there], entropies
        return found.flatten(), entropies

    def placed_on(self) -> dict[str, str]:
        dtype = str(self._network.dtype).removeprefix("torch.")
        return {"device": self._network.device.type, "dtype": dtype}

    def can_pack(self) -> bool:
        """Return whether this network reads rows one after the other as it reads each alone."""
        rows = [_Probe([*range(3, 3 + length)]) for length in (5, 9, 2)]
        with torch.no_grad():
            alone, _ = self.logprobs(rows)
            packed = tried(lambda _: self.logprobs(rows, packed=True)[0], alone)
        most = 1e-3 if self._network.dtype is torch.float32 else 0.15
        return packed is not None and float((packed - alone).abs().max()) <= most

    def _of_tokens(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        size = max(1, HEAD_LOGITS // self.vocabulary)
        if len(tokens) <= size:
            return self._head(hidden, tokens)
        parts = zip(hidden.split(size), tokens.split(size), strict=True)
        found = [checkpoint(self._head, *part, use_reentrant=False, preserve_rng_state=False) for part in parts]
        logprobs, entropies = zip(*found, strict=True)
        return torch.cat(logprobs), torch.cat(entropies)

    def _head(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        logprobs = self._network.logits(hidden).log_softmax(-1)
        with torch.no_grad():  # avoids NaN from -inf: such an unlikely token adds nothing
            entropies = -torch.linalg.vecdot(logprobs.exp(), logprobs.clamp_min(-100))
        return logprobs.gather(1, tokens), entropies


class _Probe:
    def __init__(self, ids: Sequence[int]) -> None:
        self.ids, self.before, self.targets = ids, range(len(ids)), [(one,) for one in ids]


def _padded(rows: Sequence[ScoredRow], device: torch.device) -> tuple[dict[str, Tensor], Sequence[int]]:
    longest = max(len(row.ids) for row in rows)
    ids = torch.tensor([[*row.ids, *[0] * (longest - len(row.ids))] for row in rows], device=device)
    return {"input_ids": ids}, range(0, longest * len(rows), longest)


def _packed(rows: Sequence[ScoredRow], device: torch.device) -> tuple[dict[str, Tensor], Sequence[int]]:
    """Return rows as one, and where each starts. Positions that begin again tell the network where a row ends."""
    ids = torch.tensor([[one for row in rows for one in row.ids]], device=device)
    positions = torch.tensor([[place for row in rows for place in range(len(row.ids))]], device=device)
    starts = accumulate((len(row.ids) for row in rows[:-1]), initial=0)
    return {"input_ids": ids, "position_ids": positions}, list(starts)


def backward(flat: Tensor, rows: Sequence[Sequence[float]]) -> None:
    """Add to the gradients by the derivatives of the log-probabilities of a pass, row by row."""
    flat.backward(as_slopes(flat, rows))


def as_slopes(flat: Tensor, rows: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor([value for row in rows for value in row], dtype=flat.dtype, device=flat.device)


def rows_of(flat: Tensor, rows: Sequence[ScoredRow]) -> list[list[float]]:
    values = iter(flat.detach().tolist())
    return [list(islice(values, sum(map(len, row.targets)))) for row in rows]


class Layers:
    """The layers of a network's body. They can keep only their inputs, and recompute the rest for derivatives.

    That is about a third more work for a fraction of the memory.
    """

    def __init__(self, body: nn.Module) -> None:
        self._recomputed = False
        lists = [(name, module) for name, module in body.named_modules() if isinstance(module, nn.ModuleList)]
        _, layers = min(lists, key=lambda pair: pair[0].count("."), default=("", ()))
        self.count: int = len(layers)
        for layer in layers:
            layer.forward = self._around(layer.forward)

    @contextmanager
    def recomputed(self, on: bool) -> Iterator[None]:
        self._recomputed = on
        try:
            yield
        finally:
            self._recomputed = False

    def _around(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def layer(*args: Any, **kwargs: Any) -> Any:
            if not self._recomputed or not torch.is_grad_enabled():
                return forward(*args, **kwargs)
            return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

        return layer

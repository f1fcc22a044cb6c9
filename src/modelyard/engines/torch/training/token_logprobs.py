"""Log-probabilities of trained tokens, with as little memory as requested."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from modelyard.engines.torch.network import Network
from modelyard.engines.torch.training.examples import TokenRow

HEAD_LOGITS = 2**25
"""Logits that are computed at a time. If a pass has more, they are computed again for their derivatives."""


class TokenScorer:
    """The network as training uses it."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.layers: Layers = Layers(network.model.get_decoder())
        self.vocabulary: int = network.vocabulary

    def logprobs(self, rows: Sequence[TokenRow], recomputed: bool = False) -> tuple[Tensor, Tensor]:
        """Return the log-probability (nats) of each trained token, row after row, and the entropy if it was sampled.

        Logits are computed at these positions only: with a large vocabulary they cost more than everything else. Rows
        are right-padded, where no token attends. If `recomputed`, layers are computed again for their derivatives.
        """
        device, longest = self._network.device, max(len(row.ids) for row in rows)
        ids = torch.tensor([[*row.ids, *[0] * (longest - len(row.ids))] for row in rows], device=device)
        before = [number * longest + place - 1 for number, row in enumerate(rows) for place in row.places]
        trained = [row.ids[place] for row in rows for place in row.places]
        with self.layers.recomputed(recomputed):
            hidden = self._network.body(input_ids=ids, use_cache=False).last_hidden_state
        hidden = hidden.flatten(0, 1).index_select(0, torch.tensor(before, device=device))
        return self._of_tokens(hidden, torch.tensor(trained, device=device))

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
        return logprobs.gather(1, tokens[:, None])[:, 0], entropies


def backward(flat: Tensor, rows: Sequence[Sequence[float]]) -> None:
    """Add to the gradients by the derivatives of the log-probabilities of a pass, row by row."""
    values = [value for row in rows for value in row]
    flat.backward(torch.tensor(values, dtype=flat.dtype, device=flat.device))


def rows_of(flat: Tensor, rows: Sequence[TokenRow]) -> list[list[float]]:
    """Return the log-probabilities of a pass, row by row."""
    values = iter(flat.detach().tolist())
    return [list(islice(values, len(row.places))) for row in rows]


class Layers:
    """The layers of a network's body, which can keep only their inputs and recompute the rest for derivatives.

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
        """Switch recomputing on or off for the passes of this context."""
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

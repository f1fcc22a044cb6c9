"""The memory that training needs, estimated before its first step, and passes that fit into it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs
import torch
from torch import Tensor, nn

from modelyard.errors import TrainingError
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.training.token_logprobs import HEAD_LOGITS, ScoredRow, TokenScorer

MOST_TOKENS, LEAST_TOKENS = 8192, 1024
"""Tokens of a pass, padding included: more are not faster, and fewer are less efficient."""

_MOMENTS = 12
"""Bytes for each trained parameter: its gradient and the two moments of AdamW."""

_GRADIENT = 4
"""Bytes for each trained parameter: its gradient alone."""

_HEAD_COPIES = 5
"""Tensors of the head: up to 4.3 are held at once, logits, log-probabilities, probabilities and the derivative. With
less, passes of a model of 49 thousand tokens took 1.1 times their estimate.
"""

_SPREAD = 1.4
"""The factor between the memory of a pass and that of its tensors on a processor, because of the allocator's gaps:
1.25 to 1.35 in `benchmarks/local_memory.py`.
"""

UNSEEN = 192 * 2**20
"""Bytes of a job that are not estimated, for any model: late imports, the tokenizer, buffers of the libraries."""

_SAMPLE = 32

SHARED_TOKENS = 1024
"""Tokens of a pass over rows of several runs, padding included: larger passes gain nothing by being shared, and a small
run would wait for a large one.
"""

_GROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Limit, use, and pages that can be dropped: of control groups of version 2 and 1."""


# ---- available memory ----------------------------------------------------------------------------------------------


def free_memory(device: str) -> int | None:
    """Return the bytes that are still available on the card, or to this process on the machine, less `UNSEEN`.

    Returns None if that is not known.
    """
    if torch.device(device).type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    own = Path("/proc/self/cgroup")
    groups = _allowed(Path("/sys/fs/cgroup"), own.read_text() if own.is_file() else "")
    limits = [found for found in (_available(Path("/proc/meminfo")), groups) if found is not None]
    return max(0, min(limits) - UNSEEN) if limits else None


def _available(path: Path) -> int | None:
    if not path.is_file():
        return None
    found = [line.split()[1] for line in path.read_text().splitlines() if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


def _allowed(root: Path, own: str) -> int | None:
    """Return the bytes that the control groups of a process leave it: its own and those above, of both versions.

    `own` is the text of /proc/self/cgroup. Unmapped file pages of a group can be dropped.
    """
    left = [
        found for group in _groups(root, own) for names in _GROUP_FILES if (found := _left(group, *names)) is not None
    ]
    return min(left, default=None)


def _groups(root: Path, own: str) -> Iterator[Path]:
    """Yield the folders of groups that may bound memory. In a container some are of the host, and not there."""
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if controllers else root
        parts = [part for part in path.split("/") if part not in ("", "..")]
        yield from (top.joinpath(*parts[:count]) for count in range(len(parts) + 1))


def _left(group: Path, limit: str, usage: str, droppable: str) -> int | None:
    try:
        most, used = (group / limit).read_text().strip(), int((group / usage).read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return int(most) - used + int(statistics[droppable]) if most.isdecimal() else None


# ---- needed memory ---------------------------------------------------------------------------------------------


@attrs.frozen
class Need:
    """Bytes: `weights` of the network and of trained parameters, `moments` (with gradients), and the bytes of a pass.

    For each token, a pass keeps `kept` bytes until its derivatives or, recomputed, the `inputs` of all `layers`; its
    logits take the bytes of the `head`, up to `most_head`. A pass takes `spread` times the memory of its tensors.
    """

    weights: int
    moments: int
    head: int
    most_head: int
    kept: float
    squared: float
    inputs: float
    layers: int
    spread: float

    def of_pass(self, rows: int, longest: int, recomputed: bool) -> int:
        """Estimate a pass of so many rows of this length. A layer's derivatives need about as much as it kept."""
        tokens = rows * longest
        whole = tokens * (self.kept + self.squared * longest)
        held = tokens * self.inputs if recomputed and self.layers else whole
        derived = 2 * whole / self.layers if self.layers else whole
        return int((held + derived + min(tokens * self.head, self.most_head)) * self.spread)

    @staticmethod
    def of_shared_pass(parts: "Sequence[tuple[Need, int]]", longest: int) -> int:
        """Estimate a pass of several runs, each with its need and so many rows, the longest of all of this length.

        Layers are not recomputed. The head is computed for one run after the other. Gradients of all are held before
        they are added to those that are there.
        """
        first = parts[0][0]
        whole = sum(rows * longest * (need.kept + need.squared * longest) for need, rows in parts)
        derived = 2 * whole / first.layers if first.layers else whole
        head = max(min(rows * longest * need.head, need.most_head) for need, rows in parts)
        gradients = sum(need.moments for need, _ in parts) * _GRADIENT // _MOMENTS
        return int((whole + derived + head) * first.spread) + gradients

    @property
    def fixed(self) -> int:
        return self.weights + self.moments


def need_of(network: Network, scorer: TokenScorer, parameters: Sequence[nn.Parameter], copies: int) -> Need:
    """Measure the needs of this network by two short passes. `copies` of trained parameters are kept as well."""
    learning = sum(parameter.numel() for parameter in parameters)
    weights = sum(parameter.nbytes for parameter in network.model.parameters())
    few, many = (_kept_bytes(network, tokens) for tokens in (_SAMPLE, 2 * _SAMPLE))
    squared = max(0.0, (many - 2 * few) / (2 * _SAMPLE**2))
    inputs = scorer.layers.count * network.config.hidden_size * network.dtype.itemsize
    kept = many / (2 * _SAMPLE) - squared * 2 * _SAMPLE
    return Need(
        weights + copies * sum(parameter.nbytes for parameter in parameters),
        learning * _MOMENTS,
        scorer.vocabulary * 4 * _HEAD_COPIES,
        HEAD_LOGITS * 4 * _HEAD_COPIES,
        kept,
        squared,
        inputs,
        scorer.layers.count,
        _SPREAD if network.device.type == "cpu" else 1.0,
    )


def _kept_bytes(network: Network, tokens: int) -> int:
    """Measure what a pass over one row of so many tokens keeps for its derivatives, apart from weights."""
    known = {parameter.untyped_storage().data_ptr() for parameter in network.model.parameters()}
    found: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.zeros((1, tokens), dtype=torch.long, device=network.device)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        states = network.body(input_ids=ids, use_cache=False).last_hidden_state
    del states
    return sum(size for place, size in found.items() if place not in known)


# ---- passes that fit ---------------------------------------------------------------------------------------------


@attrs.frozen
class Pass:
    """Some rows of a step, their numbers in the step, and whether layers are recomputed."""

    numbers: Sequence[int]
    rows: Sequence[ScoredRow]
    recomputed: bool
    packed: bool = False
    """Whether the rows are one after the other, without padding."""


def _nothing() -> int:
    return 0


class MemoryBudget:
    """The memory that a job may take in all: `limit` bytes, or any amount. Other runs take `others()` of them now."""

    def __init__(
        self, need: Need, limit: int | None, tokens: int | None = None, others: Callable[[], int] = _nothing
    ) -> None:
        self._need, self._limit, self._others = need, limit, others
        self.packs: bool = False
        self.longest: int = 1
        """Tokens of the longest row that was admitted."""
        self.tokens: int = tokens or next(self._fitting_tokens(), LEAST_TOKENS)

    def _fitting_tokens(self) -> Iterator[int]:
        """Yield the tokens of a pass that fit: without recomputing and, if none do, with it."""
        sizes = [MOST_TOKENS >> halvings for halvings in range(MOST_TOKENS.bit_length())]
        yield from (size for size in sizes if size >= LEAST_TOKENS and self._fits(1, size, recomputed=False))
        yield from (size for size in sizes if self._fits(1, size, recomputed=True))

    def _fits(self, rows: int, longest: int, recomputed: bool) -> bool:
        return self._limit is None or self._total(rows, longest, recomputed) <= self._limit

    def _total(self, rows: int, longest: int, recomputed: bool) -> int:
        return self._need.fixed + self._others() + self._need.of_pass(rows, longest, recomputed)

    def admit(self, length: int) -> None:
        """Raise `TrainingError` if a row of this length cannot be trained here, beside what other runs take now."""
        if self._fits(1, length, recomputed=True):
            self.longest = max(self.longest, length)
            return
        assert self._limit is not None
        need, others = self._need, self._others()
        raise TrainingError(
            f"this job needs {_amount(self._total(1, length, recomputed=True))} of memory and may take "
            f"{_amount(self._limit)}: {_amount(need.weights)} are weights, {_amount(need.moments)} gradients and "
            f"moments, {f'{_amount(others)} those of other runs, ' if others else ''}"
            f"{_amount(need.of_pass(1, length, recomputed=True))} a pass over a row of {length} tokens; "
            f"train on shorter rows, on a smaller base model, "
            f"{'after other runs, ' if others else ''}or with more memory"
        )

    def shares(self, parts: "Sequence[tuple[MemoryBudget, int]]", longest: int) -> bool:
        """Return whether a pass over rows of several runs fits: budgets and numbers of rows, this one among them."""
        rows = sum(count for _, count in parts)
        if rows * longest > min(SHARED_TOKENS, *(room.tokens for room, _ in parts)):
            return False
        needs = [(room._need, count) for room, count in parts]
        taken = self._need.fixed + self._others() + Need.of_shared_pass(needs, longest)
        return self._limit is None or taken <= self._limit

    def now(self, one: "Pass") -> "Pass":
        """Return a planned pass as it fits beside what other runs take by now."""
        longest = max(len(row.ids) for row in one.rows)
        if one.packed or one.recomputed or self._fits(len(one.rows), longest, recomputed=False):
            return one
        return attrs.evolve(one, recomputed=True)

    def passes(self, rows: Sequence[ScoredRow]) -> Iterator[Pass]:
        order = sorted(range(len(rows)), key=lambda number: len(rows[number].ids))
        numbers: list[int] = []
        for number in order:
            if numbers and self._is_too_much([*numbers, number], rows):
                yield self._pass(numbers, rows)
                numbers = []
            numbers.append(number)
        if numbers:
            yield self._pass(numbers, rows)

    def _is_too_much(self, numbers: Sequence[int], rows: Sequence[ScoredRow]) -> bool:
        """Return whether rows, the last of which is the longest, are too many for a pass.

        The size of passes is that of a run alone, as sums depend on it, unless other runs leave less memory.
        """
        if self._tokens(numbers, rows) > self.tokens:
            return True
        longest = len(rows[numbers[-1]].ids)
        return self._others() > 0 and not self._fits(len(numbers), longest, recomputed=True)

    def _tokens(self, numbers: Sequence[int], rows: Sequence[ScoredRow]) -> int:
        if self.packs:
            return sum(len(rows[one].ids) for one in numbers)
        return len(numbers) * len(rows[numbers[-1]].ids)

    def _pass(self, numbers: Sequence[int], rows: Sequence[ScoredRow]) -> Pass:
        count = 1 if self.packs else len(numbers)
        recomputed = not self._fits(count, self._tokens(numbers, rows) // count, recomputed=False)
        return Pass(numbers, [rows[one] for one in numbers], recomputed, self.packs)

    def estimate(self, rows: int, longest: int) -> dict[str, int]:
        """Return the bytes of a job with so many rows a step, the longest of which has so many tokens."""
        count = max(1, min(rows, self.tokens // max(1, longest)))
        recomputed = not self._fits(count, longest, recomputed=False)
        known = {} if self._limit is None else {"limit": self._limit}
        return {
            "estimate": self._total(count, longest, recomputed),
            "weights": self._need.weights,
            "moments": self._need.moments,
            **known,
        }


def check_weights(parameters: int, bytes_each: int, limit: int | None) -> None:
    """Raise `TrainingError` if the weights alone exceed the limit, before they are loaded."""
    if limit is not None and parameters * bytes_each > limit:
        raise TrainingError(
            f"the base model's weights take {_amount(parameters * bytes_each)} of memory and the job may take "
            f"{_amount(limit)}; train a smaller base model, or with more memory"
        )


def _amount(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"

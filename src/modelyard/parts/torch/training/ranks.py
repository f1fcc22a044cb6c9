"""Data-parallel training: the processes of one job on one machine, and their joint computation.

Each rank has the network and a share of each step's rows. Rank 0 is the trainer: it alone has losses, the optimizer and
the files. For each computation it hands out rows and the present weights, collects log-probabilities, hands out their
derivatives and sums the gradients. So the others keep nothing between computations, and a resumed job computes the same
as an undisturbed job.
"""

import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any, cast

import attrs
import torch
from torch import Tensor, distributed, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from modelyard.errors import TrainingError
from modelyard.parts.torch.lora import LoraShape
from modelyard.parts.torch.records import WeightFormat
from modelyard.parts.torch.training.memory_plan import Pass
from modelyard.parts.torch.training.token_logprobs import TokenScorer, backward, rows_of

_PATIENCE = timedelta(days=1)
"""How long a rank waits for the others: for as long as the trainer may do something else."""
_ONE_GROUP = threading.Lock()
"""A process belongs to one group of ranks at a time."""
READY = b"ready\n"

Rows = Sequence[Sequence[float]]


class RankTask(Enum):
    """The task of a rank with its passes.

    SCORE computes log-probabilities. DIFFERENTIATE also adds to the gradient, by derivatives that are given; ASK asks
    for the derivatives once log-probabilities are known.
    """

    SCORE = "score"
    DIFFERENTIATE = "differentiate"
    ASK = "ask"


@attrs.frozen
class Share:
    """The work of one rank: its passes, and for each pass the derivatives of its rows, if they are known."""

    task: RankTask
    passes: Sequence[Pass]
    derivatives: Sequence[Rows] = ()


@attrs.frozen
class Scored:
    """The log-probabilities of the rows of a pass, and the sum of the entropies."""

    rows: Rows
    entropy: float


Found = Sequence[Sequence[Scored]]
"""What each rank found, pass by pass."""


class Ranks:
    """The ranks of a job, as each of them sees them."""

    def __init__(self, scorer: TokenScorer, parameters: Sequence[nn.Parameter]) -> None:
        self._scorer, self._parameters = scorer, parameters
        self.count: int = distributed.get_world_size()

    def compute(
        self, shares: Sequence[Share], derivatives: Callable[[Found], Sequence[Sequence[Rows]]] | None = None
    ) -> Found:
        """Have each rank do its share, and leave the sum of the gradients in the parameters, if there are any.

        `derivatives` returns, for each rank and pass, the derivatives of its rows, if the task is ASK. Rank 0 calls
        this.
        """
        return cast(Found, self._together(shares, derivatives))

    def follow(self) -> None:
        """Do one share. The other ranks call this."""
        self._together(None, None)

    def _together(
        self, shares: Sequence[Share] | None, derivatives: Callable[[Found], Sequence[Sequence[Rows]]] | None
    ) -> Found | None:
        share: Share = _handed_out(shares)
        weights = parameters_to_vector([parameter.data for parameter in self._parameters])
        distributed.broadcast(weights, 0)
        if shares is None:
            vector_to_parameters(weights, self._parameters)
            for parameter in self._parameters:
                parameter.grad = None
        flats, mine = self._passed(share)
        found: Any = None if shares is None else [None] * self.count
        distributed.gather_object(mine, found, 0)
        if share.task is RankTask.ASK:
            given = _handed_out(None if derivatives is None else derivatives(found))
            for flat, rows in zip(flats, given, strict=True):
                backward(flat, rows)
        if share.task is not RankTask.SCORE:
            self._sum_gradients(lead=shares is not None)
        return cast(Found | None, found)

    def _passed(self, share: Share) -> tuple[list[Tensor], list[Scored]]:
        flats, found = [], []
        for number, one in enumerate(share.passes):
            with torch.set_grad_enabled(share.task is not RankTask.SCORE):
                flat, entropies = self._scorer.logprobs(one.rows, one.recomputed, one.packed)
            found.append(Scored(rows_of(flat, one.rows), float(entropies.sum())))
            if share.task is RankTask.DIFFERENTIATE:
                backward(flat, share.derivatives[number])
            elif share.task is RankTask.ASK:
                flats.append(flat)
        return flats, found

    def _sum_gradients(self, lead: bool) -> None:
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in self._parameters]
        total = parameters_to_vector(gradients)
        distributed.reduce(total, 0)
        if lead:
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.grad = gradient
            vector_to_parameters(total, [one.grad for one in self._parameters])


def _handed_out(parts: Sequence[Any] | None) -> Any:
    mine: list[Any] = [None]
    distributed.scatter_object_list(mine, None if parts is None else list(parts), 0)
    return mine[0]


# ---- processes -----------------------------------------------------------------------------------------------------


@attrs.frozen
class RankSetup:
    """The setup of the network in the process of another rank. `shape` is the shape of an adapter, None for all
    weights.

    `meeting` is a file that does not exist, by which ranks find each other.
    """

    folder: str
    device: str
    shape: LoraShape | None
    form: WeightFormat | None
    base_model: str
    threads: int
    count: int
    rank: int = 0
    meeting: str = ""


@contextmanager
def joined(rank: int, count: int, device: str, meeting: str) -> Iterator[None]:
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are on this machine
    kind = "cpu:gloo,cuda:nccl" if torch.device(device).type == "cuda" else "gloo"
    address = Path(meeting).as_uri()
    distributed.init_process_group(kind, init_method=address, rank=rank, world_size=count, timeout=_PATIENCE)
    try:
        yield
    finally:
        distributed.destroy_process_group()


@contextmanager
def other_ranks(setup: RankSetup) -> Iterator[None]:
    """Start the processes of ranks 1 and up, and be rank 0 for the duration of the block. They end with it.

    Raises `TrainingError` if one of them ends before.
    """
    with _ONE_GROUP, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        meeting = str(folder / "meeting")
        others = [
            stack.enter_context(_started(_of_rank(setup, rank, meeting), folder / f"{rank}.log"))
            for rank in range(1, setup.count)
        ]
        for number, process in enumerate(others, 1):
            if process.stdout is None or process.stdout.readline() != READY:
                process.wait()
                raise TrainingError(f"rank {number} of {setup.count} did not start: {_last_lines(folder, number)}")
        with joined(0, setup.count, setup.device, meeting):
            try:
                yield
            except RuntimeError as fault:
                ended = [number for number, process in enumerate(others, 1) if process.poll() is not None]
                if not ended:
                    raise
                raise TrainingError(
                    f"rank {ended[0]} of {setup.count} ended: {_last_lines(folder, ended[0])}"
                ) from fault


def _of_rank(setup: RankSetup, rank: int, meeting: str) -> RankSetup:
    device = f"cuda:{rank}" if torch.device(setup.device).type == "cuda" else setup.device
    return attrs.evolve(setup, rank=rank, meeting=meeting, device=device)


@contextmanager
def _started(setup: RankSetup, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the process of a rank, which ends when its input does: at the latest when this process dies."""
    command = [sys.executable, "-m", "modelyard.parts.torch.training.rank_process"]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file)  # noqa: S603
    assert process.stdin is not None
    with process:
        try:
            with suppress(BrokenPipeError):  # it has ended, and its log says why
                process.stdin.write(pickle.dumps(setup))
                process.stdin.flush()
            yield process
        finally:
            process.kill()
            with suppress(BrokenPipeError):
                process.stdin.close()


def _last_lines(folder: Path, rank: int) -> str:
    lines = (folder / f"{rank}.log").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"

"""Decoding by replaying recorded passes (CUDA graphs): replaying is faster than launching a thousand kernels.

A recording reads and writes fixed addresses. So a pass is recorded for a number of rows and of visible keys, on inputs
that stay at their addresses, and is replayed for fewer of both: rows of padding write to the last place of rows that
are not running.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from modelyard.parts.torch.kv_cache import RowCache
from modelyard.parts.torch.lora import AdapterBank
from modelyard.parts.torch.network import Network

log: logging.Logger = logging.getLogger("modelyard.engines.torch")
log.addHandler(logging.NullHandler())

FEWEST_KEYS = 256
"""The smallest number of visible keys that a pass is recorded for."""

MOST = 64
"""The number of recordings kept; the least recently used one is dropped first."""


class CapturedGraph(NamedTuple):
    """A recorded pass: `replay()` runs it again, and its result is then in `states`."""

    replay: Callable[[], object]
    states: Tensor


Recorder = Callable[[Callable[[], Tensor]], CapturedGraph]
"""Records the tensor operations of a call. Raises if they cannot be recorded."""

NewRecorder = Callable[[], Recorder]
"""Creates a recorder whose recordings are dropped together."""


_RECORDING = threading.Lock()
"""Only one thread of a process can record at a time."""


class CudaGraphs:
    """The recorder of a graphics card. Its recordings share their memory, as only one is replayed at a time."""

    def __init__(self, device: torch.device) -> None:
        with torch.cuda.device(device):
            self._device, self._stream = device, torch.cuda.Stream()
            self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, call: Callable[[], Tensor]) -> CapturedGraph:
        """Record the call, after running it once: libraries initialise on first use. Other threads may use the card."""
        graph = torch.cuda.CUDAGraph()
        with _RECORDING, torch.cuda.device(self._device):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):  # around both, as a failed graph would leave its stream current
                call()
                with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                    states = call()
            torch.cuda.current_stream().wait_stream(self._stream)
        return CapturedGraph(graph.replay, states)


def usual_recorder(device: torch.device) -> NewRecorder | None:
    """Return a recorder of CUDA graphs for a graphics card, and None for a processor, which launches nothing."""
    return partial(CudaGraphs, device) if device.type == "cuda" else None


class _Shape(NamedTuple):
    """The shape of a recording: rows, keys, and for how many rows the adapter is looked up.

    The latter is 0 if no row has an adapter, and 1 if all have the same.
    """

    rows: int
    keys: int
    adapters: int


class RecordedDecoding:
    """Passes of one token for each of the first rows of a cache, of which there are up to `rows`."""

    def __init__(self, network: Network, bank: AdapterBank, cache: RowCache, rows: int, recorder: NewRecorder) -> None:
        self._network, self._bank, self._cache = network, bank, cache
        self._recorder, self._record = recorder, recorder()
        self._inputs = torch.zeros((3, rows), dtype=torch.long, device=network.device)
        self._recordings: OrderedDict[_Shape, CapturedGraph | None] = OrderedDict()
        self._versions, self._warned = (cache.version, bank.version), False

    def states(self, tokens: Sequence[int], places: Sequence[int], slots: Sequence[int], most: int) -> Tensor | None:
        """Return the hidden states (rows x size) of one token per row, which are valid until the next call.

        Each token follows the first `places` tokens of its row and uses the adapter in its slot. The first `most` rows
        of the cache may be written. Returns None if such a pass cannot be recorded.
        """
        keys = min(_rounded(max(FEWEST_KEYS, max(places) + 1)), self._cache.length)
        rows = max(len(tokens), min(_rounded(len(tokens)), most))
        adapters = rows if len(set(slots)) > 1 else min(1, slots[0])
        unused = (0, self._cache.length - 1, 0)  # no sequence that ends keeps the last place of a row
        padded = [
            [*values, *[filled] * (rows - len(values))]
            for values, filled in zip((tokens, places, slots), unused, strict=True)
        ]
        self._inputs[:, :rows] = torch.tensor(padded)
        recording = self._recording(_Shape(rows, keys, adapters))
        if recording is None:
            return None
        recording.replay()
        return recording.states[: len(tokens)]

    def _recording(self, shape: _Shape) -> CapturedGraph | None:
        versions = self._cache.version, self._bank.version
        if versions != self._versions:
            self._recordings.clear()
            self._record, self._versions = self._recorder(), versions
        if shape not in self._recordings:
            self._recordings[shape] = self._recorded(shape)
            if len(self._recordings) > MOST:
                self._recordings.popitem(last=False)
        self._recordings.move_to_end(shape)
        return self._recordings[shape]

    def _recorded(self, shape: _Shape) -> CapturedGraph | None:
        try:
            return self._record(partial(self._pass, shape))
        except Exception as fault:  # noqa: BLE001 - after any error the pass can run without a graph
            if not self._warned:
                log.warning("a pass of %d rows runs without a CUDA graph, which is slower: %s", shape.rows, fault)
            self._warned = True
            return None

    def _pass(self, shape: _Shape) -> Tensor:
        """Run a pass that depends on nothing but `_inputs`."""
        tokens, places, slots = self._inputs[:, : shape.rows, None]
        self._bank.look_up(slots[: shape.adapters, 0])
        mask = self._cache.begin_at(0, places, shape.keys)
        return self._network.hidden(tokens, places, mask, self._cache)[:, -1]


def _rounded(count: int) -> int:
    """Round up to a power of two, or to one and a half times one."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 else power

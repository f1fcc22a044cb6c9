"""Decoding by replaying recorded passes (CUDA graphs): a graphics card makes a pass of one token a row faster than its
thousand kernels are launched one by one.

A recording reads and writes fixed addresses. So a pass is recorded for a number of rows and of keys that they see, on
inputs that stay where they are, and is replayed for fewer of both: rows of padding write where no running row lies.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from modelyard.engines.torch.kv_cache import RowCache
from modelyard.engines.torch.lora import AdapterBank
from modelyard.engines.torch.network import Network

log = logging.getLogger("modelyard.engines.torch")
log.addHandler(logging.NullHandler())

FEWEST_KEYS = 256
"""Passes that see fewer keys are recorded as if they saw so many."""

MOST = 64
"""Recordings at a time; the one that was not used for the longest time makes room."""


class Recording(NamedTuple):
    """`replay()` does again what was recorded; `states` is where its result lies then."""

    replay: Callable[[], object]
    states: Tensor


Recorder = Callable[[Callable[[], Tensor]], Recording]
"""Records what a call does with tensors. Raises what keeps it from being recorded."""

NewRecorder = Callable[[], Recorder]
"""Makes a recorder for recordings that are dropped together."""


_RECORDING = threading.Lock()
"""Of a process one thread at a time can record."""


class CudaGraphs:
    """The recorder of a graphics card. Its recordings share their memory, as one is replayed at a time."""

    def __init__(self, device: torch.device) -> None:
        with torch.cuda.device(device):
            self._device, self._stream = device, torch.cuda.Stream()
            self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, call: Callable[[], Tensor]) -> Recording:
        """Made once before, as libraries prepare themselves when first used. Other threads may use the card."""
        graph = torch.cuda.CUDAGraph()
        with _RECORDING, torch.cuda.device(self._device):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):  # around both: a failed graph would leave it the current one
                call()
                with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                    states = call()
            torch.cuda.current_stream().wait_stream(self._stream)
        return Recording(graph.replay, states)


def usual_recorder(device: torch.device) -> NewRecorder | None:
    """CUDA graphs where there is a card: a processor launches nothing."""
    return partial(CudaGraphs, device) if device.type == "cuda" else None


class _Shape(NamedTuple):
    """What a recording is for: rows, keys, and of how many rows the adapter is looked up (0: none has one, 1: all have
    the same)."""

    rows: int
    keys: int
    adapters: int


class RecordedDecoding:
    """Passes of one token for each of the first rows of a cache, of which there are up to `rows`."""

    def __init__(self, network: Network, bank: AdapterBank, cache: RowCache, rows: int, recorder: NewRecorder) -> None:
        self._network, self._bank, self._cache = network, bank, cache
        self._recorder, self._record = recorder, recorder()
        self._inputs = torch.zeros((3, rows), dtype=torch.long, device=network.device)
        self._recordings: OrderedDict[_Shape, Recording | None] = OrderedDict()
        self._versions, self._told = (cache.version, bank.version), False

    def states(self, tokens: Sequence[int], places: Sequence[int], slots: Sequence[int], most: int) -> Tensor | None:
        """Hidden states (rows x size), until the next call, of a token for each row, which comes behind the row's first
        `places` and uses the adapter in its slot. The first `most` rows of the cache may be written. None where such
        a pass cannot be recorded.
        """
        keys = min(_rounded(max(FEWEST_KEYS, max(places) + 1)), self._cache.length)
        rows = max(len(tokens), min(_rounded(len(tokens)), most))
        adapters = rows if len(set(slots)) > 1 else min(1, slots[0])
        padded = [[*values, *[0] * (rows - len(values))] for values in (tokens, places, slots)]
        self._inputs[:, :rows] = torch.tensor(padded)
        recording = self._recording(_Shape(rows, keys, adapters))
        if recording is None:
            return None
        recording.replay()
        return recording.states[: len(tokens)]

    def _recording(self, shape: _Shape) -> Recording | None:
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

    def _recorded(self, shape: _Shape) -> Recording | None:
        try:
            return self._record(partial(self._pass, shape))
        except Exception as fault:  # noqa: BLE001 - whatever it is, the pass can be made as it is
            if not self._told:
                log.warning("a pass of %d rows is made without a graph, which is slower: %s", shape.rows, fault)
            self._told = True
            return None

    def _pass(self, shape: _Shape) -> Tensor:
        """Nothing in it depends on a value that is not in `_inputs`."""
        tokens, places, slots = self._inputs[:, : shape.rows, None]
        self._bank.look_up(slots[: shape.adapters, 0])
        mask = self._cache.begin_at(0, places, shape.keys)
        return self._network.hidden(tokens, places, mask, self._cache)[:, -1]


def _rounded(count: int) -> int:
    """Up to the next power of two, or to one and a half times one."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 else power

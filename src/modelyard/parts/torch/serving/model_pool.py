"""The networks of one base model: its own with many adapters, and the networks of fully fine-tuned checkpoints."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from modelyard.errors import BackendError, MissingExtra, Overloaded

try:
    import torch
except ImportError as error:
    raise MissingExtra("torch", "torch") from error

from modelyard.parts.torch.cuda_graphs import usual_recorder
from modelyard.parts.torch.lora import CONFIG_FILE, WEIGHTS_FILE, AdapterBank, LoraShape, read_tensors
from modelyard.parts.torch.network import FULL_FILE, Network
from modelyard.parts.torch.network_checks import out_of_memory
from modelyard.parts.torch.records import BaseModel
from modelyard.parts.torch.serving.adapter_slots import AdapterSlots
from modelyard.parts.torch.serving.batching_engine import Engine
from modelyard.parts.torch.serving.room import Room
from modelyard.protocols import ServedModel

log: logging.Logger = logging.getLogger("modelyard.engines.torch.serving")
log.addHandler(logging.NullHandler())


def usual_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


class Networks:
    """Loads each network on first use. Thread-safe."""

    def __init__(
        self,
        base: BaseModel,
        device: str,
        room: Room,
        end_tokens: frozenset[int],
        threads: int | None = None,
    ) -> None:
        self._id, self._folder, self._form = base.id, Path(base.path), base.weights
        self._device, self._room, self._end_tokens = device, room, end_tokens
        self._threads = threads
        self._lock = threading.Lock()
        self._own: Engine | None = None
        self._adapters = AdapterSlots(room.adapters)
        self._tuned = AdapterSlots(room.tuned)
        self._tuned_engines: dict[int, Engine] = {}

    @property
    def engines(self) -> list[Engine]:
        """The engines of the networks that are loaded now."""
        return [*([] if self._own is None else [self._own]), *self._tuned_engines.copy().values()]

    @contextmanager
    def serving(self, model: ServedModel) -> Iterator[tuple[Engine, int]]:
        """Yield the engine that serves a model, and its adapter's slot there; both stay loaded within the context.

        Raises `Overloaded`, `ArtifactMissing` or `BackendError`.
        """
        checkpoint = model.checkpoint
        if checkpoint is None or not checkpoint.files:
            yield self._base(), 0
        elif FULL_FILE in checkpoint.files:
            with self._tuned.pinned(checkpoint.id, partial(self._load_tuned, model)) as place:
                yield self._tuned_engines[place], 0
        else:
            engine = self._base()
            with self._adapters.pinned(checkpoint.id, partial(_load_adapter, engine, model)) as slot:
                yield engine, slot

    def _base(self) -> Engine:
        with self._lock:
            if self._own is None:
                # An engine on a processor lays its weights out for itself.
                own = torch.device(self._device).type == "cpu"
                network = Network(self._folder, self._device, own=own, form=self._form)
                self._own = self._engine(network, self._room.adapters)
            return self._own

    def _load_tuned(self, model: ServedModel, place: int) -> None:
        """Load a fine-tuned network, after dropping the previous one: memory may not suffice for both."""
        self._tuned_engines.pop(place, None)
        weights = _tensors(model, FULL_FILE)
        self._tuned_engines[place] = self._engine(Network(self._folder, self._device, weights=weights), 0)

    def _engine(self, network: Network, adapters: int) -> Engine:
        bank, room = AdapterBank(network.model, adapters + 1, self._room.rank), self._room
        try:
            engine = Engine(
                network,
                bank,
                self._end_tokens,
                rows=room.rows,
                memory=room.memory,
                waiting=room.waiting,
                threads=self._threads,
                recorder=usual_recorder(network.device),
            )
        except RuntimeError as fault:
            if not out_of_memory(fault):
                raise
            message = (
                f"there are no {room.memory} bytes for keys and values; ask the host for a smaller Room(memory=...)"
            )
            raise Overloaded(message) from fault
        self._log_limits(network, engine)
        return engine

    def _log_limits(self, network: Network, engine: Engine) -> None:
        name, whole = self._id, engine.rows.whole
        if whole > self._room.memory:
            log.warning(
                "%s is served with a context of %d tokens of its %d; --cache-memory %dMiB, or Room(memory=...) of as "
                "much, has room for all",
                name,
                engine.rows.longest,
                network.context_length,
                -(-whole // 2**20),
            )
        elif whole > self._room.memory // 2:
            log.info(
                "%s has room for one long conversation at a time; --cache-memory %dMiB, or Room(memory=...) of as "
                "much, has it for two",
                name,
                -(-2 * whole // 2**20),
            )
        if not (network.in_rows or network.can_batch):
            how = "with a cache for each" if network.has_cache else "read from its beginning for each token"
            log.warning(
                "%s is answered one sequence at a time, %s, which is slow: its layers keep more than keys", name, how
            )


def _load_adapter(engine: Engine, model: ServedModel, slot: int) -> None:
    assert model.open_file is not None
    with model.open_file(CONFIG_FILE) as file:
        shape = LoraShape.from_config(file.read())
    engine.load(slot, shape, _tensors(model, WEIGHTS_FILE))


def _tensors(model: ServedModel, name: str) -> dict[str, torch.Tensor]:
    assert model.open_file is not None
    try:
        with model.open_file(name) as file:
            return dict(read_tensors(file))
    except ValueError as fault:
        raise BackendError(f"the checkpoint's {name} cannot be read: {fault}") from fault

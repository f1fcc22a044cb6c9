"""Serving base models from local folders, and every checkpoint of every model trained on them, side by side.

Torch loads when the first of them is asked.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from importlib.util import find_spec

from modelyard.domain.base_model import BaseModel
from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import CompletionRequest, Delta
from modelyard.engines.torch.entries import LocalOffer, capabilities
from modelyard.engines.torch.serving import loaded_model as loaded
from modelyard.engines.torch.serving import model_pool as networks
from modelyard.engines.torch.serving import sequence as speech
from modelyard.errors import BackendError, MissingExtra
from modelyard.protocols import Capabilities, ServedModel


class LocalBackend:
    """Answers for the base models in `base_models`, which may grow. A model is loaded when it is first asked, on
    `device` (a graphics card where there is one), and takes as much as `room` says (`Room.usual`).

    Log-probabilities are the model's own, before any sampling parameter.
    """

    blocking = True

    def __init__(
        self, base_models: Sequence[BaseModel], *, device: str | None = None, room: "networks.Room | None" = None
    ) -> None:
        self._room, self._device = room, device
        self._lock = threading.Lock()
        self._loaded: dict[str, loaded.LoadedModel] = {}
        self._closed = False
        self._offer = LocalOffer(base_models)

    def entries(self) -> Sequence[CatalogueEntry]:
        """One entry per base model; once it is loaded, with the context that there is memory for."""
        return self._offer.entries()

    def capabilities(self, model: str) -> Capabilities:
        """All sampling parameters, log-probabilities and token ids; tools as the template, structure as llguidance."""
        return capabilities(self._offer.base_model(model).tool_format)

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int:
        """The tokens of the conversation. Raises `InvalidInput` when the chat template does not take it."""
        return len(self._model(model).prompt(request.messages, request.tools))

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        """Answer. Raises `InvalidInput`, `Overloaded`, `ArtifactMissing`, `BackendError`."""
        with self._answering(request, model) as answering:
            while active := answering.active:
                answering.engine.wait(active[0].sequence, active[0].due - 1)
                yield from _told(active)

    async def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Delta]:
        """The same on an event loop."""
        with await _entered(lambda: self._answering(request, model)) as answering:
            while active := answering.active:
                await answering.engine.await_(active[0].sequence, active[0].due - 1)
                for delta in _told(active):
                    yield delta

    def close(self) -> None:
        """Let go of every network; what is being answered is answered. Idempotent."""
        with self._lock:
            self._closed = True
            self._loaded.clear()

    def _answering(self, request: CompletionRequest, model: ServedModel) -> "loaded.Answering":
        answering = self._model(model).answering(request, model)
        self._offer.limit(model.base_model, answering.engine.rows.longest)
        return answering

    def _model(self, model: ServedModel) -> "loaded.LoadedModel":
        known = self._loaded.get(model.base_model)
        if known is not None:
            return known
        with self._lock:
            if self._closed:
                raise BackendError("this backend was closed")
            if model.base_model not in self._loaded:
                self._loaded[model.base_model] = self._load(self._offer.base_model(model.base_model))
            return self._loaded[model.base_model]

    def _load(self, base: BaseModel) -> "loaded.LoadedModel":
        if find_spec("torch") is None:
            raise MissingExtra("torch", "torch")
        device = self._device or networks.usual_device()
        return loaded.LoadedModel(base, device, self._room or networks.Room.usual(device))


async def _entered(make: "Callable[[], loaded.Answering]") -> "loaded.Answering":
    """What is made on a thread, and given up at once when the caller is cancelled meanwhile."""
    making = asyncio.get_running_loop().run_in_executor(None, make)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        making.add_done_callback(_given_up)
        raise


def _given_up(made: "asyncio.Future[loaded.Answering]") -> None:
    if not made.cancelled() and made.exception() is None:
        made.result().__exit__()


def _told(speakers: "Sequence[speech.Speaker]") -> Iterator[Delta]:
    for speaker in speakers:
        yield from speaker.tell()

"""The backend for base models in local folders, and for every checkpoint of the models trained on them.

Torch is loaded with the first model.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from modelyard.domain import embedding
from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import CompletionRequest, Delta
from modelyard.errors import BackendError, InvalidInput, MissingExtra
from modelyard.parts.torch.entries import LocalOffer, capabilities
from modelyard.parts.torch.records import BaseModel
from modelyard.parts.torch.serving import loaded_model as loaded
from modelyard.parts.torch.serving import model_pool as networks
from modelyard.parts.torch.serving import sentence_encoder as encoders
from modelyard.parts.torch.serving.room import Room
from modelyard.parts.torch.torch_import import load_torch
from modelyard.protocols import Capabilities, ServedModel
from modelyard.threads import FairPool, TenantThreads


class LocalBackend:
    """Serves the base models in `base_models`: a list that may grow, or an offer that is shared with the caller.

    A model is loaded by its first request, on `device` (by default a graphics card if there is one), and takes the
    memory that `room` allows: by default `Room.usual`, with `memory` bytes for keys and values. Log-probabilities are
    the model's own, before any sampling parameter.
    """

    blocking = True

    def __init__(
        self,
        base_models: Sequence[BaseModel] | LocalOffer,
        *,
        device: str | None = None,
        room: Room | None = None,
        memory: int | None = None,
    ) -> None:
        self._room, self._device, self._memory = room, device, memory
        self._lock, self._pool = threading.Lock(), FairPool("modelyard-local", 32)
        self._loaded: dict[str, loaded.LoadedModel] = {}
        self._encoders: dict[str, encoders.SentenceEncoder] = {}
        self._closed = False
        self._offer = base_models if isinstance(base_models, LocalOffer) else LocalOffer(base_models)

    def entries(self) -> Sequence[CatalogueEntry]:
        """Return one entry per base model; once it is loaded, with the context that its memory allows."""
        return self._offer.entries()

    def capabilities(self, model: str) -> Capabilities:
        """Return all sampling parameters, log-probabilities and token ids; tools and `reasoning_effort` if the chat
        template has them.

        Structured output needs llguidance.
        """
        return capabilities(self._offer.base_model(model))

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int:
        """Count the tokens of the conversation, or of the prompt. Raises `InvalidInput` as `tokens` does."""
        return len(self._model(model).prompt(request))

    def tokens(self, request: CompletionRequest, model: ServedModel) -> Sequence[int]:
        """Return the tokens of the conversation, or of the prompt.

        Raises `InvalidInput` if the chat template refuses it, or for an id that is not a token.
        """
        return self._model(model).prompt(request)

    def token_bytes(self, ids: Sequence[int], model: ServedModel) -> Sequence[bytes]:
        """Return the bytes of tokens; special ones are their names. Raises `InvalidInput` for an id that is not a
        token.
        """
        return self._model(model).prompt_bytes(ids)

    def tokenizer_info(self, model: ServedModel) -> Mapping[str, Any]:
        """Return the class, the special tokens and the chat template of the model's tokenizer."""
        return self._model(model).chat.info

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        """Stream the answer. Raises `InvalidInput`, `Overloaded`, `ArtifactMissing` or `BackendError`."""
        with self._start(request, model) as choices:
            while active := choices.active:
                choices.engine.wait(active[0].sequence, active[0].due - 1)
                yield from choices.deltas(active)

    async def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Delta]:
        """Stream the answer as `stream` does, on an event loop."""
        threads = model.threads or self._pool.of("")
        with await _start_on_thread(lambda: self._start(request, model), threads) as choices:
            while active := choices.active:
                await choices.engine.await_(active[0].sequence, active[0].due - 1)
                for delta in choices.deltas(active):
                    yield delta

    def embed(self, request: "embedding.EmbeddingRequest", model: ServedModel) -> "Iterator[embedding.EmbeddedBatch]":
        """Embed by pooled hidden states: `parts.torch.pooling` says how. Raises `InvalidInput`, `BackendError`."""
        base = self._offer.base_model(model.base_model)
        yield from self._encoder(base).embed(request) if base.encodes else self._model(model).embed(request, model)

    def prefix_counts(self) -> Mapping[str, tuple[int, int]]:
        """Return, for each loaded base model, how many tokens of prompts it did not read again, as it knew them, and
        how many answers it has forgotten for others."""
        loaded = [(name, [engine.rows for engine in one.engines]) for name, one in self._loaded.copy().items()]
        return {name: (sum(one.reused for one in rows), sum(one.evicted for one in rows)) for name, rows in loaded}

    def close(self) -> None:
        """Release every network; answers under way are finished. Idempotent."""
        with self._lock:
            self._closed = True
            self._loaded.clear()
            self._encoders.clear()

    def _start(self, request: CompletionRequest, model: ServedModel) -> "loaded.RunningChoices":
        choices = self._model(model).start(request, model)
        self._offer.limit(model.base_model, choices.engine.rows.longest)
        return choices

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

    def _encoder(self, base: BaseModel) -> "encoders.SentenceEncoder":
        with self._lock:
            if self._closed:
                raise BackendError("this backend was closed")
            if base.id not in self._encoders:
                self._encoders[base.id] = encoders.SentenceEncoder(base, self._usual_device())
            return self._encoders[base.id]

    def _usual_device(self) -> str:
        if find_spec("torch") is None:
            raise MissingExtra("torch", "torch")
        load_torch()
        return self._device or networks.usual_device()

    def _load(self, base: BaseModel) -> "loaded.LoadedModel":
        if base.encodes:
            raise InvalidInput.at("model", msg=f"{base.id} makes embeddings only")
        device = self._usual_device()
        return loaded.LoadedModel(base, device, self._room or Room.usual(device, self._memory))


async def _start_on_thread(
    make: "Callable[[], loaded.RunningChoices]", threads: TenantThreads
) -> "loaded.RunningChoices":
    """Start the choices on a thread; cancel them if the caller is cancelled meanwhile."""
    making = threads.begin(make)
    try:
        return await asyncio.shield(making.future)
    except asyncio.CancelledError:
        threads.pool.withdraw(making)
        making.future.add_done_callback(_cancel)
        raise


def _cancel(made: "asyncio.Future[loaded.RunningChoices]") -> None:
    if not made.cancelled() and made.exception() is None:
        made.result().__exit__()

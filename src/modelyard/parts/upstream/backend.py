"""`UpstreamBackend`: any server of the chat-completion format as a backend."""

import random
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Self

from modelyard import process_identity
from modelyard.clock import SystemClock
from modelyard.domain import embedding
from modelyard.domain.catalogue import CatalogueEntry, Pricing
from modelyard.domain.completion import CompletionRequest
from modelyard.domain.record import EMPTY
from modelyard.errors import BackendError, InvalidInput, ModelNotFound
from modelyard.flow import aiterate, iterate
from modelyard.parts.upstream import address, decoding, embedding_exchange, prompt_exchange, tokenizing, transport
from modelyard.parts.upstream.answers.values import read_json
from modelyard.parts.upstream.concurrency import ConcurrencyLimiter
from modelyard.parts.upstream.errors import RetryableError, failed_inside, refusal
from modelyard.parts.upstream.exchange import MAX_ANSWER, Adapters, Exchange, Transport, Upstream
from modelyard.parts.upstream.models import COMMON, UpstreamModel, check_models, priced, read_list
from modelyard.parts.upstream.timeouts import Timeouts
from modelyard.protocols import AsyncBackend, Backend, Capabilities, Clock, Deltas, ServedModel


class UpstreamBackend:
    """Answers with the server below `url`, to which `/chat/completions` or `/embeddings` is added, and the host's
    `api_key`.

    with UpstreamBackend("http://gpu:8000/v1", models=[offer("Qwen/Qwen3-8B", context_length=32_768, pricing=FREE)])

    At most `concurrency` requests are under way at once, and `queue` more wait for their turn, as long as `timeouts`
    allow. `adapters` serve the checkpoints of trained models; without adapters such checkpoints are refused. Threads
    share one pool of connections, each event loop has its own; nothing is connected before the first request, and the
    maker of the backend closes it. Thread-safe; a forked process starts with new connections.

    Raises `InvalidInput`, and `MissingExtra` without httptools.
    """

    blocking = True
    counts_in_place = True

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        models: Iterable[UpstreamModel],
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - frozen
        concurrency: int = 256,
        queue: int = 1024,
        adapters: Adapters | None = None,
        clock: Clock | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        if concurrency < 1 or queue < 0:
            raise InvalidInput.at("concurrency", msg="must be at least 1, and the queue at least 0 long")
        self._address = address.Address(url, api_key)
        self._models = {model.entry.id: model for model in check_models(models)}
        self._entries = tuple(model.entry for model in self._models.values())
        self._retries, self._lock = 0, threading.Lock()
        self._upstream = Upstream(api_key, timeouts, clock or SystemClock(), jitter, adapters, self._count_retry)
        self._concurrency, self._queue = concurrency, queue
        self._state = self._new_state()

    def __repr__(self) -> str:
        return f"<UpstreamBackend of {self._address.shown}, {len(self._models)} models>"

    @property
    def retries(self) -> int:
        """How many attempts were made again so far, for the platform's metrics."""
        return self._retries

    def _count_retry(self) -> None:
        with self._lock:
            self._retries += 1

    # ---- models

    def entries(self) -> Sequence[CatalogueEntry]:
        """Return the entries of the host's models."""
        return self._entries

    def capabilities(self, model: str) -> Capabilities:
        """Return what the host declares of a model."""
        return self._model(model).capabilities

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> None:
        """Return None: only the server knows, and reports it with its answer."""

    def _model(self, model: str) -> UpstreamModel:
        try:
            return self._models[model]
        except KeyError:
            raise ModelNotFound("model", model) from None

    # ---- answers

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Deltas]:
        """Answer over the threads' connections. Closing the iterator closes the request's connection."""
        through = transport.BlockingTransport(self._process_state(), self._upstream, model)
        return iterate(self._exchange(through, request, model).flow(), [through])

    def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Deltas]:
        """Answer over the running event loop's connections. Cancelling the task closes the request's connection."""
        through = transport.AsyncTransport(self._process_state(), self._upstream, model)
        return aiterate(self._exchange(through, request, model).flow(), [through])

    def _exchange(self, through: Transport, request: CompletionRequest, model: ServedModel) -> Exchange:
        kind = Exchange if request.prompt is None else prompt_exchange.PromptExchange
        return kind(self._upstream, through, self._model(model.base_model), request, model)

    # ---- embeddings

    def embed(self, request: "embedding.EmbeddingRequest", model: ServedModel) -> "Iterator[embedding.EmbeddedBatch]":
        """Embed over the threads' connections. Closing the iterator closes the request's connection."""
        through = transport.BlockingTransport(self._process_state(), self._upstream, model)
        return iterate(self._embedding(through, request, model).flow(), [through])

    def aembed(
        self, request: "embedding.EmbeddingRequest", model: ServedModel
    ) -> "AsyncIterator[embedding.EmbeddedBatch]":
        """Embed over the running event loop's connections. Cancelling the task closes the request's connection."""
        through = transport.AsyncTransport(self._process_state(), self._upstream, model)
        return aiterate(self._embedding(through, request, model).flow(), [through])

    def _embedding(
        self, through: Transport, request: "embedding.EmbeddingRequest", model: ServedModel
    ) -> "embedding_exchange.EmbeddingExchange":
        known = self._model(model.base_model)
        return embedding_exchange.EmbeddingExchange(self._upstream, through, known, request, model)

    # ---- tokens

    def tokens(self, request: CompletionRequest, model: ServedModel) -> Sequence[int]:
        """Return the tokens of a prompt or of messages, as the server knows them. Checkpoints have the tokens of their
        base.

        Raises `InvalidInput`, `UnsupportedParameter` if the server has no tokenizer, `BackendError`.
        """
        return self._tokenizer.tokens(request, self._model(model.base_model).served_as)

    def text_of_tokens(self, ids: Sequence[int], model: ServedModel) -> str:
        """Return the text of tokens. Raises as `tokens`."""
        return self._tokenizer.text(ids, self._model(model.base_model).served_as)

    @property
    def _tokenizer(self) -> "tokenizing.TokenizerRoutes":
        return tokenizing.TokenizerRoutes(self._address, self._upstream.timeouts.first_token)

    # ---- connections

    def _new_state(self) -> "transport.ProcessState":
        clients = transport.Clients(self._address, self._concurrency, self._upstream.clock)
        return transport.ProcessState(clients, ConcurrencyLimiter(self._concurrency, self._queue))

    def _process_state(self) -> "transport.ProcessState":
        """Return the connections of this process; connections from before a fork are the parent's."""
        if self._state.forks != process_identity.forks:
            self._state = self._new_state()
        return self._state

    def close(self) -> None:
        """Close the threads' connections, and refuse further requests. Idempotent."""
        self._process_state().clients.close()

    async def aclose(self) -> None:
        """Close the connections of the threads and of the running event loop; those of others end with their loops."""
        await self._process_state().clients.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def discover(
    url: str,
    api_key: str | None = None,
    *,
    pricing: Mapping[str, Pricing],
    only: Collection[str] | None = None,
    names: Mapping[str, str] = EMPTY,
    context_length: int | None = None,
    max_output_length: int | None = None,
    capabilities: Capabilities = COMMON,
    timeouts: Timeouts = Timeouts(),  # noqa: B008 - frozen
) -> tuple[UpstreamModel, ...]:
    """Return the models that the server lists at `<url>/models`, or `only` some, at the host's prices by model id.

    `names` maps ids of the server, such as llama.cpp's "/models/x.gguf", to the ids that are offered. A model without a
    price is refused; `Pricing()` is free. `context_length` and `max_output_length` are for models of which the server
    does not report them; the longest answer is the whole context by default. Raises `InvalidInput`, `BackendError`.
    """
    upstream = Upstream(api_key, timeouts, SystemClock(), random.random, None)
    clients = transport.Clients(address.Address(url, api_key), 1, upstream.clock)
    state = transport.ProcessState(clients, ConcurrencyLimiter(1, 0))
    try:
        body = read_json(_listed(transport.BlockingTransport(state, upstream), upstream))
        if isinstance(body, dict) and (failed := failed_inside(body, api_key)) is not None:
            raise failed
    except InvalidInput as wrong:
        raise BackendError(f"the upstream server's list of models is malformed: {wrong}") from wrong
    except TimeoutError as late:
        raise BackendError("the upstream server did not list its models in time") from late
    except RetryableError as failure:
        raise failure.error from failure.__cause__
    finally:
        state.clients.close()
    return priced(read_list(body), pricing, only, names, (context_length, max_output_length), capabilities)


def _listed(through: "transport.BlockingTransport", upstream: Upstream) -> bytes:
    seconds, raw = upstream.timeouts.between_tokens, b""
    try:
        head = through.send("GET", "/models", b"", None, seconds)
        while (piece := through.read(seconds)) and len(raw) <= MAX_ANSWER:
            raw += piece
    finally:
        through.close()
    body: bytes = decoding.decoded(head, raw, MAX_ANSWER)
    if not head.is_success:
        raise refusal(head, body, upstream.api_key, upstream.clock.now())
    return body


_is_a_backend: type[Backend] = UpstreamBackend
_is_an_async_backend: type[AsyncBackend] = UpstreamBackend

"""Any server of the chat-completion format as a backend: vLLM, SGLang, llama.cpp, Ollama, a hosted one."""

import os
import random
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Self

from modelyard.backends.upstream import address
from modelyard.backends.upstream import transport as carrier
from modelyard.backends.upstream.concurrency import ConcurrencyLimiter
from modelyard.backends.upstream.errors import RetryableError, refusal
from modelyard.backends.upstream.exchange import MAX_ANSWER, Adapters, Exchange, Flow, Upstream, adrive, drive
from modelyard.backends.upstream.models import COMMON, UpstreamModel, check_models, offered, read_list
from modelyard.backends.upstream.timeouts import Timeouts
from modelyard.clock import SystemClock
from modelyard.domain.catalogue import CatalogueEntry, Pricing
from modelyard.domain.completion import CompletionRequest, Delta
from modelyard.errors import BackendError, InvalidInput, ModelNotFound
from modelyard.formats.json import loads
from modelyard.protocols import AsyncBackend, Backend, Capabilities, Clock, ServedModel


class UpstreamBackend:
    """Asks the server below `url`, to which `/chat/completions` is added, with the host's `api_key`.

    with UpstreamBackend("http://gpu:8000/v1", models=[offer("Qwen/Qwen3-8B", context_length=32_768, pricing=FREE)])

    At most `concurrency` requests are under way at once, and `queue` more wait for their turn, as long as `patience`
    says. `adapters` serve the checkpoints of trained models; without them those are refused. Threads share one pool of
    connections, each event loop has its own; nothing is connected before it is asked for, and whoever made the backend
    closes it. Thread-safe; a forked process begins anew.

    Raises `InvalidInput`, and `MissingExtra` without httpx.
    """

    blocking = True

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        models: Iterable[UpstreamModel],
        patience: Timeouts = Timeouts(),  # noqa: B008 - frozen
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
        self._upstream = Upstream(api_key, patience, clock or SystemClock(), jitter, adapters)
        self._concurrency, self._queue = concurrency, queue
        self._here = self._begin()

    def __repr__(self) -> str:
        return f"<UpstreamBackend of {self._address.url}, {len(self._models)} models>"

    # ---- what it offers

    def entries(self) -> Sequence[CatalogueEntry]:
        """The host's models."""
        return self._entries

    def capabilities(self, model: str) -> Capabilities:
        """As the host declares them."""
        return self._offered(model).capabilities

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> None:
        """Only the server knows, and tells with its answer."""

    def _offered(self, model: str) -> UpstreamModel:
        try:
            return self._models[model]
        except KeyError:
            raise ModelNotFound("model", model) from None

    # ---- answers

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        """Ask over the threads' connections. Closing the iterator closes the request's connection."""
        return drive(self._asking(request, model), carrier.BlockingCarrier(self._at_home(), self._upstream))

    def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Delta]:
        """Ask over the running event loop's connections. Cancelling the task closes the request's connection."""
        return adrive(self._asking(request, model), carrier.AsyncCarrier(self._at_home(), self._upstream))

    def _asking(self, request: CompletionRequest, model: ServedModel) -> Flow:
        return Exchange(self._upstream, self._offered(model.base_model), request, model).flow()

    # ---- its life

    def _begin(self) -> "carrier.Here":
        clients = carrier.Clients(self._address, self._concurrency)
        return carrier.Here(clients, ConcurrencyLimiter(self._concurrency, self._queue))

    def _at_home(self) -> "carrier.Here":
        """The connections of this process; those from before a fork are the parent's."""
        if self._here.pid != os.getpid():
            self._here = self._begin()
        return self._here

    def close(self) -> None:
        """Close the threads' connections, and refuse whatever comes. Idempotent."""
        self._at_home().clients.close()

    async def aclose(self) -> None:
        """The same, and close the running event loop's connections; those of others end with their loops."""
        await self._at_home().clients.aclose()

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
    context_length: int | None = None,
    capabilities: Capabilities = COMMON,
    patience: Timeouts = Timeouts(),  # noqa: B008 - frozen
) -> tuple[UpstreamModel, ...]:
    """The models that the server lists at `<url>/models`, or `only` some, at the host's prices by model id.

    A model without a price is refused; `Pricing()` is free. `context_length` is for models of which the server does not
    say it. Raises `InvalidInput`, `BackendError`.
    """
    here = carrier.Here(carrier.Clients(address.Address(url, api_key), 1), ConcurrencyLimiter(1, 0))
    upstream = Upstream(api_key, patience, SystemClock(), random.random, None)
    try:
        body = loads(_listed(carrier.BlockingCarrier(here, upstream), upstream))
    except InvalidInput as wrong:
        raise BackendError(f"the upstream server's list of models is malformed: {wrong}") from wrong
    except TimeoutError as late:
        raise BackendError("the upstream server did not list its models in time") from late
    except RetryableError as setback:
        raise setback.error from setback.__cause__
    finally:
        here.clients.close()
    return offered(read_list(body), pricing, only, context_length, capabilities)


def _listed(through: "carrier.BlockingCarrier", upstream: Upstream) -> bytes:
    seconds, raw = upstream.patience.between_tokens, b""
    try:
        head = through.send("GET", "/models", b"", seconds)
        while (piece := through.read(seconds)) and len(raw) <= MAX_ANSWER:
            raw += piece
    finally:
        through.close()
    if head.status != 200:
        raise refusal(head, raw, upstream.api_key, upstream.clock.now())
    return raw


_is_a_backend: type[Backend] = UpstreamBackend
_is_an_async_backend: type[AsyncBackend] = UpstreamBackend

"""A double of a vLLM server: its routes, its errors and its LoRA adapters, answered by any modelyard backend.

    fake = FakeVllm(EchoBackend(("Qwen/Qwen3-8B",)))
    with fake.serve() as url:
        OpenAI(base_url=f"{url}/v1", api_key="-").chat.completions.create(model="Qwen/Qwen3-8B", messages=[...])
    assert fake.chats[0].body["model"] == "Qwen/Qwen3-8B"

It is an ASGI application, so in-process clients need no `serve`. What is to go wrong is planned beforehand
(`FakeVllm.plan`, `modelyard.testing.fake_vllm.misbehaviour`), and nothing ever sleeps.
"""

import hmac
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs

from modelyard.backends.echo import EchoBackend
from modelyard.compose import open_platform
from modelyard.domain.completion import CompletionRequest, Message, Part, Role
from modelyard.errors import CallerError, InvalidInput, ModelyardError, Overloaded
from modelyard.formats.chat.request import ParsedRequest, read_request
from modelyard.protocols import AsyncBackend, Backend
from modelyard.testing.clients.server import AsgiServer, asgi_server
from modelyard.testing.fake_vllm.adapters import FakeAdapter, NoAdapter, load_adapter
from modelyard.testing.fake_vllm.exchange import FakeExchange, ReceivedRequest, read
from modelyard.testing.fake_vllm.misbehaviour import Answered, Misbehaviour
from modelyard.testing.fake_vllm.schemas import AnswerWriter, dump, model_card

CHAT, MODELS = "/v1/chat/completions", "/v1/models"
LOAD_ADAPTER = "/v1/load_lora_adapter"
UNLOAD_ADAPTER = "/v1/unload_lora_adapter"

Handler = Callable[["FakeVllm", FakeExchange], Coroutine[Any, Any, None]]


class FakeVllm:
    """A vLLM server that serves the models of `backend`, an echo by default.

    With an `api_key`, paths below /v1 need it. `lora` is whether adapters may be loaded at run time
    (`VLLM_ALLOW_RUNTIME_LORA_UPDATING`); they may have a rank of `max_lora_rank`. An adapter answers as its base would
    if the last user message began with the adapter's mark (`adapters.mark_of`), so that each answers differently.
    `old_errors` gives errors the shape that they had before release 0.10.2. Thread-safe.

    `requests` are those that it received, in order; `unloaded_in_use` the adapters that were unloaded while answering.
    """

    def __init__(
        self,
        backend: Backend | AsyncBackend | None = None,
        *,
        api_key: str | None = None,
        lora: bool = True,
        max_lora_rank: int = 16,
        old_errors: bool = False,
        version: str = "0.11.0",
    ) -> None:
        self._platform = open_platform(backend=backend or EchoBackend())
        self._api_key, self._lora, self._max_rank = api_key, lora, max_lora_rank
        self._old_errors, self._version = old_errors, version
        self._lock = threading.Lock()
        self._adapters: dict[str, FakeAdapter] = {}
        self._in_use: Counter[str] = Counter()
        self._plans: dict[str, deque[Misbehaviour | None]] = {}
        self._exchanges: set[FakeExchange] = set()
        self._servers: list[AsgiServer] = []
        self._answers = 0
        self.requests: list[ReceivedRequest] = []
        self.unloaded_in_use: list[str] = []

    # ---- for the test

    @property
    def adapters(self) -> Mapping[str, FakeAdapter]:
        """The adapters that are loaded, by name, in the order of loading."""
        with self._lock:
            return dict(self._adapters)

    @property
    def chats(self) -> list[ReceivedRequest]:
        """The requests for chat completions."""
        return self.requests_to(CHAT)

    def requests_to(self, path: str) -> list[ReceivedRequest]:
        """Return the requests for a path."""
        return [received for received in list(self.requests) if received.path == path]

    def plan(self, *misbehaviours: Misbehaviour | None, path: str = CHAT) -> None:
        """Plan what goes wrong with the next requests for a path, one by one; None is for one that goes well."""
        with self._lock:
            self._plans.setdefault(path, deque()).extend(misbehaviours)

    def restart(self) -> None:
        """Forget every adapter, and cut every connection, as a server that is killed and started again."""
        with self._lock:
            self._adapters.clear()
            self._in_use.clear()
            exchanges = list(self._exchanges)
        for exchange in exchanges:
            exchange.cut()
        for server in self._servers:
            server.cut()

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Answer on loopback while the block runs; yields the URL, to which clients add /v1. Needs uvicorn."""
        with asgi_server(self, lifespan="off", log_level="critical") as server:
            self._servers.append(server)
            try:
                yield server.url
            finally:
                self._servers.remove(server)
                server.cut()

    # ---- an ASGI application

    async def __call__(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise ValueError(f"this double does not serve {scope['type']}")
        received = await read(scope, receive)
        exchange = self._begin(received, send)
        try:
            answered = await exchange.run(self._answer(exchange), receive)
        finally:
            self._exchanges.discard(exchange)
        if not answered:
            await self._cut(scope, receive)

    def _begin(self, received: ReceivedRequest, send: Callable[[Any], Any]) -> FakeExchange:
        with self._lock:
            self.requests.append(received)
            planned = self._plans.get(received.path)
            exchange = FakeExchange(received, send, planned.popleft() if planned else None, self._old_errors)
            self._exchanges.add(exchange)
        return exchange

    async def _cut(self, scope: Any, receive: Callable[[], Any]) -> None:
        """Close the socket on loopback; raise the error that a client would have seen in this process."""
        for server in self._servers:
            server.cut(scope["client"])
        if not self._servers:
            raise ConnectionResetError("the double cut the connection")
        while (await receive())["type"] != "http.disconnect":
            pass

    async def _answer(self, exchange: FakeExchange) -> None:
        received = exchange.request
        handler = _ROUTES.get((received.method, received.path))
        try:
            await exchange.reach(None)
            if not self._admits(received):
                await exchange.answer_json({"error": "Unauthorized"}, 401)
            elif handler is None or (not self._lora and received.path in (LOAD_ADAPTER, UNLOAD_ADAPTER)):
                await exchange.answer_json({"detail": "Not Found"}, 404)
            else:
                await handler(self, exchange)
        except Answered:
            return

    def _admits(self, received: ReceivedRequest) -> bool:
        if self._api_key is None or not received.path.startswith("/v1"):
            return True
        return hmac.compare_digest(received.headers.get("authorization", ""), f"Bearer {self._api_key}")

    # ---- small routes

    async def _healthy(self, exchange: FakeExchange) -> None:
        await exchange.answer(200, "", "text/plain", {})

    async def _show_version(self, exchange: FakeExchange) -> None:
        await exchange.answer_json({"version": self._version})

    async def _list(self, exchange: FakeExchange) -> None:
        now = self._now()
        entries = self._platform.catalogue.list()
        cards = [
            model_card(entry.id, now, root=entry.id, parent=None, max_model_len=entry.context_length)
            for entry in entries
        ]
        for adapter in self.adapters.values():
            cards.append(model_card(adapter.name, now, root=adapter.path, parent=adapter.parent, max_model_len=None))
        await exchange.answer_json({"object": "list", "data": cards})

    def _now(self) -> int:
        return int(self._platform.clock.now().timestamp())

    # ---- adapters

    async def _load(self, exchange: FakeExchange) -> None:
        body = exchange.request.body
        name, path = body.get("lora_name"), body.get("lora_path")
        if not name or not path:
            await _refuse_misuse(exchange, "Both 'lora_name' and 'lora_path' must be provided.")
            return
        try:
            adapter = load_adapter(name, path, self._platform.catalogue.list().page(1).items[0].id, self._max_rank)
        except NoAdapter as error:
            await exchange.refuse(404, str(error))
        except ValueError as error:
            await exchange.refuse(400 if self._old_errors else 500, str(error))
        else:
            await self._keep(exchange, adapter)

    async def _keep(self, exchange: FakeExchange, adapter: FakeAdapter) -> None:
        with self._lock:
            kept = self._adapters.setdefault(adapter.name, adapter)
        if kept is not adapter:
            await _refuse_misuse(exchange, f"The lora adapter '{adapter.name}' has already been loaded.")
        else:
            await exchange.answer(200, f"Success: LoRA adapter '{adapter.name}' added successfully.", "text/plain", {})

    async def _unload(self, exchange: FakeExchange) -> None:
        name = exchange.request.body.get("lora_name")
        if not name:
            await _refuse_misuse(exchange, "'lora_name' needs to be provided to unload a LoRA adapter.")
            return
        with self._lock:
            removed = self._adapters.pop(name, None)
            if removed and self._in_use[name]:
                self.unloaded_in_use.append(name)
        if removed is None:
            await exchange.refuse(404, f"The lora adapter '{name}' cannot be found.")
        else:
            await exchange.answer(200, f"Success: LoRA adapter '{name}' removed successfully.", "text/plain", {})

    # ---- chat

    async def _chat(self, exchange: FakeExchange) -> None:
        try:
            name = str(exchange.request.body["model"])
            adapter = self.adapters.get(name)
            if adapter is None and name not in {entry.id for entry in self._platform.catalogue.list()}:
                await exchange.refuse(404, f"The model `{name}` does not exist.", param="model")
                return
            chat = read_request({**exchange.request.body, "model": adapter.parent if adapter else name}, "body")
            request = chat.request if adapter is None else _marked(chat.request, adapter.mark)
            with self._using(name):
                await self._say(exchange, self._answering(name, chat), request, chat.with_usage)
        except (ValueError, TypeError, KeyError) as error:
            await exchange.refuse(400, f"{type(error).__name__}: {error}", type="Bad Request")
        except OSError as error:
            await exchange.refuse(500, f"Loading lora failed: {error}")
        except ModelyardError as error:
            await _failed(exchange, error)

    @contextmanager
    def _using(self, name: str) -> Iterator[None]:
        with self._lock:
            self._in_use[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._in_use[name] -= 1

    def _answering(self, name: str, chat: ParsedRequest) -> AnswerWriter:
        with self._lock:
            self._answers += 1
            answer_id = f"chatcmpl-{self._answers:032x}"
        return AnswerWriter(answer_id, self._now(), name, chat.request, chat.with_logprobs, chat.with_ids)

    async def _say(
        self, exchange: FakeExchange, answering: AnswerWriter, request: CompletionRequest, with_usage: bool
    ) -> None:
        if request.streamed:
            await self._stream(exchange, answering, request, with_usage)
            return
        await exchange.reach(None, streamed=False)
        completion = await self._platform.chat.acomplete(request)
        await exchange.answer_json(answering.completion(completion))

    async def _stream(
        self, exchange: FakeExchange, answering: AnswerWriter, request: CompletionRequest, with_usage: bool
    ) -> None:
        async with self._platform.chat.astream(request) as deltas:
            sent = 0
            async for delta in deltas:
                chunks = [answering.chunk(delta)]
                if not sent:
                    await exchange.begin_stream()
                    await exchange.reach(0)
                    chunks = [*answering.opening(delta), *chunks]
                for chunk in chunks:
                    await exchange.event(dump(chunk))
                    sent += 1
                    await exchange.reach(sent)
            assert deltas.completion is not None
            if with_usage:
                await exchange.event(dump(answering.usage(deltas.completion.usage)))
            await exchange.end_stream()


_ROUTES: Mapping[tuple[str, str], Handler] = {
    ("POST", CHAT): FakeVllm._chat,
    ("GET", MODELS): FakeVllm._list,
    ("POST", LOAD_ADAPTER): FakeVllm._load,
    ("POST", UNLOAD_ADAPTER): FakeVllm._unload,
    ("GET", "/health"): FakeVllm._healthy,
    ("GET", "/ping"): FakeVllm._healthy,
    ("POST", "/ping"): FakeVllm._healthy,
    ("GET", "/version"): FakeVllm._show_version,
}


async def _refuse_misuse(exchange: FakeExchange, message: str) -> None:
    await exchange.refuse(400, message, type="InvalidUserInput")


async def _failed(exchange: FakeExchange, error: ModelyardError) -> None:
    """Answer an error of the platform that serves the double, as vLLM would."""
    if exchange.request.status is not None:
        await exchange.break_off(str(error))
    elif isinstance(error, InvalidInput):
        await exchange.refuse(400, error.problems[0].msg, param=str(error.problems[0].loc[-1]))
    elif isinstance(error, CallerError):
        await exchange.refuse(400, str(error))
    else:
        await exchange.refuse(503 if isinstance(error, Overloaded) else 500, str(error))


def _marked(request: CompletionRequest, mark: str) -> CompletionRequest:
    """Put the mark before the last message of the user, or before the last message if there is none."""
    messages = list(request.messages)
    spoken = [at for at, message in enumerate(messages) if message.role is Role.USER] or [len(messages) - 1]
    messages[spoken[-1]] = _with_mark(messages[spoken[-1]], mark)
    return attrs.evolve(request, messages=tuple(messages))


def _with_mark(message: Message, mark: str) -> Message:
    if isinstance(message.content, tuple):
        return attrs.evolve(message, content=(Part("text", f"{mark} "), *message.content))
    return attrs.evolve(message, content=f"{mark} {message.content or ''}")

"""A double of a vLLM server: its routes, its errors and its LoRA adapters, answered by any modelyard backend.

    fake = FakeVllm(EchoBackend(("Qwen/Qwen3-8B",)))
    with fake.serve() as url:
        OpenAI(base_url=f"{url}/v1", api_key="-").chat.completions.create(model="Qwen/Qwen3-8B", messages=[...])
    assert fake.chats[0].body["model"] == "Qwen/Qwen3-8B"

It is an ASGI application, so in-process clients need no `serve`. Misbehaviour is planned beforehand (`FakeVllm.plan`,
`modelyard.parts.upstream.fake_vllm.misbehaviour`), and nothing ever sleeps.
"""

import hmac
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs

from modelyard.backends.echo import EchoBackend
from modelyard.compose import open_platform
from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import Completion, CompletionRequest
from modelyard.errors import CallerError, ModelNotFound, ModelyardError, Overloaded
from modelyard.formats.chat.bounds import ParsedRequest
from modelyard.parts.doubles.clients.server import AsgiServer, asgi_server
from modelyard.parts.embeddings.formats import embeddings_json, read_embeddings
from modelyard.parts.upstream.fake_vllm import shape
from modelyard.parts.upstream.fake_vllm.adapters import PROJECTIONS, FakeAdapter, NoAdapter, load_adapter, marked
from modelyard.parts.upstream.fake_vllm.chat_request import check_members, fit, read_chat
from modelyard.parts.upstream.fake_vllm.exchange import FakeExchange, ReceivedRequest, read
from modelyard.parts.upstream.fake_vllm.misbehaviour import Answered, Misbehaviour
from modelyard.parts.upstream.fake_vllm.prompts import PromptWriter, read_prompt, summed
from modelyard.parts.upstream.fake_vllm.schemas import AnswerWriter, Json, dump, masked, model_card
from modelyard.parts.upstream.fake_vllm.shape import Refused, parse_body
from modelyard.protocols import AsyncBackend, Backend, ServedModel

CHAT, MODELS, EMBEDDINGS = "/v1/chat/completions", "/v1/models", "/v1/embeddings"
COMPLETIONS = "/v1/completions"
LOAD_ADAPTER = "/v1/load_lora_adapter"
UNLOAD_ADAPTER = "/v1/unload_lora_adapter"

Handler = Callable[["FakeVllm", FakeExchange], Coroutine[Any, Any, None]]
Writer = AnswerWriter | PromptWriter
_Asked = tuple[Writer, Sequence[CompletionRequest], bool]


class FakeVllm:
    """A vLLM server that serves the models of `backend`, an echo by default.

    With an `api_key`, paths below /v1 need it. `lora` says whether adapters may be loaded at run time
    (`VLLM_ALLOW_RUNTIME_LORA_UPDATING`); they may have a rank of `max_lora_rank`. An adapter answers as its base would
    if the last user message, or a prompt that is text, began with the adapter's mark (`adapters.mark_of`), so that each
    answers differently. They may change modules with names that end with one of `lora_modules`. `old_errors` gives
    errors the shape that they had before release 0.10.2. `version` is the release that it says it is. Thread-safe.

    `requests` are the received requests, in order; `unloaded_in_use` the adapters that were unloaded while answering.

    It was compared with vLLM 0.32.0, request by request. These differences remain:

    * Routes for completions of chats and of prompts, embeddings, models, adapters, health and the version are there,
      and no others: a backend cannot count what engines count.
    * What is wrong with a request to continue a prompt is mostly said in this package's words.
    * Log-probabilities under a grammar are the backend's own. vLLM reports them after the grammar's mask, which a
      backend does not show.
    * A forced call without `strict` may have any JSON object as its arguments; in vLLM it may be any JSON value. A call
      that `max_tokens` cuts is content, or pieces, as the backend gives it.
    * Text, ids and log-probabilities of a stop string are left out, and `stop_reason` names no token.
    * Of the faults of a message only the first is reported. A schema that the backend refuses is refused in its words.
    * `top_logprobs` of -1 is refused without the size of the vocabulary.
    """

    def __init__(
        self,
        backend: Backend | AsyncBackend | None = None,
        *,
        api_key: str | None = None,
        lora: bool = True,
        max_lora_rank: int = 16,
        lora_modules: Collection[str] = PROJECTIONS,
        old_errors: bool = False,
        version: str = "0.32.0",
    ) -> None:
        self._backend = backend or EchoBackend()
        self._platform = open_platform(backend=self._backend)
        self._api_key, self._lora, self._max_rank, self._modules = api_key, lora, max_lora_rank, lora_modules
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
        """Plan what goes wrong with the next requests for a path, one by one; None is for a request that goes well."""
        with self._lock:
            self._plans.setdefault(path, deque()).extend(misbehaviours)

    def restart(self) -> None:
        """Forget every adapter, and cut every connection, like a server that is killed and started again."""
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
        handlers = _ROUTES.get(received.path, {})
        try:
            await exchange.reach(None)
            if not self._admits(received):
                await exchange.answer_json({"error": "Unauthorized"}, 401)
            elif not handlers or (not self._lora and received.path in (LOAD_ADAPTER, UNLOAD_ADAPTER)):
                await exchange.answer_json({"detail": "Not Found"}, 404)
            elif received.method not in handlers:
                await exchange.answer_json({"detail": "Method Not Allowed"}, 405, {"allow": ", ".join(handlers)})
            else:
                await handlers[received.method](self, exchange)
        except Answered:
            return
        except Refused as refused:
            await exchange.refuse(refused.status, refused.message, type=refused.type, param=refused.param)

    def _admits(self, received: ReceivedRequest) -> bool:
        if self._api_key is None or not received.path.startswith("/v1"):
            return True
        scheme, _, key = received.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(key.encode(), self._api_key.encode())

    # ---- small routes

    async def _healthy(self, exchange: FakeExchange) -> None:
        await exchange.answer(200, "", None, {})

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
        body = _parsed(exchange)
        asked = shape.members(body, {"lora_name": shape.text, "lora_path": shape.text, "load_inplace": shape.flag})
        for name in ("lora_name", "lora_path"):
            if name not in asked:
                raise shape.missing(name, body)
        name, path = asked["lora_name"], asked["lora_path"]
        if not name or not path:
            raise _misuse("Both 'lora_name' and 'lora_path' must be provided.")
        if name in self._bases():
            raise _misuse(f"The lora adapter '{name}' conflicts with a served base model.")
        try:
            adapter = load_adapter(name, path, next(iter(self._bases())), self._max_rank, self._modules)
        except NoAdapter as error:
            raise Refused(masked(str(error)), type="NotFoundError", status=404) from None
        except ValueError as error:
            raise self._not_loaded(error) from None
        self._keep(adapter, asked.get("load_inplace", False))
        await exchange.answer(200, f"Success: LoRA adapter '{name}' added successfully.", None, {})

    def _not_loaded(self, error: ValueError) -> Refused:
        if self._old_errors:
            return Refused(str(error))
        worker = (
            f"Worker failed with error '{masked(str(error))}', please check the stack trace above for the root cause"
        )
        return Refused(f"Call to add_lora method failed: {worker}", type="InternalServerError", status=500)

    def _keep(self, adapter: FakeAdapter, in_place: bool) -> None:
        with self._lock:
            if adapter.name in self._adapters and not in_place:
                raise _misuse(
                    f"The lora adapter '{adapter.name}' has already been loaded. If you want to load the adapter in "
                    "place, set 'load_inplace' to True."
                )
            self._adapters[adapter.name] = adapter

    async def _unload(self, exchange: FakeExchange) -> None:
        body = _parsed(exchange)
        name = shape.members(body, {"lora_name": shape.text}).get("lora_name")
        if name is None:
            raise shape.missing("lora_name", body)
        if not name:
            raise _misuse("'lora_name' needs to be provided to unload a LoRA adapter.")
        with self._lock:
            removed = self._adapters.pop(name, None)
            if removed and self._in_use[name]:
                self.unloaded_in_use.append(name)
        if removed is None:
            raise Refused(f"The lora adapter '{name}' cannot be found.", type="NotFoundError", status=404)
        await exchange.answer(200, f"Success: LoRA adapter '{name}' removed successfully.", None, {})

    # ---- chat

    async def _chat(self, exchange: FakeExchange) -> None:
        body = check_members(_parsed(exchange))
        await self._generate(exchange, body, self._read_chat)

    def _read_chat(self, body: Json, name: str, adapter: FakeAdapter | None) -> _Asked:
        chat = read_chat(body, adapter.parent if adapter else name)
        chat = attrs.evolve(chat, request=self._fitted(chat.request))
        request = chat.request if adapter is None else marked(chat.request, adapter.mark)
        return self._answering(name, chat), [request], chat.with_usage

    async def _complete(self, exchange: FakeExchange) -> None:
        body = _parsed(exchange)
        await self._generate(exchange, body | shape.members(body, {"model": shape.text}), self._read_prompt)

    def _read_prompt(self, body: Json, name: str, adapter: FakeAdapter | None) -> _Asked:
        prompts = read_prompt(body, adapter.parent if adapter else name)
        requests = [self._fitted(request) for request in prompts.requests]
        ids, mark = self._new_id("cmpl"), self._fingerprint()
        texts = [self._text(request) for request in requests if prompts.echo]
        writer = PromptWriter(ids, self._now(), name, prompts, texts, mark)
        if adapter is not None:
            requests = [marked(request, adapter.mark) for request in requests]
        return writer, requests, prompts.with_usage

    def _text(self, request: CompletionRequest) -> str:
        if isinstance(request.prompt, tuple):
            return self._platform.compat.completions.detokenize(model=request.model, tokens=request.prompt)
        return request.prompt or ""

    async def _generate(
        self, exchange: FakeExchange, body: Json, read_body: Callable[[Json, str, FakeAdapter | None], _Asked]
    ) -> None:
        name = body.get("model") or next(iter(self._bases()))
        adapter, bases = self.adapters.get(name), self._bases()
        if adapter is None and name not in bases:
            message = f"The model `{name}` does not exist. Valid aliases: {', '.join(bases)}."
            raise Refused(message, "model", "NotFoundError", 404)
        try:
            writer, requests, with_usage = read_body(body, name, adapter)
            with self._using(name):
                await self._say(exchange, writer, requests, with_usage)
        except OSError as error:
            await exchange.refuse(500, f"Loading lora failed: {error}")
        except ModelyardError as error:
            await _failed(exchange, error)

    async def _embed(self, exchange: FakeExchange) -> None:
        body = _parsed(exchange)
        try:
            asked = read_embeddings(body)
            await exchange.reach(None, streamed=False)
            request = attrs.asdict(asked.request, recurse=False)
            made = await self._platform.embeddings.acreate(input=request.pop("inputs"), **request)
            await exchange.answer(200, embeddings_json(made, asked.in_base64).decode(), "application/json", {})
        except ModelNotFound:
            message = f"The model `{body.get('model')}` does not exist."
            raise Refused(message, "model", "NotFoundError", 404) from None
        except ModelyardError as error:
            await _failed(exchange, error)

    def _bases(self) -> Mapping[str, CatalogueEntry]:
        return {entry.id: entry for entry in self._platform.catalogue.list()}

    def _fitted(self, request: CompletionRequest) -> CompletionRequest:
        entry = self._bases()[request.model]
        prompt = self._backend.prompt_tokens(request, ServedModel(entry.id, entry))
        return fit(request, prompt or 0, entry.context_length, entry.max_output_length)

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
        with_logprobs, with_ids, mark = chat.with_logprobs, chat.with_ids, self._fingerprint()
        return AnswerWriter(self._new_id("chatcmpl"), self._now(), name, chat.request, with_logprobs, with_ids, mark)

    def _new_id(self, kind: str) -> str:
        with self._lock:
            self._answers += 1
            return f"{kind}-{self._answers:032x}"

    def _fingerprint(self) -> str:
        return f"vllm-{self._version}-modelyard"

    async def _say(
        self, exchange: FakeExchange, writer: Writer, requests: Sequence[CompletionRequest], with_usage: bool
    ) -> None:
        exchange.writer = writer
        if requests[0].streamed:
            await self._stream(exchange, writer, requests, with_usage)
            return
        await exchange.reach(None, streamed=False)
        completions = [await self._platform.chat.acomplete(request) for request in requests]
        await exchange.answer_json(writer.completion(*completions))

    async def _stream(
        self, exchange: FakeExchange, writer: Writer, requests: Sequence[CompletionRequest], with_usage: bool
    ) -> None:
        sent, completions = 0, list[Completion]()
        for request in requests:
            async with self._platform.chat.astream(request) as deltas:
                opened = False
                async for delta in deltas:
                    if not (sent or opened):
                        await exchange.begin_stream()
                        await exchange.reach(0)
                    opening = () if opened else writer.opening(delta)
                    opened = True
                    for chunk in (*opening, *writer.chunks(delta, with_usage)):
                        await exchange.event(dump(chunk))
                        sent += 1
                        await exchange.reach(sent)
                assert deltas.completion is not None
                completions.append(deltas.completion)
        if with_usage:
            await exchange.event(dump(writer.usage(summed(completions))))
        await exchange.end_stream()


_ROUTES: Mapping[str, Mapping[str, Handler]] = {
    CHAT: {"POST": FakeVllm._chat},
    COMPLETIONS: {"POST": FakeVllm._complete},
    EMBEDDINGS: {"POST": FakeVllm._embed},
    MODELS: {"GET": FakeVllm._list},
    LOAD_ADAPTER: {"POST": FakeVllm._load},
    UNLOAD_ADAPTER: {"POST": FakeVllm._unload},
    "/health": {"GET": FakeVllm._healthy},
    "/ping": {"GET": FakeVllm._healthy, "POST": FakeVllm._healthy},
    "/version": {"GET": FakeVllm._show_version},
}


def _parsed(exchange: FakeExchange) -> Json:
    received = exchange.request
    return parse_body(received.raw, received.headers.get("content-type", ""))


def _misuse(message: str) -> Refused:
    return Refused(message, type="InvalidUserInput")


async def _failed(exchange: FakeExchange, error: ModelyardError) -> None:
    """Answer an error of the platform that serves the double. vLLM names no parameter if it knows no more."""
    if exchange.request.status is not None:
        await exchange.break_off(str(error))
    elif isinstance(error, CallerError):
        await exchange.refuse(400, str(error))
    else:
        await exchange.refuse(503 if isinstance(error, Overloaded) else 500, str(error))

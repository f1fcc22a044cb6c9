"""Serving base models from local folders, and every checkpoint of every model trained on them, side by side."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import TypeVar

import attrs
import torch

from modelyard.backends.local.adapters import AdapterSlots
from modelyard.backends.local.engine import Engine
from modelyard.backends.local.grammar import Grammars, Matcher
from modelyard.backends.local.sequence import Sequence as Answer
from modelyard.backends.local.speech import Speaker
from modelyard.backends.local_offer import LocalOffer, capabilities
from modelyard.backends.sampling import check_bias
from modelyard.causal_lm.chat import Chat
from modelyard.causal_lm.lora import CONFIG_FILE, WEIGHTS_FILE, AdapterBank, LoraShape
from modelyard.causal_lm.network import Network
from modelyard.causal_lm.tensors import read_tensors
from modelyard.domain.base_model import BaseModel
from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import CompletionRequest, Delta, Message, ResponseType, Tool, ToolMode
from modelyard.errors import BackendError
from modelyard.formats.tool_calls import FORMATS, ToolReader
from modelyard.protocols import Capabilities, ServedModel

T = TypeVar("T")

_REMEMBERED = 64


@attrs.frozen
class Room:
    """What serving one base model may take.

    `rows` sequences run at a time, their keys and values within `memory` bytes; `adapters` checkpoints of up to `rank`
    are in memory; `waiting` more requests may wait.
    """

    rows: int = 32
    memory: int = 2**30
    adapters: int = 32
    rank: int = 64
    waiting: int = 1024


class LocalBackend:
    """Answers for the base models in `base_models`, which may grow. A model is loaded when it is first asked.

    Log-probabilities are the model's own, before any sampling parameter.
    """

    blocking = True

    def __init__(
        self, base_models: Sequence[BaseModel], *, device: str | None = None, room: Room | None = None
    ) -> None:
        self._room = room or Room()
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._lock = threading.Lock()
        self._loaded: dict[str, _Loaded] = {}
        self._offer = LocalOffer(base_models)

    def entries(self) -> Sequence[CatalogueEntry]:
        """One entry per base model."""
        return self._offer.entries()

    def capabilities(self, model: str) -> Capabilities:
        """All sampling parameters, log-probabilities and token ids; tools as the template, structure as llguidance."""
        return capabilities(self._offer.base_model(model).tool_format)

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int:
        """The tokens of the conversation. Raises `InvalidInput` when the chat template does not take it."""
        return len(self._model(model).prompt(request.messages, request.tools))

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        """Answer. Raises `InvalidInput`, `Overloaded`, `ArtifactMissing`, `BackendError`."""
        loaded = self._model(model)
        with loaded.answering(request, model) as speakers:
            while active := [speaker for speaker in speakers if not speaker.ended]:
                loaded.engine.wait(active[0].sequence, _enough(active[0], request))
                yield from _told(active)

    async def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Delta]:
        """The same on an event loop."""
        loaded = await _in_thread(lambda: self._model(model))
        with await _entered(lambda: loaded.answering(request, model)) as speakers:
            while active := [speaker for speaker in speakers if not speaker.ended]:
                await loaded.engine.await_(active[0].sequence, _enough(active[0], request))
                for delta in _told(active):
                    yield delta

    def _model(self, model: ServedModel) -> "_Loaded":
        with self._lock:
            if model.base_model not in self._loaded:
                self._loaded[model.base_model] = _Loaded(
                    self._offer.base_model(model.base_model), self._device, self._room
                )
            return self._loaded[model.base_model]


async def _in_thread(function: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, function)


async def _entered(make: "Callable[[], _Within]") -> "_Within":
    """What is made on a thread, and given up at once when the caller is cancelled meanwhile."""
    making = asyncio.get_running_loop().run_in_executor(None, make)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        making.add_done_callback(_given_up)
        raise


def _given_up(made: "asyncio.Future[_Within]") -> None:
    if not made.cancelled() and made.exception() is None:
        made.result().__exit__()


def _enough(speaker: Speaker, request: CompletionRequest) -> int:
    """Up to how many tokens nothing is to be told: all of them, when nobody reads along."""
    return speaker.told if request.streamed else speaker.sequence.max_tokens


def _told(speakers: Sequence[Speaker]) -> Iterator[Delta]:
    for speaker in speakers:
        yield from speaker.tell()


class _Loaded:
    """A base model in memory, with its adapters and the engine that steps it."""

    def __init__(self, base: BaseModel, device: str, room: Room) -> None:
        folder = Path(base.path)
        self.chat, self._base = Chat(folder), base
        self._form = next((one for one in FORMATS if one.name == base.tool_format), None)
        self._grammars: Grammars | None = None
        network = Network(folder, device)
        unused = network.config.vocab_size - len(self.chat.token_bytes)
        self._bytes = [*self.chat.token_bytes, *[b""] * unused]
        bank = AdapterBank(network.model, room.adapters + 1, room.rank)
        self.engine = Engine(
            network, bank, self.chat.end_tokens, rows=room.rows, memory=room.memory, waiting=room.waiting
        )
        self.slots = AdapterSlots(room.adapters)
        self._lock = threading.Lock()
        self._prompts: OrderedDict[tuple[int, int], tuple[object, object, list[int]]] = OrderedDict()

    def prompt(self, messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> list[int]:
        """The tokens of a conversation; those of the last few are remembered, as each is asked for twice."""
        key = (id(messages), id(tools))
        known = self._prompts.get(key)
        if known is not None:
            return known[2]
        prompt = self.chat.prompt(messages, tools)
        with self._lock:
            self._prompts[key] = (messages, tools, prompt)
            if len(self._prompts) > _REMEMBERED:
                self._prompts.popitem(last=False)
        return prompt

    def answering(self, request: CompletionRequest, model: ServedModel) -> "_Within":
        """The choices of a request, under way as long as the context lasts."""
        check_bias(request.sampling, len(self.chat.token_bytes))
        prompt = self.prompt(request.messages, request.tools)
        grammars = [self._grammar(request) for _ in range(request.n)]
        stack = ExitStack()
        try:
            slot = stack.enter_context(self._adapter(model))
            speakers = []
            for index, grammar in enumerate(grammars):
                sequence = _sequence(prompt, request, slot, index, grammar)
                self.engine.submit(sequence)
                stack.callback(self.engine.cancel, sequence)
                speakers.append(Speaker(index, sequence, request, self._bytes, self._tools(request, index)))
        except BaseException:
            stack.close()
            raise
        return _Within(stack, speakers)

    def _grammar(self, request: CompletionRequest) -> Matcher | None:
        forced = request.tool_choice.mode is ToolMode.REQUIRED
        if not forced and request.response_format.type is ResponseType.TEXT:
            return None
        if self._grammars is None:
            self._grammars = Grammars(self.chat, len(self.chat.token_bytes))
        return self._grammars.of(request, self._form)

    def _tools(self, request: CompletionRequest, index: int) -> ToolReader | None:
        if self._form is None or not request.tools or request.tool_choice.mode is ToolMode.NONE:
            return None
        return ToolReader(self._form, f"call-{request.sampling.seed}-{index}")

    def _adapter(self, model: ServedModel) -> AbstractContextManager[int]:
        checkpoint = model.checkpoint
        if checkpoint is None or not checkpoint.files:
            return nullcontext(0)
        return self.slots.pinned(checkpoint.id, lambda slot: self._load(slot, model))

    def _load(self, slot: int, model: ServedModel) -> None:
        assert model.open_file is not None
        try:
            with model.open_file(CONFIG_FILE) as file:
                shape = LoraShape.from_config(file.read())
            with model.open_file(WEIGHTS_FILE) as file:
                weights = read_tensors(file)
        except ValueError as fault:
            raise BackendError(f"the checkpoint holds no adapter: {fault}") from fault
        self.engine.load(slot, shape, weights)


class _Within(AbstractContextManager[list[Speaker]]):
    """What an exit stack holds, until the context is left."""

    def __init__(self, stack: ExitStack, speakers: list[Speaker]) -> None:
        self._stack, self._speakers = stack, speakers

    def __enter__(self) -> list[Speaker]:
        return self._speakers

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _sequence(prompt: list[int], request: CompletionRequest, slot: int, index: int, grammar: Matcher | None) -> Answer:
    assert request.max_tokens is not None
    seed = (request.sampling.seed or 0) + index
    top = request.top_logprobs if request.logprobs else 0
    return Answer(prompt, request.sampling.seeded(seed), request.max_tokens, slot, top, grammar)

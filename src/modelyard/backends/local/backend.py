"""Serving base models from local folders, and every checkpoint of every model trained on them, side by side."""

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self, TypeVar

import attrs
import torch

from modelyard.backends.local.engine import Engine
from modelyard.backends.local.grammar import Grammars, Matcher
from modelyard.backends.local.networks import Networks, Room
from modelyard.backends.local.sequence import Sequence as Answer
from modelyard.backends.local.speech import Speaker
from modelyard.backends.local_offer import LocalOffer, capabilities
from modelyard.backends.sampling import check_bias
from modelyard.causal_lm.chat import Chat
from modelyard.domain.base_model import BaseModel
from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import CompletionRequest, Delta, Message, ResponseType, Tool, ToolMode
from modelyard.errors import BackendError
from modelyard.formats.base_folder import CONFIG
from modelyard.formats.tool_calls import FORMATS, ToolReader
from modelyard.protocols import Capabilities, ServedModel

T = TypeVar("T")

_REMEMBERED = 64


class LocalBackend:
    """Answers for the base models in `base_models`, which may grow. A model is loaded when it is first asked, on
    `device` (a graphics card where there is one), and takes as much as `room` says (`Room.usual`).

    Log-probabilities are the model's own, before any sampling parameter.
    """

    blocking = True

    def __init__(
        self, base_models: Sequence[BaseModel], *, device: str | None = None, room: Room | None = None
    ) -> None:
        self._room, self._device = room, device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._lock = threading.Lock()
        self._loaded: dict[str, _Loaded] = {}
        self._closed = False
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
        with loaded.answering(request, model) as answering:
            while active := answering.active:
                answering.engine.wait(active[0].sequence, _enough(active[0], request))
                yield from _told(active)

    async def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Delta]:
        """The same on an event loop."""
        loaded = await _in_thread(lambda: self._model(model))
        with await _entered(lambda: loaded.answering(request, model)) as answering:
            while active := answering.active:
                await answering.engine.await_(active[0].sequence, _enough(active[0], request))
                for delta in _told(active):
                    yield delta

    def close(self) -> None:
        """Let go of every network; what is being answered is answered. Idempotent."""
        with self._lock:
            self._closed = True
            self._loaded.clear()

    def _model(self, model: ServedModel) -> "_Loaded":
        known = self._loaded.get(model.base_model)
        if known is not None:
            return known
        with self._lock:
            if self._closed:
                raise BackendError("this backend was closed")
            if model.base_model not in self._loaded:
                base = self._offer.base_model(model.base_model)
                self._loaded[base.id] = _Loaded(base, self._device, self._room or Room.usual(self._device))
            return self._loaded[model.base_model]


async def _in_thread(function: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, function)


async def _entered(make: "Callable[[], _Answering]") -> "_Answering":
    """What is made on a thread, and given up at once when the caller is cancelled meanwhile."""
    making = asyncio.get_running_loop().run_in_executor(None, make)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        making.add_done_callback(_given_up)
        raise


def _given_up(made: "asyncio.Future[_Answering]") -> None:
    if not made.cancelled() and made.exception() is None:
        made.result().__exit__()


def _enough(speaker: Speaker, request: CompletionRequest) -> int:
    """Up to how many tokens nothing is to be told: all of them, when nobody reads along."""
    return speaker.told if request.streamed else speaker.sequence.max_tokens


def _told(speakers: Sequence[Speaker]) -> Iterator[Delta]:
    for speaker in speakers:
        yield from speaker.tell()


class _Loaded:
    """A base model in memory: its words, and its networks."""

    def __init__(self, base: BaseModel, device: str, room: Room) -> None:
        folder = Path(base.path)
        self.chat = Chat(folder)
        self._form = next((one for one in FORMATS if one.name == base.tool_format), None)
        self._grammars: Grammars | None = None
        vocabulary = json.loads((folder / CONFIG).read_bytes())["vocab_size"]
        self._bytes = [*self.chat.token_bytes, *[b""] * (vocabulary - len(self.chat.token_bytes))]
        self._networks = Networks(folder, device, room, self.chat.end_tokens)
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

    def answering(self, request: CompletionRequest, model: ServedModel) -> "_Answering":
        """The choices of a request, under way as long as the context lasts."""
        check_bias(request.sampling, len(self.chat.token_bytes))
        prompt = self.prompt(request.messages, request.tools)
        grammars = [self._grammar(request) for _ in range(request.n)]
        stack = ExitStack()
        try:
            engine, slot = stack.enter_context(self._networks.serving(model))
            speakers = []
            for index, grammar in enumerate(grammars):
                sequence = _sequence(prompt, request, slot, index, grammar)
                engine.submit(sequence)
                stack.callback(engine.cancel, sequence)
                speakers.append(Speaker(index, sequence, request, self._bytes, self._tools(request, index)))
        except BaseException:
            stack.close()
            raise
        return _Answering(engine, speakers, stack)

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


@attrs.frozen(eq=False)
class _Answering:
    """Choices under way on an engine, as long as the context lasts."""

    engine: Engine
    speakers: list[Speaker]
    held: ExitStack

    @property
    def active(self) -> list[Speaker]:
        """Those of which not all has been told."""
        return [speaker for speaker in self.speakers if not speaker.ended]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.held.close()


def _sequence(prompt: list[int], request: CompletionRequest, slot: int, index: int, grammar: Matcher | None) -> Answer:
    assert request.max_tokens is not None
    seed = (request.sampling.seed or 0) + index
    top = request.top_logprobs if request.logprobs else 0
    return Answer(prompt, request.sampling.seeded(seed), request.max_tokens, slot, top, grammar)

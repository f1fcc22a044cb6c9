"""A base model in memory: turns a request into sequences on an engine, and sampled tokens into deltas."""

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator
from collections.abc import Sequence as Tokens
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import attrs

from modelyard.backends.sampling import check_token_ids
from modelyard.domain.completion import TEMPLATE, CompletionRequest, Delta, ResponseType, ToolMode
from modelyard.domain.embedding import EmbeddedBatch, EmbeddingInput, EmbeddingRequest, check_lengths
from modelyard.domain.record import EMPTY
from modelyard.errors import InvalidInput
from modelyard.parts.torch.model_config import CONFIG, vocabulary_size
from modelyard.parts.torch.model_folder import check_unchanged, writes_reasoning
from modelyard.parts.torch.pooling import pooling_of
from modelyard.parts.torch.reasoning import OPENING, ReasoningReader
from modelyard.parts.torch.records import BaseModel
from modelyard.parts.torch.serving.batching_engine import Engine
from modelyard.parts.torch.serving.embedding import embedded
from modelyard.parts.torch.serving.grammar import Grammars, Matcher
from modelyard.parts.torch.serving.model_pool import Networks
from modelyard.parts.torch.serving.room import Room
from modelyard.parts.torch.serving.sequence import ChoiceStream, Sequence
from modelyard.parts.torch.serving.usage_report import UsageReport
from modelyard.parts.torch.threads import serving_threads
from modelyard.parts.torch.tokenizer import ChatTokenizer
from modelyard.parts.torch.tool_calls import FORMATS, ToolReader
from modelyard.protocols import ServedModel

_REMEMBERED = 64

_END = 16
"""The most tokens at the end of a prompt in which an opened mark of reasoning is looked for."""


class LoadedModel:
    """A base model in memory: its tokenizer, its chat template and its networks."""

    def __init__(self, base: BaseModel, device: str, room: Room) -> None:
        check_unchanged(base)
        folder, self._path = Path(base.path), base.path
        self.chat: ChatTokenizer = ChatTokenizer(folder)
        self._form = next((one for one in FORMATS if one.name == base.tool_format), None)
        self._reasons = writes_reasoning(base.path)
        self._grammars: Grammars | None = None
        vocabulary = vocabulary_size(json.loads((folder / CONFIG).read_bytes()))
        padding = [b""] * (vocabulary - len(self.chat.token_bytes))
        self._bytes = [*self.chat.token_bytes, *padding]
        self._prompt_bytes = [*self.chat.prompt_token_bytes, *padding]
        threads = serving_threads(base) if device == "cpu" else None
        self._networks = Networks(base, device, room, self.chat.end_tokens, threads)
        self._lock = threading.Lock()
        self._prompts: OrderedDict[tuple[int, int, Any], tuple[object, object, list[int]]] = OrderedDict()

    @property
    def engines(self) -> list[Engine]:
        """The engines that answer for it now."""
        return self._networks.engines

    def prompt(self, request: CompletionRequest) -> list[int]:
        """Return the tokens of a conversation, or of a prompt; the last few are cached, as each is needed twice.

        Raises `InvalidInput`.
        """
        given: object = request.messages if request.prompt is None else request.prompt
        tools, extras = request.tools, request.extras
        option: Any = extras.get("reasoning_effort"), repr(extras.get(TEMPLATE))
        if request.prompt is not None:
            option = extras.get("add_special_tokens", True)
        key = (id(given), id(tools), option)
        known = self._prompts.get(key)
        if known is not None:
            return known[2]
        prompt = self._read(request, option)
        with self._lock:
            self._prompts[key] = (given, tools, prompt)
            if len(self._prompts) > _REMEMBERED:
                self._prompts.popitem(last=False)
        return prompt

    def prompt_bytes(self, ids: Tokens[int]) -> list[bytes]:
        count = len(self.chat.token_bytes)
        if unknown := [id_ for id_ in ids if not 0 <= id_ < count]:
            raise InvalidInput.at("prompt", msg=f"{unknown[0]} is not a token id of this model, which has {count}")
        return [self._prompt_bytes[id_] for id_ in ids]

    def _read(self, request: CompletionRequest, option: Any) -> list[int]:
        if request.prompt is None:
            given = request.extras.get("reasoning_effort"), request.extras.get(TEMPLATE, EMPTY)
            return self.chat.prompt(request.messages, request.tools, *given)
        if isinstance(request.prompt, str):
            return self.chat.raw_prompt(request.prompt, add_special_tokens=option)
        self.prompt_bytes(request.prompt)
        return list(request.prompt)

    def start(self, request: CompletionRequest, model: ServedModel) -> "RunningChoices":
        """Start the choices of a request; they run as long as the context lasts."""
        check_token_ids(request.sampling, len(self.chat.token_bytes))
        prompt = self.prompt(request)
        grammars = [self._grammar(request) for _ in range(request.n)]
        stack = ExitStack()
        try:
            engine, slot = stack.enter_context(self._networks.serving(model))
            streams = []
            for index, grammar in enumerate(grammars):
                sequence = _sequence(prompt, request, slot, index, grammar)
                engine.submit(sequence)
                stack.callback(engine.cancel, sequence)
                tools = self._tools(request, index)
                reasoning = self._reasoning(request, prompt) if grammar is None else None
                streams.append(
                    ChoiceStream(index, sequence, request, self._bytes, tools, self._prompt_bytes, reasoning)
                )
        except BaseException:
            stack.close()
            raise
        return RunningChoices(engine, streams, stack, UsageReport(streams[0].sequence))

    def embed(self, request: EmbeddingRequest, model: ServedModel) -> Iterator[EmbeddedBatch]:
        """Yield the embeddings of a request: the pooled hidden states of each input by itself."""
        prompts = [self._tokens(at, one) for at, one in enumerate(request.inputs)]
        pooling = pooling_of(self._path)
        assert pooling is not None
        with self._networks.serving(model) as (engine, slot):
            check_lengths([*map(len, prompts)], min(model.entry.context_length, engine.rows.longest))
            yield from embedded(engine, slot, prompts, pooling)

    def _tokens(self, at: int, given: EmbeddingInput) -> Tokens[int]:
        if isinstance(given, str):
            return self.chat.around(given) or [min(self.chat.end_tokens, default=0)]
        if max(given) >= len(self._bytes):
            raise InvalidInput.at("input", at, msg=f"holds token {max(given)}; this model has {len(self._bytes)}")
        return given

    def _grammar(self, request: CompletionRequest) -> Matcher | None:
        forced = request.tool_choice.mode is ToolMode.REQUIRED
        if not forced and request.response_format.type is ResponseType.TEXT:
            return None
        if self._grammars is None:
            self._grammars = Grammars(self.chat, len(self.chat.token_bytes))
        return self._grammars.of(request, self._form)

    def _reasoning(self, request: CompletionRequest, prompt: list[int]) -> ReasoningReader | None:
        """Return the reader of reasoning in an answer; None if the model writes none, and after a bare prompt."""
        if not self._reasons or request.prompt is not None:
            return None
        end = b"".join(self._prompt_bytes[token] for token in prompt[-_END:])
        return ReasoningReader(opened=end.rstrip().endswith(OPENING.encode()))

    def _tools(self, request: CompletionRequest, index: int) -> ToolReader | None:
        if self._form is None or not request.tools or request.tool_choice.mode is ToolMode.NONE:
            return None
        names = {tool.name for tool in request.tools}
        return ToolReader(self._form, f"{request.sampling.seed}-{len(request.messages)}-{index}", names)


@attrs.frozen(eq=False)
class RunningChoices:
    """Choices that run on an engine as long as the context lasts."""

    engine: Engine
    streams: list[ChoiceStream]
    resources: ExitStack

    usage: UsageReport

    @property
    def active(self) -> list[ChoiceStream]:
        return [stream for stream in self.streams if not stream.ended]

    def deltas(self, active: list[ChoiceStream]) -> Iterator[Delta]:
        """Yield what these choices have produced since the last call."""
        for stream in active:
            yield from map(self.usage.on, stream.deltas())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.resources.close()


def _sequence(
    prompt: list[int], request: CompletionRequest, slot: int, index: int, grammar: Matcher | None
) -> Sequence:
    assert request.max_tokens is not None
    seed = (request.sampling.seed or 0) + index
    top = request.top_logprobs if request.logprobs else 0
    sampling, scored = request.sampling.seeded(seed), request.prompt_logprobs
    return Sequence(prompt, sampling, request.max_tokens, slot, top, grammar, top_of_prompt=scored)

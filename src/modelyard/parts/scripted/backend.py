"""A backend with the answers that a test has written down for it."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

import attrs

from modelyard.backends import echo, word_embedding
from modelyard.backends.entries import entry_for
from modelyard.domain import embedding
from modelyard.domain.catalogue import CatalogueEntry, Pricing
from modelyard.domain.completion import CompletionRequest, Delta
from modelyard.errors import InvalidInput, NoAnswerPrepared
from modelyard.parts.scripted.answers import (
    Answer,
    afunction_result,
    call,
    items,
    may_report,
    pause,
    reasoning,
    say,
    token,
    usage_of,
    with_usage,
)
from modelyard.parts.scripted.demands import checked, writable
from modelyard.parts.scripted.parts import Item, Pause
from modelyard.parts.scripted.rules import Rule, RuleBook, Script, on, rules_of
from modelyard.parts.scripted.stopped import stopped
from modelyard.protocols import Capabilities, Clock, ServedModel

__all__ = ["Answer", "Rule", "Script", "ScriptedBackend", "call", "on", "pause", "reasoning", "say", "token"]


class ScriptedBackend:
    """Answers by rules, from a list in order, or with what a function of the request returns.

    Each choice takes one answer. The first rule that matches a request answers it: `on(...)` states the conditions,
    `.answer(...)` the answers. Pauses sleep on `clock`; without a clock they take no time. `requests` are the requests
    so far, oldest first. Raises `NoAnswerPrepared` if no rule matches, if the list is used up, for a fault of the
    script itself (a text that is not Unicode, a bug of a function), and for an answer that the request rules out: not
    valid under its schema or that of a strict tool, without the call that its tool choice demands, or with a call of a
    tool that is not offered. `unchecked` gives such an answer nevertheless. `pricing` is that of each model, and
    `input_modalities` what it reads, such as ("text", "image"). A function may be asynchronous. Embeddings are made by
    `EchoBackend`. `missed` are the words of requests that nothing answered, and `raised` those of exceptions that the
    script gave as answers.

    >>> backend = ScriptedBackend([on("refund").answer(call("look_up", order=17)), on(tool="look_up").answer("Paid.")])
    >>> backend.requests, backend.texts, backend.unused
    ([], [], [on(text='refund'), on(tool='look_up')])
    """

    def __init__(
        self,
        answers: Sequence[Rule | Answer] | Script,
        models: Sequence[str] = ("scripted",),
        clock: Clock | None = None,
        *,
        unchecked: bool = False,
        pricing: Pricing | None = None,
        input_modalities: Sequence[str] = ("text",),
    ) -> None:
        self.requests: list[CompletionRequest] = []
        self.missed: list[str] = []
        self.raised: list[str] = []
        self._rules = RuleBook(rules_of(answers))
        self._clock, self._unchecked = clock, unchecked
        entries = (entry_for(model, echo.CERTAIN, pricing or Pricing(), 131_072) for model in models)
        self._entries = tuple(attrs.evolve(entry, input_modalities=tuple(input_modalities)) for entry in entries)

    @property
    def blocking(self) -> bool:
        """Whether pauses take real time."""
        return self._clock is not None

    @property
    def texts(self) -> list[str]:
        """The last message of each request, oldest first."""
        return [request.messages[-1].text for request in self.requests]

    @property
    def answered(self) -> list[Rule]:
        """The rule that answered, for each answered request, oldest first. A list or a function is one rule."""
        return list(self._rules.answered)

    @property
    def unused(self) -> list[Rule]:
        """The rules that have answered nothing."""
        return self._rules.unused

    def entries(self) -> Sequence[CatalogueEntry]:
        """Return one entry per model."""
        return self._entries

    def capabilities(self, model: str) -> Capabilities:
        """Return every capability: the script is responsible for its answers."""
        return echo.CERTAIN

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int:
        """Count the words of all messages, or return what the next answer reports itself.

        If a function answers, or deltas are still to be made, the usage that they report comes with the stream.
        """
        answer = self._rules.upcoming(request)
        reported = None if answer is None else usage_of(answer)
        return echo.count_prompt(request.messages) if reported is None else reported.prompt_tokens

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        """Stream the script's next answer."""
        for item in self._items(self._next(request), request):
            if not isinstance(item, Pause):
                yield item
            elif self._clock is not None:
                self._clock.sleep(item.seconds)

    async def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Delta]:
        """Stream the script's next answer, on an event loop."""
        answer = self._next(request)
        with self._noted():
            given = await afunction_result(answer, request)
        for item in self._items(given, request, may_report(answer)):
            if not isinstance(item, Pause):
                yield item
            elif self._clock is not None:
                await self._clock.asleep(item.seconds)

    def embed(self, request: "embedding.EmbeddingRequest", model: ServedModel) -> "Iterator[embedding.EmbeddedBatch]":
        """Embed as `EchoBackend` does: no rule is needed. Raises `ContextLengthExceeded`."""
        return word_embedding.embedded(request, model, echo.CERTAIN.embedding_size, echo.count)

    def _next(self, request: CompletionRequest) -> Answer:
        self.requests.append(request)
        with self._noted():
            return self._rules.next(request)

    def _items(self, answer: Answer, request: CompletionRequest, reports: bool = False) -> Iterator[Item]:
        with self._noted():
            deltas = stopped(items(answer, request), request)
            if not self._unchecked:
                deltas = checked(writable(deltas, request), request)
            yield from with_usage(deltas, request) if reports or may_report(answer) else deltas

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Keep the words of what the block raises: a miss, or a failure that the script gives as its answer."""
        try:
            yield
        except Exception as error:
            said = [one.msg for one in error.problems] if isinstance(error, InvalidInput) else [str(error)]
            (self.missed if isinstance(error, NoAnswerPrepared) else self.raised).extend(filter(None, said))
            raise

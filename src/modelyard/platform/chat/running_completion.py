"""A chat completion under way: what it may cost, what it has used, and what is booked for it when it ends."""

from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from struct import Struct
from typing import Any, ClassVar

import attrs

from modelyard.domain.completion import Completion, CompletionRequest, StoredCompletion, ToolMode, Usage
from modelyard.domain.frozen_fast import maker
from modelyard.domain.record import WrittenMapping
from modelyard.domain.usage import Admission
from modelyard.formats import converter
from modelyard.lazy import log
from modelyard.platform.chat import capability_checks as checks
from modelyard.platform.chat.assembly import ResponseAssembler, check_length
from modelyard.platform.chat.booked_request import BookedRequest
from modelyard.platform.owned import unless_deleted
from modelyard.platform.usage.booking import CompletionBooking
from modelyard.protocols import Tx

_completion, _usage, _admission = maker(Completion), maker(Usage), maker(Admission)
_stored = maker(StoredCompletion)
_SEED, _NOTHING = Struct(">q"), Decimal(0)
_OVER = "%s: the backend reports %d tokens of prompt, more than its text can have; %d are booked, as a budget applies"
_REQUIRED = ToolMode.REQUIRED  # a constant is read in a twentieth of the time


class RunningCompletion(BookedRequest):
    """A chat completion under way.

    `request` is what the backend gets: with a token limit and a seed. `details` is whether the answer has
    log-probabilities and token ids, where the backend has them. `prompt_tokens` is None where only an answer
    reports it. `makes_choices` is whether the backend makes all choices in one call. `completion` is the whole answer,
    once it is known. `created` is in Unix seconds. `at_once` counts the tokens of choices that were whole at once,
    while others of the request are asked for."""

    operation: ClassVar[str] = "chat"
    backend: Any
    request: CompletionRequest
    details: bool = False
    prompt_tokens: int | None = None
    max_tokens: int
    images: int = 0
    makes_choices: bool = False
    created: int
    assemblers: Sequence[ResponseAssembler] = ()
    completion: Completion | None = None
    at_once: int = 0

    def _prepare(self) -> None:
        """Make the request that the backend gets: checked against its capabilities, with a token limit and a seed."""
        entry, backend, request = self.served.entry, self.backend, self.given
        capabilities = backend.capabilities(self.served.base_model)
        if (plan := self.plan) is not None and plan.named is not None:
            request = plan.asks(request)
            if self.client is not None:
                self.client.asked = plan.named.name
        if self.details:
            request = checks.with_details(request, capabilities)
        if self.captures is not None:
            request = self.captures.asks(self, request, capabilities)
        if request.tool_choice.mode is _REQUIRED:
            checks.check_tool_choice(request)
        said = request.messages
        has_shape = request.tools or len(said) > 1 or (said and (said[0].tool_calls or said[0].tool_call_id))
        if has_shape and capabilities.strict_conversations and self.runtime.settings.strict_conversations:
            checks.check_conversation(request)
        self.images = checks.check_supported(request, entry, capabilities)
        self.prompt_tokens = backend.prompt_tokens(request, self.served)
        if self.prompt_tokens is None:
            self.follow()
        self.max_tokens = checks.resolve_max_tokens(entry, self.prompt_tokens, request)
        sampling = request.sampling
        if sampling.seed is None:
            sampling = sampling.seeded(*_SEED.unpack(self.runtime.randomness(8)))
        self.request = request.asking(request.messages, sampling, self.max_tokens)
        self.makes_choices = capabilities.choices

    def cost_with(self, tokens: int) -> Decimal:
        """Return the most in USD that the request can cost with so many tokens in each answer."""
        assert self.plan is not None
        return self.plan.most(self.most_prompt, self.images, tokens * self.request.n)

    @cached_property
    def most_prompt(self) -> int:
        """How many tokens the prompt has, or can have where only an answer reports it."""
        known = self.prompt_tokens
        return checks.most_prompt(self.request, self.served.entry.context_length) if known is None else known

    def admission(self) -> Admission | None:
        """Return what the request asks of budgets and places: the most that it can cost. None where there are none."""
        assert self.plan is not None
        if not (asked := self.plan.budgets) and self.principal.limits.concurrent_requests is None:
            return None
        most, now = self.cost_with(self.max_tokens) if asked else _NOTHING, self.runtime.clock.now()
        return _admission(self.id, self.principal.key_id, self.attribution.entity, asked, most, now)

    def to_show(self, assembler: ResponseAssembler) -> int:
        """Return how many deltas are to be shown. Raises `InvalidInput` if the choices are too long together."""
        if self.request.n > 1:
            check_length(self.request, sum([one.length for one in self.assemblers]), "n")
        return len(assembler.shown)

    def assembled(self) -> Completion:
        """Assemble the completion. Raises `BackendError` for an answer that is incomplete or cannot be counted."""
        choices = [choice for assembler in self.assemblers for choice in assembler.fold()]
        return _completion(self.id, self.created, self.given.model, tuple(choices), self.usage())

    def usage(self) -> Usage:
        """Return the usage as the backend reports it, else as it was counted; it never costs more than was admitted."""
        first, known = self.assemblers[0].report, self.prompt_tokens
        estimated = first is None and known is None
        prompt = first.prompt_tokens if first is not None else known
        prompt = checks.estimated_prompt(self.request) if prompt is None else prompt
        prompt, produced, reasoning = min(prompt, self.served.entry.context_length), 0, 0
        for assembler in self.assemblers:
            produced += assembler.completion_tokens()
            reasoning += assembler.reasoning_tokens()
            estimated = estimated or (assembler.report is not None and assembler.report.estimated)
        if self.reserved is not None and self.reserved.budgets and (known is None or prompt > known):
            prompt = self._paid(prompt, produced, self.reserved)
        cached = 0 if first is None else min(first.cached_tokens, prompt)
        return _usage(prompt, produced, cached, self.images, estimated, reasoning)

    def _paid(self, prompt: int, produced: int, held: Admission) -> int:
        """Return how many of the prompt's tokens are booked, so that the request costs what it has reserved at most."""
        assert self.plan is not None
        if self.plan.most(prompt, self.images, produced) <= held.reserved or prompt <= self.most_prompt:
            return prompt
        log.warning(_OVER, self.id, prompt, self.most_prompt)
        return self.most_prompt

    def whole_booking(self, completion: Completion) -> CompletionBooking:
        """Return what records the completion."""
        booking = self._booking(completion.usage)
        if self.given.store:
            storing = _storing(self, completion, self.runtime.clock.now())
            booking.keep = unless_deleted(self.runtime, self.attribution.entity, self.arrived, storing)
        if self.captures is not None:
            booking.loose = booking.keep is None
            booking.keep = self.captures(self, completion, booking.keep)
        return booking

    def remainder(self) -> CompletionBooking | None:
        if self.completion is not None:
            return self._booking(self.completion.usage)
        if self.sent or any(assembler.produced for assembler in self.assemblers):
            return self._booking(self.usage())
        if self.at_once:
            return self._booking(_usage(self.prompt_tokens or 0, self.at_once, 0, self.images))
        return None if self.reserved is None else self._booking(None)

    def cut(self, error: Exception) -> None:
        """End with this error at the next delta."""
        super().cut(error)
        for assembler in self.assemblers:
            assembler.cut = True


def _storing(running: RunningCompletion, completion: Completion, now: datetime) -> Callable[[Tx], object]:
    """Return what stores a completion whose request asks for that (`store`). In the request is what really answered."""
    request, attribution, model, plan = running.given, running.attribution, running.served, running.plan
    text, checkpoint = converter.filled_text, model.checkpoint
    of = completion.id, attribution.entity, attribution.project, request.model, now
    if plan is not None and plan.named is not None:
        request = attrs.evolve(request, model=plan.named.name)
    price = model.entry.pricing.of(completion.usage.prompt_tokens).texts
    texts = WrittenMapping(text(request)), WrittenMapping(text(completion)), request.metadata, price
    stored = _stored(*of, *texts, None if checkpoint is None else checkpoint.id)
    return lambda tx: tx.add(stored)

"""One chat completion: resolve, check, reserve, stream, assemble, record. Written once, as a flow, for every caller."""

from collections.abc import Callable, Iterable
from functools import partial

import attrs

from modelyard.domain import events, models
from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import Choice, Completion, CompletionRequest, Delta, StoredCompletion, Usage
from modelyard.domain.identity import Attribution, Limits, Principal, check_name
from modelyard.domain.usage import Admission, LedgerEntry, cost, most
from modelyard.errors import BackendError, ModelyardError
from modelyard.flow import Call, CallerDisconnected, Emit, Flow
from modelyard.formats import converter
from modelyard.platform.catalogue.service import offered, served
from modelyard.platform.chat.assembly import ResponseAssembler
from modelyard.platform.chat.backend_stream import Close, Open, Pull
from modelyard.platform.chat.capability_checks import check_supported, check_tool_choice, images, resolve_max_tokens
from modelyard.platform.runtime import Runtime
from modelyard.platform.usage.admission import RecordUsage, book, budgets_of, reserve, settle
from modelyard.protocols import AsyncBackend, Backend, Capabilities, ServedModel, Snapshot, Tx

_NO_LIMITS = Limits()
_CHARACTERS_A_TOKEN = 4


@attrs.frozen
class StreamStarted:
    """The first item of a stream: nothing can be refused any more. `created` is in Unix seconds."""

    id: str
    created: int
    model: str
    entry: CatalogueEntry


@attrs.frozen
class CompletionResult:
    """What a `CompletionPipeline` returns: the completion, and the catalogue entry that priced it."""

    completion: Completion
    entry: CatalogueEntry


class CompletionPipeline:
    """Answers one request and records its usage on `attribution`.

    A streamed request emits its `StreamStarted`, its deltas, and its `Completion` when its usage is recorded. What can
    fail before the first token fails before the `StreamStarted`. `details` asks for log-probabilities and token ids
    where the backend has them. A caller who leaves meanwhile pays for what was produced.

    What does not wait, as a store or backend declares, is done in place: yielding it to the driver would cost more.
    """

    served: ServedModel
    backend: Backend | AsyncBackend
    limited: bool

    def __init__(
        self,
        runtime: Runtime,
        principal: Principal,
        request: CompletionRequest,
        attribution: Attribution,
        details: bool = False,
    ) -> None:
        self.runtime: Runtime = runtime
        self.principal: Principal = principal
        self.given: CompletionRequest = request
        self.attribution: Attribution = attribution
        self.request: CompletionRequest = request
        self.details: bool = details
        self.id: str = runtime.ids()
        self.created: int = int(runtime.clock.now().timestamp())
        self.reserved: Admission | None = None
        self.assemblers: list[ResponseAssembler] = []
        self.choices_begun: int = 0
        self.started: bool = False

    def flow(self) -> Flow[CompletionResult]:
        """Answer the request.

        Raises `ModelNotFound`, `Forbidden`, `InvalidInput` and its subclasses, `BudgetExceeded`, `RateLimited`,
        `BackendError`, `StoreError`.
        """
        try:
            return (yield from self._answer())
        except CallerDisconnected:
            raise
        except Exception as error:
            self._report(error)
            raise
        finally:
            self.runtime.cache.running.discard(self.id)

    def _answer(self) -> Flow[CompletionResult]:
        self._check_attribution()
        if self.runtime.store.blocking:
            yield Call(self._resolve)
        else:
            self._resolve()
        if getattr(self.backend, "blocking", False):
            yield Call(self._prepare)
        else:
            self._prepare()
        if self.limited:
            self.reserved = yield from reserve(self.runtime, self._admission(), self.principal.limits)
        try:
            yield from self._stream()
            completion = self._completion()
        except Exception:
            yield from self._record_what_was_produced()
            raise
        yield from self._record_usage(completion.usage, completion)
        if self.request.streamed:
            yield Emit(completion)
        return CompletionResult(completion, self.served.entry)

    def _report(self, error: Exception) -> None:
        """Notify the observer of a completion that failed."""
        if self.runtime.observer is not None:
            code = error.code if isinstance(error, ModelyardError) else ModelyardError.code
            entity, project = self.attribution.entity, self.attribution.project
            self.runtime.observe(events.CompletionFailed(entity, project, self.given.model, code))

    # ---- before the backend answers

    def _check_attribution(self) -> None:
        entity, project = self.attribution.entity, self.attribution.project
        self.principal.require(check_name(entity, "entity"), project and check_name(project, "project"))

    def _resolve(self) -> None:
        """Find the model, its backend, and whether the request is limited, from one snapshot."""
        offers, principal = offered(self.runtime), self.principal

        def query(snapshot: Snapshot) -> tuple[ServedModel, bool]:
            model = served(self.runtime, snapshot, offers, self.given.model, principal)
            limited = principal.limits != _NO_LIMITS
            return model, limited or bool(budgets_of(snapshot, self.attribution.entity, principal.key_id))

        self.served, self.limited = self.runtime.store.read(query)
        self.backend = backend_of(self.runtime.backend, self.served.base_model)

    def _prepare(self) -> None:
        """Make the request that the backend gets: checked against its capabilities, with a token limit and a seed."""
        entry, capabilities = self.served.entry, self.backend.capabilities(self.served.base_model)
        request = _with_details(self.given, capabilities) if self.details else self.given
        check_tool_choice(request)
        check_supported(request, entry, capabilities)
        self.prompt_tokens: int | None = self.backend.prompt_tokens(request, self.served)
        self.images: int = images(request)
        max_tokens = resolve_max_tokens(entry, self.prompt_tokens, request.max_tokens)
        seed = request.sampling.seed
        if seed is None:
            seed = int.from_bytes(self.runtime.randomness(8), "big", signed=True)
        self.request = request.asking(request.messages, request.sampling.seeded(seed), max_tokens)
        self.assemblers = list(_assemblers(self.request, capabilities.choices))

    def _admission(self) -> Admission:
        entry, request = self.served.entry, self.request
        assert request.max_tokens is not None
        prompt = entry.context_length if self.prompt_tokens is None else self.prompt_tokens
        worst = Usage(prompt, request.max_tokens * request.n, images=self.images)
        dearest = most(worst, entry.pricing)
        return Admission(self.id, self.principal.key_id, self.attribution.entity, (), dearest, self.runtime.clock.now())

    # ---- while it answers

    def _stream(self) -> Flow[None]:
        for assembler in self.assemblers:
            stream = yield Open(self.backend, assembler.request, self.served)
            more = True
            while more and not assembler.done:
                try:
                    more = (yield Pull(stream, assembler.take)) if stream.waits else stream.pull(assembler.take)
                except (ModelyardError, CallerDisconnected):
                    raise
                except Exception as error:
                    raise BackendError(f"the backend failed with {type(error).__name__}") from error
                if assembler.shown:
                    yield from self._emit(assembler.shown)
                    assembler.shown.clear()
            if stream.waits:
                yield Close(stream)
            else:
                stream.close()

    def _emit(self, deltas: Iterable[Delta]) -> Flow[None]:
        """Emit deltas, and see to it that the choices begin in the order of their indexes."""
        if not self.started:
            self.started = True
            yield Emit(StreamStarted(self.id, self.created, self.given.model, self.served.entry))
        for delta in deltas:
            for index in range(self.choices_begun, delta.index):
                yield Emit(Delta(index=index))
            self.choices_begun = max(self.choices_begun, delta.index + 1)
            yield Emit(delta)

    # ---- when it has answered

    def _completion(self) -> Completion:
        """Assemble the completion. Raises `BackendError` for an answer that is incomplete or cannot be counted."""
        choices: list[Choice] = []
        for assembler in self.assemblers:
            choices += assembler.fold()
        return Completion(self.id, self.created, self.given.model, tuple(choices), self._usage())

    def _usage(self) -> Usage:
        """Return the usage as the backend reports it, else as it was counted; never more than was admitted."""
        first, known = self.assemblers[0].report, self.prompt_tokens
        estimated = first is None and known is None
        prompt = first.prompt_tokens if first is not None else known
        if prompt is None:
            prompt = sum(len(message.text) for message in self.request.messages) // _CHARACTERS_A_TOKEN + 1
        prompt = min(prompt, self.served.entry.context_length if known is None else known)
        produced = 0
        for assembler in self.assemblers:
            produced += assembler.completion_tokens
            estimated = estimated or assembler.estimated
        return Usage(prompt, produced, 0 if first is None else min(first.cached_tokens, prompt), self.images, estimated)

    def _record_usage(self, usage: Usage, completion: Completion | None) -> Flow[None]:
        entry = self._ledger_entry(usage)
        stored = None if completion is None or not self.given.store else self._stored(completion)
        step = partial(book, entry=entry, held=self.reserved, stored=stored)
        yield from self._write(step, partial(_report_booked, self.runtime, entry))

    def _record_what_was_produced(self) -> Flow[None]:
        if any(assembler.produced for assembler in self.assemblers):
            yield from self._record_usage(self._usage(), None)
        elif self.reserved is not None:
            yield from self._write(partial(settle, held=self.reserved), lambda: None)

    def _write(self, step: Callable[[Tx], None], on_committed: Callable[[], None]) -> Flow[None]:
        """Commit a step, in place if that does not wait. A caller who leaves meanwhile does so after the commit."""
        store = self.runtime.store
        if not store.blocking:
            store.transact(step, durable=False)
            on_committed()
            return
        effect = RecordUsage(store, step, on_committed=on_committed)
        try:
            yield effect
        except CallerDisconnected:
            yield effect
            raise

    def _ledger_entry(self, usage: Usage) -> LedgerEntry:
        model = self.served
        return LedgerEntry(
            id=self.id,
            entity=self.attribution.entity,
            project=self.attribution.project,
            key_id=self.principal.key_id,
            model=_booked_name(self.given.model, model.entry),
            base_model=model.base_model,
            checkpoint_step=None if model.checkpoint is None else model.checkpoint.step,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            images=usage.images,
            estimated=usage.estimated,
            cost=cost(usage, model.entry.pricing),
            created_at=self.runtime.clock.now(),
        )

    def _stored(self, completion: Completion) -> StoredCompletion:
        return StoredCompletion(
            id=self.id,
            entity=self.attribution.entity,
            project=self.attribution.project,
            model=self.given.model,
            created_at=self.runtime.clock.now(),
            request=converter.unstructure_filled(self.given),
            answer=converter.unstructure_filled(completion),
            metadata=self.given.metadata,
            price=self.served.entry.pricing.texts,
        )


def _report_booked(runtime: Runtime, entry: LedgerEntry) -> None:
    if runtime.observer is not None:
        runtime.observe(
            events.CompletionBooked(
                entry.id,
                entry.entity,
                entry.project,
                entry.model,
                entry.prompt_tokens,
                entry.completion_tokens,
                entry.cost,
            )
        )


def backend_of(backend: Backend | AsyncBackend, model: str) -> Backend | AsyncBackend:
    """Return the backend that answers for a model: of a router the model's own, which may be of the other kind."""
    unwrap = getattr(backend, "backend_of", None)
    return backend if unwrap is None else unwrap(model)


def _assemblers(request: CompletionRequest, makes_choices: bool) -> Iterable[ResponseAssembler]:
    """Yield one assembler for all choices, or one for each choice with a seed of its own."""
    if request.n == 1 or makes_choices:
        yield ResponseAssembler(request, range(request.n))
        return
    for index in range(request.n):
        sampling = attrs.evolve(request.sampling, seed=_shifted(request.sampling.seed or 0, index))
        yield ResponseAssembler(attrs.evolve(request, n=1, sampling=sampling), [index])


def _shifted(seed: int, by: int) -> int:
    """Add to a seed, within signed 64 bits."""
    return (seed + by + 2**63) % 2**64 - 2**63


def _with_details(request: CompletionRequest, capabilities: Capabilities) -> CompletionRequest:
    return attrs.evolve(
        request,
        logprobs=request.logprobs or capabilities.logprobs,
        return_token_ids=request.return_token_ids or capabilities.token_ids,
    )


def _booked_name(requested: str, entry: CatalogueEntry) -> str:
    """Return the catalogue id, or `entity/project/name` of a trained model without its step or alias."""
    parts = None if requested == entry.id else models.ModelName.parse(requested)
    return entry.id if parts is None else f"{parts.entity}/{parts.project}/{parts.name}"

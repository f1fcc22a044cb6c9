"""One request on its way: resolved, checked, admitted, answered, booked. Written once as a flow, for every caller."""

from collections.abc import Iterable
from functools import partial

import attrs

from modelyard.domain import events as observed
from modelyard.domain import models
from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import Choice, Completion, CompletionRequest, Delta, StoredCompletion, Usage
from modelyard.domain.identity import Attribution, Limits, Principal, check_name
from modelyard.domain.usage import Admission, LedgerEntry, cost, most
from modelyard.errors import BackendError, ModelyardError
from modelyard.flow import Call, CallerDisconnected, Emit, Flow
from modelyard.platform.catalogue.service import offered, served
from modelyard.platform.chat.assembly import ResponseAssembler
from modelyard.platform.chat.capability_checks import check_supported, check_tool_choice, images, resolve_max_tokens
from modelyard.platform.chat.effects import Close, Open, Pull
from modelyard.platform.jsonable import to_jsonable
from modelyard.platform.runtime import Runtime
from modelyard.platform.usage.admission import RecordUsage, admitted, book, budgets_of, release
from modelyard.protocols import AsyncBackend, Backend, Capabilities, ServedModel, Snapshot

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
    """What a flow of `run_completion` returns: the completion, and the catalogue entry that priced it."""

    completion: Completion
    entry: CatalogueEntry


def run_completion(
    runtime: Runtime, principal: Principal, request: CompletionRequest, attribution: Attribution, details: bool = False
) -> Flow[CompletionResult]:
    """Answer a request and book it on `attribution`.

    A streamed request emits its `StreamStarted`, its deltas, and its `Completion` when its usage is recorded. What can
    fail before the first token fails before the `StreamStarted`. `details` asks for log-probabilities and token ids
    where the backend has them. A caller who leaves early pays for what was produced.

    Raises `ModelNotFound`, `Forbidden`, `InvalidInput` and its subclasses, `BudgetExceeded`, `RateLimited`,
    `BackendError`, `StoreError`.
    """
    answering = CompletionPipeline(runtime, principal, request, attribution, details)
    try:
        return (yield from answering.flow())
    except Exception as error:
        if runtime.observer is not None and not isinstance(error, CallerDisconnected):
            code = error.code if isinstance(error, ModelyardError) else ModelyardError.code
            runtime.observe(observed.CompletionFailed(attribution.team, attribution.project, request.model, code))
        raise
    finally:
        runtime.cache.running.discard(answering.id)


class CompletionPipeline:
    """The state of one request, and its steps in order.

    What does not wait, as a store or backend declares, is done in place: to ask the driver for it would cost more than
    the thing itself.
    """

    served: ServedModel
    backend: Backend | AsyncBackend
    request: CompletionRequest

    def __init__(
        self,
        runtime: Runtime,
        principal: Principal,
        request: CompletionRequest,
        attribution: Attribution,
        details: bool,
    ) -> None:
        self.runtime, self.principal, self.asked, self.attribution = runtime, principal, request, attribution
        self.details = details
        self.id, self.created = runtime.ids(), int(runtime.clock.now().timestamp())
        self.held: Admission | None = None
        self.readers: list[ResponseAssembler] = []
        self.appeared = 0
        self.opened = False

    def flow(self) -> Flow[CompletionResult]:
        """See `run_completion`."""
        self._check_attribution()
        self.served, limited = (yield Call(self._look_up)) if self.runtime.store.blocking else self._look_up()
        self.backend = backend_of(self.runtime.backend, self.served.base_model)
        if getattr(self.backend, "blocking", False):
            yield Call(self._fit)
        else:
            self._fit()
        if limited:
            self.held = yield from admitted(self.runtime, self._admission(), self.principal.limits)
        try:
            yield from self._ask()
            completion = self._completion()
        except Exception:
            yield from self._book_what_was_produced()
            raise
        yield from self._book(completion.usage, completion)
        if self.request.streamed:
            yield Emit(completion)
        return CompletionResult(completion, self.served.entry)

    # ---- before the backend is asked

    def _check_attribution(self) -> None:
        team, project = self.attribution.team, self.attribution.project
        self.principal.require(check_name(team, "team"), project and check_name(project, "project"))

    def _look_up(self) -> tuple[ServedModel, bool]:
        """The model that answers, and whether the request needs admission, from one snapshot."""
        offers = offered(self.runtime)

        def query(snapshot: Snapshot) -> tuple[ServedModel, bool]:
            model = served(self.runtime, snapshot, offers, self.asked.model, self.principal)
            limited = self.principal.limits != _NO_LIMITS
            return model, limited or bool(budgets_of(snapshot, self.attribution.team, self.principal.key_id))

        return self.runtime.store.read(query)

    def _fit(self) -> None:
        """Make the request as the backend is to get it: with a token limit, a seed, and nothing that it cannot do."""
        entry, capabilities = self.served.entry, self.backend.capabilities(self.served.base_model)
        request = _with_details(self.asked, capabilities) if self.details else self.asked
        check_tool_choice(request)
        check_supported(request, entry, capabilities)
        self.prompt_tokens, self.images = self.backend.prompt_tokens(request, self.served), images(request)
        max_tokens = resolve_max_tokens(entry, self.prompt_tokens, request.max_tokens)
        seed = request.sampling.seed
        if seed is None:
            seed = int.from_bytes(self.runtime.randomness(8), "big", signed=True)
        self.request = request.asking(request.messages, request.sampling.seeded(seed), max_tokens)
        self.readers = list(_readers(self.request, capabilities.choices))

    def _admission(self) -> Admission:
        entry, request = self.served.entry, self.request
        assert request.max_tokens is not None
        prompt = entry.context_length if self.prompt_tokens is None else self.prompt_tokens
        worst = Usage(prompt, request.max_tokens * request.n, images=self.images)
        dearest = most(worst, entry.pricing)
        return Admission(self.id, self.principal.key_id, self.attribution.team, (), dearest, self.runtime.clock.now())

    # ---- while it answers

    def _ask(self) -> Flow[None]:
        for reader in self.readers:
            source = yield Open(self.backend, reader.request, self.served)
            more = True
            while more and not reader.done:
                try:
                    more = (yield Pull(source, reader.take)) if source.waits else source.pull(reader.take)
                except (ModelyardError, CallerDisconnected):
                    raise
                except Exception as error:
                    raise BackendError(f"the backend failed with {type(error).__name__}") from error
                if reader.shown:
                    yield from self._show(reader.shown)
                    reader.shown.clear()
            if source.waits:
                yield Close(source)
            else:
                source.close()

    def _show(self, deltas: Iterable[Delta]) -> Flow[None]:
        """Emit, and see to it that the choices appear in the order of their indexes."""
        if not self.opened:
            self.opened = True
            yield Emit(StreamStarted(self.id, self.created, self.asked.model, self.served.entry))
        for delta in deltas:
            for index in range(self.appeared, delta.index):
                yield Emit(Delta(index=index))
            self.appeared = max(self.appeared, delta.index + 1)
            yield Emit(delta)

    # ---- when it has answered

    def _completion(self) -> Completion:
        """Raises `BackendError` for an answer that is not complete or cannot be counted."""
        choices: list[Choice] = []
        for reader in self.readers:
            choices += reader.fold()
        return Completion(self.id, self.created, self.asked.model, tuple(choices), self._usage())

    def _usage(self) -> Usage:
        """What was used: as the backend reports it, else as it was counted; never more than was admitted."""
        first, known = self.readers[0].report, self.prompt_tokens
        estimated = first is None and known is None
        prompt = first.prompt_tokens if first is not None else known
        if prompt is None:
            prompt = sum(len(message.text) for message in self.request.messages) // _CHARACTERS_A_TOKEN + 1
        prompt = min(prompt, self.served.entry.context_length if known is None else known)
        produced = 0
        for reader in self.readers:
            produced += reader.completion_tokens
            estimated = estimated or reader.estimated
        return Usage(prompt, produced, 0 if first is None else min(first.cached_tokens, prompt), self.images, estimated)

    def _book(self, usage: Usage, completion: Completion | None) -> Flow[None]:
        entry, held = self._ledger_entry(usage), self.held
        stored = None if completion is None or not self.asked.store else self._stored(completion)
        told = partial(_booked, self.runtime, entry)
        step = partial(book, entry=entry, held=held, stored=stored)
        yield from self._write(RecordUsage(self.runtime.store, step, on_committed=told))

    def _book_what_was_produced(self) -> Flow[None]:
        held = self.held
        if any(reader.produced for reader in self.readers):
            yield from self._book(self._usage(), None)
        elif held is not None:
            step = partial(release, held=held)
            yield from self._write(RecordUsage(self.runtime.store, step, on_committed=lambda: None))

    def _write(self, writing: RecordUsage) -> Flow[None]:
        """In place where that does not wait; whoever goes away meanwhile does so when it is written."""
        if not writing.waits:
            writing.store.transact(writing.step, durable=False)
            writing.on_committed()
            return
        try:
            yield writing
        except CallerDisconnected:
            yield writing
            raise

    def _ledger_entry(self, usage: Usage) -> LedgerEntry:
        model = self.served
        return LedgerEntry(
            id=self.id,
            entity=self.attribution.team,
            project=self.attribution.project,
            key_id=self.principal.key_id,
            model=_booked_name(self.asked.model, model.entry),
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
            entity=self.attribution.team,
            project=self.attribution.project,
            model=self.asked.model,
            created_at=self.runtime.clock.now(),
            request=to_jsonable(self.asked),
            answer=to_jsonable(completion),
            metadata=self.asked.metadata,
            price=self.served.entry.pricing.texts,
        )


def _booked(runtime: Runtime, entry: LedgerEntry) -> None:
    """Tell the observer that a completion was booked."""
    if runtime.observer is not None:
        runtime.observe(
            observed.CompletionBooked(
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
    """The backend that answers for a model: behind a router, that of the model, which may be of the other kind."""
    unwrap = getattr(backend, "backend_of", None)
    return backend if unwrap is None else unwrap(model)


def _readers(request: CompletionRequest, makes_choices: bool) -> Iterable[ResponseAssembler]:
    """One call for all choices, or one call for each with a seed of its own."""
    if request.n == 1 or makes_choices:
        yield ResponseAssembler(request, range(request.n))
        return
    for index in range(request.n):
        sampling = attrs.evolve(request.sampling, seed=_shifted(request.sampling.seed or 0, index))
        yield ResponseAssembler(attrs.evolve(request, n=1, sampling=sampling), [index])


def _shifted(seed: int, by: int) -> int:
    """A seed further on, within signed 64 bits."""
    return (seed + by + 2**63) % 2**64 - 2**63


def _with_details(request: CompletionRequest, capabilities: Capabilities) -> CompletionRequest:
    return attrs.evolve(
        request,
        logprobs=request.logprobs or capabilities.logprobs,
        return_token_ids=request.return_token_ids or capabilities.token_ids,
    )


def _booked_name(asked: str, entry: CatalogueEntry) -> str:
    """The catalogue id, or `entity/project/name` of a trained model, however it was spelled."""
    parts = None if asked == entry.id else models.ModelName.parse(asked)
    return entry.id if parts is None else f"{parts.entity}/{parts.project}/{parts.name}"

"""One request for embeddings: resolve, check, reserve, embed, record. Written once, as a flow, for every caller."""

from collections.abc import Iterable
from functools import partial
from typing import ClassVar

from modelyard.domain.catalogue import EMBEDDINGS
from modelyard.domain.completion import CompletionRequest, Usage
from modelyard.domain.embedding import EmbeddingRequest, EmbeddingResult
from modelyard.domain.identity import Attribution, Principal
from modelyard.domain.usage import Admission
from modelyard.errors import BackendError, InvalidInput, ModelyardError, Problem, UnsupportedParameter
from modelyard.flow import Call, CallerDisconnected, Flow
from modelyard.parts.embeddings.batches import BatchCollector, as_streaming, estimated_tokens, most_tokens
from modelyard.platform.catalogue.offered_models import registered
from modelyard.platform.catalogue.service import offered
from modelyard.platform.chat.backend_stream import Close, GiveWay, Open, Pull, backend_failed
from modelyard.platform.chat.booked_request import BookedRequest, RequestInProgress, report_failed
from modelyard.platform.chat.completion_plan import CompletionPlan
from modelyard.platform.chat.plan import known_plan, make_plan
from modelyard.platform.runtime import Runtime
from modelyard.platform.usage.admission import reserve
from modelyard.platform.usage.booking import CompletionBooking, budget_ids
from modelyard.protocols import Capabilities

_SHOWN = 20
"""How many models a refusal names."""


class EmbeddingPipeline(BookedRequest):
    """Answers one request, and records its usage on `attribution`. It is measured as completions are.

    A caller that leaves meanwhile pays for the embedded part.
    """

    operation: ClassVar[str] = "embeddings"
    collected: BatchCollector | None = None
    most: int = 0

    def __init__(
        self,
        runtime: Runtime,
        principal: Principal,
        request: EmbeddingRequest,
        attribution: Attribution,
        client: RequestInProgress | None = None,
    ) -> None:
        super().__init__(runtime, principal, CompletionRequest(request.model, ()), attribution, client)
        self.request: EmbeddingRequest = request

    def flow(self) -> Flow[EmbeddingResult]:
        """Answer the request.

        Raises `ModelNotFound`, `Forbidden`, `InvalidInput` and its subclasses, `BudgetExceeded`, `RateLimited`,
        `BackendError`, `StoreError`.
        """
        self.begin_span()
        try:
            return (yield from self._answer())
        except CallerDisconnected:
            raise
        except Exception as error:
            report_failed(self, error)
            raise
        finally:
            self._leave()

    def _answer(self) -> Flow[EmbeddingResult]:
        runtime = self.runtime
        plan = known_plan(*self.asked)
        if plan is None:
            threads = runtime.store_threads(self.principal.entity)
            plan = yield Call(partial(make_plan, *self.asked), runtime.store.blocking, threads)
        self.plan = plan
        self.served = plan.served if self.span is None else self.span.traced(plan.served)
        capabilities = yield Call(partial(_capabilities, plan), plan.counts_in_thread, plan.served.threads)
        if plan.named is not None or not capabilities.embedding_size:
            others = yield Call(partial(embedding_models, runtime), runtime.store.blocking, runtime.store_threads(""))
            name = plan.served.entry.id if plan.named is None else plan.named.name
            raise InvalidInput.at("model", msg=f"{name} makes no embeddings; {_named(others)}")
        self.collected = collected = self._collector(capabilities)
        runtime.cache.begin(self.id, self)
        if plan.limited:
            self.reserved = yield from self._reserve(plan)
        self.follow()
        try:
            yield from self._embed(plan, collected)
        except Exception as failure:
            collected.failed(failure)
            self.failure = None if isinstance(failure, CallerDisconnected) else failure
            if (rest := self.remainder()) is not None and self._claim(rest):
                yield from self._write(rest)
            raise
        usage = Usage(collected.tokens, estimated=collected.estimated)
        yield from self._write(self._claim_whole(self._booking(usage)))
        vectors = tuple(collected.vectors)
        return EmbeddingResult(self.id, self.request.model, vectors, collected.tokens, collected.estimated)

    # ---- before the backend embeds

    def _collector(self, capabilities: Capabilities) -> BatchCollector:
        """Check the number of dimensions, and count the most tokens that the inputs can have."""
        size, asked, entry = capabilities.embedding_size, self.request.dimensions, self.served.entry
        if asked is not None and asked > size:
            raise InvalidInput.at("dimensions", msg=f"must be at most {size} for {entry.id}")
        if asked not in (None, size) and not capabilities.embedding_dimensions:
            msg = f"{entry.id} makes embeddings of {size} numbers only; leave it out"
            raise UnsupportedParameter([Problem(("dimensions",), msg)])
        limits = [most_tokens(one, entry.context_length) for one in self.request.inputs]
        self.most = sum(limits)
        return BatchCollector(self.request.inputs, asked or size, limits)

    def _reserve(self, plan: CompletionPlan) -> Flow[Admission | None]:
        longest = plan.most(self.most, 0, 0)
        now, entity, key_id = self.runtime.clock.now(), self.attribution.entity, self.principal.key_id
        asked = budget_ids(entity, key_id, self.attribution.project, self.principal.purse)
        admission = Admission(self.id, key_id, entity, asked, longest, now)
        return reserve(self.runtime, self.principal, entity, admission, lambda: longest)

    # ---- while it embeds

    def _embed(self, plan: CompletionPlan, collected: BatchCollector) -> Flow[None]:
        """Read the backend's batches, and let others run after each."""
        streaming = as_streaming(plan.backend, self.most)
        self.stream = stream = yield Open(streaming, self.request, self.served)  # type: ignore[arg-type]
        more = True
        while more and not collected.complete:
            if self.cut_by is not None:
                raise self.cut_by
            try:
                more = yield Pull(stream, collected.take)
            except (ModelyardError, CallerDisconnected):
                raise
            except Exception as error:
                raise backend_failed(error) from error
            yield GiveWay()
        yield Close(stream)
        if not collected.complete:
            raise BackendError(f"the backend gave {len(collected.vectors)} embeddings of {len(self.request.inputs)}")

    # ---- when it has embedded

    def remainder(self) -> CompletionBooking | None:
        """Return the booking that records what was embedded so far, and releases what was reserved."""
        usage = None
        if self.collected is not None and (self.collected.vectors or self.collected.tokens):
            usage = Usage(self.collected.tokens, estimated=self.collected.estimated)
        elif self.sent:
            usage = Usage(estimated_tokens(self.most), estimated=True)
        return None if usage is None and self.reserved is None else self._booking(usage)


def embedding_models(runtime: Runtime) -> list[str]:
    entries = runtime.store.read(lambda snapshot: [record.entry() for record in registered(snapshot)])
    listed = {**offered(runtime), **{entry.id: entry for entry in entries}}
    return sorted(name for name, entry in listed.items() if EMBEDDINGS in entry.output_modalities)


def _capabilities(plan: CompletionPlan) -> Capabilities:
    """Return what the backend can do with the model; nothing if it has no method for embeddings."""
    if not hasattr(plan.backend, "embed") and not hasattr(plan.backend, "aembed"):
        return Capabilities()
    return plan.backend.capabilities(plan.served.base_model)


def _named(models: Iterable[str]) -> str:
    shown = [*models][:_SHOWN]
    return f"these do: {', '.join(shown)}" if shown else "no model of this platform does"

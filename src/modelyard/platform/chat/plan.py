"""What is the same for all requests of a caller to a model: found once, and again when a setting has changed."""

from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal

import attrs

from modelyard.domain.catalogue import CatalogueEntry, Pricing
from modelyard.domain.completion import Completion, CompletionRequest, StoredCompletion, Usage
from modelyard.domain.frozen import maker
from modelyard.domain.identity import Attribution, Limits, Principal, check_name
from modelyard.domain.usage import Budget, cost, dearest
from modelyard.errors import InvalidInput
from modelyard.formats import converter
from modelyard.platform.catalogue.service import Offers, booked_name, offered, served
from modelyard.platform.chat.backend_stream import backend_of
from modelyard.platform.chat.capability_checks import check_supported
from modelyard.platform.runtime import Runtime
from modelyard.platform.usage.booking import budgets_of
from modelyard.protocols import AsyncBackend, Backend, ServedModel, Snapshot, Tx

MOST_PLANS = 4096

PlanKey = tuple[int, str, str, str]

_NO_LIMITS = Limits()
_usage = maker(Usage)


@attrs.frozen(eq=False)
class CompletionPlan:
    """How a principal's requests to a model are answered, and under which name their usage is booked.

    `limited` is whether a limit or a budget applies. `budgets` are the ids of those that are asked after a whole
    answer of a backend that never waits: none where a limit applies, too. `waits` is whether the backend may keep an
    event loop waiting, and `counts_in_thread` whether it may even while it counts a prompt. `offers` and
    `settings_version` are what was in force when the plan was made; `entries` is the tuple that the backend offered
    then, if it was one. `dearest` are the prices by which the most that a request can cost is found.
    """

    principal: Principal
    served: ServedModel
    backend: Backend | AsyncBackend
    booked_as: str
    limited: bool
    budgets: Sequence[str]
    waits: bool
    counts_in_thread: bool
    offers: Offers
    entries: tuple[CatalogueEntry, ...] | None
    settings_version: int | None
    dearest: Pricing

    def most(self, prompt_tokens: int | None, images: int, tokens: int) -> Decimal:
        """Return the most in USD that a request can cost with so many tokens in all of its answers."""
        prompt = self.served.entry.context_length if prompt_tokens is None else prompt_tokens
        return cost(_usage(prompt, tokens, 0, images), self.dearest)

    def count(self, request: CompletionRequest) -> int:
        """Return how many tokens a prompt has. Raises `InvalidInput`, also where answers alone report it."""
        entry = self.served.entry
        check_supported(request, entry, self.backend.capabilities(self.served.base_model))
        tokens = self.backend.prompt_tokens(request, self.served)
        if tokens is None:
            raise InvalidInput.at("model", msg=f"{entry.id} is of a server that counts tokens with its answers only")
        return tokens


class KeptPlans(dict[PlanKey, CompletionPlan]):
    """How a process answers requests, as it found last."""


def known_plan(runtime: Runtime, principal: Principal, attribution: Attribution, model: str) -> CompletionPlan | None:
    """Return the plan that `make_plan` has made, unless a setting has changed since, here or in another process."""
    key = id(principal), attribution.entity, attribution.project, model
    plan = runtime.cache.slot(KeptPlans).get(key)
    if plan is None or runtime.store.settings_version() != plan.settings_version:
        return None
    if runtime.backend.entries() is not plan.entries and offered(runtime) is not plan.offers:
        return None
    return plan


def make_plan(runtime: Runtime, principal: Principal, attribution: Attribution, model: str) -> CompletionPlan:
    """Find the model, its backend, and whether requests are limited, from one snapshot.

    The plan is kept where the store counts the changes of its settings. Raises `Forbidden`, `InvalidInput`,
    `ModelNotFound`.
    """
    entity, project = attribution.entity, attribution.project
    principal.require(check_name(entity, "entity"), project and check_name(project, "project"))
    version = runtime.store.settings_version()  # before what it is the version of
    entries, offers = runtime.backend.entries(), offered(runtime)

    def query(snapshot: Snapshot) -> tuple[ServedModel, list[Budget]]:
        return served(runtime, snapshot, offers, model, principal), budgets_of(snapshot, entity, principal.key_id)

    found, budgets = runtime.store.read(query)
    runtime.cache.see_budgets(budgets)
    backend = backend_of(runtime.backend, found.base_model)
    waits = getattr(backend, "blocking", True) or hasattr(backend, "astream")
    in_thread = getattr(backend, "blocking", False) and not getattr(backend, "counts_in_place", False)
    name = booked_name(model, found.entry, principal)
    same = entries if type(entries) is tuple and offered(runtime) is offers else None
    key_limited = principal.limits != _NO_LIMITS
    asked = [] if key_limited or waits else [budget.id for budget in budgets]
    limited, prices = key_limited or bool(budgets), dearest(found.entry.pricing)
    plan = CompletionPlan(
        principal, found, backend, name, limited, asked, waits, in_thread, offers, same, version, prices
    )
    if version is not None:  # the plan holds the principal, so that no other one gets its id
        _keep(runtime.cache.slot(KeptPlans), (id(principal), entity, project, model), plan)
    return plan


def _keep(plans: dict[PlanKey, CompletionPlan], key: PlanKey, plan: CompletionPlan) -> None:
    if len(plans) >= MOST_PLANS:
        plans.clear()
    plans[key] = plan


def storing(
    request: CompletionRequest, completion: Completion, attribution: Attribution, model: ServedModel, now: datetime
) -> Callable[[Tx], object]:
    """Return what stores a completion whose request asks for that (`store`)."""
    stored = StoredCompletion(
        id=completion.id,
        entity=attribution.entity,
        project=attribution.project,
        model=request.model,
        created_at=now,
        request=converter.unstructure_filled(request),
        answer=converter.unstructure_filled(completion),
        metadata=request.metadata,
        price=model.entry.pricing.texts,
        checkpoint_id=None if model.checkpoint is None else model.checkpoint.id,
    )
    return lambda tx: tx.add(stored)

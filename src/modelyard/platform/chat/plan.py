"""The plans of requests: each is found once for a caller and a model, and again when a setting has changed."""

from functools import partial

from modelyard.domain.identity import Attribution, Limits, Principal, check_name
from modelyard.domain.usage import Budget
from modelyard.errors import Forbidden, ModelNotFound
from modelyard.flow import Call, Flow
from modelyard.part import Capture, Named
from modelyard.platform.catalogue.service import booked_name, find_served, offered
from modelyard.platform.chat.backend_stream import backend_of
from modelyard.platform.chat.booked_request import BookedRequest
from modelyard.platform.chat.completion_plan import CompletionPlan
from modelyard.platform.runtime import Runtime
from modelyard.platform.usage.booking import budget_ids, budgets_of
from modelyard.protocols import ServedModel, Snapshot

MOST_PLANS = 4096

PlanKey = tuple[int, str, str, str]

_NO_LIMITS = Limits()


class KeptPlans(dict[PlanKey, CompletionPlan]):
    """How a process answers requests, as it found last."""


def known_plan(runtime: Runtime, principal: Principal, attribution: Attribution, model: str) -> CompletionPlan | None:
    """Return the plan that `make_plan` has made, unless a setting has changed since, here or in another process."""
    plan = runtime.cache.slot(KeptPlans).get((id(principal), attribution.entity, attribution.project, model))
    if plan is None or runtime.store.settings_version() != plan.settings_version:
        return None
    if runtime.backend.entries() is not plan.entries and offered(runtime) is not plan.offers:
        return None
    return plan


def find_plan(running: BookedRequest, plan: CompletionPlan | None) -> Flow[CompletionPlan]:
    """Return the plan of a request, or that of the model that is chosen for it. Raises as `make_plan` does."""
    blocks, threads = running.runtime.store.blocking, running.runtime.store_threads(running.principal.entity)
    make = partial(make_plan, *running.asked[:3])
    if plan is None:
        plan = yield Call(partial(make, running.given.model), blocks, threads)
    running.captures = plan.captures
    if plan.captures is None or not (name := plan.captures.chosen(running)):
        return plan
    return known_plan(*running.asked[:3], name) or (yield Call(partial(make, name), blocks, threads))


def make_plan(runtime: Runtime, principal: Principal, attribution: Attribution, model: str) -> CompletionPlan:
    """Find the model, its backend, and whether requests are limited, from one snapshot.

    The plan is kept where the store counts the changes of its settings. Raises `Forbidden`, `InvalidInput`,
    `ModelNotFound`."""
    entity, project = attribution.entity, attribution.project
    principal.require(check_name(entity, "entity"), project and check_name(project, "project"))
    version = runtime.store.settings_version()  # before what it is the version of
    entries, offers = runtime.backend.entries(), offered(runtime)
    asked = budget_ids(entity, principal.key_id, project, principal.purse)

    def query(snapshot: Snapshot) -> tuple[ServedModel, str, Named | None, Capture | None, list[Budget]]:
        known = (part.captures for part in runtime.parts if part.captures is not None)
        captures = next(filter(None, (one(runtime, snapshot, principal, model) for one in known)), None)
        try:
            found = find_served(runtime, snapshot, offers, model, principal)
        except (ModelNotFound, Forbidden):
            if captures is None:
                raise
            found = find_served(runtime, snapshot, offers, captures.model, principal)
        for prices in filter(None, (part.prices for part in runtime.parts)):
            found = prices(runtime, snapshot, found[0]), *found[1:]
        return *found, captures, budgets_of(snapshot, asked)

    found, called, named, captures, budgets = runtime.store.read(query)
    runtime.cache.see_budgets(budgets)
    backend = backend_of(runtime.backend, found.base_model)
    waits = getattr(backend, "blocking", True) or hasattr(backend, "astream")
    in_thread = getattr(backend, "blocking", False) and not getattr(backend, "counts_in_place", False)
    name = booked_name(called, found.entry, principal)
    same = entries if type(entries) is tuple and offered(runtime) is offers else None
    key_limited = principal.limits != _NO_LIMITS
    limited, prices = key_limited or bool(budgets), found.entry.pricing.dearest()
    apply, after = tuple([budget.id for budget in budgets]), not (key_limited or waits)
    of = principal, found, backend, name, limited, apply, after, waits, in_thread
    plan = CompletionPlan(*of, offers, same, version, prices, captures, named)
    if version is not None and found.entry.pricing.lasting:  # a kept plan holds the principal, whose id none else gets
        plans = runtime.cache.slot(KeptPlans)
        if len(plans) >= MOST_PLANS:
            plans.clear()
        plans[id(principal), entity, project, model] = plan
    return plan

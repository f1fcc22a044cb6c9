"""Admit a request: limits, and reservations on budgets, as functions of `tx`. A request is admitted in one transaction
before the backend is called, and settled in the transaction of its ledger row. If neither a budget nor a limit applies,
nothing is reserved and there is no first transaction. Nor is there one for a whole answer of a backend that never
waits: its budgets are checked in the transaction of its ledger row (`booking.AnsweredBooking`)."""

from collections.abc import Callable
from decimal import Decimal

from modelyard.domain.frozen_fast import maker
from modelyard.domain.identity import Limits, Principal, RateStand
from modelyard.domain.record import KEY
from modelyard.domain.usage import ENTITY, KEY_OF_API, RATE_PERIOD, Admission, Budget, RateLimit
from modelyard.domain.worker import PROCESS
from modelyard.errors import BudgetExceeded, RateLimited
from modelyard.flow import Call, Flow, Transact
from modelyard.platform.runtime import Runtime
from modelyard.platform.usage import presence
from modelyard.platform.usage.booking import budgets_of
from modelyard.protocols import DomainStep, Tx

_limit, _stand = maker(RateLimit), maker(RateStand)
_ROUNDING = 1e-5
_NOTHING = Decimal(0)


def reserve(
    runtime: Runtime,
    principal: Principal,
    entity: str,
    asked: Admission | None,
    least: Callable[[], Decimal],
    see: Callable[[RateStand], object] | None = None,
) -> Flow[Admission | None]:
    """Admit a request. Returns what it has reserved, or None where it has reserved nothing.

    `asked` names the key, the budgets that may be there and what may be spent at most; it is None where nothing but a
    rate applies. `least` returns what the shortest answer would cost. `see` receives what is left of the key's rate, if
    that is limited. What dead processes hold is released when the request would be refused otherwise.

    Raises `RateLimited`, `BudgetExceeded`."""
    store, key_id, limits = runtime.store, principal.key_id, principal.limits
    here = None if asked is None else presence.presence_of(runtime)

    def admits(tx: Tx) -> Admission | None:
        if limits.requests_per_minute is not None:
            _count_request(tx, key_id, limits.requests_per_minute, see)
        return None if asked is None or here is None else admit(tx, asked, limits, least, here)

    step: Callable[[Tx], Admission | None] = admits
    if store.blocking:
        step = DomainStep(admits, [(ENTITY, entity), (KEY_OF_API, key_id), *([(PROCESS, here.id)] if here else [])])
    try:
        held = (yield Transact(store, step, durable=False)) if store.blocking else store.transact(step, durable=False)
    except (RateLimited, BudgetExceeded):
        if not (yield Call(lambda: presence.release_dead(runtime), store.blocking, runtime.store_threads(entity))):
            raise
        held = yield Transact(store, step, durable=False)
    if held is not None and here is not None:
        here.hold(held.id)
    return held


def admit(
    tx: Tx, admission: Admission, limits: Limits, least: Callable[[], Decimal], here: "presence.Presence"
) -> Admission | None:
    """Apply the rules: concurrent requests, then every budget. `here` is the process that will run the request."""
    at_once = limits.concurrent_requests
    if at_once is not None and tx.count(Admission, "by_key", admission.key_id) >= at_once:
        raise RateLimited(f"this key may run {at_once} requests at once; wait until one has ended", 1.0)
    budgets = budgets_of(tx, admission.budgets) if admission.budgets else []
    for budget in budgets:
        _reserve(tx, budget, admission.reserved, least)
    if not budgets and at_once is None:
        return None
    here.sign_on(tx)
    held = admission.held(tuple([budget.id for budget in budgets]), here.id)
    tx.add(held)
    return held


def _count_request(tx: Tx, key_id: str, per_minute: int, see: Callable[[RateStand], object] | None) -> None:
    kept, time = tx.find(RateLimit, KEY, key_id), tx.time
    used = _limit(key_id, time) if kept is None else kept
    wait, after = used.request(time, per_minute)
    if refused := wait > _ROUNDING:
        after = used
    if see is not None:
        ahead = after.arrival - time
        until_full = 0.0 if ahead < 0 else RATE_PERIOD if ahead > RATE_PERIOD else ahead
        left = (RATE_PERIOD - until_full) * per_minute / RATE_PERIOD
        see(_stand(per_minute, int(left + _ROUNDING), until_full))
    if refused:
        raise RateLimited(f"this key may make {per_minute} requests a minute; try again in {wait:.1f} s", wait)
    (tx.add if kept is None else tx.replace)(after)


def _reserve(tx: Tx, budget: Budget, amount: Decimal, least: Callable[[], Decimal]) -> None:
    if amount > budget.remaining:
        raise _over_budget(budget, amount, least)
    tx.replace(budget.reserve(amount))


def _over_budget(budget: Budget, amount: Decimal, least: Callable[[], Decimal]) -> BudgetExceeded:
    """Make the error of a request that does not fit; it names `max_tokens` if a lower one would make it fit."""
    left = max(budget.remaining, _NOTHING)
    shortest = least()
    which = f" of project {budget.project}" if budget.project else ""
    has = f"the budget{which} of {budget.limit:f} USD has {left:f} left"
    if shortest > left:
        return BudgetExceeded(f"this request may cost {shortest:f} USD even with the shortest answer, and {has}")
    return BudgetExceeded(
        f"max_tokens: with the longest answer that it allows, this request would cost {amount:f} USD, and {has}; ask "
        "for less, or have the budget raised",
        "max_tokens",
    )

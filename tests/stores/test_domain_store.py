"""`DomainStore` finds steps that leave their domains; what the platform does stays in them."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import attrs
import pytest

from modelyard import open_platform
from modelyard.domain.identity import Limits, Principal, Scope
from modelyard.parts.contracts.store_values import Counter, Item
from modelyard.protocols import DomainStep, Tx
from modelyard.stores import RECORDS, MemoryStore
from modelyard.testing import CONTRACT_RECORDS, DomainStore, LeftDomain

EXAMPLE = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
HERE = [("counter", "a")]


@pytest.fixture
def store() -> DomainStore:
    store = DomainStore(MemoryStore(CONTRACT_RECORDS), CONTRACT_RECORDS)
    store.transact(lambda tx: [tx.add(Counter("a")), tx.add(Counter("b")), tx.add(Item("s", 1))])
    return store


def swallowing(tx: Tx) -> None:
    try:
        tx.get(Counter, "b")
    except AssertionError:
        return


@pytest.mark.parametrize(
    "step",
    [
        lambda tx: tx.get(Counter, "b"),
        lambda tx: tx.find(Counter, "key", "b"),
        lambda tx: tx.replace(Counter("b", 1)),
        lambda tx: tx.add(Counter("c")),
        lambda tx: tx.remove(Counter, "b"),
        lambda tx: tx.add(Item("s", 2)),
        lambda tx: tx.replace(Item("s", 1, "x")),
        lambda tx: tx.remove(Item, "s", 1),
        swallowing,
    ],
)
def test_a_step_that_leaves_its_domains_fails(store: DomainStore, step: Callable[[Tx], Any]) -> None:
    with pytest.raises(LeftDomain):
        store.transact(DomainStep(step, HERE))
    store.transact(step)


def test_a_step_that_stays_passes(store: DomainStore) -> None:
    def step(tx: Tx) -> int:
        tx.replace(attrs.evolve(tx.get(Counter, "a"), value=3))
        tx.remove(Counter, "a")
        tx.add(Counter("a", 4))
        assert tx.select(Item, ("number",), "by_shelf", "s") == [(1,)]
        return tx.count(Item, "by_shelf", "s")

    assert store.transact(DomainStep(step, HERE)) == 1


@pytest.mark.slow
def test_completions_under_limits_and_budgets_and_jobs_stay_in_their_domains() -> None:
    class Blocking(DomainStore):
        """As a store in a database is."""

        within = 0

        @property
        def blocking(self) -> bool:
            return True

        def transact(self, step: Any, durable: bool = True) -> Any:
            Blocking.within += isinstance(step, DomainStep)
            return super().transact(step, durable)

    with open_platform(store=Blocking(MemoryStore(RECORDS), RECORDS)) as platform:
        platform.usage.set_budget(Decimal(10))
        limits = Limits(requests_per_minute=60, concurrent_requests=5)
        caller = platform.acting_as(Principal("caller", "local", Scope("local"), "key-1", limits))
        caller.chat.complete(model="echo", messages="hello")
        chat = Blocking.within
        assert chat == 2, "admitted, and booked"
        model = platform.models.create("support", base_model="tabular-mini")
        with platform.worker():
            assert platform.training.sft(model, [EXAMPLE]).wait().status.value == "succeeded"
        assert Blocking.within > chat + 2
        assert platform.usage.total()[0].requests == 1

"""`settings_version` changes with what decides how requests are answered, and with nothing else."""

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import attrs
import pytest

from modelyard.domain.models import Model
from modelyard.domain.promotion import Alias
from modelyard.domain.schema import RECORDS
from modelyard.domain.usage import Budget, UsageTotal
from modelyard.protocols import Tx
from modelyard.stores.memory import MemoryStore

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BUDGET = Budget("acme", "acme", Decimal(5))
ALIAS = Alias("m", "prod", "acme", "default", 1, 1, None, NOW)


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with closing(MemoryStore(RECORDS)) as opened:
        yield opened


def changed(store: Any, step: Callable[[Tx], object]) -> bool:
    """Whether the version is another after this step."""
    before = store.settings_version()
    store.transact(step)
    return bool(store.settings_version() != before)


def test_it_changes_when_a_setting_appears_changes_or_disappears(store: MemoryStore) -> None:
    assert changed(store, lambda tx: tx.add(BUDGET))
    assert changed(store, lambda tx: tx.replace(attrs.evolve(BUDGET, limit=Decimal(6))))
    assert changed(store, lambda tx: tx.remove(Budget, BUDGET.id))
    assert changed(store, lambda tx: tx.add(ALIAS))
    assert changed(store, lambda tx: tx.replace(attrs.evolve(ALIAS, step=2)))


def test_it_does_not_change_with_usage_nor_with_a_read(store: MemoryStore) -> None:
    store.transact(lambda tx: tx.add(BUDGET))
    assert not changed(store, lambda tx: tx.replace(BUDGET.reserve(Decimal(1))))
    assert not changed(store, lambda tx: tx.add(UsageTotal("acme", "2026-01-01", "", "", "echo")))
    assert not changed(store, lambda tx: tx.find(Budget, "key", "acme"))


def test_it_changes_when_the_store_is_closed(store: MemoryStore) -> None:
    before = store.settings_version()
    store.close()
    assert store.settings_version() != before


def test_a_setting_names_fields_that_are_there() -> None:
    declared = {record.cls: record.settings for record in RECORDS if record.settings}
    assert declared[Budget] == ("limit",)
    assert set(declared) >= {Model, Alias, Budget}

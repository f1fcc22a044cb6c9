"""`settings_version` changes with what decides how requests are answered, and with nothing else."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest

from modelyard.domain.models import Model
from modelyard.domain.promotion import Alias
from modelyard.domain.schema import RECORDS
from modelyard.domain.usage import Budget, UsageTotal
from modelyard.errors import StoreClosed
from modelyard.protocols import Tx
from modelyard.stores.memory import MemoryStore
from modelyard.stores.sqlite import SqliteStore
from modelyard.stores.sqlite.errors import SqliteError

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BUDGET = Budget("acme", "acme", Decimal(5))
ALIAS = Alias("m", "prod", "acme", "default", 1, 1, None, NOW)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    made: Any = MemoryStore(RECORDS) if request.param == "memory" else SqliteStore(tmp_path / "yard.db", RECORDS)
    with closing(made) as opened:
        yield opened


def changed(store: Any, step: Callable[[Tx], object]) -> bool:
    """Whether the version is another after this step."""
    before = store.settings_version()
    store.transact(step)
    return bool(store.settings_version() != before)


def test_it_changes_when_a_setting_appears_changes_or_disappears(store: Any) -> None:
    assert changed(store, lambda tx: tx.add(BUDGET))
    assert changed(store, lambda tx: tx.replace(attrs.evolve(BUDGET, limit=Decimal(6))))
    assert changed(store, lambda tx: tx.remove(Budget, BUDGET.id))
    assert changed(store, lambda tx: tx.add(ALIAS))
    assert changed(store, lambda tx: tx.replace(attrs.evolve(ALIAS, step=2)))


def test_it_does_not_change_with_usage_nor_with_a_read(store: Any) -> None:
    store.transact(lambda tx: tx.add(BUDGET))
    assert not changed(store, lambda tx: tx.replace(BUDGET.reserve(Decimal(1))))
    assert not changed(store, lambda tx: tx.add(UsageTotal("acme", "2026-01-01", "", "", "echo")))
    assert not changed(store, lambda tx: tx.find(Budget, "key", "acme"))


def test_it_has_changed_or_cannot_be_read_when_the_store_is_closed(store: Any) -> None:
    before = store.settings_version()
    store.close()
    with suppress(StoreClosed):
        assert store.settings_version() != before


def test_an_undone_step_may_change_it_but_no_committed_one_goes_unseen(store: Any) -> None:
    def fails(tx: Tx) -> None:
        tx.add(BUDGET)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.transact(fails)
    assert changed(store, lambda tx: tx.add(BUDGET))


def test_each_process_sees_what_others_have_changed(tmp_path: Path) -> None:
    with (
        closing(SqliteStore(tmp_path / "a.db", RECORDS)) as one,
        closing(SqliteStore(tmp_path / "a.db", RECORDS)) as other,
    ):
        before = other.settings_version()
        one.transact(lambda tx: tx.add(BUDGET))
        assert other.settings_version() != before
        assert other.settings_version() == one.settings_version()


def test_it_is_unknown_while_the_file_is_locked(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "a.db", RECORDS)) as store:
        store._watchers.first_row = fails_with_busy  # type: ignore[method-assign]
        assert store.settings_version() is None


def fails_with_busy(_: str) -> Any:
    raise SqliteError("database is locked")


def test_a_setting_names_fields_that_are_there() -> None:
    declared = {record.cls: record.settings for record in RECORDS if record.settings}
    assert declared[Budget] == ("limit",)
    assert set(declared) >= {Model, Alias, Budget}


def test_the_file_is_read_again_after_a_notice_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        closing(SqliteStore(tmp_path / "a.db", RECORDS)) as one,
        closing(SqliteStore(tmp_path / "a.db", RECORDS)) as other,
    ):
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now)
        before = other.settings_version()
        reads: list[str] = []
        read = other._watchers.first_row
        monkeypatch.setattr(other._watchers, "first_row", lambda sql: reads.append(sql) or read(sql))
        one.transact(lambda tx: tx.add(UsageTotal("acme", "2026-01-01", "", "", "echo")))
        assert (other.settings_version(), len(reads)) == (before, 0)
        one.transact(lambda tx: tx.add(BUDGET))
        assert (other.settings_version() != before, len(reads)) == (True, 1)


def test_a_change_of_a_process_that_died_before_its_notice_is_seen_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        closing(SqliteStore(tmp_path / "a.db", RECORDS)) as one,
        closing(SqliteStore(tmp_path / "a.db", RECORDS)) as other,
    ):
        before, now = other.settings_version(), time.monotonic()
        monkeypatch.setattr(one._writer, "_post", lambda topics: None)
        one.transact(lambda tx: tx.add(BUDGET))
        monkeypatch.setattr(time, "monotonic", lambda: now + 1)
        assert other.settings_version() != before

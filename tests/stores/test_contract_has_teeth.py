"""Stores that are broken on purpose, each of which the contract and the machine must catch."""

from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from modelyard.domain.record import Record
from modelyard.parts.contracts import store_records
from modelyard.protocols import Store
from modelyard.stores.memory import MemoryStore, _MemoryTx
from modelyard.stores.memory_tables import Table
from modelyard.stores.sqlite import SqliteStore
from modelyard.stores.sqlite.rows import ColumnSelection
from modelyard.stores.sqlite.tx import SqliteTx
from modelyard.stores.sqlite.writer import Writer
from modelyard.testing import CONTRACT_RECORDS, RunTwiceStore, StoreContract, machine_over

pytestmark = pytest.mark.slow

FIND_ONLY = settings(
    max_examples=150, derandomize=True, deadline=None, database=None, phases=[Phase.generate], print_blob=False
)


def broken_laws(open_store: Callable[[], Store], only: str = "") -> set[str]:
    """The tests of the contract that fail on such a store."""
    contract = StoreContract()
    broken = set()
    for name in (name for name in dir(contract) if name.startswith("test_") and only in name):
        store = open_store()
        try:
            law = getattr(contract, name)
            law(store, *("thread" for name in signature(law).parameters if name != "store"))
        except pytest.skip.Exception:
            pass
        except (Exception, pytest.fail.Exception):
            broken.add(name)
        finally:
            store.close()
    return broken


def machine_finds_a_difference(open_store: Callable[[], Store]) -> bool:
    try:
        run_state_machine_as_test(machine_over(open_store), settings=FIND_ONLY)
    except Exception:
        return True
    return False


def memory() -> MemoryStore:
    return MemoryStore(CONTRACT_RECORDS)


class LeakyStore(RunTwiceStore):
    """Keeps what a step wrote before it raised: nothing was rolled back."""

    def __init__(self) -> None:
        super().__init__(memory())

    def transact(self, step, durable=True):
        def caught(tx):
            try:
                return step(tx), None
            except Exception as error:
                return None, error

        answer, error = self._store.transact(caught, durable)
        if error is not None:
            raise error
        return answer

    async def atransact(self, step, durable=True):
        return self.transact(step, durable)


class EarlyStore(RunTwiceStore):
    """Tells the outcome of a step before it commits; the commit comes with the next call that writes."""

    def __init__(self) -> None:
        super().__init__(memory())
        self.late = []

    def transact(self, step, durable=True):
        while self.late:
            self._store.transact(self.late.pop(0))
        outcome = []

        def tried(tx):
            outcome.append(step(tx))
            raise LookupError("undo")

        try:
            self._store.transact(tried)
        except LookupError:
            if not outcome:
                raise
        self.late.append(step)
        return outcome[0]

    async def atransact(self, step, durable=True):
        return self.transact(step, durable)


class DoublingStore(RunTwiceStore):
    """Repeats a step, as it may, but without undoing the first time."""

    def __init__(self) -> None:
        super().__init__(memory())

    def transact(self, step, durable=True):
        def twice(tx):
            step(tx)
            return step(tx)

        return self._store.transact(twice, durable)

    async def atransact(self, step, durable=True):
        return self.transact(step, durable)


class View:
    """What a query sees, all of it passed on."""

    def __init__(self, view: Any) -> None:
        self._view = view

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._view, verb)


class SkippingView(View):
    """Whose cursor skips the record after it."""

    def page(self, cls, index, *where, after=None, limit=100, descending=False):
        page = self._view.page(cls, index, *where, after=after, limit=limit, descending=descending)
        return page if after is None else page[1:]


class ForgetfulView(View):
    """Which selects from the beginning, whatever the cursor."""

    def select(self, cls, columns, index, *where, after=None, **window):
        return self._view.select(cls, columns, index, *where, **window)


class DisorderedView(View):
    """Which selects columns in the order in which they are declared."""

    def select(self, cls, columns, index, *where, **window):
        declared = [field.name for field in attrs.fields(cls) if field.name in columns]
        return self._view.select(cls, declared, index, *where, **window)


class Viewed(RunTwiceStore):
    """A sound store, seen through a broken view."""

    def __init__(self, view: type[View]) -> None:
        super().__init__(memory())
        self._view = view

    def read(self, query):
        return self._store.read(lambda snapshot: query(self._view(snapshot)))


def skipping() -> Viewed:
    return Viewed(SkippingView)


def forgetful() -> Viewed:
    return Viewed(ForgetfulView)


def disordered() -> Viewed:
    return Viewed(DisorderedView)


def test_a_sound_store_breaks_no_law() -> None:
    assert broken_laws(memory) == set()


@pytest.mark.parametrize(
    ("broken", "law"),
    [
        (LeakyStore, "test_a_step_that_raises_is_undone"),
        (LeakyStore, "test_a_step_that_raises_undoes_itself_alone"),
        (EarlyStore, "test_an_outcome_is_told_after_its_commit"),
        (DoublingStore, "test_steps_are_serial"),
        (skipping, "test_pages_are_sorted_and_cursors_visit_every_record_once"),
        (skipping, "test_a_cursor_outlives_its_record"),
        (forgetful, "test_select_gives_the_named_columns_of_the_same_page"),
        (disordered, "test_select_gives_the_named_columns_of_the_same_page"),
    ],
)
def test_the_contract_catches(broken: Callable[[], Store], law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is all there is to find: no smaller example is looked for."""
    monkeypatch.setattr(store_records, "_quick", settings(store_records._quick, phases=[Phase.generate]))
    assert broken_laws(broken, only=law) == {law}


@pytest.mark.parametrize("broken", [LeakyStore, EarlyStore, DoublingStore, skipping, forgetful, disordered])
def test_the_machine_catches(broken: Callable[[], Store]) -> None:
    assert machine_finds_a_difference(broken)


def share_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the memory store keep every record as it is given."""
    made = Table.__init__

    def make(table: Table, record: Record) -> None:
        made(table, record)
        table.shared = lambda record: record

    monkeypatch.setattr(Table, "__init__", make)


def test_a_store_that_shares_mutable_values_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    share_anything(monkeypatch)
    law = "test_nothing_inside_a_record_can_change"
    assert broken_laws(memory, only=law) == {law}


def test_a_store_that_keeps_anything_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    share_anything(monkeypatch)
    law = "test_what_cannot_be_kept_is_refused_and_changes_nothing"
    assert broken_laws(memory, only=law) == {law}


def test_a_store_that_enforces_no_unique_key_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Table, "refuse_taken", lambda self, record, key: None)
    laws = {"test_a_taken_unique_key_is_refused_when_adding", "test_a_taken_unique_key_is_refused_when_replacing"}
    assert broken_laws(memory, only="test_a_taken_unique_key") == laws
    assert machine_finds_a_difference(memory)


def test_a_store_that_keeps_those_before_a_refused_record_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_MemoryTx, "add_all", lambda self, records: [self.add(record) for record in records])
    law = "test_one_of_many_that_is_refused_keeps_out_the_others"
    assert broken_laws(memory, only=law) == {law}
    assert machine_finds_a_difference(memory)


def test_a_store_that_selects_what_its_columns_hold_is_caught(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And not what that stands for: a string for a time, a number for a bool."""
    monkeypatch.setattr(ColumnSelection, "values_of", lambda self, rows: rows)
    law = "test_every_value_comes_back_equal"
    assert broken_laws(lambda: SqliteStore(tmp_path / "yard.db", CONTRACT_RECORDS), only=law) == {law}


def test_a_group_commit_that_keeps_a_group_with_a_failed_step_is_caught(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sound = Writer._attempt

    def forgetting(self, call, tx):
        sound(self, call, tx)
        tx.dirty = tx.dirty and call.error is None

    monkeypatch.setattr(Writer, "_attempt", forgetting)
    law = "test_a_step_that_raises_undoes_itself_alone"
    assert broken_laws(lambda: SqliteStore(tmp_path / "yard.db", CONTRACT_RECORDS), only=law) == {law}


def answer_at_once(self: Any, step: Any, durable: bool, wait: bool = True) -> tuple[Any]:
    """Answer a lone caller with the transaction still open."""
    self._begin_transaction(durable, wait)
    return (step(SqliteTx(self._execute, self._plans, self._clock, self._recent)),)


@pytest.mark.parametrize("sabotage", [{"run_one": answer_at_once}, {"_commit": lambda self, wrote: 0.0}])
def test_a_group_commit_that_answers_before_it_commits_is_caught(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sabotage: dict[str, Any]
) -> None:
    """For a lone caller as for a group."""
    for name, unsound in sabotage.items():
        monkeypatch.setattr(Writer, name, unsound)
    law = "test_an_outcome_is_told_after_its_commit"
    store = SqliteStore(tmp_path / "yard.db", CONTRACT_RECORDS, patience=0.1)
    assert broken_laws(lambda: store, only=law) == {law}

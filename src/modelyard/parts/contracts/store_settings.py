"""The laws of a store about the version of the settings (`Record.settings`)."""

import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial

import attrs

from modelyard.parts.contracts.store_pairs import PairLaws
from modelyard.parts.contracts.store_values import Counter, Setting
from modelyard.protocols import Store, Tx

SETTING = Setting("s", 1)
_PATIENCE = 30.0
"""Seconds after which a change that another store does not notice is a broken law: it has one, and may stand still."""


class _Undone(Exception):
    """Ends a step that is to be undone."""


class SettingsLaws(PairLaws):
    """Laws of how a store is opened, as a part of `modelyard.parts.contracts.store.StoreContract`."""

    def test_each_commit_that_changes_a_setting_changes_the_version(self, store: Store) -> None:
        for step in (
            lambda tx: tx.add(SETTING),
            lambda tx: tx.replace(attrs.evolve(SETTING, value=2)),
            lambda tx: tx.remove(Setting, "s"),
            lambda tx: tx.add(SETTING),
        ):
            assert changes_version(store, step)

    def test_a_change_in_a_step_that_is_undone_hides_no_later_one(self, store: Store) -> None:
        with suppress(_Undone):
            store.transact(partial(_add_and_raise, SETTING))
        assert changes_version(store, lambda tx: tx.add(SETTING))

    def test_other_commits_leave_the_version(self, store: Store) -> None:
        store.transact(lambda tx: tx.add(SETTING))
        before = store.settings_version()
        store.transact(lambda tx: tx.replace(attrs.evolve(SETTING, note="x")))
        store.transact(lambda tx: tx.add(Counter("c")))
        assert before is None or store.settings_version() in (None, before)

    def test_a_change_by_another_store_changes_the_version_within_a_second(self, store: Store) -> None:
        open_store = self.another(store)
        if open_store is None:
            return
        with closing(open_store()) as other:
            other.transact(lambda tx: tx.add(Counter("c")))
            before = other.settings_version()
            store.transact(lambda tx: tx.add(SETTING))
            deadline = time.monotonic() + _PATIENCE
            while before is not None and other.settings_version() == before:
                assert time.monotonic() < deadline, "the other store never notices that a setting was changed"
                time.sleep(0.01)


def changes_version(store: Store, step: Callable[[Tx], object]) -> bool:
    before = store.settings_version()
    store.transact(step)
    after = store.settings_version()
    return after is None or after != before


def _add_and_raise(setting: Setting, tx: Tx) -> None:
    tx.add(setting)
    raise _Undone

"""The version of the settings comes with each commit, and is known for a second."""

from contextlib import closing

import attrs
import pytest

from modelyard.parts.contracts.store_values import Counter, Setting
from modelyard.parts.postgres import writer
from modelyard.parts.postgres.store import PostgresStore
from modelyard.testing import CONTRACT_RECORDS

SETTING = Setting("s")


def test_each_commit_brings_what_others_have_changed(yard_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SETTINGS_KNOWN", 3600.0)
    with (
        closing(PostgresStore(yard_address, CONTRACT_RECORDS)) as one,
        closing(PostgresStore(yard_address, CONTRACT_RECORDS)) as other,
    ):
        assert one.settings_version() is None
        other.transact(lambda tx: tx.add(Counter("c")))
        assert other.settings_version() == 0
        one.transact(lambda tx: tx.add(SETTING))
        assert (one.settings_version(), other.settings_version()) == (1, 0)
        other.transact(lambda tx: tx.replace(Counter("c", 1)))
        assert other.settings_version() == 1
        other.transact(lambda tx: tx.replace(attrs.evolve(SETTING, note="x")))
        assert other.settings_version() == 1


def test_it_is_not_known_for_long(yard_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SETTINGS_KNOWN", 0.0)
    with closing(PostgresStore(yard_address, CONTRACT_RECORDS)) as store:
        store.transact(lambda tx: tx.add(SETTING))
        assert store.settings_version() is None

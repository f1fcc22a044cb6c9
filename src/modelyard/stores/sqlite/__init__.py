"""Records in one SQLite file: readable tables, group commit, several processes."""

from modelyard.stores.sqlite.half_made import nothing_half_made
from modelyard.stores.sqlite.migrations import Migration
from modelyard.stores.sqlite.store import SqliteStore

__all__ = ["Migration", "SqliteStore", "nothing_half_made"]

"""Records in one SQLite file: readable tables, group commit, several processes."""

from modelyard.stores.sqlite.migrations import Migration
from modelyard.stores.sqlite.store import SqliteStore

__all__ = ["Migration", "SqliteStore"]

"""Records in one schema of a PostgreSQL database, which many machines may share."""

from typing import TYPE_CHECKING

from modelyard.lazy import lazy_exports

if TYPE_CHECKING:
    from modelyard.parts.postgres.store import PostgresStore, migrate

    __all__ = ["PostgresStore", "migrate"]
else:
    __getattr__, __dir__ = lazy_exports(__name__, {"parts.postgres.store": ("PostgresStore", "migrate")})

"""Names of parts in `modelyard.stores`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modelyard.parts.postgres.store import PostgresStore

HOMES = {
    "parts.postgres.store": ("PostgresStore",),
}

__all__: list[str] = [
    "PostgresStore",
]

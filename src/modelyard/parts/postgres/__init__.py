"""Records in one schema of a PostgreSQL database, which many machines may share."""

from modelyard.errors import MissingExtra

try:
    import psycopg  # noqa: F401 - an extra
except ImportError as error:
    raise MissingExtra("psycopg", "postgres") from error

from modelyard.parts.postgres.store import PostgresStore, migrate

__all__ = ["PostgresStore", "migrate"]

"""Records in one schema of a PostgreSQL database, which many machines may share."""

"""Let go of what is old: events, rows of the ledger, runs, and texts; and of an entity with all that it has."""

"""The changes that only files have: those from before the stores shared a list, and those of the layout."""

from collections.abc import Callable

import attrs

from modelyard.stores.sqlite.appearance import number_records
from modelyard.stores.sqlite.newest_fast import Database, keep_newest_of_ledger, sum_newest_of_ledger


@attrs.frozen
class Migration:
    """A named change that brings a file from the version before it to its own: `apply(database)`.

    It runs inside a transaction and must not begin, commit or roll back. It runs in every file, so it looks first
    whether the file has its tables. A declared table that a file never had is made afterwards.
    """

    name: str
    apply: Callable[[Database], None]

    @property
    def classes(self) -> frozenset[type]:
        """None: it is run whatever records are declared."""
        return frozenset()


def _rows_of_scores(database: Database) -> None:
    """Add the row and the trial of their prediction to scores, and an index in that order."""
    if not database["scores"].exists():
        return  # a store for other records
    scores = database.table("scores")
    scores.add_column("row_digest", str, not_null_default="")
    scores.add_column("trial", int, not_null_default=0)
    database.conn.execute(
        'UPDATE "scores" SET ("row_digest", "trial") = (p."row_digest", p."trial")'
        ' FROM "predictions" AS p WHERE p."id" = "scores"."prediction_id"'
    )
    scores.drop_index("scores_by_prediction")
    for table in ("predictions", "scores"):  # their index by project also serves an entity
        database.table(table).drop_index(f"{table}_by_entity")
    scores.create_index(["run_id", "row_digest", "trial", "prediction_id", "id"], "scores_by_row")


def _values_by_row(database: Database) -> None:
    """Extend the indexes by row by the columns that comparing two runs reads."""
    also = {
        "predictions": ["run_id", "row_digest", "trial", "id", "error"],
        "scores": ["run_id", "row_digest", "trial", "prediction_id", "id", "created_at", "scorer", "value", "error"],
    }
    for table, columns in also.items():
        if database[table].exists():
            database.table(table).drop_index(f"{table}_by_row")
            database.table(table).create_index(columns, f"{table}_by_row")


def _needs_of_jobs(database: Database) -> None:
    """Add what jobs need of their worker, and what workers decline."""
    if not database["jobs"].exists():
        return
    jobs = database.table("jobs")
    jobs.add_column("base_model", str, not_null_default="")
    database.conn.execute(
        'UPDATE "jobs" SET "base_model" = "models"."base_model" FROM "models" WHERE "models"."id" = "jobs"."lane"'
    )
    jobs.create_index(["place", "kind", "base_model", "created_at", "id"], "jobs_by_needs")
    database.table("workers").add_column("declines", str, not_null_default="[]")


def _owners_and_rates(database: Database) -> None:
    """Let admissions name the process that owns them, and keep rates in the store's time.

    No process of before is known by name, so what was reserved is released. Every rate begins with a full bucket: what
    was left of it was counted by the monotonic clock of one machine.
    """
    if not database["admissions"].exists():
        return  # a store for other records
    database.conn.execute('DELETE FROM "admissions"')
    database.conn.execute("""UPDATE "budgets" SET "reserved" = '0'""")
    database.table("admissions").add_column("owner", str, not_null_default="")
    database.table("rate_windows").drop(ignore=True)


def _losses_of_jobs(database: Database) -> None:
    """Add which process runs a job, and which of its losses are its own."""
    if not database["job_progress"].exists():
        return
    progress = database.table("job_progress")
    for name, kind, default in (
        ("process", str, ""),
        ("alone", int, 0),
        ("gain", str, "nothing"),
        ("suspect", int, 0),
        ("losses", int, 0),
        ("faults", int, 0),
    ):
        progress.add_column(name, kind, not_null_default=default)
    database.table("workers").add_column("process", str, not_null_default="")


def _loose_artifacts(database: Database) -> None:
    """Let running jobs name the artifacts that no other record names yet."""
    if database["job_progress"].exists():
        database.table("job_progress").add_column("loose", str, not_null_default="")


def _trained_tokens(database: Database) -> None:
    """Add the price of training, and the tokens that were trained on."""
    if not database["ledger"].exists():
        return
    database.table("catalogue_entries").add_column("price_training", str, not_null_default="0")
    for table in ("ledger", "usage_totals"):
        database.table(table).add_column("trained_tokens", int, not_null_default=0)


MIGRATIONS: tuple[Migration, ...] = (
    Migration("0002_rows_of_scores", _rows_of_scores),
    Migration("0003_values_by_row", _values_by_row),
    Migration("0004_needs_of_jobs", _needs_of_jobs),
    Migration("0005_owners_and_rates", _owners_and_rates),
    Migration("0006_losses_of_jobs", _losses_of_jobs),
    Migration("0007_loose_artifacts", _loose_artifacts),
    Migration("0008_order_of_appearance", number_records),
    Migration("0009_trained_tokens", _trained_tokens),
    Migration("0036_newest_of_the_ledger", keep_newest_of_ledger),
    Migration("0037_sums_of_the_newest", sum_newest_of_ledger),
)
"""They run between the changes of the core, by their numbers."""

"""The laws of what a part stores: it is erased, copied, backed up and kept with everything else."""

from contextlib import closing, suppress

from modelyard.compose import open_store
from modelyard.domain.schema import records_of
from modelyard.errors import StoreError
from modelyard.part import Part
from modelyard.parts.contracts.part_trial import (
    ONE,
    OTHER,
    PartHooks,
    PartTrial,
    Rows,
    as_entity,
    files_of,
)
from modelyard.parts.copying import copy_store
from modelyard.platform.platform import Platform
from modelyard.stores.history import BEFORE, part_of
from modelyard.stores.schema_changes import changes_of


class PartRecordLaws(PartHooks):
    """What a part stores goes where everything goes."""

    def test_every_class_belongs_to_an_entity_or_to_the_host(self, part: Part) -> None:
        for record in part.records():
            owned = "by_entity" in record.indexes or record.erased_with or record.cls in self.of_host
            assert owned, f"{record.cls.__name__} needs an index `by_entity`, or `erased_with`: nothing erases it"

    def test_fill_stores_a_record_of_every_class(self, trial: PartTrial) -> None:
        with trial.filled(self.fill) as (platform, _):
            empty = [table for table, rows in trial.rows(platform).items() if not rows]
        assert not empty, f"`fill` stores nothing in {empty}, so the laws say nothing of it"

    def test_erasing_an_entity_removes_all_of_it_and_nothing_of_another(self, trial: PartTrial) -> None:
        with trial.opened() as platform:
            self.fill(as_entity(platform, OTHER))
            before, files = self._owned(trial, platform), files_of(platform)
            self.fill(as_entity(platform, ONE))
            platform.delete_entity(ONE)
            after = self._owned(trial, platform)
            assert {table: [*rows] for table, rows in after.items()} == {t: [*rows] for t, rows in before.items()}
            assert after == before
            assert files_of(platform) == files, "an artifact is left, or one of another entity is gone"
            assert platform.remove_orphans().missing == ()

    def test_no_artifact_of_its_records_is_an_orphan(self, trial: PartTrial) -> None:
        with trial.filled(self.fill) as (platform, _):
            files = files_of(platform)
            report = platform.remove_orphans()
            assert report.removed == 0, "a file is named by no record: `Record.artifacts` names those of a record"
            assert report.missing == ()
            assert files_of(platform) == files

    def test_what_is_deleted_leaves_no_record_and_no_artifact(self, trial: PartTrial) -> None:
        with trial.opened() as platform:
            before, files = self._owned(trial, platform), files_of(platform)
            self.fill(as_entity(platform, ONE))
            self.clear(as_entity(platform, ONE))
            assert self._owned(trial, platform) == before
            assert files_of(platform) == files

    # ---- what outlives a platform ----

    def test_its_records_survive_a_copy(self, trial: PartTrial) -> None:
        with trial.opened(trial.folder / "yard.db") as platform:
            self.fill(as_entity(platform, ONE))
            rows = trial.rows(platform)
        parts = [*trial.others, trial.part]
        paths = [str(trial.folder / name) for name in ("yard.db", "copy.db")]
        with closing(open_store(paths[0], parts=parts)) as source, closing(open_store(paths[1], parts=parts)) as copy:
            copy_store(source, copy, records_of(parts), lambda _: None)
        with trial.opened(trial.folder / "copy.db") as platform:
            assert trial.rows(platform) == rows

    def test_its_records_and_artifacts_survive_a_backup(self, trial: PartTrial) -> None:
        with trial.opened(trial.folder / "yard.db") as platform:
            self.fill(as_entity(platform, ONE))
            rows, files = trial.rows(platform), files_of(platform)
            platform.backup(trial.folder / "backup.db")
        with trial.opened(trial.folder / "backup.db") as platform:
            assert trial.rows(platform) == rows
            assert files_of(platform) == files
            assert platform.remove_orphans().missing == ()

    def test_it_comes_to_a_file_that_was_made_without_it(self, trial: PartTrial) -> None:
        path = trial.folder / "yard.db"
        with trial.opened(path, without=True):
            pass
        with trial.opened(path) as platform:
            self.fill(as_entity(platform, ONE))

    def test_its_records_stay_while_a_platform_is_opened_without_it(self, trial: PartTrial) -> None:
        path = trial.folder / "yard.db"
        with trial.opened(path) as platform:
            self.fill(as_entity(platform, ONE))
            rows, files = trial.rows(platform), files_of(platform)
        with trial.opened(path, without=True) as platform:
            _use(platform)
        with trial.opened(path) as platform:
            assert trial.rows(platform) == rows
            assert files_of(platform) == files
            assert platform.remove_orphans().missing == ()

    def test_its_changes_have_its_name_and_name_its_classes(self, part: Part) -> None:
        changes, classes = part.changes(), {record.cls for record in part.records()}
        for change in changes:
            named = part_of(change.name) == part.name or change.name in BEFORE  # those from before there were parts
            assert named, f"name it {part.name}/{change.name}"
            assert change.classes <= classes
        assert len({change.name for change in changes}) == len(changes)
        assert {change.name for change in changes} <= {change.name for change in changes_of([part])}

    def _owned(self, trial: PartTrial, platform: Platform) -> Rows:
        """Return the records that belong to entities."""
        owned = {record.table for record in trial.part.records() if record.cls not in self.of_host}
        return {table: rows for table, rows in trial.rows(platform).items() if table in owned}


def _use(platform: Platform) -> None:
    """Do with a platform what hosts do: what needs the part may be refused, and nothing is lost."""
    for _ in platform.jobs.list():
        pass
    platform.worker().run_until_idle()
    with suppress(StoreError):
        platform.remove_orphans()

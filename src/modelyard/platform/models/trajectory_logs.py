"""Store trajectory groups that are logged to a model, with their means, and read them back."""

from collections.abc import Iterator

from modelyard.domain.identity import Principal, check_name
from modelyard.domain.models import Model, TrajectoryLog
from modelyard.domain.training import TrajectoryGroup
from modelyard.errors import NotFound
from modelyard.formats.training_data import group_rows, read_groups
from modelyard.platform.artifacts import remove_unless_recorded
from modelyard.platform.checkpoints.lookup import named_model
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.data import GroupData, Means, rows_of, store_rows, trajectory_reader
from modelyard.protocols import StoredArtifact, Tx


def store_log(
    runtime: Runtime, principal: Principal, model: Model, groups: GroupData | StoredArtifact, split: str
) -> TrajectoryLog:
    """Store trajectory groups of a split. The log owns an artifact that holds them, unless this raises."""
    means = Means()
    check_name(split, "split")
    if isinstance(groups, StoredArtifact):
        with runtime.artifacts.open(groups.name) as file:
            count = sum(1 for _ in means.over(read_groups(file)))
        return _add(runtime, principal, model, split, groups, count, means)
    rows = group_rows(trajectory_reader(runtime.parts))
    stored, count = store_rows(runtime.artifacts, rows, means.over(rows_of(rows, groups)))
    with remove_unless_recorded(runtime.artifacts, stored.name):
        return _add(runtime, principal, model, split, stored, count, means)


def read_log(runtime: Runtime, principal: Principal, log_id: str) -> Iterator[TrajectoryGroup]:
    log = runtime.store.read(lambda snapshot: get_or_none(snapshot, TrajectoryLog, log_id))
    if log is None or not principal.scope.covers(log.entity, log.project):
        raise NotFound("Log", log_id)
    with runtime.artifacts.open(log.artifact) as file:
        yield from read_groups(file)


def _add(
    runtime: Runtime, principal: Principal, model: Model, split: str, stored: StoredArtifact, groups: int, means: Means
) -> TrajectoryLog:
    of = runtime.ids(), model.id, model.entity, model.project, split, model.last_step, stored.name, groups
    log = TrajectoryLog(*of, means.trajectories, means.reward, means.metrics, runtime.clock.now())

    def step(tx: Tx) -> TrajectoryLog:
        named_model(tx, principal, model.id)
        tx.add(log)
        return log

    return runtime.store.transact(step)

"""The removal of checkpoints that no rule of their model's retention keeps, as functions of a transaction."""

from collections.abc import Sequence
from datetime import datetime

from modelyard.domain.job import Job, QueueState
from modelyard.domain.models import Checkpoint, Model, Retention
from modelyard.platform.catalogue.offered_models import offers_of
from modelyard.platform.checkpoints.aliases import steps_kept
from modelyard.platform.checkpoints.transactions import delete_checkpoint, in_use
from modelyard.platform.listing import BATCH
from modelyard.platform.paging import get_or_none, iter_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx


def enforce(tx: Tx, runtime: Runtime, model: Model, now: datetime) -> Sequence[Checkpoint]:
    """Remove what no rule of a model keeps and no job, alias or part needs, up to `BATCH` checkpoints. Returns them."""
    policy = get_or_none(tx, Retention, model.id)
    if policy is None:
        return ()
    gone = policy.expired(list(iter_index(tx, Checkpoint, "by_model", model.id)), now)
    if gone:
        used, steps = in_use(tx, model), _awaited(tx, model) | steps_kept(tx, model.id)
        steps |= {*(named.step for _, named in offers_of(tx, model)), *runtime.kept(tx, model)}
        gone = [one for one in gone if one.id not in used and one.step not in steps][:BATCH]
    for checkpoint in gone:
        delete_checkpoint(tx, runtime, checkpoint)
    return gone


def _awaited(snapshot: Snapshot, model: Model) -> set[int | None]:
    return {
        job.spec["config"].get("kl_penalty_reference_step")
        for place in set(QueueState) - {QueueState.DONE}
        for job in iter_index(snapshot, Job, "by_lane", model.id, place)
    }


def set_retention(tx: Tx, policy: Retention) -> Retention:
    (tx.add if get_or_none(tx, Retention, policy.model_id) is None else tx.replace)(policy)
    return policy

"""What users said of answers under rollouts, with the chance that a checkpoint had to give them."""

from collections.abc import Iterator, Mapping
from datetime import datetime

from modelyard.domain.identity import Principal
from modelyard.parts.rollouts.records import RolloutAnswer, RolloutScore, Side, StagedRollout
from modelyard.parts.traffic.selection import AnsweredBy
from modelyard.parts.what_if.estimates import LoggedAnswer
from modelyard.platform.paging import iter_index, iter_index_live
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot


def logged_answers(
    runtime: Runtime,
    principal: Principal,
    target: AnsweredBy,
    metric: str,
    since: datetime | None,
    until: datetime | None,
    predicted: Mapping[str, float],
) -> Iterator[LoggedAnswer]:
    """Yield the answers that users got under the rollouts of a model, as seen from one of its checkpoints. `predicted`
    is by the ids of answers. Users are digests, another one in each rollout."""
    if target.model is None or target.checkpoint is None:
        return
    step, model_id = target.checkpoint.step, target.model.id

    def query(snapshot: Snapshot) -> list[StagedRollout]:
        return [*iter_index(snapshot, StagedRollout, "by_model", model_id)]

    for rollout in runtime.store.read(query):
        early = until is not None and rollout.created_at >= until
        if early or not principal.scope.covers(rollout.entity, rollout.project):
            continue
        scores = {
            score.answer_id: score.value
            for score in iter_index_live(runtime, RolloutScore, "by_rollout", rollout.id)
            if score.metric == metric
        }
        for one in iter_index_live(runtime, RolloutAnswer, "by_rollout", rollout.id):
            within = (since is None or one.created_at >= since) and (until is None or one.created_at < until)
            if within and not one.shadow:
                chance = _chance(rollout, one, step)
                user = f"{rollout.id} {one.user}"
                yield LoggedAnswer(user, one.step == step, chance, scores.get(one.id), predicted.get(one.id))


def _chance(rollout: StagedRollout, answer: RolloutAnswer, step: int) -> float:
    """Return the chance that a step had to give an answer."""
    if answer.step == step:
        return answer.propensity
    other = rollout.step_of(Side.BASELINE if answer.side is Side.CANDIDATE else Side.CANDIDATE)
    return 1 - answer.propensity if other == step else 0.0

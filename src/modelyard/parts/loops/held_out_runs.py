"""The attempts of an agent at the held-out tasks, kept as an evaluation run of the checkpoint, so that it is compared
with others and gated as any run is."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.models import Model
from modelyard.parts.episodes.records import Episode, EpisodeGroup
from modelyard.parts.episodes.trajectories import turns_of
from modelyard.parts.interchange.given_runs import GivenAnswer, GivenRun, GivenScore, keep_run, scorer_ref
from modelyard.platform.evaluations.spec import evaluation_ref
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot

REWARD = "reward"


def keep_held_out(
    runtime: Runtime,
    evaluation: str,
    model: Model,
    step: int,
    group_id: str,
    tasks: Sequence[Mapping[str, Any]],
    episodes: Sequence[Episode],
) -> EvaluationRun:
    """Keep the run, under the id of the group: each attempt is a row with its task, its last answer and its reward.
    Kept again, it stays as it is. Raises as `keep_run`."""
    now, namespace = runtime.clock.now(), (model.entity, model.project)
    group, said = runtime.store.read(lambda snapshot: _read(snapshot, group_id, episodes))
    given = GivenRun(
        group_id,
        *namespace,
        str(evaluation_ref(evaluation, namespace)),
        model.ref_of(step),
        group.created_at,
        now,
        {REWARD: scorer_ref(namespace, REWARD)},
    )
    answers = (_answer(one, tasks[one.place % group.size], said[one.id], group.created_at) for one in episodes)
    return keep_run(runtime, given, answers, runtime.clock.monotonic())


def _read(snapshot: Snapshot, group_id: str, episodes: Sequence[Episode]) -> tuple[EpisodeGroup, Mapping[str, str]]:
    group = snapshot.get(EpisodeGroup, group_id)
    turns = {one.id: turns_of(snapshot, one, group) for one in episodes}
    return group, {name: found[-1].choice.message.text if found else "" for name, found in turns.items()}


def _answer(episode: Episode, task: Mapping[str, Any], said: str, began: datetime) -> GivenAnswer:
    score = {} if episode.reward is None else {REWARD: GivenScore(episode.reward)}
    return GivenAnswer(episode.id, task, said, began, error=episode.failure, scores=score)

"""What is stored of episodes: groups, the episodes of each, and the turns of each episode."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

import attrs

from modelyard.domain.frozen_fast import quick_init
from modelyard.domain.models import Model
from modelyard.domain.record import KEPT, Index, Record, frozen_mapping, sequence_field


class EpisodeState(StrEnum):
    """Where an episode is. One that has no reward at its group's deadline, or when that is trained, has failed."""

    OPEN = "open"
    REWARDED = "rewarded"
    FAILED = "failed"
    TRAINED = "trained"


@attrs.frozen
class EpisodeGroup:
    """Attempts at one task, which are compared with each other: advantages are measured within the group.

    `model` is the full name of the model that is trained, "entity/project/name". `budget` is what each episode may
    spend, in USD. A group is `closed_at` a time when its keys end; rewards are accepted until the `deadline`, and until
    it is trained. `job_id` is the job that trains it. From the `seed` those of calls are drawn that name none; None if
    these are random.
    """

    id: str
    entity: str
    project: str
    name: str
    model_id: str
    model: str
    size: int
    created_at: datetime
    deadline: datetime
    budget: Decimal | None = None
    closed_at: datetime | None = None
    job_id: str = ""
    seed: int | None = None
    seq: int = sequence_field()

    @property
    def held_out(self) -> bool:
        """Whether its attempts only measure a checkpoint, which its model names then: nobody trains on it."""
        return ":" in self.model.rpartition("/")[2]

    def ended(self, now: datetime) -> bool:
        """Return whether no more calls belong to it."""
        return self.closed_at is not None or now >= self.deadline


@attrs.frozen
class Episode:
    """One attempt: what a program does with the key `key_id`. `place` counts from 0 in its group. `failure` is why the
    attempt failed, as its owner says."""

    id: str
    group_id: str
    entity: str
    project: str
    place: int
    key_id: str
    created_at: datetime
    reward: float | None = None
    rewarded_at: datetime | None = None
    failure: str = ""
    seq: int = sequence_field()

    def state(self, group: EpisodeGroup, now: datetime) -> EpisodeState:
        """Return where the episode is."""
        if self.reward is not None:
            return EpisodeState.TRAINED if group.job_id else EpisodeState.REWARDED
        if self.failure or group.job_id or now >= group.deadline:
            return EpisodeState.FAILED
        return EpisodeState.OPEN

    def why_failed(self, group: EpisodeGroup) -> str:
        """Return why an episode without a reward has failed."""
        return self.failure or ("it had no reward when it was trained" if group.job_id else "no reward came in time")


@quick_init
@attrs.frozen(weakref_slot=False)
class EpisodeTurn:
    """One answer of a model within an episode; `id` is that of the completion, with the number of a later choice.

    `parent_id` is the turn whose prompt and answer begin this prompt, "" for none. `called` is the model as the program
    named it, `model_id`, `checkpoint_id` and `step` what answered; `route` the path that was called. `prompt` is the
    digest of the messages, `state` that of the messages and the answer, both in the form in which histories are
    compared; `exact` is that of the same as they are, and `offered` that of the tools. `length` counts the tokens of
    prompt and answer, and `tokens` is their digest.

    `body` has the messages that follow those of the parent, or all of them if `whole`; the token ids of the prompt that
    follow the parent's if the prompt `continues` its tokens, else all of them; the tools, unless they are the parent's;
    the answer, its token ids, their log-probabilities and their texts (`packed` writes numbers as short strings).
    """

    id: str
    episode_id: str
    group_id: str
    entity: str
    project: str
    parent_id: str
    called: str
    model_id: str
    checkpoint_id: str
    step: int | None
    route: str
    prompt: str
    state: str
    exact: str
    offered: str
    length: int
    tokens: str
    whole: bool
    continues: bool
    body: Mapping[str, Any] = attrs.field(converter=frozen_mapping, repr=False)
    prompt_tokens: int
    completion_tokens: int
    created_at: datetime
    seq: int = sequence_field()


RECORDS = (
    Record(
        EpisodeGroup,
        "episode_groups",
        ("id",),
        indexes={
            "all": Index(()),
            "by_entity": Index(("entity",)),
            "by_project": Index(("entity", "project")),
            "by_model": Index(("model_id",)),
        },
        sequence="seq",
        domain=("entity", "entity"),
        erased_with={Model: "by_model"},
    ),
    Record(
        Episode,
        "episodes",
        ("id",),
        unique={"by_key": ("key_id",)},
        indexes={"by_group": Index(("group_id",)), "by_entity": Index(("entity",))},
        sequence="seq",
        domain=("entity", "entity"),
        erased_with={EpisodeGroup: "by_group"},
        texts=KEPT,
    ),
    Record(
        EpisodeTurn,
        "episode_turns",
        ("id",),
        indexes={
            "by_episode": Index(("episode_id",)),
            "by_state": Index(("episode_id", "state")),
            "by_entity": Index(("entity",)),
            "by_age": Index((), ("created_at",)),
        },
        sequence="seq",
        domain=("entity", "entity"),
        erased_with={Episode: "by_episode"},
        texts="created_at",
    ),
)

"""What is stored of rollouts: how they stand, each answer with its arm and propensity, scores, and what was decided."""

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from hashlib import sha256
from typing import Any

import attrs

from modelyard.domain.models import Model
from modelyard.domain.record import EMPTY, Index, Record, frozen_mapping, sequence_field
from modelyard.parts.variants.records import Variant

UNIT = 1_000_000
"""What a value of 1 is in sums, which are whole numbers, so that their order does not matter."""

SHADOW_STAGE = -1
JUDGED_STAGE = -2
"""Where the scores of mirrored requests are, which a scorer gave to the answers of both arms."""

LIMITS = ("errors", "p95", "cost")
MAX_METRIC = 64
_NOTHING = Decimal(0)


class RolloutState(StrEnum):
    """Where a rollout is: its candidate is mirrored, has a part of the users, has all of them, or it has ended."""

    SHADOW = "shadow"
    CANARY = "canary"
    WATCH = "watch"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"
    STOPPED = "stopped"

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to it."""
        return self in (RolloutState.PROMOTED, RolloutState.ROLLED_BACK, RolloutState.STOPPED)


class RolledOut(StrEnum):
    """What has the steps of a rollout."""

    MODEL = "model"
    VARIANT = "variant"

    @property
    def word(self) -> str:
        """What a step is called."""
        return "step" if self is RolledOut.MODEL else "version"


class Side(StrEnum):
    """The arms: what the alias pointed to when the rollout began, and what is rolled out."""

    BASELINE = "baseline"
    CANDIDATE = "candidate"


class RolloutChange(StrEnum):
    """What a look came to."""

    STARTED = "started"
    LOOKED = "looked"
    ADVANCED = "advanced"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"
    STOPPED = "stopped"


@attrs.frozen
class StagedRollout:
    """How a step of a model, or a version of a variant, comes to the users of an alias. `kind` is which of them it is:
    of a variant, `model_id` and `model` are its id and name, and steps are the numbers of versions.

    `canary` are the shares of users that have the candidate, one after the other, the last of them 1; `stage` is the
    place of the one in force since `since`, and -1 while requests are only mirrored. Before that the share was the one
    before it. `metric` is better if it is greater, unless `lower_is_better`; the candidate may be worse by `margin`,
    and an advance needs `least` scores of each arm. `limits` are the most of "errors", "p95" and "cost" that the
    candidate may have. `shadow` has the `share` of answers that are mirrored, how many `answers` are wanted, the
    `purse` in USD, and how many seconds it `lasts` and the `scorer` of the answers, if these are said. `holds` is
    whether the rollout has pinned its candidate.
    """

    id: str
    entity: str
    project: str
    model_id: str
    model: str
    alias: str
    baseline: int
    step: int
    canary: tuple[float, ...]
    metric: str
    margin: float
    confidence: float
    lower_is_better: bool
    least: int
    state: RolloutState
    stage: int
    since: datetime
    by: str
    created_at: datetime
    limits: Mapping[str, float] = attrs.field(converter=frozen_mapping, default=EMPTY)
    shadow: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    holds: bool = False
    changes: int = 0
    ended_at: datetime | None = None
    reason: str = ""
    kind: RolledOut = RolledOut.MODEL
    seq: int = sequence_field()

    @property
    def word(self) -> str:
        """What a step is called."""
        return self.kind.word

    def __str__(self) -> str:
        what = f"{self.served}, {self.word} {self.baseline} to {self.step}: {self.state}"
        return f"{what}, {self.share:.0%} of the users have {self.word} {self.step}. {self.reason}".rstrip()

    @property
    def served(self) -> str:
        """The name that the users of the alias ask for."""
        if self.kind is RolledOut.MODEL:
            return f"{self.project}/{self.model}:{self.alias}"
        return f"variants/{self.project}/{self.model}@{self.alias}"

    @property
    def alpha(self) -> float:
        """The most that the chance is to promote what is worse by more than the margin."""
        return round(1 - self.confidence, 12)

    @property
    def purse(self) -> Decimal:
        """What mirrored requests may cost, in USD."""
        return Decimal(self.shadow.get("purse", "0"))

    @property
    def shadow_lasts(self) -> timedelta:
        """For how long requests are mirrored at least."""
        return timedelta(seconds=self.shadow.get("lasts", 0))

    @property
    def share(self) -> float:
        """The share of the users who have the new step now."""
        return float(self.state is RolloutState.PROMOTED) if self.state.ended else self.share_of(self.stage)

    def share_of(self, stage: int) -> float:
        """Return the share of users that have the candidate in a stage."""
        return self.canary[stage] if stage >= 0 else 0.0

    def stage_at(self, now: datetime) -> int:
        """Return the stage at a time: a change counts from `since`, when all processes know of it."""
        return self.stage if now >= self.since or self.stage < 0 else self.stage - 1

    def step_of(self, side: Side) -> int:
        """Return the step that is an arm."""
        return self.step if side is Side.CANDIDATE else self.baseline

    def served_as(self, side: Side) -> str:
        """Return the name under which an arm is served to everybody."""
        whose, step = f"{self.entity}/{self.project}/{self.model}", self.step_of(side)
        return f"{whose}:step{step}" if self.kind is RolledOut.MODEL else f"variants/{whose}@{step}"

    def user_digest(self, user: str) -> str:
        """Return what stands for a user in what is stored: a digest of their name and this rollout, in hex."""
        return sha256(f"{self.id}\0{user}".encode("utf-8", "backslashreplace")).hexdigest()[:32]


def place_of(digest: str) -> float:
    """Return the place of a user between 0 and 1. Who lies below the share has the candidate, in this stage and every
    later one."""
    return int(digest[:13], 16) / 16**13


@attrs.frozen
class RunningRollout:
    """The rollout that runs on an alias: at most one."""

    model_id: str
    alias: str
    entity: str
    project: str
    rollout_id: str


@attrs.frozen
class RolloutAnswer:
    """An answer under a rollout, by the id of its request, as in the ledger: its arm, and what the chance of that arm
    was. `shadow` is one that nobody got."""

    id: str
    rollout_id: str
    entity: str
    project: str
    stage: int
    side: Side
    propensity: float
    step: int
    user: str
    seconds: float
    cost: Decimal
    created_at: datetime
    shadow: bool = False
    seq: int = sequence_field()


@attrs.frozen
class RolloutScore:
    """What was said of an answer. `counted` is whether it is in the sequence: the first one of each user in a stage,
    of the metric that guards the rollout."""

    answer_id: str
    metric: str
    rollout_id: str
    entity: str
    project: str
    stage: int
    side: Side
    value: float
    counted: bool
    created_at: datetime


@attrs.frozen
class RolloutUser:
    """A user who counts in a stage already."""

    rollout_id: str
    stage: int
    user: str
    entity: str
    project: str


@attrs.frozen
class RolloutTally:
    """The sums of an arm in a stage. `total` is that of its `scores`, and `over` that of its costs, each as a part of
    what it is counted up to; both in millionths. `slow` answers took longer than the limit."""

    rollout_id: str
    stage: int
    side: Side
    entity: str
    project: str
    scores: int = 0
    total: int = 0
    answers: int = 0
    failed: int = 0
    slow: int = 0
    over: int = 0
    cost: Decimal = _NOTHING

    @property
    def mean(self) -> float | None:
        """The mean of the scores."""
        return self.total / UNIT / self.scores if self.scores else None


@attrs.frozen
class RolloutCursor:
    """Up to which answer, in the order of appearance, a rollout has counted, and what mirroring may have cost."""

    rollout_id: str
    entity: str
    project: str
    seen: int = 0
    spent: Decimal = _NOTHING


@attrs.frozen
class RolloutStep:
    """A look at a rollout that saw something new, and what it came to. `low` and `high` are the confidence sequence of
    the difference, candidate minus baseline, turned so that more is better."""

    rollout_id: str
    number: int
    entity: str
    project: str
    stage: int
    change: RolloutChange
    baseline_scores: int
    candidate_scores: int
    difference: float | None
    low: float
    high: float
    reason: str
    at: datetime

    @property
    def id(self) -> str:
        """The number as text, by which a listing continues."""
        return str(self.number)


def checked_score(value: object) -> float:
    """Return a score as a number from 0 to 1. Raises ValueError."""
    if not isinstance(value, bool | int | float) or not math.isfinite(value) or not 0 <= value <= 1:
        raise ValueError
    return round(float(value) * UNIT) / UNIT


_WITH_ITS_ROLLOUT: Mapping[type, str] = {StagedRollout: "by_rollout"}
_INDEXES = {"by_rollout": Index(("rollout_id",)), "by_entity": Index(("entity",))}
_BY_STAGE = {"by_rollout": Index(("rollout_id",), ("stage",)), "by_entity": Index(("entity",))}
_DOMAIN = ("entity", "entity")

RECORDS = (
    Record(
        StagedRollout,
        "rollouts",
        ("id",),
        indexes={
            "all": Index(()),
            "by_entity": Index(("entity",)),
            "by_project": Index(("entity", "project")),
            "by_model": Index(("model_id",)),
        },
        sequence="seq",
        settings=("stage", "state"),
        domain=_DOMAIN,
        erased_with={Model: "by_model", Variant: "by_model"},
    ),
    Record(
        RunningRollout,
        "running_rollouts",
        ("model_id", "alias"),
        indexes={"all": Index(()), **_INDEXES},
        settings=("rollout_id",),
        domain=_DOMAIN,
        erased_with=_WITH_ITS_ROLLOUT,
    ),
    Record(
        RolloutAnswer,
        "rollout_answers",
        ("id",),
        indexes=_INDEXES,
        sequence="seq",
        domain=_DOMAIN,
        erased_with=_WITH_ITS_ROLLOUT,
    ),
    Record(
        RolloutScore,
        "rollout_scores",
        ("answer_id", "metric"),
        indexes=_INDEXES,
        domain=_DOMAIN,
        erased_with=_WITH_ITS_ROLLOUT,
    ),
    Record(
        RolloutUser,
        "rollout_users",
        ("rollout_id", "stage", "user"),
        indexes=_BY_STAGE,
        domain=_DOMAIN,
        erased_with=_WITH_ITS_ROLLOUT,
    ),
    Record(
        RolloutTally,
        "rollout_tallies",
        ("rollout_id", "stage", "side"),
        indexes=_BY_STAGE,
        domain=_DOMAIN,
        erased_with=_WITH_ITS_ROLLOUT,
    ),
    Record(
        RolloutCursor,
        "rollout_cursors",
        ("rollout_id",),
        indexes={"by_rollout": Index(("rollout_id",), ("seen",)), "by_entity": Index(("entity",))},
        domain=_DOMAIN,
        erased_with=_WITH_ITS_ROLLOUT,
    ),
    Record(
        RolloutStep,
        "rollout_steps",
        ("rollout_id", "number"),
        indexes={"by_rollout": Index(("rollout_id",), ("number",)), "by_entity": Index(("entity",))},
        domain=_DOMAIN,
        erased_with=_WITH_ITS_ROLLOUT,
    ),
)

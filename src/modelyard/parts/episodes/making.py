"""Make groups and their episodes, as functions of a transaction."""

from datetime import timedelta
from decimal import Decimal, InvalidOperation

import attrs

from modelyard.domain.identity import ApiKey, Principal
from modelyard.domain.usage import Budget
from modelyard.errors import InvalidInput
from modelyard.parts.episodes.part import KEY_NAME
from modelyard.parts.episodes.records import Episode, EpisodeGroup
from modelyard.platform.keys.service import SECRET_BYTES, Keys, secret_digest, secret_of, secret_prefix
from modelyard.platform.runtime import Runtime
from modelyard.platform.usage.booking import budget_id
from modelyard.protocols import Tx

LONGEST = timedelta(days=30)
_MOST_BUDGET = Decimal(10**15)

KEY_PREFIX = "my_"


@attrs.frozen
class NewEpisode:
    """The ids of an episode and of its key, and the key."""

    id: str
    key_id: str
    secret: str = attrs.field(repr=False)

    @classmethod
    def drawn(cls, runtime: Runtime, prefix: str = KEY_PREFIX) -> "NewEpisode":
        """Draw one whose key begins with a checked prefix."""
        return cls(runtime.ids(), runtime.ids(), secret_of(runtime.randomness(SECRET_BYTES), prefix))


def add_episode(
    tx: Tx, runtime: Runtime, principal: Principal, group: EpisodeGroup, place: int, new: NewEpisode
) -> Episode:
    """Add an episode to a group, with its key, which ends with the group, and its budget. Raises `Forbidden`,
    `Unauthenticated`."""
    limits, now = principal.limits, runtime.clock.now()
    key = ApiKey(
        new.key_id,
        secret_prefix(new.secret),
        secret_digest(new.secret),
        KEY_NAME + new.id,
        group.entity,
        (group.project,),
        now,
        group.deadline,
        None,
        limits.requests_per_minute,
        limits.concurrent_requests,
    )
    Keys(runtime, principal)._add(tx, key)
    episode = Episode(new.id, group.id, group.entity, group.project, place, new.key_id, now)
    tx.add(episode)
    if group.budget is not None:
        tx.add(Budget(budget_id(group.entity, new.key_id), group.entity, group.budget))
    return episode


def check_deadline(deadline: timedelta) -> None:
    """Raise `InvalidInput` unless the deadline is a time of at most 30 days."""
    if not (isinstance(deadline, timedelta) and timedelta(0) < deadline <= LONGEST):
        raise InvalidInput.at("deadline", msg="must be more than no time, and 30 days at most, as a timedelta")


def budget_amount(budget: Decimal | int | str) -> Decimal:
    """Return what an episode may spend, in USD. Raises `InvalidInput`."""
    try:
        amount = Decimal(budget)
    except (InvalidOperation, ValueError, TypeError):
        amount = Decimal(-1)
    if not (amount.is_finite() and 0 <= amount <= _MOST_BUDGET):
        raise InvalidInput.at("budget", msg="must be an amount in USD, such as '0.50'")
    return amount

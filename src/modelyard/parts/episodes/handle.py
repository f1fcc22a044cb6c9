"""A group and its episodes, as who made them has them."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Self

import attrs

from modelyard.domain.identity import Principal
from modelyard.domain.training import TrajectoryGroup
from modelyard.errors import InvalidInput
from modelyard.parts.episodes.records import Episode, EpisodeGroup, EpisodeState
from modelyard.parts.episodes.rewards import (
    as_it_is,
    checked_failure,
    checked_reward,
    close_group,
    found_episode,
    found_group,
    require_owner,
    set_reward,
)
from modelyard.parts.episodes.trajectories import episodes_of, trajectory_group, turns_of
from modelyard.parts.episodes.tree import TreeTurn
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

ROOT_URL = "http://modelyard.invalid"
"""The address in process: `intercept(platform, hosts=["modelyard.invalid"])` answers there."""


@attrs.frozen(eq=False)
class EpisodeHandle:
    """One attempt of a program.

    Give the program `base_url` and `key`, or, for a command line, `environment`; and give what it did a reward. Only
    who made the group has the `key`: "" for a handle that was found again.
    """

    id: str
    place: int
    model: str
    root_url: str
    key: str = attrs.field(repr=False)
    _runtime: Runtime = attrs.field(repr=False)
    _principal: Principal = attrs.field(repr=False)

    @property
    def base_url(self) -> str:
        """The address of chat completions and responses, for a client of OpenAI's. Anthropic's takes `root_url`."""
        return f"{self.root_url}/inference/v1"

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables by which the usual clients find the address and the key, for `subprocess.run(env=...)`."""
        return client_variables(self.root_url, self.key)

    def reward(self, value: float) -> None:
        """Say how good the attempt was; true and false are 1 and 0. The last reward before the group is trained counts.
        Raises `InvalidInput`, `Conflict` once it is trained, and for a first reward after the deadline."""
        self._set(checked_reward(value), "")

    def fail(self, reason: str) -> None:
        """Say that the attempt failed, so that it has no reward. A later reward replaces that. Raises as `reward`."""
        self._set(None, checked_failure(reason))

    def refresh(self) -> Episode:
        """Return the episode as it is stored. Raises `NotFound`."""
        return self._runtime.store.read(lambda snapshot: found_episode(snapshot, self._principal, self.id))

    @property
    def state(self) -> EpisodeState:
        """Where the episode is now."""
        now = self._runtime.clock.now()

        def query(snapshot: Snapshot) -> EpisodeState:
            episode = found_episode(snapshot, self._principal, self.id)
            return episode.state(as_it_is(snapshot, snapshot.get(EpisodeGroup, episode.group_id)), now)

        return self._runtime.store.read(query)

    def turns(self) -> list[TreeTurn]:
        """Return the tree of turns, in the order in which they were booked. Raises `NotFound`."""

        def query(snapshot: Snapshot) -> list[TreeTurn]:
            episode = found_episode(snapshot, self._principal, self.id)
            return turns_of(snapshot, episode, snapshot.get(EpisodeGroup, episode.group_id))

        return self._runtime.store.read(query)

    def _set(self, reward: float | None, failure: str) -> None:
        now = self._runtime.clock.now()

        def step(tx: Tx) -> None:
            set_reward(tx, found_episode(tx, self._principal, self.id), reward, failure, now)

        self._runtime.store.transact(step)


class EpisodeGroupHandle:
    """A group of episodes: iterate over them, and pass the group to `platform.training.rl`.

    At the end of a `with` block it is closed: its keys end. Rewards may still come.
    """

    is_episode_group: bool = True

    def __init__(
        self, runtime: Runtime, principal: Principal, group: EpisodeGroup, episodes: tuple[EpisodeHandle, ...]
    ) -> None:
        self.id: str = group.id
        self.name: str = group.name
        self.model: str = group.model
        self.deadline: datetime = group.deadline
        self.episodes: tuple[EpisodeHandle, ...] = episodes
        self._runtime, self._principal = runtime, principal

    def __repr__(self) -> str:
        return f"<EpisodeGroupHandle {self.name} {self.id}>"

    def __iter__(self) -> Iterator[EpisodeHandle]:
        return iter(self.episodes)

    def __len__(self) -> int:
        return len(self.episodes)

    def __getitem__(self, place: int) -> EpisodeHandle:
        return self.episodes[place]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def refresh(self) -> EpisodeGroup:
        """Return the group as it is now; `job_id` is the job that trains it. Raises `NotFound`."""
        return self._runtime.store.read(
            lambda snapshot: as_it_is(snapshot, found_group(snapshot, self._principal, self.id))
        )

    def close(self) -> EpisodeGroup:
        """End the keys of the group. Rewards may still come until the deadline. Idempotent. Raises `NotFound`."""
        now = self._runtime.clock.now()

        def step(tx: Tx) -> EpisodeGroup:
            require_owner(tx, self._principal)
            return close_group(tx, found_group(tx, self._principal, self.id), now)

        return self._runtime.store.transact(step)

    def trajectories(self) -> TrajectoryGroup:
        """Return the group as a training job gets it. Raises `NotFound`."""
        now = self._runtime.clock.now()
        return self._runtime.store.read(
            lambda snapshot: trajectory_group(snapshot, found_group(snapshot, self._principal, self.id), now)
        )


def handles_of(
    runtime: Runtime, principal: Principal, group: EpisodeGroup, root_url: str, snapshot: Snapshot
) -> EpisodeGroupHandle:
    """Return the handle of a stored group, whose keys nobody knows any more."""
    episodes = tuple(
        EpisodeHandle(one.id, one.place, group.model, root_url, "", runtime, principal)
        for one in episodes_of(snapshot, group.id)
    )
    return EpisodeGroupHandle(runtime, principal, group, episodes)


def client_variables(root_url: str, key: str) -> Mapping[str, str]:
    """Return the variables of the usual clients for the address of a server and a key of it."""
    base_url = f"{root_url}/inference/v1"
    return {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_BASE": base_url,
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": root_url,
        "ANTHROPIC_API_KEY": key,
    }


def checked_root(url: str) -> str:
    """Return the address of a server without a slash at its end. Raises `InvalidInput`."""
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise InvalidInput.at("url", msg='must be the address of the server, such as "http://127.0.0.1:8000"')
    return url.rstrip("/").removesuffix("/v1").removesuffix("/inference")

"""`platform.episodes`: groups of episodes are made, listed, shown and deleted."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from modelyard.domain.identity import Principal, check_name
from modelyard.domain.models import Model
from modelyard.domain.record import Order
from modelyard.errors import Conflict, InvalidInput
from modelyard.parts.episodes.environments import harbor_tasks, inspect_tasks, openenv_tasks, verifiers_tasks
from modelyard.parts.episodes.handle import ROOT_URL, EpisodeGroupHandle, EpisodeHandle, checked_root, handles_of
from modelyard.parts.episodes.making import KEY_PREFIX, NewEpisode, add_episode, budget_amount, check_deadline
from modelyard.parts.episodes.records import Episode, EpisodeGroup
from modelyard.parts.episodes.rewards import (
    as_it_is,
    close_group,
    found_episode,
    found_group,
    require_owner,
    training_job,
)
from modelyard.parts.episodes.trajectories import episodes_of
from modelyard.platform.checkpoints.lookup import named_model
from modelyard.platform.keys.service import check_prefix
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.owned import remove_owned
from modelyard.platform.paging import cursor_at, index_listing, listed_entity, listed_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

MAX_SIZE = 1000
DEADLINE = timedelta(hours=1)


class Episodes:
    """The episodes that a principal may see.

    with platform.episodes.group("refunds", model="desk/support", size=8) as group:
        for episode in group:
            run_agent(base_url=episode.base_url, api_key=episode.key, task=task)
            episode.reward(score(task))
    job = platform.training.rl("desk/support", [group])
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def group(
        self,
        name: str,
        *,
        model: Model | str,
        size: int,
        deadline: timedelta = DEADLINE,
        budget: Decimal | int | str | None = None,
        url: str = ROOT_URL,
        prefix: str = KEY_PREFIX,
        seed: int | None = None,
    ) -> EpisodeGroupHandle:
        """Make a group of `size` episodes that train `model`, each with a key of its own.

        The keys end when the group is closed or trained, and at the `deadline`: an episode that has no reward then has
        failed. `budget` is what each episode may spend, in USD. `url` is the address at which programs reach this
        platform, "http://127.0.0.1:8000" for a server there; by default one that is answered in process by
        `intercept(platform, hosts=["modelyard.invalid"])`. `prefix` is how the keys begin, "tml-" for Tinker's client.
        With a `seed`, from 0 to 2^63 - 1, calls that name none get one where the model takes seeds: the same in any
        group of this seed, for the same place and history, and for the first, second, ... call with that history.

        A key asks for any model as usual. A name that no model has, such as the one that a program asks for by default,
        means the model that is trained. Raises `InvalidInput`, `NotFound`, `Forbidden`.
        """
        name, root = check_name(name, "name"), checked_root(url)
        if type(size) is not int or not 1 <= size <= MAX_SIZE:
            raise InvalidInput.at("size", msg=f"must be a whole number from 1 to {MAX_SIZE}")
        check_deadline(deadline)
        limit, now = None if budget is None else budget_amount(budget), self._runtime.clock.now()
        check_prefix(prefix)
        if seed is not None and not (type(seed) is int and 0 <= seed < 2**63):
            raise InvalidInput.at("seed", msg="must be a whole number from 0 to 2^63 - 1")
        made = [NewEpisode.drawn(self._runtime, prefix) for _ in range(size)]
        group_id = self._runtime.ids()

        def step(tx: Tx) -> EpisodeGroup:
            require_owner(tx, self._principal)
            trained = named_model(tx, self._principal, model)
            full = f"{trained.entity}/{trained.project}/{trained.name}"
            group = EpisodeGroup(
                group_id,
                trained.entity,
                trained.project,
                name,
                trained.id,
                full,
                size,
                now,
                now + deadline,
                limit,
                seed=seed,
            )
            tx.add(group)
            for place, new in enumerate(made):
                add_episode(tx, self._runtime, self._principal, group, place, new)
            return group

        group = self._runtime.store.transact(step)
        episodes = tuple(
            EpisodeHandle(new.id, place, group.model, root, new.secret, self._runtime, self._principal)
            for place, new in enumerate(made)
        )
        return EpisodeGroupHandle(self._runtime, self._principal, group, episodes)

    def inspect(self, task: Callable[..., Any], *, scorer: str | None = None, **arguments: Any) -> Mapping[str, Any]:
        """Return the `tasks` and the `agent` of a task of Inspect, for `training.loop(model, **these)`.

        `task` is a function with its decorator `@task`, called with `arguments`, which are JSON. Each sample is a task,
        and its solver is the agent; the reward is its score, of the `scorer` of this name if it has several. Each
        attempt evaluates one sample once, in a process of its own, with the trained model in the place of the task's.
        Raises `InvalidInput`, `MissingExtra`.
        """
        return inspect_tasks.environment_of(task, scorer, arguments)

    def verifiers(
        self, environment: str | Mapping[str, Any], *, select: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        """Return the `tasks` and the `agent` of an environment of verifiers, for `training.loop(model, **these)`.

        `environment` is the id of a taskset that is installed, or what verifiers takes under `[env]`, as JSON; `select`
        chooses tasks, as its `SelectConfig` does. Its harness is the agent, and the sum of its rewards the reward. Each
        attempt is one of its episodes, in a process of its own. Raises `InvalidInput`, `MissingExtra`.
        """
        return verifiers_tasks.environment_of(environment, select or {})

    def openenv(
        self,
        url: str,
        *,
        resets: Sequence[Mapping[str, Any]],
        action: str | None = None,
        observation: str | None = None,
        turns: int = 10,
        **options: Any,
    ) -> Mapping[str, Any]:
        """Return the `tasks` and the `agent` of an OpenEnv environment, for `training.loop(model, **these)`.

        `url` is the address of its server, and each of `resets` a task: what it is reset with. The model reads the
        field `observation`, or else all of it as JSON, and its answer is the field `action`, by default the only text
        that an action has; of an environment with MCP tools it calls these. After `turns` answers, or when the
        environment is done, the reward is the sum of those of the steps. `options` are those of each chat, such as
        `max_tokens`. Raises `InvalidInput`, `MissingExtra`.
        """
        return openenv_tasks.environment_of(url, resets, action, observation, turns, options)

    def harbor(
        self,
        folder: str | Path,
        *,
        agent: Mapping[str, Any],
        environment: Mapping[str, Any] | None = None,
        reward: str | None = None,
    ) -> Mapping[str, Any]:
        """Return the `tasks` and the `agent` of task folders of Harbor, for `training.loop(model, **these)`.

        `folder` is a task, or has one in each of its folders; `agent` and `environment` are what Harbor takes for a
        trial, as JSON: Docker by default. An attempt is a trial, in a process of its own, and what its verifier says is
        the reward, of this name if it says several. Raises `InvalidInput`, `MissingExtra`.
        """
        return harbor_tasks.environment_of(folder, agent, environment or {}, reward)

    # ---- reading

    def get(self, group_id: str, *, url: str = ROOT_URL) -> EpisodeGroupHandle:
        """Return a group that was made before, without the keys. Raises `NotFound`."""
        root = checked_root(url)

        def query(snapshot: Snapshot) -> EpisodeGroupHandle:
            group = found_group(snapshot, self._principal, group_id)
            return handles_of(self._runtime, self._principal, group, root, snapshot)

        return self._runtime.store.read(query)

    def episode(self, episode_id: str, *, url: str = ROOT_URL) -> EpisodeHandle:
        """Return an episode, without its key. Raises `NotFound`."""
        root = checked_root(url)

        def query(snapshot: Snapshot) -> EpisodeHandle:
            found = found_episode(snapshot, self._principal, episode_id)
            model = snapshot.get(EpisodeGroup, found.group_id).model
            return EpisodeHandle(found.id, found.place, model, root, "", self._runtime, self._principal)

        return self._runtime.store.read(query)

    def list(
        self,
        *,
        model: Model | str | None = None,
        project: str | None = None,
        entity: str | None = None,
        order: Order = "asc",
    ) -> Listing[EpisodeGroup]:
        """List the groups in the order in which they were made: all that the caller may see, or those of an entity, a
        project or a model. Raises `Forbidden`, `NotFound`."""
        entity = listed_entity(self._principal, entity, project)
        index, *where = listed_index(entity, None)
        wanted = None if model is None else self._model(model).id

        def keep(group: EpisodeGroup) -> bool:
            seen = self._principal.scope.covers(group.entity, group.project)
            return seen and project in (None, group.project) and wanted in (None, group.model_id)

        def now(snapshot: Snapshot, found: Sequence[EpisodeGroup]) -> Sequence[EpisodeGroup]:
            return [as_it_is(snapshot, group) for group in found]

        place = partial(self._place, index)
        return index_listing(self._runtime, EpisodeGroup, index, *where, place=place, order=order, keep=keep, shown=now)

    def episodes(self, group_id: str) -> Sequence[Episode]:
        """Return the episodes of a group, in their places. Raises `NotFound`."""

        def query(snapshot: Snapshot) -> Sequence[Episode]:
            return episodes_of(snapshot, found_group(snapshot, self._principal, group_id).id)

        return self._runtime.store.read(query)

    def delete(self, group_id: str) -> None:
        """Delete a group, its episodes and their turns; their usage stays recorded, and a job that trains them goes on
        with its copy. Raises `NotFound`, `Conflict` while its job has not ended."""
        now, records = self._runtime.clock.now(), self._runtime.records

        def step(tx: Tx) -> None:
            require_owner(tx, self._principal)
            group = found_group(tx, self._principal, group_id)
            job = training_job(tx, group)
            if job is not None and not job.ended:
                raise Conflict(f"job {job.id} trains this group; wait for it, or cancel it")
            close_group(tx, group, now)
            remove_owned(tx, records, group)
            tx.remove(EpisodeGroup, group.id)

        self._runtime.store.transact(step)

    def _model(self, model: Model | str) -> Model:
        return self._runtime.store.read(lambda snapshot: named_model(snapshot, self._principal, model))

    def _place(self, index: str, group_id: str, snapshot: Snapshot) -> Cursor:
        return cursor_at(EpisodeGroup, index, found_group(snapshot, self._principal, group_id))

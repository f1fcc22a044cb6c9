"""Episodes over HTTP: a group is made, its episodes are rewarded and shown, and it is trained."""

from datetime import datetime, timedelta
from functools import partial
from typing import Any

import attrs

from modelyard.errors import InvalidInput
from modelyard.formats.chat.messages import message_object
from modelyard.formats.constraints import Length
from modelyard.formats.converter import structure
from modelyard.http.interface import Auth
from modelyard.http.interfaces import TRAINING
from modelyard.http.listing import NAMESPACE, PAGING, page_class, requested_page
from modelyard.http.message import Response, answering, json_response, problems_at
from modelyard.http.route import Body, Parameter, Route, RouteCall, documented_route
from modelyard.parts.episodes.handle import EpisodeGroupHandle
from modelyard.parts.episodes.making import KEY_PREFIX
from modelyard.parts.episodes.records import Episode, EpisodeState
from modelyard.parts.episodes.tree import TreeTurn, sequences_of

GROUPS = "/v1/episode-groups"
GROUP = f"{GROUPS}/{{group_id}}"
EPISODE = "/v1/episodes/{episode_id}"

_MODEL = Parameter("model", description="Only groups that train this model.")


@attrs.frozen
class NewEpisodeGroup:
    """The body that makes a group. `deadline` is in seconds from now, `budget` in USD for each episode, `prefix` how
    the keys begin, and from the `seed` those of calls are drawn that name none."""

    name: str
    model: str
    size: int
    deadline: float = 3600.0
    budget: str | None = None
    prefix: str = KEY_PREFIX
    seed: int | None = None


@attrs.frozen
class GivenReward:
    """The body that rewards an episode, or says why it failed."""

    reward: float | bool | None = None
    failure: str | None = attrs.field(default=None, validator=Length(1, 1000))


@attrs.frozen
class EpisodeGroupObject:
    """A group. `job_id` is the job that trains it, "" for none. From the `seed` those of calls are drawn that name
    none."""

    id: str
    entity: str
    project: str
    name: str
    model: str
    size: int
    created_at: datetime
    deadline: datetime
    budget: str | None
    closed_at: datetime | None
    job_id: str
    seed: int | None


@attrs.frozen
class EpisodeObject:
    """An episode. `key` is there once, in the answer that makes the group."""

    id: str
    group_id: str
    place: int
    state: EpisodeState
    reward: float | None
    rewarded_at: datetime | None
    failure: str
    key: str | None = None


@attrs.frozen
class EpisodeGroupDetails:
    """A group and its episodes."""

    group: EpisodeGroupObject
    episodes: tuple[EpisodeObject, ...]


@attrs.frozen
class EpisodeTurnObject:
    """A turn of an episode: what was added since the one that it follows, and what was sampled. `why` says why it
    begins a branch, `untrained` why it is not trained, `sequence` in which sequence it is, from 0."""

    id: str
    parent: str | None
    model: str
    step: int | None
    why: str
    untrained: str
    sequence: int | None
    messages: tuple[dict[str, Any], ...]
    answer: dict[str, Any]
    prompt_tokens: int
    injected_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    created_at: datetime


@attrs.frozen
class EpisodeDetails:
    """An episode and its turns, in the order in which they were booked."""

    episode: EpisodeObject
    turns: tuple[EpisodeTurnObject, ...]


group_object = answering(EpisodeGroupObject, budget=lambda group: None if group.budget is None else str(group.budget))
EpisodeGroupPage = page_class("EpisodeGroupPage", EpisodeGroupObject, group_object, "A page of groups of episodes.")


def episode_object(episode: Episode, state: EpisodeState, key: str = "") -> EpisodeObject:
    return EpisodeObject(
        episode.id,
        episode.group_id,
        episode.place,
        state,
        episode.reward,
        episode.rewarded_at,
        episode.failure,
        key or None,
    )


def turn_objects(turns: list[TreeTurn]) -> tuple[EpisodeTurnObject, ...]:
    places = {one.id: place for place, sequence in enumerate(sequences_of(turns)) for one in sequence}
    return tuple(
        EpisodeTurnObject(
            one.id,
            None if one.parent is None else one.parent.id,
            one.turn.called,
            one.turn.step,
            one.why,
            one.untrained,
            places.get(one.id),
            tuple(map(message_object, one.added)),
            message_object(one.choice.message),
            len(one.prompt_ids),
            one.injected,
            one.ids,
            None if one.logprobs is None else tuple(entry.logprob for entry in one.logprobs),
            one.turn.created_at,
        )
        for one in turns
    )


def create_episode_group(call: RouteCall) -> Response:
    """Make a group of episodes, each with a key of its own, which is shown once."""
    body = structure(NewEpisodeGroup, call.body, "body")
    with problems_at("body"):
        if not 0 < body.deadline <= 10**9:
            raise InvalidInput.at("deadline", msg="must be more than 0 seconds, and 30 days at most")
        group = call.platform.episodes.group(
            body.name,
            model=body.model,
            size=body.size,
            deadline=timedelta(seconds=body.deadline),
            budget=body.budget,
            prefix=body.prefix,
            seed=body.seed,
        )
    return json_response(_details(call, group))


def list_episode_groups(call: RouteCall) -> Response:
    """List the groups of episodes."""
    with problems_at("query"):
        page = requested_page(
            call,
            lambda order: call.platform.episodes.list(
                model=call.one("model"), project=call.one("project"), entity=call.one("entity"), order=order
            ),
        )
    return json_response(EpisodeGroupPage.of(page))


def show_episode_group(call: RouteCall) -> Response:
    """Show a group and its episodes."""
    return json_response(_details(call, call.platform.episodes.get(call.params["group_id"])))


def close_episode_group(call: RouteCall) -> Response:
    """Close a group: its keys end, and rewards may still come. Idempotent."""
    group = call.platform.episodes.get(call.params["group_id"])
    group.close()
    return json_response(_details(call, group))


def delete_episode_group(call: RouteCall) -> Response:
    """Delete a group, its episodes and their turns."""
    group = call.platform.episodes.get(call.params["group_id"]).refresh()
    call.platform.episodes.delete(group.id)
    return json_response(group_object(group))


def show_episode(call: RouteCall) -> Response:
    """Show an episode and the tree of its turns."""
    episode = call.platform.episodes.episode(call.params["episode_id"])
    shown = episode_object(episode.refresh(), episode.state)
    return json_response(EpisodeDetails(shown, turn_objects(episode.turns())))


def reward_episode(call: RouteCall) -> Response:
    """Reward an episode, or say why it failed; the last one before it is trained counts. Its own key may do this."""
    body = structure(GivenReward, call.body, "body")
    episode = call.platform.episodes.episode(call.params["episode_id"])
    with problems_at("body"):
        if (body.reward is None) == (body.failure is None):
            raise InvalidInput.at("reward", msg="give a reward or a failure, and not both")
        if body.reward is None:
            episode.fail(body.failure or "")
        else:
            episode.reward(body.reward)
    return json_response(episode_object(episode.refresh(), episode.state))


def _details(call: RouteCall, group: EpisodeGroupHandle) -> EpisodeGroupDetails:
    stored, now = group.refresh(), call.platform.clock.now()
    keys = {one.id: one.key for one in group.episodes}
    episodes = call.platform.episodes.episodes(group.id)
    shown = [episode_object(one, one.state(stored, now), keys[one.id]) for one in episodes]
    return EpisodeGroupDetails(group_object(stored), tuple(shown))


_route = partial(documented_route, TRAINING, Auth.BEARER)

ROUTES: tuple[Route, ...] = (
    _route(
        "POST",
        GROUPS,
        create_episode_group,
        body=Body.CONTROL,
        request=NewEpisodeGroup,
        response=EpisodeGroupDetails,
    ),
    _route("GET", GROUPS, list_episode_groups, query=(_MODEL, *NAMESPACE, *PAGING), response=EpisodeGroupPage),
    _route("GET", GROUP, show_episode_group, response=EpisodeGroupDetails),
    _route("POST", f"{GROUP}/close", close_episode_group, response=EpisodeGroupDetails),
    _route("DELETE", GROUP, delete_episode_group, response=EpisodeGroupObject),
    _route("GET", EPISODE, show_episode, response=EpisodeDetails),
    _route("POST", f"{EPISODE}/reward", reward_episode, body=Body.CONTROL, request=GivenReward, response=EpisodeObject),
)

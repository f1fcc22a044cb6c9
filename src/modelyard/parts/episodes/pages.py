"""The pages of episodes: groups, one group with its rewards and advantages, and one episode as a tree of turns."""

from itertools import islice

from modelyard.domain.models import Model
from modelyard.parts.dashboard.view import LONGEST_MESSAGE, HtmlPage, View, begun, empty, name_text, short_id, when
from modelyard.parts.episodes.handle import EpisodeGroupHandle, EpisodeHandle
from modelyard.parts.episodes.health import GroupHealth, health_of
from modelyard.parts.episodes.records import Episode, EpisodeGroup, EpisodeState
from modelyard.parts.episodes.service import Episodes
from modelyard.parts.episodes.tree import TreeTurn, sequences_of
from modelyard.parts.reports.html import Html, chip, facts, joined, section, table, tag
from modelyard.report.numbers import count_text
from modelyard.trainers.credits import group_advantages

SHOWN = 100
DEEPEST = 12
"""How deep turns are indented."""

SHOWN_TOKENS = 400
"""How many sampled tokens of a turn a page shows."""

_KINDS = {EpisodeState.FAILED: "worse", EpisodeState.TRAINED: "better", EpisodeState.REWARDED: "better"}


def has_group(view: View) -> bool:
    return next(iter(view.platform.part(Episodes).list()), None) is not None


def groups(view: View) -> HtmlPage:
    found = [_group_line(view, one) for one in islice(view.platform.part(Episodes).list(order="desc"), SHOWN)]
    columns = [
        ("group", ""),
        ("model", ""),
        ("episodes", "number"),
        ("state", "brief"),
        ("deadline", "choice"),
        ("made", "choice"),
    ]
    make = 'platform.episodes.group("refunds", model="desk/support", size=8)'
    shown = table(columns, found) if found else empty("No episode yet. Make a group of them:", make)
    lead = "Groups of attempts at a task, which a program of yours plays. A model learns from their rewards."
    return HtmlPage("Episodes", joined([shown]), live=True, lead=lead)


def _group_line(view: View, one: EpisodeGroup) -> tuple[object, ...]:
    link = view.link(name_text(one.name), "episodes", one.id)
    model = view.link(name_text(one.model), "models", one.model_id)
    return link, model, one.size, _state(view, one), when(one.deadline), when(one.created_at)


def _state(view: View, group: EpisodeGroup) -> Html:
    if group.job_id:
        return chip("trained", "better")
    return chip("closed" if group.ended(view.now) else "open")


def group(view: View) -> HtmlPage:
    episodes = view.platform.part(Episodes)
    handle = episodes.get(view.params["group"])
    stored, attempts = handle.refresh(), _attempts(handle)
    rewards = [episode.reward for episode, _ in attempts if episode.reward is not None]
    advantages = iter([] if stored.held_out else group_advantages(rewards))
    rows = [
        _episode_line(view, stored, episode, turns, None if episode.reward is None else next(advantages, None))
        for episode, turns in attempts
    ]
    names = ("episode", "state", "reward", "advantage", "turns", "branches", "tokens sampled", "tokens read", "why")
    columns = [(name, {"episode": "choice", "state": "brief", "why": ""}.get(name, "number")) for name in names]
    health = health_of(attempts, None if stored.held_out else _last_step(view, stored), held_out=stored.held_out)
    parts = [_facts(view, stored, health), _words(health), section("Episodes", table(columns, rows))]
    lead = "Attempts at one task. What is better than their mean has an advantage above 0, and becomes likelier."
    if stored.held_out:
        lead = "Attempts at the held-out tasks by one checkpoint, to measure it: nobody trains on them."
    return HtmlPage(stored.name, joined(parts), live=True, lead=lead)


def _attempts(handle: EpisodeGroupHandle) -> list[tuple[Episode, list[TreeTurn]]]:
    return [(one.refresh(), one.turns()) for one in handle]


def _last_step(view: View, stored: EpisodeGroup) -> int | None:
    model: Model = view.platform.models.get(stored.model_id)
    latest = next(iter(view.platform.models.checkpoints(model, order="desc")), None)
    return None if latest is None else latest.step


def _facts(view: View, stored: EpisodeGroup, health: GroupHealth) -> Html:
    job = view.link(short_id(stored.job_id), "jobs", stored.job_id) if stored.job_id else "none"
    pairs: list[tuple[str, object]] = [
        ("model", view.link(name_text(stored.model), "models", stored.model_id)),
        ("state", _state(view, stored)),
        ("trained by", job),
        ("rewards", f"{health.rewarded} of {health.episodes}, mean {_number(health.mean_reward)}"),
        ("spread of the rewards", _number(health.spread)),
        ("sampled tokens", count_text(health.tokens)),
        ("surprise of a token (nats)", _number(health.surprise)),
        ("off-policy tokens", f"{health.off_policy * 100:.0f} %"),
        ("cut off", f"{health.cut_off * 100:.0f} %"),
    ]
    return facts(pairs)


def _words(health: GroupHealth) -> Html:
    return joined(tag("p", chip("look", "worse"), " ", word) for word in health.words)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _episode_line(
    view: View, stored: EpisodeGroup, episode: Episode, turns: list[TreeTurn], advantage: float | None
) -> tuple[object, ...]:
    state = episode.state(stored, view.now)
    sampled = sum(len(one.ids) for sequence in sequences_of(turns) for one in sequence)
    return (
        view.link(str(episode.place), "episodes", stored.id, episode.id),
        chip(state, _KINDS.get(state, "")),
        _number(episode.reward),
        _number(advantage),
        len(turns),
        len(sequences_of(turns)),
        sampled,
        sum(len(one.injected) for one in turns),
        begun(episode.why_failed(stored), LONGEST_MESSAGE) if state is EpisodeState.FAILED else "",
    )


# ---- one episode -------------------------------------------------------------------------------------------------


def episode(view: View) -> HtmlPage:
    handle: EpisodeHandle = view.platform.part(Episodes).episode(view.params["episode"])
    stored, turns = handle.refresh(), handle.turns()
    places = {one.id: place for place, sequence in enumerate(sequences_of(turns)) for one in sequence}
    group = view.platform.part(Episodes).get(stored.group_id).refresh()
    back = tag(
        "p", view.link(name_text(group.name), "episodes", group.id), f", reward {_number(stored.reward) or 'none'}"
    )
    shown = [_turn(one, places.get(one.id)) for one in sorted(turns, key=_path)]
    nothing = empty("No call yet. Give the program this address, and the key:", handle.base_url)
    content = joined([back, *shown] if shown else [back, nothing])
    lead = "One attempt: what the model read and answered in each turn. Point at a token for its log-probability."
    return HtmlPage(f"Episode {stored.place} of {group.name}", content, live=True, lead=lead)


def _path(one: TreeTurn) -> list[int]:
    """Return where a turn is in the tree: before what follows it, and after what was asked earlier."""
    path, at = [one.turn.seq], one.parent
    while at is not None:
        path.append(at.turn.seq)
        at = at.parent
    return path[::-1]


def _turn(one: TreeTurn, sequence: int | None) -> Html:
    depth = len(_path(one)) - 1
    told = [tag("p", tag("b", f"{message.role}: "), message.text, kind="quiet") for message in one.added]
    calls = [tag("code", f"{call.name} {call.arguments}") for call in one.choice.message.tool_calls]
    step = "" if one.turn.step is None else f", step {one.turn.step}"
    line = f"{len(one.injected)} tokens read (masked), {len(one.ids)} sampled{step}"
    trained = chip("not trained", "worse") if sequence is None else chip(f"sequence {sequence}", "better")
    words = " · ".join(filter(None, (one.why or "follows", one.untrained, line)))
    marks = [trained, " ", tag("small", words)]
    said = tag("p", tag("b", "answer: "), *_tokens(one), *calls)
    shown = tag("article", *told, said, tag("p", *marks))
    for _ in range(min(depth, DEEPEST)):
        shown = tag("div", shown, kind="inside")
    return shown


def _tokens(one: TreeTurn) -> list[Html]:
    """Return the sampled tokens, each with its log-probability."""
    entries = (one.logprobs or ())[:SHOWN_TOKENS]
    if not one.choice.message.text and not one.choice.message.tool_calls:
        return [tag("small", "nothing")]
    if not entries:
        return [tag("span", one.choice.message.text)]
    shown = [tag("span", entry.token, title=f"{entry.logprob:.3f}") for entry in entries]
    return shown + ([tag("span", "…")] if len(entries) < len(one.ids) else [])

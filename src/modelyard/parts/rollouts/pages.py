"""Pages of rollouts: how far they are, with the confidence sequence of the difference and its boundary drawn."""

from collections.abc import Sequence
from itertools import islice

from modelyard.parts.dashboard.view import HtmlPage, Redirect, View, bar, empty, money, short_id, status_chip, when
from modelyard.parts.reports.html import Html, facts, joined, section, table, tag
from modelyard.parts.reports.line_plot import Panel, Plot, Series, figure
from modelyard.parts.rollouts.decisions import Standing
from modelyard.parts.rollouts.records import RolloutChange, RolloutStep, RolloutTally, StagedRollout
from modelyard.parts.rollouts.service import StagedRollouts

SHOWN = 200
MOST_STEPS = 2000

_COLUMNS = [
    ("rollout", ""),
    ("model", ""),
    ("steps", ""),
    ("state", ""),
    ("users", ""),
    ("guard", ""),
    ("since", ""),
]
_ARMS = [
    ("arm", ""),
    ("scores", "number"),
    ("mean", "number"),
    ("answers", "number"),
    ("failed", "number"),
    ("cost", "number"),
]


def has_rollout(view: View) -> bool:
    return next(iter(view.platform.part(StagedRollouts).list()), None) is not None


def listed(view: View) -> HtmlPage:
    found = [_line(view, one) for one in islice(view.platform.part(StagedRollouts).list(order="desc"), SHOWN)]
    nothing = empty("No rollout yet. Bring a step to the users of an alias:", "modelyard rollouts start desk/support 7")
    lead = "Checkpoints that come to users in stages, and go back by themselves if they are worse."
    return HtmlPage("Rollouts", table(_COLUMNS, found) if found else nothing, lead=lead)


def _line(view: View, one: StagedRollout) -> tuple[object, ...]:
    link, guard = view.link(short_id(one.id), "rollouts", one.id), f"{one.metric}, {one.margin:g}"
    return (
        link,
        one.served,
        f"{one.baseline} to {one.step}",
        status_chip(one.state),
        _share(one),
        guard,
        when(one.since),
    )


def _share(one: StagedRollout) -> Html:
    return bar(one.share, 1.0, f"{one.share:.0%}")


def shown(view: View) -> HtmlPage:
    rollouts = view.platform.part(StagedRollouts)
    one = rollouts.get(view.params["rollout"])
    found, steps = rollouts.standing(one.id), list(islice(rollouts.steps(one.id), MOST_STEPS))
    pairs = [
        ("state", status_chip(one.state)),
        ("users", _share(one)),
        ("stages", ", ".join(f"{share:.0%}" for share in one.canary)),
        ("guard", f"{one.metric} is not worse by more than {one.margin:g}, with {one.least} scores of each arm"),
        ("difference", f"{found.low:+.4f} to {found.high:+.4f}, at all times together with {one.confidence:.0%}"),
        *([("why", one.reason)] if one.reason else []),
    ]
    parts = [
        facts(pairs),
        _plots(one, steps),
        _arms(one, found),
        _limits(found),
        _judged(found),
        _decisions(steps),
        _stop(view, one),
    ]
    title = f"{one.served}, {one.word} {one.baseline} to {one.step}"
    lead = "The candidate goes on once the whole interval lies above the boundary, and back once it lies below."
    return HtmlPage(title, joined(parts), lead=lead, live=not one.state.ended)


def _plots(one: StagedRollout, steps: Sequence[RolloutStep]) -> Html:
    """Draw the sequence of each stage over the number of scores, and its boundary."""
    drawn = []
    for stage in dict.fromkeys(step.stage for step in steps):
        own = [step for step in steps if step.stage == stage and step.difference is not None]
        if not own:
            continue
        at = [float(step.baseline_scores + step.candidate_scores) for step in own]
        lines = {
            "difference": [step.difference or 0.0 for step in own],
            "at most": [step.high for step in own],
            "at least": [step.low for step in own],
            "boundary": [-one.margin for _ in own],
        }
        series = tuple(Series(name, list(zip(at, values, strict=True))) for name, values in lines.items())
        title = f"{one.metric}, {one.share_of(stage):.0%} of the users"
        plot = Plot(title, "scores", (Panel("candidate minus baseline", series),))
        drawn.append(figure(plot))
    return section("The sequence", joined(drawn)) if drawn else Html("")


def _arms(one: StagedRollout, found: Standing) -> Html:
    arms = ((f"{one.word} {one.baseline}", found.baseline), (f"{one.word} {one.step}", found.candidate))
    return section("This stage", table(_ARMS, [_arm(name, tally) for name, tally in arms], "narrow"))


def _arm(name: str, tally: RolloutTally) -> tuple[object, ...]:
    mean = "" if tally.mean is None else f"{tally.mean:.4f}"
    return name, tally.scores, mean, tally.answers, tally.failed, money(tally.cost)


def _limits(found: Standing) -> Html:
    if not found.limits:
        return Html("")
    lines = [(one.name, f"{one.low:.4g} to {one.high:.4g}", f"{one.most:g}") for one in found.limits]
    return section("Limits", table([("limit", ""), ("the candidate has", ""), ("at most", "number")], lines, "narrow"))


def _judged(found: Standing) -> Html:
    one = found.judged
    if one is None:
        return Html("")
    means = [f"{mean:.4f}" if mean is not None else "" for mean in (one.baseline, one.candidate)]
    columns = [
        ("scorer", ""),
        ("pairs", "number"),
        ("users got", "number"),
        ("candidate", "number"),
        ("difference", ""),
    ]
    line = one.name, one.pairs, *means, f"{one.low:+.4f} to {one.high:+.4f}"
    return section("Mirrored requests, scored", table(columns, [line], "narrow"))


def _decisions(steps: Sequence[RolloutStep]) -> Html:
    lines = [(step.change, step.stage, step.reason, when(step.at)) for step in steps if _is_decision(step)]
    return section("Decisions", table([("what", ""), ("stage", "number"), ("why", ""), ("when", "")], lines))


def _is_decision(step: RolloutStep) -> bool:
    return step.change is not RolloutChange.LOOKED


def _stop(view: View, one: StagedRollout) -> Html:
    if one.state.ended or not view.token:
        return Html("")
    return view.form_to("rollouts", one.id, "stop", content=[tag("button", "Stop", type="submit")])


def stop(view: View) -> Redirect:
    stopped = view.platform.part(StagedRollouts).stop(view.params["rollout"])
    return Redirect(view.url("rollouts", stopped.id))

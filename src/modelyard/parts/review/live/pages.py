"""Pages of watches: what a scorer says of live answers by day, corrected by labels."""

from collections.abc import Sequence
from itertools import islice

from modelyard.domain.evaluation.filters import scorer_keys
from modelyard.parts.dashboard.view import HtmlPage, Redirect, View, bar, empty, money, short_id, status_chip, when
from modelyard.parts.reports.html import Html, facts, joined, section, table, tag
from modelyard.parts.reports.line_plot import Panel, Plot, Series, figure
from modelyard.parts.review.estimates import interval_text
from modelyard.parts.review.service import Reviews
from modelyard.parts.review.watch_service import WatchedMean
from modelyard.parts.review.watches import RUNNING, Watch
from modelyard.report.numbers import count_text

SHOWN = 200
_COLUMNS = [
    ("watch", ""),
    ("model", ""),
    ("scorer", ""),
    ("state", ""),
    ("share", "number"),
    ("purse", ""),
    ("since", ""),
]
_DAYS = [("day", ""), ("answers", "number"), ("judged", "number"), ("corrected by labels", ""), ("run", "")]


def listed(view: View) -> HtmlPage:
    found = [_line(view, one) for one in islice(view.platform.part(Reviews).watches.list(order="desc"), SHOWN)]
    start = "modelyard watches start desk/support:prod JUDGE --share 0.02 --purse 5"
    nothing = empty("No answer is judged as it comes. Let a judge look at a share of them:", start)
    lead = "Samples of the answers that users get, judged in the background on a purse, and corrected by labels."
    return HtmlPage("Live quality", table(_COLUMNS, found) if found else nothing, lead=lead)


def _line(view: View, one: Watch) -> tuple[object, ...]:
    link = view.link(short_id(one.id), "watches", one.id)
    named = one.model, scorer_keys(one.scorer)[0], status_chip(one.state)
    return link, *named, f"{one.share:.3g}", _spent(one), when(one.created_at)


def _spent(one: Watch) -> Html:
    return bar(float(one.spent), float(one.purse), f"{money(one.spent)} of {money(one.purse)}")


def shown(view: View) -> HtmlPage:
    watches = view.platform.part(Reviews).watches
    one = watches.get(view.params["watch"])
    days = watches.days(one.id)
    pairs = [
        ("state", status_chip(one.state)),
        *([("why", one.reason)] if one.reason else []),
        ("share", f"{one.share:.3g} of the stored answers, drawn by a digest"),
        ("spent, USD", _spent(one)),
        ("since", when(one.created_at)),
    ]
    lines = [_day(view, day) for day in reversed(days[-SHOWN:])]
    table_ = section("Days", table(_DAYS, lines)) if lines else tag("p", "No answer was judged yet.")
    title = f"{scorer_keys(one.scorer)[0]} of {one.model}"
    lead = "People who label rows of a day's run correct the judge: the interval has its error in it."
    return HtmlPage(title, joined([facts(pairs), _plot(days), table_, _stop(view, one)]), lead=lead)


def _day(view: View, day: WatchedMean) -> tuple[object, ...]:
    found = day.mean.corrected
    told = (
        day.mean.check.reason or "nothing can be told from these labels"
        if found.mean is None or found.interval is None
        else interval_text(found.mean, found.interval)
    )
    return (
        day.day,
        count_text(found.rows),
        f"{found.judged:.3f}",
        told,
        view.link(short_id(day.run_id), "runs", day.run_id),
    )


def _plot(days: Sequence[WatchedMean]) -> Html:
    """Draw the days that can be told, with their intervals, and what the judge says."""
    if len(days) < 2:
        return Html("")
    lines: dict[str, list[tuple[float, float]]] = {"as judged": [], "corrected": [], "at most": [], "at least": []}
    for at, one in enumerate((day.mean.corrected for day in days), 1):
        lines["as judged"].append((float(at), one.judged))
        if one.mean is not None and one.interval is not None:
            lines["corrected"].append((float(at), one.mean))
            lines["at most"].append((float(at), one.interval.high))
            lines["at least"].append((float(at), one.interval.low))
    series = tuple(Series(name, points) for name, points in lines.items() if points)
    plot = Plot("The mean by day", f"days from {days[0].day}", (Panel("mean", series),))
    return section("Over time", figure(plot))


def _stop(view: View, one: Watch) -> Html:
    return view.action("Stop", "watches", one.id, "stop") if one.state == RUNNING else Html("")


def stop(view: View) -> Redirect:
    return Redirect(view.url("watches", view.platform.part(Reviews).watches.stop(view.params["watch"]).id))

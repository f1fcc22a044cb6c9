"""The rows of a run: filtered, sliced by a field, and side by side with the rows of a baseline."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import groupby, islice
from typing import Any

import attrs

from modelyard.domain.evaluation.metrics import MetricKind
from modelyard.domain.evaluation.run import EvaluationRun, Outcome, RowResult
from modelyard.parts.dashboard.pages.runs import size_of
from modelyard.parts.dashboard.view import HtmlPage, View, duration, empty, json_text, money, whole_number
from modelyard.parts.reports.html import Html, chip, facts, joined, section, table, tag
from modelyard.platform.evaluations.result import Rows
from modelyard.report.numbers import NONE, count_text, mean_text, model_text, ref_text, stored_kind, value_text

LONGEST = 2000
"""How many characters of a string are shown, and compared word by word."""

SHOWN_ROWS = 50

SCANNED = 400
"""How many rows are looked at for a page."""

SLICED = 2000
"""How many of the first rows of a run are sliced by a field."""

MOST_SLICES = 30

LONGEST_VALUE = 80
"""How many characters a value may have by which rows are sliced."""

LONGEST_SCORE = 60
"""How many characters a score may have that is shown as a chip."""

_FAILED = frozenset({Outcome.MODEL_ERROR, Outcome.SCORER_ERROR})
_WORDS = re.compile(r"\s+|\w+|[^\w\s]")


@attrs.frozen
class Filter:
    """The filter of rows that the address has. `before` are the rows of the `baseline`."""

    show: str
    text: str
    field: str
    value: str
    row: str
    trial: str
    baseline: str
    before: Rows | None

    @classmethod
    def of(cls, view: View) -> "Filter":
        """Read the address. Raises `NotFound` if there is no such baseline."""
        show, text, field, value, row, trial, baseline = (
            view.query.get(name, "") for name in ("show", "q", "field", "value", "row", "trial", "baseline")
        )
        before = view.platform.evaluations.result(baseline).rows if baseline else None
        return cls(show, text, field, value, row, trial, baseline, before)

    @property
    def query(self) -> Mapping[str, str]:
        return attrs.asdict(self, filter=lambda at, _: at.name not in ("text", "before")) | {"q": self.text}

    def keeps(self, row: RowResult) -> bool:
        if self.field and self.value and _short(row.row.get(self.field)) != self.value:
            return False
        if self.trial and self.trial != str(row.trial):
            return False
        if self.text and self.text.lower() not in f"{dict(row.row)} {row.output}".lower():
            return False
        fits = _FITS.get(self.show)
        return fits is None or fits(row, self.before)


def rows(view: View) -> HtmlPage:
    run, wanted = view.platform.evaluations.runs.get(view.params["run"]), Filter.of(view)
    start, skip = (whole_number(view.query.get(name, "0"), name) for name in ("from", "skip"))
    start = whole_number(wanted.row, "row") if wanted.row else start
    every = view.platform.evaluations.result(run.id).rows
    found, after = _page(every, wanted, start, skip)
    several = bool(wanted.trial) or any(row.trial for row in found)
    shown = [_row(view, run, [*those], wanted, several) for _, those in groupby(found, lambda row: row.index)]
    content = [
        tag("p", view.link("To the report", "runs", run.id)),
        _filters(view, run, every, wanted),
        _slices(view, run, every, wanted),
        *shown,
        "" if shown else empty("No row fits." if after is None else f"None of the next {SCANNED} rows fits."),
        "" if after is None else tag("p", view.link("Further rows", "runs", run.id, "rows", **wanted.query, **after)),
    ]
    further = f", from row {found[0].index}" if found and (start or skip) and not wanted.row else ""
    title = f"Rows of {model_text(run)} on {ref_text(run.evaluation)}{further}"
    return HtmlPage(title, joined(content), lead="What each row asked, what the model answered, and what that scored.")


def _page(every: Rows, wanted: Filter, start: int, skip: int) -> tuple[Sequence[RowResult], Mapping[str, int] | None]:
    """Return the next rows that are shown, and where the rows begin that were not looked at; None at the end.

    Rows are found by their index. Rows that clients made have none, and are skipped one by one.
    """
    found: list[RowResult] = []
    for number, row in enumerate(islice(every.since(start), skip, None)):
        if wanted.row and wanted.row != str(row.index):
            break
        if (len(found) >= SHOWN_ROWS or number >= SCANNED) and row.trial == 0:
            return found, {"from": row.index} if row.index > start else {"from": start, "skip": skip + number}
        if wanted.keeps(row):
            found.append(row)
    return found, None


def _counterpart(row: RowResult, before: Rows | None) -> RowResult | None:
    return None if before is None else before.find(row.row, row.trial)


def _has_changed(row: RowResult, before: Rows | None) -> bool:
    other = _counterpart(row, before)
    return other is not None and (other.score, other.output) != (row.score, row.output)


_FITS: Mapping[str, Callable[[RowResult, Rows | None], bool]] = {
    "errors": lambda row, before: row.outcome in _FAILED,
    "failed": lambda row, before: row.outcome in _FAILED or (row.score is not None and row.score < 0.5),
    "changed": _has_changed,
}
"""Which rows are shown, in the words of the filter."""


def _filters(view: View, run: EvaluationRun, every: Rows, wanted: Filter) -> Html:
    kinds = ["all", "failed", "errors", *(["changed"] if wanted.baseline else [])]
    options = [tag("option", kind, value=kind, selected=kind == wanted.show) for kind in kinds]
    names = [tag("option", name, value=name, selected=name == wanted.field) for name in short_fields(every)]
    words = {"placeholder": "words in the row", "aria_label": "Words in the row"}
    fields = [
        tag("label", "Show ", tag("select", *options, name="show")),
        tag("input", type="search", name="q", value=wanted.text, **words),
        tag("label", " by ", tag("select", tag("option", "no field", value=""), *names, name="field")),
        tag("label", " = ", tag("input", name="value", value=wanted.value, placeholder="any value", size=12)),
        tag("input", type="hidden", name="baseline", value=wanted.baseline) if wanted.baseline else "",
        tag("button", "Filter"),
    ]
    return tag("form", *fields, method="get", action=view.url("runs", run.id, "rows"), role="search")


# ---- slices ------------------------------------------------------------------------------------------------------


def short_fields(every: Rows) -> Sequence[str]:
    """Return the fields by which the first rows can be sliced: those with short values."""
    found: dict[str, None] = {}
    for row in islice(every, SHOWN_ROWS):
        found |= {name: None for name, value in row.row.items() if _short(value)}
    return list(found)


def _short(value: object) -> str:
    """Return a value to slice by as a string; "" if it is too long, or none."""
    if not isinstance(value, str | int | float):  # a bool is an int
        return ""
    text = str(value)
    return text if len(text) <= LONGEST_VALUE else ""


def _slices(view: View, run: EvaluationRun, every: Rows, wanted: Filter) -> Html:
    if not wanted.field or wanted.value:
        return Html("")
    key = ("slices", run.id, run.finished_at, wanted.field, wanted.baseline)
    return view.part(key, lambda: min(size_of(view, run), SLICED), lambda: _slice_table(view, run, every, wanted))


def _slice_table(view: View, run: EvaluationRun, every: Rows, wanted: Filter) -> Html:
    found: dict[str, list[RowResult]] = {}
    for row in islice(every, SLICED):
        if value := _short(row.row.get(wanted.field)):
            found.setdefault(value, []).append(row)
    largest = sorted(found.items(), key=lambda one: (-len(one[1]), one[0]))[:MOST_SLICES]
    lines, kind = [], stored_kind(run.summary or {})
    for value, those in largest:
        link = view.link(value, "runs", run.id, "rows", **{**wanted.query, "value": value})
        lines.append((link, len(those), _mean(those, kind), sum(row.outcome in _FAILED for row in those)))
    columns = [(wanted.field, ""), ("rows", "number"), ("mean score", "number"), ("errors", "number")]
    nothing = tag("p", f"No value of {wanted.field} is short enough: at most {LONGEST_VALUE} characters.")
    shown = table(columns, lines, "narrow") if lines else nothing
    return section(f"Scores by {wanted.field}, of the first {count_text(SLICED)} rows", shown)


def _mean(those: Sequence[RowResult], kind: MetricKind | None) -> str:
    scores = [row.score for row in those if row.score is not None]
    return mean_text(sum(scores) / len(scores) if scores else None, kind)


# ---- one row -----------------------------------------------------------------------------------------------------


def _row(view: View, run: EvaluationRun, trials: Sequence[RowResult], wanted: Filter, several: bool) -> Html:
    """Show what was asked once, and what each trial answered."""
    first = trials[0]
    link = view.link(f"Row {first.index}", "runs", run.id, "rows", row=first.index, baseline=wanted.baseline)
    asked = facts((key, _text(value)) for key, value in first.row.items())
    answers = (_trial(view, run, row, wanted, several) for row in trials)
    return tag("article", tag("h2", link), asked, *answers, id=f"row-{first.index}-{first.trial}")


def _trial(view: View, run: EvaluationRun, row: RowResult, wanted: Filter, several: bool) -> Html:
    before = _counterpart(row, wanted.before)
    at = {"row": row.index, "trial": row.trial, "baseline": wanted.baseline}
    head = tag("h3", view.link(f"Trial {row.trial}", "runs", run.id, "rows", **at)) if several else ""
    scores = {key: _value(value) for key, value in row.scores.items()}
    verdict = [
        chip(row.outcome.replace("_", " ")),
        *(chip(f"{key} {value}") for key, value in scores.items() if len(value) <= LONGEST_SCORE),
    ]
    long = [(key, _text(value)) for key, value in scores.items() if len(value) > LONGEST_SCORE]
    pairs: list[tuple[str, object]] = []
    if before is None:
        pairs.append(("output", _text(row.output)))
    else:
        pairs += [
            ("baseline's output", _text(before.output)),
            ("output", difference(_plain(before.output), _plain(row.output))),
        ]
        kind = stored_kind(run.summary or {})
        pairs.append(("baseline's score", f"{value_text(before.score, kind)}, now {value_text(row.score, kind)}"))
    pairs += long
    if row.detail:
        pairs.append(("why", row.detail))
    pairs += [(f"{scorer} says", _text(words)) for scorer, words in row.comments.items()]
    if used := [*_used(row)]:
        pairs.append(("used", " · ".join(used)))
    return joined([head, tag("p", *(part for one in verdict for part in (one, " "))), facts(pairs)])


def _used(row: RowResult) -> Iterator[str]:
    if row.latency is not None:
        yield f"{row.latency * 1000:.3g} ms" if row.latency < 1 else duration(row.latency)
    if row.completion_tokens is not None:
        yield f"{count_text(row.prompt_tokens or 0)} + {count_text(row.completion_tokens)} tokens"
    if row.cost is not None:
        yield money(row.cost)


def _value(value: object) -> str:
    if value is None or isinstance(value, float):
        return value_text(value, None)
    if isinstance(value, bool):
        return value_text(float(value), MetricKind.BINARY)
    return json_text(value) if isinstance(value, Mapping) else str(value)


def _plain(value: object) -> str:
    text = value if isinstance(value, str) else NONE if value is None else json_text(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({count_text(len(text))} characters)"


def _text(value: object) -> Html:
    turns = value if isinstance(value, list | tuple) and value and all(map(_is_turn, value)) else ()
    return joined(tag("pre", tag("b", turn["role"]), "\n", _said(turn)) for turn in turns) or tag("pre", _plain(value))


def _is_turn(value: object) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("role"), str)


def _said(turn: Mapping[str, Any]) -> str:
    """Return what a turn of a conversation says, and what else it has, such as calls of tools, as JSON."""
    more = {name: value for name, value in turn.items() if value and name not in ("role", "content")}
    parts = [turn["content"]] if turn.get("content") else []
    return "\n".join(_plain(part) for part in (*parts, *([more] if more else [])))


def difference(before: str, after: str) -> Html:
    """Return the second text, with the words that were left out and added marked."""
    old, new = _WORDS.findall(before), _WORDS.findall(after)
    parts: list[object] = []
    for kind, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            parts.append("".join(new[c:d]))
            continue
        parts += [tag("del", "".join(old[a:b]))] * (a < b) + [tag("ins", "".join(new[c:d]))] * (c < d)
    return tag("pre", *parts)

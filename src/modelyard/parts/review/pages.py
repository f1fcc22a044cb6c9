"""Pages of reviews: rows labelled by keyboard, blind; and what judges are worth by that."""

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any

from modelyard.domain.evaluation.metrics import MetricKind
from modelyard.domain.evaluation.objects import ObjectRef
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.evaluation.statistics import Interval
from modelyard.errors import Conflict, InvalidInput, NotFound
from modelyard.parts.dashboard.view import HtmlPage, Redirect, View, bar, empty, name_text, short_id, when, whole_number
from modelyard.parts.reports.html import Html, facts, joined, section, table, tag
from modelyard.parts.review.estimates import JudgeCheck, JudgedMean
from modelyard.parts.review.labels import RowToLabel
from modelyard.parts.review.records import Review
from modelyard.parts.review.service import Reviews
from modelyard.parts.review.table_file import UNSURE, label_of, label_text
from modelyard.report.numbers import (
    NONE,
    confidence_text,
    count_text,
    interval_text,
    mean_text,
    model_text,
    ref_text,
)

SHOWN = 200
_EACH = ", as many of each score"
_OF_RESULTS = "The mean of the judge, corrected by what people say, and how far they agree."
_DONE = "Your labels stay as they are, since you may see now what others say."
MOST_SHOWN = 20_000
"""Characters of an output or a field that are shown."""


def has_review(view: View) -> bool:
    reviews = view.platform.part(Reviews)
    return any(next(iter(found), None) is not None for found in (reviews.list(), reviews.watches.list()))


def listed(view: View) -> HtmlPage:
    run = view.query.get("run") or None
    found = [_line(view, one) for one in islice(view.platform.part(Reviews).list(run=run, order="desc"), SHOWN)]
    columns = [("review", ""), ("model", "brief"), ("rows", "brief"), ("made", "brief"), ("run", "brief")]
    nothing = empty("No review yet. Draw rows of a run to label:", f"modelyard review start {run or 'quiz'}")
    lead = "Random samples of rows that people label, to check judges and to correct their numbers."
    live = tag("p", view.link("Live quality: answers that are judged as they come", "watches"))
    content = joined([table(columns, found) if found else nothing, _start(view, run or ""), live])
    return HtmlPage("Reviews", content, lead=lead)


def _line(view: View, one: Review) -> tuple[object, ...]:
    link = view.link(joined([name_text(_name(view, one)), " ", tag("small", short_id(one.id))]), "reviews", one.id)
    of = _run_of(view, one)
    run = view.link(short_id(one.run_id), "runs", one.run_id)
    rows = f"{count_text(one.size)} of {count_text(one.population)}"
    return link, model_text(of) if of else "", rows, when(one.created_at), run


def _scorer(one: Review) -> str:
    ref = ObjectRef.parse(one.scorer)
    return one.scorer if ref is None else ref.name


def _run_of(view: View, one: Review) -> EvaluationRun | None:
    try:
        return view.platform.evaluations.runs.get(one.run_id)
    except NotFound:
        return None


def _name(view: View, one: Review) -> str:
    """Return what is reviewed: a scorer, and the evaluation if its run is still there."""
    run = _run_of(view, one)
    return f"{_scorer(one)} on {ref_text(run.evaluation)}" if run else _scorer(one)


def _start(view: View, run: str) -> Html:
    if not view.token:
        return Html("")
    fields = [
        tag("label", "Run ", tag("input", name="run", value=run, size=38, required=True)),
        tag("label", " Rows ", tag("input", name="rows", value=100, size=6)),
        tag("label", " Seed ", tag("input", name="seed", value=0, size=6)),
        tag("label", tag("input", type="checkbox", name="by_score", value="yes"), " as many of each score "),
        tag("button", "Draw rows", type="submit"),
    ]
    return section("A new review", view.form_to("reviews", content=fields))


def start(view: View) -> Redirect:
    rows, seed = (whole_number(view.form.get(name, ""), name) for name in ("rows", "seed"))
    reviews, run = view.platform.part(Reviews), view.form.get("run", "").strip()
    made = reviews.start(run, rows=rows, seed=seed, by_score=bool(view.form.get("by_score")))
    return Redirect(view.url("reviews", made.id))


# ---- one of them


def shown(view: View) -> HtmlPage:
    reviews = view.platform.part(Reviews)
    one = reviews.get(view.params["review"])
    progress = reviews.progress(one.id)
    lines = [
        (view.link(name, "reviews", one.id, "label", person=name), bar(count, one.size, f"{count} of {one.size}"))
        for name, count in progress.people.items()
    ]
    people = section("People", table([("person", ""), ("labelled", "")], lines, "narrow")) if lines else Html("")
    pairs = [
        ("run", _run_link(view, one)),
        ("scorer", ref_text(one.scorer)),
        (
            "rows",
            f"{one.size} of {one.population}, drawn by the seed {one.seed}{_EACH * one.by_score}",
        ),
        ("rows that count", progress.counted),
    ]
    results = tag("p", view.link("What the labels show", "reviews", one.id, "results"))
    lead = "Rows to label. Nobody sees what others or the judge say of them before they are done."
    return HtmlPage(
        f"Review of {_name(view, one)}", joined([facts(pairs), _begin(view, one), people, results]), lead=lead
    )


def _run_link(view: View, one: Review) -> Html:
    run = _run_of(view, one)
    shown = f"{model_text(run)} on {ref_text(run.evaluation)}" if run else short_id(one.run_id)
    return view.link(shown, "runs", one.run_id)


def _begin(view: View, one: Review) -> Html:
    if not view.token:
        return Html("")
    fields = [
        tag("label", "Your name ", tag("input", name="person", size=24, required=True, autocomplete="name")),
        tag("button", "Label rows", type="submit"),
    ]
    return section("Label", tag("form", *fields, method="get", action=view.url("reviews", one.id, "label")))


def label(view: View) -> HtmlPage:
    reviews, person = view.platform.part(Reviews), view.query.get("person", "")
    one = reviews.get(view.params["review"])
    at = view.query.get("row", "")
    row = reviews.row(one.id, person, _place(one, at)) if at else reviews.next(one.id, person)
    title = f"Label {_scorer(one)} as {person}"
    if row is None:
        links = view.link("What the labels show", "reviews", one.id, "results", person=person)
        done = joined([tag("p", "You have labelled every row."), tag("p", links)])
        return HtmlPage(title, done, lead=_DONE)
    ended = reviews.progress(one.id).people.get(person) == one.size
    back = view.link("The row before", "reviews", one.id, "label", person=person, row=row.place - 1)
    parts = [
        bar(row.place, one.size, f"row {row.place + 1} of {one.size}"),
        *(_text(name, value) for name, value in row.inputs.items()),
        _text("Answer", row.output),
        _said(one, row) if ended else _form(view, one, row, person),
        tag("p", back if row.place else ""),
    ]
    asked = f"Does the answer pass {_scorer(one)}?" if one.yes_no else f"What does {_scorer(one)} give the answer?"
    how = "Press a key, or choose a button. Your label can be changed until you are done."
    return HtmlPage(title, joined(parts), lead=_DONE if ended else f"{asked} {how}")


def _said(one: Review, row: RowToLabel) -> Html:
    return facts([("your label", _shown_label(one, row.value)), ("note", row.note or NONE)])


def _place(one: Review, text: str) -> int:
    place = whole_number(text, "row")
    if place >= one.size:
        raise InvalidInput.at("row", msg=f"must be the number of a row, 0 to {one.size - 1}")
    return place


def _text(name: str, value: Any) -> Html:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1, default=dict)
    return section(name, tag("pre", text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"))


def _form(view: View, one: Review, row: RowToLabel, person: str) -> Html:
    if not view.token:
        return Html("")
    hidden = [
        tag("input", type="hidden", name=name, value=value) for name, value in (("person", person), ("row", row.place))
    ]
    chosen = label_text(one, row.value) if row.labelled else ""
    return view.form_to("reviews", one.id, "label", content=[*hidden, *_choices(one, chosen), _note(row)])


def _note(row: RowToLabel) -> Html:
    return tag("label", " Note ", tag("input", name="note", value=row.note, size=40))


def _choices(one: Review, chosen: str) -> list[Html]:
    """Return a button for each label with its key, or the field of a number, which a button of its own sends."""
    if one.choices:
        values = [label_text(one, value) for value in reversed(one.choices)] if one.yes_no else []
        values = values or [label_text(one, value) for value in one.choices]
        return [
            _button(value, value[0] if len(value) == 1 or one.yes_no else None, chosen) for value in (*values, UNSURE)
        ]
    field = tag(
        "input", name="number", value="" if chosen == UNSURE else chosen, size=8, autofocus=True, inputmode="decimal"
    )
    return [
        tag("label", "Number ", field),
        tag("button", "Keep", name="value", value="", type="submit"),
        _button(UNSURE, UNSURE, chosen),
    ]


def _shown_label(one: Review, value: float | None) -> str:
    """Return a label as people read it."""
    if value is None:
        return "cannot say"
    return label_text(one, value) if one.yes_no else mean_text(value, None)


def _button(value: str, key: str | None, chosen: str) -> Html:
    words = "cannot say" if value == UNSURE else value
    shown = f"{words} ({key})" if key else words
    pressed = "true" if value == chosen else None
    return tag(
        "button", shown, type="submit", name="value", value=value, data_key=key, accesskey=key, aria_pressed=pressed
    )


def keep(view: View) -> Redirect:
    reviews, form = view.platform.part(Reviews), view.form
    one = reviews.get(view.params["review"])
    said = form.get("value") or form.get("number", "")
    row = whole_number(form.get("row", ""), "row")
    reviews.label(one.id, form.get("person", ""), row, label_of(one, said), form.get("note", "").strip())
    return Redirect(view.url("reviews", one.id, "label", person=form.get("person", "")))


# ---- what they show


def results(view: View) -> HtmlPage:
    reviews = view.platform.part(Reviews)
    one = reviews.get(view.params["review"])
    person = view.query.get("person", "")
    back = tag("p", view.link("The review", "reviews", one.id))
    title = f"What the labels of {_name(view, one)} show"
    try:
        found = reviews.results(one.id, person) if person else None
    except Conflict as waits:
        return HtmlPage(title, joined([back, empty(f"{waits}.")]), lead=_OF_RESULTS)
    if found is None:
        return HtmlPage(title, joined([back, _reader(view, one)]), lead=_OF_RESULTS)
    parts = [
        back,
        tag("p", _headline(one, found), kind="headline"),
        _agreement(found.check),
        _disagreements(view, one, person),
    ]
    return HtmlPage(title, joined(parts), lead=_OF_RESULTS)


def _headline(one: Review, found: JudgedMean) -> str:
    """Return the mean as people see it and as the judge does; of yes and no, in percent."""
    mean, kind = found.corrected, MetricKind.BINARY if one.yes_no else None
    if mean.mean is None or mean.interval is None:
        return str(found)
    between = f"{confidence_text(mean.interval.confidence)} interval {interval_text(mean.interval, kind)}"
    where = "here" if mean.method == "ppi" else "on other rows"
    people = (
        f"{mean_text(mean.mean, kind)} by what people say ({between}), from {count_text(mean.labelled)} labels {where}"
    )
    return f"{people}; {mean_text(mean.judged, kind)} as judged on {count_text(mean.rows)} rows."


def _reader(view: View, one: Review) -> Html:
    asked = [
        tag("label", "Your name ", tag("input", name="person", size=24, required=True, autocomplete="name")),
        tag("button", "Show", type="submit"),
    ]
    waits = tag("p", "This is shown to who has labelled every row, so that nobody labels who has seen it.")
    return joined([waits, tag("form", *asked, method="get", action=view.url("reviews", one.id, "results"))])


def _agreement(check: JudgeCheck) -> Html:
    found = check.agreement
    if found is None:
        return Html("")
    numbers: Mapping[str, float | None] = {
        "Cohen's kappa of the judge and most people": found.kappa,
        "Krippendorff's alpha of the judge and people": found.alpha,
        "Fleiss' kappa of people": found.people_kappa,
        "Krippendorff's alpha of people": found.people_alpha,
    }
    pairs: list[tuple[str, object]] = [("rows labelled", found.labelled), ("people", found.people)]
    pairs += [(name, NONE if value is None else f"{value:.3f}") for name, value in numbers.items()]
    if found.confusion is not None:
        of_judge = {
            "sensitivity": (found.confusion.sensitivity, found.sensitivity),
            "specificity": (found.confusion.specificity, found.specificity),
        }
        pairs += [(name, _rate(*known)) for name, known in of_judge.items()]
    return section("Agreement", facts(pairs))


def _rate(value: float | None, between: Interval | None) -> str:
    return NONE if value is None or between is None else f"{value:.3f} ({between.low:.3f} to {between.high:.3f})"


def _disagreements(view: View, one: Review, person: str) -> Html:
    reviews = view.platform.part(Reviews)
    found = reviews.disagreements(one.id, person)
    people = sorted({name for row in found for name in row.labels})
    lines = [
        (
            view.link(row.place + 1, "reviews", one.id, "label", person=person, row=row.place),
            _shown_label(one, row.verdict),
            *(_shown_label(one, row.labels[name]) if name in row.labels else NONE for name in people),
        )
        for row in islice(found, SHOWN)
    ]
    columns = [("row", "number"), ("judge", "choice"), *((name, "choice") for name in people)]
    shown = table(columns, lines, "narrow") if lines else tag("p", "Everybody says the same of every row.")
    return section("Disagreements", shown)

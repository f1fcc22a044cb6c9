"""Pages of questions to stored traffic: costs, coverage, and the rows that differ most."""

from itertools import islice

from modelyard.parts.dashboard.view import HtmlPage, View, bar, begun, empty, money, short_id, status_chip, when
from modelyard.parts.reports.html import Html, facts, joined, section, table, tag
from modelyard.parts.what_if.estimates import LEAST_COVERAGE, LEAST_USERS, Counterfactual
from modelyard.parts.what_if.result import AnsweredAgain, WhatIf, paired_text
from modelyard.parts.what_if.service import AskTraffic

SHOWN = 200
DIFFERING = 20

_COLUMNS = [("question", ""), ("model", ""), ("asks", ""), ("spent", "number"), ("budget", "number"), ("asked", "")]
_ROWS = [("stored answer", ""), ("served by", ""), ("change", "number"), ("new answer", ""), ("cost", "number")]


def has_question(view: View) -> bool:
    return next(iter(view.platform.part(AskTraffic).list()), None) is not None


def listed(view: View) -> HtmlPage:
    found = [
        (
            view.link(short_id(one.id), "what-ifs", one.id),
            one.model,
            one.asks,
            money(one.spent),
            money(one.budget),
            when(one.created_at),
        )
        for one in islice(view.platform.part(AskTraffic).list(), SHOWN)
    ]
    nothing = empty("Nothing was asked yet. Ask last week's traffic:", "modelyard what-if ask desk/support:step7")
    lead = "Stored requests asked again: what another model would have answered, cost and been told."
    return HtmlPage("What if", table(_COLUMNS, found) if found else nothing, lead=lead)


def shown(view: View) -> HtmlPage:
    asked = view.platform.part(AskTraffic)
    found, record = asked.get(view.params["what_if"]), asked.record(view.params["what_if"])
    answers, repriced = found.answers, found.repriced
    assert answers is not None, "it was asked"
    pairs: list[tuple[str, object]] = [
        ("state", status_chip(found.status or "")),
        ("asked again", bar(answers.done, max(1, record.content["rows"]), f"{answers.done} rows")),
        ("failed", f"{answers.failed}{answers.why and f': {answers.why}'}"),
        ("spent", f"{money(answers.spent)} of {money(record.budget)}"),
        *([("why it ended", found.reason)] if found.reason else []),
        *_compared(answers),
    ]
    if repriced is not None:
        pairs.append(("all calls of the time", f"{money(repriced.other_cost)} instead of {money(repriced.cost)}"))
    parts = [facts(pairs), _feedback(found.feedback), _differing(view, found)]
    lead = "What was served, beside what this model would have answered."
    running = found.status in ("queued", "running")
    return HtmlPage(f"What if {record.model} had answered", joined(parts), lead=lead, live=running)


def _compared(answers: AnsweredAgain) -> list[tuple[str, object]]:
    named = (("score, new minus served", answers.score), ("log-probability of a token", answers.logprob))
    found: list[tuple[str, object]] = [(name, paired_text(one)) for name, one in named if one is not None]
    if answers.cost or answers.served_cost:
        found.append(("answers cost", f"{money(answers.cost)} instead of {money(answers.served_cost)}"))
    return found


def _feedback(found: Counterfactual | None) -> Html:
    if found is None:
        return Html("")
    users = f"{found.effective_users:.0f} of {found.users} who scored it; {LEAST_USERS:.0f} are needed"
    pairs = [
        ("coverage", bar(found.coverage, 1.0, f"{found.coverage:.0%} of {found.answers} answers")),
        ("least coverage", f"{LEAST_COVERAGE:.0%}"),
        ("effective users", users),
        ("estimate", str(found)),
    ]
    return section("What users would have said", facts(pairs))


def _differing(view: View, found: WhatIf) -> Html:
    lines = [
        (short_id(row.source), row.model, f"{row.change or 0:+.4g}", begun(row.answer or ""), _cost(row.cost))
        for row in found.differing(DIFFERING)
    ]
    if not lines:
        return tag("p", "No row has a score or a log-probability of both yet.")
    return section("Rows that differ most", table(_ROWS, lines))


def _cost(amount: object) -> str:
    return "" if amount is None else money(amount)  # type: ignore[arg-type]

"""The page that steers a run: its buttons, and the audit."""

from modelyard.errors import InvalidInput
from modelyard.parts.dashboard.view import HtmlPage, Redirect, View, empty, status_chip, when, whole_number
from modelyard.parts.reports.html import Html, facts, joined, section, table, tag
from modelyard.parts.steering.commands import what_text
from modelyard.parts.steering.records import SteeringEntry
from modelyard.parts.steering.service import Steering
from modelyard.report.numbers import model_text, ref_text

_LEAD = "What was asked of this run while workers evaluate it: a worker does it after the rows under way."
_COLUMNS = [("when", "brief"), ("by", "brief"), ("action", "brief"), ("what", ""), ("done", "brief")]


def shown(view: View) -> HtmlPage:
    steering, status = view.platform.part(Steering), view.platform.evaluations.runs.status(view.params["run"])
    run = status.run
    rows = f"{status.completed_rows} of {status.total_rows}"
    state = "paused" if steering.is_paused(run.id) else run.state
    pairs = [("run", view.link(run.id, "runs", run.id)), ("state", status_chip(state)), ("rows", rows)]
    lines = [_line(one) for one in reversed(steering.audit(run.id))]
    audit = section("What was asked", table(_COLUMNS, lines) if lines else empty("Nothing was asked of this run."))
    title = f"{model_text(run)} on {ref_text(run.evaluation)}: steering"
    return HtmlPage(title, joined([facts(pairs), _buttons(view, run.id), audit]), lead=_LEAD)


def _line(one: SteeringEntry) -> tuple[object, ...]:
    return when(one.created_at), one.by, one.action, what_text(one), when(one.applied_at)


def _buttons(view: View, run: str) -> Html:
    if not view.token:
        return Html("")
    path = ("runs", run, "steering")
    parts = [
        view.action("Pause", *path, action="pause"),
        view.action("Resume", *path, action="resume"),
        view.action("Ask failed rows again", *path, action="requeue", confirm="Ask and book the failed rows again?"),
    ]
    field = tag(
        "label", "Rows under way at once ", tag("input", name="concurrency", type="number", min=1, required=True)
    )
    hidden = tag("input", type="hidden", name="action", value="limits")
    parts.append(view.form_to(*path, content=[hidden, field, " ", tag("button", "Change", type="submit")]))
    return joined(parts)


def steer(view: View) -> Redirect:
    steering, run, action = view.platform.part(Steering), view.params["run"], view.form.get("action", "")
    if action == "limits":
        steering.change(run, concurrency=whole_number(view.form.get("concurrency", ""), "concurrency"))
    elif action in ("pause", "resume", "requeue"):
        getattr(steering, action)(run)
    else:
        raise InvalidInput.at("action", msg="must be pause, resume, requeue or limits")
    return Redirect(view.url("runs", run, "steering"))

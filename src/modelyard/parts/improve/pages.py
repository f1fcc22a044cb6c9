"""The pages of prompt jobs and of improvements: all of them, and one with its proposals or its roads."""

from modelyard.domain.job import JobStatus
from modelyard.domain.training import TrainingJob
from modelyard.errors import NotFound
from modelyard.parts.comparisons.sheet import content
from modelyard.parts.dashboard.view import HtmlPage, Redirect, View, empty, name_text, short_id, status_chip, when
from modelyard.parts.improve.improvement import Improve, ImprovementHandle
from modelyard.parts.improve.part import ROADS
from modelyard.parts.improve.records import PromptProposal
from modelyard.parts.improve.service import PromptHandle, StartPrompt
from modelyard.parts.reports.html import Html, chip, facts, folded, joined, section, table, tag
from modelyard.parts.reports.line_plot import figure
from modelyard.parts.variants.differences import unified
from modelyard.parts.variants.service import Variants
from modelyard.report.numbers import NONE

SHOWN = 50


# ---- prompt jobs


def _jobs(view: View) -> list[TrainingJob]:
    return [one.refresh() for one in view.platform.part(StartPrompt).list().page(SHOWN)]


def listed(view: View) -> HtmlPage:
    columns = [("prompt of", ""), ("status", "choice"), ("before", "number"), ("best", "number"), ("made", "brief")]
    found = [_line(view, job) for job in _jobs(view)]
    start = 'platform.training.prompt("desk/support", tasks, "token_f1", reflection="big-model", budget="5.00")'
    shown = table(columns, found) if found else empty("No prompt was optimised yet. Start a job:", start)
    return HtmlPage("Prompts", joined([shown]), live=True, lead="Texts that were tried on tasks: which answers best.")


def _line(view: View, job: TrainingJob) -> tuple[object, ...]:
    scores = (job.metrics.get(name) for name in ("start_held_out", "best_held_out"))
    link = view.link(_variant(view, job), "prompts", job.id)
    return link, status_chip(job.status), *map(_number, scores), when(job.created_at)


def _variant(view: View, job: TrainingJob) -> Html:
    try:
        found = view.platform.part(Variants).get(job.model_id)
    except NotFound:
        return short_id(job.model_id)
    return name_text(f"{found.project}/{found.name}")


def shown(view: View) -> HtmlPage:
    handle = view.platform.part(StartPrompt).get(view.params["job"])
    job, proposals = handle.refresh(), [*handle.proposals()]
    by_number = {one.number: one for one in proposals}
    best = max((one.score for one in proposals if one.score is not None), default=None)
    columns = [
        ("proposal", ""),
        ("on a few tasks", "number"),
        ("its parent there", "number"),
        ("held-out score", "number"),
        ("answers scored", "number"),
        ("USD", "number"),
    ]
    lines = [_proposal(one, _depth(one, by_number), best) for one in proposals]
    parts = [
        facts(_facts(view, handle, job)),
        section("Proposals", table(columns, lines)),
        section("What each changes", *(_change(one, by_number) for one in proposals)),
    ]
    lead = "Texts that were tried, each below that from which it was made. The best on the held-out tasks is published."
    running = job.status in (JobStatus.QUEUED, JobStatus.RUNNING)
    return HtmlPage(f"Prompt of {_variant(view, job)}", joined(parts), live=running, lead=lead)


def _facts(view: View, handle: PromptHandle, job: TrainingJob) -> list[tuple[str, object]]:
    stored = handle.stored()
    made = stored.result.get("version")
    version = NONE if made is None else view.link(f"version {made}", "variants", job.model_id, made)
    began = stored.spec["version"]
    pairs = [
        ("status", joined([status_chip(job.status), " ", job.error_message or ""])),
        ("variant", view.link(_variant(view, job), "variants", job.model_id)),
        ("began with", view.link(f"version {began}", "variants", job.model_id, began)),
        ("result", version),
        ("reflection by", name_text(str(job.config["reflection"]))),
        ("job", view.link(short_id(job.id), "jobs", job.id)),
    ]
    return [*pairs, *([("ended because of", job.stop_reason)] if job.stop_reason and not job.error_message else [])]


def _proposal(one: PromptProposal, depth: int, best: float | None) -> tuple[object, ...]:
    is_best = best is not None and one.score == best
    name = joined(["\u00a0\u00a0" * depth, f"{one.number} ", chip("best", "better") if is_best else ""])
    return name, _number(one.after), _number(one.before), _number(one.score), one.calls, one.spent


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.4g}"


def _depth(one: PromptProposal, by_number: dict[int, PromptProposal]) -> int:
    """Return how many others a proposal was made from, one from the other."""
    depth = 0
    while one.parent is not None and one.parent in by_number:
        one, depth = by_number[one.parent], depth + 1
    return depth


def _change(one: PromptProposal, by_number: dict[int, PromptProposal]) -> Html:
    parent = None if one.parent is None else by_number.get(one.parent)
    if parent is None:
        return folded(f"{one.number}: the text that it began with", tag("pre", one.text))
    before, after = (f"{text}\n".splitlines(keepends=True) for text in (parent.text, one.text))
    lines = unified(before, after, str(parent.number), str(one.number)).splitlines(keepends=True)[2:]
    kinds = {"+": "ins", "-": "del"}
    told = tag("pre", *(tag(kinds.get(line[:1], "span"), line) for line in lines))
    return folded(f"{one.number}, from {parent.number}", told if lines else tag("p", "The same text."))


# ---- improvements


def has_improvement(view: View) -> bool:
    return bool(view.platform.part(Improve).list() or view.platform.part(StartPrompt).list())


def improvements(view: View) -> HtmlPage:
    found = [_improvement(view, one) for one in view.platform.part(Improve).list().page(SHOWN)]
    columns = [("improvement", ""), ("variant", ""), ("roads", "number"), ("status", "choice"), ("made", "brief")]
    start = 'platform.improve("desk/support", tasks, "token_f1", roads=[...], budget="5.00")'
    shown = table(columns, found) if found else empty("No improvement yet. Start one:", start)
    prompts = tag("p", view.link("Prompts that were optimised", "prompts"))
    lead = "Several roads to better answers, at equal budget: which is worth its money."
    return HtmlPage("Improvements", joined([shown, prompts]), live=True, lead=lead)


def _improvement(view: View, one: ImprovementHandle) -> tuple[object, ...]:
    job = one.stored()
    link = view.link(name_text(f"{job.project}/{one.name}"), "improvements", one.id)
    variant = view.link(name_text(f"{job.project}/{job.spec['variant']}"), "variants", job.spec["variant_id"])
    return link, variant, len(job.spec[ROADS]), status_chip(job.status), when(job.created_at)


def improvement(view: View) -> HtmlPage:
    handle = view.platform.part(Improve).get(view.params["improvement"])
    job = handle.stored()
    lines = [(one.road, view.link(short_id(one.job), "jobs", one.job) if one.job else NONE) for one in handle.roads()]
    status = joined([status_chip(job.status), " ", job.error_message or ""])
    parts = [facts([("status", status), ("job", view.link(short_id(job.id), "jobs", job.id))])]
    if job.status is JobStatus.SUCCEEDED:
        found = handle.result()
        parts += [content(found.sheet), section("Quality against money", figure(found.plot()))]
    parts.append(section("Jobs of the roads", table([("road", "choice"), ("job", "")], lines)))
    stop = view.action("Cancel", "improvements", job.id, "cancel", confirm="Cancel this?", kind="danger")
    lead = "Roads from one variant, compared on rows that none of them has seen."
    title = f"{job.project}/{handle.name}"
    return HtmlPage(title, joined([*parts, "" if job.ended else stop]), live=not job.ended, lead=lead)


def cancel(view: View) -> Redirect:
    view.platform.part(Improve).get(view.params["improvement"]).cancel()
    return Redirect(view.url("improvements", view.params["improvement"]))

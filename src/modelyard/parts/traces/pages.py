"""Traced calls: the newest, the calls of a project by op, status and time, and one call with its tree and what
answered.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import attrs

from modelyard.errors import InvalidInput, NotFound
from modelyard.parts.dashboard.view import (
    HtmlPage,
    View,
    duration,
    empty,
    json_text,
    money,
    name_text,
    short_id,
    status_chip,
    when,
    whole_number,
)
from modelyard.parts.reports.html import Html, facts, folded, html, joined, section, table, tag
from modelyard.parts.traces.call_filter import CallFilter
from modelyard.parts.traces.call_query import CallOrder, CallQuery
from modelyard.parts.traces.calls import CallLineage
from modelyard.parts.traces.evaluation_runs import EVALUATE, run_id_of
from modelyard.parts.traces.records import Feedback, TracedCall
from modelyard.report.numbers import NONE, count_text

PAGE = 50
EXAMINED = 500
"""How many calls a page reads at most to find those that it shows."""

IN_TREE = 200
"""How many calls of a trace its tree has at most."""

MOST_FEEDBACK = 50
LONGEST = 20_000
LONGEST_PROBLEM = 1000
LONGEST_NAME = 40
OUTCOMES = ("success", "error", "running")
_START = CallOrder("started_at", lambda call: call.started_at, descending=True)


@attrs.frozen
class Wanted:
    """The calls to show: `skip` of them come before the page."""

    project: str = ""
    op: str = ""
    status: str = ""
    since: datetime | None = None
    until: datetime | None = None
    inner: bool = False
    skip: int = 0

    @classmethod
    def of(cls, view: View) -> "Wanted":
        project, op, status = (view.query.get(name, "").strip() for name in ("project", "op", "status"))
        if status not in ("", *OUTCOMES):
            raise InvalidInput.at("status", msg=f"must be one of {', '.join(OUTCOMES)}")
        since, until = (_moment(view.query.get(name, ""), name) for name in ("since", "until"))
        skip = whole_number(view.query.get("skip", "0"), "skip")
        return cls(project, op, status, since, until, bool(view.query.get("inner")), skip)

    def query(self, **more: object) -> Mapping[str, object]:
        times = {name: _local(getattr(self, name)) for name in ("since", "until")}
        given = {name: getattr(self, name) for name in ("project", "op", "status")}
        return {**given, **times, "inner": "1" if self.inner else "", **more}

    @property
    def place(self) -> tuple[str, str] | None:
        """The entity and the project; None for all. Raises `InvalidInput`."""
        entity, _, project = self.project.partition("/")
        if self.project and not (entity and project):
            raise InvalidInput.at("project", msg="must be <entity>/<project>")
        return (entity, project) if self.project else None

    @property
    def filter(self) -> CallFilter:
        """The whole filter. Calls that other calls made are shown only if an op or a status is looked for."""
        return CallFilter(
            op_names=(self.op,) if self.op else (),
            outcomes=(self.status,) if self.status else (),
            roots_only=not (self.inner or self.op or self.status),
            since=self.since,
            until=self.until,
        )

    @property
    def found_first(self) -> CallFilter:
        """The part of the filter that an index finds, narrowest first; the rest is checked on the calls found."""
        whole = self.filter
        if self.status and self.status != "success":
            return attrs.evolve(whole, op_names=())
        return attrs.evolve(whole, outcomes=()) if self.op else whole


def _moment(text: str, name: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text) if text else None
    except ValueError:
        raise InvalidInput.at(name, msg="must be a time, such as 2026-11-23T08:30") from None
    return moment and (moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _local(moment: datetime | None) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S}" if moment else ""


# ---- the list ----------------------------------------------------------------------------------------------------


def listed(view: View) -> HtmlPage:
    wanted = Wanted.of(view)
    calls, further = _page(view, wanted)
    filtered = wanted != Wanted(project=wanted.project, skip=wanted.skip, inner=wanted.inner)
    columns = [("call", "brief"), ("project", "brief"), ("status", "brief"), ("asked", "text"), ("answered", "text")]
    lines = [_line(view, call) for call in calls]
    shown = table([*columns, ("started", "brief"), ("took", "number"), ("tokens", "number")], lines)
    nothing = empty("No call found here.") if filtered or wanted.skip else _nothing()
    words = "Older calls" if len(calls) == PAGE else "Look at older calls"
    more = "" if further is None else view.link(words, "traces", **wanted.query(skip=further))
    content = joined([_filters(view, wanted), shown if calls else nothing, tag("p", more)])
    lead = "Calls that programs record: what was asked, what was answered, and how long it took."
    return HtmlPage("Traces", content, live=not wanted.skip, lead=lead)


def _page(view: View, wanted: Wanted) -> tuple[Sequence[TracedCall], int | None]:
    """Return the calls of a page, and how many lie before the next one; None if no more are known."""
    if wanted.place is None:
        everywhere = view.platform.compat.traces.calls.list_all()
        read: Iterator[TracedCall] = islice(everywhere, wanted.skip, wanted.skip + EXAMINED)
    else:
        entity, project = wanted.place
        first, name = wanted.found_first, f"page {wanted.query()}"
        query = CallQuery(first, sort=(_START,), limit=EXAMINED, offset=wanted.skip, name=name)
        read = view.platform.compat.traces.calls.query(query, entity=entity, project=project)
    found, count, meant = list[TracedCall](), 0, wanted.filter
    for call in read:
        count += 1
        found += [call] if meant.keeps(call) else []
        if len(found) == PAGE:
            break
    return found, wanted.skip + count if len(found) == PAGE or count == EXAMINED else None


def _filters(view: View, wanted: Wanted) -> Html:
    options = [tag("option", "any status", value="")]
    options += [tag("option", one, value=one, selected=one == wanted.status) for one in OUTCOMES]
    fields = [
        _field("project", wanted.project, "entity/project"),
        _field("op", wanted.op, "name of an op"),
        tag("select", *options, name="status", aria_label="Status"),
        *(
            tag("label", name, " ", tag("input", type="datetime-local", step=1, name=name, value=_local(moment)))
            for name, moment in (("since", wanted.since), ("until", wanted.until))
        ),
        tag("label", tag("input", type="checkbox", name="inner", value="1", checked=wanted.inner), " inner calls"),
        tag("button", "Show"),
    ]
    return tag("form", *fields, method="get", action=view.url("traces"), role="search")


def _field(name: str, value: str, words: str) -> Html:
    return tag("input", type="search", name=name, value=value, placeholder=words, size=13, aria_label=words)


def _nothing() -> Html:
    return empty("No call yet. Trace one:", 'platform.compat.traces.calls.start("answer", {"question": "2 + 2"})')


def _line(view: View, call: TracedCall) -> Sequence[object]:
    place = f"{call.entity}/{call.project}"
    return (
        link_to(view, call),
        view.link(name_text(place), "traces", project=place),
        status_chip(call.status),
        _short(_said(call.inputs)),
        _short(call.exception or _said(call.output.get("value"))),
        when(call.started_at),
        NONE if call.latency is None else duration(call.latency),
        count_text(tokens_of(call)) if tokens_of(call) else NONE,
    )


def link_to(view: View, call: TracedCall) -> Html:
    return view.link(_name(call), "traces", call.entity, call.project, call.id)


def _name(call: TracedCall) -> str:
    name = call.display_name or call.op or "call"
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"


def _said(value: Any) -> str:
    """Return the last message of a value that is a conversation or an answer; else the whole value."""
    if isinstance(value, Mapping):
        for name in ("messages", "choices", "input", "output"):
            inner = value.get(name)
            if isinstance(inner, Sequence) and not isinstance(inner, str) and inner:
                return _said(inner[-1])
        for name in ("message", "content", "parts", "text"):
            if value.get(name):
                return _said(value[name])
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return _said(value[-1])
    return _plain(value)


def _plain(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else json_text(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({count_text(len(text))} characters)"


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:120]}…"


def tokens_of(call: TracedCall) -> int:
    usage = call.summary.get("usage")
    models = usage.values() if isinstance(usage, Mapping) else ()
    return sum(_counted(one) for one in models if isinstance(one, Mapping))


def _counted(usage: Mapping[str, Any]) -> int:
    names = ("total_tokens",), ("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens")
    sums = (sum(one for name in some if type(one := usage.get(name)) is int) for some in names)
    return next(filter(None, sums), 0)


# ---- one call ----------------------------------------------------------------------------------------------------


def call(view: View) -> HtmlPage:
    place: Any = {"entity": view.params["entity"], "project": view.params["project"]}
    if not view.principal.scope.covers(**place):
        raise NotFound("Call", view.params["call"])
    calls = view.platform.compat.traces.calls
    found = calls.lineage(view.params["call"], **place)
    one = found.call
    said = view.platform.compat.traces.feedback.list(ref=one.ref, **place).page(MOST_FEEDBACK)
    trace = CallQuery(CallFilter(trace_ids=(one.trace_id,)), limit=IN_TREE)
    content = joined(
        [
            facts(_facts(view, found)),
            _problem(one.exception),
            section("Trace", _tree(view, [*calls.query(trace, **place)], one)),
            section("Inputs", _value(one.inputs)),
            section("Output", _value(one.output.get("value"))),
            section("Feedback", _feedback(said.items)),
            section("Attributes", _value(one.attributes) if one.attributes else ""),
        ]
    )
    lead = "A recorded call: what was asked and answered, and the calls around it."
    return HtmlPage(_name(one), content, live=one.ended_at is None, lead=lead)


def _facts(view: View, found: CallLineage) -> list[tuple[str, object]]:
    one, place = found.call, f"{found.call.entity}/{found.call.project}"
    pairs: list[tuple[str, object]] = [
        ("status", status_chip(one.status)),
        ("op", view.link(one.op, "traces", project=place, op=one.op) if one.op else NONE),
        ("project", view.link(name_text(place), "traces", project=place)),
        ("started", when(one.started_at)),
        ("took", NONE if one.latency is None else duration(one.latency)),
        ("tokens", count_text(tokens_of(one)) if tokens_of(one) else NONE),
    ]
    if one.thread_id:
        pairs.append(("thread", one.thread_id))
    if one.op == EVALUATE and one.ended_at is not None:
        pairs.append(("kept as", view.link("a run", "runs", run_id_of(one))))
    return [*pairs, *_answered(view, found), ("id", one.id)]


def _answered(view: View, found: CallLineage) -> Iterator[tuple[str, object]]:
    answer = found.completion
    if answer is None:
        return
    yield "answered by", answer.model
    tokens = f"{count_text(answer.prompt_tokens)} + {count_text(answer.completion_tokens)} tokens"
    yield "booked", f"{tokens}, {money(answer.cost)}"
    yield "ledger entry", answer.id
    if answer.checkpoint is None:
        return
    model, step = answer.checkpoint.model, answer.checkpoint.checkpoint.step
    yield "checkpoint", view.link(f"{model.project}/{model.name}, step {step}", "models", model.id, step)
    job_id = answer.checkpoint.steps[0].job_id
    if job_id is not None:
        yield "trained by", view.link(joined(["job ", short_id(job_id)]), "jobs", job_id)


def _tree(view: View, calls: Sequence[TracedCall], here: TracedCall) -> Html:
    if len(calls) < 2:
        return Html("")
    known, inside = {one.id for one in calls}, dict[str | None, list[TracedCall]]()
    for one in calls:
        inside.setdefault(one.parent_id if one.parent_id in known else None, []).append(one)
    lines, waiting = list[Sequence[object]](), [(0, one) for one in reversed(inside.get(None, []))]
    while waiting:
        depth, one = waiting.pop()
        name = tag("b", _name(one)) if one.id == here.id else link_to(view, one)
        took = NONE if one.latency is None else duration(one.latency)
        lines.append((joined([html("\u2003" * min(depth, 20)), name]), status_chip(one.status), took))
        waiting += [(depth + 1, made) for made in reversed(inside.get(one.id, []))]
    rest = tag("p", f"Only the first {IN_TREE} calls of the trace are shown.") if len(calls) == IN_TREE else ""
    return joined([table([("call", ""), ("status", ""), ("took", "number")], lines), rest])


def _value(value: Any) -> Html:
    if isinstance(value, Mapping) and value and all(len(name) <= LONGEST_NAME for name in value):
        return facts((name, _shown(part)) for name, part in value.items())
    return tag("pre", _plain(value) or NONE)


def _shown(value: Any) -> Html:
    """Return a conversation as its turns, and anything else as it is."""
    turns = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
    if turns and all(isinstance(one, Mapping) and isinstance(one.get("message"), Mapping) for one in turns):
        turns = [one["message"] for one in turns]  # the choices of an answer
    if not turns or not all(isinstance(one, Mapping) and {*one} == {"role", "content"} for one in turns):
        return tag("pre", _plain(value) or NONE)
    return joined(tag("pre", tag("b", _plain(one["role"])), "\n", _plain(one["content"])) for one in turns)


def _problem(text: str | None) -> Html:
    """Return the exception of a call; a long one is folded after its first words."""
    if not text:
        return Html("")
    if len(text) <= LONGEST_PROBLEM:
        return tag("pre", text, kind="problem")
    first = tag("pre", f"{text[:LONGEST_PROBLEM]}…", kind="problem")
    return joined([first, folded(f"All {count_text(len(text))} characters", tag("pre", _plain(text)))])


def _feedback(said: Sequence[Feedback]) -> Html:
    if not said:
        return Html("")
    columns = [("type", ""), ("payload", "text"), ("by", ""), ("given", "")]
    return table(columns, [(one.type, _plain(one.payload), one.creator or NONE, when(one.created_at)) for one in said])

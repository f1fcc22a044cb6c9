"""Pages about variants: their versions, how these differ, what points to them; and the form that makes the next one."""

from itertools import islice

from modelyard.parts.dashboard.pages.keys import key_text
from modelyard.parts.dashboard.view import (
    HtmlPage,
    Redirect,
    View,
    begun,
    empty,
    name_text,
    requirement_fields,
    requirement_of,
    short_id,
    status_chip,
    verdict_chip,
    when,
    whole_number,
)
from modelyard.parts.reports.html import Html, chip, facts, folded, joined, section, table, tag
from modelyard.parts.variants.records import Variant, VariantVersion
from modelyard.parts.variants.service import VariantLineage, Variants
from modelyard.platform.models.promotion import PROD
from modelyard.report.numbers import NONE, ref_text, score_text

SHOWN = 200
ROWS = 24

EXAMPLE = """name = "desk/support"
model = "echo"
system = "Be brief."
"""


def has_variant(view: View) -> bool:
    return next(iter(view.platform.part(Variants).list()), None) is not None


# ---- all of them


def listed(view: View) -> HtmlPage:
    found = [_line(view, one) for one in islice(view.platform.part(Variants).list(order="desc"), SHOWN)]
    columns = [("variant", ""), ("entity", "brief"), ("newest", "number"), ("aliases", "brief"), ("made", "brief")]
    nothing = empty("No variant yet. Publish what a file says:", "modelyard variants import support.toml")
    shown = table(columns, found) if found else nothing
    lead = "Models with a prompt, in versions: what is served under a name, and how it changed."
    return HtmlPage("Variants", joined([shown, _form(view, EXAMPLE, "A new variant")]), lead=lead)


def _line(view: View, one: Variant) -> tuple[object, ...]:
    aliases = view.platform.part(Variants).aliases(one.id)
    names = joined(part for alias in aliases for part in (chip(f"{alias.name} → {alias.number}"), " "))
    link = view.link(name_text(f"{one.project}/{one.name}"), "variants", one.id)
    return link, name_text(one.entity), one.last_number, names, when(one.created_at)


def _form(view: View, text: str, title: str) -> Html:
    """Return the form that publishes a file; nothing if the reader may not."""
    if not view.token:
        return Html("")
    fields = [
        tag("label", "File ", tag("textarea", text, name="file", rows=ROWS, cols=100, spellcheck="false")),
        tag("label", "Why ", tag("input", name="note", size=60)),
        tag("button", "Publish", type="submit"),
    ]
    return folded(title, view.form_to("variants", content=fields))


def publish(view: View) -> Redirect:
    text = view.form.get("file", "").replace("\r\n", "\n")
    made = view.platform.part(Variants).read_file(text, note=view.form.get("note", "").strip())
    return Redirect(view.url("variants", made.variant_id, made.number))


# ---- one of them


def _name(view: View, version: object = "") -> tuple[Variant, str]:
    """Return the variant of the page, and the name of one of its versions."""
    one = view.platform.part(Variants).get(view.params["variant"])
    return one, f"{one.entity}/{one.project}/{one.name}" + (f"@{version}" if version else "")


def shown(view: View) -> HtmlPage:
    variants, (one, name) = view.platform.part(Variants), _name(view)
    versions = list(islice(variants.versions(name, order="desc"), SHOWN))
    aliases = variants.aliases(name)
    pointing = {at.number: [alias.name for alias in aliases if alias.number == at.number] for at in versions}
    columns = [
        ("version", "choice"),
        ("model", "brief"),
        ("aliases", "brief"),
        ("from", "number"),
        ("note", ""),
        ("by", "choice"),
        ("made", "brief"),
    ]
    lines = [
        (
            view.link(at.number, "variants", one.id, at.number),
            name_text(at.content.model),
            joined(part for alias in pointing[at.number] for part in (chip(alias), " ")),
            NONE
            if at.parent is None
            else view.link(at.parent, "variants", one.id, "diff", before=at.parent, after=at.number),
            tag("small", begun(at.note), kind="note"),
            key_text(view, at.by),
            when(at.created_at),
        )
        for at in versions
    ]
    served = [("served as", tag("code", f"variants/{one.project}/{one.name}"))]
    parts = [facts(served), section("Versions", table(columns, lines)), _aliases(view, one, name)]
    edit = _form(view, variants.file(name), "The next version")
    lead = "A model with a prompt: its versions, and which of them is served."
    return HtmlPage(f"{one.project}/{one.name}", joined([*parts, _compare(view, one), edit]), lead=lead)


def _compare(view: View, one: Variant) -> Html:
    if one.last_number < 2:
        return Html("")
    numbers = {"before": one.last_number - 1, "after": one.last_number}
    fields = [tag("label", f"{name} ", tag("input", name=name, value=value, size=6)) for name, value in numbers.items()]
    button = tag("button", "Compare", type="submit")
    return section("Compare", tag("form", *fields, button, method="get", action=view.url("variants", one.id, "diff")))


def _aliases(view: View, one: Variant, name: str) -> Html:
    variants = view.platform.part(Variants)
    aliases = variants.aliases(name)
    if not aliases:
        return Html("")
    columns = [("alias", ""), ("version", "number"), ("since", ""), ("", "")]
    lines = [
        (
            alias.name,
            view.link(alias.number, "variants", one.id, alias.number),
            when(alias.updated_at),
            ""
            if alias.previous is None
            else view.action(f"Back to {alias.previous}", "variants", one.id, "rollback", alias=alias.name),
        )
        for alias in aliases
    ]
    history = [("alias", ""), ("change", ""), ("to", "number"), ("verdict", ""), ("by", ""), ("when", "")]
    moves = [
        (
            move.alias,
            move.change,
            NONE if move.number is None else move.number,
            verdict_chip(move.verdict),
            key_text(view, move.by),
            when(move.created_at),
        )
        for alias in aliases
        for move in islice(variants.moves(name, alias.name, order="desc"), SHOWN)
    ]
    return section("Aliases", table(columns, lines, "narrow"), folded("History", table(history, moves)))


def diff(view: View) -> HtmlPage:
    one, _ = _name(view)
    names = [_name(view, view.query.get(end) or "latest")[1] for end in ("before", "after")]
    found = view.platform.part(Variants).diff(*names)
    lines = [_difference(line) for line in found.text.splitlines(keepends=True)[2:]]
    links = [view.link(f"version {at.number}", "variants", one.id, at.number) for at in (found.before, found.after)]
    between = tag("p", links[0], " and ", links[1], f": {', '.join(found.changed) or 'the same'}")
    lead = "Two versions: what the later one adds and takes away."
    return HtmlPage(f"{one.project}/{one.name}: what differs", joined([between, tag("pre", *lines)]), lead=lead)


def _difference(line: str) -> Html:
    kind = {"+": "ins", "-": "del"}.get(line[:1], "span")
    return tag(kind, line)


def version(view: View) -> HtmlPage:
    number = whole_number(view.params["number"], "number")
    one, name = _name(view, number)
    found = view.platform.part(Variants).lineage(name)
    text = view.platform.part(Variants).file(name)
    parts = [_facts(view, one, found), section("File", tag("pre", tag("code", text))), _runs(view, found)]
    content = joined([*parts, _promotion(view, one, found.version)])
    lead = "One version: what it says, where it comes from, and how it scores."
    return HtmlPage(f"{one.project}/{one.name}@{number}", content, lead=lead)


def _facts(view: View, one: Variant, found: VariantLineage) -> Html:
    at, of = found.version, found.checkpoint
    model: object = at.content.model
    if of is not None:
        model = view.link(at.content.model, "models", of.model.id, of.checkpoint.step)
    parent: object = NONE
    if at.parent is not None:
        parent = view.link(f"version {at.parent}", "variants", one.id, "diff", before=at.parent, after=at.number)
    pairs = [
        ("variant", view.link(f"{one.project}/{one.name}", "variants", one.id)),
        ("model", model),
        ("made from", parent),
        ("digest", tag("code", at.digest)),
        ("aliases", ", ".join(found.aliases) or NONE),
        ("note", tag("div", at.note, kind="lines") if at.note else NONE),
        ("by", key_text(view, at.by)),
        ("made", when(at.created_at)),
    ]
    return facts(pairs)


def _runs(view: View, found: VariantLineage) -> Html:
    columns = [("run", ""), ("evaluation", ""), ("state", ""), ("score", "number")]
    lines = [
        (
            view.link(short_id(run.id), "runs", run.id),
            ref_text(run.evaluation),
            status_chip(run.state),
            score_text(run),
        )
        for run in found.runs
    ]
    return section("Evaluation runs", table(columns, lines)) if lines else Html("")


def _promotion(view: View, one: Variant, at: VariantVersion) -> Html:
    if not view.token:
        return Html("")
    fields = [
        tag("label", "Alias ", tag("input", name="alias", value=PROD, size=12)),
        *requirement_fields(view),
        tag("button", f"Promote version {at.number}", type="submit"),
    ]
    return section("Promote", view.form_to("variants", one.id, at.number, "promote", content=fields))


def promote(view: View) -> Redirect:
    number, require = whole_number(view.params["number"], "number"), requirement_of(view)
    view.platform.part(Variants).promote(view.params["variant"], number, view.form.get("alias", PROD), require=require)
    return Redirect(view.url("variants", view.params["variant"]))


def rollback(view: View) -> Redirect:
    view.platform.part(Variants).rollback(view.params["variant"], view.form.get("alias", PROD))
    return Redirect(view.url("variants", view.params["variant"]))

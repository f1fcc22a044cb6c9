"""Tags and notes: shown with what they are given to, changed, and searched."""

from itertools import islice

from modelyard.parts.annotations.records import MAX_TAGS, AnnotatedKind, Annotation
from modelyard.parts.dashboard.view import Redirect, View, begun, whole_number
from modelyard.parts.reports.html import Html, chip, folded, joined, tag

SEARCHED = 1000
"""How many of the newest annotations of a kind are searched."""

SHOWN_TAGS = 6
"""How many tags a line of a list shows."""


def annotated(view: View, kind: AnnotatedKind, text: str) -> frozenset[str]:
    """Return the ids of the newest annotated subjects of a kind that have the text in a tag or the note."""
    found = islice(view.platform.annotations.list(kind=kind, order="desc"), SEARCHED)
    return frozenset(one.subject for one in found if one.has(text))


def annotated_cell(view: View, shown: Html, one: Annotation | None, section: str, message: str = "") -> Html:
    """Return a cell of a list with the tags, the note and the message of its line below it: few lines have any, so a
    column for them would be empty."""
    tags = tag("div", _tags(view, one, section, SHOWN_TAGS)) if one and one.tags else ""
    notes = (tag("small", text, kind="note") for text in (begun(one.note) if one else "", message) if text)
    return joined([shown, tags, *notes])


def _tags(view: View, one: Annotation, section: str, most: int = MAX_TAGS) -> Html:
    links = [tag("a", chip(name), href=view.url(section, q=name)) for name in one.tags[:most]]
    more = [f"and {len(one.tags) - most} more"] if len(one.tags) > most else []
    return joined(part for link in (*links, *more) for part in (link, " "))


def notes(view: View, subject: str, section: str, *path: object) -> Html:
    """Return the tags and the note of a subject, with the form to change them. `path` is the subject's page."""
    one = view.platform.annotations.get(subject)
    shown = joined([tag("p", _tags(view, one, section)) if one.tags else "", tag("pre", one.note) if one.note else ""])
    if not view.token:
        return shown
    fields = [
        tag("label", "Tags, with commas between ", tag("input", name="tags", value=", ".join(one.tags), size=40)),
        tag("label", " Note ", tag("textarea", one.note, name="note", rows=3, cols=60)),
        tag("button", "Save", type="submit"),
    ]
    return joined([shown, folded("Tags and note", view.form_to(*path, "annotate", content=fields))])


def annotate(view: View) -> Redirect:
    section, subject = next(iter(view.params.items()))
    path: tuple[object, ...] = (f"{section}s", subject)
    if "step" in view.params:
        step = whole_number(view.params["step"], "step")
        path = (*path, step)
        subject = view.platform.models.checkpoint(subject, step).id
    tags = [name for part in view.form.get("tags", "").split(",") if (name := part.strip())]
    note = view.form.get("note", "").replace("\r\n", "\n").strip()
    view.platform.annotations.set(subject, tags=tags, note=note)
    return Redirect(view.url(*path))

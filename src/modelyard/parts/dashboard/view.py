"""From the request for a page to its HTML: the caller's view of the platform, links, forms, the frame."""

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from threading import Lock
from typing import Any
from urllib.parse import quote, urlencode
from weakref import WeakValueDictionary

import attrs

from modelyard.domain.canonical import canonical_json
from modelyard.domain.evaluation.comparison import Verdict
from modelyard.domain.identity import Principal
from modelyard.domain.promotion import NotWorse
from modelyard.domain.training import DatasetName
from modelyard.errors import InvalidInput, ModelyardError
from modelyard.part import DashboardPage
from modelyard.parts.reports.html import Html, chip, html, joined, shortened, tag
from modelyard.platform.platform import Platform
from modelyard.report.numbers import NONE, count_text, id_text

PREFIX = "dashboard"
"""The first segment of the path of every page."""

NAVIGATION = (
    ("Home", ""),
    ("Jobs", "jobs"),
    ("Models", "models"),
    ("Runs", "runs"),
)
"""What the navigation begins with; after it come the labelled pages of parts."""

NAVIGATION_END = (
    ("Usage", "usage"),
    ("Keys", "keys"),
    ("Catalogue", "catalogue"),
    ("API", "api"),
)

LONGEST_NAME = 72
"""How many characters of a name are shown."""

LONGEST_NOTE, LONGEST_MESSAGE = 80, 200

AT_ONCE = 1000
"""How many trials are read at most before a page is shown."""

_OF = {"compare": "runs"}
_GOOD = frozenset({"succeeded", "completed", "success"})
_BAD = frozenset({"failed", "error"})
_LIVE = frozenset({"running"})


@attrs.frozen
class HtmlPage:
    """A page: its title and content. A `live` page is sent again whenever it has changed. The `lead`, below the title,
    says what the page tells, to somebody who has never seen it."""

    title: str
    content: Html
    live: bool = False
    status: int = 200
    lead: object = ""


@attrs.frozen
class Redirect:
    """Where an action leads: the address of a page."""

    to: str


NOTHING = Html("")


class Kept:
    """The last few parts of pages that took long to make and never change. Each is made once, also for many readers."""

    MOST = 128

    def __init__(self) -> None:
        self._parts: OrderedDict[object, Html] = OrderedDict()
        self._making: WeakValueDictionary[object, _Making] = WeakValueDictionary()
        self._lock = Lock()

    def get(self, key: object) -> Html | None:
        with self._lock:
            if (part := self._parts.get(key)) is not None:
                self._parts.move_to_end(key)
            return part

    def __call__(self, key: object, make: Callable[[], Html]) -> Html:
        with self._lock:
            making = self._making.setdefault(key, _Making())
        with making.lock:
            if (kept := self.get(key)) is not None:
                return kept
            part = make()
            with self._lock:
                self._parts[key] = part
                while len(self._parts) > self.MOST:
                    self._parts.popitem(last=False)
            return part


@attrs.define(eq=False)
class _Making:
    """Held by the thread that makes a part; others wait."""

    lock: Lock = attrs.field(factory=Lock)


@attrs.frozen
class View:
    """A request for a page: the platform as the caller may see it, and what was asked.

    `root` is the path where the application is mounted. `token` proves that a form comes from one of our pages.
    Without a `token` nothing can be changed.
    """

    platform: Platform
    principal: Principal
    root: str
    params: Mapping[str, str]
    query: Mapping[str, str]
    form: Mapping[str, str]
    now: datetime
    document: Callable[[], Mapping[str, Any]]
    has_api: bool
    kept: Kept
    token: str = ""
    section: str = ""

    @property
    def host(self) -> bool:
        """Whether the caller is the host, who sees every entity."""
        return self.principal.scope.entity is None

    def url(self, *segments: object, **query: object) -> str:
        path = "/".join(quote(str(segment), safe="") for segment in segments)
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return f"{quote(self.root)}/{PREFIX}/{path}" + (f"?{urlencode(given)}" if given else "")

    def link(self, shown: object, *segments: object, **query: object) -> Html:
        return tag("a", shown, href=self.url(*segments, **query))

    def part(self, key: object, trials: Callable[[], int], make: Callable[[], Html], before: Html = NOTHING) -> Html:
        """Return a kept part. A part that reads too many trials is left out at first; `before` takes its place."""
        if self.kept.get(key) is None and (link := self.later(trials)):
            return joined([before, link])
        return self.kept(key, make)

    def later(self, trials: Callable[[], int]) -> Html:
        """Return nothing if this page may read so many trials at once, or else a link to the whole page.

        The script follows the link and shows the whole page in place.
        """
        if "whole" in self.query or (count := trials()) <= AT_ONCE:
            return NOTHING
        query = {name: value for name, value in self.query.items() if name != "live"}
        link = tag("a", "Show it", href=f"?{urlencode({**query, 'whole': 1})}")
        reading = f"Reading {count_text(count)} trials…"
        return tag("p", f"There is more, from {count_text(count)} trials. ", link, role="status", data_load=reading)

    def action(self, label: str, *segments: object, kind: str = "", confirm: str = "", **fields: object) -> Html:
        """Return a button that changes something; nothing if the reader may not."""
        if not self.token:
            return Html("")
        hidden = [tag("input", type="hidden", name=name, value=value) for name, value in fields.items()]
        question = tag("button", label, type="submit", kind=kind, data_confirm=confirm or None)
        return self.form_to(*segments, content=[*hidden, question])

    def form_to(self, *segments: object, content: Iterable[object]) -> Html:
        token = tag("input", type="hidden", name="token", value=self.token)
        return tag("form", token, *content, method="post", action=self.url(*segments))


Handler = Callable[[View], HtmlPage | Redirect | Iterator[bytes]]
"""What answers a request: with a page, by leading to another, or with a file, piece by piece."""


# ---- values ------------------------------------------------------------------------------------------------------


def status_chip(status: str) -> Html:
    kind = "better" if status in _GOOD else "worse" if status in _BAD else "live" if status in _LIVE else ""
    return chip(status, kind)


def verdict_chip(verdict: Mapping[str, Any]) -> Html:
    """Show what a promotion's comparison has shown: by which metrics the new checkpoint is better, if by any."""
    if not verdict:
        return tag("span", "no requirement", kind="quiet")
    shown = {name: one["verdict"] for name, one in verdict.get("metrics", {}).items()}
    if not shown:
        return chip(verdict["outcome"])
    words = [
        f"{found} on {', '.join(names)}"
        for found in (Verdict.BETTER, Verdict.WORSE)
        if (names := [name for name, one in shown.items() if one == found])
    ]
    return (
        chip("; ".join(words), "better" if Verdict.WORSE not in shown.values() else "") if words else chip("not worse")
    )


def when(at: datetime | None) -> Html:
    if at is None:
        return html(NONE)
    return tag("time", f"{at:%Y-%m-%d %H:%M:%S} UTC", datetime=at.isoformat())


def lasted(start: datetime | None, end: datetime | None) -> str:
    return NONE if start is None or end is None else duration((end - start).total_seconds())


def duration(seconds: float) -> str:
    """Return a duration in its two largest units.

    >>> duration(0.0042), duration(4.2), duration(75), duration(7384), duration(200000)
    ('4.2 ms', '4.2 s', '1 min 15 s', '2 h 3 min', '2 d 7 h')
    """
    if 0 < seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{max(seconds, 0.0):.2g} s"
    for size, name, part, small in ((60, "min", 1, "s"), (3600, "h", 60, "min"), (86400, "d", 3600, "h")):
        if seconds < size * 60 or name == "d":
            return f"{int(seconds // size)} {name} {int(seconds % size // part)} {small}"
    raise AssertionError("a day is the largest unit")


def money(amount: Decimal) -> str:
    """Return an amount in USD with as many digits as people read.

    >>> money(Decimal("12.3456")), money(Decimal("0.00001234")), money(Decimal(0))
    ('$12.35', '$0.0000123', '$0')
    """
    if not amount:
        return "$0"
    return (
        f"${amount:,.2f}"
        if abs(amount) >= 1
        else f"${float(amount):.3g}"
        if abs(amount) >= Decimal("0.0001")
        else (f"${amount:.{-amount.adjusted() + 2}f}")
    )


def whole_number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise InvalidInput.at(name, msg="must be a whole number of at most 9 digits")
    return int(text)


def short_id(id: str) -> Html:
    return tag("span", id_text(id), kind="id", title=None if id_text(id) == id else id)


def name_text(name: str) -> Html:
    """Return a name, of which a long one loses its middle; both ends tell it from others.

    >>> name_text("bots/desk")
    'bots/desk'
    """
    return shortened(_without_middle(name), name)


def dataset_link(view: View, url: str) -> Html:
    """Return a link to the page of a data set, by its name; the URL itself if it is not one of a data set."""
    named = DatasetName.parse(url)
    if named is None:
        return html(url)
    version = "latest" if named.version is None else f"v{named.version}"
    shown = name_text(f"{named.project}/{named.name}:{version}")
    return view.link(shown, "datasets", named.entity, named.project, f"{named.name}:{version}")


def _without_middle(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME // 2]}…{name[-LONGEST_NAME // 2 + 1 :]}"


def begun(text: str, most: int = LONGEST_NOTE) -> str:
    """Return as much of a text as a line of a list shows."""
    return text if len(text) <= most else f"{text[:most]}…"


def json_text(value: object) -> str:
    """Return a value as JSON that people read: letters of every script as they are."""
    text = json.dumps(json.loads(canonical_json(value)), ensure_ascii=False)
    return text.encode(errors="backslashreplace").decode()


def bar(part: float, whole: float, label: str) -> Html:
    return joined([tag("progress", value=min(part, whole), max=whole or 1, aria_label=label), tag("small", label)])


def empty(text: str, *command: str) -> Html:
    return tag("div", tag("p", text), *(tag("pre", tag("code", line)) for line in command), kind="empty")


# ---- the frame ---------------------------------------------------------------------------------------------------


def framed(view: View, page: HtmlPage) -> Html:
    head = joined(
        [
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width,initial-scale=1"),
            tag("title", f"{page.title} · modelyard"),
            tag("link", rel="stylesheet", href=view.url("static", "style.css")),
            tag("link", rel="icon", href="data:,"),
            tag("script", src=view.url("static", "live.js"), defer=True),
        ]
    )
    lead = tag("p", page.lead, kind="quiet lead") if page.lead else ""
    main = tag(
        "main", tag("h1", *_title(page.title)), lead, page.content, kind="modelyard", id="content", data_live=page.live
    )
    skip = tag("a", "Skip to content", href="#content", kind="skip")
    body = tag("body", skip, _header(view), main)
    return Html(f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>{body}</html>\n')


def _title(title: str) -> Iterator[Html]:
    return map(name_text, re.split("( )", title))


def _is_shown(view: View, page: DashboardPage) -> bool | None:
    """Return whether a page is in the navigation; None if the store is away. What was shown once stays; of nobody
    nothing is asked."""
    key = ("shown", view.principal, page.path)
    if not view.principal.entity:
        return False
    if view.kept.get(key) is not None:
        return True
    try:
        shown = page.is_shown(view)
    except ModelyardError:
        return None
    if shown:
        view.kept(key, lambda: html(page.label))
    return shown


def _header(view: View) -> Html:
    pages = (page for part in view.platform.parts for page in part.pages())
    labelled = [(page, "/".join(page.path)) for page in pages if page.label]
    of_parts, asks = list[tuple[str, str]](), True
    for page, path in labelled:
        shown = path == view.section or (_is_shown(view, page) if asks else None)
        asks = shown is not None  # a store that is away is waited for once
        if shown:
            of_parts.append((page.label, path))
    of_parts.sort()
    links = (
        tag(
            "a",
            label,
            href=view.url(path),
            aria_current="page" if path == _OF.get(view.section, view.section) else None,
        )
        for label, path in (*NAVIGATION, *of_parts, *NAVIGATION_END)
        if view.has_api or path != "api"  # a page of one sentence
    )
    who = tag("span", view.principal.name, kind="quiet") if view.principal.name else ""
    leave = view.action("Log out", "logout") if view.token else tag("span", "read-only", kind="chip") if who else ""
    if view.principal.scope.entity == "":
        return tag("header", tag("a", "modelyard", href=view.url(""), kind="brand"))  # of nobody, who has no page
    fold = [tag("input", type="checkbox", id="menu", kind="fold"), tag("label", "Menu", for_="menu", kind="fold")]
    brand = tag("a", "modelyard", href=view.url(""), kind="brand")
    return tag("header", brand, *fold, tag("nav", *links, aria_label="Pages"), who, leave)


def requirement_fields(view: View) -> list[Html]:
    """Return the fields of a form that promotes only what is not worse: by its scores, or by what people label."""
    evaluation = tag("input", name="evaluation", placeholder="no requirement", size=20)
    fields = [tag("label", " if not worse on the evaluation ", evaluation)]
    if "review" in dir(view.platform):
        margin = tag("input", name="margin", placeholder="by scores alone", size=14, inputmode="decimal")
        fields.append(tag("label", " by labels, at most worse by ", margin))
    return fields


def requirement_of(view: View) -> Any:
    """Return what such a form requires. Raises `InvalidInput`."""
    evaluation, margin = (view.form.get(name, "").strip() for name in ("evaluation", "margin"))
    if not margin:
        return NotWorse(evaluation) if evaluation else None
    if not evaluation:
        raise InvalidInput.at("evaluation", msg="is required where labels decide", type="missing")
    try:
        allowed = float(margin)
    except ValueError:
        raise InvalidInput.at("margin", msg="must be a number above 0: by how much it may be worse") from None
    return view.platform.review.not_worse(evaluation, allowed)

"""One self-contained HTML page: no script and no other file, light or dark as its reader prefers. Everything that is
shown is escaped here. `Html` is text that is escaped already; `html` converts anything else to it."""

import os
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import PurePath

from modelyard.errors import InvalidInput
from modelyard.part import check_place

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""The page may load nothing, so that even unescaped markup would not run."""

UNFOLDED = 10

AS_TABLE = 3
"""With how many columns a table stays one on a narrow screen."""

STYLE = """
.modelyard{font:14px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;max-width:1180px;margin:0 auto}
.modelyard h1,.modelyard h2,.modelyard h3{font-weight:700;line-height:1.25;padding:0;overflow-wrap:anywhere}
.modelyard h1{font-size:24px;margin:0 0 4px;letter-spacing:-.01em}
.modelyard h2{font-size:16px;margin:36px 0 10px}
.modelyard h3{font-size:14px;margin:20px 0 8px}
.modelyard p{margin:6px 0;max-width:76ch;overflow-wrap:anywhere}
.modelyard .headline{font-size:18px;line-height:1.4;margin:10px 0 16px;overflow-wrap:anywhere}
.modelyard .quiet,.modelyard dt,.modelyard caption{opacity:.68}
.modelyard dl{display:grid;grid-template-columns:fit-content(40%) minmax(0,1fr);gap:2px 18px;margin:14px 0}
.modelyard dt{float:none;font-weight:400;width:auto;margin:0;overflow-wrap:anywhere}
.modelyard dd{margin:0;overflow-wrap:anywhere}
.modelyard [title]{text-decoration:underline dotted rgba(128,128,128,.7);text-underline-offset:3px}
.modelyard code{background:none;border:0;padding:0;font-size:12px}
.modelyard .wide{overflow-x:auto;border:1px solid rgba(128,128,128,.28);border-radius:10px}
.modelyard .narrow{width:fit-content;max-width:100%;min-width:320px}
.modelyard table{border:0;border-collapse:collapse;table-layout:auto;width:100%;margin:0;font-size:inherit}
.modelyard table{font-variant-numeric:tabular-nums}
.modelyard tr{background:none;border:0}
.modelyard th,.modelyard td{text-align:left;padding:8px 12px;vertical-align:top;background:none;border:0}
.modelyard th,.modelyard td{max-width:none;line-height:inherit;white-space:normal}
.modelyard th{font-weight:600;font-size:12px;opacity:.72;white-space:nowrap;vertical-align:bottom}
.modelyard tr+tr td,.modelyard thead+tbody td{border-top:1px solid rgba(128,128,128,.2)}
.modelyard td.number,.modelyard th.number{text-align:right;white-space:nowrap}
.modelyard td.text{min-width:160px;max-width:360px;white-space:pre-wrap;overflow-wrap:anywhere}
.modelyard td.text{font:12px/1.45 ui-monospace,Menlo,Consolas,monospace}
.modelyard th.wraps{white-space:normal}
.modelyard td.word{white-space:nowrap}
.modelyard td small{display:block;opacity:.68;white-space:nowrap}
.modelyard td.long,.modelyard td.long small{min-width:140px;white-space:normal;overflow-wrap:anywhere}
.modelyard th.long,.modelyard td:has(.chip.long){min-width:140px;white-space:normal;overflow-wrap:anywhere}
.modelyard td small.note{min-width:140px;white-space:normal;overflow-wrap:anywhere}
.modelyard .strip{display:block;margin:2px 0;min-width:170px;max-width:none}
.modelyard .chip{display:inline-block;padding:1px 9px;border-radius:99px;background:rgba(128,128,128,.18)}
.modelyard .chip{font-size:12px;font-weight:600;white-space:nowrap}
.modelyard .chip.long{border-radius:10px;white-space:normal;overflow-wrap:anywhere}
.modelyard .chip.better{background:#009E7333}
.modelyard .chip.worse{background:#D55E0033}
.modelyard .plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,366px),1fr));gap:14px}
.modelyard figure{margin:0;max-width:400px;padding:12px;border:1px solid rgba(128,128,128,.28);border-radius:10px}
.modelyard figure.large{max-width:760px;margin:0 0 14px}
.modelyard figure svg{display:block;width:100%;height:auto}
.modelyard .when-narrow{display:none}
.modelyard details{margin:10px 0}
.modelyard summary{display:list-item;cursor:pointer;font-weight:600;padding:4px 0}
@media (max-width:700px){
.modelyard .when-wide{display:none}
.modelyard .when-narrow{display:block}
.modelyard th,.modelyard th.number{white-space:normal}
.modelyard .cards{overflow-x:visible;border:0}
.modelyard .cards table,.modelyard .cards tbody{display:block}
.modelyard .cards thead{position:absolute;left:-9999px}
.modelyard .cards tr{display:block;margin:0 0 10px;padding:6px 0}
.modelyard .cards tr{border:1px solid rgba(128,128,128,.28);border-radius:10px}
.modelyard .cards td,.modelyard .cards td.number{display:block;text-align:left;border:0;padding:3px 12px}
.modelyard .cards td,.modelyard .cards td.number{white-space:normal}
.modelyard .cards td,.modelyard .cards td.text{max-width:none;overflow-wrap:anywhere}
.modelyard .cards td.text{white-space:pre-wrap}
.modelyard .cards td:not([data-label=""])::before{content:attr(data-label) " ";font:600 12px system-ui;opacity:.72}
.modelyard .cards td:empty{display:none!important}
.modelyard .cards td.brief,.modelyard .cards td.choice,.modelyard .cards td.number{display:inline-block}
.modelyard .cards td.brief,.modelyard .cards td.choice,.modelyard .cards td.number{padding:1px 0 1px 12px}
.modelyard .cards td.brief:has(.note){padding-right:12px}
.modelyard .cards td.brief small:not(.note){display:inline;margin-left:6px}
.modelyard .cards td.brief:not([data-label=""])::before{content:none}
}
@media (forced-colors:active){.modelyard .chip{border:1px solid}}
@media print{
.modelyard .chip{border:1px solid rgba(128,128,128,.6)}
.modelyard{max-width:none;font-size:11px}
.modelyard .wide{overflow:visible;border:0}
.modelyard th,.modelyard td,.modelyard td.number,.modelyard th.number{white-space:normal}
.modelyard td small,.modelyard .chip{white-space:normal}
.modelyard th,.modelyard td{padding:3px 5px;overflow-wrap:anywhere}
.modelyard td.text{min-width:0;max-width:none;font-size:10px;white-space:pre-wrap}
.modelyard .strip{min-width:0}
.modelyard details::details-content{content-visibility:visible;display:block;height:auto}
.modelyard tr,.modelyard figure{break-inside:avoid}
.modelyard thead{display:table-header-group}
}
"""

_PAGE_STYLE = """
:root{color-scheme:light dark}
body{margin:0;padding:32px 28px 64px;background:#fff;color:#1a1d21}
@media screen and (prefers-color-scheme:dark){body{background:#15181c;color:#e6e8eb}}
@media print{:root{color-scheme:light}body{padding:0}}
"""


class Html(str):
    """Markup, in which nothing needs to be escaped any more."""

    __slots__ = ()


_MARKUP, _LONG = re.compile("<[^>]*>"), re.compile(r"[^\s-]{24}")
"""A cell with so long a word is broken anywhere, or else its table would be wider than the page."""

_HYPHENS, LONGEST_WORD = re.compile(r"\w+(-\w+)+"), 18
"""A cell that is one short name with hyphens is not broken there."""

LONG_HEADING, LONG_CHIP = 32, 36

_VOID = frozenset({"input", "link", "meta"})


def html(value: object) -> Html:
    return value if isinstance(value, Html) else Html(escape(str(value)))


def joined(parts: Iterable[object]) -> Html:
    return Html("".join(map(html, parts)))


def tag(name: str, /, *content: object, kind: str = "", **attributes: object) -> Html:
    """Return an element with this content, CSS class and attributes.

    An underscore in the name of an attribute is a hyphen, one at its end nothing. False and None leave it out, True
    gives it no value.

    >>> tag("label", "Key", for_="key", data_live=True)
    '<label for="key" data-live>Key</label>'
    """
    opened = name + "".join(_attribute(key, value) for key, value in {"class": kind or None, **attributes}.items())
    return Html(f"<{opened}>") if name in _VOID else Html(f"<{opened}>{joined(content)}</{name}>")


def _attribute(name: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def shortened(shown: str, whole: str) -> Html:
    return html(shown) if shown == whole else Html(f'<span title="{escape(whole)}">{escape(shown)}</span>')


def facts(pairs: Iterable[tuple[object, object]]) -> Html:
    return tag("dl", *(part for name, value in pairs for part in (tag("dt", name), tag("dd", value))))


def table(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[object]], kind: str = "") -> Html:
    """Return a table; a column is its heading and its classes ("number", "text", "brief", "choice", "wraps"). A column
    in which every row has "" is left out. A "narrow" `kind` is small, and a heading that "wraps" takes several lines.
    On a narrow screen the rows of a table with more than `AS_TABLE` columns, or with "text", are cards with the
    headings in their lines; "choice" and "number" columns share a line, and so do "brief" ones, without headings."""
    rows = [*rows]
    shown = [at for at in range(len(columns)) if not rows or any(row[at] != "" for row in rows)]
    columns, rows = [columns[at] for at in shown], [[row[at] for at in shown] for row in rows]
    cards = len(columns) > AS_TABLE or any("text" in kind for _, kind in columns)
    head = tag("tr", *(tag("th" if name else "td", name, kind=_heading(name, of)) for name, of in columns))
    lines = (tag("tr", *(_cell(*one, cards) for one in zip(row, columns, strict=True))) for row in rows)
    kinds = " ".join(filter(None, ("wide", "cards" if cards else "", kind)))
    return tag("div", tag("table", tag("thead", head), tag("tbody", *lines)), kind=kinds)


def _heading(name: str, kind: str) -> str:
    return f"{kind} long".strip() if len(name) > LONG_HEADING or _LONG.search(name) else kind


def _cell(cell: object, column: tuple[str, str], labelled: bool) -> Html:
    name, kind = column
    text = _MARKUP.sub(" ", str(cell)).strip()
    if _LONG.search(text):
        kind = f"{kind} long".strip()
    elif len(text) <= LONGEST_WORD and _HYPHENS.fullmatch(text):
        kind = f"{kind} word".strip()
    return tag("td", cell, kind=kind, data_label=name if labelled else None)


def chip(text: str, kind: str = "") -> Html:
    long = "long" if len(text) > LONG_CHIP or _LONG.search(text) else ""
    return tag("span", text, kind=" ".join(filter(None, ("chip", kind, long))))


def section(title: str, *content: object) -> Html:
    inside = joined(content)
    return tag("section", tag("h2", title), inside) if inside else Html("")


def folded(title: str, *content: object) -> Html:
    return tag("details", tag("summary", title), *content)


def long_table(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[object]]) -> Html:
    shown = table(columns, rows[:UNFOLDED])
    rest = rows[UNFOLDED:]
    return joined([shown, folded(f"{len(rest):,} more", table(columns, rest))]) if rest else shown


def plots(drawings: Iterable[str]) -> Html:
    """Return SVG drawings side by side. They are trusted: their author has escaped them."""
    figures = [tag("figure", Html(drawing)) for drawing in drawings]
    return tag("div", *figures, kind="plots") if figures else Html("")


def drawing(wide: str, narrow: str) -> Html:
    """Return a figure with an SVG drawing, and the one that a narrow screen shows in its place. They are trusted."""
    shown = (tag("div", Html(one), kind=kind) for one, kind in ((wide, "when-wide"), (narrow, "when-narrow")))
    return tag("figure", *shown, kind="large")


def fragment(*content: object) -> Html:
    """Return a piece for a notebook. Its rules outweigh those that notebooks have for tables, of up to two classes."""
    style = Html(STYLE.replace(".modelyard", ".modelyard" * 3))
    return joined([tag("style", style), tag("div", *content, kind="modelyard")])


def page(title: str, *content: object) -> Html:
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
        f"<title>{escape(title)}</title><style>{_PAGE_STYLE}{STYLE}</style>"
    )
    body = tag("main", *content, kind="modelyard")
    return Html(f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n')


# ---- files -------------------------------------------------------------------------------------------------------


def checked_ending(path: str | os.PathLike[str], *known: str) -> str:
    """Return the ending of a file's name, which says what is written to it. Raises `InvalidInput` if it is not one of
    those that are `known`, for an address, and for a folder that is not there."""
    ending = PurePath(path).suffix
    if ending not in known:
        *others, last = known
        raise InvalidInput.at("path", msg=f"must end in {', '.join(others)}{' or ' if others else ''}{last}")
    check_place(path)
    return ending


def write_text(path: str | os.PathLike[str], text: str, ending: str = ".html") -> None:
    """Write a page, or what else has this ending, to a file. Raises `InvalidInput` if its name ends otherwise."""
    checked_ending(path, ending)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)

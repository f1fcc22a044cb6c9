"""A report of tables: as text, as Markdown, as a page and in a notebook."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs

from modelyard.parts.reports import html, markdown
from modelyard.report.table import printable, text_table


@attrs.frozen
class SheetTable:
    """A table: its title, headings and cells. The columns in `right` are numbers."""

    title: str
    headings: Sequence[str]
    lines: Sequence[Sequence[object]]
    right: Sequence[str] = ()


@attrs.frozen
class Sheet:
    """The content of a report: its title, what it says first, tables, and notes on these."""

    title: str
    sentences: Sequence[str]
    tables: Sequence[SheetTable]
    notes: Sequence[str] = ()


class Shown:
    """What a `sheet` is shown as: `print` it, leave it at the end of a notebook's cell, or save it."""

    @property
    def sheet(self) -> Sheet:
        raise NotImplementedError

    def __str__(self) -> str:
        sheet = self.sheet
        tables = [f"{one.title}\n\n{text_table(one.headings, one.lines, right=one.right)}" for one in sheet.tables]
        texts = (map(printable, texts) for texts in (sheet.sentences, sheet.notes))
        above, below = ("\n".join(lines) for lines in texts)
        return "\n\n".join(filter(None, (printable(sheet.title), above, *tables, below)))

    @property
    def markdown(self) -> str:
        """The report as Markdown, for a comment on a pull request."""
        sheet = self.sheet
        return markdown.joined(
            [
                f"### {markdown.plain(sheet.title)}",
                _bullets(sheet.sentences),
                *(part for one in sheet.tables for part in (f"**{markdown.plain(one.title)}**", _table(one))),
                _bullets(sheet.notes),
            ]
        )

    @property
    def html(self) -> str:
        """The whole page, which needs no other file."""
        return html.page(self.sheet.title, html.tag("h1", self.sheet.title), content(self.sheet))

    def _repr_html_(self) -> str:
        return html.fragment(html.tag("h3", self.sheet.title), content(self.sheet))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file of the kind that its ending names: .html or .md. Raises `InvalidInput`."""
        Path(path).write_text(getattr(self, checked_ending(path)), encoding="utf-8")


_KINDS = {".html": "html", ".md": "markdown"}


def checked_ending(path: str | os.PathLike[str]) -> str:
    """Return what is written to a file with this ending. Raises `InvalidInput`, also for a folder that is not there."""
    return _KINDS[html.checked_ending(path, *_KINDS)]


def content(sheet: Sheet) -> html.Html:
    """Return the parts of a sheet below its title."""
    return html.joined(
        [
            *(html.tag("p", one, kind="headline") for one in sheet.sentences),
            *(html.section(one.title, html.table(_columns(one), one.lines)) for one in sheet.tables),
            *(html.tag("p", one, kind="quiet") for one in sheet.notes),
        ]
    )


def _columns(one: SheetTable) -> list[tuple[str, str]]:
    return [(name, "number" if name in one.right else "") for name in one.headings]


def _table(one: SheetTable) -> str:
    return markdown.table(one.headings, [[markdown.plain(cell) for cell in line] for line in one.lines], one.right)


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"* {markdown.plain(line)}" for line in lines)

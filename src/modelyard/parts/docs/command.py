"""`modelyard docs`: a page of the docs, found by the words that people type."""

import re
from collections.abc import Iterator, Sequence

import click

from modelyard.errors import nearest
from modelyard.parts.docs.pages import SITE, DocsPage, pages

MAX_TOPIC = 200
"""Characters at most of a topic that an error repeats, and looks for neighbours of."""

MOST_PAGES = 8
"""Pages at most that are listed because of their texts."""

OF_THE_API = "reference/api/"

_WORD = re.compile(r"\w{3,40}")


@click.command()
@click.argument("topic", nargs=-1)
def docs(topic: tuple[str, ...]) -> object:
    """Show a page of the docs as Markdown, or list the pages.

    TOPIC is the name of a page (`train`, `reference/cli`), its title, or a word for what you look for (`mock`, `helm`).
    Of several pages that fit, each is listed. If none fits, those are that have all of the words in their text.
    """
    try:
        known = pages()
    except FileNotFoundError as missing:
        raise click.ClickException(f"this installation has no docs: {SITE} has them") from missing
    wanted = " ".join(topic)
    found = matching(known, wanted)
    if not found:
        raise click.ClickException(unknown(known, wanted))
    shown = found[0].text if wanted and len(found) == 1 else "\n".join(listing(found))
    click.echo_via_pager(shown.rstrip("\n"))  # which ends it with a line
    one = found[0] if wanted and len(found) == 1 else None
    pages_listed = [{"name": page.name, "title": page.title, "sentence": page.sentence} for page in found]
    return pages_listed if one is None else {"name": one.name, "title": one.title, "text": one.text}


def matching(known: Sequence[DocsPage], wanted: str) -> Sequence[DocsPage]:
    """Return the pages that a topic names, the one first that it names most, and none of the API if another says
    "Also:" so; else those with all of its words in title and "Also:", or in their text; all without one."""
    whole, words = _plain(wanted), _plain(wanted).split()
    named = sorted((page for page in known if whole in _names(page)), key=lambda page: _names(page).index(whole))
    if any(whole in map(_plain, page.also) for page in named):
        named = [page for page in named if not page.name.startswith(OF_THE_API)]
    titled = named or [page for page in known if all(word in " ".join(_names(page)) for word in words)]
    return titled or _saying(known, words)


def _saying(known: Sequence[DocsPage], words: Sequence[str]) -> Sequence[DocsPage]:
    """Return the pages whose text has all of the words, those first that have them most often."""
    if not all(map(_WORD.fullmatch, words)):
        return []
    pages_only = [page for page in known if page.name != "changelog"]
    often = {page.name: min(page.text.lower().count(word) for word in words) for page in pages_only}
    found = sorted(pages_only, key=lambda page: -often[page.name])
    return [page for page in found if often[page.name]][:MOST_PAGES]


def _names(page: DocsPage) -> Sequence[str]:
    last = page.name.rpartition("/")[2]
    return [_plain(name) for name in (page.name, page.path, last, page.title, *page.also)]


def _plain(name: str) -> str:
    return " ".join(name.lower().removesuffix(".md").replace("-", " ").split())


def listing(found: Sequence[DocsPage]) -> Iterator[str]:
    """Yield a line for each page: what to ask for, and its sentence."""
    width = max(len(page.name) for page in found)
    for page in found:
        yield f"{page.name:{width}}  {page.sentence}"


def unknown(known: Sequence[DocsPage], wanted: str) -> str:
    shown = wanted if len(wanted) <= MAX_TOPIC else f"{wanted[:MAX_TOPIC]}..."
    names = {name for page in known for name in (page.name, page.name.rpartition("/")[2], page.title, *page.also)}
    by_words = {word: name for name in names for word in _plain(name).split()}
    hint = nearest(shown, names) or nearest(_plain(shown), by_words)
    return f"no page of the docs is about {shown!r}{hint or '; modelyard docs lists them'}"

"""The docs as two texts for language models: `llms.txt` has a sentence a page, `llms-full.txt` all pages.

Building the wheel loads this file by its path and writes both, so it imports the standard library alone. In a checkout
they are made from `docs/`.
"""

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[3]
SITE = "https://modelyard.readthedocs.io/"
OPENING = """\
# modelyard

> The model platform that you import: a model catalogue, chat completions, models with checkpoints, SFT and RL training
> jobs with events, and evaluation runs, in one Python object. `pip install modelyard`, then
> `from modelyard import open_platform`.

Facts for writing code: public names are imported from the modules listed under API and from no other.
`open_platform()` is in memory, `open_platform("yard.db")` in one SQLite file. Chat asks for
`local/<project>/<model>`; training takes `<project>/<model>`. A parameter that a backend cannot honour is an error,
never ignored. `modelyard docs TOPIC` prints a page.
"""
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_MARK = "<!-- page: {} | {} -->"
_MARKED = re.compile(r"^<!-- page: (\S+) \| (.*) -->\n\n", re.MULTILINE)


@dataclass(frozen=True)
class DocsPage:
    """A page: its path below `docs/`, the section of the navigation, and its Markdown."""

    path: str
    section: str
    text: str

    @property
    def name(self) -> str:
        """The path without its ending: "how-to/train"."""
        return self.path.removesuffix(".md").removesuffix("/index")

    @property
    def title(self) -> str:
        return self.text.partition("\n")[0].removeprefix("# ").strip()

    @property
    def also(self) -> Sequence[str]:
        """The other words for what the page is about, from its line "Also: ..."."""
        found = re.search(r"^Also: (.+)\.$", self.text, re.MULTILINE)
        return found[1].split(", ") if found else ()

    @property
    def address(self) -> str:
        return SITE if self.name == "index" else f"{SITE}{self.name}/"

    @property
    def sentence(self) -> str:
        """The first sentence of the page, without its links."""
        blocks = (one for one in self.text.split("\n\n")[1:] if re.match(r"[^\W_]|[`*\[\"]", one))
        prose = (" ".join(one.split()) for one in blocks if not one.startswith(("Also: ", "```")))
        said = _LINK.sub(r"\1", next(prose, "")).replace("**", "")
        first = re.match(r".*?[.?](?= [A-Z`(]|$)|.*:$", said)
        return first[0].rstrip(":?.") + "." if first else ""


def read(root: Path) -> Sequence[DocsPage]:
    """Read the pages of a checkout in the order of its navigation."""
    found, section = [], ""
    for line in (root / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2].splitlines():
        titled = re.match(r"  - ([^:]+):", line)
        section = titled[1] if titled else section
        for path in re.findall(r"[\w/-]+\.md", line):
            text = (root / "docs" / path).read_text(encoding="utf-8")
            found.append(DocsPage(path, section, _resolved(root, text)))
    return found


def _resolved(root: Path, text: str) -> str:
    """Write out what MkDocs would insert: of a module what it says of itself, of the changelog where it is."""
    named = re.search(r"^::: (\S+)$", text, re.MULTILINE)
    if named is None:
        return text.replace('--8<-- "CHANGELOG.md"', f"# Changelog\n\nWhat each version changes: {SITE}changelog/.")
    file = root / "src" / Path(*named[1].split("."))
    source = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    said = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return text.replace(named[0], f"{said}\n\nIts names are in `{named[1]}.__all__`, each with a docstring.")


def listed(pages: Sequence[DocsPage]) -> str:
    """Return `llms.txt`: each page with its address and a sentence, by the sections of the navigation."""
    return OPENING + "".join(_by_section(pages))


def _by_section(pages: Sequence[DocsPage]) -> Iterator[str]:
    section = ""
    for page in pages:
        if page.section != section:
            section = page.section
            yield f"\n## {section}\n\n"
        yield f"- [{page.title}]({page.address}): {page.sentence}\n"


def joined(pages: Sequence[DocsPage]) -> str:
    """Return `llms-full.txt`: all pages, each after a line that names it."""
    texts = (f"{_MARK.format(page.path, page.section)}\n\n{page.text.strip()}\n" for page in pages)
    return OPENING + "\n" + "\n".join(texts)


FILES: dict[str, Callable[[Sequence[DocsPage]], str]] = {"llms.txt": listed, "llms-full.txt": joined}
"""What is made of the pages, by the names of the files."""


@cache
def text_of(file: str) -> str:
    """Return `llms.txt` or `llms-full.txt`: as the wheel has it, or made from the checkout.

    Raises FileNotFoundError if there is neither.
    """
    kept = HERE / file
    return kept.read_text(encoding="utf-8") if kept.is_file() else FILES[file](read(CHECKOUT))


@cache
def pages() -> Sequence[DocsPage]:
    """Return every page, in the order of the navigation."""
    _, *parts = _MARKED.split(text_of("llms-full.txt"))
    return [DocsPage(path, section, text) for path, section, text in zip(*[iter(parts)] * 3, strict=True)]

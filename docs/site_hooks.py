"""What MkDocs does besides: it writes the two texts for language models, and leads searches to the page that is meant.

A page's line "Also: ..." becomes its tags, which the search prefers to all other words. Pages of the API come after
the others, and the laws of contracts, which are methods that nobody looks for, are not found at all.
"""

import re
from pathlib import Path
from typing import Any

from modelyard.parts.docs.pages import CHECKOUT, FILES, DocsPage, read

FILE = re.compile(r"^```(\w+) ([\w.]+)$", re.MULTILINE)
LAW = re.compile(r'(<h\d id="[^"]*\.test_[^"]*")')


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Give the search the other words for a page, and show the name of the file that a block of code is."""
    path = page.file.src_uri
    page.meta["tags"] = list(DocsPage(path, "", markdown).also)
    if path.startswith("reference/api/"):
        page.meta["search"] = {"boost": 0.1}
    elif path == "how-to/evaluate.md":  # what says most of judges is not where most people begin
        page.meta["search"] = {"boost": 3}
    return FILE.sub(r'```\1 title="\2"', markdown)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Keep the laws of contracts out of the search."""
    return LAW.sub(r"\1 data-search-exclude", html)


def on_post_build(config: Any) -> None:
    """Write `llms.txt` and `llms-full.txt` next to the site."""
    pages = read(CHECKOUT)
    for name, made in FILES.items():
        (Path(config["site_dir"]) / name).write_text(made(pages), encoding="utf-8")

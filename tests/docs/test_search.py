"""The search of the built site finds first what is meant, by the words that people type.

`.ci/run` builds the site before. The theme's own worker answers, as in a browser, so node is needed.
"""

import json
import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from meant_pages import MEANT

pytestmark = pytest.mark.docs

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
INDEX = Path(os.environ.get("MODELYARD_SITE", ROOT / "build" / "site")) / "search" / "search_index.json"


@pytest.fixture(scope="module")
def index() -> Path:
    if not (INDEX.is_file() and find_spec("material") and shutil.which("node")):
        pytest.skip("it searches the built site, with node and the extra `docs`: .ci/run builds it before")
    return INDEX


def found(index: Path, *queries: str) -> dict[str, list[str]]:
    """The pages that each query finds, the best first."""
    spec = find_spec("material")
    assert spec is not None
    assert spec.origin is not None
    (worker,) = (Path(spec.origin).parent / "templates/assets/javascripts/workers").glob("search.*.min.js")
    command = ["node", HERE / "search_worker.js", worker, index, *queries]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    pages: dict[str, list[str]] = json.loads(done.stdout)
    return pages


def test_each_query_finds_the_page_that_is_meant_first(index: Path) -> None:
    firsts = {query: pages[:1] for query, pages in found(index, *MEANT).items()}
    assert firsts == {query: [f"{page}/"] for query, page in MEANT.items()}


def test_every_other_word_of_a_page_finds_it(index: Path) -> None:
    """Several pages may be about it: it is among the first five."""
    lines = {
        str(page.relative_to(ROOT / "docs").with_suffix("")): re.findall(r"^Also: (.+)\.$", page.read_text(), re.M)
        for page in sorted((ROOT / "docs").rglob("*.md"))
    }
    words = {(page, word) for page, also in lines.items() for line in also for word in line.split(", ")}
    pages = found(index, *sorted({word for _, word in words}))
    assert {(page, word) for page, word in words if f"{page}/" not in pages[word][:5]} == set()


def test_laws_of_contracts_are_not_found(index: Path) -> None:
    titles = [section["title"] for section in json.loads(index.read_text(encoding="utf-8"))["docs"]]
    assert len(titles) > 500
    assert not [title for title in titles if re.search(r"\btest_", title)]


def test_a_how_to_comes_before_the_api(index: Path) -> None:
    pages = found(index, "train", "evaluate", "budget", "webhook", "store", "backend", "part")
    assert not {query: named[0] for query, named in pages.items() if named[0].startswith("reference/api/")}

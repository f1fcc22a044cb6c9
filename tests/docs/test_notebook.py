"""The notebook of a page has the blocks of the page, in their order, and no outputs."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MADE: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "make_notebook.py"))
KEPT = json.loads(MADE["NOTEBOOK"].read_text(encoding="utf-8"))


def test_the_notebook_is_that_of_its_page() -> None:
    """Run `python docs/make_notebook.py` after a change of the page."""
    assert MADE["notebook"](MADE["PAGE"]) == KEPT


def test_its_cells_are_the_blocks_of_the_page() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", MADE["PAGE"].read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    code = ["".join(cell["source"]) + "\n" for cell in KEPT["cells"] if cell["cell_type"] == "code"]
    assert code == blocks
    assert {"job.plot()\n", "comparison\n"} <= {*code}
    assert not [cell for cell in KEPT["cells"] if cell.get("outputs") or cell.get("execution_count")]
    assert len({cell["id"] for cell in KEPT["cells"]}) == len(KEPT["cells"])


def test_its_links_lead_to_pages() -> None:
    text = "\n".join("".join(cell["source"]) for cell in KEPT["cells"] if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", text)
    assert links
    assert all((MADE["NOTEBOOK"].parent / link).exists() for link in links)

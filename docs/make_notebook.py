"""Make the notebook of a page: its blocks of Python are the cells, and what stands between them is text.

    python docs/make_notebook.py

Run it after a change of the page; the tests hold the two together.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how-to" / "fine-tune-a-real-model.md"
NOTEBOOK = ROOT / "examples" / "fine_tune_a_real_model.ipynb"
_BLOCK = re.compile(r"^```python\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:|#)([^)]+)\)")


def notebook(page: Path) -> dict[str, Any]:
    """Return the notebook of a page, without outputs."""
    return {
        "cells": [_cell(number, kind, text) for number, (kind, text) in enumerate(_parts(page))],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _parts(page: Path) -> Iterator[tuple[str, str]]:
    for number, part in enumerate(_BLOCK.split(page.read_text(encoding="utf-8"))):
        kind = "code" if number % 2 else "markdown"
        if part.strip():
            yield kind, part.strip() if kind == "code" else _LINK.sub(r"](../docs/how-to/\1)", part.strip())


def _cell(number: int, kind: str, text: str) -> dict[str, Any]:
    cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": text.splitlines(keepends=True)}
    return {**cell, "execution_count": None, "outputs": []} if kind == "code" else cell


def main() -> None:
    """Write the notebook."""
    NOTEBOOK.write_text(json.dumps(notebook(PAGE), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

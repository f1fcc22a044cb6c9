"""The syntax trees of source files, each parsed once in a process."""

import ast
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file. It is shared: do not change it."""
    return ast.parse(path.read_text(encoding="utf-8"))

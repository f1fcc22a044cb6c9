"""Which tests are of the core alone: those that import nothing of a part, themselves or through a shared module."""

import ast
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from modelyard.errors import MissingExtra

SHARED = Path(__file__).parent


@cache
def needs_parts(path: Path) -> bool:
    """Return whether a module imports a name that is not there without parts."""
    return any(not _is_there(path.parent, module, name) for module, name in _imports(path))


def _imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield what a module imports of modelyard or of shared modules: the module, and the name, or "" for none."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def _is_there(here: Path, module: str, name: str) -> bool:
    for shared in (SHARED / f"{module}.py", here / f"{module}.py"):
        if shared.exists():
            return not needs_parts(shared)
    if module.partition(".")[0] != "modelyard":
        return True
    try:
        found = find_spec(module)
    except ModuleNotFoundError:
        return False
    if found is None:
        return False
    if not name or find_spec(f"{module}.{name}") is not None if found.submodule_search_locations else not name:
        return True
    try:
        return hasattr(import_module(module), name)
    except (MissingExtra, ModuleNotFoundError) as missing:
        return not str(getattr(missing, "name", "")).startswith("modelyard")

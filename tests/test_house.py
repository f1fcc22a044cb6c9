"""The house rules that no linter knows: which modules are public, and that nothing in the docs goes past them."""

import ast
import re
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

from modelyard.errors import MissingExtra

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "modelyard"

DOORS = (
    "modelyard",
    "modelyard.artifacts",
    "modelyard.asgi",
    "modelyard.backends",
    "modelyard.catalogue",
    "modelyard.engines",
    "modelyard.errors",
    "modelyard.executors",
    "modelyard.protocols",
    "modelyard.stores",
    "modelyard.testing",
    "modelyard.trainers",
    "modelyard.wsgi",
)
"""The modules that public names are imported from."""

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*"))]
FENCE = re.compile(r"^```python[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def python_of(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    return text if page.suffix == ".py" else "\n".join(FENCE.findall(text))


def imported(code: str) -> set[tuple[str, str]]:
    """Each module of modelyard from which something is imported, with the name; "" for `import module`."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {(node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
    return {(module, name) for module, name in found if module.partition(".")[0] == "modelyard"}


PENDING = {
    "evaluate.md": {
        *(f"modelyard.domain.evaluation.filters.{name}" for name in ("Comparator", "Compare", "Field", "Literal")),
        *(f"modelyard.domain.evaluation.results.{name}" for name in ("Filter", "ResultQuery", "Sort")),
    }
}


@pytest.mark.parametrize("page", [page for page in PAGES if page.suffix in (".md", ".py")], ids=lambda page: page.name)
def test_what_readers_copy_imports_from_the_public_modules_only(page: Path) -> None:
    names = {door: {*import_module(door).__all__, ""} for door in DOORS}
    past = {f"{module}.{name}" for module, name in imported(python_of(page)) if name not in names.get(module, ())}
    assert past <= PENDING.get(page.name, set())


@pytest.mark.parametrize("page", [page for page in PAGES if page.suffix == ".md"], ids=lambda page: page.name)
def test_prose_names_the_public_modules_only(page: Path) -> None:
    """A dotted name that the docs write out begins with a public module; logger names and internals are not of it."""
    named = set(re.findall(r"`(modelyard(?:\.[a-z_]+)+)", page.read_text(encoding="utf-8")))
    private = {name for name in named if (SOURCE / Path(*name.split(".")[1:])).with_suffix(".py").exists()} - {*DOORS}
    assert private <= INTERNALS_SHOWN.get(page.name, set())


INTERNALS_SHOWN = {"architecture.md": {"modelyard.compose", "modelyard.lazy"}, "decisions.md": set[str]()}


@pytest.mark.parametrize("door", DOORS)
def test_all_of_a_public_module_is_there(door: str) -> None:
    module = import_module(door)
    assert sorted(set(module.__all__)) == sorted(module.__all__)
    for name in module.__all__:
        with suppress(MissingExtra):
            assert getattr(module, name) is not None
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize("door", [door for door in DOORS if (SOURCE / Path(*door.split(".")[1:])).is_dir()])
def test_type_checkers_find_a_public_name_where_the_program_does(door: str) -> None:
    """The two halves of a public package, what is imported for type checkers and what is loaded when used, agree."""
    module = import_module(door)
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and node.orelse)
    typed = {
        alias.name: f"{node.module}.{alias.name}" if is_module(f"{node.module}.{alias.name}") else str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    (call,) = (node for node in ast.walk(block.orelse[0]) if isinstance(node, ast.Call))
    homes: dict[str, tuple[str, ...]] = ast.literal_eval(call.args[1])
    assert {name: f"modelyard.{home}" for home, names in homes.items() for name in names} == typed
    assert sorted(typed) == sorted(module.__all__)


def is_module(dotted: str) -> bool:
    return (SOURCE / Path(*dotted.split(".")[1:])).with_suffix(".py").exists()


def test_public_names_are_no_names_of_private_things() -> None:
    for door in DOORS:
        assert not [name for name in import_module(door).__all__ if name.startswith("_") and name != "__version__"]

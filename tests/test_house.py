"""The rules of the house that import-linter cannot state (docs/explanation/architecture.md)."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import get_type_hints

import pytest

from each import each_case
from modelyard import Platform
from modelyard.errors import MissingExtra
from modelyard.part import standard_parts
from source_trees import tree_of

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "modelyard"

# ---- folders, files and imports -------------------------------------------------------------------------------------

SHARED = {"checkpoints", "operations"}
"""Folders of `platform/` that are not attributes: rules of training and models, and what a host does with all."""

LONG = {
    "protocols.py": "everything that a third party may implement, on one page",
}
"""Files over the limit, each with its reason."""

SHORT = {
    "version.py": "the one place that the package and the build read the version from",
    "__main__.py": "`python -m modelyard`",
    "cli/__main__.py": "`python -m modelyard.cli`",
    "events.py": "a public module of names alone",
    "http/core_routes.py": "the list of the routes that wait for a request",
    "otel.py": "a public module of a part",
    "quickstart.py": "a public module of a part",
    "results.py": "a public module of names alone",
    "wsgi.py": "a public module of a part",
}
"""Files under 35 lines, each with its reason."""

VALUES = {"__init__.py", "part.py", "interface.py"}
"""Files that may be short: a package, and what a part is."""

LONGEST_CHAIN = 30


def sources() -> Iterator[tuple[str, Path]]:
    """Every file of the package, by its path from there."""
    return ((path.relative_to(SOURCE).as_posix(), path) for path in sorted(SOURCE.rglob("*.py")))


def folders(of: str) -> set[str]:
    """The packages in a folder."""
    return {path.parent.name for path in (SOURCE / of).glob("*/__init__.py")}


def resources() -> dict[str, str]:
    """The module in which the class of each resource of a platform lies."""
    hints = {name: get_type_hints(value.fget)["return"].__module__ for name, value in _properties()}
    return {name: module for name, module in hints.items() if re.match(r"modelyard\.(platform|parts)\.\w+\.", module)}


def _properties() -> Iterator[tuple[str, property]]:
    public = ((name, value) for name, value in vars(Platform).items() if not name.startswith("_"))
    return ((name, value) for name, value in public if isinstance(value, property))


def test_the_attribute_you_type_is_the_folder_you_open() -> None:
    found = {name: module for name, module in resources().items() if not module.startswith("modelyard.parts.")}
    assert folders("platform") - SHARED == set(found) - {"health"}
    assert folders("http") <= set(found)
    for name, module in found.items():
        folder = "operations" if name == "health" else name
        assert module.startswith(f"modelyard.platform.{folder}."), module


def test_files_are_neither_long_nor_short() -> None:
    lines = {name: path.read_text().count("\n") for name, path in sources() if path.name not in VALUES}
    long = {name for name, count in lines.items() if count > 500}
    short = {name for name, count in lines.items() if count < 35 and not name.startswith("parts/")}
    assert long == set(LONG)
    assert short == set(SHORT)


def test_the_general_way_of_a_completion_is_a_page() -> None:
    assert (SOURCE / "platform" / "chat" / "pipeline.py").read_text().count("\n") <= 150


def test_what_is_there_for_speed_alone_says_what_it_earns() -> None:
    """The first line of such a file says so, and the table of docs/explanation/speed.md names it."""
    table = (ROOT / "docs" / "explanation" / "speed.md").read_text(encoding="utf-8")
    marked = {name: path for name, path in sources() if name.endswith("_fast.py") or "fast" in Path(name).parts[:-1]}
    assert marked
    for name, path in marked.items():
        first = (ast.get_docstring(tree_of(path)) or "").partition("\n")[0]
        assert re.search(r"without .*( % more|twice|thrice)", first), name
        folder = name.rpartition("/")[0] + "/" if "fast" in Path(name).parts[:-1] else name
        assert f"`{folder}`" in table, name


def test_no_pass_of_a_possessive_group_can_fail_midway() -> None:
    """Python before 3.11.5 goes on at the wrong place after it: `json_stream` says how its groups avoid that."""
    group = re.compile(r"(?<!\()\)(?:[*+?]|\{[\d,]*\})\+|\(\?>")
    found = {name for name, path in sources() if group.search(path.read_text())}
    assert found == {"formats/json_stream.py"}


def test_no_public_class_has_the_name_of_another() -> None:
    homes = defaultdict(list)
    for name, path in sources():
        for found in re.findall(r"^class ([A-Za-z]\w*)", path.read_text(encoding="utf-8"), re.MULTILINE):
            homes[found].append(name)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def imports() -> dict[str, set[str]]:
    """The modules that each module imports: at its top, in its functions, and those that wait for their first use.

    What a `part.py` imports in its functions is above those who read it.
    """
    modules = {}
    for name, path in sources():
        parts = ("modelyard", *Path(name).with_suffix("").parts)
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = tree_of(path)
    return {
        name: set() if name.endswith(".part") else {found for found in _imported(tree, set(modules)) if found != name}
        for name, tree in modules.items()
    }


def _imported(tree: ast.Module, modules: set[str]) -> Iterator[str]:
    for node in _walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield from (name for name in (inner if inner in modules else node.module,) if name in modules)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)


def _walk(node: ast.AST, *, typed: bool = False) -> Iterator[ast.AST]:
    """Every statement; what only type checkers read is left out unless `typed`."""
    for block in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(node, block, ()):
            if typed or not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
                yield child
                yield from _walk(child, typed=typed)


def longest_chain(graph: dict[str, set[str]]) -> list[str]:
    """Return the longest chain of imports, from a module that no other imports to one that imports no other."""

    @cache
    def from_here(name: str) -> tuple[str, ...]:
        return (name, *max((from_here(other) for other in sorted(graph[name])), key=len, default=()))

    return list(max((from_here(name) for name in sorted(graph)), key=len))


@pytest.mark.slow
def test_no_chain_of_imports_is_long() -> None:
    chain = longest_chain(imports())
    assert len(chain) <= LONGEST_CHAIN, " > ".join(chain)


def test_a_chain_is_found() -> None:
    graph = {"a": {"b", "c"}, "b": {"c"}, "c": set(), "d": {"c"}}
    assert longest_chain(graph) == ["a", "b", "c"]


MOST_LINES, MOST_FILES = 55_000, 370
"""Of the core: what somebody reads who changes the specification."""


def test_the_core_is_small() -> None:
    core = [path for name, path in sources() if not name.startswith("parts/")]
    assert sum(path.read_text(encoding="utf-8").count("\n") for path in core) <= MOST_LINES
    assert len(core) <= MOST_FILES
    assert len([path for path in (SOURCE / "domain").rglob("*.py") if path.name != "__init__.py"]) <= 30


# ---- parts ----------------------------------------------------------------------------------------------------------

DOORS_OF_PARTS = {"otel.py", "quickstart.py", "wsgi.py"}
"""Public modules of the core that are a part's."""

TIES = {
    ("dashboard", "annotations"): "the pages of jobs, models and runs have that box",
    ("dashboard", "batches"): "jobs are shown by their kinds",
    ("dashboard", "reports"): "pages are made of its elements and plots",
    ("dashboard", "responses"): "jobs are shown by their kinds",
    ("dashboard", "tinker"): "jobs are shown by their kinds",
    ("dashboard", "traffic"): "jobs are shown by their kinds",
    ("batches", "completions"): "a batch answers requests of these formats",
    ("batches", "embeddings"): "a batch answers requests of these formats",
    ("batches", "responses"): "a batch answers requests of these formats",
    ("comparisons", "reports"): "tables are drawn with its elements",
    ("datasets", "readers"): "a file is split by fields that training does not keep",
    ("exchanges", "completions"): "requests of rollouts are in these formats",
    ("exchanges", "messages"): "requests of rollouts are in these formats",
    ("exchanges", "responses"): "requests of rollouts are in these formats",
    ("fine_tuning", "batches"): "training data and results are files",
    ("fine_tuning", "readers"): "files and rows that are not read are called what they are",
    ("fine_tuning", "loops"): "reinforcement fine-tuning is a loop",
    ("improve", "comparisons"): "roads are compared in one table",
    ("improve", "distillation"): "a road may have a teacher",
    ("improve", "reports"): "the roads are plotted",
    ("improve", "loops"): "tasks and rewards are those of loops",
    ("improve", "variants"): "what is optimised is the prompt of a variant",
    ("loops", "interchange"): "held-out attempts of an agent are kept as a run",
    ("loops", "distillation"): "a teacher may score the answers of a round",
    ("loops", "episodes"): "what an agent does in a round is episodes",
    ("loops", "server"): "agents call an application of WSGI",
    ("mcp", "docs"): "agents read the docs",
    ("mcp", "steering"): "agents steer the runs that they may start",
    ("mcp", "improve"): "agents try roads to better answers",
    ("mcp", "rollouts"): "agents roll out",
    ("rollouts", "variants"): "versions of variants are rolled out, too",
    ("webhooks", "variants"): "moves of their aliases are posted",
    ("mcp", "traffic"): "secrets are found by its patterns",
    ("sweeps", "datasets"): "held-out rows are split from the others",
    ("sweeps", "reports"): "tables and plots are drawn with its elements",
    ("tinker", "completions"): "sampling continues prompts of token ids",
    ("torch", "objects"): "checkpoints are exported to object stores",
    ("traces", "interchange"): "evaluations that a program traces are runs",
    ("traces", "batches"): "files come in forms there, too",
    ("traces", "uploads"): "one client begins with the same GraphQL",
    ("traffic", "batches"): "kept rows are written in parts, as the lines of a batch are",
    ("traffic", "responses"): "data are collected from stored responses",
    ("traffic", "traces"): "data are collected by the feedback on calls",
    ("traffic", "variants"): "data are collected of what a version has answered",
    ("what_if", "reports"): "rows are a data frame and a plot",
    ("what_if", "rollouts"): "feedback has the arms and propensities of rollouts",
    ("what_if", "routers"): "prices depend on the length of a prompt, and on the hour",
    ("what_if", "traffic"): "stored requests are chosen and read as a collection does",
    ("upstream", "completions"): "servers are asked for prompts, too",
    ("upstream", "doubles"): "a recording is a cassette",
    ("upstream", "embeddings"): "servers are asked for vectors, too",
}
"""Which part imports which other one, and why. The `pages.py` of each may import what pages are made with."""


DRAWN = {("pages.py", "dashboard"), ("pages.py", "reports")}


def imports_of_parts() -> Iterator[tuple[str, str, bool]]:
    """Each import of a part: the file, the part, and whether a type checker alone reads it."""
    for name, path in sources():
        tree = tree_of(path)
        run = set(_walk(tree))
        for node in _walk(tree, typed=True):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("modelyard.parts."):
                yield name, str(node.module).split(".")[2], node not in run


MEMBERS = (
    "platform/platform.py",
    "platform/extended.py",
    "platform/models/service.py",
    "platform/jobs/service.py",
    "platform/training/service.py",
    "platform/evaluations/service.py",
    "domain/training_config.py",
)
"""Where parts add members and options, which `parts/resources.py` declares."""


@pytest.mark.slow
def test_the_core_imports_no_part() -> None:
    """But for type checkers: the public names and resources of parts, and what they draw."""
    core = [(name, typed) for name, _, typed in imports_of_parts() if not name.startswith("parts/")]
    assert {name for name, typed in core if not typed} <= DOORS_OF_PARTS
    doors = {f"{door.partition('.')[2].replace('.', '/')}/__init__.py".lstrip("/") for door in DOORS}
    assert {name for name, typed in core if typed} <= {*doors, *MEMBERS, "report/__init__.py"}


@pytest.mark.slow
@pytest.mark.parts
def test_a_part_imports_only_those_others_that_are_listed() -> None:
    imports = [(name, part) for name, part, _ in imports_of_parts() if name.startswith("parts/")]
    found = {(name.split("/")[1], part) for name, part in imports if (Path(name).name, part) not in DRAWN}
    known = {folder.name for folder in (SOURCE / "parts").iterdir() if (folder / "part.py").exists()}
    assert {(part, other) for part, other in found if part != other and {part, other} <= known} == set(TIES)


@pytest.mark.parts
def test_the_docs_list_every_standard_part_once() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]+`) \|", page.partition("\n## Parts\n")[2].partition("\n## ")[0], re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(part.name for part in standard_parts())


# ---- public modules ------------------------------------------------------------------------------------------------

DOORS = (
    "modelyard",
    "modelyard.artifacts",
    "modelyard.asgi",
    "modelyard.backends",
    "modelyard.catalogue",
    "modelyard.engines",
    "modelyard.errors",
    "modelyard.events",
    "modelyard.examples",
    "modelyard.executors",
    "modelyard.otel",
    "modelyard.parts",
    "modelyard.protocols",
    "modelyard.results",
    "modelyard.stores",
    "modelyard.testing",
    "modelyard.testing.contracts",
    "modelyard.testing.servers",
    "modelyard.trainers",
    "modelyard.wsgi",
)
"""The modules that public names are imported from."""

OF_PARTS = ("modelyard.otel", "modelyard.parts", "modelyard.wsgi")
THERE = [door for door in DOORS if find_spec("modelyard.parts") or door not in OF_PARTS]
"""Those that are there when the folder of parts was deleted, too."""

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


@pytest.mark.parts
@pytest.mark.parametrize("page", [page for page in PAGES if page.suffix in (".md", ".py")], ids=lambda page: page.name)
def test_what_readers_copy_imports_from_the_public_modules_only(page: Path) -> None:
    names = {door: {*import_module(door).__all__, ""} for door in DOORS}
    past = {f"{module}.{name}" for module, name in imported(python_of(page)) if name not in names.get(module, ())}
    assert past == set()


@each_case("page", [page for page in PAGES if page.suffix == ".md"], ids=lambda page: page.name)
def test_prose_names_the_public_modules_only(page: Path) -> None:
    """A dotted name that the docs write out begins with a public module; logger names and internals are not of it."""
    named = set(re.findall(r"`(modelyard(?:\.[a-z_]+)+)", page.read_text(encoding="utf-8")))
    private = {name for name in named if (SOURCE / Path(*name.split(".")[1:])).with_suffix(".py").exists()} - {*DOORS}
    assert private <= INTERNALS_SHOWN.get(page.name, set())


INTERNALS_SHOWN = {"architecture.md": {"modelyard.compose", "modelyard.lazy"}}


@each_case("door", THERE)
def test_all_of_a_public_module_is_there(door: str) -> None:
    module = import_module(door)
    assert sorted(set(module.__all__)) == sorted(module.__all__)
    for name in module.__all__:
        with suppress(MissingExtra):
            assert getattr(module, name) is not None
    assert set(module.__all__) <= set(dir(module))


def loads_lazily(door: str) -> bool:
    package = SOURCE / Path(*door.split(".")[1:]) / "__init__.py"
    return package.exists() and "lazy_exports" in package.read_text(encoding="utf-8")


def typed_names(block: list[ast.stmt]) -> dict[str, str]:
    """The names that a type checker finds in a block, with their homes; those of parts are read from their door."""
    return {
        alias.name: f"{node.module}.{alias.name}" if is_module(f"{node.module}.{alias.name}") else str(node.module)
        for node in block
        if isinstance(node, ast.ImportFrom) and not str(node.module).startswith("modelyard.parts.doors")
        for alias in node.names
    }


def listed_names(block: list[ast.stmt]) -> list[str]:
    """What a block assigns to `__all__`."""
    targets = (
        (node.target if isinstance(node, ast.AnnAssign) else node.targets[0], node.value)
        for node in block
        if isinstance(node, ast.Assign | ast.AnnAssign)
    )
    found = (ast.literal_eval(value) for target, value in targets if ast.unparse(target) == "__all__")
    return next(found, [])


@each_case("door", [door for door in THERE if loads_lazily(door)])
def test_type_checkers_find_a_public_name_where_the_program_does(door: str) -> None:
    """The two halves of a public package, what is imported for type checkers and what is loaded when used, agree.

    Type checkers find what is not listed, too: it may be imported from there.
    """
    module = import_module(door)
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and node.orelse)
    (call,) = (node for node in ast.walk(block.orelse[0]) if isinstance(node, ast.Call))
    literals = [ast.literal_eval(homes) for homes in call.args[1:]]
    known = [(home, name) for homes in literals for home, names in homes.items() for name in names]
    typed, listed = typed_names(block.body), listed_names(block.body)
    unlisted = [name for homes in literals[1:] for names in homes.values() for name in names]
    for of_parts in doors_of_parts(door):
        body = ast.parse(of_parts.read_text(encoding="utf-8")).body
        typed |= typed_names(next(node.body for node in body if isinstance(node, ast.If)))
        listed += listed_names(body)
        loaded = import_module(f"modelyard.parts.doors.{of_parts.stem}")
        known += [(home, name) for home, names in loaded.HOMES.items() for name in names]
        unlisted += [name for names in getattr(loaded, "UNLISTED", {}).values() for name in names]
    assert {name: f"modelyard.{home}" for home, name in known} == typed
    assert sorted(typed) == sorted({*module.__all__, *unlisted})
    assert not {*module.__all__, *dir(module)} & {*unlisted} - vars(module).keys()
    if listed_names(block.body):
        assert sorted(listed) == sorted({*module.__all__, *unlisted})


def doors_of_parts(door: str) -> list[Path]:
    """Where the names of parts in a public package are listed: its own first, then those that it does not list."""
    name = door.partition(".")[2].replace(".", "_") or "top"
    folder = SOURCE / "parts" / "doors"
    return [path for path in (folder / f"{name}.py", *sorted(folder.glob(f"{name}_*.py"))) if path.exists()]


def is_module(dotted: str) -> bool:
    path = SOURCE / Path(*dotted.split(".")[1:])
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def test_public_names_are_not_names_of_private_things() -> None:
    for door in THERE:
        assert not [name for name in import_module(door).__all__ if name.startswith("_") and name != "__version__"]


# ---- docstrings ------------------------------------------------------------------------------------------------------

BRIEF = {
    "A function by name.",
    "A summary of reasoning.",
    "A tool.",
    "Answer a conversation.",
    "Any JSON object.",
    "Begin a session.",
    "Begin to sample.",
    "Create a run.",
    "Delete a stored completion.",
    "Delete saved weights.",
    "Every listed model.",
    "Find feedback.",
    "Free text.",
    "How many were deleted.",
    "List trainable models.",
    "List variants.",
    "Look at evaluation runs.",
    "Manage API keys.",
    "Options of a stream.",
    "Send a file.",
    "Show a batch.",
    "Show a file.",
    "Show a fine-tuning job.",
    "Show a model.",
    "Show a training job.",
    "Show a training run.",
    "Show a variant.",
    "Text of an answer.",
    "The platform answers.",
    "Where a model runs.",
}
"""Docstrings of four words or fewer that are shown: as the help of commands, and in the OpenAPI document."""

REPEATED = {"The answer to a creation.", "What may be the end of a cached prompt."}
"""Docstrings that the OpenAPI document shows of several classes."""


def docstrings() -> Iterator[tuple[str, str, str]]:
    """Each docstring in the package, with the file and the name of what it describes."""
    for name, path in sources():
        for node in (tree_of(path), *_walk(tree_of(path), typed=True)):
            described = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if described and (text := ast.get_docstring(node)):
                yield name, getattr(node, "name", ""), text


@pytest.mark.slow
def test_no_docstring_is_brief_or_repeated() -> None:
    found = [(f"{file}: {name}", text) for file, name, text in docstrings()]
    assert [(place, text) for place, text in found if len(text.split()) <= 4 and text not in BRIEF] == []
    counts = Counter(text for _, text in found)
    assert {text for text, count in counts.items() if count > 2} - REPEATED == set()


def test_what_a_public_module_exports_has_a_docstring() -> None:
    bare = set()
    for door in THERE:
        for name in import_module(door).__all__:
            with suppress(MissingExtra):
                value = getattr(import_module(door), name)
                if isinstance(value, type | FunctionType) and not vars(value).get("__doc__", value.__doc__):
                    bare.add(f"{door}.{name}")
    assert bare == set()


@pytest.mark.slow
@pytest.mark.parts
def test_dotted_references_in_docstrings_and_docs_lead_somewhere() -> None:
    """`domain.models.ModelName` must be there; `platform.models` is an attribute of a platform."""
    tops = {path.stem for path in SOURCE.iterdir() if not path.name.startswith("_")} - {"platform"}
    dotted = re.compile(rf"`(?:modelyard\.)?((?:{'|'.join(sorted(tops))})(?:\.(?!py`|yaml`)[A-Za-z_]\w*)+)[`(]")
    texts = [(file, text) for file, _, text in docstrings()]
    texts += [(page.name, page.read_text(encoding="utf-8")) for page in PAGES if page.suffix == ".md"]
    missing = {(file, name) for file, text in texts for name in dotted.findall(text) if not _leads_somewhere(name)}
    assert missing == {("local-engine.md", "engines.torch")}  # the name of a logger


def _leads_somewhere(dotted: str) -> bool:
    """Return whether a dotted name is a module or package, or what one binds, and then anything below that."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        module = SOURCE / Path(*parts[:end])
        for file in (module.with_suffix(".py"), module / "__init__.py"):
            if file.is_file():
                doors = SOURCE / "parts" / "doors" / f"{'_'.join(parts[:end])}.py"
                of_parts = _names_in(tree_of(doors)) if doors.is_file() else set[str]()
                return end == len(parts) or parts[end] in _names_in(tree_of(file)) | of_parts
    return False


# ---- scripts that `.ci/run` does not run -----------------------------------------------------------------------------

SCRIPTS = ("benchmarks", "examples", "tests/campaigns", "tests/crash")


@pytest.mark.slow
def test_what_scripts_import_of_the_package_is_there() -> None:
    missing = [
        f"{path.relative_to(ROOT)}: {node.module}.{alias.name}"
        for folder in SCRIPTS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom) and (file := _file_of(node.module or "")).is_file()
        for alias in node.names
        if alias.name not in _names_in(tree_of(file))
    ]
    assert missing == []


def _file_of(module: str) -> Path:
    return (ROOT / "src" / module.replace(".", "/")).with_suffix(".py")


def _names_in(tree: ast.Module) -> set[str]:
    """The names that a module binds, at any depth."""
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {alias.asname or alias.name for alias in node.names}
    return bound

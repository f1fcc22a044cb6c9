"""What the site's build cannot know: that its parts agree with each other and with the package."""

import ast
import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONFIGURATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
SITE = re.findall(r"^site_url: (\S+)$", CONFIGURATION, re.MULTILINE)[0]
HOUSE = ast.parse((ROOT / "tests" / "test_house.py").read_text(encoding="utf-8"))
DOORS = next(
    ast.literal_eval(node.value)
    for node in HOUSE.body
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "DOORS"
)
"""The public modules."""
PAGES = re.findall(r"[\w/-]+\.(?:md|ipynb)", CONFIGURATION.partition("\nnav:\n")[2])


def test_every_page_is_in_the_navigation() -> None:
    there = {str(path.relative_to(DOCS)) for end in ("md", "ipynb") for path in DOCS.rglob(f"*.{end}")}
    assert set(PAGES) == there
    assert len(PAGES) == len(set(PAGES))


def test_every_public_module_has_a_page_of_its_api() -> None:
    modules = re.findall(r"^::: (\S+)$", "\n".join(page.read_text() for page in DOCS.rglob("api/*.md")), re.MULTILINE)
    assert sorted(modules) == sorted(DOORS)


def test_the_package_names_the_site() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["urls"]["Documentation"] == SITE
    substitutions = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]
    assert all(SITE in one["replacement"] for one in substitutions)


def test_the_notebook_is_kept_without_outputs() -> None:
    """They are made when the site is built, so none can be stale."""
    cells = json.loads((DOCS / "quickstart" / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]


def test_every_relative_link_leads_to_a_file() -> None:
    pages = [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))]
    near = [(page, link) for page, link in links if "://" not in link and not link.startswith("mailto:")]
    assert len(near) > 100
    assert [(page.name, link) for page, link in near if not (page.parent / link).exists()] == []

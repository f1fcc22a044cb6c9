"""HTTP uses the platform as every caller does: through its resources, never through what lies below them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import modelyard

SOURCE = Path(modelyard.__file__).parent
FORBIDDEN = {"_runtime", "_principal"}


def reaches(tree: ast.AST) -> Iterator[str]:
    """Each use of what a platform keeps to itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in FORBIDDEN:
            yield f"{node.lineno}: {ast.unparse(node)}"


@pytest.mark.slow
def test_http_does_not_reach_below_the_resources_of_the_platform() -> None:
    files = [*(SOURCE / "http").rglob("*.py"), *(SOURCE / "cli").rglob("*.py"), SOURCE / "asgi.py"]
    assert len(files) > 40
    found = [f"{path.name}:{use}" for path in files for use in reaches(ast.parse(path.read_text()))]
    assert found == []


def test_a_reach_is_seen() -> None:
    source = "call.platform._runtime.store\nplatform._principal\nself.platform._principal\ncall.principal"
    assert sorted(reaches(ast.parse(source))) == [
        "1: call.platform._runtime",
        "2: platform._principal",
        "3: self.platform._principal",
    ]

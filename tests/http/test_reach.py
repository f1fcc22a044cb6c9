"""HTTP uses the platform as every caller does: through its resources, never through what lies below them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import modelyard

SOURCE = Path(modelyard.__file__).parent
FORBIDDEN = {"runtime", "_runtime", "_principal"}


def reaches(tree: ast.AST) -> Iterator[str]:
    """Each use of what a platform keeps to itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            if node.attr in FORBIDDEN or text.endswith("platform.principal"):
                yield f"{node.lineno}: {text}"


def test_http_does_not_reach_below_the_resources_of_the_platform() -> None:
    files = [*(SOURCE / "http").rglob("*.py"), *(SOURCE / "cli").rglob("*.py"), SOURCE / "asgi.py", SOURCE / "wsgi.py"]
    assert len(files) > 40
    found = [f"{path.name}:{use}" for path in files for use in reaches(ast.parse(path.read_text()))]
    assert found == []


def test_a_reach_is_seen() -> None:
    source = "call.platform.runtime.store\nplatform._principal\nself.platform.principal\ncall.principal"
    assert sorted(reaches(ast.parse(source))) == [
        "1: call.platform.runtime",
        "2: platform._principal",
        "3: self.platform.principal",
    ]

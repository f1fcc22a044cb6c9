"""Put the docs into the wheel, as two texts: `llms.txt` and `llms-full.txt`."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PART = Path("src/modelyard/parts/docs")


class DocsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Writes both files next to what is built; an editable installation reads the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the files, and name their places in the wheel."""
        root = Path(self.root)
        if version == "editable" or not (root / "mkdocs.yml").is_file():
            return
        spec = importlib.util.spec_from_file_location("docs_pages", root / PART / "pages.py")
        assert spec is not None
        assert spec.loader is not None
        made = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        pages, folder = made.read(root), root / "build" / "docs-of-the-wheel"
        folder.mkdir(parents=True, exist_ok=True)
        for name, make in made.FILES.items():
            (folder / name).write_text(make(pages), encoding="utf-8")
            build_data["force_include"][str(folder / name)] = f"modelyard/parts/docs/{name}"

"""Build the wheel and look into it, then install it outside of the checkout and do what the README says there."""

import os
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
NEEDED = {
    "modelyard/__init__.py",
    "modelyard/py.typed",
    "modelyard/parts/docs/llms.txt",
    "modelyard/parts/docs/llms-full.txt",
    "modelyard/examples/support/held_out.jsonl",
    "modelyard/examples/support/train.jsonl",
    "pytest_modelyard.py",
    *(path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("openapi_examples.json")),
}


def main() -> None:
    """Fail with what is wrong with the wheel."""
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT]
        subprocess.run(build, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        archive = zipfile.ZipFile(wheel)
        look_into(set(archive.namelist()))
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        check_links(archive.read(metadata).decode())
        try_readme(wheel, Path(folder) / "elsewhere")


def look_into(names: set[str]) -> None:
    """Check what the wheel carries: the package, its typing mark, all examples, and nothing that runs at start-up."""
    missing = NEEDED - names
    startup = {name for name in names if name.endswith(".pth")}
    strange = {name for name in names if not name.startswith(("modelyard/", "modelyard-", "pytest_modelyard"))}
    if missing or startup or strange:
        raise SystemExit(f"the wheel lacks {missing}, runs {startup} at start-up, carries {strange}")
    print(f"the wheel holds {len(names)} files, as it should")


def check_links(metadata: str) -> None:
    """Check that each link of the README holds on a package index: none is relative, and the docs have its page."""
    (site,) = re.findall(r"^Project-URL: Documentation, (\S+)$", metadata, re.MULTILINE)
    links = re.findall(r"\]\(([^)#]+)", metadata)
    pages = [link.removeprefix(site).rstrip("/") for link in links if link.startswith(site)]
    docs = ROOT / "docs"
    lost = [page for page in pages if not any((docs / f"{page}{end}").is_file() for end in ("", ".md", "/index.md"))]
    relative = [link for link in links if not link.startswith("https://")]
    if lost or relative or len(pages) < 30:
        raise SystemExit(f"links that do not hold on a package index: {relative}; without a page: {lost}")
    print(f"the {len(links)} links of the README hold on a package index")


def try_readme(wheel: Path, folder: Path) -> None:
    """Install the wheel by its name, and run the README's program twice in a folder of its own."""
    venv.create(folder, with_pip=True)
    python, alone = folder / "bin" / "python", {**os.environ, "PYTHONPATH": "", "PYTHONSAFEPATH": "1"}
    install = [python, "-m", "pip", "install", "--quiet", "--find-links", wheel.parent, "modelyard"]
    subprocess.run(install, check=True, cwd=folder, env=alone)
    found = re.search(r"^## In a program\n\n```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)
    assert found is not None
    for _ in range(2):
        subprocess.run([python, "-c", found[1]], check=True, cwd=folder, env=alone)
    subprocess.run([folder / "bin" / "modelyard", "--help"], check=True, cwd=folder, env=alone, capture_output=True)
    page = [folder / "bin" / "modelyard", "docs", "train"]
    shown = subprocess.run(page, check=True, cwd=folder, env=alone, capture_output=True, text=True).stdout
    assert shown == (ROOT / "docs" / "how-to" / "train.md").read_text(encoding="utf-8").strip() + "\n"
    print("the README's program runs, and runs again, where there is nothing but the wheel")


if __name__ == "__main__":
    main()

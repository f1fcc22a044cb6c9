"""Build the wheel and look into it: the package, its typing mark, the quickstart data, and nothing run at start-up."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
NEEDED = {
    "modelyard/__init__.py",
    "modelyard/py.typed",
    "modelyard/examples/support/train.jsonl",
    "pytest_modelyard.py",
}


def main() -> None:
    """Fail with what is wrong with the wheel."""
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT]
        subprocess.run(build, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        names = set(zipfile.ZipFile(wheel).namelist())
    missing = NEEDED - names
    startup = {name for name in names if name.endswith(".pth")}
    strange = {name for name in names if not name.startswith(("modelyard/", "modelyard-", "pytest_modelyard"))}
    if missing or startup or strange:
        raise SystemExit(f"the wheel lacks {missing}, runs {startup} at start-up, carries {strange}")
    print(f"the wheel holds {len(names)} files, as it should")


if __name__ == "__main__":
    main()

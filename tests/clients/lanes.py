"""Run the unmodified public clients against modelyard, and what needs torch, each in an environment of its own.

    python tests/clients/lanes.py [lane ...]

A lane is a file of pins, `lane-<name>.txt`, whose first line names its test modules. Pins behind an empty line are
installed when those before it are there. Its environment is cached by the digest of the pins and of the Python version,
in $MODELYARD_ENVS or the user's cache folder. A lane that cannot be installed fails; none is skipped.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def environments() -> Path:
    """Where environments are cached."""
    named = os.environ.get("MODELYARD_ENVS")
    return (
        Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "modelyard" / "envs"
    )


def environment(pins: Path) -> Path:
    """The Python of the lane's environment, made now unless it is cached."""
    digest = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()[:16]
    home = environments() / f"{pins.stem}-{digest}"
    if not (home / "complete").exists():
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=True)
        for group in groups(pins):
            subprocess.run([home / "bin" / "pip", "install", "--quiet", *group], check=True)
        (home / "complete").touch()
    return home / "bin" / "python"


def groups(pins: Path) -> list[list[str]]:
    """The pins of a lane, those together that are installed together."""
    paragraphs = pins.read_text().split("\n\n")
    return [[line for line in lines.splitlines() if not line.startswith("#")] for lines in paragraphs]


def run(pins: Path) -> int:
    """Run one lane's tests; returns pytest's exit status."""
    modules = pins.read_text().splitlines()[0].removeprefix("# tests:").split()
    print(f"-- {pins.stem}: {' '.join(modules)}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        pytest = [environment(pins), "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", ROOT]
        return subprocess.run(
            [*pytest, *((HERE / module).resolve() for module in modules)],
            cwd=scratch,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_WAIT_POLICY": "PASSIVE"},
            check=False,
        ).returncode


def main() -> int:
    """Run the named lanes, or all."""
    names = sys.argv[1:]
    lanes = [pins for pins in sorted(HERE.glob("lane-*.txt")) if not names or pins.stem.removeprefix("lane-") in names]
    return max(run(pins) for pins in lanes)


if __name__ == "__main__":
    raise SystemExit(main())

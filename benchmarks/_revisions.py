"""The sources of a commit, for what compares commits."""

import io
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
WORKING_TREE = "."


@contextmanager
def source_of(revision: str) -> Iterator[Path]:
    """The folder with the `modelyard` of a commit; of the working tree for "."."""
    if revision == WORKING_TREE:
        yield ROOT / "src"
        return
    with TemporaryDirectory() as folder:
        archive = git("archive", revision, "src", "examples")
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extraction_filter = getattr(tarfile, "data_filter", None)  # Python before 3.11.4 has none
            files.extractall(folder)
        yield Path(folder) / "src"


def git(*arguments: str) -> bytes:
    """What git prints. Raises `SystemExit` with its message."""
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True)
    if done.returncode:
        raise SystemExit(done.stderr.decode())
    return done.stdout

"""Where a base model comes from: a folder, a GGUF file, or a hub by its name. What is something else is said."""

import os
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import attrs

from modelyard.errors import InvalidInput, MissingExtra
from modelyard.parts.torch.gguf_file import MAGIC, convert
from modelyard.parts.torch.model_config import CONFIG
from modelyard.parts.torch.model_folder import BaseFolder, Progress, read_base_folder

_NAME = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)
_URL = re.compile(r"(?:https?://[^/]+/|hf://(?:models/)?)([\w.-]+/[\w.-]+)(?:[/@].*)?", re.ASCII)
_WANTED = "give a folder in the transformers format, a .gguf file, or the name of a model of a hub, such as org/name"

_FILES = {
    ".safetensors": "is only the weights; give the folder that it is in",
    ".json": "is one file of a model; give the folder that it is in",
    **dict.fromkeys(
        (".bin", ".pt", ".pth", ".ckpt"),
        "may be pickled, which is never read; save the model as safetensors (save_pretrained), and give that folder",
    ),
    **dict.fromkeys((".zip", ".tar", ".gz", ".tgz", ".zst", ".xz"), "is an archive; unpack it, and give the folder"),
}
"""What to do with a file of a kind that is not read."""


@attrs.frozen
class BaseSource:
    """A base model that was looked through: its folder, its usual id, and where it is from ({} for a plain folder)."""

    folder: BaseFolder
    id: str
    source: Mapping[str, str]


def is_hub_name(path: object) -> bool:
    """Return whether this is the name of a model of a hub, and not a path of something that is here or was meant."""
    return isinstance(path, str) and bool(_NAME.fullmatch(path)) and ".." not in path and not _is_here(path)


def _is_here(path: str) -> bool:
    return path.startswith(".") or path.endswith(".gguf") or os.path.lexists(path.partition("/")[0])


def read_source(
    path: str | os.PathLike[str],
    revision: str | None = None,
    progress: Progress | None = None,
    *,
    local_only: bool = False,
) -> BaseSource:
    """Look a base model through, and fetch or convert it first. `local_only` takes what is of a hub from its cache.

    `progress` is called with the bytes that were fetched and read, and their total. Raises `InvalidInput`, saying what
    to do, and what `hub.fetch` and `gguf_file.convert` raise.
    """
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            raise MissingExtra(package, "torch")
    if is_hub_name(path):
        return _of_hub(str(path), revision, progress, local_only)
    if revision is not None:
        raise InvalidInput.at("revision", msg=f"is of a model of a hub; {path} is not the name of one")
    place = Path(path)
    if place.is_dir():
        _check_folder(place)
        return BaseSource(read_base_folder(place, progress), place.resolve().name, {})
    if place.is_file():
        _check_file(place)
        both = Both(progress)
        made = convert(place, both.first)
        return BaseSource(read_base_folder(made.folder, both.second), made.folder.name, made.source)
    raise InvalidInput.at("path", msg=_nothing(str(path)))


class Both:
    """The progress of two steps of about the same size, as one."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress, self._before = progress, 0

    def first(self, done: int, total: int) -> None:
        self._before = total
        if self._progress is not None:
            self._progress(done, 2 * total)

    def second(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(self._before + done, self._before + total)


def _of_hub(name: str, revision: str | None, progress: Progress | None, local_only: bool) -> BaseSource:
    from modelyard.parts.torch import hub  # noqa: PLC0415 - a hub is asked only if it is named

    both = Both(progress)
    found = hub.cached(name, revision) if local_only else hub.fetch(name, revision, both.first)
    folder = read_base_folder(found.folder, both.second)
    found.check(folder.files)
    return BaseSource(folder, name, found.source)


def _check_folder(folder: Path) -> None:
    """Raise `InvalidInput` for a folder of another kind."""
    if (folder / CONFIG).is_file():
        return
    kinds: dict[str, Callable[[str], str]] = {
        "*.gguf": lambda found: f"has no {CONFIG}, but GGUF files; give the path of one, such as {folder / found}",
        "adapter_config.json": lambda found: "holds an adapter; add its base model, or merge both and add the result",
        "snapshots/*/config.json": lambda found: f"is a hub's cache; give {folder / found.removesuffix('/' + CONFIG)}",
        f"*/{CONFIG}": lambda found: f"holds folders of models; give one, such as {folder / found.partition('/')[0]}",
    }
    for pattern, means in kinds.items():
        if found := sorted(path.relative_to(folder).as_posix() for path in folder.glob(pattern)):
            raise InvalidInput.at("path", msg=f"{folder} {means(found[0])}")


def _check_file(file: Path) -> None:
    """Raise `InvalidInput` for a file that is not GGUF."""
    with file.open("rb") as opened:
        if opened.read(len(MAGIC)) == MAGIC:
            return
    means = _FILES.get(file.suffix.lower(), f"is not a model; {_WANTED}")
    if file.suffix.lower() == ".gguf":
        means = "does not begin as GGUF files do; fetch it again (large files may be pointers: git lfs pull)"
    raise InvalidInput.at("path", msg=f"{file} {means}")


def _nothing(path: str) -> str:
    if link := _URL.fullmatch(path):
        return f"is an address; to fetch the model from the hub, give its name: {link[1]}"
    if "://" in path:
        return f"is an address, which is not read; fetch it first, and {_WANTED}"
    return f"there is no folder or file {path}; {_WANTED}"

"""A model in one GGUF file, read by transformers' own loader, and written as a folder in its format beside it."""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs

from modelyard.disk import unfinished_next_to
from modelyard.errors import Conflict, InvalidInput, MissingExtra, StorageFull
from modelyard.parts.torch.full_disk import says_full
from modelyard.parts.torch.model_folder import Progress

MAGIC = b"GGUF"

_SOURCE = "gguf_source.json"
"""The file in the folder that says of which GGUF file it was made."""

_STORED = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""The types of weights that are kept as they are; others were rounded when the file was made."""

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_USUAL_SPLITS = ("default", "gpt2", "gpt-2")
_CHUNK = 2**20


@attrs.frozen
class Converted:
    """A folder that was made of a GGUF file, and what of the model is not in it."""

    folder: Path
    file: str
    digest: str
    lost: tuple[str, ...]

    @property
    def source(self) -> Mapping[str, str]:
        return {"file": self.file, "sha256": self.digest, "lost": "; ".join(self.lost)}


def convert(path: Path, progress: Progress | None = None) -> Converted:
    """Write the model of a GGUF file into the folder of its name beside it; one that was made before is kept.

    A symbolic link counts by its own name and place: files in the cache of a hub are links to digests. A name that does
    not end in .gguf gets "-model" at its end.

    Quantized weights become 32-bit floats. Needs the memory and the room on the disk that these take. `progress` is
    called with the bytes of the file that were read, and their total.

    Raises `InvalidInput` for a file that transformers cannot read, `Conflict` for another folder of this name,
    `StorageFull`, `MissingExtra`.
    """
    gguf = _package()
    path = path.parent.resolve() / path.name
    folder, digest = _folder_of(path), _digest(path, progress)
    if folder.is_dir():
        return _made_before(folder, path, digest)
    if folder.exists():
        raise Conflict(f"{folder} is where the model of {path.name} would be written, and is a file; rename one")
    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, KeyError, IndexError, OSError, MemoryError) as wrong:
        raise InvalidInput.at("path", msg=f"{path.name} is not a whole GGUF file ({wrong}); fetch it again") from None
    dtype = _dtype(reader)
    _check_room(path, sum(int(tensor.n_elements) for tensor in reader.tensors) * _BYTES[dtype])
    with ExitStack() as held:
        try:
            scratch = Path(held.enter_context(unfinished_next_to(str(folder)))) / folder.name
        except OSError as wrong:
            raise InvalidInput.at(
                "path",
                msg=f"the model of {path.name} is written beside it, and {path.parent} cannot be written: {wrong}",
            ) from None
        scratch.mkdir(0o755)
        usual = _write(path, dtype, scratch)
        made = Converted(folder, str(path), digest, tuple(_lost(reader, usual)))
        (scratch / _SOURCE).write_text(json.dumps({"sha256": digest, "lost": made.lost}))
        scratch.rename(folder)
    return made


def _folder_of(path: Path) -> Path:
    named = path.suffix.lower() == ".gguf"
    return path.with_suffix("") if named else path.with_name(f"{path.name}-model")


def _package() -> Any:
    try:
        import gguf  # noqa: PLC0415 - an extra of its own
    except ImportError as error:
        raise MissingExtra("gguf", "gguf") from error
    return gguf


def _made_before(folder: Path, path: Path, digest: str) -> Converted:
    try:
        known = json.loads((folder / _SOURCE).read_bytes())
    except (OSError, ValueError):
        known = {}
    if known.get("sha256") != digest:
        raise Conflict(
            f"{folder} is where the model of {path.name} would be written, and holds something else; rename one of them"
        )
    return Converted(folder, str(path), digest, tuple(known.get("lost", ())))


def _check_room(path: Path, needed: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise StorageFull(
            f"the weights of {path.name} need {needed:,} bytes in {path.parent}, where {free:,} are free; make room, "
            "or move the file to another disk"
        )


def _dtype(reader: Any) -> str:
    """Return the type that holds all weights exactly: 16 bits only for a file that has nothing else."""
    stored = {tensor.tensor_type.name for tensor in reader.tensors}
    return _STORED.get(stored.pop(), "float32") if len(stored) == 1 else "float32"


def _lost(reader: Any, usual: bool) -> Iterator[str]:
    """Yield what the folder lacks of the model. `usual` is whether its tokenizer splits text as byte-level ones do."""
    kinds = Counter(tensor.tensor_type.name for tensor in reader.tensors)
    rounded = {kind: count for kind, count in kinds.items() if kind not in _STORED}
    if rounded:
        named = ", ".join(f"{count} as {kind}" for kind, count in sorted(rounded.items()))
        yield (
            f"{sum(rounded.values())} of {sum(kinds.values())} weight tensors were rounded when the file was made "
            f"({named}); they are 32-bit floats of the rounded values now, larger and no more exact"
        )
    split = _text(reader, "tokenizer.ggml.pre")
    if usual and split and split not in _USUAL_SPLITS:
        yield (
            f"the rule {split!r} by which text is split before it becomes tokens is not read by transformers, which "
            "uses the usual one: numbers and rare characters may become other tokens than the model has learned"
        )
    more = sorted(key for key in reader.fields if key.startswith("tokenizer.chat_template."))
    if more:
        yield f"chat templates besides the default one: {', '.join(key.rpartition('.')[2] for key in more)}"
    if any(tensor.name.startswith("rope_freqs") for tensor in reader.tensors):
        yield "the factors of positions (rope_freqs): long texts are read less well than by the model itself"


def _text(reader: Any, key: str) -> str:
    field = reader.fields.get(key)
    return "" if field is None else bytes(field.parts[field.data[0]]).decode(errors="replace")


def _write(path: Path, dtype: str, folder: Path) -> bool:
    from modelyard.parts.torch import gguf_loading  # noqa: PLC0415 - imports torch

    try:
        return gguf_loading.write(path, dtype, folder)
    except Exception as failed:
        if not says_full(failed):
            raise
        raise StorageFull(f"the disk of {path.parent} is full: {path.name} needs more room as a folder") from None


def _digest(path: Path, progress: Progress | None) -> str:
    total, read, digest = path.stat().st_size, 0, hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            read += len(chunk)
            if progress is not None:
                progress(read, total)
    return digest.hexdigest()

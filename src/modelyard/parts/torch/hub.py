"""Models of a hub, by name: fetched through `huggingface_hub` into its cache, pinned by commit, checked by digest.

Its own settings count: HF_ENDPOINT for the hub, HF_HOME for the cache, HF_HUB_OFFLINE, and HF_TOKEN or `hf auth login`
for what is gated or private. Only the files that serving and training read are fetched.
"""

import hashlib
import logging
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from modelyard.errors import BackendError, Forbidden, InvalidInput, MissingExtra, NotFound, Overloaded, StorageFull
from modelyard.parts.torch.full_disk import says_full
from modelyard.parts.torch.model_config import CONFIG
from modelyard.parts.torch.model_folder import (
    MAX_JSON,
    MORE_TEMPLATES,
    SMALL_FILES,
    WEIGHTS,
    WEIGHTS_INDEX,
    Progress,
    check_small_files,
    indexed_weights,
)
from modelyard.parts.torch.records import LICENSE

try:
    import huggingface_hub
    from huggingface_hub import constants, errors
    from huggingface_hub.utils import validate_repo_id
    from tqdm.auto import tqdm
except ImportError as error:
    raise MissingExtra("huggingface_hub", "torch") from error

_DIGEST, _GIT = re.compile("[0-9a-f]{64}|[0-9a-f]{40}"), 40
"""The digest of a file in large-file storage, or of one in git, by its number of digits."""

_SHARD = re.compile(r"model-.*\.safetensors")
_LICENSE = re.compile(r"[\w.+-]{1,64}", re.ASCII)

log = logging.getLogger("modelyard.engines.torch.hub")

_WAIT = 60.0
"""Seconds after which a hub that names no time is asked again."""

_USER, _QUERY = re.compile(r"(?<=//)[^/\s'\"]*@"), re.compile(r"(?<=\w)\?[^\s'\"]*=[^\s'\"]*")
_LOGGERS = ("huggingface_hub.utils._http", "huggingface_hub.file_download", "httpx", "httpx2")


def _without_secrets(record: logging.LogRecord) -> bool:
    """Take users of addresses and their signatures out of what the libraries log."""
    text = record.getMessage()
    safe = _QUERY.sub("", _USER.sub("", text))
    if safe != text:
        record.msg, record.args = safe, ()
    return True


for _logger in _LOGGERS:
    logging.getLogger(_logger).addFilter(_without_secrets)


def endpoint() -> str:
    """Return the address of the hub without the user and the password that it may have."""
    return _USER.sub("", constants.ENDPOINT)


@attrs.frozen
class HubSnapshot:
    """The files of a model at a commit, in the cache. `digests` are those that the hub names, in hex, by file name."""

    folder: Path
    name: str
    commit: str
    endpoint: str
    digests: Mapping[str, str]
    license: str | None = None
    """What the hub says; the cache does not know it."""

    @property
    def source(self) -> Mapping[str, str]:
        told = {} if self.license is None else {LICENSE: self.license}
        return {"hub_id": self.name, "revision": self.commit, "endpoint": self.endpoint, **told}

    def check(self, read: Mapping[str, str]) -> None:
        """Compare the SHA-256 digests of files that were read with what the hub names. Those that differ are removed
        from the cache. Raises `BackendError`.
        """
        wrong = [name for name, digest in read.items() if not self._right(name, digest)]
        for name in wrong:
            (self.folder / name).resolve().unlink(missing_ok=True)
            (self.folder / name).unlink(missing_ok=True)
        if wrong:
            raise BackendError(
                f"what came for {self.name} from {self.endpoint} has not the digest that the hub names "
                f"({', '.join(wrong)}); it was removed from the cache: add the model again to fetch it anew"
            )

    def _right(self, name: str, digest: str) -> bool:
        named = self.digests.get(name)
        if named is not None and len(named) == _GIT:
            data = (self.folder / name).read_bytes()
            return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest() == named
        return named in (digest, None)


def fetch(name: str, revision: str | None = None, progress: Progress | None = None) -> HubSnapshot:
    """Fetch a model: what the cache lacks of it. Without a connection to the hub, take it from the cache.

    `revision` is a branch, a tag or a commit, by default the main branch. `progress` is called with the bytes that are
    there and the total. A connection that breaks is continued where it ended; the files that a call has fetched when it
    gives up or is killed are kept for the next one.

    Raises `InvalidInput` for a model that is not served, before its weights are fetched, `NotFound`, `Forbidden` for
    one that is gated, `Overloaded`, `StorageFull`, `BackendError`.
    """
    check_name(name)
    if constants.is_offline_mode():
        return cached(name, revision)
    with _explained(name, revision):
        try:
            info = huggingface_hub.HfApi().model_info(name, revision=revision, files_metadata=True)
        except (errors.HfHubHTTPError, errors.OfflineModeIsEnabled):
            raise
        except Exception as away:
            if not is_connection(away):
                raise
            found = cached(name, revision, f"{endpoint()} cannot be reached ({type(away).__name__})")
            log.warning("%s cannot be reached: %s is what its cache has, as it was last fetched", endpoint(), name)
            return found
        return _Fetch(name, info, progress).snapshot(revision or constants.DEFAULT_REVISION)


def cached(name: str, revision: str | None = None, why: str = "") -> HubSnapshot:
    """Return a model from the cache; nothing is fetched. Raises `NotFound`, or `InvalidInput` for a part of one."""
    check_name(name)
    names = [*SMALL_FILES, f"{MORE_TEMPLATES}/*.jinja", "*.safetensors"]
    try:
        found = huggingface_hub.snapshot_download(name, revision=revision, local_files_only=True, allow_patterns=names)
    except FileNotFoundError:
        at = f" at revision {revision!r}" if revision else ""
        why = why or ("HF_HUB_OFFLINE is set" if constants.is_offline_mode() else "")
        raise NotFound(
            "Model",
            name,
            f"{why + ', and ' if why else ''}the hub's cache in {constants.HF_HUB_CACHE} does not have all of it{at}; "
            f"fetch it with a connection: modelyard base-models add {name}",
        ) from None
    folder = Path(found)
    files = [path for path in folder.rglob("*") if path.is_file()]
    tags = {path.relative_to(folder).as_posix(): path.resolve().name for path in files}
    digests = {file: tag for file, tag in tags.items() if _DIGEST.fullmatch(tag)}  # no tags without symbolic links
    return HubSnapshot(folder, name, folder.name, endpoint(), digests)


def check_name(name: str) -> None:
    try:
        validate_repo_id(name)
    except errors.HFValidationError:
        raise InvalidInput.at(
            "path",
            msg=f"{name!r} is not a name that a model of a hub can have: give org/name, each of letters, digits, '-', "
            "'_' and '.', and neither begins or ends with '-' or '.', holds '--' or '..', or ends with '.git'",
        ) from None


class _Fetch:
    """One fetch of a model at the commit that the hub has told of."""

    def __init__(self, name: str, info: Any, progress: Progress | None) -> None:
        self._name, self._commit, self._progress = name, info.sha, progress
        self._license = _license(info.tags or ())
        self._files = {one.rfilename: one for one in info.siblings or ()}
        self._there, self._total = 0, 0

    def snapshot(self, revision: str) -> HubSnapshot:
        """Fetch the small files, check what they say, and fetch the weights that they name."""
        if CONFIG not in self._files:
            raise InvalidInput.at("path", msg=f"{self._name} has no {CONFIG}{self._other_kind()}")
        templates = [name for name in self._files if _is_template(name)]
        small = [name for name in (*SMALL_FILES, *templates) if name in self._files]
        for name in small:
            if self._size(name) > MAX_JSON:
                raise InvalidInput.at("path", name, msg=f"is larger than {MAX_JSON} bytes")
        self._total = sum(self._size(name) for name in (*small, *self._likely_weights()))
        config, *_ = [self._get(name) for name in small]
        folder = Path(config).parent
        check_small_files(folder)
        weights = self._weights(folder)
        self._total = sum(self._size(name) for name in (*small, *weights))
        self._check_room(folder, weights)
        for name in weights:
            self._get(name)
        if revision != self._commit:  # so that the cache alone knows it, too
            ref = folder.parents[1] / "refs" / revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            ref.write_text(self._commit)
        digests = {name: self._digest(folder, name) for name in (*small, *weights)}
        return HubSnapshot(folder, self._name, self._commit, endpoint(), digests, self._license)

    def _other_kind(self) -> str:
        found = sorted(name for name in self._files if name.endswith(".gguf"))
        if found:
            return f", but GGUF files: fetch one (hf download {self._name} {found[0]} --local-dir .), and add its path"
        if "adapter_config.json" in self._files:
            return ": it is an adapter; add its base model, or merge them first and add the merged folder"
        return "; this is not a model in the transformers format"

    def _likely_weights(self) -> list[str]:
        """Return the weights as their names have it, as long as their index is not read."""
        return [WEIGHTS] if WEIGHTS in self._files else [name for name in self._files if _SHARD.fullmatch(name)]

    def _weights(self, folder: Path) -> list[str]:
        if WEIGHTS in self._files:
            return [WEIGHTS]
        if WEIGHTS_INDEX not in self._files:
            raise InvalidInput.at("path", msg=f"{self._name} has no {WEIGHTS}, and no {WEIGHTS_INDEX}; choose another")
        return indexed_weights(folder, lambda name: name in self._files)

    def _size(self, name: str) -> int:
        return int(self._files[name].size or 0)

    def _digest(self, folder: Path, name: str) -> str:
        """Return what the hub's list of files says, or else the tag under which it served the file."""
        one = self._files[name]
        listed = str((one.lfs.sha256 if one.lfs else one.blob_id) or (folder / name).resolve().name)
        if not _DIGEST.fullmatch(listed):
            raise BackendError(f"{endpoint()} names no digest of {name} of {self._name}; use another hub")
        return listed

    def _check_room(self, folder: Path, weights: list[str]) -> None:
        missing = sum(self._size(name) for name in weights if not (folder / name).exists())
        free = shutil.disk_usage(folder).free
        if missing > free:
            raise StorageFull(
                f"{self._name} needs {missing:,} bytes in {constants.HF_HUB_CACHE}, where {free:,} are free; make room,"
                " or set HF_HOME to a folder on another disk"
            )

    def _get(self, name: str) -> str:
        before = self._there
        path: str = huggingface_hub.hf_hub_download(
            self._name, name, revision=self._commit, tqdm_class=_counting(self._count)
        )
        self._there = before
        self._count(self._size(name))
        return path

    def _count(self, size: int) -> None:
        self._there += size
        if self._progress is not None:
            self._progress(min(self._there, self._total), self._total)


def _license(tags: Sequence[str]) -> str | None:
    """Return the id of the licence that a hub names among a model's tags."""
    named = (tag.removeprefix("license:") for tag in tags if tag.startswith("license:"))
    return next((one for one in named if _LICENSE.fullmatch(one)), None)


def _counting(count: Callable[[int], None]) -> type:
    class Counting(tqdm):
        """A progress bar that shows nothing, and counts."""

        def __init__(self, *args: Any, initial: int = 0, **options: Any) -> None:
            super().__init__(disable=True)
            count(initial)

        def update(self, n: float | None = 1) -> None:
            count(int(n or 0))

    return Counting


def _is_template(name: str) -> bool:
    folder, _, rest = name.partition("/")
    return folder == MORE_TEMPLATES and rest.endswith(".jinja") and "/" not in rest


def is_connection(error: BaseException) -> bool:
    """Return whether this came from the connection: the libraries beneath have changed their classes of errors."""
    beneath = {cls.__module__.partition(".")[0] for cls in type(error).__mro__}
    return isinstance(error, ConnectionError | TimeoutError) or bool(beneath & {"httpx", "httpx2", "requests"})


@contextmanager
def _explained(name: str, revision: str | None) -> Iterator[None]:
    """Say what the errors of the hub's library mean. Their own texts may show signed addresses, and are left out."""
    hub = endpoint()
    log_in = "log in (hf auth login), or set HF_TOKEN"
    try:
        yield
    except errors.GatedRepoError:
        raise Forbidden(f"{name} is gated: accept its terms at {hub}/{name}, and {log_in}") from None
    except errors.RevisionNotFoundError:
        raise NotFound("Revision", str(revision), f"{name} at {hub} has no such branch, tag or commit") from None
    except errors.RepositoryNotFoundError:
        raise NotFound("Model", name, f"{hub} has none of this name; if it is private, {log_in}") from None
    except errors.HfHubHTTPError as refused:
        raise _refused(name, refused) from None
    except errors.OfflineModeIsEnabled:
        raise NotFound("Model", name, "HF_HUB_OFFLINE is set, and the cache does not have it") from None
    except Exception as failed:
        if says_full(failed):
            raise StorageFull(
                f"the disk of {constants.HF_HUB_CACHE} is full; make room, or set HF_HOME to a folder on another disk, "
                f"and add {name} again: files that were fetched whole are kept"
            ) from None
        if not (isinstance(failed, OSError) or is_connection(failed)):
            raise
        raise _broken(name, failed) from None


def _refused(name: str, refused: Any) -> Exception:
    status, hub = refused.response.status_code, endpoint()
    if status in (429, 503):
        seconds = wait_of(refused.response)
        return Overloaded(f"{hub} wants fewer requests now ({status}): add {name} again in {seconds:g} s", seconds)
    if status in (401, 403):
        return Forbidden(f"{hub} refuses {name} to this token ({status}); log in (hf auth login), or set HF_TOKEN")
    return BackendError(f"{hub} answered {status} for {name}; add it again later: fetched files are kept")


def wait_of(response: Any) -> float:
    """Return after how many seconds a hub wants to be asked again."""
    named = response.headers.get("Retry-After", "")
    return float(named) if named.isdigit() else _WAIT


def _broken(name: str, failed: BaseException) -> BackendError:
    return BackendError(
        f"fetching {name} from {endpoint()} broke ({type(failed).__name__}); add it again: files that were "
        "fetched whole are kept"
    )

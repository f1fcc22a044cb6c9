"""`platform.models.export` and `platform.models.push`: checkpoints written where others load them."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

import attrs

from modelyard.domain.identity import Principal, require_host
from modelyard.domain.models import Model
from modelyard.errors import InvalidInput
from modelyard.part import meant_as_address
from modelyard.parts.torch.exports.taken import TakenCheckpoint, take
from modelyard.parts.torch.exports.written_whole import check_place, full_disk_named, new_file, new_folder
from modelyard.parts.torch.model_folder import Progress
from modelyard.parts.torch.records import LICENSE
from modelyard.parts.torch.sources import Both
from modelyard.platform.runtime import Runtime

if TYPE_CHECKING:
    from modelyard.parts.torch.exports.hub_push import PushedModel

Form = Literal["adapter", "merged", "gguf"]

_OBJECTS = ("s3:", "gs:", "az:")
_LAST = ("config.json", "adapter_config.json")
"""What says that a folder is a model: uploaded when all else is there."""


@attrs.frozen
class ExportForm:
    """The form of an export: an adapter, all weights in a number format, or a GGUF file of a type of weights.

    `license` is its id for the model card, such as "apache-2.0"; by default that of the base model, if its hub names
    one. Raises `InvalidInput`.
    """

    merged: bool = False
    gguf: str | None = None
    dtype: str | None = None
    license: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.merged and self.gguf is not None:
            raise InvalidInput.at("gguf", msg="is a form of its own, as merged is; choose one of them")
        if self.dtype is not None and not self.merged:
            raise InvalidInput.at(
                "dtype", msg="is of merged weights; an adapter keeps its own, and gguf names its type"
            )

    @property
    def name(self) -> Form:
        return "gguf" if self.gguf is not None else "merged" if self.merged else "adapter"

    def fill(self, taken: TakenCheckpoint, folder: Path, progress: Progress | None = None) -> None:
        """Write the files and the model card of a checkpoint into an empty folder."""
        from modelyard.parts.torch.exports.card import CARD, model_card  # noqa: PLC0415 - reads evaluations

        (folder / CARD).write_text(model_card(taken, self.name, self._license(taken)), encoding="utf-8")
        file = folder / f"{taken.model.name}-step{taken.checkpoint.step}-{self.gguf}.gguf"
        self.write(taken, file if self.name == "gguf" else folder, progress)

    def _license(self, taken: TakenCheckpoint) -> str | None:
        return self.license or taken.base.source.get(LICENSE)

    def write(self, taken: TakenCheckpoint, place: Path, progress: Progress | None = None) -> None:
        """Write the files of a checkpoint into an empty folder, or as the file of this name."""
        self._writer(taken)(place, progress=progress)

    def _writer(self, taken: TakenCheckpoint) -> Callable[..., None]:
        """Return what writes this form; only what that needs is loaded. Raises `MissingExtra`."""
        if self.gguf is not None:
            from modelyard.parts.torch.exports.gguf_export import write_gguf  # noqa: PLC0415

            return partial(write_gguf, taken, kind=self.gguf, license=self._license(taken))
        if self.merged:
            from modelyard.parts.torch.exports.merged_folder import write_merged  # noqa: PLC0415

            return partial(write_merged, taken, dtype=self.dtype)
        from modelyard.parts.torch.exports.adapter_folder import write_adapter  # noqa: PLC0415

        return partial(write_adapter, taken)


class ExportKeywords(TypedDict, total=False):
    merged: bool
    gguf: Literal["f32", "f16", "bf16", "q8_0"] | None
    dtype: Literal["float32", "bfloat16", "float16"] | None
    license: str | None


class ExportModel:
    """`platform.models.export`, which only the host may call: it writes files of this machine, with base models."""

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        require_host(principal)
        self._runtime, self._principal = runtime, principal

    def __call__(
        self,
        model: Model | str,
        to: str | os.PathLike[str],
        *,
        step: int | None = None,
        alias: str | None = None,
        progress: Progress | None = None,
        **form: Unpack[ExportKeywords],
    ) -> None:
        """Write the checkpoint of a step, or of an alias, by default the latest one.

        By default `to` becomes a folder with the adapter, as peft and vLLM load it. `merged`: a folder with all weights
        in the transformers format, in the base model's number format, or in `dtype` ("float32", "bfloat16",
        "float16"). `gguf`: one file with all weights, as llama.cpp reads it, of the type "f32", "f16", "bf16" or
        "q8_0". `to` may be an address as "s3://bucket/prefix", which gets the files of the folder, or the file.

        Folders have the tokenizer with its chat templates, and a model card (README.md) of what is known of the
        checkpoint; `license` is its id there. Nothing is written over, and what is written is there whole or not at
        all. Weights are merged one at a time: that takes the memory of the largest one, besides that of the adapter.
        `progress` is called with the bytes of weights that are written, and their total.

        Raises `NotFound`, `Conflict` if there is something at `to`, `StorageFull`, `StoreError`, `MissingExtra`,
        `InvalidInput` for a checkpoint that cannot have this form, `BackendError` if its base model has changed.
        """
        chosen = ExportForm(**form)
        if (scheme := meant_as_address(to)) is not None:
            return self._upload(model, str(to), scheme, step, alias, chosen, progress)
        place = Path(to)
        check_place(place)
        taken = take(self._runtime, self._principal, model, step, alias)
        if chosen.name == "gguf":
            with new_file(place) as file:
                chosen.write(taken, file, progress)
        else:
            with new_folder(place) as folder:
                chosen.fill(taken, folder, progress)
        return None

    def _upload(
        self,
        model: Model | str,
        to: str,
        scheme: str,
        step: int | None,
        alias: str | None,
        form: ExportForm,
        progress: Progress | None,
    ) -> None:
        if scheme not in _OBJECTS:
            raise InvalidInput.at(
                "to", msg=f"{to} is not an address that is written to: s3://bucket/prefix, gs:// or az://"
            )
        from modelyard.parts.objects.uploads import ObjectFolder  # noqa: PLC0415 - needs an extra of its own

        objects = ObjectFolder(to)
        objects.require_empty()
        both = Both(progress)
        with _filled(take(self._runtime, self._principal, model, step, alias), form, both.first) as folder:
            objects.upload(folder, lambda name: name in _LAST, both.second)


class PushModel:
    """`platform.models.push`, which only the host may call: it sends files with the host's token of a hub."""

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        require_host(principal)
        self._runtime, self._principal = runtime, principal

    def __call__(
        self,
        model: Model | str,
        name: str,
        *,
        private: bool = True,
        revision: str | None = None,
        step: int | None = None,
        alias: str | None = None,
        progress: Progress | None = None,
        **form: Unpack[ExportKeywords],
    ) -> "PushedModel":
        """Send the checkpoint of a step, or of an alias, to a hub as the model `name`, such as "org/name".

        Its forms are those of `models.export`. All of it is one commit, to the branch `revision` or to the main one;
        other files that the model has stay. A model that is new is private unless you say otherwise. The hub and the
        token are those of `huggingface_hub`: HF_ENDPOINT, and HF_TOKEN or `hf auth login`. `progress` is called with
        the bytes of weights that are written here before anything is sent, and their total.

        Raises `Conflict` for a model that is public, and should be private, `Forbidden`, `Overloaded`, `BackendError`,
        and what `models.export` raises.
        """
        with self.written(model, name, step, alias, ExportForm(**form), progress) as send:
            return send(private=private, revision=revision)

    def written(
        self,
        model: Model | str,
        name: str,
        step: int | None,
        alias: str | None,
        form: ExportForm,
        progress: Progress | None,
    ) -> "AbstractContextManager[Callable[..., PushedModel]]":
        """Write a checkpoint into a temporary folder; yield what sends it, as `hub_push.push` does."""
        from modelyard.parts.torch.exports import hub_push  # noqa: PLC0415 - a hub is asked only if it is named

        hub_push.check_target(name)
        taken = take(self._runtime, self._principal, model, step, alias)
        message = f"{taken.model.name}, step {taken.checkpoint.step}, {form.gguf or form.name}"
        return _sendable(taken, form, progress, lambda folder: partial(hub_push.push, folder, name, message=message))


@contextmanager
def _sendable(
    taken: TakenCheckpoint,
    form: ExportForm,
    progress: Progress | None,
    sends: "Callable[[Path], Callable[..., PushedModel]]",
) -> "Iterator[Callable[..., PushedModel]]":
    with _filled(taken, form, progress) as folder:
        yield sends(folder)


@contextmanager
def _filled(taken: TakenCheckpoint, form: ExportForm, progress: Progress | None) -> Iterator[Path]:
    """Yield a temporary folder with a checkpoint, for others than this machine.

    Raises `InvalidInput` for an adapter whose base model has no name elsewhere.
    """
    if form.name == "adapter" and "hub_id" not in taken.base.source:
        raise InvalidInput.at(
            "model",
            msg=f"is an adapter of {taken.base.id!r}, which is in a folder of this machine alone, where others do not "
            "find it: export it merged or as gguf, or add the base model by its name on a hub",
        )
    with tempfile.TemporaryDirectory(prefix="modelyard-export-") as scratch, full_disk_named(Path(scratch)):
        form.fill(taken, Path(scratch), progress)
        yield Path(scratch)

"""A checkpoint's adapter as a folder that peft and vLLM load as it is."""

import json
import shutil
from pathlib import Path
from typing import Any

import attrs

from modelyard.parts.torch.exports.merged_folder import copy_tokenizer
from modelyard.parts.torch.exports.stored_weights import refused
from modelyard.parts.torch.exports.taken import TakenCheckpoint
from modelyard.parts.torch.exports.written_bytes import WrittenBytes
from modelyard.parts.torch.lora import CONFIG_FILE, WEIGHTS_FILE
from modelyard.parts.torch.model_folder import Progress
from modelyard.parts.torch.records import BaseModel


@attrs.frozen
class NamedBase:
    """A base model as others find it: by the name and the commit of a hub, or else by its folder."""

    name: str
    revision: str | None

    @classmethod
    def of(cls, base: BaseModel) -> "NamedBase":
        if "hub_id" in base.source:
            return cls(base.source["hub_id"], base.source.get("revision"))
        return cls(base.path, None)


def write_adapter(taken: TakenCheckpoint, folder: Path, progress: Progress | None = None) -> None:
    """Write the adapter into an empty folder, with the tokenizer of its base model; the configuration last."""
    check_is_adapter(taken)
    copy_tokenizer(taken, folder)
    with taken.open_file(WEIGHTS_FILE) as file, (folder / WEIGHTS_FILE).open("wb") as copy:
        shutil.copyfileobj(file, copy)
        WrittenBytes(progress, copy.tell()).add(copy.tell())
    with taken.open_file(CONFIG_FILE) as file:
        config: dict[str, Any] = json.loads(file.read())
    named = NamedBase.of(taken.base)
    config |= {"base_model_name_or_path": named.name, "revision": named.revision}
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def check_is_adapter(taken: TakenCheckpoint) -> None:
    """Raise `InvalidInput` for a checkpoint that has none."""
    if CONFIG_FILE in taken.files:
        return
    if taken.files:
        raise refused("has no adapter, as all its weights were trained; export it merged")
    raise refused(f"step {taken.checkpoint.step} is the untouched base model; export a later step, or export it merged")

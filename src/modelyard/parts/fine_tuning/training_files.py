"""The files that a fine-tuning job reads: opened, checked row by row, and copied for the job."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

from modelyard.domain.identity import Principal
from modelyard.domain.job import JobKind
from modelyard.errors import InvalidInput
from modelyard.formats.jsonl import read_rows
from modelyard.formats.training_data import EXAMPLES, PREFERENCES
from modelyard.parts.batches.files.service import Files
from modelyard.parts.fine_tuning.formats import read_pairs, read_supervised
from modelyard.parts.readers.begins import check_begin
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.data import BaseModelCheck, store_rows
from modelyard.protocols import StoredArtifact

PURPOSE = "fine-tune"


class TrainingFiles:
    """The uploaded files of a principal, as rows to train on."""

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def rows(self, file_id: str, at: str) -> Iterator[Mapping[str, Any]]:
        """Yield the rows of a file as they are. Raises `NotFound`, and `InvalidInput` at the parameter `at`."""
        with self._open(file_id, at) as file, located(at):
            yield from read_rows(file)

    def copied(self, kind: str, base_model: str, file_id: str, at: str) -> tuple[StoredArtifact, int]:
        """Keep the rows of a file for a supervised or a DPO job, and count them. Raises as `rows`."""
        check = BaseModelCheck.of(self._runtime, base_model)
        with self._open(file_id, at) as file, located(at):
            if kind == JobKind.SFT:
                return store_rows(self._runtime.artifacts, EXAMPLES, read_supervised(file, check))
            return store_rows(self._runtime.artifacts, PREFERENCES, read_pairs(file, check))

    def _open(self, file_id: str, at: str) -> BinaryIO:
        files = Files(self._runtime, self._principal)
        file = files.get(file_id)
        if file.purpose != PURPOSE:
            raise InvalidInput.at(at, msg=f'must be a file of the purpose "{PURPOSE}", not "{file.purpose}"')
        opened = files.open(file.id)
        try:
            with located(at):
                check_begin(opened)
        except InvalidInput:
            opened.close()
            raise
        return opened


@contextmanager
def located(at: str) -> Iterator[None]:
    """Locate the problems of rows below the parameter that names their file."""
    try:
        yield
    except InvalidInput as wrong:
        raise wrong.below(at) from None

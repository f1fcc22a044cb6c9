"""How much of an export is written: told to who asks for its progress."""

from modelyard.parts.torch.model_folder import Progress


class WrittenBytes:
    """The bytes that were written, of a total; `progress` is called with both whenever there are more."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def add(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(self._done, self._total)

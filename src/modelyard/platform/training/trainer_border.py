"""The border to the code of trainers: what it raises and yields is checked before the platform uses it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from modelyard.errors import BackendError, CallerError, MissingExtra, ModelyardError, StoreError, TrainingError
from modelyard.lazy import log
from modelyard.protocols import SavedState, Started, Step, Trained, TrainItem


@contextmanager
def trainer_border() -> Iterator[None]:
    """Turn any exception of a trainer into a `TrainingError`; an interrupt of the main thread passes."""
    try:
        yield
    except (TrainingError, BackendError, CallerError, StoreError):
        raise
    except MissingExtra as error:
        raise TrainingError(str(error)) from error
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit) and threading.current_thread() is threading.main_thread():
            raise
        log.error("the trainer failed", exc_info=True)
        raise TrainingError(
            f"the trainer failed with {type(error).__name__}: {error}; correct the data or the configuration, "
            "or look into the worker's log, then start a new job"
        ) from error


def next_of(items: Iterator[TrainItem]) -> TrainItem:
    with trainer_border():
        item = next(items, None)
    if not isinstance(item, Started | Step | SavedState | Trained):
        raise TrainingError(f"the trainer yielded {item!r:.100} in the place of a result; correct the trainer")
    return item


def close(items: Iterator[TrainItem]) -> None:
    if not hasattr(items, "close"):
        return
    try:
        with trainer_border():
            items.close()
    except ModelyardError:
        log.warning("the trainer failed while it was closed", exc_info=True)

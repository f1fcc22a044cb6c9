"""A progress bar, in a terminal or a notebook."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Show = Callable[[int, int | None, Mapping[str, float]], None]
"""Told how many steps are done, of how many (None: not known yet), and numbers to show beside the bar."""


@contextmanager
def progress_bar(label: str, unit: str = "step") -> Iterator[Show]:
    """A bar that counts in this unit and tells the rate; it stays as long as the context.

    Raises ImportError saying what to install.
    """
    try:
        tqdm: Any = importlib.import_module("tqdm.auto")
    except ImportError:
        raise ImportError("a progress bar needs tqdm: pip install 'modelyard[progress]'") from None
    with tqdm.tqdm(desc=label, unit=unit) as bar:

        def show(done: int, total: int | None, numbers: Mapping[str, float]) -> None:
            bar.total = total
            bar.set_postfix({name: f"{value:.3g}" for name, value in numbers.items()}, refresh=False)
            bar.update(done - bar.n)
            bar.refresh()

        yield show

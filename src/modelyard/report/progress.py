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

    What it is told first was there before: the rate is of what is done since. A number stays until it is told anew.
    Raises ImportError saying what to install.
    """
    try:
        tqdm: Any = importlib.import_module("tqdm.auto")
    except ImportError:
        raise ImportError("a progress bar needs tqdm: pip install 'modelyard[progress]'") from None
    with tqdm.tqdm(desc=label, unit=unit, miniters=1) as bar:
        told, shown = False, dict[str, str]()

        def show(done: int, total: int | None, numbers: Mapping[str, float]) -> None:
            nonlocal told
            bar.total = total
            shown.update((name, f"{value:.3g}") for name, value in numbers.items())
            bar.set_postfix(shown, refresh=False)
            if not told:
                told, bar.initial, bar.n, bar.last_print_n = True, done, done, done
                bar.refresh()
            bar.update(done - bar.n)

        yield show

"""Many cases under one test id: an id costs four milliseconds, of collection, reports and fixtures in each process."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def check_each(cases: Mapping[str, T], check: Callable[[T], None]) -> None:
    """Check every case, and fail once, naming all cases that failed and why."""
    failed = []
    for name, case in cases.items():
        try:
            check(case)
        except Exception as error:
            failed.append(f"{name}: {type(error).__name__}: {error}")
    assert not failed, f"{len(failed)} of {len(cases)} cases failed:\n" + "\n".join(failed)


def each_case(
    names: str | Sequence[str], cases: Iterable[Any], ids: Callable[[Any], object] | Iterable[str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with every case under one id, and fail once with all that failed, each with its case in a note.

    The arguments are those of `pytest.mark.parametrize`. For tests whose fixtures no case changes.
    """
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]
    said = ids if ids is None or callable(ids) else [*ids]
    listed = [_named(case, at, len(wanted), said) for at, case in enumerate(cases)]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def tried(*arguments: Any, **fixtures: Any) -> None:
            assert listed, "there is no case"
            failed = []
            for name, values in listed:
                try:
                    test(*arguments, **fixtures, **dict(zip(wanted, values, strict=True)))
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"case {name}")
                    failed.append(error)
            if len(failed) == 1:
                raise failed[0]
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(listed)} cases failed", failed)

        signature = inspect.signature(test)
        left = [one for name, one in signature.parameters.items() if name not in wanted]
        tried.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return tried

    return decorate


def _named(case: Any, at: int, count: int, ids: Callable[[Any], object] | list[str] | None) -> tuple[str, Any]:
    """Return what a failure calls a case, and its values."""
    kept = case if isinstance(case, type(pytest.param())) else pytest.param(*case if count > 1 else (case,))
    assert not kept.marks, "a case with marks needs an id of its own"
    if kept.id is not None:
        return str(kept.id), kept.values
    if ids is not None and not callable(ids):
        return ids[at], kept.values
    said = [(ids(value) if ids is not None else None) for value in kept.values]
    shown = [repr(value) if one is None else str(one) for one, value in zip(said, kept.values, strict=True)]
    return ", ".join(shown)[:300], kept.values

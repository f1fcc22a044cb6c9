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
    listed = [_kept(case, len(wanted)) for case in cases]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def tried(*arguments: Any, **fixtures: Any) -> None:
            assert listed, "there is no case"
            failed = []
            for at, case in enumerate(listed):
                try:
                    test(*arguments, **fixtures, **dict(zip(wanted, case.values, strict=True)))
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"case {_name(case, at, said)}")
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


def _kept(case: Any, count: int) -> Any:
    """Return a case as a `pytest.param`."""
    kept = case if isinstance(case, type(pytest.param())) else pytest.param(*case if count > 1 else (case,))
    assert not kept.marks, "a case with marks needs an id of its own"
    return kept


def _name(case: Any, at: int, ids: Callable[[Any], object] | list[Any] | None) -> str:
    """Return what a failure calls a case, which takes longer than to run most of them."""
    if case.id is not None:
        return str(case.id)
    if ids is not None and not callable(ids):
        return str(ids[at])
    said = [(ids(value) if ids is not None else None) for value in case.values]
    return ", ".join(repr(value) if one is None else str(one) for one, value in zip(said, case.values, strict=True))[
        :300
    ]

"""Many cases under one test id, where the product of all would make thousands of ids."""

from collections.abc import Callable, Mapping
from typing import TypeVar

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

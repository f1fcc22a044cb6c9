"""A request whose prompt cannot be read fails, and none of those that are read with it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from local_models import alone, answered, engine_of, prompts, requested

from modelyard.errors import Overloaded

ODD = 258
"""A token that only one of them has."""


@pytest.mark.parametrize("place", range(5))
def test_callers_before_and_after_a_failing_one_are_answered(
    folder: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    engine, wanted = engine_of(folder), [requested(prompt, 6) for prompt in prompts(5)]
    wanted[place].prompt[0] = ODD
    plain = engine._network.hidden

    def scarce(ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        if (ids == ODD).any():
            raise torch.OutOfMemoryError
        return plain(ids, *rest)

    monkeypatch.setattr(engine._network, "hidden", scarce)
    answered(engine, *wanted)
    assert [type(one.failure) for one in wanted] == [Overloaded if at == place else type(None) for at in range(5)]
    monkeypatch.undo()
    left = [one for one in wanted if one.failure is None]
    assert [one.answer for one in left] == alone(folder, *left)


def test_a_transient_fault_fails_no_caller(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, wanted = engine_of(folder), [requested(prompt, 6) for prompt in prompts(4)]
    plain, failed = engine._network.hidden, []

    def once(*pass_: Any) -> torch.Tensor:
        if not failed:
            failed.append(1)
            raise torch.OutOfMemoryError
        return plain(*pass_)

    monkeypatch.setattr(engine._network, "hidden", once)
    answered(engine, *wanted)
    assert failed
    assert [one.answer for one in wanted] == alone(folder, *wanted)

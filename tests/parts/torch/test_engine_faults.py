"""Memory is bounded and known beforehand, and what goes wrong ends one answer alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from local_models import GREEDY, TOKEN_BYTES, alone, answered, engine_of, prompts, requested

from modelyard.domain.completion import FinishReason, Sampling
from modelyard.errors import BackendError, ContextLengthExceeded, Overloaded, QueueFull
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.serving.batching_engine import Engine
from modelyard.parts.torch.serving.sequence import Sequence, SequenceState


def cache_memory(engine: Engine) -> dict[int, int]:
    """Where the cache's memory lies, and how many bytes there are."""
    cache = engine.rows.cache
    return {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in (*cache.keys, *cache.values)}


def running_at_each_step(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many are answered at a time."""
    plain, seen = engine._decode, []

    def watching() -> None:
        seen.append(len(engine.rows.running))
        plain()

    monkeypatch.setattr(engine, "_decode", watching)
    return seen


# ---- memory ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("possible", [1, 2, 3, 6, 7, 11])
def test_keys_and_values_never_take_more_than_their_memory(folder: Path, possible: int) -> None:
    memory = TOKEN_BYTES * 256 * possible + 100
    engine = engine_of(folder, rows=6, memory=memory)
    first = cache_memory(engine)
    assert 0 < sum(first.values()) <= memory
    for tokens in (40, 250, 20):
        if 10 + tokens <= engine.rows.longest:
            answered(engine, *(requested([*range(10, 20)], min(tokens, 60), Sampling(seed=seed)) for seed in range(3)))
        assert cache_memory(engine) == first


def test_longer_sequences_run_fewer_at_a_time(folder: Path) -> None:
    engine = engine_of(folder, rows=8, memory=TOKEN_BYTES * 256 * 8)
    most, lengths = [0, 0], (10, 400)
    decode = engine._decode
    for place, length in enumerate(lengths):

        def watching(place: int = place) -> None:
            most[place] = max(most[place], len(engine.rows.running))
            decode()

        engine._decode = watching  # type: ignore[method-assign]
        answered(engine, *(requested(prompt * length, 4) for prompt in prompts(8, longest=2)))
    assert most == [6, 3]


def test_what_can_never_fit_is_refused_with_the_numbers_and_what_just_fits_is_answered(folder: Path) -> None:
    engine = engine_of(folder, memory=TOKEN_BYTES * 300)
    with pytest.raises(ContextLengthExceeded, match=r"context length is 300 tokens.*The messages have 300; shorten"):
        engine.submit(requested([5] * 300, 1))
    fitting, expected = requested([5] * 290, 10**6), requested([5] * 290, 10)
    assert answered(engine, fitting) == alone(Path(folder), expected)
    assert fitting.reason is FinishReason.LENGTH


def test_those_who_may_say_much_run_side_by_side_until_memory_is_full_and_then_take_turns(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight requests for more than there is memory for; at 257 tokens there is room for five, and no caller notices."""
    engine = engine_of(folder, ends=frozenset(), memory=TOKEN_BYTES * 256 * 12)
    first, running = cache_memory(engine), running_at_each_step(engine, monkeypatch)
    wanted = [
        requested([*prompt, *[7] * 225], 10**6, Sampling(seed=place))
        for place, prompt in enumerate(prompts(8, longest=20))
    ]
    for one in wanted:
        engine.submit(one)
    for one in wanted:
        engine.wait(one, 39)
        engine.cancel(one)
    assert running[0] == 8
    assert 5 in running
    assert cache_memory(engine) == first
    expected = [requested(one.prompt, 40, one.sampling) for one in wanted]
    assert [one.answer[:40] for one in wanted] == answered(engine_of(folder, ends=frozenset()), *expected)


def test_rows_become_short_again_when_more_want_to_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when a request always runs."""
    engine = engine_of(folder, ends=frozenset(), memory=TOKEN_BYTES * 256 * 8)
    long, early = requested([5] * 600, 3), requested([6], 60)
    for one in (long, early):
        engine.submit(one)
    engine.wait(long, 3)
    running = running_at_each_step(engine, monkeypatch)
    wanted = [early, *(requested([place], 60) for place in range(7, 12))]
    for one in wanted[1:]:
        engine.submit(one)
    for one in wanted:
        engine.wait(one, 60)
    assert max(running) == 6
    assert [one.answer for one in wanted] == alone(folder, *wanted)


def test_a_fault_while_one_is_read_again_fails_one_and_the_others_continue(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(folder, ends=frozenset(), memory=TOKEN_BYTES * 256 * 6)
    wanted = [requested([*prompt, *[7] * 240], 40) for prompt in prompts(4, longest=8)]
    failed = failing_once(
        monkeypatch,
        engine._network,
        "hidden",
        torch.OutOfMemoryError(),
        lambda ids, *_: any(one.answer and not one.read for one in engine.rows.running),
    )
    answered(engine, *wanted)
    left = [one for one in wanted if one.failure is None]
    assert (len(failed), len(left)) == (1, 3)
    assert [one.answer for one in left] == answered(
        engine_of(folder, ends=frozenset()), *(requested(one.prompt, 40) for one in left)
    )


def test_too_many_that_wait_are_refused_and_take_no_place(folder: Path) -> None:
    engine = engine_of(folder, rows=2, waiting=1)
    three = [requested(prompt, 4) for prompt in prompts(3)]
    for one in three:
        engine.submit(one)
    with pytest.raises(QueueFull, match="wait for this model"):
        engine.submit(requested([5], 4))
    engine.cancel(three[1])
    last = requested([6], 4)
    engine.submit(last)
    for one in (*three, last):
        engine.wait(one, one.max_tokens)
    assert [len(one.answer) for one in (*three, last)] == [4, 0, 4, 4]


# ---- faults ------------------------------------------------------------------------------------------------------


def failing_once(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fault: Exception, when: Callable[..., bool]
) -> list[int]:
    """Have a method raise the first time that `when` holds for its arguments."""
    plain, failed = getattr(owner, name), []

    def sometimes(*args: Any, **kwargs: Any) -> Any:
        if not failed and when(*args):
            failed.append(1)
            raise fault
        return plain(*args, **kwargs)

    monkeypatch.setattr(owner, name, sometimes)
    return failed


FAULTS = [
    (torch.OutOfMemoryError("no room"), Overloaded),
    (RuntimeError("a kernel failed"), BackendError),
    (IndexError("index out of range in self"), BackendError),
]


@pytest.mark.parametrize(("fault", "reported"), FAULTS)
def test_a_fault_in_a_pass_fails_one_answer_and_the_others_are_right(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception, reported: type[Exception]
) -> None:
    engine, wanted = engine_of(folder), [requested(prompt, 6, Sampling(seed=4)) for prompt in prompts(5)]
    failed = failing_once(monkeypatch, engine._network, "hidden", fault, lambda ids, *_: ids.shape[1] == 1)
    answered(engine, *wanted)
    assert failed
    lost = [one for one in wanted if one.failure is not None]
    assert len(lost) == 1
    assert type(lost[0].failure) is reported
    assert lost[0].failure.__cause__ is fault
    assert type(fault).__name__ in str(lost[0].failure)
    left = [one for one in wanted if one is not lost[0]]
    assert [one.answer for one in left] == alone(folder, *left)
    assert engine.rows.running == []


@pytest.mark.parametrize("token", [259, 10**6])
def test_a_prompt_with_tokens_that_the_model_has_not_never_reaches_it(folder: Path, token: int) -> None:
    """A graphics card would fail for good, and with it all that is answered and trained there."""
    engine = engine_of(folder)
    good = requested([5, 258, 7], 4)
    with pytest.raises(BackendError, match=f"token {token} of the prompt is not one of this model's 259"):
        engine.submit(requested([5, token, 6], 4))
    assert answered(engine, good) == alone(folder, good)


class Grammar:
    """Allows everything, until it fails in one of its two ways."""

    def __init__(self, way: str) -> None:
        self.way, self.calls = way, 0

    def _call(self, way: str) -> None:
        self.calls += way == self.way
        if self.calls > 2:
            raise ValueError("the parser gave up")

    def allowed(self) -> bytes:
        self._call("allowed")
        return b"\x01" * 259

    def accept(self, token: int) -> bool:
        self._call("accept")
        return False


@pytest.mark.parametrize("way", ["allowed", "accept"])
def test_a_grammar_that_cannot_continue_fails_its_own_answer(folder: Path, way: str) -> None:
    engine = engine_of(folder)
    odd, plain = requested([5, 6], 8, grammar=Grammar(way)), requested([5, 9], 8)
    answered(engine, odd, plain)
    assert type(odd.failure) is BackendError
    assert len(odd.answer) == 2
    assert [plain.answer] == alone(folder, plain)


def test_room_that_cannot_be_made_fails_the_one_that_needs_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(folder)
    short, long = requested([5, 6], 30), requested([7] * 300, 5)
    engine.submit(short)
    engine.wait(short, 3)

    def scarce(self: torch.Tensor, size: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "new_empty", scarce)
        engine.submit(long)
        engine.wait(long, 5)
    assert type(long.failure) is Overloaded
    engine.wait(short, 30)
    again = requested([7] * 300, 5)
    assert [short.answer, *answered(engine, again)] == alone(folder, short, again)


def test_when_even_the_cache_is_lost_all_fail_and_the_next_is_answered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, wanted = engine_of(folder), [requested(prompt, 6) for prompt in prompts(3)]
    for one in wanted:
        engine.submit(one)
    engine.wait(wanted[0], 2)
    with monkeypatch.context() as patch:
        patch.setattr(engine.rows.cache, "swap", lambda *_: 1 / 0)
        engine.cancel(wanted[1])
    assert [type(one.failure) for one in (wanted[0], wanted[2])] == [BackendError, BackendError]
    assert {one.state for one in wanted} == {SequenceState.ENDED}
    after = requested([5, 6, 7], 5)
    assert answered(engine, after) == alone(folder, after)


def test_a_step_that_is_interrupted_can_be_made_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by the key that interrupts a program."""
    engine, wanted = engine_of(folder), [requested(prompt, 6) for prompt in prompts(4)]
    for one in wanted:
        engine.submit(one)
    failing_once(monkeypatch, engine._network, "hidden", KeyboardInterrupt(), lambda *_: True)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        engine.wait(wanted[0], 6)
    for one in wanted:
        engine.wait(one, 6)
    assert [one.answer for one in wanted] == alone(folder, *wanted)


def test_weights_that_give_no_numbers_are_reported_as_such(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And another answer does not suffer."""
    engine, plain = engine_of(folder), Network.logits

    def broken(self: Network, hidden: torch.Tensor) -> torch.Tensor:
        logits = plain(self, hidden)
        if len(hidden) == 2:
            logits[0] = torch.nan
        return logits

    for sampling in (GREEDY, Sampling(seed=1), Sampling(seed=1, top_p=0.5, top_k=4, min_p=0.1)):
        one, other = requested([5], 3, sampling, top_logprobs=2), requested([6], 3, sampling)
        with monkeypatch.context() as patch:
            patch.setattr(Network, "logits", broken)
            engine.submit(one)
            engine.submit(other)
            engine.wait(one, 1)
        engine.wait(other, 3)
        assert "not a number" in str(one.failure)
        assert [other.answer] == alone(folder, other)


# ---- leaving -----------------------------------------------------------------------------------------------------


def test_a_cancelled_answer_gets_no_further_token_and_its_row_is_free(folder: Path) -> None:
    engine = engine_of(folder, rows=1)
    gone, next_ = requested([5, 6], 200), requested([7, 8], 5)
    engine.submit(gone)
    engine.submit(next_)
    engine.wait(gone, 3)
    had = len(gone.sampled)
    engine.cancel(gone)
    assert engine.rows.running == []
    engine.wait(next_, 5)
    assert (len(gone.sampled), gone.reason) == (had, None)
    assert (next_.reason, [next_.answer]) == (FinishReason.LENGTH, alone(folder, next_))


def test_a_row_may_be_left_by_a_thread_that_does_not_lead(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled in the middle of another's step, it is gone when that step is over."""
    engine = engine_of(folder)
    leading, gone = requested([5, 6], 2), requested([7, 8], 200)
    plain = engine._decode

    def cancelling() -> None:
        engine.cancel(gone)
        plain()

    engine.submit(leading)
    engine.submit(gone)
    monkeypatch.setattr(engine, "_decode", cancelling)
    engine.wait(leading, 2)
    assert (gone.state, engine.rows.running) == (SequenceState.ENDED, [])
    assert len(gone.sampled) <= 2


def test_an_ended_answer_can_be_cancelled_again(folder: Path) -> None:
    engine, one = engine_of(folder), requested([5], 1)
    answered(engine, one)
    engine.cancel(one)
    engine.cancel(Sequence([5], GREEDY, 1))
    assert one.reason is FinishReason.LENGTH

"""Threads and tasks share one engine without a thread of its own: no request is forgotten as others come and go."""

import asyncio
import random
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from local_models import GREEDY, SHAPE, adapter_weights, alone, engine_of, prompts, requested

from modelyard.parts.torch.serving.batching_engine import Engine
from modelyard.parts.torch.serving.sequence import SampledToken, Sequence, SequenceState

ENOUGH = 60.0
"""Seconds after which a wait is taken for endless. No test waits so long unless it fails."""


class Numbers(Engine):
    """An engine that answers 0, 1, 2, ... without any network, and may be held in the middle of a step."""

    def __init__(self, folder: Path) -> None:
        made = engine_of(folder)
        super().__init__(made._network, made._bank, frozenset(), rows=64, waiting=10**6)
        self.held, self.entered = threading.Event(), threading.Event()
        self.held.set()
        self.leaders: set[int] = set()
        self._stepping = threading.Lock()

    def _step(self) -> None:
        assert self._stepping.acquire(blocking=False), "two lead at once"
        try:
            self.leaders.add(threading.get_ident())
            self.entered.set()
            assert self.held.wait(ENOUGH)
            self._drop_cancelled()
            with self._lock:
                new, self._waiting = list(self._waiting), type(self._waiting)()
            for one in new:
                one.state = SequenceState.RUNNING
                self.rows.running.append(one)
            for one in list(self.rows.running):
                self._take(one, SampledToken(len(one.answer), 0.0))
        finally:
            self._stepping.release()

    def _leave(self, sequence: Sequence, failed: bool) -> None:
        self.rows.running.remove(sequence)


class Noted(deque[tuple[threading.Event, int]]):
    """Tells that something was put in."""

    def __init__(self) -> None:
        super().__init__()
        self.came = threading.Event()

    def append(self, claim: tuple[threading.Event, int]) -> None:
        super().append(claim)
        self.came.set()


@pytest.fixture
def numbers(folder: Path) -> Numbers:
    return Numbers(folder)


def read(engine: Engine, count: int, token_by_token: bool) -> list[int]:
    one = requested([5], count)
    engine.submit(one)
    while one.state is not SequenceState.ENDED:
        engine.wait(one, len(one.sampled) if token_by_token else count)
    return one.answer


async def aread(engine: Engine, count: int, token_by_token: bool) -> list[int]:
    one = requested([5], count)
    engine.submit(one)
    try:
        while one.state is not SequenceState.ENDED:
            await engine.await_(one, len(one.sampled) if token_by_token else count)
    finally:
        engine.cancel(one)
    return one.answer


def test_many_threads_all_get_what_is_theirs(numbers: Numbers) -> None:
    drawn = random.Random(1)
    sizes = [drawn.randint(1, 40) for _ in range(120)]
    with ThreadPoolExecutor(24) as threads:
        found = threads.map(lambda size: read(numbers, size, size % 2 == 0), sizes, timeout=ENOUGH)
        assert list(found) == [list(range(size)) for size in sizes]
    assert numbers.rows.running == []


def test_a_lone_reader_leads_itself(numbers: Numbers) -> None:
    read(numbers, 5, True)
    assert numbers.leaders == {threading.get_ident()}


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_many_tasks_some_of_them_cancelled_in_the_middle(numbers: Numbers, workers: int) -> None:
    async def main() -> None:
        drawn, numbers._leaders = random.Random(workers), ThreadPoolExecutor(workers)
        for _ in range(5):
            sizes = [drawn.randint(1, 60) for _ in range(60)]
            tasks = [asyncio.create_task(aread(numbers, size, size % 2 == 0)) for size in sizes]
            for task in drawn.sample(tasks, 25):
                for _ in range(drawn.randint(0, 3)):
                    await asyncio.sleep(0)
                task.cancel()
            found = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), ENOUGH)
            for size, answer in zip(sizes, found, strict=True):
                assert isinstance(answer, asyncio.CancelledError) or answer == list(range(size))

    asyncio.run(main())
    assert numbers.rows.running == []
    assert not numbers._waiting


def test_threads_tasks_and_loading_all_at_once(numbers: Numbers) -> None:
    """Readers on threads of the engine's own executor, others on threads elsewhere, tasks, and loads in between."""
    numbers._bank.load = lambda *_: None  # type: ignore[method-assign]

    async def main() -> None:
        loop, drawn = asyncio.get_running_loop(), random.Random(5)
        numbers._leaders = own = ThreadPoolExecutor(2)
        elsewhere = ThreadPoolExecutor(4)
        work: list[Any] = []
        for place in range(150):
            size = drawn.randint(1, 30)
            kind = place % 4
            if kind == 0:
                work.append(asyncio.create_task(aread(numbers, size, True)))
            elif kind == 1:
                work.append(loop.run_in_executor(own, read, numbers, size, False))
            elif kind == 2:
                work.append(loop.run_in_executor(elsewhere, read, numbers, size, True))
            else:
                work.append(loop.run_in_executor(own, numbers.load, 1, SHAPE, {}))
            if place % 10 == 0:
                await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(*work), ENOUGH)
        elsewhere.shutdown()

    asyncio.run(main())


def test_loads_that_fill_the_executor_do_not_keep_a_task_from_leading(numbers: Numbers) -> None:
    numbers._bank.load = lambda *_: None  # type: ignore[method-assign]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        numbers._leaders = own = ThreadPoolExecutor(1)
        reading = asyncio.create_task(aread(numbers, 50, True))
        loads = []
        for _ in range(60):
            loads.append(loop.run_in_executor(own, numbers.load, 1, SHAPE, {}))
            await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(reading, *loads), ENOUGH)

    asyncio.run(main())


def test_a_load_comes_between_two_steps_of_a_leader_who_has_not_finished(numbers: Numbers) -> None:
    loaded = []
    numbers._bank.load = lambda slot, *_: loaded.append((slot, len(long.answer)))  # type: ignore[method-assign]
    numbers.held.clear()
    long = requested([5], 500)
    numbers.submit(long)
    reader = threading.Thread(target=numbers.wait, args=(long, 500))
    reader.start()
    assert numbers.entered.wait(ENOUGH)
    numbers._lead._claims = claims = Noted()
    loader = threading.Thread(target=numbers.load, args=(3, SHAPE, {}))
    loader.start()
    assert claims.came.wait(ENOUGH)
    numbers.held.set()
    for thread in (reader, loader):
        thread.join(ENOUGH)
    assert loaded == [(3, 1)]
    assert len(long.answer) == 500


def test_a_loop_that_was_closed_under_its_task_does_not_keep_the_lead(numbers: Numbers) -> None:
    numbers.held.clear()
    first, lost, last = requested([5], 1), requested([5], 3), requested([5], 3)
    for one in (first, lost, last):
        numbers.submit(one)
    leader = threading.Thread(target=numbers.wait, args=(first, 1))
    leader.start()
    assert numbers.entered.wait(ENOUGH)
    gone, stays = asyncio.new_event_loop(), asyncio.new_event_loop()
    abandoned = gone.create_task(numbers.await_(lost, 2))
    gone.run_until_complete(asyncio.sleep(0))
    waiting = stays.create_task(asyncio.wait_for(numbers.await_(last, 2), ENOUGH))
    stays.run_until_complete(asyncio.sleep(0))
    abandoned._log_destroy_pending = False  # type: ignore[attr-defined] - it is meant
    gone.close()
    numbers.held.set()
    leader.join(ENOUGH)
    stays.run_until_complete(waiting)
    stays.run_until_complete(stays.shutdown_default_executor())
    stays.close()
    assert last.answer == [0, 1, 2]


def test_a_leader_who_is_interrupted_while_it_tidies_up_still_hands_over(
    numbers: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ctrl-C may come at any line of the main thread."""
    gone = requested([5], 3)
    numbers.submit(gone)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(numbers, "_drop_cancelled", interrupted)
        with pytest.raises(KeyboardInterrupt):
            numbers.cancel(gone)
    other = threading.Thread(target=read, args=(numbers, 5, True), daemon=True)
    other.start()
    other.join(ENOUGH)
    assert not other.is_alive()
    assert gone.state is SequenceState.ENDED


def test_answers_shared_by_threads_are_the_same_as_alone(folder: Path) -> None:
    engine = engine_of(folder, rows=4)
    wanted = [requested(prompt, 8) for prompt in prompts(16)]

    def answer(one: Sequence) -> list[int]:
        engine.submit(one)
        engine.wait(one, 8)
        return one.answer

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(answer, wanted, timeout=ENOUGH)) == alone(folder, *wanted)


def test_an_adapter_whose_row_was_left_is_not_remembered_under_the_next_one(folder: Path) -> None:
    """The row of a cancelled answer still runs when its slot gets another adapter: it is dropped before that."""
    engine, prompt = engine_of(folder), [*range(10, 60)]
    engine.load(1, SHAPE, adapter_weights(folder, SHAPE, seed=1))
    gone, plain = requested(prompt, 100, slot=1), engine._decode

    def cancelling() -> None:
        plain()
        gone.cancelled = True

    engine.submit(gone)
    engine._decode = cancelling  # type: ignore[method-assign]
    engine.wait(gone, 1)
    engine._decode = plain  # type: ignore[method-assign]
    other = adapter_weights(folder, SHAPE, seed=2)
    engine.load(1, SHAPE, other)
    after = requested(prompt, 8, slot=1)
    engine.submit(after)
    engine.wait(after, 8)
    fresh = engine_of(folder)
    fresh.load(1, SHAPE, other)
    expected = requested(prompt, 8, GREEDY, slot=1)
    fresh.submit(expected)
    fresh.wait(expected, 8)
    assert after.answer == expected.answer

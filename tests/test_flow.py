"""Flows and their two drivers: the same flow has the same history under both, however its caller leaves."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import attrs
import pytest

from modelyard.backends.echo import EchoBackend
from modelyard.domain.completion import CompletionRequest, Delta, FinishReason, Message, Role
from modelyard.domain.schema import RECORDS
from modelyard.domain.usage import RateLimit
from modelyard.flow import Await, Call, CallerDisconnected, Emit, Flow, OnEmit, Transact, aiterate, arun, iterate, run
from modelyard.platform.chat.backend_stream import Close, Open, Pull
from modelyard.protocols import ServedModel, Snapshot, Tx
from modelyard.stores.memory import MemoryStore
from modelyard.threads import FairPool

ECHO = EchoBackend()
THREADS = FairPool("flows", 64).of("acme")
MODEL = ServedModel("echo", ECHO.entries()[0], threads=THREADS)
REQUEST = CompletionRequest("echo", (Message(Role.USER, "hi"),))
PIECES = [Delta("a", 1), Delta("b", 1), Delta("c", 1, finish_reason=FinishReason.STOP)]

# ---- doubles -----------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Pieces:
    """A synchronous backend; `before` is called with the number of each piece, on the thread that asks for it."""

    blocking: bool = False
    before: Callable[[int], object] = lambda number: None
    story: list[str] = attrs.field(factory=list)
    threads: set[int] = attrs.field(factory=set)

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        try:
            for number, piece in enumerate(PIECES):
                self.threads.add(threading.get_ident())
                self.before(number)
                self.story.append(f"made {number}")
                yield piece
        finally:
            self.story.append("stopped")


@attrs.define(eq=False)
class AsyncPieces:
    """An asynchronous backend."""

    before: Callable[[int], Any] = lambda number: asyncio.sleep(0)
    story: list[str] = attrs.field(factory=list)

    async def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Delta]:
        try:
            for number, piece in enumerate(PIECES):
                await self.before(number)
                self.story.append(f"made {number}")
                yield piece
        finally:
            self.story.append("stopped")


class SlowStore(MemoryStore):
    """A store that may wait; `gate` lets its steps through."""

    blocking = True

    def __init__(self) -> None:
        super().__init__(RECORDS)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def transact(self, step: Callable[[Tx], Any], durable: bool = True) -> Any:
        self.entered.set()
        assert self.gate.wait(60)
        return super().transact(step, durable)

    async def atransact(self, step: Callable[[Tx], Any], durable: bool = True) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, lambda: self.transact(step, durable))


def kept(store: MemoryStore) -> int:
    """How often something was booked."""

    def query(snapshot: Snapshot) -> int:
        return int(snapshot.get(RateLimit, "booked").arrival)

    try:
        return store.read(query)
    except Exception:
        return 0


def book(tx: Tx) -> None:
    """Counts how often it took effect."""
    try:
        window = tx.get(RateLimit, "booked")
        tx.replace(RateLimit("booked", window.arrival + 1))
    except Exception:
        tx.add(RateLimit("booked", 1.0))


def reading(backend: Any, store: MemoryStore, story: list[str]) -> Flow[str]:
    """Shows every piece, and books once, whatever happens."""
    texts: list[str] = []
    waiting: list[Delta] = []
    source = yield Open(backend, REQUEST, MODEL)
    try:
        while (yield Pull(source, lambda delta: waiting.append(delta) or True)):
            texts.append(waiting[-1].text)
            yield Emit(waiting[-1].text)
        yield Close(source)
    except CallerDisconnected:
        story.append("abandoned")
        yield Emit("nobody reads this")
        yield Transact(store, book)
        raise
    yield Transact(store, book)
    return "".join(texts)


def sync_items(flow: Flow[Any]) -> list[Any]:
    return list(iterate(flow))


def async_items(flow: Flow[Any]) -> list[Any]:
    async def main() -> list[Any]:
        return [item async for item in aiterate(flow)]

    return asyncio.run(main())


def sync_result(flow: Flow[Any]) -> Any:
    return run(flow)


def async_result(flow: Flow[Any]) -> Any:
    return asyncio.run(arun(flow, THREADS))


DRIVERS = pytest.mark.parametrize("items", [sync_items, async_items], ids=["sync", "async"])
RESULTS = pytest.mark.parametrize("result", [sync_result, async_result], ids=["sync", "async"])
BACKENDS = pytest.mark.parametrize(
    "backend", [Pieces, lambda: Pieces(blocking=True), AsyncPieces], ids=["in place", "blocking", "asynchronous"]
)
STORES = pytest.mark.parametrize("store", [lambda: MemoryStore(RECORDS), SlowStore], ids=["in place", "blocking"])


# ---- the same history --------------------------------------------------------------------------------------------


@DRIVERS
@BACKENDS
@STORES
def test_a_flow_shows_every_piece_and_books_once(items: Any, backend: Any, store: Any) -> None:
    answering, books = backend(), store()
    assert items(reading(answering, books, [])) == ["a", "b", "c"]
    assert kept(books) == 1
    assert answering.story == ["made 0", "made 1", "made 2", "stopped"]


@RESULTS
@BACKENDS
def test_a_flow_returns_its_result_and_what_it_emits_is_dropped(result: Any, backend: Any) -> None:
    assert result(reading(backend(), MemoryStore(RECORDS), [])) == "abc"


@RESULTS
def test_each_effect_is_answered(result: Any) -> None:
    async def awaited() -> str:
        return "awaited"

    def flow() -> Flow[list[Any]]:
        store = MemoryStore(RECORDS)
        return [
            (yield Call(lambda: 1, blocking=False)),
            (yield Call(lambda: 2, blocking=True)),
            (yield Transact(store, lambda tx: 3)),
            (yield Await(awaited, lambda: "awaited")),
            (yield Emit("unseen")),
        ]

    assert result(flow()) == [1, 2, 3, "awaited", None]


@RESULTS
def test_a_fault_is_raised_at_the_effect_that_failed_and_may_be_caught(result: Any) -> None:
    def flow() -> Flow[str]:
        try:
            yield Call(lambda: 1 / 0, blocking=True)
        except ZeroDivisionError:
            return "caught"
        return "missed"

    assert result(flow()) == "caught"


@RESULTS
@BACKENDS
def test_a_fault_that_the_flow_lets_pass_reaches_the_caller_and_stops_the_backend(result: Any, backend: Any) -> None:
    answering = backend()

    def flow() -> Flow[None]:
        source = yield Open(answering, REQUEST, MODEL)
        yield Pull(source, lambda delta: True)
        yield Call(lambda: 1 / 0, blocking=False)

    with pytest.raises(ZeroDivisionError):
        result(flow())
    assert answering.story == ["made 0", "stopped"]


@RESULTS
@BACKENDS
def test_one_pull_takes_as_many_pieces_as_are_wanted(result: Any, backend: Any) -> None:
    answering, taken = backend(), []

    def take(delta: Delta) -> bool:
        taken.append(delta.text)
        return len(taken) == 2

    def flow() -> Flow[list[bool]]:
        source = yield Open(answering, REQUEST, MODEL)
        return [(yield Pull(source, take)), (yield Pull(source, take)), (yield Pull(source, take))]

    assert result(flow()) == [True, False, False]
    assert taken == ["a", "b", "c"]


@RESULTS
@BACKENDS
def test_closing_a_source_stops_the_backend_before_the_flow_continues(result: Any, backend: Any) -> None:
    answering = backend()

    def flow() -> Flow[list[str]]:
        source = yield Open(answering, REQUEST, MODEL)
        yield Pull(source, lambda delta: True)
        yield Close(source)
        yield Close(source)
        return list(answering.story)

    assert result(flow()) == ["made 0", "stopped"]


@RESULTS
@BACKENDS
def test_a_backend_that_fails_while_it_is_stopped_changes_nothing_and_is_logged(
    result: Any, backend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Clumsy:
        blocking = True

        def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
            try:
                yield PIECES[0]
            finally:
                raise OSError("cannot stop")

    class AsyncClumsy:
        async def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Delta]:
            try:
                yield PIECES[0]
            finally:
                raise OSError("cannot stop")

    clumsy = AsyncClumsy() if backend is AsyncPieces else Clumsy()

    def flow() -> Flow[str]:
        source = yield Open(clumsy, REQUEST, MODEL)  # type: ignore[arg-type]
        yield Pull(source, lambda delta: True)
        yield Close(source)
        return "went on"

    with caplog.at_level(logging.ERROR, "modelyard"):
        assert result(flow()) == "went on"
    assert "while it was stopped" in caplog.text


# ---- what the caller gets instead of what is emitted ---------------------------------------------------------------


class Pairs:
    """Joins what is emitted in pairs, and hands over a single one only before the driver waits."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def __call__(self, item: Any) -> Any:
        if item == "unfit":
            raise LookupError(item)
        if item is not None:
            self.kept.append(item)
        if len(self.kept) < (1 if item is None else 2):
            return None
        joined, self.kept = "".join(self.kept), []
        return joined


@DRIVERS
def test_what_is_emitted_goes_through_a_function_that_may_keep_it_until_the_driver_waits(items: Any) -> None:
    def flow() -> Flow[None]:
        yield Emit("before")
        yield OnEmit(Pairs())
        for letter in "abc":
            yield Emit(letter)
        yield Call(lambda: None, blocking=False)
        yield Emit("d")
        yield Emit("e")
        yield Call(lambda: None, blocking=True, threads=THREADS)
        yield Call(lambda: None, blocking=True, threads=THREADS)
        yield Emit("f")

    assert items(flow()) == ["before", "ab", "cd", "e"]


@DRIVERS
def test_a_fault_of_that_function_is_raised_where_the_item_is_emitted(items: Any) -> None:
    story = []

    def flow() -> Flow[None]:
        yield OnEmit(Pairs())
        try:
            yield Emit("unfit")
        except LookupError as error:
            story.append(error)
        yield Emit("a")
        yield Emit("b")
        yield Emit("unfit")

    with pytest.raises(LookupError, match="unfit"):
        items(flow())
    assert len(story) == 1


# ---- what is opened for a flow -------------------------------------------------------------------------------------


def test_what_is_opened_for_a_flow_is_closed_with_it_however_it_ends() -> None:
    class Opened:
        closed = 0

        def close(self) -> None:
            self.closed += 1

        async def aclose(self) -> None:
            self.closed += 1

    def flow() -> Flow[None]:
        yield Emit(1)
        yield Emit(2)

    async def leave(opened: Opened, items: int) -> None:
        emitted = aiterate(flow(), [opened])
        for _ in range(items):
            await anext(emitted)
        await emitted.aclose()

    for items in (1, 2):
        opened = Opened()
        emitted = iterate(flow(), [opened])
        assert [next(emitted) for _ in range(items)] == [1, 2][:items]
        assert not opened.closed
        emitted.close()
        assert opened.closed
        opened = Opened()
        asyncio.run(leave(opened, items))
        assert opened.closed


# ---- threads and loops -------------------------------------------------------------------------------------------


def test_what_may_wait_is_kept_off_the_loop_and_what_may_not_stays_on_it() -> None:
    waits, does_not = Pieces(blocking=True), Pieces(blocking=False)
    for backend in (waits, does_not):
        async_items(reading(backend, MemoryStore(RECORDS), []))
    assert threading.get_ident() not in waits.threads
    assert does_not.threads == {threading.get_ident()}


def test_nothing_of_a_blocking_backend_runs_on_the_loop_not_even_its_first_line() -> None:
    threads = set()

    class Eager:
        blocking = True

        def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
            threads.add(threading.get_ident())
            return iter(PIECES)

    assert async_items(reading(Eager(), MemoryStore(RECORDS), [])) == ["a", "b", "c"]
    assert threads
    assert threading.get_ident() not in threads


def test_an_asynchronous_backend_cannot_be_waited_for_on_a_running_loop() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="acomplete"):
            run(reading(AsyncPieces(), MemoryStore(RECORDS), []))

    asyncio.run(main())


def test_a_backend_that_can_do_both_is_asynchronous_on_a_loop() -> None:
    class Both(Pieces):
        async def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Delta]:
            yield attrs.evolve(PIECES[0], text="async")

    assert async_items(reading(Both(), MemoryStore(RECORDS), [])) == ["async"]
    assert sync_items(reading(Both(), MemoryStore(RECORDS), [])) == ["a", "b", "c"]


# ---- leaving: synchronous ----------------------------------------------------------------------------------------


@BACKENDS
def test_a_reader_who_closes_the_iterator_stops_the_backend_and_leaves_one_booking(backend: Any) -> None:
    answering, store = backend(), MemoryStore(RECORDS)
    items = iterate(reading(answering, store, answering.story))
    assert next(items) == "a"
    items.close()
    assert answering.story == ["made 0", "stopped", "abandoned"]
    assert kept(store) == 1


def test_a_reader_who_only_forgets_the_iterator_is_heard_of_too() -> None:
    answering, store = Pieces(), MemoryStore(RECORDS)
    for _ in iterate(reading(answering, store, answering.story)):
        break
    assert answering.story == ["made 0", "stopped", "abandoned"]
    assert kept(store) == 1


def test_an_iterator_that_was_never_begun_has_done_nothing() -> None:
    answering, store = Pieces(), MemoryStore(RECORDS)
    iterate(reading(answering, store, [])).close()
    assert answering.story == []
    assert kept(store) == 0


def test_a_reader_s_own_exception_abandons_the_flow_and_continues() -> None:
    answering, store = Pieces(), MemoryStore(RECORDS)
    items = iterate(reading(answering, store, []))
    next(items)
    with pytest.raises(LookupError):
        items.throw(LookupError())
    assert kept(store) == 1


def interrupt(number: int) -> None:
    if number == 1:
        raise KeyboardInterrupt


async def ainterrupt(number: int) -> None:
    interrupt(number)


@pytest.mark.parametrize(("backend", "before"), [(Pieces, interrupt), (AsyncPieces, ainterrupt)])
def test_an_interrupt_while_a_backend_works_abandons_the_flow(backend: Any, before: Any) -> None:
    answering, store = backend(before=before), MemoryStore(RECORDS)
    with pytest.raises(KeyboardInterrupt):
        run(reading(answering, store, answering.story))
    assert answering.story == ["made 0", "stopped", "abandoned"]
    assert kept(store) == 1


def test_a_booking_that_fails_after_the_reader_has_gone_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore(RECORDS)
    items = iterate(reading(Pieces(), store, []))
    next(items)
    store.close()
    with caplog.at_level(logging.ERROR, "modelyard"):
        items.close()
    assert "could not be brought to its end" in caplog.text


# ---- leaving: asynchronous ---------------------------------------------------------------------------------------


@BACKENDS
@STORES
def test_closing_an_asynchronous_iterator_stops_the_backend_and_leaves_one_booking(backend: Any, store: Any) -> None:
    answering, books = backend(), store()

    async def main() -> None:
        items = aiterate(reading(answering, books, answering.story))
        assert await anext(items) == "a"
        await items.aclose()

    asyncio.run(main())
    assert answering.story == ["made 0", "stopped", "abandoned"]
    assert kept(books) == 1


@attrs.define(eq=False)
class Gate:
    """Stops each caller that comes at `number` until it is opened."""

    number: int
    reached: threading.Event = attrs.field(factory=threading.Event)
    opened: threading.Event = attrs.field(factory=threading.Event)

    def __call__(self, number: int) -> None:
        if number == self.number:
            self.reached.set()
            assert self.opened.wait(60)


async def until(event: threading.Event) -> None:
    await asyncio.get_running_loop().run_in_executor(None, event.wait, 60)


def test_a_cancelled_task_waits_for_the_piece_that_a_thread_is_making_and_never_blocks_the_loop() -> None:
    gate, store = Gate(1), MemoryStore(RECORDS)
    answering = Pieces(blocking=True, before=gate)

    async def main() -> None:
        task = asyncio.create_task(arun(reading(answering, store, answering.story)))
        await until(gate.reached)
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert answering.story == ["made 0"]
        assert not task.done()
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert answering.story == ["made 0", "made 1", "stopped", "abandoned"]
    assert kept(store) == 1


def test_a_pull_of_many_pieces_ends_with_the_one_that_is_being_made_when_its_task_is_cancelled() -> None:
    gate, taken = Gate(0), []
    answering = Pieces(blocking=True, before=gate)

    def flow() -> Flow[None]:
        source = yield Open(answering, REQUEST, MODEL)
        yield Pull(source, lambda delta: taken.append(delta.text) or False)

    async def main() -> None:
        task = asyncio.create_task(arun(flow(), THREADS))
        await until(gate.reached)
        task.cancel()
        await asyncio.sleep(0)
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert taken == ["a"]
    assert answering.story == ["made 0", "stopped"]


def test_cancelling_again_and_again_loses_no_booking() -> None:
    gate, store = Gate(1), SlowStore()
    answering = Pieces(blocking=True, before=gate)

    async def main() -> None:
        task = asyncio.create_task(arun(reading(answering, store, [])))
        await until(gate.reached)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        store.gate.clear()
        gate.opened.set()
        await until(store.entered)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        store.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert kept(store) == 1


def test_a_cancelled_task_stops_an_asynchronous_backend_at_once() -> None:
    store = MemoryStore(RECORDS)
    begun = threading.Event()

    async def forever(number: int) -> None:
        if number == 1:
            begun.set()
            await asyncio.Event().wait()

    answering = AsyncPieces(before=forever)

    async def main() -> None:
        task = asyncio.create_task(arun(reading(answering, store, answering.story)))
        while not begun.is_set():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert answering.story == ["made 0", "stopped", "abandoned"]
    assert kept(store) == 1


def test_a_transaction_under_way_is_heard_of_before_the_cancellation() -> None:
    store, story = SlowStore(), []

    def flow() -> Flow[None]:
        answer = yield Transact(store, lambda tx: "committed")
        story.append(answer)
        try:
            yield Call(lambda: story.append("never"), blocking=False)
        except CallerDisconnected:
            story.append("abandoned")
            raise

    async def main() -> None:
        store.gate.clear()
        task = asyncio.create_task(arun(flow(), THREADS))
        await until(store.entered)
        task.cancel()
        await asyncio.sleep(0)
        assert story == []
        store.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert story == ["committed", "abandoned"]


def test_a_loop_that_ends_while_a_flow_is_under_way_leaves_one_booking() -> None:
    gate, store = Gate(1), MemoryStore(RECORDS)
    answering = Pieces(blocking=True, before=gate)

    async def main() -> None:
        task = asyncio.create_task(arun(reading(answering, store, answering.story)))
        await until(gate.reached)
        asyncio.get_running_loop().call_later(0, gate.opened.set)
        assert not task.done()

    asyncio.run(main())
    assert answering.story[-2:] == ["stopped", "abandoned"]
    assert kept(store) == 1


def test_the_cancellation_that_arrives_is_the_one_that_was_sent() -> None:
    gate = Gate(0)

    async def main() -> None:
        task = asyncio.create_task(arun(reading(Pieces(blocking=True, before=gate), MemoryStore(RECORDS), [])))
        await until(gate.reached)
        task.cancel("by a scope")
        await asyncio.sleep(0)
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError, match="by a scope"):
            await task

    asyncio.run(main())


def test_a_timeout_ends_a_flow_like_any_cancellation() -> None:
    store = MemoryStore(RECORDS)

    async def forever(number: int) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(arun(reading(AsyncPieces(before=forever), store, [])), 0.001)

    asyncio.run(main())
    assert kept(store) == 1

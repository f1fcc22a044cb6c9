"""Answers that callers iterate over, in a thread or on an event loop, whatever their items are."""

from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import suppress
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")


class AnswerStream(Generic[T]):
    """The items of an answer, which its flow emits in lists. It is made when the first are there, so that a refusal
    is raised then. Closing the stream early stops the work."""

    def __init__(self, items: Generator[Any, None, None]) -> None:
        self._items = items
        self._ready: Iterator[T] = iter(())
        with suppress(StopIteration):
            self._read_on()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        while True:
            for ready in self._ready:
                return ready
            self._read_on()

    def _read_on(self) -> None:
        while type(item := next(self._items)) is not list:
            self._note(item)
        self._ready = iter(item)

    def _note(self, item: object) -> None:
        """Note what is emitted besides the items."""

    def close(self) -> None:
        """Stop, and record the usage of what was produced."""
        self._items.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncAnswerStream(Generic[T]):
    """The items of an answer, on an event loop. To await or to enter it waits for the first ones, so that a refusal is
    raised there. See `AnswerStream`."""

    def __init__(self, items: AsyncGenerator[Any, None]) -> None:
        self._items = items
        self._ready: Iterator[T] = iter(())
        self._begun = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while True:
            for ready in self._ready:
                return ready
            await self._read_on()

    def __await__(self) -> Generator[Any, Any, Self]:
        return self.__aenter__().__await__()

    async def _read_on(self) -> None:
        self._begun = True
        while type(item := await anext(self._items)) is not list:
            self._note(item)
        self._ready = iter(item)

    def _note(self, item: object) -> None:
        """Note what is emitted besides the items."""

    async def aclose(self) -> None:
        """Stop, and record the usage of what was produced."""
        await self._items.aclose()

    async def __aenter__(self) -> Self:
        if not self._begun:
            with suppress(StopAsyncIteration):
                await self._read_on()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

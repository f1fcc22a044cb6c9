"""Answers that callers iterate over, in a thread or on an event loop, whatever their items are."""

from collections.abc import AsyncGenerator, Generator, Iterator
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")


class AnswerStream(Generic[T]):
    """The items of an answer, which its flow emits in lists. Closing the stream early stops the work."""

    def __init__(self, items: Generator[Any, None, None]) -> None:
        self._items = items
        self._ready: Iterator[T] = iter(())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        while True:
            for ready in self._ready:
                return ready
            item = next(self._items)
            if type(item) is list:
                self._ready = iter(item)
            else:
                self._note(item)

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
    """The items of an answer, on an event loop. See `AnswerStream`."""

    def __init__(self, items: AsyncGenerator[Any, None]) -> None:
        self._items = items
        self._ready: Iterator[T] = iter(())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while True:
            for ready in self._ready:
                return ready
            item = await anext(self._items)
            if type(item) is list:
                self._ready = iter(item)
            else:
                self._note(item)

    def _note(self, item: object) -> None:
        """Note what is emitted besides the items."""

    async def aclose(self) -> None:
        """Stop, and record the usage of what was produced."""
        await self._items.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

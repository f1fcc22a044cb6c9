"""The deltas of a backend one by one: a backend may yield several at once (`protocols.Deltas`)."""

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Sequence

from modelyard.domain.completion import Delta
from modelyard.protocols import Deltas


def one_by_one(given: Iterator[Deltas]) -> Generator[Delta, None, None]:
    """Yield each delta of an answer. Closing this closes the answer.

    >>> [delta.text for delta in one_by_one(iter([Delta("a"), [Delta("b"), Delta("c")]]))]
    ['a', 'b', 'c']
    """
    try:
        for item in given:
            yield from several(item)
    finally:
        getattr(given, "close", _nothing)()


async def aone_by_one(given: AsyncIterator[Deltas]) -> AsyncGenerator[Delta, None]:
    try:
        async for item in given:
            for delta in several(item):
                yield delta
    finally:
        await getattr(given, "aclose", _anothing)()


def several(item: Deltas) -> Sequence[Delta]:
    return item if isinstance(item, list | tuple) else (item,)


def _nothing() -> None:
    """Do nothing: what has no `close` needs none."""


async def _anothing() -> None:
    """Do nothing: what has no `aclose` needs none."""

"""Several answers at once: what a request with several prompts waits for."""

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import attrs

from modelyard.flow import AsyncDriver, Driver, Flow, arun, run

AT_ONCE = 32
"""How many answers to one request are made at a time."""


@attrs.define(eq=False)
class AtOnce:
    """An effect: answered with the results of all flows, in their order. Without an event loop, they run in turn.

    When one fails the others are cancelled, and what they have produced is recorded, as when the caller leaves.
    """

    flows: Sequence[Flow[Any]]
    waits: ClassVar[bool] = True

    def perform(self, driver: Driver[Any]) -> list[Any]:
        return [run(flow) for flow in self.flows]

    async def aperform(self, driver: AsyncDriver[Any]) -> list[Any]:
        """Return the results of the flows, `AT_ONCE` at a time."""
        places = asyncio.Semaphore(AT_ONCE)

        async def answered(flow: Flow[Any]) -> Any:
            async with places:
                return await arun(flow)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(answered(flow)) for flow in self.flows]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

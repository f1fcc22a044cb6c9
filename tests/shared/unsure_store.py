"""A store that cannot say whether a commit took place, and what each of the commits of a scenario does to files."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from modelyard import Platform, open_platform
from modelyard.domain.schema import records_of
from modelyard.errors import OutcomeUnknown
from modelyard.part import standard_parts
from modelyard.platform.runtime import Settings
from modelyard.stores import MemoryStore
from modelyard.testing import ManualClock, RunTwiceStore

MOST_COMMITS = 200


class UnsureStore(RunTwiceStore):
    """Commits, and then loses the connection: always while it is `unsure`, and after the commit number `at`."""

    unsure = False
    at, commits = 0, 0

    def transact(self, step: Any, durable: bool = True) -> Any:
        answer = self._store.transact(step, durable)
        self._lose()
        return answer

    async def atransact(self, step: Any, durable: bool = True) -> Any:
        answer = await self._store.atransact(step, durable)
        self._lose()
        return answer

    def _lose(self) -> None:
        self.commits += 1
        if self.unsure or self.commits == self.at:
            raise OutcomeUnknown("the connection was lost during the commit; look before you try again")


def unsure_anywhere(scenario: Callable[[Platform], object], settings: Settings | None = None) -> int:
    """Run a scenario again and again, each time with another commit of unknown outcome: no record may lose its files.

    Returns how many commits the scenario has.
    """
    for at in range(1, MOST_COMMITS):
        store, clock = UnsureStore(MemoryStore(records_of(standard_parts()))), ManualClock()
        store.at = at
        with open_platform(store=store, clock=clock, settings=settings) as platform:
            with suppress(OutcomeUnknown):
                scenario(platform)
            reached, store.at = store.commits >= at, 0
            platform.worker().run_until_idle()
            missing = platform.remove_orphans(grace=0).missing
        assert not missing, f"commit {at}: {missing}"
        if not reached:
            return at - 1
    raise AssertionError(f"the scenario has more than {MOST_COMMITS} commits")

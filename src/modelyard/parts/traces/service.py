"""`platform.compat.traces`: calls that programs trace, in one place with the models that answered."""

from collections.abc import Sequence
from datetime import timedelta

from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.identity import Principal
from modelyard.errors import Forbidden, InvalidInput
from modelyard.parts.traces.call_query import Places
from modelyard.parts.traces.calls import AT_ONCE, Calls, remove_call
from modelyard.parts.traces.evaluation_runs import keep_evaluations
from modelyard.parts.traces.feedback import Feedbacks
from modelyard.parts.traces.objects import PublishedObjects
from modelyard.parts.traces.records import TracedCall
from modelyard.parts.traces.tables import TracedTables
from modelyard.platform.paging import named_place
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Tx


class Traces:
    """Traced calls, the feedback on them, and the objects, tables and files that they refer to.

    call = platform.compat.traces.calls.start("answer", {"question": "2 + 2"})
    platform.compat.traces.calls.end(call.id, "4")
    platform.compat.traces.feedback.add(call.ref, "thumbs", {"up": True})
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    @property
    def calls(self) -> Calls:
        """The calls that programs traced."""
        return Calls(self._runtime, self._principal)

    @property
    def feedback(self) -> Feedbacks:
        """The feedback on calls and objects."""
        return Feedbacks(self._runtime, self._principal)

    @property
    def objects(self) -> PublishedObjects:
        """The objects and ops that programs published."""
        return PublishedObjects(self._runtime, self._principal)

    @property
    def tables(self) -> TracedTables:
        """The tables and files that objects refer to."""
        return TracedTables(self._runtime, self._principal)

    def keep_runs(
        self, calls: Sequence[str], *, project: str | None = None, entity: str | None = None
    ) -> list[EvaluationRun]:
        """Keep the evaluations of the SDK among these calls as runs, as is done when they end over HTTP; returns those.

        An evaluation that is kept again gets the rows that it lacks. Raises `Forbidden`.
        """
        place = named_place(self._runtime, self._principal, entity, project)
        return keep_evaluations(self._runtime, self._principal, place, calls)

    def keep(self, days: float) -> int:
        """Remove the calls that began more than so many days ago, and the feedback on them; returns how many.

        Objects, tables and files stay. Only the host may call this. Raises `InvalidInput`, `Forbidden`.
        """
        if self._principal.scope.entity is not None:
            raise Forbidden("only the host may do this")
        if not 0 <= days <= timedelta.max.days // 2:
            raise InvalidInput.at("days", msg="must be 0 or more")
        moment, removed = self._runtime.clock.now() - timedelta(days=min(days, 300_000)), 0

        def step(tx: Tx) -> int:
            old = [call for call in tx.page(TracedCall, "by_age", limit=AT_ONCE) if call.started_at < moment]
            for call in old:
                remove_call(tx, call)
            return len(old)

        while gone := self._runtime.store.transact(step):
            removed += gone
        self._runtime.cache.slot(Places).clear()
        return removed

"""Following a response in the background: its events as they come, read from what is stored of it."""

from contextlib import closing
from functools import partial

from modelyard.domain.identity import Principal
from modelyard.domain.job import Job
from modelyard.errors import InvalidInput
from modelyard.flow import Await, Call, Emit, Flow
from modelyard.parts.responses.conversation import find_response
from modelyard.parts.responses.formats.replay import Replay
from modelyard.parts.responses.records import ModelResponse
from modelyard.platform.jobs.wakeups import JobWaiter
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot

ATTEMPT = "attempt"
"""The member of a job's result that counts how often its response has begun."""


def follow(runtime: Runtime, principal: Principal, response_id: str, after: int = -1) -> Flow[None]:
    """Emit lists of the events of a response in the background that are numbered above `after`, until it has ended.

    A caller that leaves changes nothing. Raises `NotFound`, also when the response is deleted meanwhile, and
    `InvalidInput` if it was not requested in the background.
    """
    replay, seconds = Replay(after), runtime.settings.poll

    def query(snapshot: Snapshot) -> tuple[ModelResponse, int]:
        response = find_response(runtime, snapshot, principal, response_id)
        if not response.job_id:
            raise InvalidInput.at("stream", msg="is for responses that were requested with background: true")
        job = get_or_none(snapshot, Job, response.job_id)
        return response, 1 if job is None else int(job.result.get(ATTEMPT, 1))

    def look() -> tuple[ModelResponse, int]:
        found = runtime.store.read(query)
        waiter.watch(found[0].job_id)
        return found

    with closing(JobWaiter(runtime.clock, runtime.store, seconds)) as waiter:
        while True:
            response, attempt = yield Call(look, runtime.store.blocking, runtime.store_threads(principal.entity))
            yield Emit(replay.of(response, attempt))
            if response.ended:
                return
            yield Await(partial(waiter.asleep, seconds), partial(waiter.sleep, seconds))

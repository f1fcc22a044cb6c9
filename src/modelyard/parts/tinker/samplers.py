"""Samplers, and requests to sample, which are answered by the process that receives them."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import attrs

from modelyard.domain.completion import Choice, Completion, CompletionRequest
from modelyard.domain.identity import Principal
from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.record import KEY
from modelyard.domain.worker import ProcessRecord
from modelyard.errors import (
    InvalidInput,
    LeaseLost,
    NotFound,
    Overloaded,
    RateLimited,
    StoreError,
    UnsupportedParameter,
)
from modelyard.flow import AsyncDriver, Call, CallerDisconnected, Driver, Flow, Transact, arun, run
from modelyard.lazy import asyncio
from modelyard.parts.completions.service import Completions
from modelyard.parts.tinker.command_log import Future, found_session
from modelyard.parts.tinker.payloads import keep_bytes
from modelyard.parts.tinker.records import (
    SAMPLER,
    FutureStatus,
    Sample,
    SamplingSession,
    TrainingRun,
    artifacts_in,
    future_topic,
    run_of,
)
from modelyard.parts.tinker.saved_weights import found_weights, weights_id
from modelyard.platform.catalogue.service import Catalogue
from modelyard.platform.chat.service import Chat
from modelyard.platform.jobs.runner import sentence
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.platform.usage.presence import dead_processes, presence_of, runs_here
from modelyard.protocols import Snapshot, Tx

MOST_AT_ONCE = 4096
"""Requests to sample that a process answers at a time."""

KEPT = timedelta(hours=1)
"""How long what was sampled is kept."""

_REMOVED_AT_ONCE = 4


@attrs.define(eq=False)
class StartTask:
    """An effect that starts a flow as a task of the event loop. Without a loop, the flow is driven to its end.

    `release` is called with its id at its end.
    """

    flow: Flow[None]
    id: str
    tasks: dict[str, Any]
    release: Callable[[str], None]
    waits: ClassVar[bool] = True

    def perform(self, driver: Driver[Any]) -> None:
        try:
            run(self.flow)
        finally:
            self.release(self.id)

    async def aperform(self, driver: AsyncDriver[Any]) -> None:
        task = asyncio.get_running_loop().create_task(arun(self.flow))
        self.tasks[self.id] = task
        task.add_done_callback(self._end)

    def _end(self, task: Any) -> None:
        self.tasks.pop(self.id, None)
        self.release(self.id)
        if not task.cancelled():
            task.exception()  # retrieved, so that the loop does not log it


class RunningSamples(dict[str, Any]):
    """The tasks of the requests to sample that a process answers, by their ids."""


class Samplers:
    """The sources that clients sample from. Methods raise `NotFound` for a source that the principal may not see."""

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    # ---- samplers

    def create(
        self, session_id: str, number: int, *, base_model: str | None = None, path: str | None = None
    ) -> SamplingSession:
        """Create a sampler for a base model or for saved weights; a second call returns the same sampler. Raises
        `NotFound`.
        """
        named, now = f"{session_id}:{SAMPLER}:{number}", self._runtime.clock.now()
        if path is None:
            if base_model is None:
                raise InvalidInput.at("body", "base_model", msg="is needed, or model_path")
            base = Catalogue(self._runtime, self._principal).get(base_model).id

        def step(tx: Tx) -> SamplingSession:
            session = found_session(tx, self._principal, session_id)
            of, model = (base, base) if path is None else self._base_and_model(tx, path)
            sampler = SamplingSession(named, session_id, session.entity, session.project, of, model, now, path or "")
            known = get_or_none(tx, SamplingSession, named)
            if known is not None:
                if (known.model, known.path) != (sampler.model, sampler.path):
                    msg = f"{number} was the number of another sampling session"
                    raise InvalidInput.at("body", "sampling_session_seq_id", msg=msg)
                return known
            tx.add(sampler)
            return sampler

        return self._runtime.store.transact(step)

    def _base_and_model(self, snapshot: Snapshot, path: str) -> tuple[str, str]:
        weights = found_weights(snapshot, self._principal, weights_id(path), self._runtime.clock.now())
        base = snapshot.get(TrainingRun, weights.run_id).base_model
        checkpoint = get_or_none(snapshot, Checkpoint, weights.checkpoint_id)
        model = None if checkpoint is None else get_or_none(snapshot, Model, checkpoint.model_id)
        if model is None:
            raise NotFound("Checkpoint", path, "it was deleted")
        return base, f"{model.entity}/{model.project}/{model.name}:step{weights.step}"

    def get(self, sampler_id: str) -> SamplingSession:
        """Return a sampler. Raises `NotFound`."""
        return self._runtime.store.read(lambda snapshot: self._found(snapshot, sampler_id))

    def join(self, sampler_id: str) -> int:
        """Return a number for one more client of a sampler. Raises `NotFound`."""

        def step(tx: Tx) -> int:
            sampler = self._found(tx, sampler_id)
            tx.replace(attrs.evolve(sampler, clones=sampler.clones + 1))
            return sampler.clones + 1

        return self._runtime.store.transact(step)

    def _found(self, snapshot: Snapshot, sampler_id: str) -> SamplingSession:
        sampler = get_or_none(snapshot, SamplingSession, sampler_id)
        if sampler is None or not self._principal.scope.covers(sampler.entity, sampler.project):
            raise NotFound("Sampling session", sampler_id)
        return sampler

    # ---- requests to sample

    def _begin_sampling(self, sampler: SamplingSession, number: int, digest: str, asked: "AskedSample") -> Flow[str]:
        """Begin to answer a request, and return the id of its future. The same request again has the same future.

        Raises `RateLimited` if too many are under way, and `InvalidInput` if another request has this number.
        """
        runtime, now = self._runtime, self._runtime.clock.now()
        if len(runtime.cache.slot(RunningSamples)) >= MOST_AT_ONCE:
            raise RateLimited(f"{MOST_AT_ONCE} requests are answered at once here", 1.0)
        here = presence_of(runtime)
        sample = Sample(f"{sampler.id}:{number}", sampler.entity, digest, here.id, now)
        gone = list[str]()

        def step(tx: Tx) -> bool:
            gone.clear()
            known = get_or_none(tx, Sample, sample.id)
            if known is not None:
                if known.digest != digest:
                    msg = f"{number} was the number of another request to sample"
                    raise InvalidInput.at("body", "seq_id", msg=msg)
                return False
            for old in tx.page(Sample, "by_entity", sampler.entity, limit=_REMOVED_AT_ONCE):
                if old.created_at + KEPT > now:
                    break
                tx.remove(Sample, old.id)
                gone.extend(artifacts_in(old.answer))
            here.sign_on(tx)
            tx.add(sample)
            return True

        here.hold(sample.id)  # before it signs on, so that it does not sign off in between
        new = False
        try:
            new = yield Transact(runtime.store, step, durable=False)
        finally:
            if not new and sample.id not in runtime.cache.slot(RunningSamples):
                here.release(sample.id)
        for name in gone:
            runtime.artifacts.remove(name)
        if new:
            here.hold(sample.id)  # again, in case that the same request came twice and has released it
            running = runtime.cache.slot(RunningSamples)
            yield StartTask(self._answer(sample, sampler, asked), sample.id, running, here.release)
        return sample.id

    def _answer(self, sample: Sample, sampler: SamplingSession, asked: "AskedSample") -> Flow[None]:
        place = self._principal.attribution(sampler.entity, sampler.project)
        try:
            result = yield from Chat(self._runtime, self._principal)._pipeline(asked.request, place)
        except CallerDisconnected:
            yield from self._record(sample, {"status": FutureStatus.FAILED, "error": "it was cancelled"})
            raise
        except (Overloaded, RateLimited, LeaseLost, StoreError) as error:
            yield from self._record(sample, {"status": FutureStatus.LOST, "error": sentence(error)})
        except Exception as error:  # noqa: BLE001 - the client hears of it
            yield from self._record(sample, {"status": FutureStatus.FAILED, "error": sentence(error)})
        else:
            threads = self._runtime.threads.bodies.of(sampler.entity)
            kept = yield Call(partial(self._keep, asked, result.completion), threads=threads)
            yield from self._record(sample, {"status": FutureStatus.DONE, "answer": kept})

    def _keep(self, asked: "AskedSample", completion: Completion) -> Mapping[str, Any]:
        if any(choice.stop_string for choice in completion.choices):
            choices = [self._with_stop_string(asked.request.model, choice) for choice in completion.choices]
            completion = attrs.evolve(completion, choices=tuple(choices))
        return keep_bytes(self._runtime, asked.write(completion))

    def _with_stop_string(self, model: str, choice: Choice) -> Choice:
        """Return a choice with tokens that end with its stop string: the client looks for the stop string in the
        tokens.

        Without a tokenizer here, the tokens are all that were sampled.
        """
        if not choice.stop_string:
            return choice
        try:
            texts = Completions(self._runtime, self._principal)._token_bytes(model, choice.token_ids)
        except UnsupportedParameter:
            return choice
        left, kept = len(f"{choice.message.text}{choice.stop_string}".encode()), 0
        while left > 0 and kept < len(texts):
            left -= len(texts[kept])
            kept += 1
        scores = choice.logprobs and choice.logprobs[:kept]
        return attrs.evolve(choice, token_ids=choice.token_ids[:kept], logprobs=scores)

    def _record(self, sample: Sample, outcome: Mapping[str, Any]) -> Flow[None]:
        def step(tx: Tx) -> None:
            if get_or_none(tx, Sample, sample.id) is not None:
                tx.replace(attrs.evolve(sample, **outcome))
                tx.notify(future_topic(sample.id))

        yield Transact(self._runtime.store, step, durable=False)

    def future(self, future_id: str) -> Future:
        """Return what was sampled, or the promise of it. It is lost with the process. Raises `NotFound`."""

        def query(snapshot: Snapshot) -> Sample:
            self._found(snapshot, run_of(future_id))
            sample = get_or_none(snapshot, Sample, future_id)
            if sample is None:
                raise NotFound("Request", future_id)
            return sample

        sample = self._runtime.store.read(query)
        if sample.status is FutureStatus.PENDING and self._is_lost(sample):
            return Future(future_id, FutureStatus.LOST, error="the process that sampled has ended; send it again")
        return Future(future_id, sample.status, None, {}, sample.answer, sample.error)

    def _is_lost(self, sample: Sample) -> bool:
        """Return whether nothing works on a request."""
        if sample.process == presence_of(self._runtime).id:
            age = (self._runtime.clock.now() - sample.created_at).total_seconds()
            return age > self._runtime.settings.longest_row
        return _has_left(self._runtime, sample.process)

    def cancel(self, future_id: str) -> None:
        """Stop answering a request to sample, if it is answered in this process. Raises `NotFound`."""
        self._runtime.store.read(lambda snapshot: self._found(snapshot, run_of(future_id)))
        task = self._runtime.cache.slot(RunningSamples).get(future_id)
        if task is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)


def _has_left(runtime: Runtime, process: str) -> bool:
    here = presence_of(runtime)
    record = runtime.store.read(lambda snapshot: snapshot.find(ProcessRecord, KEY, process))
    if record is None or (here.machine and record.machine == here.machine):
        return record is None or not runs_here(record)
    return any(dead.id == process for dead in dead_processes(runtime))


@attrs.frozen
class AskedSample:
    """A request to sample: what is to be completed, and how the answer is written."""

    request: CompletionRequest
    write: Callable[[Completion], bytes]

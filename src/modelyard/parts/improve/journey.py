"""The work of an improvement: a job that goes the roads one after the other, each as a job of its own on an equal part
of the budget, and has what they came to compared on rows that none of them has seen. What it waits for is named in its
result in the transaction that queues it, so whatever happens to its process, each is made once."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from decimal import Decimal
from functools import partial
from typing import Any

import attrs

from modelyard.domain.completion import CompletionRequest
from modelyard.domain.evaluation.run import EvaluationRun, RunState
from modelyard.domain.identity import Principal
from modelyard.domain.job import START, Job, JobStatus
from modelyard.domain.models import Model
from modelyard.domain.usage import Budget
from modelyard.errors import ModelyardError, StoreError, TrainingError
from modelyard.formats.jsonl import read_rows
from modelyard.parts.improve.part import ROADS
from modelyard.parts.improve.roads import DISTIL_ROAD, PROMPT_ROAD, SFT_ROAD
from modelyard.parts.improve.service import StartPrompt
from modelyard.parts.loops.record import RUN, LoopRecord, Turns
from modelyard.parts.loops.request import new_loop, resolve
from modelyard.parts.variants.asking import ServedVariant
from modelyard.parts.variants.records import Variant, VariantVersion
from modelyard.parts.variants.service import next_version
from modelyard.platform.evaluations.input_rows import build_specs
from modelyard.platform.evaluations.model_under_test import messages_of
from modelyard.platform.evaluations.scorers import NamedScorer
from modelyard.platform.jobs.claims import ClaimedJob, fenced, latest_job, requester_principal, require_claim
from modelyard.platform.jobs.queue import announce, cancel, enqueue, succeed
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.billing import is_over_budget
from modelyard.platform.training.data import own
from modelyard.platform.training.methods import resolved
from modelyard.platform.training.service import Training
from modelyard.platform.training.submission import CHILD, add_job, new_job
from modelyard.protocols import Snapshot, Tx

Rows = list[Mapping[str, Any]]
WENT, RUNS, AT = "went", "runs", "at"
"""The members of the result: what became of each road, the runs on unseen rows by their names, and how far it is."""


def go(claimed: ClaimedJob) -> Turns:
    """Do the work of an improvement."""
    yield from Journey(claimed).turns()


class Journey:
    """One attempt at an improvement. Its state is read from its job, in the transaction that continues it."""

    def __init__(self, claimed: ClaimedJob) -> None:
        self.claimed: ClaimedJob = claimed
        self.runtime: Runtime = claimed.runtime
        self.spec: Mapping[str, Any] = claimed.job.spec
        self.record: LoopRecord = LoopRecord(claimed)
        self.principal: Principal = requester_principal(self.runtime, claimed.job)
        self.namespace: tuple[str, str] = (claimed.job.entity, claimed.job.project)
        self.variant: Variant
        self.version: VariantVersion
        self.variant, self.version = self.runtime.store.read(self._start)
        self.scorer: NamedScorer = NamedScorer.kept(self.spec["reward"])
        with self.runtime.artifacts.open(self.spec["artifact"], self.spec["digest"]) as file:
            rows = list(read_rows(file))
        self.tasks: Rows = rows[: self.spec["tasks"]]
        self.unseen: Rows = rows[self.spec["tasks"] :]

    def _start(self, snapshot: Snapshot) -> tuple[Variant, VariantVersion]:
        variant = get_or_none(snapshot, Variant, self.spec["variant_id"])
        version = None if variant is None else snapshot.find(VariantVersion, "number", variant.id, self.spec["version"])
        if variant is None or version is None:
            raise TrainingError("the variant was deleted; publish it again and start a new improvement")
        return variant, version

    @property
    def done(self) -> Mapping[str, Any]:
        return self.claimed.job.result

    # ---- the turns

    def turns(self) -> Turns:
        for road in self.spec[ROADS][len(self.done.get(WENT, ())) :]:
            if CHILD not in self.done:
                self._begin(road)
                yield
            if CHILD in self.done:
                yield from self.record.until_ended(lambda snapshot: snapshot.get(Job, self.done[CHILD]))
                self._arrive(road)
            yield
        for name in self._served()[len(self.done.get(RUNS, {})) :]:
            if RUN not in self.done:
                self._compare(name)
                yield
            yield from self.record.until_ended(lambda snapshot: latest_job(snapshot, self.done[RUN]))
            self._compared(name)
            yield
        self._succeed()
        yield

    # ---- a road

    def _begin(self, road: Mapping[str, Any]) -> None:
        """Queue the job of a road. What cannot begin has ended, with the reason."""
        principal = attrs.evolve(self.principal, purse=road.get("budget_id", ""))
        begin = {PROMPT_ROAD: self._prompt, SFT_ROAD: self._sft}.get(road["kind"], self._loop)
        try:
            begin(road, Training(self.runtime, principal))
        except (StoreError, TrainingError):
            raise
        except ModelyardError as error:
            self._went(road, {"why": f"it could not begin: {error}"})

    def _queue(self, job: Job) -> Job:
        if job.spec["config"].get("seed") is None:
            job = attrs.evolve(job, spec={**job.spec, "seed": self.spec["seed"]})

        def add(tx: Tx) -> None:
            add_job(tx, job, sys.maxsize)

        if self.record.advance({CHILD: job.id}, add):
            announce(self.runtime, job)
        return job

    def _prompt(self, road: Mapping[str, Any], training: Training) -> None:
        name = f"{self.variant.entity}/{self.variant.project}/{self.variant.name}@{self.version.number}"
        budget = {} if road["budget"] is None else {"budget": road["budget"]}
        given = {"seed": self.spec["seed"], **road["options"], **budget}
        asked: Any = (name, self.tasks, self.scorer, self._queue)
        StartPrompt(self.runtime, self.principal)._submit(*asked, held_out=None, key=None, needs=None, options=given)

    def _sft(self, road: Mapping[str, Any], training: Training) -> None:
        method, model = training.method("sft", road["model_id"])
        request = training._request(method, model, resolved(method.config, road["options"]), None, None)
        rows = road["rows"] or [
            {"messages": [*one["messages"], {"role": "assistant", "content": one["expected"]}]} for one in self._asked()
        ]
        stored, count = training._keep(training._rows(request), rows)
        start = {START: road["start"]} if road["start"] else {}
        self._queue(new_job(self.runtime, training._principal, request, {**own(stored), "rows": count, **start}))

    def _loop(self, road: Mapping[str, Any], training: Training) -> None:
        method, model = training.method("distill" if road["kind"] == DISTIL_ROAD else "rl", road["model_id"])
        request = training._request(method, model, resolve(road["options"], method.config), None, None)
        new_loop(self.runtime, training._principal, request, [*self._asked()], self.scorer, None, self._queue)  # type: ignore[arg-type]

    def _asked(self) -> Iterator[dict[str, Any]]:
        """Yield the tasks as the model is asked them, under the prompt of the version."""
        served = ServedVariant(self.variant, self.version)
        for row in self.tasks:
            request = CompletionRequest(served.model, messages_of(served.row(row)))
            messages = [{"role": str(one.role), "content": one.text} for one in served.asks(request).messages]
            yield {**{name: value for name, value in row.items() if name != "prompt"}, "messages": messages}

    def _arrive(self, road: Mapping[str, Any]) -> None:
        """Record what a road came to: a version of the variant, if there is anything better to serve."""
        job = self.runtime.store.read(lambda snapshot: snapshot.get(Job, self.done[CHILD]))
        why = job.error_message or job.result.get("stop_reason", "")
        if job.status is not JobStatus.SUCCEEDED:
            why = f"{'its budget has ended it' if is_over_budget(job) else f'it is {job.status}'}: {why}"
        if road["kind"] == PROMPT_ROAD:
            number = job.result.get("version")
            made = None if number == self.version.number else number
            if made is None and job.status is JobStatus.SUCCEEDED:
                why = f"no text was better; {why}"
            self._went(road, {"job": job.id, "why": why, "version": made, "spent": job.result.get("spent", "0")})
            return
        step = self._step(road, job)
        paid = self.runtime.store.read(lambda snapshot: get_or_none(snapshot, Budget, road["budget_id"]))
        spent = f"{Decimal(0) if paid is None else paid.spent:f}"
        self._went(road, {"job": job.id, "why": why, "spent": spent}, step)

    def _step(self, road: Mapping[str, Any], job: Job) -> int | None:
        """Return the step of the checkpoint that a road has made, of a loop that a budget has ended the best."""
        step = job.result.get("step") or (job.result.get("best") or {}).get("step") or job.result.get("last")
        if step is None:
            model = self.runtime.store.read(lambda snapshot: get_or_none(snapshot, Model, road["model_id"]))
            step = None if model is None else model.last_step
        return step or None

    def _went(self, road: Mapping[str, Any], found: Mapping[str, Any], step: int | None = None) -> None:
        version, model = self.version, road["model"]
        ids, now, by = self.runtime.ids(), self.runtime.clock.now(), self.principal.key_id or self.principal.name
        note = f"improvement {self.claimed.job.id}: the road {road['kind']}"
        made = dict(found)

        def add(tx: Tx) -> None:
            if step is not None:
                content = attrs.evolve(version.content, model=f"{self.variant.project}/{model}:step{step}")
                variant = tx.get(Variant, version.variant_id)
                added = next_version(tx, variant, content, ids, version.number, note, by, now)
                made["version"] = added.number
                job = require_claim(tx, self.claimed.claim)
                tx.replace(attrs.evolve(job, result={**job.result, WENT: [*before, made]}))

        before = [*self.done.get(WENT, ())]
        self.record.advance({WENT: [*before, made], CHILD: None}, add)
        self.claimed.job = self.runtime.store.read(lambda snapshot: snapshot.get(Job, self.claimed.job.id))

    # ---- the comparison

    def _served(self) -> list[str]:
        numbers = [self.version.number, *(one.get("version") for one in self.done.get(WENT, ()))]
        return [self.variant.served_as(number) for number in dict.fromkeys(numbers) if number is not None]

    def _compare(self, name: str) -> None:
        evaluation = f"{self.spec['name']}-unseen"
        options = {
            "entity": self.namespace[0],
            "project": self.namespace[1],
            "concurrency": 8,
            "retries": 2,
            "seed": self.spec["seed"] % 2**31,
            "max_tokens": self.spec["max_tokens"],
        }
        asked: Any = (evaluation, [name], self.unseen, [self.scorer], options)
        with closing(build_specs(self.runtime, self.principal, *asked)) as specs:
            spec = next(specs)

            def add(tx: Tx) -> None:
                tx.add(spec.run)
                enqueue(tx, spec.job, sys.maxsize)

            if self.record.took(spec.store(partial(self.record.advancing, {RUN: spec.run.id}, add, False))):
                announce(self.runtime, spec.job)

    def _compared(self, name: str) -> None:
        run = self.runtime.store.read(lambda snapshot: get_or_none(snapshot, EvaluationRun, self.done[RUN]))
        if run is None or run.state is not RunState.COMPLETED:
            why = "was deleted" if run is None else f"is {run.state}: {run.reason or 'no reason was given'}"
            raise TrainingError(f"the run of {name} on unseen rows {why}; start a new improvement")
        self.record.advance({RUNS: {**self.done.get(RUNS, {}), name: run.id}, RUN: None}, lambda tx: None)

    def _succeed(self) -> None:
        event_id, now, types = self.runtime.ids(), self.runtime.clock.now(), self.runtime.job_types

        def step(tx: Tx) -> Job:
            job, progress = require_claim(tx, self.claimed.claim), fenced(tx, self.claimed.claim)
            if progress.cancelled_by:
                return cancel(tx, types, job, event_id, progress.cancelled_by, now)
            return succeed(tx, types, job, event_id, now)

        self.claimed.job = announce(self.runtime, self.runtime.store.transact(step))

"""The work of a prompt job. The package gepa decides what is tried, in a thread of its own; this job answers, scores
and reflects for it, and keeps all of that. A job that is taken up again runs gepa from its beginning with the same
seed, which finds what is kept, and so comes without a call to where it was."""

from collections.abc import Generator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from modelyard.domain.events import JobEventRecorded
from modelyard.domain.job import Job, JobProgress, NewEvent
from modelyard.domain.training import TRAINING_ROUND, TRAINING_STARTED
from modelyard.errors import BudgetExceeded, MissingExtra, TrainingError
from modelyard.formats.jsonl import read_rows
from modelyard.parts.improve.candidates import RowOutcome, Tried, asked_of, model_of
from modelyard.parts.improve.config import PromptConfig
from modelyard.parts.improve.kept import KeptCalls, PurseEmpty, keeping
from modelyard.parts.improve.records import PromptProposal
from modelyard.parts.improve.thread import NotDone, ServedThread
from modelyard.parts.variants.models import full_name
from modelyard.parts.variants.records import Variant, VariantVersion
from modelyard.parts.variants.service import next_version
from modelyard.platform.evaluations.scorers import build_scorer
from modelyard.platform.jobs.claims import ClaimedJob, fenced, record_events, requester_principal, require_claim
from modelyard.platform.jobs.queue import announce, cancel, fail, succeed
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.billing import OVER_BUDGET
from modelyard.protocols import Snapshot, Tx

if TYPE_CHECKING:
    from gepa import GEPAResult

Turns = Generator[None, None, None]
SYSTEM = "system"
"""The name of the text that is optimised, to gepa."""


def optimise(claimed: ClaimedJob) -> Turns:
    """Do the work of a prompt job."""
    run = PromptRun(claimed)
    try:
        yield from run.turns()
    except PurseEmpty as error:
        msg = f"the budget is too small to try the prompt that it begins with on the held-out tasks: {error}"
        raise TrainingError(msg) from None
    except BudgetExceeded as error:
        run.end_over_budget(str(error))


class PromptRun:
    """One attempt at a prompt job."""

    def __init__(self, claimed: ClaimedJob) -> None:
        self.claimed: ClaimedJob = claimed
        self.runtime: Runtime = claimed.runtime
        self.spec: Mapping[str, Any] = claimed.job.spec
        self.config: PromptConfig = PromptConfig(**self.spec["config"])
        limit = None if self.config.budget is None else Decimal(self.config.budget)
        self.calls: KeptCalls = KeptCalls(claimed, limit)
        self.tried: Tried = self._tried()
        rows = self._rows()
        self.tasks: Sequence[Mapping[str, Any]] = rows[: self.spec["tasks"]]
        self.held_out: Sequence[Mapping[str, Any]] = rows[self.spec["tasks"] :] or self.tasks

    def _tried(self) -> Tried:
        job, spec = self.claimed.job, self.spec
        principal, namespace = requester_principal(self.runtime, job), (job.entity, job.project)
        variant, version = self.runtime.store.read(self._start)
        kept = spec["reward"]
        scorer = keeping(build_scorer(self.runtime, principal, namespace, kept, None, retries=2), self.calls)
        reflection = model_of(self.calls, principal, self.config.reflection, namespace)
        model = model_of(self.calls, principal, full_name(variant.entity, version.content.model), namespace)
        return Tried(variant, version, scorer, reflection, model, principal, self.config, self.calls, spec["seed"])

    def _start(self, snapshot: Snapshot) -> tuple[Variant, VariantVersion]:
        variant = get_or_none(snapshot, Variant, self.spec["variant_id"])
        version = None if variant is None else snapshot.find(VariantVersion, "number", variant.id, self.spec["version"])
        if variant is None or version is None:
            raise TrainingError("the variant of the job was deleted; publish it again and start a new job")
        return variant, version

    def _rows(self) -> list[Mapping[str, Any]]:
        with self.runtime.artifacts.open(self.spec["artifact"], self.spec["digest"]) as file:
            return list(read_rows(file))

    # ---- the turns

    def turns(self) -> Turns:
        """Try texts until nothing more may be asked, and publish the best. Raises `BudgetExceeded`, `TrainingError`."""
        result, reason = yield from ServedThread(self._gepa).turns()
        self._succeed(result, reason)
        yield

    def _gepa(self, served: "ServedThread[Any]") -> "tuple[GEPAResult[Any, Any], str]":
        try:
            from gepa import optimize  # noqa: PLC0415 - the package is an extra
        except ImportError as error:
            raise MissingExtra("gepa", "prompts") from error
        seen = Seen(self, served)
        result = optimize(
            {SYSTEM: self.tried.version.content.system},
            [*self.tasks],
            [*self.held_out],
            adapter=seen,
            reflection_lm=seen.reflection,
            reflection_minibatch_size=self.config.minibatch,
            max_metric_calls=self.config.calls,
            stop_callbacks=[lambda state: seen.failure is not None],
            callbacks=[seen],
            logger=_Silent(),
            seed=self.spec["seed"],
            raise_on_exception=False,
            track_best_outputs=False,
        )
        if seen.failure is not None and not isinstance(seen.failure, PurseEmpty):
            raise seen.failure
        calls = f"calls: {result.total_metric_calls} answers were scored"
        return result, calls if seen.failure is None else str(seen.failure)

    # ---- what is recorded

    def record(self, proposal: PromptProposal, best: float) -> Turns:
        """Record a proposal with an event, unless an earlier attempt has. Raises `LeaseLost`."""
        progress = self.claimed.progress
        known = proposal.calls <= progress.step if proposal.number else progress.total is not None
        if not known:
            values = {"held_out": best, "before": proposal.before, "reward": proposal.after, "score": proposal.score}
            data: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
            data |= {"spent": float(proposal.spent)}
            kind, step, total = TRAINING_ROUND, proposal.calls, None
            if not proposal.number:
                kind, step, total = TRAINING_STARTED, 0, self.config.calls
                data |= {"num_sequences": total}
            event, now = NewEvent(self.runtime.ids(), kind, data, step), self.runtime.clock.now()
            self.claimed.write(partial(self._recorded, proposal, event, now, total))
            self.runtime.observe(JobEventRecorded(self.claimed.job.id, kind, self.claimed.progress.last_seq))
        yield

    def _recorded(self, proposal: PromptProposal, event: NewEvent, now: Any, total: int | None, tx: Tx) -> JobProgress:
        progress = record_events(tx, self.claimed.claim, [event], now, total)
        if get_or_none(tx, PromptProposal, proposal.optimisation, proposal.number) is None:
            tx.add(proposal)
        return progress

    def end_over_budget(self, message: str) -> None:
        """End as failed, with all that is kept, so that it can be resumed from there."""
        event_id, now, types = self.runtime.ids(), self.runtime.clock.now(), self.runtime.job_types

        def step(tx: Tx) -> Job:
            job = require_claim(tx, self.claimed.claim)
            return fail(tx, types, attrs.evolve(job, result={**job.result, OVER_BUDGET: True}), event_id, message, now)

        self.claimed.job = announce(self.runtime, self.runtime.store.transact(step))

    def _succeed(self, result: "GEPAResult[Any, Any]", reason: str) -> None:
        at, scores = result.best_idx, result.val_aggregate_scores
        text = result.candidates[at][SYSTEM]
        event_id, version_id = self.runtime.ids(), self.runtime.ids()
        now, types = self.runtime.clock.now(), self.runtime.job_types
        version, job_id, spent = self.tried.version, self.claimed.job.id, f"{self.calls.purse.spent:f}"
        scored = float(result.total_metric_calls or 0)
        metrics = {"best_held_out": scores[at], "start_held_out": scores[0], "calls": scored}
        better = text != version.content.system
        content = attrs.evolve(version.content, system=text)
        note = f"prompt job {job_id}: {scores[at]:.4g} on the held-out tasks, and {scores[0]:.4g} before"
        by = self.tried.principal.key_id or self.tried.principal.name

        def step(tx: Tx) -> Job:
            job, progress = require_claim(tx, self.claimed.claim), fenced(tx, self.claimed.claim)
            if progress.cancelled_by:
                return cancel(tx, types, job, event_id, progress.cancelled_by, now)
            made = version
            if better:
                variant = tx.get(Variant, version.variant_id)
                made = next_version(tx, variant, content, version_id, version.number, note, by, now)
            ended = {"version": made.number, "metrics": metrics, "spent": spent, "stop_reason": reason}
            job = attrs.evolve(job, result={**job.result, **ended})
            return succeed(tx, types, job, event_id, now, {"stop_reason": reason, "version": made.number})

        self.claimed.job = announce(self.runtime, self.runtime.store.transact(step))


class _Silent:
    """What gepa logs to: nobody."""

    def log(self, message: str) -> None:
        """Log nothing: the lines of gepa are for a terminal."""


class Seen:
    """What gepa is given: its adapter, its reflection model, and a callback that sees what it tries."""

    propose_new_texts = None

    def __init__(self, run: PromptRun, served: "ServedThread[Any]") -> None:
        self._run, self._served = run, served
        self.failure: Exception | None = None
        self._asked: dict[str, int] = {}
        self._number, self._of, self._best = 0, {0: 0}, 0.0
        self._proposal: dict[str, Any] = {}

    # ---- the adapter

    def evaluate(
        self, batch: Sequence[Mapping[str, Any]], candidate: Mapping[str, str], capture_traces: bool = False
    ) -> Any:
        """Answer and score a batch of rows with a candidate."""
        from gepa.core.adapter import EvaluationBatch  # noqa: PLC0415 - as above

        found: list[RowOutcome] = self._ask(lambda: self._run.tried.outcomes(candidate[SYSTEM], batch))
        traces = [(row, one) for row, one in zip(batch, found, strict=True)] if capture_traces else None
        return EvaluationBatch([one.output for one in found], [one.score for one in found], traces)

    def make_reflective_dataset(self, candidate: Any, eval_batch: Any, components_to_update: Sequence[str]) -> Any:
        """Return what the reflection model reads: what was asked, answered and said of it."""
        told = [
            {"Inputs": asked_of(row), "Generated Outputs": one.output, "Feedback": one.feedback}
            for row, one in eval_batch.trajectories
        ]
        return dict.fromkeys(components_to_update, told)

    def reflection(self, prompt: Any) -> str:
        """Ask the reflection model; the same question asked again is another call."""
        nth = self._asked[prompt] = self._asked.get(prompt, -1) + 1
        return self._ask(lambda: self._run.tried.reflect(prompt, nth))  # type: ignore[no-any-return]

    def _ask(self, work: Any) -> Any:
        try:
            return self._served.ask(work)
        except NotDone as error:
            self.failure = error
            raise

    # ---- what it tries

    def on_valset_evaluated(self, event: Any) -> None:
        """See what a candidate is worth on all held-out tasks."""
        self._best = max(event["average_score"], self._best) if event["candidate_idx"] else event["average_score"]
        if event["candidate_idx"] == 0:
            failed = [one for one in self._first(event) if one.failed]
            if len(failed) == len(event["scores_by_val_id"]):
                self.failure = TrainingError(
                    f"no held-out task was answered and scored: {failed[0].feedback}; correct the tasks, the reward or "
                    "the model, then start a new job"
                )
            self._record(0, event["candidate"][SYSTEM], None, event["average_score"], len(event["scores_by_val_id"]))
        else:
            self._of[event["candidate_idx"]] = self._number + 1
            self._proposal["score"] = event["average_score"]

    def _first(self, event: Any) -> list[RowOutcome]:
        return self._ask(lambda: self._run.tried.outcomes(event["candidate"][SYSTEM], self._run.held_out))  # type: ignore[no-any-return]

    def on_candidate_selected(self, event: Any) -> None:
        """See from which candidate the next is made."""
        self._proposal = {"parent": self._of[event["candidate_idx"]]}

    def on_proposal_end(self, event: Any) -> None:
        """See the text that is proposed."""
        self._proposal["text"] = event["new_instructions"].get(SYSTEM)

    def on_evaluation_end(self, event: Any) -> None:
        """See the scores of the parent, then of the proposal, on the same few tasks."""
        name = "after" if "before" in self._proposal else "before"
        self._proposal[name] = float(sum(event["scores"]))

    def on_iteration_end(self, event: Any) -> None:
        """Record what was proposed, if anything was."""
        if self.failure is None and self._proposal.get("text") is not None and "after" in self._proposal:
            self._number += 1
            self._record(self._number, calls=event["state"].total_num_evals, **self._proposal)
        self._proposal = {}

    def on_error(self, event: Any) -> None:
        """See that something went wrong, which nothing else would tell."""
        self.failure = self.failure or event["exception"]

    def _record(
        self,
        number: int,
        text: str,
        parent: int | None,
        score: float | None = None,
        calls: int = 0,
        before: float | None = None,
        after: float | None = None,
    ) -> None:
        run, job = self._run, self._run.claimed.job
        place = (run.calls.optimisation, number, job.entity, job.project, job.spec["variant_id"])
        spent, now = f"{run.calls.purse.spent:f}", run.runtime.clock.now()
        proposal = PromptProposal(*place, text, parent, before, after, score, calls, spent, now)
        self._ask(lambda: run.record(proposal, self._best))

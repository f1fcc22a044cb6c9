"""`platform.improve`: several roads to better answers at equal budget, compared on rows that none of them has seen."""

import random
from collections.abc import Mapping, Sequence
from decimal import ROUND_DOWN, Decimal
from functools import partial
from typing import Any

from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.comparison import MetricComparison
from modelyard.domain.evaluation.statistics import CONFIDENCE, Interval
from modelyard.domain.identity import Attribution, Principal, check_idempotency_key, check_name
from modelyard.domain.job import Job, JobKind, JobStatus
from modelyard.domain.models import Checkpoint, Model, ModelName
from modelyard.domain.record import Order
from modelyard.domain.usage import Budget
from modelyard.errors import Conflict, InvalidInput, NotFound, located_at
from modelyard.formats.json import as_json
from modelyard.parts.comparisons.service import CompareAll
from modelyard.parts.distillation.taught import Teacher
from modelyard.parts.improve.config import AMOUNT_RULE, MOST_MONEY, PromptConfig, amount, as_text
from modelyard.parts.improve.found import found_job, listed_jobs
from modelyard.parts.improve.journey import RUNS, WENT
from modelyard.parts.improve.part import IMPROVE, ROADS
from modelyard.parts.improve.result import ImprovementResult, RoadResult
from modelyard.parts.improve.roads import DISTIL_ROAD, PROMPT_ROAD, RL_ROAD, SFT_ROAD, Road, Roads, road_of
from modelyard.parts.loops.request import Reward, Tasks, kept_reward, lines_of, resolve, stored_tasks, tasks_given
from modelyard.parts.variants.asking import ServedVariant
from modelyard.parts.variants.models import full_name
from modelyard.parts.variants.naming import found_variant, found_version, named
from modelyard.parts.variants.records import Variant, VariantVersion
from modelyard.platform.checkpoints.transactions import create
from modelyard.platform.evaluations.model_under_test import CompletionModel, messages_of
from modelyard.platform.evaluations.service import Evaluations
from modelyard.platform.jobs.claims import requester_spec
from modelyard.platform.jobs.queue import announce, enqueue
from modelyard.platform.jobs.service import cancel_found
from modelyard.platform.jobs.waiting import wait_for_success
from modelyard.platform.listing import Listing
from modelyard.platform.models.service import Models
from modelyard.platform.paging import iter_index
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.data import any_form, own, rows_of
from modelyard.platform.training.methods import METHODS, resolved
from modelyard.platform.training.submission import CHILD, SEED_BYTES, require_offered
from modelyard.platform.usage.booking import budget_id
from modelyard.protocols import Snapshot, Tx

MOST_ROADS = 8
LEAST_SHARE = Decimal("0.000001")
LEAST_UNSEEN = 2


class ImprovementHandle:
    """One improvement, found again by its name or id after a restart: `platform.improve.get(name)`.

    While some worker is alive, `wait` waits for it. Without one it runs the jobs in the calling thread.
    """

    def __init__(self, runtime: Runtime, principal: Principal, job_id: str) -> None:
        self.id: str = job_id
        self._runtime, self._principal = runtime, principal

    def __repr__(self) -> str:
        return f"<ImprovementHandle {self.name}>"

    @property
    def name(self) -> str:
        """Its name in its project."""
        return str(self.stored().spec["name"])

    @property
    def status(self) -> JobStatus:
        """The status of its job."""
        return self.stored().status

    def stored(self) -> Job:
        """Return its job as it is stored. Raises `NotFound`."""
        return self._runtime.store.read(self._found)

    def wait(self, timeout: float | None = None) -> "ImprovementHandle":
        """Wait until all roads are compared, and return this. A road that fails ends, and its line says why. Raises
        `JobFailed`; and TimeoutError after `timeout` seconds."""
        wait_for_success(self._runtime, self.stored, timeout, None)
        return self

    def cancel(self) -> "ImprovementHandle":
        """End it, and the job that it waits for."""
        cancel_found(self._runtime, self._principal, lambda tx: self._found(tx), lambda tx, job: job)
        return self

    def result(self, timeout: float | None = None) -> ImprovementResult:
        """Wait, and return what the roads came to. Raises as `wait`, and `NotFound` if a run was deleted."""
        job = self.wait(timeout).stored()
        runs = list(job.result[RUNS].values())
        compare, several = CompareAll(self._runtime, self._principal), None
        by_version = dict[int, tuple[MetricComparison, Interval | None]]()
        if len(runs) > 1:
            several = compare(runs, runs[0])
            sure = 1 - (1 - CONFIDENCE) / (len(runs) - 1)  # so that all intervals hold together
            wide = compare(runs, runs[0], confidence=sure)
            for pair, other, name in zip(several.pairs, wide.pairs, [*job.result[RUNS]][1:], strict=True):
                if pair.comparison.metrics:  # none where no row of a run was answered and scored
                    interval = other.comparison.metrics[0].paired.interval
                    by_version[int(name.rpartition("@")[2])] = pair.comparison.metrics[0], interval
        baseline = self._mean(runs[0])
        roads = tuple(self._road(*one, by_version) for one in zip(job.spec[ROADS], job.result[WENT], strict=True))
        variant = f"{job.entity}/{job.project}/{job.spec['variant']}"
        counts = (job.spec["held_out"], roads, several)
        return ImprovementResult(self.name, variant, job.spec["version"], baseline, *counts)

    def roads(self) -> tuple[RoadResult, ...]:
        """Return the roads as far as they have come, without scores: those are in the `result`."""
        job = self.stored()
        begun = [*job.result.get(WENT, ()), {"job": job.result.get(CHILD)}]
        left = len(job.spec[ROADS]) - len(begun)
        return tuple(self._road(*one, {}) for one in zip(job.spec[ROADS], [*begun, *[{}] * left], strict=False))

    def _mean(self, run_id: str) -> float | None:
        found = Evaluations(self._runtime, self._principal).report(run_id)
        return next((one.mean for one in found.aggregate.metrics), None)

    def _road(
        self,
        road: Mapping[str, Any],
        went: Mapping[str, Any],
        by_version: Mapping[int, tuple[MetricComparison, Interval | None]],
    ) -> RoadResult:
        version, found = went.get("version"), by_version.get(went.get("version", 0))
        ended: Any = {"spent": Decimal(went.get("spent", "0")), "why": went.get("why", ""), "job": went.get("job")}
        if found is None:
            return RoadResult(road["kind"], version, None, None, None, None, None, **ended)
        metric, interval = found
        numbers: Any = (metric.candidate, metric.paired.difference, interval, metric.corrected, metric.verdict)
        return RoadResult(road["kind"], version, *numbers, **ended)

    def _found(self, snapshot: Snapshot) -> Job:
        return found_job(snapshot, self._principal, IMPROVE, "Improvement", self.id)


class Improve(Roads):
    """Starts improvements, and finds them again: `platform.improve`, called as a method is.

    roads = [platform.improve.prompt(reflection="big-model"), platform.improve.sft(epochs=2)]
    print(platform.improve("desk/support", tasks, "token_f1", roads=roads, budget="5.00").result())
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def __call__(
        self,
        target: str,
        tasks: Tasks,
        reward: Reward | None = None,
        *,
        roads: Sequence[Road | Mapping[str, Any] | str],
        budget: "str | int | Decimal | None" = None,
        unseen: float = 0.3,
        max_tokens: int = 1024,
        seed: int | None = None,
        name: str | None = None,
        idempotency_key: str | None = None,
    ) -> ImprovementHandle:
        """Try several roads to better answers, each on an equal part of the budget, and compare what they came to.

        `target` is a variant, such as "desk/support@3". `tasks` and `reward` are as for `training.prompt`. A part of
        the tasks, `unseen`, is drawn by the `seed` and shown to no road; on it, all are evaluated, with answers of at
        most `max_tokens`, and compared with the target row by row, p corrected for the number of roads (Holm). Each
        road is a job of its own, and makes a version of the variant; those that train make a model of their own, from
        the base model, or for `sft` from the checkpoint that the variant has. The budget in USD is what the roads may
        spend together; the comparison is booked besides. A road that fails or runs out of its part ends with its best
        until then. A road may be given as data, too, as on the command line: "sft", or {"road": "prompt", ...}. Raises
        as `training.prompt`, and `Conflict` for a name that is taken.
        """
        if not isinstance(roads, Sequence) or isinstance(roads, str) or not 1 <= len(roads) <= MOST_ROADS:
            raise InvalidInput.at("roads", msg=f"must be 1 to {MOST_ROADS} roads, such as platform.improve.sft()")
        given = [_road_at(at, one) for at, one in enumerate(roads)]
        if budget is not None and amount(budget) is None:
            raise InvalidInput.at("budget", msg=AMOUNT_RULE)
        share = _share(amount(budget), len(roads))
        config = resolved(PromptConfig, {"reflection": "", "max_tokens": max_tokens, "seed": seed})
        key = check_idempotency_key(idempotency_key)
        told = [[one.kind, dict(one.options), None if one.rows is None else list(one.rows)] for one in given]
        asked = [as_json(told, at=("roads",)), str(budget), unseen, max_tokens, seed, name]
        variant, version, checkpoint = self._runtime.store.read(partial(self._start, target))
        self._runtime.require_room()
        namespace, job_id = (variant.entity, variant.project), self._runtime.ids()
        named_ = check_name(name or f"{variant.name}-{job_id[-6:]}", "name")
        drawn = int.from_bytes(self._runtime.randomness(SEED_BYTES), "big") if seed is None else seed
        scorer = kept_reward(self._runtime, self._principal, namespace, reward)
        rows = list(tasks_given(self._runtime, self._principal, tasks))
        asked.append(digest(as_json(rows, at=("tasks",))))
        served = ServedVariant(variant, version)
        for _ in lines_of(rows, "tasks", {}, lambda row: messages_of(served.row(row))):
            pass
        shown, kept = _split(rows, unseen, drawn)
        parts = [
            self._part(one, at, variant, version, checkpoint, named_, job_id, shown) for at, one in enumerate(given)
        ]
        now = self._runtime.clock.now()
        parts = [{**one, "budget": share} for one in parts]
        trained = [one for one in parts if one["model"]]
        models = [Model(one["model_id"], *namespace, one["model"], one["base"], now) for one in trained]

        with stored_tasks(self._runtime, self._principal, shown, kept, _check_no_more) as (stored, counts):
            spec = {
                "request": digest(as_json([variant.id, target, scorer, asked])),
                "name": named_,
                "variant": variant.name,
                "variant_id": variant.id,
                "version": version.number,
                ROADS: parts,
                "reward": scorer,
                "asker": requester_spec(self._runtime, self._principal),
                "max_tokens": config.max_tokens,
                "seed": drawn,
                **own(stored),
                **counts,
            }
            lane = f"{variant.id}/{job_id}"
            job = Job(job_id, IMPROVE, *namespace, lane, now, spec, idempotency_key=key)
            made = self._runtime.store.transact(partial(self._add, job, models, trained))
        if made.id == job.id:
            announce(self._runtime, made)
        return ImprovementHandle(self._runtime, self._principal, made.id)

    def get(self, name: str) -> ImprovementHandle:
        """Return an improvement by its id, or by its name as "project/name". Raises `NotFound`."""
        if "/" not in name:
            found = ImprovementHandle(self._runtime, self._principal, name)
            found.stored()
            return found
        place, _, own_name = name.rpartition("/")
        entity, _, project = place.rpartition("/")
        for one in self.list():
            job = one.stored()
            if (job.entity, job.project, one.name) == (entity or self._principal.entity, project, own_name):
                return one
        raise NotFound("Improvement", name)

    def list(
        self, *, project: str | None = None, entity: str | None = None, order: Order = "desc"
    ) -> Listing[ImprovementHandle]:
        """List improvements, the newest first: all that the caller may see, or those of an entity or a project.

        Raises `Forbidden`.
        """

        def shown(job: Job) -> ImprovementHandle:
            return ImprovementHandle(self._runtime, self._principal, job.id)

        of = self._runtime, self._principal, IMPROVE, "Improvement"
        return listed_jobs(*of, shown, project, entity, order)

    def _start(self, target: str, snapshot: Snapshot) -> tuple[Variant, VariantVersion, Checkpoint | None]:
        parsed = named(target, self._principal.entity, "target")
        variant = found_variant(snapshot, self._principal, parsed)
        version = found_version(snapshot, variant, parsed)
        trained = ModelName.parse(full_name(variant.entity, version.content.model))
        checkpoint = None
        if trained is not None and trained.step is not None:
            model = snapshot.find(Model, "name", trained.entity, trained.project, trained.name)
            checkpoint = None if model is None else snapshot.find(Checkpoint, "step", model.id, trained.step)
        return variant, version, checkpoint

    def _part(
        self,
        road: Road,
        at: int,
        variant: Variant,
        version: VariantVersion,
        checkpoint: Checkpoint | None,
        name: str,
        job_id: str,
        rows: Sequence[Mapping[str, Any]],
    ) -> dict[str, Any]:
        """Return a road as its job keeps it. Raises `InvalidInput` for one that cannot be gone."""
        base = version.content.model
        if checkpoint is not None:
            base = self._runtime.store.read(lambda snapshot: snapshot.get(Model, checkpoint.model_id)).base_model
        if road.rows is not None:
            _check_rows(road.rows, at)
        with located_at("roads", at):
            self._check(road, base, (variant.entity, variant.project))
        part: dict[str, Any] = {
            "kind": road.kind,
            "options": as_json(dict(road.options), at=("roads", at)),
            "rows": None if road.rows is None else as_json(list(road.rows), at=("roads", at)),
            "budget_id": "",
            "model": "",
            "start": None,
        }
        if road.kind == PROMPT_ROAD:
            return part
        answered = all(isinstance(one.get("expected"), str) for one in rows)
        if road.kind == SFT_ROAD and road.rows is None and not answered:
            raise InvalidInput.at("roads", at, msg="needs data, or tasks that all have an expected answer, as text")
        if road.kind != SFT_ROAD and checkpoint is not None:
            msg = "begins with a base model, and the variant has a checkpoint; take sft, or a variant of the base model"
            raise InvalidInput.at("roads", at, msg=msg)
        return {
            **part,
            "budget_id": budget_id(variant.entity, f"improve-{job_id}-{at}"),
            "model": check_name(f"{name}-{at + 1}-{road.kind}", "name"),
            "model_id": self._runtime.ids(),
            "base": base,
            "start": None if checkpoint is None else checkpoint.id,
        }

    def _check(self, road: Road, base: str, namespace: tuple[str, str]) -> None:
        """Raise as the job of a road would, `InvalidInput` for its options and `ModelNotFound` among them."""
        if road.kind == PROMPT_ROAD:
            config = resolved(PromptConfig, as_text(road.options))
            CompletionModel.of(self._runtime, self._principal, config.reflection, namespace, {})
            return
        kind = {SFT_ROAD: JobKind.SFT, DISTIL_ROAD: JobKind.DISTILL}.get(road.kind, JobKind.RL)
        if base not in list(Models(self._runtime, self._principal).trainable()):
            raise InvalidInput.at(msg=f"trains the model of the variant, and {base!r} cannot be trained here")
        require_offered(self._runtime, base, kind)
        method = METHODS[kind].of(self._runtime.trainers, base)
        if road.kind == SFT_ROAD:
            resolved(method.config, road.options)
            for _ in rows_of(any_form(self._runtime.parts, method.rows), road.rows or ()):
                pass
            return
        loop = resolve(road.options, method.config)
        if loop.stop_when:
            raise InvalidInput.at("stop_when", msg="needs held-out tasks, which a road does not have; leave it out")
        if loop.teacher is not None:
            if road.kind == RL_ROAD:
                raise InvalidInput.at("teacher", msg=f"is for the road {DISTIL_ROAD}; take that, or leave it out")
            Teacher(self._runtime, self._principal, Attribution(*namespace), loop.teacher).require()

    def _add(self, job: Job, models: Sequence[Model], parts: Sequence[Mapping[str, Any]], tx: Tx) -> Job:
        made = enqueue(tx, job, self._runtime.settings.max_queued_jobs)
        if made.id != job.id:
            return made
        others = (one for one in iter_index(tx, Job, "of_kind", IMPROVE) if one.id != job.id)
        place = (job.entity, job.project, job.spec["name"])
        if place in ((one.entity, one.project, one.spec["name"]) for one in others):
            name = f"{job.project}/{job.spec['name']}"
            raise Conflict(f"there is an improvement {name} already; choose another name")
        for model, part in zip(models, parts, strict=True):
            create(tx, model, self._runtime.ids(), False)
            limit = MOST_MONEY if part["budget"] is None else Decimal(part["budget"])
            tx.add(Budget(part["budget_id"], job.entity, limit))
        return made


def _check_rows(rows: Sequence[object], at: int) -> None:
    wrong = next((number for number, row in enumerate(rows) if not isinstance(row, Mapping)), None)
    if wrong is not None:
        raise InvalidInput.at("roads", at, "data", wrong, msg="must be a mapping")
    if not rows:
        raise InvalidInput.at("roads", at, "data", msg="has no rows; an iterator that was read before has none")


def _road_at(at: int, given: Road | Mapping[str, Any] | str) -> Road:
    with located_at("roads", at):
        return road_of(given)


def _check_no_more(row: Mapping[str, Any]) -> None:
    """Do nothing: each row was checked before some were drawn, so that a fault is told at its place among all."""


def _share(budget: Decimal | None, roads: int) -> str | None:
    """Return the part of a budget that each road may spend, as text. Raises `InvalidInput` for nothing."""
    if budget is None:
        return None
    part = (budget / roads).quantize(LEAST_SHARE, ROUND_DOWN)
    if not part:
        raise InvalidInput.at("budget", msg=f"must be at least {LEAST_SHARE} USD for each road")
    return f"{part.normalize():f}"


def _split(rows: list[Mapping[str, Any]], unseen: float, seed: int) -> tuple[list[Any], list[Any]]:
    """Draw the rows that no road sees; equal rows are on one side. Raises `InvalidInput` where too few are left."""
    if not rows:
        raise InvalidInput.at("tasks", msg="has no rows; an iterator that was read before has none")
    found = dict[str, list[Mapping[str, Any]]]()
    for at, row in enumerate(rows):
        found.setdefault(digest(as_json(row, at=("tasks", at))), []).append(row)
    count = round(len(found) * unseen) if isinstance(unseen, int | float) and 0 < unseen < 1 else 0
    if not LEAST_UNSEEN <= count < len(found):
        msg = f"must be a part of the tasks, between 0 and 1, of {LEAST_UNSEEN} different ones or more, and not all"
        raise InvalidInput.at("unseen", msg=msg)
    kept = set(random.Random(str(seed)).sample([*found], count))  # noqa: S311 - it must be the same again
    shown = [row for key, same in found.items() if key not in kept for row in same]
    return shown, [row for key, same in found.items() if key in kept for row in same]

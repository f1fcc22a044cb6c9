"""`platform.training.prompt`: have the prompt of a variant optimised, as a job."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Unpack

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.identity import Principal, check_idempotency_key
from modelyard.domain.job import Job
from modelyard.domain.record import Order
from modelyard.domain.worker import Resources, check_resources
from modelyard.errors import InvalidInput, NotFound
from modelyard.formats.json import as_json
from modelyard.parts.improve.config import PromptConfig, PromptJobOptions, as_text
from modelyard.parts.improve.found import found_job, listed_jobs
from modelyard.parts.improve.part import PROMPT
from modelyard.parts.improve.records import PromptProposal
from modelyard.parts.loops.request import Reward, Tasks, kept_reward, stored_tasks
from modelyard.parts.variants.asking import ServedVariant
from modelyard.parts.variants.models import full_name
from modelyard.parts.variants.naming import found_variant, found_version, named
from modelyard.parts.variants.records import Variant, VariantVersion
from modelyard.platform.evaluations.model_under_test import CompletionModel, messages_of
from modelyard.platform.jobs.claims import requester_spec
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.paging import cursor_at, get_or_none, index_listing
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.data import own
from modelyard.platform.training.handle import JobHandle
from modelyard.platform.training.methods import resolved
from modelyard.platform.training.service import Training, check_options
from modelyard.platform.training.submission import SEED_BYTES
from modelyard.protocols import Snapshot

T = TypeVar("T")


class PromptHandle(JobHandle):
    """One prompt job: a `JobHandle` whose result is a version of the variant."""

    def version(self, timeout: float | None = None, *, progress: bool = False) -> VariantVersion:
        """Return the version with the best prompt, once it has ended: that which it began with if none was better.
        Raises as `wait`, and `NotFound` if the variant was deleted."""
        job = self.wait(timeout, progress=progress).stored()
        place = (job.spec["variant_id"], job.result["version"])
        found = self._runtime.store.read(lambda snapshot: snapshot.find(VariantVersion, "number", *place))
        if found is None:
            raise NotFound("Version", f"{place[0]}@{place[1]}")
        return found

    def proposals(self, order: Order = "asc") -> Listing[PromptProposal]:
        """List what was proposed so far; the first is the text that it began with. A cursor is a number."""
        of = self.stored().spec["optimisation"]

        def place(number: str, snapshot: Snapshot) -> Cursor:
            found = get_or_none(snapshot, PromptProposal, of, int(number)) if number.isdecimal() else None
            if found is None:
                raise NotFound("Proposal", number)
            return cursor_at(PromptProposal, "by_optimisation", found)

        return index_listing(self._runtime, PromptProposal, "by_optimisation", of, place=place, order=order)

    def stored(self) -> Job:
        """Return the job as it is stored."""
        return self._look()

    def _name(self) -> str:
        job = self.stored()
        found = self._runtime.store.read(lambda snapshot: get_or_none(snapshot, Variant, job.spec["variant_id"]))
        return f"PROMPT {job.subject if found is None else f'{found.project}/{found.name}'}"


class StartPrompt:
    """Starts prompt jobs: `platform.training.prompt`, called as a method is.

    job = platform.training.prompt("desk/support", tasks, "token_f1", reflection="big-model", budget="5.00")
    print(job.version().content.system)
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def __call__(
        self,
        variant: str,
        tasks: Tasks,
        reward: Reward | None = None,
        *,
        reflection: str,
        held_out: Tasks | None = None,
        idempotency_key: str | None = None,
        needs: Resources | None = None,
        **options: Unpack[PromptJobOptions],
    ) -> PromptHandle:
        """Have the system text of a variant optimised by GEPA, through the package `gepa` (arXiv 2507.19457).

        `variant` is a name such as "desk/support@3", by default its newest version. `tasks` are rows with `messages`, a
        `prompt` or the inputs of the template, and what the reward reads, in the forms that `evaluations.run` takes.
        `reward` is a scorer, declarative or a function of output and row that other processes can import. A text is
        tried on a few tasks; the model `reflection` reads the answers, the scores and the other fields of these rows,
        and writes the next text. What is better there is tried on the `held_out` tasks, by default on all `tasks`, and
        the best there becomes a version of the variant. `options` are the fields of `PromptConfig`: the job ends after
        `calls` scored answers, or when the `budget` in USD cannot pay for the next call. Every answer, judgement and
        proposal is kept as it is booked: killed at any point, the job continues and asks nothing twice. Raises as
        `training.loop` does.
        """
        add, given = Training(self._runtime, self._principal)._add, {**options, "reflection": reflection}
        made = self._submit(
            variant, tasks, reward, add, held_out=held_out, key=idempotency_key, needs=needs, options=given
        )
        return PromptHandle(self._runtime, self._principal, made.id)

    def _submit(
        self,
        variant: str,
        tasks: Tasks,
        reward: Reward | None,
        add: Callable[[Job], T],
        *,
        held_out: Tasks | None,
        key: str | None,
        needs: Resources | None,
        options: Mapping[str, Any],
    ) -> T:
        """Check what is asked for, and have the job added. Returns what `add` does; raises as a call does."""
        check_options(PROMPT, PromptJobOptions, options, PromptConfig)
        config = resolved(PromptConfig, as_text(options))
        found, version = self._runtime.store.read(lambda snapshot: self._found(snapshot, variant))
        key, needed = check_idempotency_key(key), check_resources({} if needs is None else needs)
        self._runtime.require_room()
        namespace = (found.entity, found.project)
        served = ServedVariant(found, version)
        self._model("variant", full_name(found.entity, version.content.model), namespace)
        self._model("reflection", config.reflection, namespace)
        scorer = kept_reward(self._runtime, self._principal, namespace, reward)

        def check(row: Mapping[str, Any]) -> object:
            return messages_of(served.row(row))

        with stored_tasks(self._runtime, self._principal, tasks, held_out, check) as (stored, counts):
            spec = {
                "variant": found.name,
                "variant_id": found.id,
                "version": version.number,
                "request": digest(as_json([found.id, variant, attrs.asdict(config), scorer, counts, stored.digest])),
                "optimisation": self._runtime.ids(),
                "config": attrs.asdict(config),
                "reward": scorer,
                "asker": requester_spec(self._runtime, self._principal),
                **own(stored),
                **counts,
                "seed": self._seed(config),
            }
            head = (self._runtime.ids(), PROMPT, *namespace, f"{found.id}/prompt", self._runtime.clock.now())
            return add(Job(*head, spec, idempotency_key=key, **needed))

    def get(self, job_id: str) -> PromptHandle:
        """Return the handle of a prompt job by its id. Raises `NotFound`."""
        self._runtime.store.read(lambda snapshot: found_job(snapshot, self._principal, PROMPT, "Prompt job", job_id))
        return PromptHandle(self._runtime, self._principal, job_id)

    def list(
        self, *, project: str | None = None, entity: str | None = None, order: Order = "desc"
    ) -> Listing[PromptHandle]:
        """List prompt jobs, the newest first: all that the caller may see, or those of an entity or a project.

        Raises `Forbidden`.
        """

        def shown(job: Job) -> PromptHandle:
            return PromptHandle(self._runtime, self._principal, job.id)

        of = self._runtime, self._principal, PROMPT, "Prompt job"
        return listed_jobs(*of, shown, project, entity, order)

    def _found(self, snapshot: Snapshot, name: str) -> tuple[Variant, VariantVersion]:
        parsed = named(name, self._principal.entity, "variant")
        variant = found_variant(snapshot, self._principal, parsed)
        return variant, found_version(snapshot, variant, parsed)

    def _model(self, place: str, name: str, namespace: tuple[str, str]) -> None:
        if not isinstance(name, str):
            raise InvalidInput.at(place, msg="must be the name of a model")
        CompletionModel.of(self._runtime, self._principal, name, namespace, {})

    def _seed(self, config: PromptConfig) -> int:
        drawn = int.from_bytes(self._runtime.randomness(SEED_BYTES), "big")
        return drawn if config.seed is None else config.seed

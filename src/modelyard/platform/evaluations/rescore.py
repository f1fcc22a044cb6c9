"""The spec of a rescoring: the outputs of a run that has ended, to be scored again in a new run."""

from collections.abc import Mapping, Sequence
from typing import Any

from modelyard.domain.evaluation.objects import ObjectKind
from modelyard.domain.evaluation.run import EvaluationRun, Prediction, RunState
from modelyard.domain.identity import Principal
from modelyard.domain.job import Job, JobKind
from modelyard.errors import Conflict, Forbidden, InvalidInput, NotFound
from modelyard.platform.evaluations.input_rows import check_fields, fields_scored
from modelyard.platform.evaluations.objects import Objects
from modelyard.platform.evaluations.scorers import Scorers, callables_of, name_scorers
from modelyard.platform.evaluations.spec import WORK_OPTIONS, RunSpec, check_options, limits_of, resources_of, scored_by
from modelyard.platform.paging import iter_index_live
from modelyard.platform.runtime import Runtime


def build_rescore_spec(
    runtime: Runtime, principal: Principal, source: EvaluationRun, scorers: Scorers, options: Mapping[str, Any]
) -> RunSpec:
    """Build the spec of a rescoring: a new run in the project of its source. Raises as `build_spec` does, and
    `Conflict`."""
    if source.state is RunState.RUNNING:
        raise Conflict(f"evaluation run {source.id} is still running; finish or cancel it, then rescore it")
    objects, namespace = Objects(runtime, principal), (source.entity, source.project)
    named = name_scorers(scorers, objects)
    total = runtime.store.read(lambda snapshot: snapshot.count(Prediction, "by_run", source.id))
    runtime.require_room()
    check_options(options, WORK_OPTIONS, "rescore")
    limits = limits_of(options, named)
    check_fields(
        fields_scored(named), (one.inputs for one in iter_index_live(runtime, Prediction, "by_run", source.id))
    )
    scoring = scored_by(runtime, principal, namespace, named, limits, options.get("error_budget"))
    evaluation = _evaluation_with(objects, source.evaluation, [scorer["ref"] for scorer in scoring["scorers"]])
    now = runtime.clock.now()
    run = EvaluationRun(
        runtime.ids(), *namespace, evaluation, source.model, now, source_evaluation_run_id=source.id, source_known=True
    )
    needs, spec = resources_of(options), {"source": source.id, "options": source.prompts, **scoring}
    job = Job(runtime.ids(), JobKind.RESCORE, *namespace, run.id, now, spec, **needs)
    return RunSpec(runtime, run, job, callables_of(None, named), options.get("shards", 1)).with_items(total)


def _evaluation_with(objects: Objects, evaluation: str, scorers: Sequence[str]) -> str:
    """Publish a version of an evaluation with these scorers, and return its reference. Returns the given reference if
    there is no version to start from: it was never published, is not an evaluation, or is not visible to this
    caller."""
    try:
        old = objects.resolve(ObjectKind.EVALUATION, evaluation)
    except (InvalidInput, NotFound, Forbidden):
        return evaluation
    content = {**old.content, "scorers": scorers}
    return str(objects.publish(old.kind, content["name"], content, entity=old.entity, project=old.project).ref)

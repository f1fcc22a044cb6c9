"""Requesting a loop: a durable job that samples, judges, trains and validates, round after round."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeVar, cast

import attrs

from modelyard.domain.identity import Attribution, Principal
from modelyard.domain.job import Job
from modelyard.domain.training_config import RLConfig, TrainingConfig
from modelyard.errors import InvalidInput, Problem
from modelyard.formats.jsonl import dump_row, in_chunks
from modelyard.parts.distillation.taught import Teacher
from modelyard.parts.loops.config import LoopConfig
from modelyard.parts.loops.part import LOOP
from modelyard.platform.artifacts import remove_unless_recorded
from modelyard.platform.evaluations.input_rows import RowData, rows_given
from modelyard.platform.evaluations.model_under_test import messages_of
from modelyard.platform.evaluations.objects import Objects
from modelyard.platform.evaluations.scorers import NamedScorer, OneScorer, build_scorer, import_path, name_scorers
from modelyard.platform.jobs.claims import requester_spec
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.data import own
from modelyard.platform.training.methods import JobRequest, resolved
from modelyard.platform.training.submission import drawn_for, parent_lane
from modelyard.protocols import StoredArtifact

T = TypeVar("T")

Tasks = RowData
Reward = OneScorer
"""A scorer, or a function of output and row that other processes can import."""

_OWN = frozenset(field.name for field in attrs.fields(LoopConfig)) - {"training"}


def resolve(options: Mapping[str, Any], config: type[TrainingConfig] = RLConfig) -> LoopConfig:
    theirs = {name: value for name, value in options.items() if name not in _OWN}
    if "seed" in options and any(field.name == "seed" for field in attrs.fields(config)):
        theirs["seed"] = options["seed"]
    training = resolved(config, theirs)
    own_options = {name: value for name, value in options.items() if name in _OWN}
    return resolved(LoopConfig, {**own_options, "training": attrs.asdict(training)})


def new_loop(
    runtime: Runtime,
    principal: Principal,
    request: JobRequest,
    tasks: Tasks,
    reward: Reward | None,
    held_out: Tasks | None,
    submit: Callable[[Job], T],
    check: Callable[[Mapping[str, Any]], object] = messages_of,
) -> T:
    """Check the requested loop and each of its tasks, store them, and submit the job. Returns what `submit` does.
    Raises `InvalidInput`, `NotFound`, `Forbidden`, `StorageFull`, and what `submit` raises."""
    model, config = request.model, cast(LoopConfig, request.config)
    if held_out is None and config.stop_when:
        raise InvalidInput.at("stop_when", msg="needs held_out: give the tasks on which the model is validated")
    if config.teacher is not None:
        Teacher(runtime, principal, Attribution(model.entity, model.project), config.teacher).require()
    scorer = kept_reward(runtime, principal, (model.entity, model.project), reward)
    with stored_tasks(runtime, principal, tasks, held_out, check) as (stored, counts):
        spec = {
            "model_id": model.id,
            "config": attrs.asdict(config),
            "reward": scorer,
            "asker": requester_spec(runtime, principal),
            **own(stored),
            **counts,
            **drawn_for(runtime, principal, model, config),
            **({} if config.seed is None else {"seed": config.seed}),
        }
        head = (runtime.ids(), LOOP, model.entity, model.project, parent_lane(model.id), runtime.clock.now())
        job = Job(*head, spec, idempotency_key=request.idempotency_key, base_model=model.base_model, **request.needs)
        return submit(job)


@contextmanager
def stored_tasks(
    runtime: Runtime,
    principal: Principal,
    tasks: Tasks,
    held_out: Tasks | None,
    check: Callable[[Mapping[str, Any]], object],
) -> Iterator[tuple[StoredArtifact, Mapping[str, int]]]:
    """Check each row, and store them in an artifact, `tasks` first; it is removed unless the block has a record name
    it. Yields it, and how many rows of each there are. Raises `InvalidInput`, `StorageFull`."""
    counts: dict[str, int] = {}
    others = () if held_out is None else held_out
    lines = chain(
        lines_of(tasks_given(runtime, principal, tasks), "tasks", counts, check),
        lines_of(tasks_given(runtime, principal, others, "held_out"), "held_out", counts, check),
    )
    stored = runtime.artifacts.put(in_chunks(lines))
    with remove_unless_recorded(runtime.artifacts, stored.name):
        _check_counts(counts, held_out is not None)
        yield stored, counts


def tasks_given(
    runtime: Runtime, principal: Principal, tasks: Tasks, name: str = "tasks"
) -> Iterator[Mapping[str, Any]]:
    """Yield tasks, whatever they are given as. Raises `InvalidInput` at their `name`."""
    try:
        for number, row in enumerate(rows_given(runtime, principal, tasks)):
            if not isinstance(row, Mapping):
                raise InvalidInput.at("rows", number, msg="must be a mapping, such as {'prompt': ..., 'expected': ...}")
            yield row
    except InvalidInput as wrong:
        places = [(name, *one.loc[1:]) if one.loc[:1] == ("rows",) else one.loc for one in wrong.problems]
        found = [attrs.evolve(one, loc=loc) for one, loc in zip(wrong.problems, places, strict=True)]
        raise InvalidInput(found) from None


def _check_counts(counts: Mapping[str, int], validated: bool) -> None:
    empty = [name for name in ("tasks", "held_out") if not counts[name] and (name == "tasks" or validated)]
    if empty:
        raise InvalidInput(
            [Problem((name,), "has no rows; an iterator that was read before has none") for name in empty]
        )


def lines_of(
    rows: Iterable[Mapping[str, Any]], name: str, counts: dict[str, int], check: Callable[[Mapping[str, Any]], object]
) -> Iterator[bytes]:
    """Yield each row as a line, checked, and count them under the `name` of their argument, at which faults are told.
    Raises `InvalidInput`."""
    counts[name] = 0
    for number, row in enumerate(rows):
        try:
            check(row)
            line = dump_row(row, number)
        except InvalidInput as wrong:
            raise InvalidInput(
                [attrs.evolve(one, loc=_below(one.loc, name, number)) for one in wrong.problems]
            ) from None
        counts[name] += 1
        yield line


def _below(loc: tuple[str | int, ...], name: str, number: int) -> tuple[str | int, ...]:
    return (name, number, *(loc[2:] if loc[:2] == ("rows", number) else loc))


def kept_reward(
    runtime: Runtime, principal: Principal, namespace: tuple[str, str], reward: Reward | None
) -> Mapping[str, Any]:
    """Publish the scorer, and return it as a job stores it. Raises `InvalidInput` for a function that no worker has."""
    objects = Objects(runtime, principal)
    try:
        named = name_scorers(() if reward is None else reward, objects)
    except InvalidInput as wrong:  # located below its name among the scorers
        raise InvalidInput([attrs.evolve(one, loc=("reward", *one.loc[2:])) for one in wrong.problems]) from None
    if len(named) != 1:
        raise InvalidInput.at("reward", msg="must be one scorer; to combine several, give a function")
    (scorer,) = named
    if scorer.function is not None:
        scorer = attrs.evolve(scorer, imported=_importable(scorer))
    kept = scorer.spec(namespace)
    build_scorer(runtime, principal, namespace, kept, None, 0)
    scorer.publish(objects, namespace)
    return kept


def _importable(scorer: NamedScorer) -> str:
    assert scorer.function is not None
    path = import_path(scorer.function)
    if path is None:
        msg = (
            f"the function {scorer.name!r} cannot be imported by another process, in which the job may be resumed; "
            "define it at the top of a module that workers have (not in __main__, a notebook or another function), "
            "or use a scorer, such as 'token_f1'"
        )
        raise InvalidInput.at("reward", msg=msg)
    return path

"""Claim the job that is next in one round trip: without it, a claim of a worker takes 40 % more processor time.

A function in the temporary schema of the connection chooses as `platform.jobs.shares.choose` does, and writes what
`take_turn` and `claim` write. What it cannot decide, it leaves to these: needs that it was not told of, limits, a
suspect that may not be claimed, and whatever another step has locked.

While one entity alone waits, there is no turn to keep, so its claims share its lock, and skip the jobs of one another.
"""

# ruff: noqa: S608 - the names come from declarations, and every value is bound

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import psycopg

from modelyard.domain.job import TENANT, Demand, Job, JobProgress, Needs, Tenant
from modelyard.parts.postgres.locks import lock_statement, try_domain_lock
from modelyard.parts.postgres.pages import Row, Statement, quoted
from modelyard.parts.postgres.rows import RecordPlan
from modelyard.parts.postgres.values import array_of_booleans, array_of_integers, array_of_texts, array_type, escape
from modelyard.protocols import DomainStep, NextClaim, Tx

Claimed = tuple[Job, JobProgress]
UNHEARD = object()
"""What became of a claim that was committed when its answer was lost."""
MOST_NEEDS = 32
"""Needs that the function is told of at most: it looks for each."""

_LOCAL = "".join(
    f", set_config('{name}', '{value}', true)"
    for name, value in {
        "synchronous_commit": "off",  # a claim that the crash of a server undoes has done nothing
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",  # a table of few entities grows long between two vacuums
    }.items()
)

_CREATE = """
CREATE OR REPLACE FUNCTION pg_temp.modelyard_claim(
    a_writer text, a_number bigint, a_kinds text[], a_models text[], a_cards bigint[], a_memories bigint[],
    a_fitting boolean[], a_entity text, a_now timestamptz, a_worker text, a_process text, a_alone boolean,
    a_suspects boolean, a_isolates boolean, a_stride bigint, a_exclusive boolean,
    OUT a_next text, OUT a_contested boolean, {outs}
) LANGUAGE plpgsql AS $claim$
#variable_conflict use_column
DECLARE
    d record; j record; v_at int := 1; v_pick int; v_fitting int := 0; v_turn bigint := 0; v_least bigint;
    v_id text; v_rank bigint; v_seq bigint; v_time timestamptz;
    v_kind text := ''; v_model text := ''; v_cards bigint := -2; v_memory bigint := -2; v_after text := '';
BEGIN
    a_contested := false;
    LOOP
        SELECT kind, base_model, accelerators, memory, turn, entity INTO d FROM {demands}
        WHERE (kind, base_model, accelerators, memory, turn, entity)
            > (v_kind, v_model, v_cards, v_memory, v_turn, v_after)
        ORDER BY kind, base_model, accelerators, memory, turn, entity LIMIT 1;
        EXIT WHEN NOT FOUND;
        IF v_kind = d.kind AND v_model = d.base_model AND v_cards = d.accelerators AND v_memory = d.memory THEN
            a_contested := a_contested OR a_fitting[v_at];
            v_turn := {most};
            CONTINUE;
        END IF;
        v_kind := d.kind; v_model := d.base_model; v_cards := d.accelerators; v_memory := d.memory;
        v_turn := d.turn; v_after := d.entity;
        WHILE a_kinds[v_at] <> v_kind OR a_models[v_at] <> v_model OR a_cards[v_at] <> v_cards
            OR a_memories[v_at] <> v_memory LOOP v_at := v_at + 1; END LOOP;
        IF a_kinds[v_at] IS NULL THEN a_next := NULL; RETURN; END IF;
        CONTINUE WHEN NOT a_fitting[v_at];
        v_fitting := v_fitting + 1;
        v_pick := v_at;
        a_contested := a_contested OR d.entity <> a_entity;
        IF v_least IS NULL OR d.turn < v_least THEN v_least := d.turn; a_next := d.entity; END IF;
    END LOOP;
    IF a_next IS DISTINCT FROM a_entity OR a_contested AND NOT a_exclusive THEN RETURN; END IF;
    IF v_fitting > 1 THEN
        FOR v_at IN 1..cardinality(a_kinds) LOOP
            CONTINUE WHEN NOT a_fitting[v_at];
            SELECT id, rank, seq INTO j FROM {jobs}
            WHERE place = 'ready' AND entity = a_entity AND kind = a_kinds[v_at] AND base_model = a_models[v_at]
                AND accelerators = a_cards[v_at] AND memory = a_memories[v_at] ORDER BY rank, seq LIMIT 1;
            IF FOUND AND (v_rank IS NULL OR (j.rank, j.seq) < (v_rank, v_seq)) THEN
                v_pick := v_at; v_rank := j.rank; v_seq := j.seq;
            END IF;
        END LOOP;
    END IF;
    SELECT first.id, greatest(a_now, p.updated_at) INTO v_id, v_time
    FROM (
        SELECT id FROM {jobs}
        WHERE place = 'ready' AND entity = a_entity AND kind = a_kinds[v_pick] AND base_model = a_models[v_pick]
            AND accelerators = a_cards[v_pick] AND memory = a_memories[v_pick]
        ORDER BY rank, seq LIMIT 1 FOR UPDATE SKIP LOCKED
    ) AS first JOIN {progress} AS p ON p.job_id = first.id, {tenants} AS t
    WHERE t.entity = a_entity AND t.limits = '{{}}' AND (a_suspects OR NOT p.suspect) AND {lock};
    IF NOT FOUND THEN RETURN; END IF;
    UPDATE {commits} SET number = a_number, at = now() WHERE writer = a_writer AND number < a_number AND {unchanged};
    IF NOT FOUND THEN RETURN; END IF;
    UPDATE {jobs} SET status = 'running', place = 'claimed', handle = '', not_before = NULL, attempts = attempts + 1,
        held_back = CASE WHEN refusals > 0 THEN held_back ELSE '' END, started_at = coalesce(started_at, v_time)
    WHERE id = v_id RETURNING {of_job};
    UPDATE {progress} SET epoch = epoch + 1, worker_id = a_worker, held = true,
        updated_at = greatest(updated_at, v_time), process = a_process,
        alone = a_alone OR (suspect AND NOT a_isolates), gain = 'nothing', loose = ''
    WHERE job_id = v_id RETURNING {of_progress};
    UPDATE {tenants} SET taken = greatest(turn, latest), turn = greatest(turn, latest) + a_stride / weight
    FROM (SELECT taken AS latest FROM {tenants} ORDER BY taken DESC LIMIT 1) AS others
    WHERE entity = a_entity RETURNING turn INTO v_turn;
    UPDATE {demands} SET turn = v_turn WHERE entity = a_entity;
END $claim$"""

_CALL = f"SELECT * FROM pg_temp.modelyard_claim({', '.join(f'${at + 1}' for at in range(16))})"


def _undecided(_: Tx) -> tuple[None, str]:
    raise AssertionError("the server runs it")


@attrs.frozen
class ClaimStep(DomainStep[tuple[Claimed | None, str]]):
    """A claim that the server makes itself."""

    ask: NextClaim = attrs.field(kw_only=True)

    @classmethod
    def of(cls, ask: NextClaim) -> "ClaimStep":
        return cls(_undecided, [(TENANT, ask.entity)], ask=ask)


class TurnClaims:
    """The claims that a server makes itself. Each is a statement of a connection that has the function."""

    def __init__(self, plans: Mapping[type, RecordPlan], schema: str, commits: str, unchanged: str) -> None:
        self._schema, self._connection, self._able = schema, None, False
        self._contested = True
        self._told: tuple[Mapping[Needs, bool], Row] = {}, ()
        job, progress, tenants, demands = (plans.get(cls) for cls in (Job, JobProgress, Tenant, Demand))
        if job is None or progress is None or tenants is None or demands is None:  # other records than the platform's
            self._plans: Sequence[RecordPlan] = ()
            return
        self._plans, self._width = (job, progress), len(job.columns)
        outs = [
            f'OUT "{of}_{one.name}" {array_type(one)[:-2]}'
            for of, plan in zip("jp", self._plans, strict=True)
            for one in plan.columns
        ]
        self._create = _CREATE.format(
            outs=", ".join(outs),
            jobs=job.table,
            progress=progress.table,
            tenants=tenants.table,
            demands=demands.table,
            commits=commits,
            unchanged=unchanged,
            lock=try_domain_lock(schema, "job", "first.id"),
            most=2**62,
            of_job=_into(job, "j"),
            of_progress=_into(progress, "p"),
        )

    def can_run(self, connection: Any) -> bool:
        """Return whether the connection has the function, after an attempt to give it to a new one."""
        if connection is not self._connection:
            self._connection, self._able = connection, False
            if self._plans and connection.prepare_threshold is not None:  # behind a pooler, nothing stays
                try:
                    connection.execute(self._create)
                    self._able = True
                except psycopg.Error:  # without the right to temporary objects; what was lost is noticed by the next
                    pass
        return self._able

    def give_up(self) -> None:
        """Leave claims to others on this connection: its function is gone."""
        self._able = False

    def opening(self, steps: Sequence[ClaimStep]) -> Statement:
        """Return the statement that waits for the locks of claims."""
        domains = {domain for step in steps for domain in step.domains}
        sql, values = lock_statement(self._schema, domains)
        self._contested = self._contested or len(domains) > 1
        if not self._contested:
            sql = sql.replace("pg_advisory_xact_lock(", "pg_advisory_xact_lock_shared(")
        return sql + _LOCAL, values

    def statement(self, ask: NextClaim, writer: str, number: int) -> Statement:
        if self._told[0] != ask.fits:
            self._told = ask.fits, _arrays(ask.fits)
        return _CALL, (
            writer,
            number,
            *self._told[1],
            escape(ask.entity),
            ask.now,
            ask.worker_id,
            ask.process,
            ask.alone,
            ask.suspects,
            ask.isolates,
            ask.stride,
            self._contested,
        )

    def outcomes(self, rows: Sequence[Row]) -> list[tuple[Claimed | None, str] | None]:
        """Return of each claim the job and its progress, or None; and who is next, "" if that is not known. None stands
        for one that is to be tried again, since others wait too."""
        tried_alone, self._contested = self._contested, rows[-1][1]
        return [self._outcome(row) if tried_alone or not row[1] else None for row in rows]

    def _outcome(self, row: Row) -> tuple[Claimed | None, str]:
        following, job, progress = row[0], row[2 : self._width + 2], row[self._width + 2 :]
        of_job, of_progress = self._plans
        return (None if job[0] is None else (of_job.record_of(job), of_progress.record_of(progress))), following or ""


def _into(plan: RecordPlan, of: str) -> str:
    """Return what stores the columns of an updated row in the variables of their names."""
    names = [column.name for column in plan.columns]
    return f"{quoted(names)} INTO {quoted(f'{of}_{name}' for name in names)}"


def _arrays(fits: Mapping[Needs, bool]) -> Row:
    """Return the needs in their order, as arrays of their fields, and of whether they fit."""
    known = sorted(fits, key=lambda needs: (needs.kind, needs.base_model, needs.accelerators, needs.memory))
    return (
        array_of_texts([escape(one.kind) for one in known]),
        array_of_texts([escape(one.base_model) for one in known]),
        array_of_integers([one.accelerators for one in known]),
        array_of_integers([one.memory for one in known]),
        array_of_booleans([fits[one] for one in known]),
    )

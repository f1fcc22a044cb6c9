"""CPU milliseconds of the dashboard's pages over a full store, as JSON: python benchmarks/dashboard.py [FOLDER].

The store has 10,000 jobs with 100 events each, 100,000 predictions in one run, and tags on 2,000 jobs. A FOLDER keeps
it. Each page is asked for three times; the first and the least are shown, since what never changes may be kept.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import attrs

from modelyard import Platform, open_platform
from modelyard.asgi import Request
from modelyard.clock import uuid7_ids
from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.run import EvaluationRun, Prediction, Score
from modelyard.domain.identity import host
from modelyard.domain.job import Job, JobEvent, JobProgress
from modelyard.parts.annotations.records import AnnotatedKind, Annotation
from modelyard.parts.dashboard.app import Dashboard
from modelyard.protocols import Store, Tx

JOBS, EVENTS, PREDICTIONS, TAGGED = 10_000, 100, 100_000, 2_000
ROW = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]}
BATCH = 20_000


def fill(platform: Platform) -> None:
    """Copy one real job and one real run as often as the sizes say."""
    model = platform.models.create("learner", project="bots", base_model="tabular-mini")
    job_id = platform.training.sft(model, [ROW] * 2).result().job_id
    questions = [{"prompt": "say 1", "expected": "say 1", "topic": "a"}] * 2
    run_id = platform.evaluations.run("quiz", "echo", questions, project="bots").run.id
    store: Store = platform._runtime.store
    add_all(store, jobs(store, job_id))
    add_all(store, predictions(store, run_id))


def add_all(store: Store, records: Iterator[Any]) -> None:
    """Add records, many in each transaction."""
    while batch := list(islice(records, BATCH)):

        def step(tx: Tx, batch: list[Any] = batch) -> None:
            for record in batch:
                tx.add(record)

        store.transact(step, durable=False)


def jobs(store: Store, job_id: str) -> Iterator[Any]:
    """Yield copies of a job, with its progress and its events."""
    job = store.read(lambda snapshot: snapshot.get(Job, job_id))
    progress = store.read(lambda snapshot: snapshot.get(JobProgress, job_id))
    (event,) = store.read(
        lambda snapshot: [one for one in snapshot.page(JobEvent, "by_job", job_id) if one.type == "gradient_step"][:1]
    )
    ids = uuid7_ids()
    for number in range(JOBS):
        new = attrs.evolve(job, id=ids(), seq=0)
        yield new
        yield attrs.evolve(progress, job_id=new.id, step=EVENTS, total=EVENTS, last_seq=EVENTS)
        if number < TAGGED:
            yield Annotation(
                new.id, AnnotatedKind.JOB, job.entity, job.project, (f"sweep {number % 7}",), "", job.created_at
            )
        for step in range(1, EVENTS + 1):
            yield attrs.evolve(event, job_id=new.id, seq=step, id=ids(), step=step)


def predictions(store: Store, run_id: str) -> Iterator[Any]:
    """Yield copies of the run, and of its first prediction and score."""
    run = store.read(lambda snapshot: snapshot.get(EvaluationRun, run_id))
    first = store.read(lambda snapshot: snapshot.page(Prediction, "by_run", run_id, limit=1))[0]
    score = store.read(lambda snapshot: snapshot.page(Score, "by_run", run_id, limit=1))[0]
    ids = uuid7_ids()
    summary = {**(run.summary or {}), "trials": PREDICTIONS}
    big = attrs.evolve(run, id=ids(), summary=summary, seq=0)
    yield big
    for number in range(PREDICTIONS):
        inputs = {"prompt": f"say {number}", "expected": f"say {number}", "topic": f"t{number % 9}"}
        one = attrs.evolve(
            first, id=ids(), run_id=big.id, inputs=inputs, row_digest=digest(inputs), index=number, trial=0, seq=0
        )
        yield one
        yield attrs.evolve(
            score, id=ids(), prediction_id=one.id, run_id=big.id, row_digest=one.row_digest, trial=0, seq=0
        )


def pages(platform: Platform) -> dict[str, str]:
    """Return the address of a page of each kind."""
    newest = next(iter(platform.jobs.list(order="desc", status=None)))
    trained = next(iter(platform.training.list(order="desc")))
    big, small = (run.id for run in islice(platform.evaluations.runs.list_all(order="desc"), 2))
    model = next(iter(platform.models.list())).id
    return {
        "home": "",
        "jobs": "jobs",
        "jobs that failed": "jobs?status=failed",
        "jobs by a tag": "jobs?q=sweep+3",
        "job": f"jobs/{trained.id}",
        "job of a run": f"jobs/{newest.id}",
        "models": "models",
        "model": f"models/{model}",
        "checkpoint": f"models/{model}/1",
        "runs": "runs",
        "runs by score": "runs?sort=score",
        "run of 2 rows": f"runs/{small}",
        "run of 100,000 rows": f"runs/{big}",
        "its report": f"runs/{big}?whole=1",
        "rows": f"runs/{big}/rows",
        "rows that failed": f"runs/{big}/rows?show=failed",
        "rows by a field": f"runs/{big}/rows?field=topic",
        "its slices": f"runs/{big}/rows?field=topic&whole=1",
        "usage": "usage",
        "keys": "keys",
        "catalogue": "catalogue",
        "API": "api",
    }


def milliseconds(action: Callable[[], object]) -> tuple[float, float]:
    """Return the CPU time of the first call, and the least of three."""
    spent = []
    for _ in range(3):
        began = time.process_time()
        action()
        spent.append((time.process_time() - began) * 1000)
    return round(spent[0], 1), round(min(spent), 1)


def ask(dashboard: Dashboard, address: str) -> None:
    path, _, query = address.partition("?")
    answer = dashboard.handle(Request("GET", f"/dashboard/{path}", query, [("host", "127.0.0.1")], iter([b""])))
    assert answer.status == 200, (address, answer.status)


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(sys.argv[1] if len(sys.argv) > 1 else scratch) / "yard.db"
        filled = path.exists()
        with open_platform(path) as platform:
            if not filled:
                fill(platform)
            dashboard = Dashboard(platform, reader=host())
            for name, address in pages(platform).items():
                first, least = milliseconds(partial(ask, dashboard, address))
                print(json.dumps({"page": name, "first_ms": first, "least_ms": least}), flush=True)


if __name__ == "__main__":
    main()

"""Readers that follow every listing while two processes write: none may miss a record, or see one twice.

    python -m tests.campaigns.followers                            20 seconds
    python -m tests.campaigns.followers --seconds 300 --seed 7     longer, with other steps of the clocks
    python -m tests.campaigns.followers --sabotage                 must exit with 1

Each process has four writing threads and a follower on each listing, and its clock steps back now and then. Prints a
report as JSON; fails when a record was skipped or repeated. `--sabotage` draws the number of a record before its
transaction, as a time would be, and must fail.
"""

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from modelyard import Platform, open_platform
from modelyard.clock import SystemClock
from modelyard.stores.sqlite import SqliteStore, rows

WRITERS = 4
PROCESSES = 2
PROJECTS = ("p", "q")
STEPS_BACK = (0.0, 0.0, 0.001, 1.0, 3600.0)
REF = "modelyard:///local/p/object/{}"
EXAMPLE = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}

CHOICE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "b"}}
GROUP = {"trajectories": [{"messages_and_choices": [{"role": "user", "content": "a"}, CHOICE], "reward": 1.0}]}


class UnsteadyClock(SystemClock):
    """A wall clock that is set back and forth."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def now(self) -> datetime:
        return super().now() - timedelta(seconds=self._chance.choice(STEPS_BACK))


def listings(platform: Platform, model: str, run: str) -> Mapping[str, Callable[[], Any]]:
    """What is followed, by name."""
    of_all: dict[str, Callable[..., Any]] = {
        "ledger": platform.usage.list,
        "models": platform.models.list,
        "jobs": platform.jobs.list,
        "training jobs": platform.training.list,
    }
    parts: dict[str, Callable[[], Any]] = {}
    for name, listing in of_all.items():
        parts[f"{name} of all"] = listing
        parts[f"{name} of an entity"] = partial(listing, entity="local")
        parts[f"{name} of a project"] = partial(listing, project="p")
    return parts | {
        "stored completions of an entity": platform.chat.list,
        "stored completions of a project": partial(platform.chat.list, project="p"),
        "keys": platform.keys.list,
        "trajectory logs of a model": partial(platform.models.trajectory_logs, model),
        "runs of a project": partial(platform.evaluations.runs.list, project="p"),
        "predictions of a project": partial(platform.evaluations.predictions.list, project="p"),
        "predictions of a run": partial(platform.evaluations.predictions.list, project="p", run_id=run),
        "scores of a project": partial(platform.evaluations.scores.list, project="p"),
        "objects of a project": partial(platform.evaluations.objects.list, "model", project="p"),
    }


def follow(listing: Callable[[], Any], ended: threading.Event) -> list[str]:
    """Read from the last item on, until all writers have ended and nothing more comes."""
    seen: list[str] = []
    while True:
        over = ended.is_set()
        page = listing().page(50, seen[-1] if seen else None)
        seen += [item.id for item in page.items]
        if not page.items:
            if over:
                return seen
            ended.wait(0.005)


def write(platform: Platform, name: str, model: str, run: str, seconds: float, chance: random.Random) -> int:
    """Make records of every kind until the time is over."""
    until, numbers = time.monotonic() + seconds, count()
    while time.monotonic() < until:
        number = next(numbers)
        project = chance.choice(PROJECTS)
        made = f"{name}-{number}"
        platform.chat.complete(model="echo", messages=made, project=project, store=True, metadata={"m": made})
        platform.models.create(made, base_model="tabular-mini", project=project)
        platform.training.sft(model, [EXAMPLE], idempotency_key=made).cancel()
        platform.models.log_trajectories(model, [GROUP])
        platform.evaluations.runs.create(REF.format("e"), REF.format("m"), project="p")
        prediction = platform.evaluations.predictions.create(REF.format("m"), {"n": made}, run_id=run, project="p")
        platform.evaluations.scores.create(prediction.id, REF.format("s"), {"value": 1}, project="p")
        platform.evaluations.objects.publish("model", made, {"n": made}, project="p")
        if number % 8 == 0:
            platform.keys.create("local", name=made)
    return next(numbers)


def take_part(path: str, name: str, model: str, run: str, args: Any, all_written: Any, answers: Any) -> None:
    """Write and follow in one process."""
    if args.sabotage:
        draw_numbers_early()
    chance, ended = random.Random(f"{args.seed} {name}"), threading.Event()
    with open_platform(path, clock=UnsteadyClock(chance)) as platform:
        followed = listings(platform, model, run)
        with ThreadPoolExecutor(WRITERS + len(followed)) as pool:
            found = {what: pool.submit(follow, listing, ended) for what, listing in followed.items()}
            writers = [
                pool.submit(
                    write, platform, f"{name}{at}", model, run, args.seconds, random.Random(f"{args.seed} {at}")
                )
                for at in range(WRITERS)
            ]
            try:
                for writer in writers:
                    writer.result()
                all_written.wait()
            except BaseException:
                all_written.abort()
                answers.put({})
                raise
            finally:
                ended.set()
            answers.put({what: seen.result() for what, seen in found.items()})


def draw_numbers_early() -> None:
    """Break the order: a number is drawn before its transaction waits for its turn, as a time of creation is."""
    transact, row_of = SqliteStore.transact, rows.StatementPlan.row_of
    drawn, numbers = threading.local(), count()

    def early(self: SqliteStore, step: Callable[[Any], Any], durable: bool = True) -> Any:
        number = time.time_ns()
        time.sleep(random.uniform(0, 0.002))

        def numbered(view: Any) -> Any:
            drawn.number = number
            return step(view)

        return transact(self, numbered, durable)

    def row_with_number(self: rows.StatementPlan, record: object) -> Any:
        row = row_of(self, record)
        return (*row, drawn.number + next(numbers) % 1000) if self.record.sequence else row

    rows.next_number = lambda table, sequence: "?"
    SqliteStore.transact = early  # type: ignore[method-assign,assignment]
    rows.StatementPlan.row_of = row_with_number  # type: ignore[method-assign]


def faults_of(followed: Mapping[str, list[str]], whole: Mapping[str, list[str]]) -> list[str]:
    """Compare what a follower saw with what there is."""
    faults = []
    for what, seen in followed.items():
        skipped, twice = len(set(whole[what]) - set(seen)), len(seen) - len(set(seen))
        if skipped or twice:
            faults.append(f"{what}: {skipped} of {len(whole[what])} skipped, {twice} seen twice")
        elif seen != whole[what]:
            faults.append(f"{what}: seen in another order")
    return faults


def main() -> int:
    """Run the campaign; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the writers write (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="of what is written and how clocks step (default: 1)")
    parser.add_argument("--sabotage", action="store_true", help="number records before their transaction, and fail")
    args = parser.parse_args()
    spawning = get_context("spawn")
    all_written, answers = spawning.Barrier(PROCESSES), spawning.Queue()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "yard.db"))
        with open_platform(path) as platform:
            model = platform.models.create("followed", base_model="tabular-mini", project="p").id
            run = platform.evaluations.runs.create(REF.format("e"), REF.format("m"), project="p").id
        parts = [
            spawning.Process(target=take_part, args=(path, name, model, run, args, all_written, answers))
            for name in "ab"[:PROCESSES]
        ]
        for part in parts:
            part.start()
        followed = [answers.get(timeout=args.seconds + 300) for _ in parts]
        for part in parts:
            part.join()
        with open_platform(path) as platform:
            whole = {what: [item.id for item in listing()] for what, listing in listings(platform, model, run).items()}
    faults = sorted(fault for seen in followed for fault in faults_of(seen, whole))
    faults += [f"{part.name} ended with {part.exitcode}" for part in parts if part.exitcode]
    print(json.dumps({"records": {what: len(ids) for what, ids in whole.items()}, "faults": faults}, indent=1))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

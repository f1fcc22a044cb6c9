"""Jobs that kill their process, next to jobs that do not, and servers that others kill:

    python tests/crash/poison.py [--rounds 10] [--mode work | threads | processes] [--sabotage "charge all"]
    python tests/crash/poison.py --kills 40 [--mode ...]

In a round one poisoned job runs next to seven healthy ones, in a worker of eight places that is started again whenever
it has died. The healthy ones must succeed, and the poisoned one must fail. With `--kills` there is no poison: the
worker is killed that many times, alone or with all that it has started; no job may fail. Modes: `modelyard work` as it
is, threads alone, or a process for each job. Prints a report as JSON; fails when anything is wrong.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

from poison_yard import POISON, yard

from modelyard import Example, Message, Platform, Role
from modelyard.domain.job import ENDED, JobSummary
from modelyard.executors.thread import ThreadExecutor

HEALTHY = 7
STEPS = 120
MOST_DEATHS = 60
WORK = (sys.executable, "-m", "modelyard.cli", "work", "--factory", "poison_yard:yard", "--concurrency", "8")
MODES = {"work": WORK, "threads": (sys.executable, __file__, "--worker"), "processes": (*WORK, "--isolate")}


def work_in_threads() -> None:
    """Be a worker whose jobs are all threads of this process."""
    with yard() as platform, closing(ThreadExecutor(8)) as executor, platform.worker(8, executor):
        signal.pause()


def submit(platform: Platform, name: str, question: str) -> str:
    """Request a job of so many steps on a model of its own."""
    row = Example((Message(Role.USER, question), Message(Role.ASSISTANT, "answer")))
    model = platform.models.create(name, project="p", base_model="tabular-mini")
    return platform.training.sft(model, [row] * STEPS, batch_size=1).id


def start(mode: str) -> subprocess.Popen[bytes]:
    """Start a worker."""
    return subprocess.Popen(MODES[mode], stderr=subprocess.DEVNULL)


def jobs_of(platform: Platform, ids: list[str]) -> list[JobSummary]:
    """Return how the jobs stand."""
    return [platform.jobs.get(id) for id in ids]


def attempts_of(platform: Platform, ids: list[str]) -> int:
    """Return how often these jobs were claimed, together."""
    return sum(job.attempts for job in jobs_of(platform, ids))


def end(worker: subprocess.Popen[bytes], also_children: bool) -> None:
    """Kill a worker, alone or with the processes that it has started."""
    for pid in [worker.pid, *(_children(worker.pid) if also_children else ())]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    worker.wait()


def _children(parent: int) -> list[int]:
    found = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(pid) for file in found for pid in file.read_text().split()]


def poisoned_round(mode: str) -> tuple[int, str, int, int]:
    """Return how many healthy jobs did not succeed, how the poison ended, its attempts, and the deaths of workers."""
    with yard() as platform:
        poison = submit(platform, "poisoned", POISON)
        healthy = [submit(platform, f"healthy-{number}", "question") for number in range(HEALTHY)]
        worker, deaths = start(mode), 0
        while deaths < MOST_DEATHS and not all(job.status in ENDED for job in jobs_of(platform, [poison, *healthy])):
            time.sleep(0.05)
            if worker.poll() is not None:
                worker, deaths = start(mode), deaths + 1
        end(worker, also_children=True)
        bad = [job for job in jobs_of(platform, healthy) if job.status != "succeeded"]
        ended = platform.jobs.get(poison)
        return len(bad), ended.status, ended.attempts, deaths


def killed_round(mode: str, kills: int, dice: random.Random) -> tuple[int, int]:
    """Return how many healthy jobs did not succeed, and how often a job was interrupted."""
    with yard() as platform:
        healthy = [submit(platform, f"healthy-{number}", "question") for number in range(HEALTHY)]
        for number in range(kills):
            before, until = attempts_of(platform, healthy), time.monotonic() + 60
            worker = start(mode)
            while time.monotonic() < until and attempts_of(platform, healthy) == before:
                time.sleep(0.02)
            time.sleep(dice.uniform(0.0, 1.5))  # the moment is to be random
            end(worker, also_children=bool(number % 2))
        worker = start(mode)
        while not all(job.status in ENDED for job in jobs_of(platform, healthy)):
            time.sleep(0.1)
        end(worker, also_children=True)
        unwell = sum(job.status != "succeeded" for job in jobs_of(platform, healthy))
        return unwell, attempts_of(platform, healthy) - HEALTHY


def main() -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--mode", choices=MODES, default="work")
    parser.add_argument("--sabotage", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        work_in_threads()
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    os.environ["SABOTAGE"] = chosen.sabotage
    began, dice = time.monotonic(), random.Random(chosen.seed)
    report: dict[str, object] = {"mode": chosen.mode, "sabotage": chosen.sabotage}
    unwell, poisons, attempts, deaths = 0, Counter[str](), [], []
    for _ in range(1 if chosen.kills else chosen.rounds):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["YARD"] = folder
            if chosen.kills:
                unwell, report["interrupted"] = killed_round(chosen.mode, chosen.kills, dice)
                continue
            bad, poison, tried, died = poisoned_round(chosen.mode)
        unwell += bad
        poisons[poison] += 1
        attempts.append(tried)
        deaths.append(died)
    report |= {"healthy not succeeded": unwell, "poison": poisons, "attempts of the poison": attempts}
    report |= {"deaths of workers": deaths, "seconds": round(time.monotonic() - began)}
    print(json.dumps(report))
    return int(unwell > 0 or set(poisons) > {"failed"} or "succeeded" in poisons)


if __name__ == "__main__":
    sys.exit(main())

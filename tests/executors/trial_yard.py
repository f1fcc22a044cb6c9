"""What the contract's jobs do in processes of their own: the factory does the job itself and opens no platform."""

import sys
import threading
from pathlib import Path
from typing import NoReturn

from modelyard.testing.contracts.executor import A_WHILE


def trial(folder: str) -> NoReturn:
    """Do what the job's id says, and tell of it in the folder."""
    job = sys.argv[2]
    say(folder, "begun", job)
    what = job.partition("-")[0]
    if what == "failing":
        raise RuntimeError("a job must not raise")
    if what == "waiting":
        while not (Path(folder) / "go").exists():
            threading.Event().wait(0.005)
    if what == "slow":
        threading.Event().wait(A_WHILE)
    say(folder, "ended", job)
    sys.exit(0)


def say(folder: str, what: str, job: str) -> None:
    with open(Path(folder) / what, "a", encoding="utf-8") as file:
        file.write(f"{job}\n")

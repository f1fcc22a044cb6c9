"""A run on a network whose worker is killed, with whatever it is at: its weights are the same, digest for digest."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from campaign import MODULES
from nursery import Nursery
from test_run_killed import TEXTS, ended
from training_kit import micro

from driven_runs import Driven, course
from modelyard import open_platform
from warm_python import WarmPython

MOMENTS = ("commit 44 inside", "put 2 half")
"""In a commit after a state was saved, and while that is written, so that all is done again."""


@pytest.fixture(scope="module")
def nursery(warm_python: WarmPython) -> Iterator[Nursery]:
    with Nursery(*MODULES["local"], python=warm_python.executable) as made:
        yield made


def test_a_run_on_a_network_survives_its_workers(nursery: Nursery, tmp_path: Path) -> None:
    requested = tmp_path / "requested"
    requested.mkdir()
    with open_platform(requested / "yard.db") as platform:
        platform.add_base_model(micro(), id="network")
        driven = Driven(platform, base="network")
        run = driven.begin()
        futures = [*course(driven, TEXTS), platform.compat.training_runs.unload(run)]
    digests = set()
    for moment in ("", *MOMENTS):
        path = tmp_path / (moment or "undisturbed") / "yard.db"
        shutil.copytree(requested, path.parent)
        if moment:
            child = nursery.start(path, lease=600.0, poll=0.01, acts={moment: "die"})
            child.hear_until("gone")
            assert child.status == -9
        digests.add(ended(nursery, path, run, futures))
    assert len(digests) == 1

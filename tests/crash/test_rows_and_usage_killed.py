"""An evaluation killed at each of its commits: rows and what they used are stored together, each exactly once."""

import json
import subprocess
import sys
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import pytest

from modelyard import Platform, Settings, open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.domain.catalogue import Pricing
from modelyard.domain.evaluation.run import RunState

pytestmark = pytest.mark.crash

ROWS, CONCURRENCY = 10, 4
PRICE = Pricing(Decimal("0.25"), Decimal("0.5"))

# A process for each moment, forked where all is loaded. `commit` and `beat` are steps, `ask` is the model's turn.
PROGRAM = """
import json, os, sys
from decimal import Decimal

import attrs
from moments import Moments, WatchedStore
from modelyard import open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.domain.catalogue import Pricing
from modelyard.platform.evaluations import row_evaluation

row_evaluation.COMMITTED_TOGETHER = 4  # as many rows as begin at a time: how many commits there are depends on no clock

class Asked(EchoBackend):
    def stream(self, request, model):
        moments.next("ask")
        return super().stream(request, model)

def evaluate(path):
    price = Pricing(Decimal("0.25"), Decimal("0.5"))
    with open_platform(path, durability="process", backend=Asked(pricing=price)) as platform:
        platform._runtime = attrs.evolve(platform._runtime, store=WatchedStore(platform._runtime.store, moments))
        rows = [{"prompt": "word " * (at + 1), "expected": "?"} for at in range(int(sys.argv[2]))]
        platform.evaluations.run("e", "echo", rows, project="p", concurrency=int(sys.argv[3]))

moments, ended = Moments({}, reported=False), {}
evaluate(f"{sys.argv[1]}/undisturbed.db")  # loads all that it takes
for moment in json.loads(sys.argv[4]):
    child = os.fork()
    if not child:
        moments = Moments({moment: "die"}, reported=False)
        evaluate(f"{sys.argv[1]}/{moment}.db")
        os._exit(0)
    ended[moment] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps(ended))
"""

FIRST_ROWS = 4
"""The commits before it make the scorer's version, the run, and the event that it has begun."""

LAST = FIRST_ROWS + 3

COMMITS = [f"commit {number} {when}" for number in range(1, LAST + 1) for when in ("inside", "after")]
BEFORE_THE_RUN = COMMITS[: COMMITS.index("commit 2 after")]
MOMENTS = [*COMMITS, "ask 1", "ask 3", "ask 7"]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what each of the killed processes has left."""
    folder = tmp_path_factory.mktemp("killed")
    arguments = [folder, ROWS, CONCURRENCY, json.dumps([*MOMENTS, "never"])]
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    done = subprocess.run(
        command, check=True, timeout=300, stdout=subprocess.PIPE, cwd=Path(__file__).parent, env={"PYTHONPATH": path()}
    )
    assert json.loads(done.stdout) == {**dict.fromkeys(MOMENTS, -9), "never": 0}
    return folder


def path() -> str:
    return ":".join(filter(None, [str(Path(__file__).parent), *sys.path]))


def stored(platform: Platform, run_id: str) -> Mapping[tuple[int, int], tuple[int, int, Decimal]]:
    """What every row that is stored has used, by its place."""
    found: dict[tuple[int, int], tuple[int, int, Decimal]] = {}
    for prediction in platform.evaluations.predictions.list(run_id=run_id, project="p"):
        place = (prediction.index, prediction.trial)
        assert place not in found
        found[place] = (prediction.prompt_tokens, prediction.completion_tokens, prediction.cost)
    return found


def check_sums(platform: Platform, run_id: str) -> int:
    """Of so many rows, each booked once: the sums of the ledger are those of the rows, to the last decimal."""
    rows = stored(platform, run_id).values()
    prompt, completion, cost = (sum(values) for values in zip((0, 0, 0), *rows, strict=True))
    assert booked(platform) == (len(rows), prompt, completion, cost)
    return len(rows)


def booked(platform: Platform) -> tuple[int, int, int, Decimal]:
    (total,) = platform.usage.total()
    return total.requests, total.prompt_tokens, total.completion_tokens, total.cost


@pytest.mark.parametrize("moment", [*MOMENTS, "never"])
def test_killed_at_any_moment_every_row_and_its_usage_are_there_once_or_not_at_all(killed: Path, moment: str) -> None:
    settings = Settings(lease=0.2, poll=0.02)
    backend = EchoBackend(pricing=PRICE)
    with open_platform(killed / f"{moment}.db", durability="process", backend=backend, settings=settings) as platform:
        runs = list(platform.evaluations.runs.list(project="p"))
        if moment in BEFORE_THE_RUN:
            assert (runs, booked(platform)) == ([], (0, 0, 0, 0))
            return
        (run,) = runs
        left = check_sums(platform, run.id)
        assert left in {0, 4, 8, ROWS}
        if run.state is RunState.RUNNING:
            result = platform.evaluations.resume(run.id)
            assert result.run.summary is not None
            assert result.run.summary["possibly_repeated"] == ROWS - left  # fewer than can be uncommitted
        assert platform.evaluations.runs.get(run.id).state is RunState.COMPLETED
        assert check_sums(platform, run.id) == ROWS
        assert set(stored(platform, run.id)) == {(index, 0) for index in range(ROWS)}

"""What tests of several parts need: evaluation runs in a store, as an engine writes them; no test depends on speed."""

import gc
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from decimal import Decimal
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.internal.conjecture import providers

from core_tests import needs_parts
from example_counts import PLAIN
from modelyard import Platform, open_platform
from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.run import EvaluationRun, Prediction, Score, Source
from modelyard.protocols import Tx
from modelyard.stores.sqlite import SqliteStore
from postgres_server import PostgresServer, server_folder

gc.disable()  # until all tests are collected: what is made until then lives until the end of the run

pytest_plugins = [
    "pytest_modelyard",
    "pytester",
]  # the first also where modelyard was not installed but put on the path

# Tests start processes by the hundred, each of which imports the package: compiled once, and not again by each.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False  # and the assertions of each test module are rewritten once

# To load all certificates that a system trusts takes tens of milliseconds a client, and no test needs one of them.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "shared" / "trusted_certificate.pem")

# What hypothesis knows of Unicode takes a process three seconds to gather: once, and not again in each checkout.
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
set_hypothesis_home_dir(CACHE / "modelyard" / "hypothesis")

# A slow machine is not the code's fault: no example has a deadline, and slow generation fails nothing. Each run looks
# at the same examples; `--hypothesis-profile=search` looks for new ones. `few` is for what runs the same properties
# again where something else may break than they: without parts, or with the least versions of what is needed.
slow = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", slow, max_examples=PLAIN, derandomize=True, database=None)
settings.register_profile("few", slow, max_examples=5, derandomize=True, database=None)
settings.register_profile("search", slow, max_examples=1000)
settings.load_profile("same")


HERE = Path(__file__).parent

LONG = ("docs", "crash", "plugin", "types", "servers", "slow")
"""The markers of tests that a plain run leaves out."""

PLAIN_RUN = " and ".join(f"not {mark}" for mark in LONG)

SERVERS = {"postgres", "slurm"}
"""The fixtures that start a server."""

SAYS_LONG = re.compile(rf"\bmark\.({'|'.join(LONG)})\b|\b({'|'.join(SERVERS)}|yard_address)\b")
WHOLLY_LONG = re.compile(rf"^pytestmark = .*\bmark\.({'|'.join(LONG)})\b", re.MULTILINE)


@cache
def says_long(module: Path) -> bool:
    """Return whether the text of a module shows a long test, or that of a `conftest.py` between it and this one."""
    folders = [folder for folder in module.parents if HERE in folder.parents]
    shown = [module, *(folder / "conftest.py" for folder in folders)]
    return any(SAYS_LONG.search(path.read_text(encoding="utf-8")) for path in shown if path.exists())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the tests that use a part, where the folder of parts was deleted (`tests/core_alone.py`), and modules
    without a test that runs: to import them all, and make their items, takes each process 20 seconds.
    """
    if find_spec("modelyard.parts") is None:
        module = collection_path / "conftest.py" if collection_path.is_dir() else collection_path
        if module.suffix == ".py" and module.exists() and needs_parts(module):
            return True
    if collection_path.suffix != ".py":
        return None
    expression = config.getoption("markexpr")
    if expression == PLAIN_RUN:
        return bool(WHOLLY_LONG.search(collection_path.read_text(encoding="utf-8"))) or None
    if set(LONG).issuperset(expression.split(" or ")):
        return not says_long(collection_path) or None
    return None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--by-part", action="store_true", help="print what the tests of the core and of each part took")
    parser.addoption("--whole", action="store_true", help="run what has the marker `campaign`, too")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Add up seconds by the owner of a test: the core, or a part. Tests that ran at once count each."""
    if not config.getoption("--by-part"):
        return
    seconds, tests = Counter[str](), Counter[str]()
    for report in (one for found in terminalreporter.stats.values() for one in found if hasattr(one, "duration")):
        path = Path(report.nodeid.partition("::")[0]).parts
        owner = "/".join(path[1:3]) if path[1:2] == ("parts",) else "core"
        seconds[owner] += report.duration
        tests[owner] += report.when == "call"
    terminalreporter.section("seconds of tests by part")
    for owner, took in seconds.most_common():
        terminalreporter.write_line(f"{owner:22} {took:8.1f} s {tests[owner]:6} tests")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that start a server, before the plain run leaves them out; and leave those out that only a run
    with `--whole` tries.

    Where each run looks at the same examples, none are made of constants in the source: they would change with every
    change of it and with the modules that a process has loaded, and to parse these takes a process 5 to 10 seconds.
    """
    if find_spec("modelyard.parts") is None:
        items[:] = [item for item in items if item.get_closest_marker("parts") is None]
    if not config.getoption("--whole"):
        left_out = [item for item in items if item.get_closest_marker("campaign")]
        items[:] = [item for item in items if not item.get_closest_marker("campaign")]
        config.hook.pytest_deselected(items=left_out)
    for item in items:
        if not SERVERS.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("servers")
    long = {item.path for item in items if not set(LONG).isdisjoint(mark.name for mark in item.iter_markers())}
    if silent := [str(path) for path in long if not says_long(path)]:
        raise pytest.UsageError(f"mark long tests in their module, or a conftest.py of its folder: {', '.join(silent)}")
    if settings.default.derandomize:
        providers.is_local_module_file = lambda _: False


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Take the modules and the collected tests, which live until the end, out of every later garbage collection."""
    gc.collect()  # of the classes that attrs made again with slots, the first ones would stay among the subclasses
    gc.freeze()
    gc.set_threshold(10_000, 20, 100)  # full collections, which find little, took a twentieth of the time
    gc.enable()


EVALUATION = "weave:///local/demo/object/replies:v0"
SCORER = "weave:///local/demo/object/{}:v0"


@attrs.frozen
class Answer:
    """What a model answered to a question, and the value of each scorer by name; an exception is one that failed."""

    question: str
    output: Any = "an answer"
    scores: Any = attrs.field(factory=dict)
    error: str | None = None
    trial: int = 0
    more: Any = attrs.field(factory=dict)


def add_run(
    platform: Platform, answers: Iterable[Answer], model: str = "support:step1", project: str = "demo"
) -> EvaluationRun:
    """A completed run of these answers."""
    run = platform.evaluations.runs.create(EVALUATION, f"weave:///local/demo/object/{model}", project=project)
    kept = list(answers)

    def step(tx: Tx) -> None:
        for at, answer in enumerate(kept):
            prediction = _prediction(run, at, answer)
            tx.add(prediction)
            for score in _scores(prediction, answer):
                tx.add(score)

    platform._runtime.store.transact(step)
    return platform.evaluations.runs.finish(run.id)


def _prediction(run: EvaluationRun, at: int, answer: Answer) -> Prediction:
    row = {"question": answer.question, **answer.more}
    return Prediction(
        f"{run.id}-{at}",
        run.entity,
        run.project,
        run.model,
        row,
        digest(row),
        run.started_at + timedelta(seconds=at),
        run_id=run.id,
        index=at,
        trial=answer.trial,
        source=Source.ENGINE,
        output={} if answer.error else {"value": answer.output},
        error=answer.error,
        finished_at=run.started_at + timedelta(seconds=at + 1),
        latency=0.25,
        prompt_tokens=10,
        completion_tokens=5,
        cost=Decimal("0.001"),
    )


def _scores(prediction: Prediction, answer: Answer) -> Sequence[Score]:
    return [
        Score(
            f"{prediction.id}-{name}",
            prediction.entity,
            prediction.project,
            prediction.id,
            SCORER.format(name),
            prediction.started_at,
            run_id=prediction.run_id,
            value={} if isinstance(value, Exception) else {"value": value},
            error=str(value) if isinstance(value, Exception) else None,
            row_digest=prediction.row_digest,
            trial=prediction.trial,
        )
        for name, value in answer.scores.items()
    ]


def questions(values: Iterable[Any], name: str = "exact") -> list[Answer]:
    """A question for each value of one scorer."""
    return [Answer(f"question {n}", f"answer {n}", {name: value}) for n, value in enumerate(values)]


@attrs.frozen
class ScoredRuns:
    """How tests make runs: of answers, or of the values of one scorer."""

    answer = Answer
    add = staticmethod(add_run)
    questions = staticmethod(questions)


@pytest.fixture
def scored_runs() -> ScoredRuns:
    return ScoredRuns()


@pytest.fixture(scope="session")
def empty_yard(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A SQLite file with all tables and no record."""
    path = tmp_path_factory.mktemp("empty") / "yard.db"
    open_platform(path).close()
    return path.read_bytes()


@pytest.fixture
def yard_file(tmp_path: Path, empty_yard: bytes) -> Path:
    """A new SQLite file that has its tables already: to create them takes ten times as long as to copy them."""
    path = tmp_path / "yard.db"
    path.write_bytes(empty_yard)
    return path


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this session's own."""
    folder = server_folder()
    if folder is None:
        problem = "no PostgreSQL server is installed: apt-get install postgresql"
        pytest.fail(problem) if os.environ.get("CI") == "true" else pytest.skip(problem)
    server = PostgresServer(folder)
    yield server
    server.close()


@pytest.fixture(scope="session")
def emptied() -> list[str]:
    """The addresses of databases that tests have left."""
    return []


@pytest.fixture
def yard_address(postgres: PostgresServer, emptied: list[str]) -> Iterator[str]:
    """The address of an empty database."""
    address = emptied.pop() if emptied else postgres.create_database()
    yield address
    postgres.empty_database(address)
    emptied.append(address)


@pytest.fixture(scope="session")
def empty_contract_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A SQLite file with the tables of the store contract and no record."""
    from modelyard.testing import CONTRACT_RECORDS

    path = tmp_path_factory.mktemp("empty") / "contract.db"
    SqliteStore(path, CONTRACT_RECORDS).close()
    return path.read_bytes()


@pytest.fixture
def contract_file(tmp_path: Path, empty_contract_file: bytes) -> Path:
    """A new SQLite file that has the tables of the store contract already."""
    path = tmp_path / "yard.db"
    path.write_bytes(empty_contract_file)
    return path


@pytest.fixture
def base_folder(tmp_path: Path) -> Path:
    """A folder in the transformers format with hardly anything in it."""
    folder = tmp_path / "base"
    folder.mkdir()
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 7}
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 128}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{% if tools %}<tool_call>{% endif %}{{ messages }}")
    header = json.dumps({"x": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(48))
    return folder

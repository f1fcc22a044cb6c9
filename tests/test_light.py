"""Importing modelyard and opening a platform load little and start nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import modelyard
from modelyard.engines.tabular.backend import TabularBackend

PROBE = """
import sys, threading, json
before = set(sys.modules)
import modelyard
with modelyard.open_platform() as platform:
    platform.chat.complete(model="echo", messages="hi")
    entries = [entry.id for entry in platform.catalogue.list()]
    threads = threading.active_count()
loaded = sorted(set(sys.modules) - before)
print(json.dumps({"loaded": loaded, "threads": threads, "entries": entries}))
"""
WAITING = {
    "asyncio",
    "cattrs",
    "hashlib",
    "logging",
    "socket",
    "sqlite3",
    "ssl",
    "modelyard.artifacts.folder",
    "modelyard.backends.json_schema.instances",
    "modelyard.engines.tabular.backend",
    "modelyard.parts.upstream",
    "modelyard.domain.evaluation.run",
    "modelyard.domain.job",
    "modelyard.engines.tabular.model",
    "modelyard.domain.training",
    "modelyard.formats.chat.request",
    "modelyard.formats.converter",
    "modelyard.executors.thread",
    "modelyard.http.endpoint",
    "modelyard.platform.models.service",
    "modelyard.platform.training.service",
    "modelyard.engines.tabular.trainer",
}
"""What a completion in memory has no use for."""


def probe(code: str) -> dict[str, object]:
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_platform_in_memory_loads_attrs_only_and_starts_no_thread() -> None:
    found = probe(PROBE)
    tops = {name.partition(".")[0] for name in found["loaded"]}  # type: ignore[attr-defined]
    assert tops - set(sys.stdlib_module_names) <= {"attr", "attrs", "modelyard"}
    assert found["threads"] == 1


def test_a_completion_and_a_listing_load_nothing_that_they_have_no_use_for() -> None:
    found = probe(PROBE)
    assert found["entries"] == ["echo", "tabular-mini"]
    assert WAITING.isdisjoint(found["loaded"])  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_file_whose_schema_stays_is_opened_without_what_changes_schemas(yard_file: Path) -> None:
    """sqlite-utils loads pandas, where that is installed."""
    opening = f"import sys, json, modelyard; modelyard.open_platform({str(yard_file)!r}).close(); "
    found = probe(opening + "print(json.dumps({'loaded': [*sys.modules]}))")
    assert {"sqlite_utils", "pandas", "numpy", "click"}.isdisjoint(found["loaded"])  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_new_file_is_made_without_the_data_frames_that_are_installed(tmp_path: Path) -> None:
    for name in ("pandas", "numpy"):
        (tmp_path / f"{name}.py").write_text("")
    opening = f"import sys, json, modelyard; sys.path.insert(0, {str(tmp_path)!r}); "
    opening += f"modelyard.open_platform({str(tmp_path / 'new.db')!r}).close(); loaded = [*sys.modules]; "
    found = probe(opening + "import pandas, numpy; print(json.dumps({'loaded': loaded, 'file': pandas.__file__}))")
    assert {"pandas", "numpy"}.isdisjoint(found["loaded"])  # type: ignore[arg-type]
    assert "sqlite_utils" in found["loaded"]  # type: ignore[operator]
    assert found["file"] == str(tmp_path / "pandas.py")


@pytest.mark.parts
def test_deferred_modules_are_loaded_when_they_are_imported() -> None:
    for name in sorted(WAITING):
        __import__(name)


def test_importing_modelyard_loads_nothing_of_it() -> None:
    found = probe("import sys, json, modelyard; print(json.dumps({'loaded': [*sys.modules]}))")
    names = {name for name in found["loaded"] if name.startswith(("modelyard", "attr"))}  # type: ignore[attr-defined]
    assert names == {"modelyard", "modelyard.lazy"}


def test_the_entries_at_hand_are_those_of_the_tabular_backend() -> None:
    with modelyard.open_platform() as platform:
        listed = [entry for entry in platform.catalogue.list() if entry.id != "echo"]
    assert tuple(listed) == TabularBackend().entries()


def test_public_names_are_listed_and_no_other_is_made_up() -> None:
    found = probe("import json, modelyard; print(json.dumps({'names': dir(modelyard)}))")
    assert set(modelyard.__all__) <= set(found["names"])  # type: ignore[call-overload]
    with pytest.raises(AttributeError, match="no attribute 'Plattform'"):
        modelyard.Plattform  # noqa: B018 - it is the look-up that counts


@pytest.mark.slow
@pytest.mark.parts
def test_the_upstream_backend_without_its_extra_says_how_to_get_it() -> None:
    missing = """
import sys, json
sys.modules["httptools"] = None
from modelyard import Pricing
from modelyard.parts.upstream.fallback import Fallback
from modelyard.backends import UpstreamBackend, offer
from modelyard.errors import MissingExtra
models = [offer("m", context_length=9, pricing=Pricing())]
try:
    UpstreamBackend("http://x/v1", models=models)
except MissingExtra as error:
    print(json.dumps({"says": str(error)}))
"""
    assert "pip install 'modelyard[upstream]'" in str(probe(missing)["says"])


@pytest.mark.slow
def test_fixtures_and_clients_need_no_hypothesis_and_a_contract_says_how_to_get_it() -> None:
    without = """
import sys, json
sys.modules["hypothesis"] = None
from modelyard import open_platform
from modelyard.errors import MissingExtra
from modelyard.testing import Faults, FakeVllm, ManualClock, openai_client, served, use_cassette
with open_platform() as platform, openai_client(platform) as client:
    models = [model.id for model in client.models.list()]
try:
    from modelyard.testing import StoreContract
except MissingExtra as error:
    print(json.dumps({"models": models, "says": str(error)}))
"""
    found = probe(without)
    assert "echo" in found["models"]  # type: ignore[operator]
    assert "pip install 'modelyard[contracts]'" in str(found["says"])


@pytest.mark.parts
@pytest.mark.slow
def test_a_missing_extra_says_which_command_installs_it() -> None:
    missing = """
import sys, json
sys.modules["uvicorn"] = None
from click.testing import CliRunner
from modelyard.cli import main
result = CliRunner().invoke(main, ["serve", "--store", "x.db"])
print(json.dumps({"status": result.exit_code, "says": result.output}))
"""
    found = probe(missing)
    assert found["status"] == 1
    assert "pip install 'modelyard[serve]'" in str(found["says"])

"""Linters of OpenAPI documents find nothing in that of all interfaces, and nothing in that of each one."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from modelyard import open_platform
from modelyard.http.endpoint import Endpoint
from modelyard.http.interface import Interface
from modelyard.http.message import Request
from node_packages import node_modules
from sampled import in_campaign

pytest.importorskip("openapi_python_client", reason="it has a lane of its own: tests/clients/lanes.py generated")

HERE = Path(__file__).parent / "generated"
QUIET = {"REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"}
LINTERS = {
    "redocly": ("lint", "--config", HERE / "redocly.yaml", "--format", "stylish"),
    "spectral": ("lint", "--ruleset", HERE / "spectral.yaml", "--fail-severity", "hint"),
}
"""What each is asked; the rules that do not hold here are argued away in the files that are named."""


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The documents, each in a file."""
    folder = tmp_path_factory.mktemp("documents")
    with open_platform() as platform:
        endpoint = Endpoint(platform, list(Interface))
        for query in ("", *(f"interface={interface.name}" for interface in Interface)):
            shown: Any = endpoint.handle(Request("GET", "/openapi.json", query, [], iter(()))).body
            (folder / f"{query.partition('=')[2] or 'all'}.json").write_bytes(shown)
    return sorted(folder.iterdir())


def lint(linter: str, documents: Sequence[Path]) -> subprocess.CompletedProcess[str]:
    command = [node_modules(HERE / "package.json") / ".bin" / linter, *LINTERS[linter], *documents]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **QUIET})


@pytest.mark.parametrize("linter", LINTERS)
def test_a_linter_finds_nothing(linter: str, documents: list[Path]) -> None:
    """In that of all interfaces, which has what each one has."""
    done = lint(linter, [path for path in documents if path.stem == "all"])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.campaign
@pytest.mark.parametrize("linter", LINTERS)
def test_a_linter_finds_nothing_in_that_of_one_interface(linter: str, documents: list[Path]) -> None:
    done = lint(linter, [path for path in documents if path.stem != "all"])
    assert done.returncode == 0, done.stdout + done.stderr


SPOILT: Mapping[str, Callable[[Any], object]] = {
    "an operation without its id": lambda document: document["paths"]["/inference/v1/models"]["get"].pop("operationId"),
    "no server": lambda document: document.update(servers=[]),
}


@pytest.mark.parametrize(
    ("linter", "how"),
    [
        (linter, how) if at % 2 == place % 2 else in_campaign((linter, how))
        for at, linter in enumerate(LINTERS)
        for place, how in enumerate(SPOILT)
    ],
)
def test_a_linter_finds_what_is_wrong(linter: str, how: str, documents: list[Path], tmp_path: Path) -> None:
    (inference,) = (path for path in documents if path.stem == "inference")
    document, file = json.loads(inference.read_text()), tmp_path / "spoilt.json"
    SPOILT[how](document)
    file.write_text(json.dumps(document))
    assert lint(linter, [file]).returncode == 1

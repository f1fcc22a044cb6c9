"""Clients that are generated from the OpenAPI document can use a platform: Python's, and TypeScript's types."""

import importlib
import json
import re
import shutil
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest

from node_packages import node_modules

pytest.importorskip("openapi_python_client", reason="it has a lane of its own: tests/clients/lanes.py generated")

HERE = Path(__file__).parent / "generated"


@pytest.fixture(scope="module")
def document(served: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The document as the server shows it, in a file."""
    file: Path = tmp_path_factory.mktemp("document") / "openapi.json"
    file.write_text(json.dumps(httpx.get(f"{served.root}/openapi.json", timeout=60).json()))
    return file


# ---- Python --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def generated(document: Path) -> tuple[Path, str]:
    """The folder of the client, and what the generator reported."""
    home = document.parent / "client"
    tool = Path(sys.executable).parent / "openapi-python-client"
    command = [tool, "generate", "--path", document, "--config", HERE / "python.yaml", "--output-path", home]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return home, done.stdout + done.stderr


def test_every_operation_is_generated(generated: tuple[Path, str], document: Path) -> None:
    """Answers of JSON Lines have no type of their own, for which the generator knows no way: they are left as bytes."""
    home, said = generated
    assert "will not be generated" not in said
    assert "Unable to" not in said
    assert set(re.findall(r"content_type (\S+)\)", said)) == {"application/jsonl"}
    paths = json.loads(document.read_text())["paths"].values()
    operations = {operation["operationId"] for methods in paths for operation in methods.values()}
    assert {file.stem for file in home.glob("modelyard_client/api/*/*.py")} - {"__init__"} == operations


def test_the_python_client_chats_and_makes_models(
    served: Any, generated: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(generated[0])
    package = "modelyard_client"
    patient = {"timeout": httpx.Timeout(60)}
    with importlib.import_module(package).AuthenticatedClient(served.root, served.key, **patient) as client:
        models = importlib.import_module(f"{package}.models")
        chat = importlib.import_module(f"{package}.api.inference.create_inference_chat_completion")
        body = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}
        completion = chat.sync(client=client, body=models.ChatRequest.from_dict(body))
        assert completion.choices[0].message.content == "hello"
        assert completion.usage.total_tokens == 2
        refused = chat.sync_detailed(client=client, body=models.ChatRequest.from_dict({**body, "model": "nowhere"}))
        assert (refused.status_code, refused.parsed.error.code) == (404, "model_not_found")

        create = importlib.import_module(f"{package}.api.training.create_trainable_model")
        listing = importlib.import_module(f"{package}.api.training.list_trainable_models")
        wanted = {"name": "support", "project": "generated-py", "base_model": "tabular-mini"}
        made = create.sync(client=client, body=models.ModelCreate.from_dict(wanted))
        assert made.name == "support"
        found = listing.sync(client=client, project="generated-py")
        assert [one.name for one in found.data] == ["support"]

        upload = importlib.import_module(f"{package}.api.training.upload_dataset")
        line = json.dumps({"messages": [*body["messages"], {"role": "assistant", "content": "hi"}]})
        file = importlib.import_module(f"{package}.types").File(BytesIO(line.encode()))
        dataset = upload.sync(client=client, body=file, project="generated-py", name="greetings")
        assert dataset.rows == 1


# ---- TypeScript ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def packages() -> Path:
    """The folder of the pinned packages."""
    return node_modules(HERE / "package.json")


def test_the_types_fit_a_program_that_uses_a_platform(
    served: Any, document: Path, packages: Path, tmp_path: Path
) -> None:
    shutil.copy(HERE / "client.ts", tmp_path)
    shutil.copy(HERE / "package.json", tmp_path)
    (tmp_path / "node_modules").symlink_to(packages)

    def run(*command: object) -> str:
        done = subprocess.run([*map(str, command)], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("node", packages / "openapi-typescript" / "bin" / "cli.js", document, "-o", "schema.d.ts")
    options = ("--strict", "--target", "es2022", "--module", "nodenext", "--skipLibCheck")
    run("node", packages / "typescript" / "bin" / "tsc", *options, "client.ts")
    assert json.loads(run("node", "client.js", served.root, served.key)) == {
        "text": "hello from types",
        "name": "typed",
        "listed": ["typed"],
        "status": 404,
        "code": "model_not_found",
    }

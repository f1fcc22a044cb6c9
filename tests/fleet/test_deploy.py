"""The files of `examples/deploy` are valid, and what they run is there."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from modelyard.cli import main

pytestmark = pytest.mark.parts

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
DOC = DEPLOY.parents[1] / "docs" / "how-to" / "run-on-many-machines.md"


def check(words: list[str]) -> None:
    """Raise unless the words are a command with options that it has; nothing is run."""
    command = main.get_command(click.Context(main), words[0])
    assert command is not None, words
    command.make_context(words[0], list(words[1:]))


def compose() -> Any:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def manifests() -> Iterator[Any]:
    return yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())


def test_the_compose_file_runs_commands_that_there_are_on_services_that_there_are() -> None:
    services = compose()["services"]
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        assert {volume.partition(":")[0] for volume in service.get("volumes", ())} <= set(compose()["volumes"])
        if "build" in service:
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    for name in ("server", "worker"):
        check(services[name]["command"])


def test_no_file_holds_a_password() -> None:
    for service in compose()["services"].values():
        passwords = [value for name, value in service.get("environment", {}).items() if "PASSWORD" in name]
        assert all(value.startswith("${YARD_PASSWORD:?") for value in passwords)


def test_the_manifests_are_valid_and_run_commands_that_there_are() -> None:
    kinds = []
    for manifest in manifests():
        kubernetes_validate.validate(manifest, "1.30", strict=True)
        kinds.append(manifest["kind"])
        for container in manifest["spec"].get("template", {}).get("spec", {}).get("containers", ()):
            check(container["args"])
    assert kinds == ["Deployment", "Service", "Deployment"]


def test_the_image_installs_extras_that_there_are() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    extras = text.partition("/src[")[2].partition("]")[0].split(",")
    declared = (DEPLOY.parents[1] / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    assert all(f"\n{extra} = [" in declared for extra in extras)
    assert 'ENTRYPOINT ["modelyard"]' in text


@pytest.mark.parametrize("line", [line for line in DOC.read_text().splitlines() if line.startswith("modelyard ")])
def test_the_commands_of_the_page_are_there(line: str) -> None:
    check([word for word in shlex.split(line.partition(" &")[0])[1:] if word])

"""The files of `examples/deploy` are valid, and what they run is there."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from each import each_case
from manifests import check_command, check_manifest, pods_of
from modelyard import open_platform
from modelyard.cli import main
from modelyard.domain.job import Needs
from modelyard.parts.clusters.kubernetes import KubernetesJobs
from modelyard.parts.retention.commands import keep

pytestmark = pytest.mark.parts

HOOK = "helm.sh/hook"
DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
DOC = DEPLOY.parents[1] / "docs" / "how-to" / "run-on-many-machines.md"


def compose() -> Any:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def manifests(name: str = "kubernetes.yaml") -> Iterator[Any]:
    return yaml.safe_load_all((DEPLOY / name).read_text())


def test_the_compose_file_runs_commands_that_there_are_on_services_that_there_are() -> None:
    services = compose()["services"]
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        assert {volume.partition(":")[0] for volume in service.get("volumes", ())} <= set(compose()["volumes"])
        if "build" in service:
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    for name in ("server", "worker"):
        check_command(services[name]["command"])


def test_what_writes_into_the_folder_waits_until_it_may() -> None:
    """The volume belongs to root until the service `folder` has ended."""
    services = compose()["services"]
    writers = [name for name, one in services.items() if name != "folder" and "artifacts:/artifacts" in one["volumes"]]
    assert writers == ["server", "worker"]
    for name in writers:
        assert services[name]["depends_on"] == {
            "postgres": {"condition": "service_healthy"},
            "folder": {"condition": "service_completed_successfully"},
        }
    assert "healthcheck" in services["postgres"]


def test_all_that_stays_comes_back_with_the_machine() -> None:
    services = compose()["services"]
    assert {name for name, one in services.items() if one.get("restart") == "unless-stopped"} == {*services} - {
        "folder"
    }


def test_the_database_is_healthy_once_it_listens_to_others() -> None:
    """While its image makes the database, a server listens on a socket of the container alone, and is restarted."""
    words = compose()["services"]["postgres"]["healthcheck"]["test"]
    assert words[words.index("-h") + 1] == "127.0.0.1"


@pytest.mark.servers
def test_what_runs_before_an_installation_passes_a_database_without_tables(yard_address: str) -> None:
    """And one that has them: it runs before each upgrade, too."""
    hooks = [one for one in manifests() if "pre-install" in one["metadata"].get("annotations", {}).get(HOOK, "")]
    commands = [pod["containers"][0]["args"] for one in hooks for pod in pods_of(one)]
    assert [words[0] for words in commands] == ["migrate"]
    for _ in range(2):
        for words in commands:
            asked = [yard_address if word == "postgresql://yard@postgres/yard" else word for word in words]
            done = CliRunner().invoke(main, asked)
            assert done.exit_code == 0, done.output
        open_platform(yard_address).close()


def test_the_chart_keeps_whatever_can_be_kept_for_a_time() -> None:
    what = next(one for one in keep.params if one.name == "what")
    assert isinstance(what.type, click.Choice)
    schema = json.loads((DEPLOY / "chart" / "values.schema.json").read_text())
    assert {*schema["properties"]["keep"]["properties"]} == {*what.type.choices}


@pytest.mark.parametrize("file", ["compose.yaml", "kubernetes.yaml", "chart/templates/NOTES.txt"])
def test_each_says_how_the_first_key_is_made(file: str) -> None:
    text = re.sub(r"\\\n#? *", "", (DEPLOY / file).read_text(encoding="utf-8"))
    (words,) = re.findall(r"(?:exec server|-server --) modelyard (.*)", text)
    check_command(shlex.split(words.replace("{{ .Values.store }}", "postgresql://yard@postgres/yard")))


def test_no_file_holds_a_password() -> None:
    for service in compose()["services"].values():
        passwords = [value for name, value in service.get("environment", {}).items() if "PASSWORD" in name]
        assert all(value.startswith("${YARD_PASSWORD:?") for value in passwords)


@pytest.mark.slow
def test_the_manifests_are_valid_and_bound_and_confine_what_they_run() -> None:
    kinds = []
    for manifest in manifests():
        check_manifest(manifest)
        kinds.append(manifest["kind"])
    assert kinds == [
        *("Deployment", "Service", "PodDisruptionBudget"),
        *("Deployment", "Job", "CronJob", "CronJob"),
    ]
    commands = [pod["containers"][0]["args"][0] for manifest in manifests() for pod in pods_of(manifest)]
    assert commands == ["serve", "work", "migrate", "keep", "sweep"]


@pytest.mark.slow
def test_a_worker_that_makes_jobs_may_do_what_it_does_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verbs of its role are those of the requests that the cluster gets."""
    found = {manifest["kind"]: manifest for manifest in manifests("kubernetes-jobs.yaml")}
    for manifest in found.values():
        check_manifest(manifest, commands=False)
    (account,) = found["RoleBinding"]["subjects"]
    assert account["name"] == found["ServiceAccount"]["metadata"]["name"]
    (pod,) = pods_of(found["Deployment"])
    assert pod["serviceAccountName"] == account["name"]
    allowed = {(one, verb) for rule in found["Role"]["rules"] for one in rule["resources"] for verb in rule["verbs"]}
    seen = set()

    class Recorded:
        text, date = "", None

        def request(self, method: str, path: str, *_: Any, **__: Any) -> "Recorded":
            words = path.partition("?")[0].partition("/namespaces/yard/")[2].split("/")
            verb = {"POST": "create", "DELETE": "delete", "GET": "get" if len(words) > 1 else "list"}[method]
            seen.add(("/".join(words[::2]), verb))
            return self

        def json(self) -> Any:
            failed = {"conditions": [{"type": "Failed", "status": "True"}]}
            return {"items": [{"metadata": {"name": "job-1"}, "status": failed}]}

    template = json.loads(found["ConfigMap"]["data"]["job.json"])
    jobs = KubernetesJobs("http://127.0.0.1:1", "yard", lambda needs: template)
    monkeypatch.setattr(jobs, "_http", Recorded())
    jobs.check()
    jobs.start("job-1", ["python"], Needs("evaluation"))
    jobs.states(["job-1"])
    jobs.output("job-1")
    jobs.stop("job-1")
    assert seen == allowed


def test_the_image_installs_extras_that_there_are() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    extras = text.partition("/src[")[2].partition("]")[0].split(",")
    declared = (DEPLOY.parents[1] / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    assert all(f"\n{extra} = [" in declared for extra in extras)
    assert 'ENTRYPOINT ["modelyard"]' in text
    values = yaml.safe_load((DEPLOY / "chart" / "values.yaml").read_text())
    assert f"useradd --uid {values['user']} " in text
    assert f"USER {values['user']}\n" in text


@each_case("line", [line for line in DOC.read_text().splitlines() if line.startswith("modelyard ")])
def test_the_commands_of_the_page_are_there(line: str) -> None:
    check_command([word for word in shlex.split(line.partition(" &")[0])[1:] if word])

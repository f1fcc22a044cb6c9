"""The Helm chart of `examples/deploy`, rendered, and the manifests that are kept of it for those who have no Helm.

    python tests/shared/rendered_chart.py      write examples/deploy/kubernetes*.yaml again

It takes the program `helm`, or the package helm-python-sdk, which is Helm's own code as a library.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
CHART = DEPLOY / "chart"
HELM = shutil.which("helm")
RENDERS = HELM is not None or find_spec("helm_python") is not None
NAME, NAMESPACE = "yard", "default"

KEPT: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "kubernetes.yaml": (
        """\
# Servers, workers and their upkeep, as the chart next to this file makes them: kubectl apply -f kubernetes.yaml
# First: kubectl create secret generic yard --from-literal=PGPASSWORD=... --from-literal=AWS_ACCESS_KEY_ID=... \\
#   --from-literal=AWS_SECRET_ACCESS_KEY=... --from-literal=AWS_REGION=... [--from-literal=AWS_ENDPOINT_URL=...]
# Then the first key: kubectl exec deploy/yard-server -- modelyard keys create \\
#   --store postgresql://yard@postgres/yard --entity acme
""",
        {},
    ),
    "kubernetes-jobs.yaml": (
        """\
# A worker that makes a Kubernetes Job of each job, with the account that may do so, next to kubernetes.yaml. Of that
# file the Deployments of workers are then not needed.
""",
        {"cluster": {"enabled": True}},
    ),
}
"""Each file that is kept: how it begins, and the values that it is rendered with."""


def rendered(values: Mapping[str, Any], name: str = NAME, namespace: str = NAMESPACE) -> Mapping[str, str]:
    """Return the text of each template by the name of its file. Raises an error for values that the chart refuses."""
    if HELM is not None:
        return _by_helm(HELM, values, name, namespace)
    with import_module("helm_python").Chart.load(str(CHART)) as chart:
        found: Mapping[str, str] = chart.render(dict(values), name=name, namespace=namespace)
    return {Path(file).name: text for file, text in found.items()}


def _by_helm(helm: str, values: Mapping[str, Any], name: str, namespace: str) -> Mapping[str, str]:
    with NamedTemporaryFile("w", suffix=".json") as file:
        file.write(json.dumps(dict(values)))
        file.flush()
        command = [helm, "template", name, str(CHART), "--namespace", namespace, "--values", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, str] = {}
    for document in text.split("\n---\n"):
        source, _, content = document.removeprefix("---\n").partition("\n")
        place = Path(source.partition("# Source: ")[2]).name
        found[place] = f"{found[place]}\n---\n{content}" if place in found else content
    return found


def complaints() -> list[str]:
    """Return what `helm lint` has against the chart, but for what it only recommends."""
    if HELM is not None:
        done = subprocess.run([HELM, "lint", "--strict", str(CHART)], check=False, capture_output=True, text=True)
        return [] if done.returncode == 0 else done.stdout.splitlines()
    found = import_module("helm_python").lint(str(CHART))
    return [*map(str, found["errors"]), *(one["error"] for one in found["messages"] if one["severity"] > 1)]


ORDER = ("server.yaml", "workers.yaml", "cluster.yaml", "upkeep.yaml")


def kept_text(name: str) -> str:
    """Return the text of a kept file as the chart makes it now."""
    head, values = KEPT[name]
    texts = rendered(values)
    plain = {} if name == "kubernetes.yaml" else rendered({})
    found = [texts[file] for file in ORDER if texts.get(file, "").strip() and texts[file] != plain.get(file)]
    return head + "---\n".join(f"{_without_blank_lines(text)}\n" for text in found)


def _without_blank_lines(text: str) -> str:
    return "\n".join(line.rstrip() for line in _lines(text)).removeprefix("---\n")


def _lines(text: str) -> Iterator[str]:
    return (line for line in text.splitlines() if line.strip())


if __name__ == "__main__":
    for name in KEPT:
        (DEPLOY / name).write_text(kept_text(name), encoding="utf-8")

"""Jobs in a Kubernetes cluster, as `batch/v1` Jobs, by its HTTPS interface."""

import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from modelyard.clock import SystemClock
from modelyard.domain.job import Needs
from modelyard.errors import ClusterError, InvalidInput
from modelyard.parts.clusters.cluster import Cluster
from modelyard.parts.clusters.cluster_http import ClusterHttp
from modelyard.protocols import Ended, ExecutorState, Running, Waiting

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its own account."""
API = "https://kubernetes.default.svc"
"""What a pod calls the server."""
PROXY = "http://127.0.0.1:8001"
"""Where `kubectl proxy` listens."""

LABELS = {"app.kubernetes.io/managed-by": "modelyard"}
SELECTED = "app.kubernetes.io/managed-by=modelyard"
KEPT_SECONDS = 3600
"""How long a job that has ended is listed, unless the template states it."""
LINES = 40
"""How many lines of a job's output are read."""
EVICTED = frozenset({"Evicted", "Preempting", "NodeLost", "Shutdown", "NodeShutdown", "Terminated"})
"""Reasons of pods that were ended from outside."""


TO_PLACE = timedelta(minutes=5)
"""How long a pod may be unschedulable, or not even made: a cluster may add a node meanwhile."""
TO_START = timedelta(minutes=30)
"""How long a pod that was placed may take to fetch its images and mount its volumes."""
GATED = "SchedulingGated"
"""Why no scheduler looks at a pod yet: as with a suspended job, something will let it go when it is its turn."""
NEVER_STARTED = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
"""Reasons of a container that waits for what somebody has to mend."""

Manifest = Mapping[str, Any]


class KubernetesJobs:
    """The Kubernetes cluster with its server at `address`; jobs are made in `namespace`.

    `template` returns a manifest of a `batch/v1` Job for a job with certain needs: its image, resources, volumes,
    secrets. Its first container gets the command, and as limits the memory and the accelerators, counted as
    `accelerator`, that a request has named. The name of a Job is its id, so that a request that is sent again makes no
    second one. It never restarts its pod (`backoffLimit` 0): the platform claims the job again.

    `token` returns the bearer token of now, and `certificates` verify the server. The account must be allowed to
    create, list and delete jobs, and to list pods and read their logs. Raises `InvalidInput`.
    """

    def __init__(
        self,
        address: str,
        namespace: str,
        template: Callable[[Needs], Manifest],
        *,
        token: Callable[[], str] | None = None,
        certificates: ssl.SSLContext | None = None,
        accelerator: str = "nvidia.com/gpu",
    ) -> None:
        self._accelerator = accelerator
        self._http = ClusterHttp("kubernetes", address, token, certificates)
        self._namespace, self._template = namespace, template
        self._jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        self._pods = f"/api/v1/namespaces/{namespace}/pods"

    @classmethod
    def here(cls, template: Callable[[Needs], Manifest]) -> Self:
        """Return the cluster of this pod, with its account and namespace; outside a pod, the cluster of `kubectl
        proxy`.
        """
        if not (ACCOUNT / "token").exists():
            return cls(PROXY, "default", template)
        certificates = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
        namespace = (ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
        return cls(API, namespace, template, token=partial(_read, ACCOUNT / "token"), certificates=certificates)

    @property
    def name(self) -> str:
        """The server's address and the namespace."""
        return f"{self._http.name}/{self._namespace}"

    def check(self) -> None:
        """Raise `ClusterError` if there is no Kubernetes, or the account may not list jobs."""
        self._http.request("GET", f"{self._jobs}?limit=1")

    def start(self, name: str, command: Sequence[str], needs: Needs) -> str:
        """Make a Job of this name."""
        limits = _limits(needs, self._accelerator)
        self._http.request("POST", self._jobs, manifest(self._template(needs), name, command, limits), allowed=(409,))
        return name

    def states(self, ids: Collection[str]) -> Mapping[str, ExecutorState]:
        """Return the states of Jobs, from one list, and one of the pods unless all of these run or have succeeded."""
        listed = self._http.request("GET", f"{self._jobs}?labelSelector={SELECTED}")
        jobs = {job["metadata"]["name"]: job for job in listed.json()["items"] if job["metadata"]["name"] in ids}
        told = any(_condition(job) == "Failed" or _waits(job) for job in jobs.values())
        pods = self._http.request("GET", f"{self._pods}?labelSelector={SELECTED}").json()["items"] if told else []
        found = {pod["metadata"].get("labels", {}).get("job-name"): pod for pod in pods}
        now = listed.date or SystemClock().now()  # the times that it states are by its clock
        return {name: _state(job, found.get(name), now) for name, job in jobs.items()}

    def stop(self, id: str) -> None:
        """Delete the Job with its pod, which gets SIGTERM, and after its grace period SIGKILL."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        self._http.request("DELETE", f"{self._jobs}/{id}", body, allowed=(404,))

    def output(self, id: str) -> str:
        """Return the last lines of its pod."""
        pods = self._http.request("GET", f"{self._pods}?labelSelector=job-name={id}").json()["items"]
        if not pods:
            return ""
        log = f"{self._pods}/{pods[0]['metadata']['name']}/log?tailLines={LINES}"
        return self._http.request("GET", log, allowed=(400, 404)).text


def _limits(needs: Needs, accelerator: str) -> Mapping[str, Any]:
    named = {accelerator: f"{needs.accelerators}", "memory": f"{needs.memory}Gi"}
    return {word: amount for word, amount in named.items() if amount not in ("0", "0Gi")}


def manifest(
    template: Manifest, name: str, command: Sequence[str], limits: Mapping[str, Any] = MappingProxyType({})
) -> Manifest:
    """Return the Job to make; its first container gets these limits in addition to its own.

    Raises `InvalidInput` if the template has no container.
    """
    spec = template.get("spec", {})
    pod = spec.get("template", {})
    containers = pod.get("spec", {}).get("containers")
    if not containers:
        raise InvalidInput.at("template", msg="must be a batch/v1 Job with a container in spec.template.spec")
    first = {**containers[0], "command": list(command)}
    first.pop("args", None)
    if limits:
        first["resources"] = _limited(first.get("resources", {}), limits)
    return {
        **template,
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _labelled(template.get("metadata", {}), name=name),
        "spec": {
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            **spec,
            "backoffLimit": 0,
            "template": {
                **pod,
                "metadata": _labelled(pod.get("metadata", {})),
                "spec": {**pod["spec"], "restartPolicy": "Never", "containers": [first, *containers[1:]]},
            },
        },
    }


def _limited(resources: Mapping[str, Any], limits: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add limits to resources. A request must not exceed its limit, so it becomes the same."""
    requests = {**resources.get("requests", {}), **limits}
    return {**resources, "requests": requests, "limits": {**resources.get("limits", {}), **limits}}


def _labelled(metadata: Mapping[str, Any], **more: str) -> Mapping[str, Any]:
    return {**metadata, **more, "labels": {**metadata.get("labels", {}), **LABELS}}


def _condition(job: Mapping[str, Any]) -> str:
    for condition in job.get("status", {}).get("conditions") or ():
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            return str(condition["type"])
    return ""


def _waits(job: Mapping[str, Any]) -> bool:
    return not _condition(job) and not job.get("status", {}).get("ready") and not job["spec"].get("suspend")


def _state(job: Mapping[str, Any], pod: Mapping[str, Any] | None, now: datetime) -> ExecutorState:
    end = _condition(job)
    if not end:
        if job.get("status", {}).get("ready"):
            return Running()
        return Waiting(_never_starts(job, pod or {}, now) if _waits(job) else "")
    return Ended() if end == "Complete" else _failure(pod)


def _never_starts(job: Mapping[str, Any], pod: Manifest, now: datetime) -> str:
    """Return why a job that waits will not begin by itself, as far as its pod shows; "" while it may."""
    status = pod.get("status", {})
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waits = container.get("state", {}).get("waiting") or {}
        if waits.get("reason") in NEVER_STARTED:
            return _sentence("its container cannot be started", waits)
    if status.get("phase", "Pending") != "Pending":
        return ""
    placed = _placed(pod)
    since = _time(placed.get("lastTransitionTime") or _began(job, pod))
    if since is None or placed.get("reason") == GATED:
        return ""
    if placed.get("status") != "True":
        words = _sentence(f"kubernetes has not placed it within {TO_PLACE.seconds // 60} minutes", placed)
        return words if now - since >= TO_PLACE else ""
    words = f"its pod did not start within {TO_START.seconds // 60} minutes: `kubectl describe pod` says why"
    return words if now - since >= TO_START else ""


def _placed(pod: Manifest) -> Mapping[str, Any]:
    """Return the condition that tells whether a pod was placed, or why there is none."""
    if not pod:
        return {"reason": "no pod was made", "message": "look at its quotas and at `kubectl describe job`"}
    conditions = pod.get("status", {}).get("conditions") or ()
    unseen = {"reason": "no scheduler has seen its pod"}
    return next((one for one in conditions if one["type"] == "PodScheduled"), unseen)


def _began(job: Manifest, pod: Manifest) -> str | None:
    """Return since when a pod is waited for: a job that was suspended begins anew when it is resumed."""
    made: str | None = (pod or job)["metadata"].get("creationTimestamp")
    return made if pod else job.get("status", {}).get("startTime") or made


def _sentence(what: str, why: Mapping[str, Any]) -> str:
    return f"{what}: {why.get('reason', '')} {why.get('message', '')}".strip()


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text.replace("Z", "+00:00"))


def _failure(pod: Mapping[str, Any] | None) -> Ended:
    """Return how a pod has ended. A pod that is not there was lost with its node, or evicted."""
    if pod is None:
        return Ended("its pod is gone", preempted=True)
    status = pod.get("status", {})
    moved = [
        one for one in status.get("conditions") or () if one["type"] == "DisruptionTarget" and one["status"] == "True"
    ]
    reason = status.get("reason") or (moved[0].get("reason", "") if moved else "")
    if moved or reason in EVICTED:
        return Ended(f"its pod was ended: {reason} {status.get('message', '')}".strip(), preempted=True)
    for container in status.get("containerStatuses") or ():
        if end := container.get("state", {}).get("terminated"):
            return Ended(f"its container ended with exit status {end['exitCode']} ({end.get('reason', 'no reason')})")
    return Ended(f"its pod failed: {reason} {status.get('message', '')}".strip())


def _read(file: Path) -> str:
    """Read the token: it is replaced while the pod runs."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ClusterError(f"the token of this pod's account cannot be read: {error}") from None


_conforms: type[Cluster] = KubernetesJobs

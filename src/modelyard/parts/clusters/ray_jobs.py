"""Jobs in a Ray cluster, by the REST interface of its jobs: nothing of Ray is imported or installed here."""

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from modelyard.domain.job import Needs
from modelyard.errors import ClusterError
from modelyard.parts.clusters.cluster import Cluster
from modelyard.parts.clusters.cluster_http import ClusterHttp
from modelyard.protocols import Ended, ExecutorState, Running, Waiting

JOBS = "/api/jobs/"

KILLED = (-9, -15)
"""Exit statuses of a process that was ended from outside."""


GIBIBYTE = 2**30
TOTALS = {"entrypoint_num_gpus": "GPU", "entrypoint_memory": "memory"}
"""What Ray calls the resources of a node, by its words for what a job takes."""


def one_processor(needs: Needs) -> Mapping[str, Any]:
    """Return the options of a Ray job that takes one processor. A job that takes nothing runs on the head node."""
    return {"entrypoint_num_cpus": 1}


def _amounts(needs: Needs) -> Mapping[str, Any]:
    named = {"entrypoint_num_gpus": needs.accelerators, "entrypoint_memory": needs.memory * GIBIBYTE}
    return {word: amount for word, amount in named.items() if amount}


class RayJobs:
    """The Ray cluster with its dashboard at `address`, such as http://127.0.0.1:8265.

    `options` returns what a job with certain needs takes, in Ray's own words: members of the request that submits it,
    such as `entrypoint_num_cpus`, `entrypoint_resources`, `runtime_env`. The accelerators (Ray's GPUs) and the memory
    that a request has named are added.

    A client that reaches the dashboard can run any code in the cluster. Bind it to the loopback, or start Ray with
    RAY_AUTH_MODE=token, and give the `token`. Raises `InvalidInput`.
    """

    def __init__(
        self,
        address: str,
        *,
        options: Callable[[Needs], Mapping[str, Any]] = one_processor,
        token: str | None = None,
    ) -> None:
        self._http = ClusterHttp("ray", address, None if token is None else lambda: token)
        self._options = options

    @property
    def name(self) -> str:
        """The address of the dashboard."""
        return self._http.name

    def check(self) -> None:
        """Raise `ClusterError` if there is no Ray, or it refuses the token."""
        self._http.request("GET", JOBS)

    def start(self, name: str, command: Sequence[str], needs: Needs) -> str:
        """Submit a job with this name as its submission id. Raises `ClusterError`, also if no node is so large."""
        if named := _amounts(needs):
            self._require_node(named)
        body = {"entrypoint": shlex.join(command), "submission_id": name, **self._options(needs), **_amounts(needs)}
        try:
            self._http.request("POST", JOBS, body)
        except ClusterError as error:
            if f"{name} already exists" not in str(error):
                raise
        return name

    def _require_node(self, amounts: Mapping[str, Any]) -> None:
        """Refuse what is more than any node has in all, which Ray would leave pending for ever. A cluster that adds
        nodes by itself may get a larger one, and one that does not tell its nodes is trusted."""
        answer = self._http.request("GET", "/api/cluster_status", allowed=range(400, 600))
        nodes = _totals(answer.json()) if answer.status == 200 else []
        if nodes and not any(all(node.get(TOTALS[word], 0) >= n for word, n in amounts.items()) for node in nodes):
            most = {total: max(node.get(total, 0) for node in nodes) for total in TOTALS.values()}
            raise ClusterError(
                f"no node of {self.name} is so large: the most accelerators of a node are {most['GPU']:g}, the most "
                f"memory is {most['memory'] / GIBIBYTE:.1f} GiB"
            )

    def states(self, ids: Collection[str]) -> Mapping[str, ExecutorState]:
        """Return the states of jobs, from the list of all."""
        listed = {job["submission_id"]: job for job in self._http.request("GET", JOBS).json()}
        return {job: _state(listed[job]) for job in ids if job in listed}

    def stop(self, id: str) -> None:
        """Send SIGTERM, and SIGKILL soon after. Ray does not stop a job that waits for room: it ends by itself."""
        self._http.request("POST", f"{JOBS}{quote(id, safe='')}/stop", {}, allowed=(404,))

    def output(self, id: str) -> str:
        """Return the end of its log, which Ray keeps as a part of its message."""
        answer = self._http.request("GET", JOBS + quote(id, safe=""), allowed=(404,))
        message = answer.json()["message"] if answer.status == 200 else ""
        _, found, log = message.partition("last available logs")
        return log.partition("\n")[2] if found else message


def _totals(answer: Any) -> Sequence[Mapping[str, float]]:
    """Return what each node has in all; nothing if Ray adds nodes by itself: only then are they of types of its own."""
    try:
        status = answer["data"]["clusterStatus"]
        types: Mapping[str, str] = status["autoscalerReport"]["nodeTypeMapping"]
        usage = status["loadMetricsReport"]["usageByNode"]
        if any(name != f"node_{node}" for node, name in types.items()):
            return []
        return [{name: float(total) for name, (_, total) in node.items()} for node in usage.values()]
    except (AttributeError, KeyError, TypeError, ValueError):
        return []


def _state(job: Mapping[str, Any]) -> ExecutorState:
    """Return the state of a job. A job without an exit status was lost with its node."""
    status, exit_status = job["status"], job["driver_exit_code"]
    if status == "PENDING":
        return Waiting()
    if status == "RUNNING":
        return Running()
    if status == "SUCCEEDED":
        return Ended()
    if status == "FAILED" and exit_status is not None:
        return Ended(f"its process ended with exit status {exit_status}", exit_status in KILLED)
    return Ended("it was stopped" if status == "STOPPED" else "its Ray node or its supervisor died", preempted=True)


_conforms: type[Cluster] = RayJobs

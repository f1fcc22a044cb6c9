"""Jobs and servers in a real Ray cluster of two nodes, on the loopback, in a folder and on ports of its own."""

import os
import select
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest

from free_ports import free_ports
from modelyard import Example, Message, Pricing, Role, Settings, UpstreamBackend, offer, open_platform
from modelyard.domain.job import Claim, Job, JobEvent, Needs
from modelyard.errors import ClusterError, ModelyardError
from modelyard.parts.clusters.cluster import ClusterExecutor
from modelyard.parts.clusters.ray_jobs import RayJobs
from modelyard.parts.contracts.executor import NEEDS, outcome, state
from modelyard.parts.contracts.executor_trials import PATIENCE, until
from modelyard.protocols import Ended, Waiting
from modelyard.testing import ExecutorContract, Trials, TrialsElsewhere

MEMORY = 80 * 2**20
"""Bytes of each node's object store: the least that Ray takes."""
EXECUTORS = str(Path(__file__).parents[2] / "executors")
EXAMPLES = str(Path(__file__).parents[3] / "examples")
STEPS = 6
STORY = [("training_started", 0), *(("gradient_step", number) for number in range(1, STEPS + 1)), ("training_ended", 0)]
ROWS = [Example((Message(Role.USER, f"ask {n}"), Message(Role.ASSISTANT, f"answer {n}"))) for n in range(2 * STEPS)]


@attrs.frozen
class Nodes:
    """A cluster, the address of its dashboard, and the node that has the resource `spare`."""

    cluster: Any
    address: str
    spare: Any


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ray") as folder:
        (Path(folder) / "ray").mkdir()
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # without it, nodes use the machine's own address
        patch.setenv("RAY_worker_niceness", "0")  # by default its workers hardly run beside anything else
        patch.setenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "600")  # else it kills a proxy that takes 5 s to start
        patch.setenv("PYTHONPATH", os.pathsep.join([EXECUTORS, EXAMPLES]), prepend=os.pathsep)
        patch.syspath_prepend(EXAMPLES)
        from ray.cluster_utils import Cluster

        node = {"node_ip_address": "127.0.0.1", "object_store_memory": MEMORY, "num_cpus": 4}
        port, server_port, agent_port = free_ports(3)
        dashboard = {"include_dashboard": True, "dashboard_host": "127.0.0.1", "dashboard_port": port}
        ports = {"gcs_server_port": server_port, "dashboard_agent_listen_port": agent_port}
        cluster = Cluster(initialize_head=True, connect=False, head_node_args={**node, **dashboard, **ports})
        try:
            spare = cluster.add_node(**node, resources={"spare": 1})
            address = f"http://127.0.0.1:{dashboard['dashboard_port']}"
            until(lambda: _answers(address))
            yield Nodes(cluster, address, spare)
        finally:
            cluster.shutdown()


def _answers(address: str) -> bool:
    try:
        RayJobs(address).check()
    except ClusterError:
        return False
    return True


def half_a_processor(needs: Needs) -> Mapping[str, Any]:
    return {"entrypoint_num_cpus": 0.5}


class TestRayJobs(ExecutorContract):
    detached = True
    leaves = True

    @pytest.fixture
    def trials(self, tmp_path: Path) -> Trials:
        return TrialsElsewhere(tmp_path)

    @pytest.fixture
    def executor(self, tmp_path: Path, nodes: Nodes) -> Iterator[ClusterExecutor]:
        cluster = RayJobs(nodes.address, options=half_a_processor)
        factory = "modelyard.parts.contracts.executor_trials:trial_elsewhere"
        made = ClusterExecutor(cluster, factory, [str(tmp_path)], python=sys.executable, interval=0.2)
        yield made
        (tmp_path / "released").touch()
        made.close()


def test_a_job_without_room_waits_and_one_that_fails_tells_its_last_words(tmp_path: Path, nodes: Nodes) -> None:
    wanted = iter([{"entrypoint_num_cpus": 1000}, {}])
    cluster = RayJobs(nodes.address, options=lambda _: next(wanted))
    executor = ClusterExecutor(cluster, "no_such_package:platform", python=sys.executable, interval=0.2)
    waits = executor.submit(Claim("waits", 1, "worker"), lambda _: None, NEEDS)
    fails = executor.submit(Claim("fails", 1, "worker"), lambda _: None, NEEDS)
    ended = outcome(executor, fails)
    assert ended.fault.startswith("its process ended with exit status 1; its last words: ")
    assert "no_such_package" in ended.fault
    assert state(executor, waits) == Waiting()
    executor.close()
    assert isinstance(state(executor, waits), Ended)


def test_a_submission_that_is_sent_twice_is_one_job(nodes: Nodes) -> None:
    cluster = RayJobs(nodes.address)
    command = ["sleep", "1000"]
    assert [cluster.start("twice", command, NEEDS) for _ in range(2)] == ["twice", "twice"]
    cluster.stop("twice")


def test_a_job_whose_node_is_removed_continues_on_another_and_ends_with_the_same_weights(
    tmp_path: Path, nodes: Nodes
) -> None:
    with open_platform() as platform:
        model = platform.models.create("m", project="p", base_model="tabular-mini")
        undisturbed = platform.training.sft(model.id, ROWS, batch_size=2).result().digest
    os.mkfifo(tmp_path / "reached")
    reached = os.open(tmp_path / "reached", os.O_RDONLY | os.O_NONBLOCK)
    (tmp_path / "gate").write_text("step 4")
    wanted = iter([{"entrypoint_resources": {"spare": 1}}, {"entrypoint_num_cpus": 1}])
    cluster = RayJobs(nodes.address, options=lambda _: next(wanted))
    executor = ClusterExecutor(cluster, "gated_yard:gated", [str(tmp_path)], python=sys.executable, interval=0.2)
    with open_platform(tmp_path / "yard.db", settings=Settings(poll=0.05)) as platform:
        model = platform.models.create("m", project="p", base_model="tabular-mini")
        job = platform.training.sft(model.id, ROWS, batch_size=2)
        with platform.worker(executor=executor):
            assert select.select([reached], [], [], PATIENCE)[0], "no process comes to the gate"
            process = int(os.read(reached, 100))
            nodes.cluster.remove_node(nodes.spare, allow_graceful=False)
            os.kill(process, signal.SIGKILL)  # a machine that is lost takes it along
            (tmp_path / "go").touch()
            assert job.result(2 * PATIENCE).digest == undisturbed
        store = platform._runtime.store
        assert store.read(lambda snapshot: snapshot.get(Job, job.id)).attempts == 2
        events = store.read(lambda snapshot: snapshot.page(JobEvent, "by_job", job.id, limit=1000))
        assert [(event.type, event.step) for event in events] == STORY
    os.close(reached)


PRICE = Decimal("0.01")


@pytest.fixture
def served(tmp_path: Path, nodes: Nodes) -> Iterator[str]:
    """The address of `examples/serve_on_ray.py` in two replicas, over one store."""
    import ray
    from ray import serve

    (port,) = free_ports(1)
    ray.init(nodes.cluster.address, log_to_driver=False, configure_logging=False)
    try:
        from serve_on_ray import app

        with suppress(TimeoutError):  # on a busy machine its proxy is ready later than it waits for
            serve.start(http_options={"host": "127.0.0.1", "port": port, "location": "HeadOnly"})
        serve.run(app({"store": str(tmp_path / "yard.db"), "artifacts": str(tmp_path / "artifacts")}))
        until(lambda: set(serve.status().proxies.values()) == {"HEALTHY"})
        (application,) = serve.status().applications.values()
        assert application.deployments["yard"].replica_states == {"RUNNING": 2}
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        serve.shutdown()
        ray.shutdown()


def test_replicas_of_ray_serve_are_one_platform_and_a_server_for_another(tmp_path: Path, served: str) -> None:
    with open_platform(tmp_path / "yard.db", artifacts=tmp_path / "artifacts") as shared:
        echo = shared.catalogue.get("echo")
        shared.catalogue.register(attrs.evolve(echo, id="priced", pricing=Pricing(request=PRICE)), answers_as="echo")
        secret = shared.keys.create("team").secret
        shared.usage.set_budget(10 * PRICE, entity="team")
        backend = UpstreamBackend(served, secret, models=[offer("priced", context_length=1000, pricing=Pricing())])
        with backend, open_platform(backend=backend) as front:

            def ask(number: int) -> str:
                try:
                    with front.chat.stream(model="priced", messages=f"question {number}") as stream:
                        return "".join(delta.text for delta in stream)
                except ModelyardError as error:
                    return str(error)

            with ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(ask, range(20)))
            answers += [ask(number) for number in range(20, 40)]  # what was reserved meanwhile can be spent now
            answered = [answer for number, answer in enumerate(answers) if answer == f"question {number}"]
        (total,) = shared.usage.total(entity="team")
        assert (len(answered), total.requests, total.cost) == (10, 10, 10 * PRICE), answers

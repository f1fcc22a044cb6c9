"""Environments of the public package `openenv`, unmodified and behind their own server, in which a loop trains."""

import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("openenv.core", reason="it has a lane of its own: tests/clients/lanes.py openenv")

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server import Action, Environment, MCPEnvironment, Observation, State, create_fastapi_app
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation

from modelyard import Platform, open_platform
from modelyard.errors import InvalidInput, JobFailed
from modelyard.parts.episodes.environments.asking import in_time
from modelyard.parts.loops.loopback import LoopbackServer
from modelyard.parts.scripted.answers import Called, call
from modelyard.parts.scripted.backend import ScriptedBackend

SMALL: dict[str, Any] = {"rounds": 1, "samples": 2, "tasks_per_round": 1, "concurrency": 2, "learning_rate": 1e-5}

Urls = dict[str, str]
pytestmark = pytest.mark.timeout(600)


class Reply(Action):
    text: str


class Asked(Observation):
    question: str = ""
    score: float = 0.0


class Desk(Environment[Reply, Asked, State]):
    """Asks twice, and rewards short answers."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Asked:
        self._state = State(episode_id=episode_id)
        return Asked(question=f"Where is order {seed}?")

    def step(self, action: Reply, timeout_s: float | None = None, **kwargs: Any) -> Asked:
        self._state.step_count += 1
        done = self._state.step_count == 2
        return Asked(question="And how long does it take?", done=done, reward=-len(action.text) / 100)

    @property
    def state(self) -> State:
        return self._state


class Silent(Desk):
    def step(self, action: Reply, timeout_s: float | None = None, **kwargs: Any) -> Asked:
        return Asked(done=True)


class Hard(Desk):
    """Fails in the way that its reset names."""

    mode = ""

    def reset(self, seed: int | None = None, episode_id: str | None = None, mode: str = "", **kwargs: Any) -> Asked:
        self.mode = mode
        if mode == "reset":
            raise ValueError("no such\nlevel")
        return Asked(question="")

    def step(self, action: Reply, timeout_s: float | None = None, **kwargs: Any) -> Asked:
        if self.mode == "step":
            raise RuntimeError("the step\nis broken")
        return Asked(done=True, reward=math.nan if self.mode == "nan" else 1.0)


class TwoTexts(Action):
    text: str
    reason: str


class Tools(MCPEnvironment):
    """Has a tool that looks an order up, and rewards who uses it."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("orders")

        @server.tool
        def look_up(order: int) -> str:
            if order == 13:
                raise ValueError("unlucky ü")
            return f"order {order} has left"

        super().__init__(server)
        self._state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Asked:
        return Asked(question=f"Where is order {seed}?")

    async def step_async(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        found = await super().step_async(action, timeout_s, **kwargs)
        if isinstance(found, CallToolObservation):
            found.reward = 1.0
        return found

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Asked()

    @property
    def state(self) -> State:
        return self._state


SERVED: dict[str, Any] = {
    "desk": (Desk, Reply, Asked),
    "silent": (Silent, Reply, Asked),
    "two": (Desk, TwoTexts, Asked),
    "hard": (Hard, Reply, Asked),
    "tools": (Tools, CallToolAction, CallToolObservation),
}


@pytest.fixture(scope="module")
def environments() -> Iterator[dict[str, str]]:
    """The address of each environment."""
    servers, urls = [], {}
    for name, what in SERVED.items():
        config = uvicorn.Config(create_fastapi_app(*what, max_concurrent_envs=8), port=0, log_level="warning")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        servers.append((server, thread))
        sock = config.bind_socket()
        urls[name] = f"http://127.0.0.1:{sock.getsockname()[1]}"
        thread._target, thread._args = server.run, ([sock],)  # type: ignore[attr-defined]
        thread.start()
    yield urls
    for server, thread in servers:
        server.should_exit = True
        thread.join()


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        opened.models.create("m", project="p", base_model="tabular-mini")
        yield opened


def test_a_model_learns_what_the_steps_of_the_environment_reward(platform: Platform, environments: Urls) -> None:
    resets = [{"seed": seed} for seed in range(3)]
    made = platform.episodes.openenv(environments["desk"], resets=resets, observation="question", max_tokens=40)
    assert made["tasks"] == resets
    job = platform.training.loop(
        "p/m",
        made["tasks"][:2],
        agent=made["agent"],
        held_out=[made["tasks"][2]] * 6,
        rounds=5,
        samples=6,
        tasks_per_round=2,
        concurrency=4,
        learning_rate=1e-4,
        seed=1,
    )
    job.wait()
    held = [row.values["held_out"] for row in job.metrics()]
    assert held[-1] > held[0], held
    for group in platform.episodes.list():
        for episode in platform.episodes.get(group.id):
            first, second = episode.turns()
            assert first.messages[0].text.startswith("Where is order")
            assert second.parent is first
            assert second.messages[-1].text == "And how long does it take?"
            said = sum(len(turn.choice.message.text) for turn in (first, second))
            assert episode.refresh().reward == pytest.approx(-said / 100)


@pytest.mark.parametrize(
    ("answer", "reward", "seen"),
    [
        (call("look_up", order=4), 1.0, "order 4 has left"),
        (call("look_up", order=13), 1.0, "unlucky ü"),
        (call("look_up", order="x"), 1.0, "validation error"),
        (call("nothing"), 1.0, "nothing"),
        (Called("look_up", "4]"), None, "The arguments are no JSON object."),
        (Called("look_up", "[4]"), None, "The arguments are no JSON object."),
    ],
    ids=["as it should", "one that fails", "a wrong argument", "no such tool", "no JSON", "no object"],
)
def test_a_model_calls_the_tools_of_an_environment(
    environments: Urls, answer: Any, reward: float | None, seen: str
) -> None:
    backend = ScriptedBackend([answer, "It has left."], unchecked=True)
    with open_platform(backend=backend) as platform:
        made = platform.episodes.openenv(
            environments["tools"], resets=[{"seed": 4}], observation="question", model="scripted"
        )
        server, key = LoopbackServer(platform._runtime), platform.keys.create("tools")
        (task,) = made["tasks"]
        given = {"base_url": f"{server.url}/inference/v1", "api_key": key.secret, "task": task}
        if reward is None:
            with pytest.raises(RuntimeError, match="the environment gave no reward in 0 steps"):
                made["agent"](**given)
        else:
            assert made["agent"](**given) == reward
        server.close()
    first, second = backend.requests
    assert first.messages[0].text == "Where is order 4?"
    assert [tool.name for tool in first.tools] == ["look_up"]
    assert seen in second.messages[-1].text


def test_an_environment_that_rewards_nothing_fails_the_attempt(platform: Platform, environments: Urls) -> None:
    made = platform.episodes.openenv(environments["silent"], resets=[{}], max_tokens=5)
    with pytest.raises(JobFailed, match="the environment gave no reward in 1 steps"):
        platform.training.loop("p/m", **made, **SMALL).wait()


@pytest.mark.parametrize(
    ("mode", "options", "reason"),
    [
        ("reset", {}, "Server error: no such level"),
        ("step", {}, "Server error: the step is broken"),
        ("nan", {}, "the environment gave no reward in 1 steps"),
        ("", {"temperature": "hot"}, "a call of the model was refused: 400: temperature: must be a number"),
    ],
)
def test_a_session_that_fails_is_a_failed_attempt_with_the_reason_in_a_line(
    platform: Platform, environments: Urls, mode: str, options: Any, reason: str
) -> None:
    made = platform.episodes.openenv(environments["hard"], resets=[{"mode": mode}], **{"max_tokens": 5, **options})
    with pytest.raises(JobFailed, match=reason):
        platform.training.loop("p/m", **made, **SMALL).wait()
    (group,) = platform.episodes.list()
    for episode in platform.episodes.get(group.id):
        assert "\n" not in episode.refresh().failure
        assert len(episode.turns()) == (mode in ("step", "nan"))


def test_a_client_that_waits_in_vain_says_for_whom() -> None:
    with pytest.raises(RuntimeError, match=r"^the environment did not answer in time$"), in_time("the environment"):
        raise TimeoutError


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("desk", {"resets": [1]}, "must be an object, such as"),
        ("desk", {"resets": {"seed": 1}}, "must list one or more"),
        ("desk", {"resets": 3}, "must list one or more"),
        ("desk", {"stream": True}, "stream: is no option here"),
        ("desk", {"messages": []}, "messages: is no option here"),
        ("desk", {"stop": {1}}, "cannot be kept as JSON"),
        ("two", {}, "must name the only field that an action needs, a text; this one has text, reason"),
        ("two", {"action": "text"}, "and needs text, reason"),
        ("desk", {"action": "colour"}, "this one has text and needs text"),
        ("desk", {"observation": "colour"}, "is none of the observation's fields"),
        ("desk", {"resets": []}, "each is what the environment is reset with"),
        ("desk", {"turns": 0}, "must be a whole number from 1"),
        ("none", {}, "is no server of an OpenEnv environment that answers"),
    ],
)
def test_what_does_not_fit_is_refused(
    platform: Platform, environments: Urls, name: str, options: Any, reason: str
) -> None:
    url = environments.get(name, "http://127.0.0.1:9")
    with pytest.raises(InvalidInput, match=reason):
        platform.episodes.openenv(url, **{"resets": [{}], **options})


SCHEMAS = ["[]", "<html>", '{"action": 3, "observation": {}}', '{"action": null, "observation": null}']


@pytest.mark.parametrize("url", [None, 3, "localhost", "file:///etc", "http://a b", "http://127.0.0.1:9/ü", *SCHEMAS])
def test_what_is_no_address_of_an_environment_is_refused(platform: Platform, url: Any) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        if url in SCHEMAS:
            Answers.schema = url.encode()
            url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        with pytest.raises(InvalidInput, match=r"^url: (must be the address|is no server|has a schema)"):
            platform.episodes.openenv(url, resets=[{}])
        server.shutdown()
        thread.join()


class Answers(BaseHTTPRequestHandler):
    schema = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.schema)

    def log_message(self, *_: Any) -> None:
        pass

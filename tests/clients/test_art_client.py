"""The public RL client, unmodified, against a served platform: a model's whole life, in a lane of its own.

Those of `BOTH` kinds of base models are for a tabular one, served in this process, and for a network, served by
`modelyard serve` in an environment with torch.
"""

import asyncio
import json
import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from openai import NotFoundError, UnprocessableEntityError

from modelyard import Platform, open_platform
from modelyard.parts.contracts.executor_trials import until
from sampled import in_campaign

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or importing the client asks the network for prices
art = pytest.importorskip("art", reason="the RL client has a lane of its own: tests/clients/lanes.py art")
# What the client says about its own messages with tool calls, when it sends them.
pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")

PROMPTS = ("Tell me about the sea.", "Where is my order?", "How do I pay?", "What is new?")
LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "look an order up",
        "parameters": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
    },
}
DEADLINE = 300
"""Seconds: long, since only what is broken is waited for so long."""

HERE = Path(__file__).parent
WITH_TORCH = os.environ.get("MODELYARD_TORCH_PYTHON", "")


@pytest.fixture(autouse=True)
def _no_metrics_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """With this variable set, the client would log to the metrics service too."""
    monkeypatch.delenv("WANDB_API_KEY", raising=False)


def trainable(**members: Any) -> Any:
    """A model of the client. Newer releases ask for the name of its run, too."""
    more = {"run_name": members["name"]} if "run_name" in art.TrainableModel.model_fields else {}
    return art.TrainableModel(**members, **more)


# ---- where models are served -----------------------------------------------------------------------------------------


@attrs.frozen
class Kind:
    """A kind of base model: rates at which it learns, passes over a few rows after which it knows them, a reward that
    it gets now and then, and how exactly its trainer finds the sampler's log-probabilities again.
    """

    base_model: str
    python: str
    rl_rate: float
    sft_rate: float
    passes: int
    reward: Callable[[str], float]
    exactness: float


def says_you(text: str) -> float:
    return float("you" in text.lower().split())


def share_of_small_letters(text: str) -> float:
    return sum("a" <= letter <= "z" for letter in text) / max(len(text), 1)


KINDS = {
    "tabular": Kind("tabular-mini", sys.executable, 1e-4, 5e-4, 10, says_you, 1e-6),
    "network": Kind("local-mini", WITH_TORCH, 5e-3, 5e-3, 60, share_of_small_letters, 1e-4),
}
BOTH = pytest.mark.parametrize("kind", KINDS, indirect=True)
MOSTLY_TABULAR = pytest.mark.parametrize("kind", ["tabular", in_campaign("network")], indirect=True)
"""Where another test of this module has the client learn from a network, and takes less."""


@attrs.frozen
class Served:
    """A platform that another process serves, where it answers, and a key for it."""

    platform: Platform
    root: str
    key: str


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> Kind:
    """The base model of a test: a tabular one, unless it is for both."""
    chosen = KINDS[getattr(request, "param", "tabular")]
    if not chosen.python:
        pytest.skip("networks need an environment with torch: tests/clients/lanes.py art")
    return chosen


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Kind], Path]:
    """Makes folders with an unused store, `yard.db`, that offers a base model."""

    def folder(kind: Kind) -> Path:
        made = tmp_path_factory.mktemp(kind.base_model)
        if kind is KINDS["network"]:
            if not (kept / "yard.db").exists():
                subprocess.run([kind.python, HERE / "local_store.py", kept / "yard.db"], check=True)
            shutil.copytree(kept, made, dirs_exist_ok=True)
        return made

    kept = tmp_path_factory.mktemp("kept")
    return folder


@pytest.fixture(scope="module")
def command_served(stores: Callable[[Kind], Path]) -> Iterator[Served]:
    """Serve a network by `modelyard serve`."""
    kind = KINDS["network"]
    folder = stores(kind)
    words = ["serve", "--store", folder / "yard.db", "--port", "0", "--worker", "--uploads"]
    with open_platform(folder / "yard.db") as platform, open(folder / "reply", "wb") as reply:
        key = platform.keys.create("acme").secret
        with subprocess.Popen([kind.python, "-m", "modelyard.cli", *words], stderr=reply) as process:
            try:
                until(lambda: process.poll() is not None or address(folder / "reply"))
                yield Served(platform, address(folder / "reply"), key)
            finally:
                process.terminate()


def address(reply: Path) -> str:
    """Where a server says that it answers; nothing yet while it does not."""
    found = re.search(r"running on (http://[\d.:]+)", reply.read_text())
    return found[1] if found else ""


@pytest.fixture
def place(kind: Kind, served: Any, request: pytest.FixtureRequest) -> Any:
    """Where the base model of a test is served."""
    return request.getfixturevalue("command_served") if kind is KINDS["network"] else served


@asynccontextmanager
async def registered(
    place: Any, base_model: str, folder: Path, *names: str, kind: Any = art.ServerlessBackend
) -> AsyncIterator[Any]:
    """The client's backend, and its models of these names."""
    backend = kind(api_key=place.key, base_url=f"{place.root}/v1")
    models = [trainable(name=name, project="proj", base_model=base_model, base_path=str(folder)) for name in names]
    async with AsyncExitStack() as opened:
        opened.push_async_callback(backend.close)
        for model in models:
            await model.register(backend)
            opened.push_async_callback(model.openai_client().close)
        yield backend, *models


@pytest.fixture
def live(place: Any, kind: Kind, tmp_path: Path) -> Callable[..., Any]:
    """Live with registered models: `live(names, life)` runs `life(backend, *models)` to its end."""

    def run(names: str, life: Callable[..., Awaitable[Any]]) -> Any:
        async def main() -> Any:
            async with (
                asyncio.timeout(DEADLINE),
                registered(place, kind.base_model, tmp_path, *names.split()) as them,
            ):
                return await life(*them)

        return asyncio.run(main())

    return run


# ---- rollouts ------------------------------------------------------------------------------------------------------


def requested(prompt: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": prompt}]


async def complete(model: Any, prompt: str, step: int | None = None, **options: Any) -> Any:
    given = {"model": model.get_inference_name(step), "messages": requested(prompt), "max_tokens": 12, **options}
    return await model.openai_client().chat.completions.create(**given)


async def plain(model: Any, prompt: str, seed: int, **options: Any) -> Any:
    answer = await complete(model, prompt, seed=seed, **options)
    return art.Trajectory(messages_and_choices=[*requested(prompt), answer.choices[0]])


async def with_tools(model: Any, prompt: str, seed: int) -> Any:
    answer = await complete(model, prompt, seed=seed, tools=[LOOKUP])
    return art.Trajectory(messages_and_choices=[*requested(prompt), answer.choices[0]], tools=[LOOKUP])


async def streamed(model: Any, prompt: str, seed: int) -> Any:
    from art.openai import consume_chat_completion_stream

    answer = await consume_chat_completion_stream(await complete(model, prompt, seed=seed, stream=True))
    return art.Trajectory(messages_and_choices=[*requested(prompt), answer.choices[0]])


async def captured(model: Any, prompt: str, seed: int) -> Any:
    return await art.capture_auto_trajectory(complete(model, prompt, seed=seed))


async def captured_stream(model: Any, prompt: str, seed: int) -> Any:
    async def read() -> None:
        async for _ in await complete(model, prompt, seed=seed, stream=True):
            pass

    return await art.capture_auto_trajectory(read())


async def through_litellm(model: Any, prompt: str, seed: int) -> Any:
    from art.utils.litellm import convert_litellm_choice_to_openai
    from litellm import acompletion

    answer = await acompletion(
        **model.litellm_completion_params(), messages=requested(prompt), max_tokens=12, seed=seed
    )
    return art.Trajectory(
        messages_and_choices=[*requested(prompt), convert_litellm_choice_to_openai(answer.choices[0])]
    )


def reply(trajectory: Any) -> str:
    return str(trajectory.messages()[-1]["content"])


async def rolled_out(model: Any, reward: Callable[[str], float], round_: int = 0, samples: int = 8) -> list[Any]:
    """A group for each prompt, gathered by the client, with a reward for what was said."""

    async def rewarded(prompt: str, seed: int) -> Any:
        trajectory = await plain(model, prompt, seed)
        trajectory.reward = reward(reply(trajectory))
        return trajectory

    return await art.gather_trajectory_groups(
        art.TrajectoryGroup(rewarded(prompt, 1000 * round_ + number) for number in range(samples)) for prompt in PROMPTS
    )


def whim(text: str) -> float:
    """Hardly the same for two answers, whatever model gave them."""
    return sum(map(ord, text)) % 7 / 10


def mean_reward(groups: list[Any]) -> float:
    rewards = [trajectory.reward for group in groups for trajectory in group]
    return sum(rewards) / len(rewards)


WAYS = (plain, with_tools, streamed, captured, captured_stream, through_litellm)


@BOTH
def test_what_is_rolled_out_in_any_way_is_trained_token_for_token_as_it_was_sampled(live: Any, kind: Kind) -> None:
    """The first round makes the prompt matter: then the second one's ratios are 1 only in the very same context."""

    async def loop(backend: Any, model: Any, way: Any) -> tuple[int, Any]:
        for round_ in range(2):
            trajectories = [await way(model, PROMPTS[0], 10 * round_ + number) for number in range(4)]
            for number, trajectory in enumerate(trajectories):
                trajectory.reward = float(number % 2)
            result = await backend.train(model, [art.TrajectoryGroup(trajectories)], learning_rate=1e-4)
        return sum(len(one.messages_and_choices[-1].logprobs.content) for one in trajectories), result.metrics

    async def life(backend: Any, *models: Any) -> Any:
        return await asyncio.gather(*(loop(backend, model, way) for model, way in zip(models, WAYS, strict=True)))

    results = live(" ".join(f"by-{way.__name__}" for way in WAYS), life)
    for way, (sampled, metrics) in zip(WAYS, results, strict=True):
        assert metrics["data/step_trainer_tokens"] == sampled > 0, way
        assert metrics["importance_ratio"] == pytest.approx(1, kind.exactness), way
        assert metrics["loss/kl_div"] == pytest.approx(0, abs=kind.exactness / 1000), way


# ---- RL ------------------------------------------------------------------------------------------------------------


MOST_ROUNDS = 12
"""Both kinds mostly take one to four."""


@MOSTLY_TABULAR
def test_the_reward_rises_step_by_step_and_falls_again_when_it_is_negated(live: Any, kind: Kind) -> None:
    async def life(backend: Any, model: Any) -> list[float]:
        shares: list[float] = []

        async def trained(sign: int, enough: Callable[[float], bool]) -> None:
            for _ in range(MOST_ROUNDS):
                groups = await rolled_out(model, lambda text: sign * kind.reward(text), len(shares), samples=16)
                shares.append(sign * mean_reward(groups))
                if enough(shares[-1]):
                    return
                result = await backend.train(model, groups, learning_rate=kind.rl_rate)
                steps.append(result.step)
                assert await model.get_step() == result.step
                assert result.artifact_name == f"acme/proj/{model.name}:step{result.step}"
            pytest.fail(f"after so many rounds the reward was {shares}")

        steps: list[int] = []
        await trained(1, lambda share: share > shares[0] + 0.4)
        best = shares[-1]
        await trained(-1, lambda share: share < best / 2)
        assert steps == list(range(1, len(steps) + 1))
        return shares

    assert 0 < live("eager", life)[0] < 0.4


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"learning_rate": 1e-5},
    {"ppo": True},
    {"epsilon": 0.01},
    {"epsilon_high": 0.01},
    {"ppo": True, "epsilon": 0.01, "epsilon_high": 0.5},
    {"importance_sampling_level": "sequence"},
    {"importance_sampling_level": "average"},
    {"importance_sampling_level": "geometric_average"},
    {"max_negative_advantage_importance_sampling_weight": 0.9},
    {"mask_prob_ratio": True, "epsilon_high": 0.01},
    {"kimi_k2_tau": 0.5},
    {"advantage_balance": 0.5},
    {"advantage_balance": -0.5},
    {"scale_rewards": False},
    {"precalculate_logprobs": True},
)


def test_each_option_arrives_and_trains_something_else(live: Any, served: Any) -> None:
    """The second job of each model learns from the first one's rollouts, where the ratios are no longer 1."""

    async def life(backend: Any, first: Any, *others: Any) -> list[str]:
        groups = await rolled_out(first, whim, samples=4)

        async def train(model: Any, options: dict[str, Any]) -> str:
            await backend.train(model, groups)
            result = await backend.train(model, groups, **options)
            assert result.step == 2
            newest = served.platform.training.list(entity="acme", model=model.id, order="desc").page(limit=1).items[0]
            assert options.items() <= newest.config.items()
            return str(served.platform.models.checkpoint(model.id, 2).digest)

        return await asyncio.gather(*map(train, (first, *others), OPTIONS))

    digests = live(" ".join(f"option-{number}" for number in range(len(OPTIONS))), life)
    repeated = [options for options, digest in zip(OPTIONS, digests, strict=True) if digests.count(digest) > 1]
    assert not repeated


@BOTH
def test_a_group_may_hold_tool_calls_more_histories_versions_notes_and_failed_rollouts(live: Any, place: Any) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "lookup", "arguments": '{"id": "7"}'}}
    shown = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "on its way"},
    ]

    async def rollout(model: Any, number: int) -> Any:
        if number == 2:
            raise ValueError("the environment broke")
        first, second = await plain(model, PROMPTS[1], number), await with_tools(model, PROMPTS[2], number)
        first.messages_and_choices[1:1] = shown
        first.messages_and_choices.insert(0, {"role": "system", "content": "You answer briefly."})
        first.additional_histories = [
            art.trajectories.History(messages_and_choices=second.messages_and_choices, tools=[LOOKUP])
        ]
        first.reward, first.metrics["ok"], first.metadata["scenario_id"] = float(number), number > 0, "s1"
        first.initial_policy_version = first.final_policy_version = 0
        first.log("done")
        return first.finish()

    async def life(backend: Any, model: Any) -> Any:
        groups = await art.gather_trajectory_groups(
            [art.TrajectoryGroup((rollout(model, n) for n in range(3)), metadata={"scenario_id": "s1"})],
            max_exceptions=1,
        )
        await backend._client.models.log(model_id=model.id, trajectory_groups=groups, split="val")
        await model.log(groups, split="val")
        return model.id, groups, await backend.train(model, groups)

    model_id, groups, result = live("rich", life)
    assert len(groups[0].exceptions) == 1
    assert result.metrics["data/step_trainer_tokens"] == sum(
        len(history.messages_and_choices[-1].logprobs.content)
        for trajectory in groups[0]
        for history in (trajectory, *trajectory.additional_histories)
    )
    (logged,) = place.platform.models.trajectory_logs(model_id).page().items
    assert (logged.split, logged.trajectories, logged.reward, logged.metrics["ok"]) == ("val", 2, 0.5, 0.5)
    ((kept,),) = [[group.exceptions[0].message for group in place.platform.models.logged_trajectories(logged.id)]]
    assert kept == "the environment broke"


def test_equal_rewards_train_nothing_and_the_step_still_advances(live: Any, served: Any) -> None:
    async def life(backend: Any, model: Any) -> Any:
        groups = await rolled_out(model, lambda _: 1.0, samples=2)
        return model.id, await backend.train(model, groups)

    model_id, result = live("even", life)
    models = served.platform.models
    assert result.step == 1
    assert "loss/train" not in result.metrics
    assert [checkpoint.step for checkpoint in models.checkpoints(model_id)] == [0, 1]


def test_a_job_that_cannot_be_done_says_why_to_the_client(live: Any, served: Any) -> None:
    async def life(backend: Any, model: Any) -> None:
        groups = await rolled_out(model, whim, samples=2)
        for trajectory in groups[0]:
            trajectory.messages_and_choices[-1].logprobs = None
        with pytest.raises(RuntimeError, match="logprobs"):
            await backend.train(model, groups[:1])
        with pytest.raises(UnprocessableEntityError, match=r"advantage_balance.*between -1 and 1"):
            await backend.train(model, groups, advantage_balance=2.0)
        groups[1].trajectories[1].messages_and_choices[0]["role"] = "nobody"
        with pytest.raises(UnprocessableEntityError, match="'trajectory_groups', '1', 'trajectories', '1'"):
            await backend.train(model, groups)
        assert await model.get_step() == 0
        other = trainable(name=model.name, project="proj", base_model="nothing-like-it")
        with pytest.raises(UnprocessableEntityError, match="tabular-mini"):
            await other.register(backend)

    live("hopeless", life)


def test_a_cancelled_job_reaches_the_client_as_a_failure(live: Any, served: Any, monkeypatch: Any) -> None:
    async def life(backend: Any, model: Any) -> None:
        groups = await rolled_out(model, whim, samples=2)
        jobs = backend._client.training_jobs
        create = jobs.create

        async def create_and_cancel(**body: Any) -> Any:
            job = await create(**body)
            served.platform.training.cancel(job.id)
            return job

        monkeypatch.setattr(jobs, "create", create_and_cancel)
        with pytest.raises(RuntimeError, match="Training job failed: cancelled by"):
            await backend.train(model, groups * 100)
        assert await model.get_step() == 0

    live("unwanted", life)


# ---- checkpoints, and the end --------------------------------------------------------------------------------------


@BOTH
def test_a_model_lives_from_its_registration_to_its_deletion(live: Any, kind: Kind) -> None:
    async def life(backend: Any, model: Any) -> None:
        again = trainable(name=model.name, project="proj", base_model=kind.base_model)
        await again.register(backend)
        assert (again.id, again.entity, await again.get_step()) == (model.id, "acme", 0)

        for step in range(4):
            groups = await rolled_out(model, whim, round_=step, samples=2)
            await model.log(groups, split="val", metrics={"reward": float(step == 1)})
            await backend.train(model, groups, learning_rate=kind.rl_rate)
        texts = [await reported(model, step) for step in range(5)]
        assert len(set(texts)) > 1
        assert await reported(model) == texts[4]

        await model.delete_checkpoints()
        kept = [checkpoint.step async for checkpoint in backend._client.models.checkpoints.list(model_id=model.id)]
        assert kept == [1, 4]
        assert await reported(model, 1) == texts[1]
        with pytest.raises(NotFoundError, match="step2"):
            await reported(model, 2)

        await backend.delete(model)
        with pytest.raises(NotFoundError):
            await reported(model)
        await again.register(backend)
        assert again.id != model.id
        assert await again.get_step() == 0

    async def reported(model: Any, step: int | None = None) -> str:
        answer = await complete(model, PROMPTS[0], step, seed=1)
        return str(answer.choices[0].message.content)

    live("mortal", life)


def test_the_pages_of_events_are_the_events_each_once(live: Any, served: Any) -> None:
    async def life(backend: Any, model: Any) -> Any:
        await backend.train(model, await rolled_out(model, whim, samples=2))
        (job,) = served.platform.training.list(entity="acme", model=model.id).page().items
        events = backend._client.training_jobs.events
        return [[event.id async for event in events.list(training_job_id=job.id, limit=n)] for n in (1, 2, 100)]

    one, two, all_ = live("paged", life)
    assert one == two == all_
    assert len(set(all_)) == len(all_) == 3


# ---- SFT -----------------------------------------------------------------------------------------------------------

COLOURS = {"What colour is the sea?": "Blue.", "Which colour has grass?": "Green.", "Tell me snow's colour.": "White."}


def lessons(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"messages": [*requested(question), {"role": "assistant", "content": answer}], "tools": tools}
        for question, answer in COLOURS.items()
    ]


async def answers(model: Any) -> list[str]:
    return [reply(await plain(model, question, seed=1, temperature=0)) for question in COLOURS]


def test_a_job_on_an_uploaded_dataset_teaches_its_answers(live: Any, served: Any) -> None:
    rows = [
        {"messages": [*requested(question), {"role": "assistant", "content": answer}]}
        for question, answer in COLOURS.items()
    ]
    dataset = served.platform.training.upload("colours", rows * 20, project="proj", entity="acme")

    async def life(backend: Any, model: Any) -> None:
        jobs, config = backend._client.sft_training_jobs, {"batch_size": 6, "learning_rate": [5e-4] * 10}
        job = await jobs.create(model_id=model.id, training_data_url=dataset.url, config=config)
        await asyncio.to_thread(served.platform.training.job(job.id).wait, DEADLINE)
        seen = [event.type async for event in jobs.events.list(training_job_id=job.id)]
        assert seen == ["training_started", *["gradient_step"] * 10, "training_ended"]
        assert await model.get_step() == 1
        assert await answers(model) == list(COLOURS.values())

    live("pupil", life)


@pytest.fixture
def _uploads_here(place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The client uploads training data and metrics to the served platform, and keeps its files in the test's folder."""
    import wandb
    from wandb.sdk import wandb_setup

    monkeypatch.setenv("WANDB_API_KEY", place.key)
    for name in ("HOME", "WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("WANDB_BASE_URL", place.root)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    yield
    wandb_setup.singleton().finish_all_active_runs()  # or their threads ask in later tests, where no service answers
    wandb.teardown()


@MOSTLY_TABULAR
@pytest.mark.usefixtures("_uploads_here")
def test_the_client_uploads_its_own_data_and_rl_continues_from_the_result(
    live: Any, kind: Kind, tmp_path: Path
) -> None:
    from art.utils.sft import create_lr_schedule, train_sft_from_file

    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for tools in ([], [LOOKUP]) for row in lessons(tools)))

    async def life(backend: Any, model: Any) -> None:
        shown = [art.Trajectory(messages_and_choices=row["messages"]) for row in lessons([])]
        rates = create_lr_schedule(kind.passes, kind.sft_rate)  # to 0, since a network wobbles at a constant one
        await model.train_sft(shown * kind.passes, art.TrainSFTConfig(learning_rate=rates, batch_size=len(shown)))
        assert await model.get_step() == 1
        assert await answers(model) == list(COLOURS.values())

        await train_sft_from_file(model, str(file), epochs=3)
        assert await model.get_step() == 2
        assert (await backend.train(model, await rolled_out(model, whim, samples=4))).step == 3
        assert await answers(model) == list(COLOURS.values())

    live("taught", life)


# ---- a server that dies --------------------------------------------------------------------------------------------

SERVER = HERE / "holding_server.py"
HELD_AT = 3


class Server:
    """A server process of a store, on a socket that outlives it."""

    def __init__(self, python: str, store: Path, listener: socket.socket) -> None:
        self._command = [python, str(SERVER), str(store), str(listener.fileno())]
        self._socket = listener.fileno()
        self._process = self._start(str(HELD_AT))

    def _start(self, *more: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*self._command, *more], pass_fds=[self._socket])

    def killed_and_started_again(self) -> None:
        self._process.kill()
        self._process.wait(DEADLINE)
        self._process = self._start()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(DEADLINE)


@MOSTLY_TABULAR
def test_the_client_outlives_a_server_that_is_killed_in_the_middle_of_its_job(
    kind: Kind, stores: Callable[[Kind], Path], tmp_path: Path
) -> None:
    """The first server makes three steps and holds still; it is killed when the client has seen the third."""
    store = stores(kind) / "yard.db"

    async def life(place: Served, server: Server) -> tuple[list[float], Any]:
        class Witness(art.ServerlessBackend):
            """The client; it has the server killed when it sees a certain gradient step."""

            async def _train_model(self, *given: Any) -> Any:
                async for metrics in super()._train_model(*given):
                    losses.append(metrics["loss/train"])
                    if len(losses) == HELD_AT:
                        server.killed_and_started_again()
                    yield metrics

        losses: list[float] = []
        names = kind.base_model, tmp_path, "killed", "spared"
        async with asyncio.timeout(DEADLINE), registered(place, *names, kind=Witness) as (backend, killed, spared):
            groups = await rolled_out(killed, whim, samples=2)
            result = await backend.train(killed, groups * 40)
            assert result.metrics["data/step_num_gradient_steps"] == len(losses) > HELD_AT
            await backend.train(spared, groups * 40)
            return losses, result

    with open_platform(store) as platform, socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        place = Served(platform, address, platform.keys.create("acme").secret)
        with Server(kind.python, store, listener) as server:
            losses, result = asyncio.run(life(place, server))
        assert result.step == 1
        half = len(losses) // 2
        assert losses[:half] == losses[half:]
        jobs = platform.training.list(entity="acme").page().items
        assert [job.attempts for job in jobs] == [2, 1]
        digests = [platform.models.checkpoint(job.model_id, 1).digest for job in jobs]
    assert digests[0] == digests[1]


# ---- the page ------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("_uploads_here")
def test_the_page_about_this_client_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lane has no installed modelyard, so its command is made here."""
    command = tmp_path / "bin" / "modelyard"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m modelyard.cli "$@"\n')
    command.chmod(0o755)
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    docs = runpy.run_path(str(ROOT / "tests" / "docs" / "test_docs.py"))
    docs["run_page"](ROOT / "docs" / "how-to" / "use-the-rl-client.md", tmp_path, monkeypatch)

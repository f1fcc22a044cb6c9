"""The unmodified client of Tinker against a real server: it trains, samples, saves, loads and lists."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from modelyard import open_platform
from modelyard.asgi import asgi_app
from modelyard.engines.tabular.tokenizer import CHUNKS, END_OF_TURN, VOCABULARY_SIZE, decode, encode
from modelyard.http.interface import Interface
from modelyard.parts.doubles.clients.server import asgi_server

tinker = pytest.importorskip("tinker", reason="it has a lane of its own: tests/clients/lanes.py tinker")
types = pytest.importorskip("tinker.types")

BASE = "tabular-mini"
POLICY = ("importance_sampling", "ppo", "cispo", "dro")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture
def service(served: Any) -> Iterator[Any]:
    key = served.platform.keys.create("acme", prefix="tml-").secret
    with tinker.ServiceClient(base_url=served.root, api_key=key) as client:
        yield client


@pytest.fixture
def run(service: Any) -> Any:
    return service.create_lora_training_client(BASE, rank=4, seed=1).result()


def tensor(values: list[float], dtype: str = "float32") -> Any:
    return types.TensorData(data=values, dtype=dtype, shape=[len(values)])


def row(text: str, **columns: list[float]) -> Any:
    tokens = list(text.encode())
    named = columns or {"weights": [1.0] * (len(tokens) - 1)}
    inputs = {"target_tokens": tensor(tokens[1:], "int64"), **{name: tensor(one) for name, one in named.items()}}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


def prompt(text: str) -> Any:
    return types.ModelInput.from_ints(list(text.encode()))


def learn(run: Any, text: str, steps: int = 3, rate: float = 1e-3) -> list[float]:
    losses = []
    for _ in range(steps):
        learned = run.forward_backward([row(text)], "cross_entropy")
        stepped = run.optim_step(types.AdamParams(learning_rate=rate))
        losses.append(learned.result().metrics["loss:sum"])
        assert stepped.result().metrics["grad_norm"] > 0
    return losses


def test_it_finds_what_can_be_trained(service: Any, run: Any) -> None:
    models = {one.model_name: one.trainable for one in service.get_server_capabilities().supported_models}
    assert models == {"echo": False, BASE: True}
    info = run.get_info()
    assert (info.model_data.model_name, info.lora_rank, info.is_lora) == (BASE, 4, True)


TEXTS = [
    "",
    "hello",
    "The order is open.",
    " the  to\n\tyou",
    "caf\u00e9 \U0001f642 \u65e5\u672c",
    "x" * 3000,
    "\u2028\x85\r\n",
    "12,3",
]


@pytest.mark.parametrize("sampling", [False, True])
def test_the_tokenizer_of_a_tabular_model_is_the_one_that_it_reads_with(
    served: Any, service: Any, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampling: bool
) -> None:
    """Of a training client from the folder that the server names, of a sampling client from one named as the model."""
    monkeypatch.chdir(tmp_path)
    if sampling:
        (tmp_path / BASE).symlink_to(run.get_info().model_data.tokenizer_id)
    tokenizer = (service.create_sampling_client(base_model=BASE).result() if sampling else run).get_tokenizer()
    asked = served.platform.chat.complete(model=BASE, messages="hi", max_tokens=20, logprobs=True, seed=1)
    for text in (*TEXTS, *CHUNKS, "".join(CHUNKS), asked.text):
        ids = tokenizer.encode(text)
        assert ids == encode(text)
        assert tokenizer.decode(ids) == text
    assert tokenizer.decode(range(256), skip_special_tokens=True) == decode(range(256))
    assert (tokenizer.eos_token_id, len(tokenizer)) == (END_OF_TURN, VOCABULARY_SIZE)


def test_the_loss_falls_and_forward_changes_nothing(run: Any) -> None:
    before = run.forward([row("hello")], "cross_entropy").result()
    assert run.forward([row("hello")], "cross_entropy").result().metrics == before.metrics
    scores = before.loss_fn_outputs[0]["logprobs"]
    assert scores.shape == [4]
    assert before.metrics["loss:sum"] == pytest.approx(-sum(scores.data), rel=1e-5)
    losses = learn(run, "hello")
    assert losses[0] == pytest.approx(before.metrics["loss:sum"])
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("loss", POLICY)
def test_every_loss_of_a_policy(run: Any, loss: str) -> None:
    sampled = run.forward([row("hello")], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data
    data = row("hello", logprobs=list(map(float, sampled)), advantages=[1.0] * 4)
    found = run.forward_backward([data], loss).result()
    run.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    after = run.forward([row("hello")], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data
    assert "loss:sum" in found.metrics
    assert sum(after) > sum(sampled)  # what had an advantage is likelier


def test_settings_of_a_loss_count(run: Any) -> None:
    data = [row("hello", logprobs=[0.0] * 4, advantages=[-1.0] * 4)]
    losses = [
        run.forward(data, "ppo", {"clip_low_threshold": low, "clip_high_threshold": 2.0}).result().metrics["loss:sum"]
        for low in (0.25, 0.5)
    ]
    assert losses == [1.0, 2.0]  # all four are far less likely than was said, so each is clipped


def test_where_tokens_come_from_changes_nothing(run: Any) -> None:
    plain = row("hello")
    spans = [
        types.PromptProvenanceSpan(sequence_id="a", length=1),
        types.SampledProvenanceSpan(sequence_id="a", offset=2, length=3),
    ]
    told = plain.with_provenance(model_input=spans, loss_fn_inputs=spans)
    first, second = (run.forward([one], "cross_entropy").result().metrics for one in (plain, told))
    assert first == second


def test_targets_of_several_tokens_for_a_position(run: Any) -> None:
    targets = types.TensorData(data=[98, 99, 98, 99], dtype="int64", shape=[2, 2])
    weights = types.TensorData(data=[0.5] * 4, dtype="float32", shape=[2, 2])
    data = types.Datum(model_input=prompt("ab"), loss_fn_inputs={"target_tokens": targets, "weights": weights})
    found = run.forward_backward([data, row("hello")], "cross_entropy").result()
    assert [one["logprobs"].shape for one in found.loss_fn_outputs] == [[2, 2], [4]]


def test_chunks_of_one_call_come_in_any_order_and_pipelined_calls_wait_their_turn(run: Any) -> None:
    rows = [row(f"row {number}") for number in range(2500)]
    calls = [run.forward_backward(rows, "cross_entropy"), run.optim_step(types.AdamParams(learning_rate=1e-4))]
    calls += [run.forward_backward([row("more")], "cross_entropy"), run.optim_step(types.AdamParams())]
    whole = calls[0].result()
    assert len(whole.loss_fn_outputs) == 2500
    assert all(call.result() is not None for call in calls)


def test_a_loss_of_the_clients_own(run: Any) -> None:
    import numpy

    torch = pytest.importorskip("torch", reason="custom losses of the client are differentiated by torch")

    def squared(data: Any, outputs: Any) -> Any:
        loss = sum((one**2).sum() for one in outputs)
        return loss, {"squared": float(loss.detach())}

    found = run.forward_backward_custom([row("hello")], squared).result()
    assert numpy.isfinite(found.metrics["squared"])
    assert torch is not None


@pytest.mark.parametrize("created", [False, True], ids=["callable", "create_custom_loss"])
def test_a_loss_of_the_clients_own_trains_as_the_same_loss_here(service: Any, run: Any, created: bool) -> None:
    """The step is asked for before the loss is known, and the rows are those of two requests."""
    pytest.importorskip("torch", reason="custom losses of the client are differentiated by torch")

    def traced(logprobs: Any, weights: Any) -> Any:
        loss = -(logprobs * weights).sum()
        return loss, {"custom/traced:sum": loss}

    def called(data: Any, outputs: Any) -> Any:
        of_each = zip(data, outputs, strict=True)
        loss = sum(traced(one, datum.loss_fn_inputs["weights"].to_torch())[0] for datum, one in of_each)
        return loss, {"custom/traced:sum": float(loss.detach())}

    ranks = {"logprobs": 1, "weights": 1}
    chosen = service.create_custom_loss(traced, input_ranks=ranks).result() if created else called
    other = service.create_lora_training_client(BASE, rank=4, seed=1).result()
    rows = [row(f"row {number % 7}") for number in range(1100)]
    custom, stepped = run.forward_backward_custom(rows, chosen), run.optim_step(types.AdamParams(learning_rate=1e-3))
    built_in, _ = other.forward_backward(rows, "cross_entropy"), other.optim_step(types.AdamParams(learning_rate=1e-3))
    assert stepped.result().metrics["grad_norm"] > 0
    losses = [custom.result().metrics["custom/traced:sum"], custom.result().metrics["loss:sum"]]
    assert losses == pytest.approx([built_in.result().metrics["loss:sum"]] * 2, rel=1e-5)
    scores = [
        one.forward([row("row 1")], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data
        for one in (run, other)
    ]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)


def test_a_client_whose_run_was_ended_hears_why_and_goes_on_from_a_checkpoint(
    served: Any, service: Any, run: Any
) -> None:
    learn(run, "hello", 1)
    platform = served.platform
    path = run.save_state("before").result().path
    job = platform.compat.training_runs.get(run.model_id).job_id
    platform.jobs.cancel(job)  # as the sweep of silent sessions does
    with pytest.raises(tinker.RequestFailedError, match="the run has ended: cancelled by"):
        run.forward_backward([row("hello")], "cross_entropy").result()
    assert learn(service.create_training_client_from_state_with_optimizer(path).result(), "hello", 1)


def test_a_mistake_fails_by_itself_and_the_run_goes_on(run: Any) -> None:
    with pytest.raises(tinker.RequestFailedError, match="is 'gspo'"):
        run.forward_backward([row("hello")], "gspo").result()
    with pytest.raises(tinker.RequestFailedError, match="the model has the tokens"):
        run.forward_backward(
            [
                types.Datum(
                    model_input=types.ModelInput.from_ints([1]),
                    loss_fn_inputs={"target_tokens": tensor([10**6], "int64"), "weights": tensor([1.0])},
                )
            ],
            "cross_entropy",
        ).result()
    assert learn(run, "hello", 1)


def test_a_state_continues_where_it_was_saved(service: Any, run: Any) -> None:
    learn(run, "one")
    path = run.save_state("half").result().path
    assert path == f"tinker://{run.model_id}/weights/half"
    with pytest.raises(tinker.RequestFailedError, match="exists already"):
        run.save_state("half").result()
    assert run.save_state("half", overwrite=True).result().path == path
    ended = learn(run, "two")
    same = service.create_training_client_from_state_with_optimizer(path).result()
    assert learn(same, "two") == ended
    fresh = service.create_training_client_from_state(path).result()
    assert learn(fresh, "two")[0] == ended[0]
    run.load_state_with_optimizer(path).result()
    assert learn(run, "two") == ended
    run.load_state(path).result()
    assert learn(run, "two")[0] == ended[0]


def test_what_was_learned_is_sampled(service: Any, run: Any) -> None:
    learn(run, "abcabcabc", 8, 1e-2)
    params = types.SamplingParams(max_tokens=6, temperature=0.0)
    kinds = [run.save_weights_and_get_sampling_client(kind=kind).result() for kind in ("snapshot", "inflight")]
    path = run.save_weights_for_sampler("named").result().path
    kinds.append(service.create_sampling_client(model_path=path).result())
    for sampler in kinds:
        found = sampler.sample(prompt("abc"), 2, params).result()
        assert [bytes(one.tokens) for one in found.sequences] == [b"abcabc"] * 2
        assert all(len(one.logprobs) == 6 for one in found.sequences)
        assert sampler.get_base_model() == BASE
    base = service.create_sampling_client(base_model=BASE).result()
    assert list(base.sample(prompt("abc"), 1, params).result().sequences[0].tokens) != list(b"abcabc")


def test_what_is_sampled_with_the_key_of_an_episode_is_its_turns(served: Any) -> None:
    key = served.platform.keys.create("acme", prefix="tml-").secret
    owner = served.platform.acting_as(served.platform.keys.authenticate(key))
    with tinker.ServiceClient(base_url=served.root, api_key=key) as service:
        run = service.create_lora_training_client(BASE, rank=4, seed=1).result()
        learn(run, "abcabcabc", 2, 1e-2)
        path = run.save_weights_for_sampler("policy").result().path
        model = next(iter(owner.models.list(order="desc")))
        group = owner.episodes.group("sampled", model=model, size=2, url=served.root, prefix="tml-")
        for episode in group:
            with tinker.ServiceClient(base_url=episode.root_url, api_key=episode.key) as theirs:
                sampler = theirs.create_sampling_client(model_path=path).result()
                asked = list(b"ab")
                for seed in range(3):
                    params = types.SamplingParams(max_tokens=5, seed=10 * episode.place + seed)
                    found = sampler.sample(types.ModelInput.from_ints(asked), 1, params).result().sequences[0]
                    turn = episode.turns()[-1]
                    assert turn.prompt_ids == tuple(asked)
                    assert turn.ids == tuple(found.tokens)
                    assert [one.logprob for one in turn.logprobs] == pytest.approx(found.logprobs)
                    asked = [*asked, *found.tokens, *b" and"]
            first, second, third = episode.turns()
            assert (first.parent, second.parent, third.parent) == (None, first, second)
            assert not any(one.untrained for one in (first, second, third))
            episode.reward(episode.place)
        trained = group.trajectories().trajectories
        assert [one.metrics["sampled_tokens"] for one in trained] == [15, 15]
        job = owner.training.rl(model, [group], learning_rate=1e-4)
        job.wait()


def test_samples_have_seeds_stops_and_reasons(service: Any, run: Any) -> None:
    learn(run, "abcabcabc", 8, 1e-2)
    sampler = run.save_weights_and_get_sampling_client().result()

    def sample(**params: Any) -> Any:
        return (
            sampler.sample(prompt("abc"), 1, types.SamplingParams(**{"max_tokens": 6, **params})).result().sequences[0]
        )

    assert sample(seed=7).tokens == sample(seed=7).tokens
    for stop in ([ord("b")], ["b"], "b"):
        stopped = sample(stop=stop, temperature=0.0)
        assert (bytes(stopped.tokens), stopped.stop_reason) == (b"ab", "stop"), stop
    assert sample(temperature=0.0, stop=[]).stop_reason == "length"


def test_log_probabilities_of_prompts(service: Any) -> None:
    sampler = service.create_sampling_client(base_model=BASE).result()
    whole = sampler.compute_logprobs(prompt("hello")).result()
    assert whole[0] is None
    assert all(one <= 0 for one in whole[1:])
    last = sampler.compute_logprobs(prompt("hello"), prompt_logprobs_last_n=2).result()
    assert last[:3] == [None] * 3
    assert last[3:] == whole[3:]
    found = sampler.sample(
        prompt("hello"), 1, types.SamplingParams(max_tokens=1), include_prompt_logprobs=True, topk_prompt_logprobs=3
    ).result()
    assert found.topk_prompt_logprobs[0] is None
    assert [len(one) for one in found.topk_prompt_logprobs[1:]] == [3] * 4
    with pytest.raises(tinker.APIStatusError, match="prompt_alt_tokens_k"):
        sampler.sample(prompt("hello"), 1, types.SamplingParams(max_tokens=1), prompt_alt_tokens_k=2).result()


def test_what_was_made_is_listed_and_deleted(service: Any, run: Any) -> None:
    path = run.save_state("kept", user_metadata={"why": "test"}).result().path
    rest = service.create_rest_client()
    shown = rest.get_training_run(run.model_id).result()
    assert (shown.base_model, shown.lora_rank, shown.last_checkpoint.tinker_path) == (BASE, 4, path)
    assert shown.last_checkpoint.user_metadata == {"why": "test"}
    assert run.model_id in [one.training_run_id for one in rest.list_training_runs().result().training_runs]
    rest.set_checkpoint_ttl_from_tinker_path(path, 7200).result()
    [checkpoint] = rest.list_checkpoints(run.model_id).result().checkpoints
    assert checkpoint.expires_at is not None
    assert rest.get_weights_info_by_tinker_path(path).result().lora_rank == 4
    assert rest.list_user_checkpoints().result().cursor.total_count >= 1
    session = service.holder.get_session_id()
    assert session in rest.list_sessions().result().sessions
    assert rest.get_session(session).result().training_run_ids == [run.model_id]
    rest.delete_checkpoint_from_tinker_path(path).result()
    assert rest.list_checkpoints(run.model_id).result().checkpoints == []


def test_another_entity_finds_nothing(served: Any, run: Any) -> None:
    path = run.save_state("mine").result().path
    key = served.platform.keys.create("other", prefix="tml-").secret
    with tinker.ServiceClient(base_url=served.root, api_key=key) as other:
        with pytest.raises(tinker.NotFoundError):
            other.create_rest_client().get_training_run(run.model_id).result()
        with pytest.raises(tinker.NotFoundError):
            other.create_sampling_client(model_path=path).result()
        with pytest.raises(tinker.NotFoundError):
            other.create_training_client_from_state(path).result()


def test_a_budget_that_is_used_up_fails_what_it_cannot_pay(served: Any) -> None:
    from modelyard.domain.catalogue import Pricing

    platform = served.platform
    entry = platform.catalogue.get(BASE)
    import attrs

    platform.catalogue.register(attrs.evolve(entry, pricing=Pricing(completion=1, training=1)))
    platform.usage.set_budget(20, entity="poor")
    key = platform.keys.create("poor", prefix="tml-").secret
    try:
        with tinker.ServiceClient(base_url=served.root, api_key=key) as poor:
            run = poor.create_lora_training_client(BASE, rank=4, seed=1).result()
            run.forward_backward([row("hello world")], "cross_entropy").result()
            with pytest.raises(tinker.RequestFailedError, match="the budget of poor"):
                run.forward_backward([row("hello world")] * 2, "cross_entropy").result()
            run.optim_step(types.AdamParams()).result()
            sampler = run.save_weights_and_get_sampling_client().result()
            with pytest.raises(tinker.RequestFailedError, match="budget"):
                sampler.sample(prompt("abc"), 1, types.SamplingParams(max_tokens=1000)).result()
        budget = platform.usage.get_budget(entity="poor")
        assert budget is not None
        assert budget.spent == 10
        assert sum(one.trained_tokens for one in platform.usage.list(entity="poor")) == 10
    finally:
        platform.catalogue.unregister(BASE)


def test_many_clients_at_once_each_with_its_own_weights(service: Any) -> None:
    runs = [service.create_lora_training_client(BASE, rank=4, seed=1).result() for _ in range(8)]
    alone = learn(runs[0], "text 1")
    with ThreadPoolExecutor(8) as threads:
        losses = list(threads.map(lambda one: learn(one[1], f"text {one[0] % 2}"), enumerate(runs[1:], 1)))
    assert losses[0] == losses[2] == alone
    assert losses[1] == losses[3] != alone


def test_a_client_that_leaves_cancels_what_it_asked_for(service: Any) -> None:
    async def leave() -> None:
        sampler = await service.create_sampling_client_async(base_model=BASE)
        asked = asyncio.ensure_future(sampler.sample_async(prompt("abc"), 1, types.SamplingParams(max_tokens=5)))
        await asyncio.sleep(0)
        asked.cancel()

    asyncio.run(leave())


def test_no_connection_stays_open_that_the_client_forgets() -> None:
    """It asks first how to behave, on a connection that it neither uses again nor closes. Collected later, by any
    thread, that takes the place of a live one with its number away, which then waits for a minute.
    """
    asked = list[Any]()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path") == "/api/v1/client/config":
            asked.append(scope["client"])
        await served(scope, receive, send)

    with open_platform() as platform:
        served, key = asgi_app(platform, [Interface.TINKER]), platform.keys.create("acme", prefix="tml-").secret
        with asgi_server(application) as server, tinker.ServiceClient(base_url=server.url, api_key=key) as client:
            assert client.get_server_capabilities().supported_models
            connected = [one.client for one in server._server.server_state.connections]
    assert len(asked) == 1
    assert connected
    assert asked[0] not in connected

"""The catalogue from what a server lists, at the host's prices."""

import json
from contextlib import nullcontext
from decimal import Decimal
from typing import Any

import pytest

from modelyard import Pricing, open_platform
from modelyard.backends import COMMON, VLLM, UpstreamBackend, discover, offer
from modelyard.backends.echo import EchoBackend
from modelyard.domain.catalogue import Feature, SamplingParameter
from modelyard.errors import BackendError, BudgetExceeded, InvalidInput
from modelyard.parts.upstream.fake_vllm.adapters import FakeAdapter
from modelyard.parts.upstream.fake_vllm.misbehaviour import Refuse
from modelyard.parts.upstream.fake_vllm.server import MODELS, FakeVllm
from modelyard.parts.upstream.models import priced, read_list
from upstream_asking import http

KEY = "sk-very-secret"

PRICE = Pricing(Decimal("0.0000002"), Decimal("0.0000006"))


def listing(*cards: Any) -> bytes:
    body = json.dumps({"object": "list", "data": cards}).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def test_what_a_server_lists_is_offered_at_the_hosts_prices() -> None:
    fake = FakeVllm(EchoBackend(("org/big", "org/small"), context_length=4096), api_key=KEY)
    with fake.serve() as url:
        models = discover(f"{url}/v1", KEY, pricing={"org/big": PRICE, "org/small": Pricing()}, capabilities=VLLM)
        with UpstreamBackend(f"{url}/v1", KEY, models=models) as backend, open_platform(backend=backend) as platform:
            platform.chat.complete(model="org/big", messages="hello there")
            big, small = platform.catalogue.list()
            (booked,) = platform.usage.list().page().items
    assert (big.id, big.context_length, big.max_output_length, big.pricing) == ("org/big", 4096, 4096, PRICE)
    assert small.pricing == Pricing()
    assert Feature.STRUCTURED_OUTPUTS in big.supported_features
    assert set(big.supported_sampling_parameters) == set(SamplingParameter)
    assert booked.cost == 2 * PRICE.prompt + 2 * PRICE.completion


def test_a_model_without_a_price_is_refused_by_name() -> None:
    with FakeVllm(EchoBackend(("org/big", "org/small"))).serve() as url:
        with pytest.raises(InvalidInput, match=r"pricing\.org/small: is missing; `Pricing\(\)` is free"):
            discover(f"{url}/v1", pricing={"org/big": PRICE})
        (only,) = discover(f"{url}/v1", pricing={"org/big": PRICE}, only=["org/big"])
        with pytest.raises(InvalidInput, match="only: the server does not list 'org/none'"):
            discover(f"{url}/v1", pricing={"org/big": PRICE}, only=["org/big", "org/none"])
    assert (only.entry.id, only.capabilities) == ("org/big", COMMON)


@pytest.mark.parametrize(
    "generated",
    [
        {"max_model_len": 77},
        {"context_length": 77},
        {"max_input_tokens": 77},
        {"meta": {"n_ctx": 77, "n_ctx_train": 99}},
        {"max_context_length": 77},
        {"inputTokenLimit": 77, "outputTokenLimit": 9},
        {"input_token_limit": "77"},
        {"max_context_tokens": 77.0},
    ],
)
def test_the_context_length_is_found_where_servers_say_it(canned: Any, generated: Any) -> None:
    (model,) = discover(canned(listing({"id": "m", "created": 5, **generated})), pricing={"m": PRICE})
    assert (model.entry.context_length, model.entry.created) == (77, 5)


def test_an_unknown_context_length_must_be_given_by_the_host(canned: Any) -> None:
    with pytest.raises(InvalidInput, match="context_length: must be given: the server does not report that of 'm'"):
        discover(canned(listing({"id": "m", "created": None})), pricing={"m": PRICE})
    (model,) = discover(canned(listing({"id": "m"})), pricing={"m": PRICE}, context_length=2048)
    assert model.entry.context_length == 2048


def test_adapters_are_not_listed_as_models() -> None:
    fake = FakeVllm(EchoBackend(("base",)))
    fake._adapters["mine"] = FakeAdapter("mine", "/nowhere", 8, "base")
    with fake.serve() as url:
        assert [model.entry.id for model in discover(f"{url}/v1", pricing={"base": PRICE})] == ["base"]


@pytest.mark.parametrize("listed", [None, 5, {}, {"data": None}, {"data": 5}, {"object": "list"}])
def test_a_list_that_is_none_is_refused(canned: Any, listed: Any) -> None:
    with pytest.raises(BackendError, match="list of models is not in the usual shape"):
        discover(canned(http(json.dumps(listed).encode())), pricing={})


@pytest.mark.parametrize("odd", [None, 5, {}, {"id": 5}, {"id": None}, []])
def test_an_odd_card_costs_itself(canned: Any, odd: Any) -> None:
    card = {"id": "m", "created": "soon", "max_model_len": "8192.0", "meta": [1]}
    (model,) = discover(canned(listing(odd, card)), pricing={"m": PRICE})
    assert (model.entry.id, model.entry.context_length, model.entry.created) == ("m", 8192, 0)


@pytest.mark.parametrize(
    "listed", [[{"id": "m"}], {"models": [{"name": "m"}]}, {"data": [{"id": "m"}], "models": None}], ids=repr
)
def test_lists_of_other_shapes_are_read(canned: Any, listed: Any) -> None:
    (model,) = discover(canned(http(json.dumps(listed).encode())), pricing={"m": PRICE}, context_length=50)
    assert model.served_as == "m"


def test_a_server_that_refuses_says_why() -> None:
    fake = FakeVllm(api_key=KEY)
    with fake.serve() as url:
        with pytest.raises(BackendError, match="refuses this host's key") as refused:
            discover(f"{url}/v1", f"{KEY}x", pricing={})
        fake.plan(Refuse(500, "down"), path=MODELS)
        with pytest.raises(BackendError, match="status 500: down"):
            discover(f"{url}/v1", KEY, pricing={})
    assert KEY not in str(refused.value)


def test_a_server_that_is_not_there_or_says_nonsense(canned: Any) -> None:
    with pytest.raises(BackendError, match="cannot be reached"):
        discover(canned(), pricing={})
    with pytest.raises(BackendError, match="malformed"):
        discover(canned(listing().replace(b"{", b"[", 1)), pricing={})
    with pytest.raises(InvalidInput, match="at least one model"):
        discover(canned(listing()), pricing={})


def test_a_model_that_is_listed_by_its_path_gets_another_name(canned: Any) -> None:
    body = listing({"id": "/models/x.gguf", "meta": {"n_ctx": 512}})
    (model,) = discover(canned(body), pricing={"org/x": PRICE}, names={"/models/x.gguf": "org/x"})
    assert (model.entry.id, model.served_as, model.entry.context_length) == ("org/x", "/models/x.gguf", 512)
    with pytest.raises(InvalidInput, match=r"pricing\.org/x: is missing"):
        discover(canned(body), pricing={"/models/x.gguf": PRICE}, names={"/models/x.gguf": "org/x"})
    with pytest.raises(InvalidInput, match="names: the server does not list 'other'"):
        discover(canned(body), pricing={"/models/x.gguf": PRICE}, names={"other": "org/x"})


CARD = {"id": "m", "max_model_len": 4096}


@pytest.mark.parametrize(
    "body",
    [
        [CARD],
        {"models": [CARD]},
        {"data": [CARD, CARD]},
        {"data": {"0": CARD}},
        {"result": [CARD], "success": True},
        {"code": 0, "data": {"data": [CARD]}},
        {"data": [CARD, None, {}, {"id": ""}]},
        {"data": [{**CARD, "max_model_len": "4096", "created": 2**70}], "error": None},
    ],
    ids=repr,
)
def test_a_list_is_read_in_any_form(canned: Any, body: Any) -> None:
    (model,) = discover(canned(http(json.dumps(body).encode())), pricing={"m": PRICE})
    assert (model.entry.id, model.entry.context_length) == ("m", 4096)


def test_names_alone_are_a_list(canned: Any) -> None:
    url = canned(http(b'{"data": ["m", "n"]}'))
    assert [one.served_as for one in discover(url, pricing={"m": PRICE, "n": PRICE}, context_length=9)] == ["m", "n"]


def test_a_failure_in_the_place_of_a_list_is_told_in_the_server_s_words(canned: Any) -> None:
    with pytest.raises(BackendError, match="out of order"):
        discover(canned(http(b'{"error": {"message": "out of order"}}')), pricing={"m": PRICE})


def test_a_request_without_max_tokens_reserves_the_longest_answer_of_its_server() -> None:
    price = Pricing("0.0000025", "0.00001")
    for longest, fits in ((8192, True), (None, False)):
        big = offer("m", context_length=131_072, max_output_length=longest, pricing=price, capabilities=VLLM)
        with (
            FakeVllm(EchoBackend(("m",)), api_key=KEY).serve() as url,
            UpstreamBackend(f"{url}/v1", KEY, models=[big]) as backend,
            open_platform(backend=backend) as platform,
        ):
            platform.usage.set_budget("0.30", entity="local")
            with nullcontext() if fits else pytest.raises(BudgetExceeded, match="ask for less"):
                platform.chat.complete(model="m", messages="hello there you")


@pytest.mark.parametrize(
    ("card", "longest"),
    [
        ({"max_output_length": 100}, 100),
        ({"max_output_tokens": 100}, 100),
        ({"top_provider": {"max_completion_tokens": 100}}, 100),
        ({"top_provider": {"max_completion_tokens": None}}, 4096),
        ({"max_output_tokens": 5000}, 4096),
        ({"outputTokenLimit": "100"}, 100),
        ({"max_output_tokens": -1, "top_provider": 3}, 4096),
    ],
)
def test_the_longest_answer_is_the_one_that_a_server_lists(card: Any, longest: int) -> None:
    listed = read_list({"data": [{"id": "m", "context_length": 4096, **card}]})
    (model,) = priced(listed, {"m": PRICE}, None, {}, (None, None), COMMON)
    assert model.entry.max_output_length == longest
    (model,) = priced(listed, {"m": PRICE}, None, {}, (None, 300), COMMON)
    assert model.entry.max_output_length == (300 if longest == 4096 and "5000" not in str(card) else longest)

"""The catalogue over HTTP, its caching, and the chat format's own list of models."""

from typing import Any

import attrs
import pytest

from modelyard.backends.echo import EchoBackend
from modelyard.compose import open_platform
from modelyard.domain.catalogue import Pricing
from modelyard.http.catalogue import routes as listing
from modelyard.platform import listing as platform_listing

PATH = listing.PATH


def test_the_catalogue_needs_no_key_and_ignores_one(client: Any) -> None:
    plain = client.send("GET", PATH, key="")
    assert plain.status == 200
    assert set(plain.json) == {"data"}
    assert {"echo", "tabular-mini"} <= {entry["id"] for entry in plain.json["data"]}
    for authorization in ("Bearer wrong", "Basic !!!", "\xff"):
        assert client.send("GET", PATH, key="", headers=[("authorization", authorization)]).raw == plain.raw


@pytest.mark.slow
def test_ten_thousand_entries_are_listed_in_order_and_each_one_answers(client_for: Any) -> None:
    names = [f"model-{number:05d}" for number in range(10_000)]
    with open_platform(backend=EchoBackend(names)) as platform:
        listed = client_for(platform).send("GET", PATH, key="", check=False).json["data"]
        assert [entry["id"] for entry in listed] == names
        assert platform.chat.complete(model=names[-1], messages="last").text == "last"


def test_a_client_with_the_current_catalogue_gets_304(client: Any) -> None:
    first = client.send("GET", PATH, key="")
    etag = first.headers["etag"]
    assert "no-store" not in first.headers["cache-control"]
    for known in (etag, f'"other", {etag}', f"W/{etag}", "*"):
        again = client.send("GET", PATH, key="", headers=[("if-none-match", known)])
        assert (again.status, again.raw) == (304, b"")
        assert again.headers["etag"] == etag
    for unknown in ('"other"', "", "etag"):
        assert client.send("GET", PATH, key="", headers=[("if-none-match", unknown)]).status == 200


def test_the_bytes_are_made_once_until_the_catalogue_changes(client_for: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(listing, "dump", lambda value, dump=listing.dump: made.append(1) or dump(value))
    with open_platform() as platform:
        client = client_for(platform)
        before = [client.send("GET", PATH, key="").headers["etag"] for _ in range(3)]
        assert len(made) == len(set(before)) == 1
        platform.catalogue.register(attrs.evolve(platform.catalogue.get("echo"), id="parrot"), answers_as="echo")
        after = client.send("GET", PATH, key="")
        assert "parrot" in [entry["id"] for entry in after.json["data"]]
        platform.catalogue.unregister("parrot")
        assert client.send("GET", PATH, key="").headers["etag"] == before[0] != after.headers["etag"]


@pytest.mark.parametrize("base", ["/v1", "/inference/v1"])
def test_the_chat_interfaces_list_what_the_caller_may_ask(base: str, client_for: Any) -> None:
    with open_platform() as platform:
        platform.models.create("mine", project="p", base_model="tabular-mini", entity="acme")
        platform.models.create("theirs", project="p", base_model="tabular-mini", entity="rival")
        client = client_for(platform)
        listed = client.send("GET", f"{base}/models").json
        assert listed["object"] == "list"
        ids = [model["id"] for model in listed["data"]]
        assert {"echo", "tabular-mini", "acme/p/mine"} == set(ids)
        for id_ in ids:
            for name in (id_, id_.replace("/", "%2F")):
                assert client.send("GET", f"{base}/models/{name}").json["id"] == id_
            assert client.chat(model=id_, path=f"{base}/chat/completions", max_tokens=1).status == 200


@pytest.mark.parametrize(
    ("name", "status"), [("nothing", 404), ("rival/p/theirs", 403), ("acme/p/nothing", 404), ("%00", 404)]
)
def test_a_model_that_is_not_the_caller_s_is_not_shown(client: Any, name: str, status: int) -> None:
    answer = client.send("GET", f"/v1/models/{name}")
    assert answer.status == status


def test_more_models_than_a_page_are_all_listed(client_for: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform_listing, "BATCH", 2)
    with open_platform() as platform:
        for number in range(5):
            platform.models.create(f"m{number}", project="p", base_model="tabular-mini", entity="acme")
        ids = [model["id"] for model in client_for(platform).send("GET", "/v1/models").json["data"]]
    assert [f"acme/p/m{number}" for number in range(5)] == ids[-5:]


def test_platforms_side_by_side_list_their_own_models(client_for: Any) -> None:
    with open_platform(backend=EchoBackend(("one",))) as one, open_platform(backend=EchoBackend(("other",))) as other:
        listed = [client_for(platform).send("GET", PATH, key="").json["data"] for platform in (one, other)]
    assert [[entry["id"] for entry in entries] for entries in listed] == [["one"], ["other"]]


@pytest.mark.parametrize("base", ["/v1", "/inference/v1"])
def test_a_trained_model_that_the_host_offers_is_listed_and_answers_everyone(base: str, client_for: Any) -> None:
    with open_platform() as platform:
        platform.models.create("mine", project="p", base_model="tabular-mini", entity="rival")
        platform.models.promote("rival/p/mine", 0)
        entry = attrs.evolve(platform.catalogue.get("tabular-mini"), id="support", pricing=Pricing(prompt="0.5"))
        platform.catalogue.register(entry, answers_as="rival/p/mine:prod")
        client = client_for(platform)
        (offered,) = [one for one in client.send("GET", PATH, key="").json["data"] if one["id"] == "support"]
        assert offered["pricing"]["prompt"] == "0.5"
        assert "support" in [model["id"] for model in client.send("GET", f"{base}/models").json["data"]]
        assert client.send("GET", f"{base}/models/support").status == 200
        answer = client.chat(model="support", path=f"{base}/chat/completions")
        assert (answer.status, answer.json["model"]) == (200, "support")
        (booked,) = platform.usage.list(entity="acme")
        assert (booked.model, booked.checkpoint_step) == ("support", 0)
        assert booked.cost == booked.prompt_tokens * entry.pricing.prompt
        assert client.chat(model="rival/p/mine:prod").status == 403

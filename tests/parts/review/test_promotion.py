"""Promotions that labels decide, through every door: of variants and of models."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from http_client import client_of
from modelyard import Platform, open_platform
from modelyard.cli import main
from modelyard.errors import InvalidInput, NotFound, PromotionRefused
from page_reader import Reader

CANNOT_TELL = "judge cannot tell a difference of this size"
JUDGE = "weave:///acme/default/object/judge:v0"


def runs_of(platform: Platform, refs: list[str]) -> None:
    """A run of each of these, the second better than the first, judged with errors."""
    chance = random.Random(1)
    data = [(chance.random() < 0.5, chance.random() < 0.8, chance.random() < 0.4) for _ in range(200)]
    for better, ref in enumerate(refs):
        run = platform.evaluations.runs.create("weave:///acme/default/object/quiz:v0", ref, project="default")
        for at, (truth, sharp, lucky) in enumerate(data):
            right = truth or bool(better and lucky)
            row, of = {"prompt": f"question {at}"}, {"run_id": run.id, "project": "default"}
            done = platform.evaluations.predictions.create(ref, row, {"right": right}, **of)
            platform.evaluations.scores.create(done.id, JUDGE, right if sharp else True, **of)
        platform.evaluations.runs.finish(run.id)


def label(platform: Platform, first: int | None = None) -> None:
    """Label the rows of each run as they are, in reviews that there are or that are made."""
    reviews = [*platform.review.list()] or [
        platform.review.start(run.id, rows=100) for run in platform.evaluations.runs.list_all()
    ]
    for review in reviews:
        for row in platform.review.rows(review.id, "ann")[:first]:
            platform.review.label(review.id, "ann", row.place, row.output["right"])


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "yard.db")


@pytest.fixture
def platform(store: str) -> Iterator[Platform]:
    with open_platform(store, entity="acme") as platform:
        for number in (1, 2):
            platform.variants.publish("default/support", model="echo", system=f"version {number}")
        runs_of(platform, [platform.variants.get("default/support").ref_of(number) for number in (1, 2)])
        platform.variants.promote("default/support", 1)
        label(platform, 5)
        yield platform


def test_a_key_promotes_over_http_what_labels_allow(platform: Platform) -> None:
    client = client_of(platform)
    asked = {"name": "variants/default/support", "number": 2, "evaluation": "quiz:v0", "margin": 0.05}
    refused = client.send("PUT", "/v1/judged/aliases/prod", asked)
    assert refused.status == 409
    assert f"{CANNOT_TELL} (margin 0.05): " in refused.raw.decode()
    label(platform)
    made = client.ok("PUT", "/v1/judged/aliases/prod", asked)
    assert (made["name"], made["alias"], made["number"]) == ("variants/default/support", "prod", 2)
    assert made["verdict"]["metrics"]["judge"]["low"] > 0
    assert client.ok("PUT", "/v1/judged/aliases/prod", asked)["number"] == 2
    assert [one.number for one in platform.variants.aliases("default/support")] == [2]
    wrong = client.send("PUT", "/v1/judged/aliases/prod", {**asked, "margin": 0})
    assert (wrong.status, wrong.locs) == (422, [["body", "margin"]])
    assert client.send("PUT", "/v1/judged/aliases/prod", {**asked, "name": "default/none"}).status == 404


def test_the_shell_promotes_what_labels_allow(platform: Platform, store: str) -> None:
    command = ["review", "promote", "variants/acme/default/support", "2", "--not-worse", "quiz:v0", "--store", store]
    refused = CliRunner().invoke(main, command)
    assert refused.exit_code == 1
    assert CANNOT_TELL in refused.output
    label(platform)
    made = CliRunner().invoke(main, [*command, "--margin", "0.1"])
    assert made.exit_code == 0, made.output
    assert made.output.startswith("prod points at 2; not worse; judge +0.")
    assert [one.number for one in platform.variants.aliases("default/support")] == [2]


def test_the_dashboard_promotes_what_labels_allow(platform: Platform) -> None:
    reader, variant = Reader(platform), platform.variants.get("default/support").id
    path = f"variants/{variant}/2"
    assert 'name="margin"' in reader.page(path)
    form = {"alias": "prod", "evaluation": "quiz:v0", "margin": "0.05"}
    assert CANNOT_TELL in reader.post(f"{path}/promote", **form)
    assert "must be a number above 0" in reader.post(f"{path}/promote", **{**form, "margin": "much"})
    assert "is required where labels decide" in reader.post(f"{path}/promote", **{**form, "evaluation": ""})
    label(platform)
    assert reader.post(f"{path}/promote", **form) == f"variants/{variant}"
    assert [one.number for one in platform.variants.aliases("default/support")] == [2]


def test_a_step_of_a_model_is_promoted_by_labels(store: str) -> None:
    with open_platform(store, entity="acme") as platform:
        model = platform.models.create("desk", project="default", base_model="tabular-mini")
        example: Any = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "7"}]}
        platform.training.sft(model, [example]).wait()
        runs_of(platform, [model.ref_of(step) for step in (0, 1)])
        platform.models.promote(model, 0)
        asked: Any = ("default/desk", 1, "quiz:v0", 0.05)
        with pytest.raises(PromotionRefused, match="the judge is not checked"):
            platform.review.promote(*asked)
        label(platform)
        reader = Reader(platform)
        form = {"alias": "prod", "step": "1", "evaluation": "quiz:v0", "margin": "0.05"}
        assert reader.post(f"models/{model.id}/promote", **form) == f"models/{model.id}"
        assert platform.review.promote(*asked).step == 1
        with pytest.raises(PromotionRefused, match=r"^worse"):
            platform.review.promote("default/desk", 0, "quiz:v0", 0.05)
        with pytest.raises(NotFound):
            platform.review.promote("variants/default/desk", 1, "quiz:v0", 0.05)
        with pytest.raises(InvalidInput, match="more than 0"):
            platform.review.promote("default/desk", 1, "quiz:v0", 0)

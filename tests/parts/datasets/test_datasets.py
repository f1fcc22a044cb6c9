"""Data sets are listed and read as they were uploaded, and split so that no group lies on both sides."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard import Example, Message, Platform, open_platform
from modelyard.cli import main
from modelyard.errors import Forbidden, InvalidInput, NotFound
from modelyard.parts.datasets.splitting import place_of, sides


def row(number: int, **more: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": f"question {number}"}, {"role": "assistant", "content": "an answer"}]
    return {"messages": said, **more}


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform(project="desk") as platform:
        yield platform


def contents(platform: Platform, url: str) -> list[Any]:
    return [one["messages"] for one in platform.datasets.rows(url)]


# ---- listing and reading


def test_versions_are_listed_and_read(platform: Platform) -> None:
    first = platform.training.upload("answers", [row(1)])
    second = platform.training.upload("answers", [row(2), row(3)])
    other = platform.training.upload("answers", [row(2)], project="shop")
    assert [*platform.datasets.list()] == [other, second, first]
    assert [*platform.datasets.list(project="desk")] == [second, first]
    for name in ("answers", "desk/answers", "local/desk/answers", second.url, "answers:v1"):
        assert platform.datasets.get(name) == second
        assert [*platform.datasets.rows(name)] == [row(2), row(3)]
    assert platform.datasets.get("answers:v0") == first
    assert platform.datasets.get(first) == first


@pytest.mark.parametrize("name", ["other", "answers:v7", "desk/x/y/z", "a b", "", "https://x.org/a"])
def test_what_is_no_data_set_is_refused(platform: Platform, name: str) -> None:
    with pytest.raises((NotFound, InvalidInput)):
        platform.datasets.get(name)


def test_a_page_goes_on_after_the_last_one(platform: Platform) -> None:
    made = [platform.training.upload(f"d{number}", [row(number)]) for number in range(5)]
    page = platform.datasets.list(order="asc").page(2)
    assert page.items == tuple(made[:2])
    assert platform.datasets.list(order="asc").page(9, page.items[-1].id).items == tuple(made[2:])


def test_a_tenant_sees_its_own(platform: Platform) -> None:
    ours = platform.training.upload("answers", [row(1)])
    theirs = platform.acting_as(platform.keys.authenticate(platform.keys.create("acme").secret))
    made = theirs.training.upload("answers", [row(2)], project="desk")
    assert [*theirs.datasets.list()] == [made]
    for call in (theirs.datasets.get, theirs.datasets.rows, theirs.datasets.split):
        with pytest.raises((NotFound, Forbidden)):
            next(iter(call(ours.url)))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="only the host may name a file"):
        theirs.datasets.split(Path(__file__), name="a", project="desk")


# ---- splitting


places = st.lists(st.sampled_from([at / 16 for at in range(16)]), min_size=1, max_size=30)


@examples(100)
@given(places, st.floats(0.01, 0.99))
def test_a_group_is_on_one_side_and_none_is_empty(places: Sequence[float], part: float) -> None:
    if len({*places}) == 1:
        with pytest.raises(InvalidInput, match="one group alone"):
            sides(places, part)
        return
    found = [*sides(places, part)]
    assert {True, False} == {*found}
    assert len({*zip(places, found, strict=True)}) == len({*places})
    inner = [at for at, place in enumerate(places) if place not in (min(places), max(places))]
    assert [found[at] for at in inner] == [places[at] < part for at in inner]


def test_the_part_is_about_right() -> None:
    found = [place_of(["row", number], seed=3) for number in range(20_000)]
    assert 0.095 < sum(place < 0.1 for place in found) / len(found) < 0.105


@pytest.mark.slow
@examples(15)
@given(
    rows=st.lists(st.integers(0, 9), min_size=2, max_size=40).filter(lambda rows: len({*rows}) > 1),
    seed=st.integers(0, 5),
    door=st.sampled_from(["rows", "values", "file", "data set"]),
)
def test_a_split_has_every_row_once(rows: list[int], seed: int, door: str, tmp_path_factory: Any) -> None:
    given_rows: Any = [row(number) for number in rows]
    with open_platform(project="desk") as platform:
        if door == "values":
            given_rows = [Example((Message.user(f"question {n}"), Message.assistant("an answer"))) for n in rows]
        elif door == "file":
            path = tmp_path_factory.mktemp("split") / "a.json"
            path.write_text(json.dumps(given_rows))
            given_rows = path
        elif door == "data set":
            given_rows = platform.training.upload("a", given_rows)
        made = platform.datasets.split(given_rows, held_out=0.3, seed=seed, name="a")
        train, held_out = contents(platform, made.train.url), contents(platform, made.held_out.url)
        assert (made.train.rows, made.held_out.rows) == (len(train), len(held_out))
        assert min(made.train.rows, made.held_out.rows) > 0
        assert not [one for one in train if one in held_out]
        whole = [row(number)["messages"] for number in rows]
        assert sorted([*train, *held_out], key=str) == sorted(whole, key=str)
        again = platform.datasets.split(given_rows, held_out=0.3, seed=seed, name="a")
        assert again == made
        recorded = {one.artifact for one in platform.datasets.list()}
        assert {*platform._runtime.artifacts.names()} == recorded


def test_a_split_is_the_same_by_every_door(platform: Platform, tmp_path: Path) -> None:
    rows = [row(number) for number in range(40)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"conversations": one["messages"]} for one in rows]))
    doors = [rows, path, platform.training.upload("a", rows)]
    assert len({platform.datasets.split(data, held_out=0.4, name="a").held_out.digest for data in doors}) == 1


def test_a_field_keeps_rows_together(platform: Platform, tmp_path: Path) -> None:
    rows = [row(number, metadata={"user": number % 7}) for number in range(70)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    for data in (rows, path):
        made = platform.datasets.split(data, held_out=0.3, group="metadata.user", name="by-user")
        user = {str(one["messages"]): one["metadata"]["user"] for one in rows}  # type: ignore[index]
        of = [{user[str(said)] for said in contents(platform, side.url)} for side in (made.train, made.held_out)]
        assert of[0] | of[1] == {*range(7)}
        assert not of[0] & of[1]
    assert (made.train.version, made.held_out.version) == (0, 0)


def test_a_field_that_a_row_lacks_is_named(platform: Platform) -> None:
    rows = [row(1, metadata={"user": 1}), row(2)]
    with pytest.raises(InvalidInput, match=r"data\.1\.metadata\.user: is required"):
        platform.datasets.split(rows, group="metadata.user", name="a")
    stored = platform.training.upload("a", rows)
    with pytest.raises(InvalidInput, match=r"line\.1\.metadata\.user: is required"):
        platform.datasets.split(stored, group="metadata.user")
    assert len([*platform._runtime.artifacts.names()]) == 1


@pytest.mark.parametrize("part", [0, 1, -0.1, 1.5, float("nan"), True, "0.1"])
def test_a_part_lies_between_none_and_all(platform: Platform, part: Any) -> None:
    with pytest.raises(InvalidInput, match="must lie between 0 and 1"):
        platform.datasets.split([row(1), row(2)], held_out=part, name="a")


def test_rows_stay_where_they_are_when_others_come(platform: Platform) -> None:
    rows = [row(number) for number in range(200)]
    few = platform.datasets.split(rows[:100], held_out=0.3, name="few")
    all_ = platform.datasets.split(rows, held_out=0.3, name="all")
    assert [one for one in contents(platform, few.held_out.url) if one in contents(platform, all_.train.url)] == []


# ---- the command line


def test_the_command_line(yard_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(json.dumps(row(number)) for number in range(20)))

    def run(*args: str) -> str:
        done = CliRunner().invoke(main, ["datasets", *args, "--store", str(yard_file)])
        assert done.exit_code == 0, done.output
        return done.output

    with open_platform(str(yard_file)) as platform:
        platform.training.upload("answers", path)
    made = json.loads(run("split", str(path), "--held-out", "0.3", "--seed", "4", "--json"))
    assert made["rows"] + made["held_out_rows"] == 20
    assert made["held_out"].endswith("/answers-held-out:v0")
    assert [one["url"] for one in json.loads(run("list", "--json"))][-1].endswith("/answers:v0")
    assert [json.loads(line) for line in run("rows", "answers", "--first", "2").splitlines()] == [row(0), row(1)]
    assert "answers-train" in run("split", "answers")

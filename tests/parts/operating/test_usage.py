"""Usage of a range is the same in Python, over HTTP and in the command line, exact, and a spreadsheet reads it."""

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from http_client import Client, client_of
from modelyard import Platform, ScriptedBackend, open_platform
from modelyard.cli import main
from modelyard.domain.catalogue import Pricing
from modelyard.domain.usage import UsageSum
from modelyard.parts.operating.usage_commands import csv_of
from modelyard.parts.times import moment_of
from modelyard.platform.usage.service import month_of
from modelyard.testing import ManualClock

PRICE = Decimal("0.000000000123456789012345678901")
NOVEMBER = datetime(2026, 11, 1, tzinfo=UTC)
TIMES = [
    NOVEMBER - timedelta(microseconds=1),
    NOVEMBER,
    NOVEMBER + timedelta(days=29, hours=23),
    datetime(2026, 12, 1, tzinfo=UTC),
]


def call(*words: object, status: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == status, (result.output, result.exception)
    return result


def used(path: Path | None = None) -> Platform:
    """Open a platform with a request just before November, two in it, and one at its end."""
    clock = ManualClock(TIMES[0] - timedelta(days=1))
    platform = open_platform(path, clock=clock)
    echo = platform.catalogue.get("echo")
    platform.catalogue.register(attrs.evolve(echo, pricing=Pricing(request=PRICE)))
    for time in TIMES:
        clock.advance((time - clock.now()).total_seconds())
        platform.chat.complete(model="echo", messages="x", entity="acme", project="support")
    return platform


@pytest.fixture
def yard(tmp_path: Path) -> Path:
    with used(tmp_path / "yard.db"):
        return tmp_path / "yard.db"


RANGES: list[tuple[dict[str, str], int]] = [
    ({}, 4),
    ({"month": "2026-11"}, 2),
    ({"since": "2026-11-01"}, 3),
    ({"since": "2026-11-01", "until": "2026-11-30T23:00:00"}, 1),
    ({"until": "2026-11-01T01:00:00+01:00"}, 1),
    ({"month": "2026-11", "entity": "other"}, 0),
    ({"month": "2026-12", "entity": "acme", "project": "support"}, 1),
]


@pytest.mark.parametrize(("asked", "requests"), RANGES)
def test_a_range_has_the_same_rows_at_each_door(yard: Path, asked: dict[str, str], requests: int) -> None:
    options = [word for name, value in asked.items() for word in (f"--{name}", value)]
    told = call("usage", "--store", yard, "--by", "entity", *options, "--csv").stdout
    (found, *_) = [*csv.DictReader(io.StringIO(told)), {"requests": "0", "cost_usd": "0"}]
    assert (int(found["requests"]), Decimal(found["cost_usd"])) == (requests, requests * PRICE)
    shown = json.loads(call("usage", "--store", yard, "--by", "entity", *options, "--json").stdout)
    assert sum(one["requests"] for one in shown) == requests
    with open_platform(yard) as platform:
        client = client_of(platform)
        client.key = platform.keys.create("ops", host=True).secret
        over_http = client.ok("GET", "/v1/usage", query={"by": "entity", **asked})["data"]
        assert sum(one["requests"] for one in over_http) == requests
        assert sum(Decimal(one["cost"]) for one in over_http) == requests * PRICE
        moments = {name: datetime.fromisoformat(asked[name]) for name in ("since", "until") if name in asked}
        exact = {name: moment if moment.tzinfo else moment.replace(tzinfo=UTC) for name, moment in moments.items()}
        python: Any = {**asked, **exact}
        assert sum(one.requests for one in platform.usage.total(["entity"], **python)) == requests


AGES: list[tuple[dict[str, str], int]] = [({"since": "99999d"}, 4), ({"until": "99999d"}, 0), ({"since": "9999.5w"}, 4)]


@pytest.mark.parametrize(("asked", "requests"), AGES)
def test_an_age_is_a_time_at_each_door(yard: Path, asked: dict[str, str], requests: int) -> None:
    options = [word for name, value in asked.items() for word in (f"--{name}", value)]
    shown = json.loads(call("usage", "--store", yard, "--by", "entity", *options, "--json").stdout)
    assert sum(one["requests"] for one in shown) == requests
    with open_platform(yard) as platform:
        client = client_of(platform)
        client.key = platform.keys.create("ops", host=True).secret
        over_http = client.ok("GET", "/v1/usage", query={"by": "entity", **asked})["data"]
        assert sum(one["requests"] for one in over_http) == requests


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30m", 1800), ("2h", 7200), ("30d", 2_592_000), ("4w", 2_419_200), ("0.5d", 43_200), ("0h", 0)],
)
def test_an_age_is_counted_back_from_now(text: str, seconds: int) -> None:
    now = datetime(2026, 11, 30, tzinfo=UTC)
    assert now - moment_of(text, now) == timedelta(seconds=seconds)


def test_the_slowest_are_csv_too_and_an_empty_list_says_why(yard: Path) -> None:
    told = call("usage", "--store", yard, "--slowest", "--csv")
    assert told.stdout == "seconds,model,entity,project,prompt_tokens,completion_tokens,ended_at,id\n"
    assert "platform.upkeep()" in call("usage", "--store", yard, "--slowest").stderr
    with open_platform(yard, backend=ScriptedBackend(["a"], models=["=m"])) as platform:
        platform.metrics.count()
        platform.chat.complete(model="=m", messages="hi", project="p")
        platform.metrics.slowest()
    _, line = call("usage", "--store", yard, "--slowest", "1", "--csv").stdout.splitlines()
    assert line.split(",")[1:4] == ["'=m", "local", "p"]


@pytest.mark.parametrize(
    ("asked", "place"),
    [
        ({"month": "2026-13"}, "month"),
        ({"month": "11/2026"}, "month"),
        ({"month": "0001-01"}, "month"),
        ({"month": "2026-1１"}, "month"),
        ({"month": "2026-11", "since": "2026-11-01"}, "month"),
        ({"since": "yesterday"}, "since"),
        ({"since": "30x"}, "since"),
        ({"since": "-1d"}, "since"),
        ({"until": "999999999w"}, "until"),
        ({"until": "0000-01-01"}, "until"),
        ({"by": "colour"}, "by"),
    ],
)
def test_what_is_no_range_is_refused_at_its_place(yard: Path, asked: dict[str, str], place: str) -> None:
    options = [word for name, value in asked.items() for word in (f"--{name}", value)]
    assert place in call("usage", "--store", yard, *options, status=1).stderr
    with open_platform(yard) as platform:
        client = client_of(platform)
        client.key = platform.keys.create("ops", host=True).secret
        refused = client.send("GET", "/v1/usage", query=asked)
        assert (refused.status, refused.locs) == (422, [["query", place]])


def test_keys_have_their_names_next_to_their_ids(yard: Path) -> None:
    with open_platform(yard) as platform:
        key = platform.keys.create("acme", name="=ci").key
        platform.acting_as(key.principal()).chat.complete(model="echo", messages="x")
        platform.usage.set_budget(9, entity="acme", key_id=key.id)
        platform.usage.set_budget(9, entity="acme")
    asked = ("usage", "--store", yard, "--by", "key,model")
    shown = json.loads(call(*asked, "--json").stdout)
    assert [(one["key"], one["key_name"]) for one in shown] == [("", "the host"), (key.id, "=ci")]
    assert call(*asked).stdout.splitlines()[0].split()[:3] == ["key", "key_name", "model"]
    lines = [*csv.DictReader(io.StringIO(call(*asked, "--csv").stdout))]
    assert [(one["key"], one["key_name"], one["model"]) for one in lines] == [
        ("", "the host", "echo"),
        (key.id, "'=ci", "echo"),
    ]
    budgets = json.loads(call("budget", "list", "--store", yard, "--json").stdout)
    assert {(one["key_id"], one["key_name"]) for one in budgets} == {(None, ""), (key.id, "=ci")}


@examples(50)
@given(st.dates(datetime(2, 1, 1).date(), datetime(9998, 12, 31).date()))
def test_a_month_begins_and_ends_as_the_calendar_has_it(day: Any) -> None:
    since, until = month_of(f"{day:%Y-%m}" if day.year > 999 else f"{day.year:04}-{day.month:02}")
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    assert since <= noon < until
    assert (since.day, until.day) == (1, 1)
    assert 28 <= (until - since).days <= 31


costs = st.decimals(0, 10**15, allow_nan=False, places=30) | st.sampled_from([Decimal("1E-30"), Decimal("1E+15")])


@examples(50)
@given(st.text(min_size=1), costs)
def test_csv_keeps_each_cost_exact_and_no_name_is_a_formula(name: str, cost: Decimal) -> None:
    name = name.replace("\r", "").replace("\0", "") or "m"
    (line,) = csv.DictReader(io.StringIO(csv_of(["model"], [UsageSum(model=name, requests=1, cost=cost)]), newline=""))
    assert Decimal(line["cost_usd"]) == cost
    assert not {*"eE"} & {*line["cost_usd"]}
    assert line["model"].removeprefix("'") == name.removeprefix("'") or line["model"] == name
    assert line["model"][0] not in "=+-@\t"


def test_a_key_sees_what_it_may_and_no_more() -> None:
    with used() as platform:
        client: Client = client_of(platform)
        client.key = platform.keys.create("other").secret
        (none,) = client.ok("GET", "/v1/usage")["data"]
        assert none["requests"] == 0
        assert client.send("GET", "/v1/usage", query={"entity": "acme"}).status == 403


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with open_platform("yard.db") as platform:
        platform.keys.create("acme", name="desk")
    return tmp_path


def rows(*words: object) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(call(*words, "--json").stdout)
    return found


def test_a_key_is_made_with_its_limits(here: Path) -> None:
    words = ["keys", "create", "--entity", "acme", "--requests-per-minute", 2, "--concurrent-requests", 3, "--json"]
    made = json.loads(call(*words).stdout)
    (shown,) = [row for row in rows("keys", "list") if row["id"] == made["id"]]
    assert (shown["requests_per_minute"], shown["concurrent_requests"]) == (2, 3)
    with open_platform("yard.db") as platform:
        assert platform.keys.get(made["id"]).limits == attrs.evolve(platform.keys.get(made["id"]).limits)
    refused = call("keys", "create", "--entity", "acme", "--requests-per-minute", 0, status=1)
    assert "requests_per_minute" in refused.stderr


def test_budgets_are_set_for_an_entity_or_a_key_by_its_name(here: Path) -> None:
    call("budget", "set", "acme", "25.00", "--period", "month", "--warn-at", "0.8")
    of_key = call("budget", "set", "acme", 1, "--key", "desk").stdout
    assert of_key == "key desk of acme may spend 1 USD in total, and has spent 0\n"
    whole, one = rows("budget", "list", "--entity", "acme")
    assert (whole["period"], whole["limit"], whole["key_id"]) == ("month", "25.00", None)
    assert (one["period"], one["remaining"]) == ("total", "1")
    call("budget", "remove", "acme", "--key", "desk")
    assert len(rows("budget", "list")) == 1
    assert call("budget", "set", "acme", 3, "--project", "support").stdout.startswith("project support of acme may")
    assert [row["project"] for row in rows("budget", "list")] == [None, "support"]
    call("budget", "remove", "acme", "--project", "support")
    assert "no key has" in call("budget", "set", "acme", 1, "--key", "none", status=1).output
    assert "period" in call("budget", "set", "acme", 1, "--period", "week", status=2).output

"""API keys: what they may do, when they end, and that no secret is ever left."""

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest

from modelyard import Platform, open_platform
from modelyard.domain.identity import ApiKey, Limits, NewKey, Principal, Scope
from modelyard.domain.schema import RECORDS
from modelyard.errors import Forbidden, InvalidInput, ModelyardError, NotFound, StoreClosed, Unauthenticated
from modelyard.platform.keys.service import Keys, secret_digest
from modelyard.protocols import Store
from modelyard.stores.memory import MemoryStore
from modelyard.stores.sqlite import SqliteStore
from modelyard.testing.clock import ManualClock

START = datetime(2026, 11, 20, tzinfo=UTC)
DAY = timedelta(days=1)


@attrs.define
class World:
    """A store, a clock, and the keys as a principal sees them."""

    platform: Platform
    clock: ManualClock

    def keys(self, principal: Principal | None = None) -> Keys:
        return (self.platform.acting_as(principal) if principal else self.platform).keys


def world_on(store: Store) -> World:
    clock, counter = ManualClock(START), iter(range(1, 10_000))
    made = open_platform(store=store, entity="acme", clock=clock, randomness=lambda n: next(counter).to_bytes(n))
    return World(made, clock)


@pytest.fixture(params=["memory", "sqlite"])
def world(request: pytest.FixtureRequest, yard_file: Path) -> Iterator[World]:
    store: Store
    in_memory = request.param == "memory"
    store = MemoryStore(RECORDS) if in_memory else SqliteStore(yard_file, RECORDS, durability="process")
    yield world_on(store)
    store.close()


# ---- from secret to principal ----


def test_a_key_lets_its_holder_in_with_its_scope_and_limits(world: World) -> None:
    new = world.keys().create("acme", ["red", "blue"], name="ci", requests_per_minute=60, concurrent_requests=2)
    principal = world.keys().authenticate(new.secret)
    assert principal == Principal("ci", "acme", Scope("acme", frozenset({"red", "blue"})), new.key.id, Limits(60, 2))


def test_without_projects_a_key_has_all_of_its_entity(world: World) -> None:
    new = world.keys().create("acme")
    assert world.keys().authenticate(new.secret).scope == Scope("acme", None)


def test_no_entity_means_the_callers_own(world: World) -> None:
    assert world.keys().create().key.entity == "acme"


@pytest.mark.parametrize(
    "secret", ["", "x", "my_00000000_" + "0" * 43, "my_", "\ud800", "a\0b", "é" * 50, "x" * 100_000]
)
def test_a_secret_that_no_key_has_is_refused(world: World, secret: str) -> None:
    world.keys().create()
    with pytest.raises(Unauthenticated):
        world.keys().authenticate(secret)


def test_unknown_revoked_expired_and_malformed_keys_are_refused_in_the_same_words(world: World) -> None:
    revoked, expired = world.keys().create(), world.keys().create(expires_in=DAY)
    world.keys().revoke(revoked.key.id)
    world.clock.advance(DAY.total_seconds())
    words = set()
    for secret in (revoked.secret, expired.secret, revoked.secret[:-1] + "!", revoked.secret.upper(), "nonsense"):
        with pytest.raises(Unauthenticated) as refused:
            world.keys().authenticate(secret)
        words.add(str(refused.value))
    assert len(words) == 1


def test_a_key_works_until_the_moment_it_expires(world: World) -> None:
    new = world.keys().create(expires_at=START + DAY)
    world.clock.advance(DAY.total_seconds() - 1e-6)
    world.keys().authenticate(new.secret)
    world.clock.advance(1e-6)
    with pytest.raises(Unauthenticated):
        world.keys().authenticate(new.secret)


def test_every_key_has_its_own_secret_and_prefix(world: World) -> None:
    made = [world.keys().create() for _ in range(20)]
    assert len({new.secret for new in made}) == 20
    assert all(new.secret.startswith(new.key.prefix + "_") for new in made)


def test_the_secret_comes_from_the_randomness_that_was_passed_in() -> None:
    first, second = world_on(MemoryStore(RECORDS)), world_on(MemoryStore(RECORDS))
    assert first.keys().create().secret == second.keys().create().secret


# ---- what is refused ----


@pytest.mark.parametrize(
    ("loc", "arguments"),
    [
        (("entity",), {"entity": "a/b"}),
        (("entity",), {"entity": ""}),
        (("projects", 1), {"projects": ["fine", ".."]}),
        (("projects",), {"projects": []}),
        (("projects",), {"projects": "red"}),
        (("projects",), {"projects": [f"p{n}" for n in range(1001)]}),
        (("name",), {"name": "bell\a"}),
        (("name",), {"name": "x" * 129}),
        (("requests_per_minute",), {"requests_per_minute": 0}),
        (("concurrent_requests",), {"concurrent_requests": 2**31 + 1}),
        (("concurrent_requests",), {"concurrent_requests": True}),
        (("expires_at",), {"expires_at": START}),
        (("expires_at",), {"expires_at": START.replace(year=2030, tzinfo=None)}),
        (("expires_at",), {"expires_in": -DAY}),
        (("expires_in",), {"expires_in": timedelta.max}),
        (("expires_at",), {"expires_in": DAY, "expires_at": START + DAY}),
    ],
)
def test_a_key_that_makes_no_sense_is_refused_and_nothing_is_kept(
    world: World, loc: tuple[str | int, ...], arguments: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput) as refused:
        world.keys().create(**arguments)
    assert [problem.loc for problem in refused.value.problems] == [loc]
    assert not world.keys().list()


# ---- privilege never grows ----


def holder(world: World, **arguments: Any) -> Keys:
    return world.keys(world.keys().authenticate(world.keys().create("acme", **arguments).secret))


def test_a_key_mints_keys_within_its_scope_only(world: World) -> None:
    keys = holder(world, projects=["red", "blue"])
    assert keys.create("acme", ["red"]).key.projects == ("red",)
    assert keys.create().key.projects == ("blue", "red")
    for entity, projects in (("acme", ["green"]), ("acme", ["red", "green"]), ("other", ["red"]), ("other", None)):
        with pytest.raises(Forbidden):
            keys.create(entity, projects)


def test_a_scope_without_any_project_cannot_mint_a_key_for_all_of_them(world: World) -> None:
    with pytest.raises(Forbidden):
        world.keys(Principal("p", "acme", Scope("acme", frozenset()))).create()


def test_a_key_cannot_give_wider_limits_than_it_has(world: World) -> None:
    keys = holder(world, requests_per_minute=60)
    keys.create(requests_per_minute=60)
    for limit in (61, None):
        with pytest.raises(Forbidden, match="limits"):
            keys.create(requests_per_minute=limit)


def test_a_key_cannot_make_one_that_outlives_it(world: World) -> None:
    keys = holder(world, expires_in=DAY)
    keys.create(expires_in=DAY)
    for expires_in in (DAY * 2, None):
        with pytest.raises(Forbidden, match="outlive"):
            keys.create(expires_in=expires_in)


def test_a_key_that_has_ended_mints_nothing_though_its_principal_is_still_held(world: World) -> None:
    made = world.keys().create("acme", expires_in=DAY)
    keys = world.keys(made.key.principal())
    world.keys().revoke(made.key.id)
    with pytest.raises(Unauthenticated):
        keys.create(expires_in=DAY)


def test_a_principal_whose_key_is_gone_mints_nothing(world: World) -> None:
    with pytest.raises(Unauthenticated):
        world.keys(Principal("p", "acme", Scope("acme"), key_id="gone")).create()


# ---- looking and revoking ----


def test_keys_are_listed_oldest_first_and_only_those_within_the_callers_scope(world: World) -> None:
    made = []
    for entity, projects in (("acme", None), ("acme", ["red"]), ("acme", ["blue"]), ("other", None)):
        made.append(world.keys().create(entity, projects).key)
        world.clock.advance(1)
    whole, red, blue, other = made
    assert tuple(world.keys().list()) == tuple(made)
    assert tuple(world.keys().list(entity="acme")) == (whole, red, blue)
    assert tuple(world.keys(whole.principal()).list()) == (whole, red, blue)
    assert tuple(world.keys(red.principal()).list()) == (red,)
    assert tuple(world.keys(other.principal()).list()) == (other,)
    with pytest.raises(Forbidden):
        world.keys(red.principal()).list(entity="other")


def test_a_listing_has_every_key_however_many_there_are(world: World) -> None:
    made = {world.keys().create().key.id for _ in range(1100)}
    assert {key.id for key in world.keys().list()} == made


def test_what_lies_outside_the_scope_looks_as_if_it_did_not_exist(world: World) -> None:
    red, whole = world.keys().create("acme", ["red"]).key, world.keys().create("acme").key
    keys = world.keys(red.principal())
    assert keys.get(red.id) == red
    for act in (keys.get, keys.revoke):
        for id_ in (whole.id, "unknown"):
            with pytest.raises(NotFound, match=f"API key '{id_}' not found$"):
                act(id_)
    assert world.keys().get(whole.id).revoked_at is None


def test_revoking_again_keeps_the_first_moment(world: World) -> None:
    key = world.keys().create().key
    world.clock.advance(DAY.total_seconds())
    first = world.keys().revoke(key.id)
    world.clock.advance(DAY.total_seconds())
    assert world.keys().revoke(key.id) == first == world.keys().get(key.id)
    assert first.revoked_at == START + DAY


# ---- the canary ----


def every_use_of(world: World, new: NewKey) -> Iterator[str]:
    """Use a key in every way there is; yields every text that a person or a log could come to see."""
    keys = world.keys()
    principal = keys.authenticate(new.secret)
    yield from map(repr, (new, new.key, principal, keys.get(new.key.id), keys.list(), world.platform._runtime))
    yield from (str(new), f"{new}", str(attrs.asdict(new.key)))
    acts: list[Callable[[], object]] = [
        lambda: keys.authenticate(new.secret[:-1]),
        lambda: keys.authenticate(new.secret + "x"),
    ]
    acts += [lambda: world.keys(principal).create("other"), lambda: keys.get(new.secret)]
    acts += [lambda: keys.revoke(new.secret), lambda: keys.revoke(new.key.id), lambda: keys.authenticate(new.secret)]
    for act in acts:
        try:
            yield repr(act())
        except ModelyardError as error:
            yield f"{error!r} {error}"


def test_a_secret_stays_in_no_file_log_representation_or_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    store = SqliteStore(str(tmp_path / "yard.db"), RECORDS)
    world = world_on(store)
    new = world.keys().create("acme", ["red"], name="canary")
    hidden = new.secret.rsplit("_", 1)[1]
    seen = list(every_use_of(world, new))
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    store.close()
    files |= {f"{path.name} closed": path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(StoreClosed) as closed:
        world.keys().authenticate(new.secret)
    seen += [str(closed.value), caplog.text, *capfd.readouterr()]
    assert not [text for text in seen if hidden in text]
    assert not [name for name, content in files.items() if hidden.encode() in content]
    # The canary sings: the same search finds what is meant to be there.
    assert any(new.key.prefix.encode() in content for content in files.values())
    assert any(secret_digest(new.secret).encode() in content for content in files.values())


def test_the_store_keeps_a_digest_and_the_shown_prefix_only(world: World) -> None:
    new = world.keys().create()
    kept = world.platform._runtime.store.read(lambda snapshot: snapshot.get(ApiKey, new.key.id))
    assert kept.digest == secret_digest(new.secret)
    assert not any(new.secret[12:] in str(value) for value in attrs.astuple(kept))

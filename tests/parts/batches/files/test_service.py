"""Files: kept with their bytes, seen by their owners, and gone with all that belongs to them."""

from collections.abc import Iterator
from datetime import timedelta
from io import BytesIO

import attrs
import pytest

from modelyard import Platform, open_platform
from modelyard.domain.identity import Principal, Scope
from modelyard.errors import ArtifactMissing, Forbidden, InvalidInput, NotFound
from modelyard.parts.batches.files.records import StoredFile
from modelyard.testing import ManualClock


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def platform(clock: ManualClock) -> Iterator[Platform]:
    with open_platform(clock=clock) as platform:
        yield platform


def artifacts(platform: Platform) -> set[str]:
    return set(platform._runtime.artifacts.names())


@pytest.fixture(autouse=True)
def nothing_left(platform: Platform) -> Iterator[None]:
    yield
    for file in platform.compat.files.list():
        platform.compat.files.delete(file.id)
    assert artifacts(platform) == set()


@pytest.mark.parametrize("data", [b"abc", BytesIO(b"abc"), [b"a", b"", b"bc"]])
def test_a_file_is_what_was_given(platform: Platform, data: bytes) -> None:
    file = platform.compat.files.create("a.txt", data, purpose="user_data")
    assert (file.filename, file.purpose, file.size) == ("a.txt", "user_data", 3)
    with platform.compat.files.open(file.id) as opened:
        assert opened.read() == b"abc"
    assert platform.compat.files.get(file.id) == file


def test_several_parts_are_one_file(platform: Platform) -> None:
    platform.compat.files.create("a.txt", b"one\ntwo\n", purpose="batch")
    (file,) = platform.compat.files.list()
    more = platform._runtime.artifacts.put([b"three\nfour"])
    parts = {**file.parts, "1": {"artifact": more.name, "size": more.size, "digest": more.digest}}
    platform._runtime.store.transact(lambda tx: tx.replace(attrs.evolve(file, parts=parts)))
    with platform.compat.files.open(file.id) as opened:
        assert list(opened) == [b"one\n", b"two\n", b"three\n", b"four"]
    platform._runtime.artifacts.remove(more.name)
    with platform.compat.files.open(file.id) as opened, pytest.raises(ArtifactMissing):
        opened.read()


def test_listings_are_newest_first_and_of_a_purpose(platform: Platform, clock: ManualClock) -> None:
    made = []
    for purpose in ("batch", "evals", "batch"):
        clock.advance(1)
        made.append(platform.compat.files.create("a", b"x", purpose=purpose))
    assert [file.id for file in platform.compat.files.list()] == [file.id for file in reversed(made)]
    assert [file.id for file in platform.compat.files.list(purpose="batch", order="asc")] == [made[0].id, made[2].id]
    page = platform.compat.files.list().page(2)
    assert page.has_more
    assert [file.id for file in platform.compat.files.list().page(2, page.items[-1].id)] == [made[0].id]


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"purpose": "batch_output"}, "purpose"),
        ({"filename": ""}, "filename"),
        ({"filename": "a\nb"}, "filename"),
        ({"data": b""}, "file"),
        ({"expires_after": timedelta(seconds=10)}, "expires_after"),
        ({"expires_after": timedelta(days=31)}, "expires_after"),
    ],
)
def test_what_cannot_be_kept_is_refused_and_leaves_nothing(
    platform: Platform, options: dict[str, object], place: str
) -> None:
    asked = {"filename": "a", "data": b"x", "purpose": "batch", **options}
    with pytest.raises(InvalidInput) as wrong:
        platform.compat.files.create(asked.pop("filename"), asked.pop("data"), **asked)  # type: ignore[arg-type]
    assert [problem.loc for problem in wrong.value.problems] == [(place,)]
    assert artifacts(platform) == set()


def test_an_expired_file_is_gone_and_makes_room(platform: Platform, clock: ManualClock) -> None:
    file = platform.compat.files.create("a", b"x", purpose="batch", expires_after=timedelta(hours=1))
    clock.advance(3600)
    assert list(platform.compat.files.list()) == []
    with pytest.raises(NotFound):
        platform.compat.files.get(file.id)
    other = platform.compat.files.create("b", b"x", purpose="batch")
    stored = platform._runtime.store.read(lambda snapshot: snapshot.page(StoredFile, "all"))
    assert [one.id for one in stored] == [other.id]
    assert len(artifacts(platform)) == 1


def test_the_file_of_another_is_as_if_it_did_not_exist(platform: Platform) -> None:
    file = platform.compat.files.create("a", b"x", purpose="batch", project="p")
    for scope in (Scope("acme"), Scope("local", frozenset(["q"]))):
        other = platform.acting_as(Principal("other", str(scope.entity), scope)).compat.files
        assert list(other.list()) == []
        for use in (other.get, other.open, other.delete):
            with pytest.raises(NotFound):
                use(file.id)
    stranger = platform.acting_as(Principal("other", "acme", Scope("acme"))).compat.files
    with pytest.raises(Forbidden):
        stranger.create("a", b"x", purpose="batch", entity="local")
    with pytest.raises(Forbidden):
        stranger.list(entity="local")


def test_a_deleted_entity_leaves_no_file(platform: Platform) -> None:
    platform.compat.files.create("a", b"x", purpose="batch", entity="acme")
    platform.delete_entity("acme")
    assert list(platform.compat.files.list()) == []
    assert artifacts(platform) == set()


def test_a_sweep_knows_the_files(platform: Platform) -> None:
    file = platform.compat.files.create("a", b"x", purpose="batch")
    platform._runtime.artifacts.put([b"an orphan"])
    assert platform.remove_orphans(grace=0).removed == 1
    platform._runtime.artifacts.remove(file.parts["0"]["artifact"])
    assert [(one.kind, one.id) for one in platform.remove_orphans(grace=0).missing] == [("StoredFile", file.id)]

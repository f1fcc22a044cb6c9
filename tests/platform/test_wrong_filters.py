"""A filter of a list method that has a wrong value or type is refused as bad input, at the first read at the latest."""

import inspect
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from modelyard import Platform, open_platform
from modelyard.errors import InvalidInput, ModelyardError

WRONG: tuple[Any, ...] = (
    7,
    "no such",
    "",
    object(),
    [],
    ["x"],
    [7],
    {},
    {"a": 1},
    b"x",
    1.5,
    True,
    "\0",
    "a/b",
    "x" * 5000,
)
LISTS = ("Listing[", "ListedSlice", "Iterator[")
NO_FILTERS = {"keep", "query", "where", "version", "offset", "limit", "after", "follow", "step"}
"""Functions, values of our own, and places: they are no filters."""


def resources(owner: object, path: str, depth: int = 3) -> Iterator[tuple[str, Any]]:
    """Yield a resource and what lies below it, with their paths."""
    yield path, owner
    for name in dir(owner) if depth else ():
        found = None if name.startswith("_") else getattr(owner, name, None)
        if hasattr(found, "_principal") and not inspect.isroutine(found):
            yield from resources(found, f"{path}.{name}", depth - 1)


def list_methods(platform: Platform) -> Iterator[tuple[str, Any]]:
    for path, resource in resources(platform, "platform"):
        for name in dir(resource):
            method = None if name.startswith("_") else getattr(resource, name, None)
            if inspect.ismethod(method) and name != "upkeep":
                hint = str(inspect.signature(method).return_annotation)
                if "AsyncIterator" not in hint and any(one in hint for one in LISTS):
                    yield f"{path}.{name}", method


def read(method: Any, given: dict[str, Any]) -> None:
    found = method(**given)
    for _ in islice(iter(getattr(found, "items", found)), 3):
        pass


@pytest.fixture(params=["memory", "file", pytest.param("database", marks=pytest.mark.servers)])
def platform(request: pytest.FixtureRequest) -> Iterator[Platform]:
    place = {"file": "yard_file", "database": "yard_address"}.get(request.param)
    artifacts = "memory://" if request.param == "database" else None
    with open_platform(place and request.getfixturevalue(place), artifacts=artifacts) as platform:
        model = platform.models.create("m", project="p", base_model="tabular-mini")
        platform.training.sft(
            model, [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
        )
        platform.chat.complete(model="echo", messages="hi", store=True)
        yield platform


@pytest.mark.slow
def test_every_list_method_refuses_a_wrong_filter_as_bad_input(platform: Platform) -> None:
    tried, bare = set[str](), list[str]()
    model = platform.models.find("m", project="p").id
    for path, method in list_methods(platform):
        known = inspect.signature(method).parameters.values()
        needed = {
            one.name: {"model": model, "limit": 5}.get(one.name, "x") for one in known if one.default is one.empty
        }
        needed |= dict.fromkeys({"offset", "step"} & needed.keys(), 1)
        for name in {one.name for one in known} - NO_FILTERS:
            tried.add(f"{path}({name}=)")
            for wrong in WRONG:
                try:
                    read(method, {**needed, name: wrong})
                except ModelyardError:
                    pass
                except Exception as error:
                    bare.append(f"{path}({name}={str(wrong)[:9]!r}): {type(error).__name__}: {error}")
    assert not bare, "\n".join(bare)
    assert len(tried) > 50
    assert {"platform.jobs.list(status=)", "platform.training.list(status=)"} <= tried


def test_a_status_may_be_its_word_and_a_wrong_one_is_refused_at_the_call(platform: Platform) -> None:
    for resource in (platform.jobs, platform.training):
        assert len([*resource.list(status="queued")]) == 1
        assert not [*resource.list(status="succeeded")]
        for wrong in ("quued", 7, [], object()):
            with pytest.raises(InvalidInput, match="status: must be one of queued, running"):
                resource.list(status=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="did you mean 'queued'"):
        platform.jobs.list(status="quued")


def test_what_must_be_text_is_refused_at_the_call(platform: Platform) -> None:
    for name in ("entity", "project"):
        with pytest.raises(InvalidInput, match=f"{name}: must be 1 to 128 characters"):
            platform.jobs.list(**{name: 7})
    assert not [*platform.jobs.list(project="none-such")]

"""What parts add to a platform and to its resources: found by name, listed by `dir`, warned of under an old name."""

import re
import warnings
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import pytest

import modelyard
import modelyard.testing
from each import each_case
from modelyard import Platform, open_platform
from modelyard.domain.identity import Principal
from modelyard.errors import InvalidInput
from modelyard.part import Part, standard_parts
from modelyard.platform.runtime import Runtime


class Notes:
    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self.principal = principal


REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "python.md"
NAMES = ("memos", "training.study", "compat.letters")


@pytest.fixture
def platform() -> Iterator[Platform]:
    part = Part("notes", resources=dict.fromkeys(NAMES, lambda: Notes))
    with open_platform(parts=[part]) as platform:
        yield platform


def test_each_is_found_and_listed_where_its_name_says(platform: Platform) -> None:
    for owner, name in ((platform, "memos"), (platform.training, "study"), (platform.compat, "letters")):
        assert isinstance(getattr(owner, name), Notes)
        assert name in dir(owner)
    assert not {"training.study", "study", "letters"} & {*dir(platform)}


def test_members_are_those_of_the_caller(platform: Platform) -> None:
    key = platform.acting_as(platform.keys.authenticate(platform.keys.create("acme").secret))
    assert key.training.study.principal.name == key.compat.letters.principal.name == key._principal.name  # type: ignore[attr-defined]


def test_the_old_name_of_what_moved_warns_and_works(platform: Platform) -> None:
    with pytest.warns(DeprecationWarning, match=r"platform\.letters is platform\.compat\.letters now"):
        assert isinstance(platform.letters, Notes)  # type: ignore[attr-defined]


MOVED = {
    "export_model": "models.export",
    "import_adapter": "models.import_adapter",
    "keep_events": "keep.events",
    "keep_ledger": "keep.ledger",
    "keep_runs": "keep.runs",
    "keep_texts": "keep.texts",
    "push_model": "models.push",
    "responses": "compat.responses",
    "retry": "jobs.retry",
    "sweep": "remove_orphans",
    "sweeps": "training.sweeps",
}


@pytest.mark.parts
@each_case("old", [*MOVED])
def test_what_had_another_name_works_and_warns_once_where_it_is_used(old: str) -> None:
    with open_platform() as platform, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            found = getattr(platform, old)
        expected = attrgetter(MOVED[old])(platform)
        assert old not in dir(platform)
    assert getattr(found, "__func__", type(found)) == getattr(expected, "__func__", type(expected))
    (warned,) = caught
    assert (str(warned.message), warned.filename) == (f"platform.{old} is platform.{MOVED[old]} now", __file__)


@pytest.mark.parts
def test_a_sweep_starts_under_the_name_that_it_had() -> None:
    with open_platform(project="desk") as platform:
        platform.models.create("m", base_model="tabular-mini")
        rows = [
            {"messages": [{"role": "user", "content": str(n)}, {"role": "assistant", "content": "b"}]} for n in range(9)
        ]
        with pytest.warns(DeprecationWarning, match="sweep") as warned:
            sweep = platform.sweeps.start("desk/m", rows, epochs=[1, 2])  # type: ignore[attr-defined]
        assert [one.id for one in platform.training.sweeps.list()] == [sweep.id]
        assert not hasattr(platform.training.sweeps, "begin")
    assert [str(one.message) for one in warned] == [
        "platform.sweeps is platform.training.sweeps now",
        "platform.sweeps.start is platform.training.sweep now",
    ]


def test_a_name_that_moved_to_a_part_that_is_not_there_is_no_attribute() -> None:
    with open_platform(parts=()) as platform:
        for old in MOVED.keys() - {"sweep"}:
            assert not hasattr(platform, old)


@pytest.mark.parts
def test_there_are_few_names() -> None:
    """What completion offers: a newcomer reads them all."""
    with open_platform() as platform:
        for owner, most in ((platform, 35), (modelyard, 41), (modelyard.testing, 28)):
            names = [name for name in dir(owner) if not name.startswith("_")]
            assert len(names) <= most, f"put what belongs together together: {names}"


@pytest.mark.parametrize("area", ["", "training.", "compat."])
def test_what_nobody_brings_is_no_attribute(platform: Platform, area: str) -> None:
    owner = {"": platform, "training.": platform.training, "compat.": platform.compat}[area]
    with warnings.catch_warnings(), pytest.raises(AttributeError, match="nothing"):
        _ = owner.nothing  # type: ignore[attr-defined]
    assert not hasattr(owner, "_notes")


@pytest.mark.parts
def test_completion_offers_what_people_use_and_every_public_name() -> None:
    with open_platform() as platform:
        offered = {name for name in dir(platform) if not name.startswith("_")}
        hidden = {name for name in object.__dir__(platform) if not name.startswith("_")} - offered
    page = re.sub(r"^What parts, servers and tests use .*?\n\n", "", REFERENCE.read_text("utf-8"), flags=re.M | re.S)
    described = {*re.findall(r"`platform\.(\w+)", page)}
    assert {"threads", "each_second", "observe", "clock"} <= hidden
    assert not hidden & described, "the reference has what completion does not offer"
    assert described <= offered
    assert {"chat", "models", "training", "evaluations", "jobs", "keys", "usage", "compat"} <= offered
    brought = {name for part in standard_parts() for name in part.resources if "." not in name}
    assert brought <= offered
    for package in (modelyard, modelyard.testing):
        names = {name for name in dir(package) if not name.startswith("_")}
        public = {name for name in package.__all__ if not name.startswith("_")}  # type: ignore[attr-defined]
        assert names == public


@pytest.mark.parametrize(
    ("of", "typed", "meant"),
    [
        ("", "evaluation", "evaluations"),
        ("", "catalog", "catalogue"),
        ("training", "sfft", "sft"),
        ("evaluations", "predictons", "predictions"),
        ("", "modles", "models"),
    ],
)
def test_a_misspelt_member_is_told_the_nearest(of: str, typed: str, meant: str) -> None:
    with open_platform() as platform, pytest.raises(AttributeError, match=rf"did you mean '{meant}'\?$"):
        getattr(getattr(platform, of) if of else platform, typed)


def test_a_private_name_is_no_misspelling() -> None:
    with open_platform() as platform:
        for of in (platform, platform.training):
            with pytest.raises(AttributeError) as refused:
                _ = of._sft  # type: ignore[attr-defined]
            assert "did you mean" not in str(refused.value)


def test_nobody_acts_as_a_name_alone(platform: Platform) -> None:
    with pytest.raises(InvalidInput, match="principal: must be a Principal"):
        platform.acting_as("acme")  # type: ignore[arg-type]

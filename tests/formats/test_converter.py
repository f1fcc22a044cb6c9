"""Strict structuring: what fits becomes a value, what does not is named at its place, and nothing is coerced."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.errors import InvalidInput
from modelyard.formats import converter_errors
from modelyard.formats.chat.messages import AssistantMessage
from modelyard.formats.constraints import Length, Matching, Unsupported, Within
from modelyard.formats.converter import (
    MAX_PROBLEMS,
    filled_text,
    structure,
    structure_exactly,
    unstructure,
)
from modelyard.formats.structure_hooks import tag_of


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@attrs.frozen
class Circle:
    type: Literal["circle"]
    radius: float = attrs.field(validator=Within(0, above=True))


@attrs.frozen
class Square:
    type: Literal["square"]
    side: int = 1


@attrs.frozen
class Drawing:
    name: str = attrs.field(validator=[Length(1, 8), Matching("[a-z]*", "must be lower-case letters")])
    shapes: tuple[Circle | Square, ...] = ()
    colour: Colour = Colour.RED
    note: str | list[str] | None = None
    tags: Mapping[str, int] = attrs.field(factory=dict)
    weights: Sequence[float] = (1.0,)
    visible: bool = True
    level: Literal[1, 2] = 1
    anything: Any = None
    forbidden: object = attrs.field(default=None, validator=Unsupported("is not supported"))


@attrs.frozen(kw_only=True)
class Sized(Drawing):
    size: int


def problems(value: object, cls: type = Drawing, *loc: str) -> dict[str, str]:
    with pytest.raises(InvalidInput) as caught:
        structure(cls, value, *loc)
    return {".".join(map(str, problem.loc)): problem.type for problem in caught.value.problems}


def test_what_fits_becomes_an_instance_with_the_defaults_of_what_is_absent() -> None:
    drawing = structure(
        Drawing,
        {
            "name": "plan",
            "shapes": [{"type": "circle", "radius": 2}, {"type": "square"}],
            "colour": "blue",
            "note": ["a"],
            "tags": {"x": 1},
            "weights": [1, 2.5],
            "anything": {"deep": [None]},
            "unknown": object(),
        },
    )
    assert drawing == Drawing(
        "plan",
        (Circle("circle", 2.0), Square("square")),
        Colour.BLUE,
        ["a"],
        {"x": 1},
        (1.0, 2.5),
        anything={"deep": [None]},
    )


def test_null_is_absent_for_a_field_with_a_default_and_wrong_for_one_without() -> None:
    nulls = {field.name: None for field in attrs.fields(Drawing) if field.name != "name"}
    assert structure(Drawing, {"name": "x", **nulls}) == Drawing("x")
    assert problems({"name": None}) == {"name": "string_type"}


@each_case(
    ("member", "value", "type_"),
    [
        ("name", 5, "string_type"),
        ("name", True, "string_type"),
        ("name", ["a"], "string_type"),
        ("shapes", {}, "list_type"),
        ("shapes", "ab", "list_type"),
        ("colour", "green", "literal_error"),
        ("colour", 1, "literal_error"),
        ("colour", ["red"], "literal_error"),
        ("note", 5, "union_type"),
        ("note", {}, "union_type"),
        ("tags", [], "dict_type"),
        ("visible", "yes", "bool_type"),
        ("visible", 1, "bool_type"),
        ("level", 3, "literal_error"),
        ("level", True, "literal_error"),
        ("forbidden", 0, "value_error"),
    ],
)
def test_nothing_is_coerced(member: str, value: object, type_: str) -> None:
    assert problems({"name": "x", member: value}) == {member: type_}


@pytest.mark.parametrize(("value", "type_"), [("1", "float_type"), (True, "float_type"), (None, "float_type")])
def test_items_are_checked_one_by_one(value: object, type_: str) -> None:
    assert problems({"name": "x", "weights": [0.5, value, 1, value]}) == {"weights.1": type_, "weights.3": type_}


def test_every_problem_is_named_at_its_place_at_once() -> None:
    assert problems(
        {
            "name": "MUCH TOO LONG",
            "shapes": [
                {"type": "circle", "radius": 0},
                {"type": "circle"},
                {"type": "star"},
                {},
                7,
                {"type": ["circle"]},
            ],
            "tags": {"a": 1, "b": "2", "c": 1.5},
            "visible": 0,
        },
        Drawing,
        "body",
    ) == {
        "body.name": "value_error",
        "body.shapes.0.radius": "value_error",
        "body.shapes.1.radius": "missing",
        "body.shapes.2.type": "literal_error",
        "body.shapes.3.type": "missing",
        "body.shapes.4": "dict_type",
        "body.shapes.5.type": "literal_error",
        "body.tags.b": "int_type",
        "body.tags.c": "int_type",
        "body.visible": "bool_type",
    }


@each_case("value", [None, [], "text", 1, True, 1.5])
def test_what_is_not_an_object_is_one_problem(value: object) -> None:
    assert problems(value, Drawing, "body") == {"body": "dict_type"}


def test_a_missing_member_is_named() -> None:
    assert problems({}) == {"name": "missing"}


def test_a_rule_over_several_fields_says_where() -> None:
    @attrs.frozen
    class Span:
        first: int
        last: int

        def __attrs_post_init__(self) -> None:
            if self.last < self.first:
                raise InvalidInput.at("last", msg="must not lie before first")
            if self.first == 13:
                raise ValueError("thirteen is not liked")

    @attrs.frozen
    class Spans:
        spans: list[Span]

    assert problems({"spans": [{"first": 2, "last": 1}, {"first": 13, "last": 14}]}, Spans) == {
        "spans.0.last": "value_error",
        "spans.1": "value_error",
    }


def test_only_the_first_hundred_problems_are_listed_with_the_number_of_the_others() -> None:
    with pytest.raises(InvalidInput) as caught:
        structure(Drawing, {"name": "x", "weights": ["no"] * 250})
    reported = caught.value.problems
    assert len(reported) == MAX_PROBLEMS
    assert "150 more" in reported[-1].msg
    assert all("more" not in problem.msg for problem in reported[:-1])


def test_what_is_meant_by_unknown_members_is_found_for_those_that_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def nearest(name: str, known: Iterable[str], least: float = 0.6) -> str:
        asked.append(name)
        return ""

    monkeypatch.setattr(converter_errors, "nearest", nearest)
    shapes = [{"type": "square", "side": 2, f"sdie{number}": 1} for number in range(500)]
    body = {"name": "x", "shapes": shapes, **{f"nmae{number}": 1 for number in range(70)}}
    with pytest.raises(InvalidInput) as caught:
        structure_exactly(Drawing, body)
    reported = caught.value.problems
    assert (len(reported), reported[69].loc, reported[70].loc) == (MAX_PROBLEMS, ("nmae69",), ("shapes", 0, "sdie0"))
    assert reported[-1].msg == "is not known; leave it out (and 470 more problems)"
    assert len(set(asked)) == MAX_PROBLEMS


def test_messages_never_repeat_the_input() -> None:
    with pytest.raises(InvalidInput) as caught:
        structure(Drawing, {"name": "SECRET", "colour": "SECRET", "shapes": ["SECRET"], "tags": "SECRET", "note": 5})
    assert "SECRET" not in str(caught.value)


def test_members_that_the_class_lacks_are_refused_where_it_must_fit_exactly() -> None:
    body = {"name": "x", "nmae": "y", "shapes": [{"type": "square", "sdie": 2}, {"type": "square", "side": 2}]}
    assert structure(Drawing, body) == Drawing("x", (Square("square"), Square("square", 2)))
    with pytest.raises(InvalidInput) as caught:
        structure_exactly(Drawing, body, "line")
    assert [problem.loc for problem in caught.value.problems] == [("line", "nmae"), ("line", "shapes", 0, "sdie")]


def test_an_ambiguous_or_unreadable_class_is_a_type_error() -> None:
    @attrs.frozen
    class Strange:
        value: complex

    with pytest.raises(TypeError):
        structure(Strange, {"value": 1})
    with pytest.raises(TypeError):
        tag_of([Drawing, Strange])


def test_problems_are_ordered_missing_members_then_types_as_sent_then_constraints() -> None:
    with pytest.raises(InvalidInput) as caught:
        structure(Sized, {"name": "TOO LONG A NAME", "level": 3, "note": 5})
    assert [problem.loc for problem in caught.value.problems] == [("size",), ("level",), ("note",), ("name",)]


def test_a_fault_of_the_class_itself_is_not_a_problem_of_the_data() -> None:
    @attrs.frozen
    class Broken:
        value: int

        def __attrs_post_init__(self) -> None:
            raise KeyError("value")

    with pytest.raises(KeyError):
        structure(Broken, {"value": 1})


# ---- the way back ------------------------------------------------------------------------------------------------


@attrs.frozen
class Answer:
    id: str | None
    colour: Colour | None
    at: datetime
    inner: Circle | None = None
    more: Mapping[str, Any] = attrs.field(factory=dict)
    value: object = None
    names: frozenset[str] = frozenset()
    limits: Mapping[int, Decimal] = attrs.field(factory=dict)
    day: date | None = None


AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_what_has_a_default_is_left_out_where_it_has_it_and_nothing_else_is() -> None:
    assert unstructure(Answer(None, None, AT)) == {"id": None, "colour": None, "at": "2026-01-02T03:04:05.000000Z"}


def test_what_is_kept_filled_has_every_value_that_is_neither_none_nor_empty() -> None:
    assert json.loads(filled_text(Drawing("x", (Square("square"),), note=None, tags={}))) == {
        "name": "x",
        "shapes": [{"type": "square", "side": 1}],
        "colour": "red",
        "weights": [1.0],
        "visible": True,
        "level": 1,
    }


def test_json_data_are_plain_at_every_depth() -> None:
    frozen = MappingProxyType({"a": (1, MappingProxyType({"b": Colour.RED}))})
    written = unstructure(
        Answer(
            "x",
            Colour.BLUE,
            AT,
            Circle("circle", 2.0),
            frozen,
            [frozen],
            frozenset("ba"),
            {5: Decimal("1.50")},
            date(2026, 1, 2),
        )
    )
    assert (
        written
        == json.loads(json.dumps(written))
        == {
            "id": "x",
            "colour": "blue",
            "at": "2026-01-02T03:04:05.000000Z",
            "inner": {"type": "circle", "radius": 2.0},
            "more": {"a": [1, {"b": "red"}]},
            "value": [{"a": [1, {"b": "red"}]}],
            "names": ["a", "b"],
            "limits": {"5": "1.50"},
            "day": "2026-01-02",
        }
    )
    assert type(written["colour"]) is type(written["more"]["a"][1]["b"]) is str


@given(
    st.builds(
        Drawing,
        st.text("ab", min_size=1, max_size=8),
        st.lists(st.builds(Circle, st.just("circle"), st.floats(1, 5)) | st.builds(Square, st.just("square"))).map(
            tuple
        ),
        st.sampled_from(Colour),
        st.none() | st.text() | st.lists(st.text()),
        st.dictionaries(st.text(), st.integers()),
        st.lists(st.floats(allow_nan=False)).map(tuple),
        st.booleans(),
        st.sampled_from([1, 2]),
    )
)
def test_what_is_written_is_read_again(drawing: Drawing) -> None:
    assert structure(Drawing, json.loads(json.dumps(unstructure(drawing)))) == drawing


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
members = st.sampled_from([field.name for field in attrs.fields(Drawing)] + ["type", "radius", "side"])


@pytest.mark.slow
@given(st.dictionaries(members, json_values | st.lists(st.dictionaries(members, json_values, max_size=3), max_size=3)))
def test_any_json_is_either_an_instance_with_values_of_its_types_or_problems_at_known_places(
    value: dict[str, Any],
) -> None:
    try:
        drawing = structure(Drawing, value)
    except InvalidInput as wrong:
        assert wrong.problems
        assert all(problem.loc[0] in {field.name for field in attrs.fields(Drawing)} for problem in wrong.problems)
    else:
        assert type(drawing.name) is str
        assert type(drawing.visible) is bool
        assert all(type(weight) is float for weight in drawing.weights)
        assert all(type(count) is int for count in drawing.tags.values())


def test_a_misspelt_member_that_changes_nothing_has_a_nearest_name_too() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'annotations'"):
        structure_exactly(AssistantMessage, {"role": "assistant", "content": "x", "annotatons": []})

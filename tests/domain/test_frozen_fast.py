"""`quick_init` changes what making a value costs, and nothing else."""

import copy
import inspect
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest

from each import each_case
from modelyard.domain import completion, events, identity, usage
from modelyard.domain.completion import Delta
from modelyard.domain.frozen_fast import copies, maker, quick_init
from modelyard.domain.record import EMPTY, frozen_mapping

MODULES = (completion, events, identity, usage)
QUICK = sorted(
    {
        value
        for module in MODULES
        for value in vars(module).values()
        if inspect.isclass(value) and attrs.has(value) and value.__init__.__code__.co_names[:2] == ("__class__", "made")
    },
    key=str,
)


@attrs.frozen(weakref_slot=False)
class Plain:
    """A class as attrs makes it."""

    name: str
    type: int = 0
    data: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    seq: int = attrs.field(default=0, eq=False, repr=False)


@quick_init
@attrs.frozen(weakref_slot=False)
class Value:
    """The same fields with the quick `__init__`."""

    name: str
    type: int = 0
    data: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    seq: int = attrs.field(default=0, eq=False, repr=False)


def outcome(make: Callable[..., Any], *args: Any, **named: Any) -> object:
    try:
        return attrs.asdict(make(*args, **named), recurse=False)
    except Exception as error:
        return type(error)


@each_case(
    ("args", "named"),
    [
        (("a",), {}),
        (("a", 1, {"b": 2}, 3), {}),
        (("a",), {"seq": 4, "data": {"b": 2}}),
        ((), {}),
        (("a",), {"other": 1}),
        (("a", 1, 7), {}),
        (("a", 1, {}, 3, 4), {}),
    ],
)
def test_it_takes_and_refuses_what_the_init_of_attrs_does(args: Any, named: Any) -> None:
    assert outcome(Value, *args, **named) == outcome(Plain, *args, **named)


def test_the_value_is_of_its_class_and_cannot_be_changed() -> None:
    value = Value("a", data={"b": 2})
    assert type(value) is Value
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        value.count = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        value.data["b"] = 3  # type: ignore[index]
    with pytest.raises((AttributeError, TypeError)):
        value.other = 1  # type: ignore[attr-defined]


def test_it_is_equal_hashable_copied_and_pickled_as_before() -> None:
    value = Value("a", 1, seq=1)
    assert value == Value("a", 1, seq=2) != Value("a", 2)
    assert hash(Delta("a", 1)) == hash(Delta("a", 1))
    assert repr(value) == repr(Plain("a", 1)).replace("Plain", "Value")
    for copied in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value)), attrs.evolve(value)):
        assert copied == value
        assert type(copied) is Value


def test_the_signature_is_the_one_of_attrs() -> None:
    mine, attrs_own = inspect.signature(Value), inspect.signature(Plain)
    assert str(mine).replace("Value", "Plain") == str(attrs_own)


def test_a_subclass_is_made_by_attrs() -> None:
    class Bare(Value):
        __slots__ = ()

    @attrs.frozen
    class More(Value):
        more: int = 1

    assert type(Bare("a", data={})) is Bare
    assert type(More("a", more=2)) is More
    assert More("a", more=2).name == "a"


@attrs.frozen(weakref_slot=False)
class Checked:
    number: int = attrs.field(validator=attrs.validators.instance_of(int))
    words: list[str] = attrs.field(factory=list)
    pair: tuple[int, ...] = attrs.field(factory=list, converter=tuple)
    named: str = attrs.field(default="n", kw_only=True)


@pytest.mark.parametrize("quick", [False, True])
def test_validators_factories_and_keyword_only_fields_are_those_of_attrs(quick: bool) -> None:
    cls: Any = attrs.make_class("Quick", {}, bases=(Checked,), frozen=True, slots=True, weakref_slot=False)
    for make in (maker(quick_init(cls)), cls) if quick else (cls,):
        made, other = make(1), make(number=2, words=["a"], pair=[3], named="m")
        assert attrs.astuple(made) == (1, [], (), "n")
        assert attrs.astuple(other) == (2, ["a"], (3,), "m")
        assert made.words is not make(1).words
        with pytest.raises(TypeError, match="number"):
            make("one")
        with pytest.raises(TypeError):
            make(1, [], [], "positional")
        with pytest.raises(TypeError):
            make()


def test_the_values_that_each_completion_makes_have_it() -> None:
    assert {cls.__name__ for cls in QUICK} >= {
        "Message",
        "Sampling",
        "CompletionRequest",
        "Delta",
        "Usage",
        "Choice",
        "Completion",
        "LedgerEntry",
        "UsageTotal",
    }


@each_case(
    ("args", "named"),
    [
        (("a",), {}),
        (("a", 1, {"b": 2}, 3), {}),
        (("a",), {"seq": 4, "data": {"b": 2}}),
        ((), {}),
        (("a",), {"other": 1}),
        (("a", 1, 7), {}),
    ],
)
def test_a_maker_makes_and_refuses_what_the_class_does(args: Any, named: Any) -> None:
    assert outcome(maker(Value), *args, **named) == outcome(Plain, *args, **named)


@each_case("cls", QUICK)
def test_what_a_maker_makes_is_frozen(cls: type) -> None:
    needed: list[Any] = [
        {} if field.converter else None for field in attrs.fields(cls) if field.default is attrs.NOTHING
    ]
    made = maker(cls)(*needed)
    assert type(made) is cls
    assert made == cls(*needed)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(made, attrs.fields(cls)[0].name, 1)


def test_a_class_without_a_quick_init_is_its_own_maker() -> None:
    assert maker(Plain) is Plain


@quick_init
@attrs.frozen(weakref_slot=False)
class Copied:
    """A class with a method that copies."""

    name: str
    type: int = 0
    data: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)

    @copies
    def typed(self, type: int) -> "Copied":
        """Return a copy of this type."""
        raise NotImplementedError


def test_a_copy_has_the_values_that_the_method_takes() -> None:
    value = Copied("a", 1, {"b": 2})
    copied = value.typed(5)
    assert copied == Copied("a", 5, {"b": 2})
    assert type(copied) is Copied
    assert value.type == 1
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        copied.name = "b"  # type: ignore[misc]
    assert Copied.typed.__doc__ == "Return a copy of this type."


def test_a_copy_cannot_change_what_is_converted() -> None:
    with pytest.raises(TypeError, match="filled changes a field that is converted or validated"):

        @quick_init
        @attrs.frozen(weakref_slot=False)
        class _Wrong:
            data: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)

            @copies
            def filled(self, data: Mapping[str, Any]) -> "_Wrong":
                raise NotImplementedError


def test_a_copy_cannot_change_what_is_validated() -> None:
    with pytest.raises(TypeError, match="numbered changes a field that is converted or validated"):

        @quick_init
        @attrs.frozen(weakref_slot=False)
        class _Wrong:
            number: int = attrs.field(validator=attrs.validators.instance_of(int))

            @copies
            def numbered(self, number: int) -> "_Wrong":
                raise NotImplementedError


class _PostInit:
    def __attrs_post_init__(self) -> None:
        raise NotImplementedError


@each_case(
    ("field", "bases", "named"),
    [
        (lambda: attrs.field(default=0), (_PostInit,), "__attrs_post_init__"),
        (lambda: attrs.field(default=0, init=False), (), "count"),
        (lambda: attrs.field(default=attrs.Factory(lambda self: 1, takes_self=True)), (), "count"),
    ],
)
def test_what_it_would_not_do_as_attrs_does_is_refused(field: Any, bases: tuple[type, ...], named: str) -> None:
    cls = attrs.make_class("Made", {"count": field()}, bases=bases or (object,), frozen=True, weakref_slot=False)
    with pytest.raises(TypeError, match=f"Made cannot have a quick __init__: {named}"):
        quick_init(cls)

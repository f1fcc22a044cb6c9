"""Values and exceptions survive pickle, deepcopy and a process pool: what is sent there comes back equal."""

import copy
import importlib
import inspect
import pickle
import pkgutil
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from multiprocessing import get_context
from types import MappingProxyType
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import modelyard.domain
from each import check_each
from example_counts import examples
from modelyard import Trajectory, errors, open_platform
from modelyard.domain.evaluation.metrics import RunRow
from modelyard.domain.record import frozen_mapping
from modelyard.http import errors as http_errors

TIMES = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
JSON = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
MAPPINGS = st.dictionaries(st.text(max_size=5), JSON, max_size=2).map(frozen_mapping)
LEAVES: Mapping[Any, st.SearchStrategy[Any]] = {
    Any: JSON | MAPPINGS | st.lists(JSON, max_size=2).map(tuple),
    object: JSON,
    datetime: TIMES,
    float: st.floats(allow_nan=False),
    Decimal: st.decimals(0, 10**9, places=3),
}


def _classes() -> Iterator[type]:
    for module in pkgutil.walk_packages(modelyard.domain.__path__, "modelyard.domain."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if inspect.isclass(value) and attrs.has(value) and value.__module__ == module.name and name[0] != "_":
                yield value


def _is_value(cls: type) -> bool:
    return cls.__setattr__ is not object.__setattr__ and not inspect.isabstract(cls) and cls is not RunRow


VALUES = sorted({cls for cls in _classes() if _is_value(cls)}, key=str)
"""Every public frozen class of the vocabulary, but for the row of a stored run, which reads on demand."""


def any_of(hint: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Generate values of a type, as far down as two levels of our own classes."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in LEAVES:
        return LEAVES[hint]
    if inspect.isclass(hint) and attrs.has(hint):
        return instances(hint, depth + 1) if depth < 2 else st.nothing()
    if inspect.isclass(hint) and hint.__module__.startswith("modelyard.") and hint.__subclasses__():
        return st.one_of([any_of(cls, depth) for cls in hint.__subclasses__()])
    if origin is typing.Annotated:
        return any_of(args[0], depth)
    if origin is not None and inspect.isclass(origin) and attrs.has(origin):
        return instances(origin, depth + 1)
    if origin in (tuple, Sequence, Iterable, list):
        item = any_of(args[0], depth)
        return st.just(()) if item.is_empty else st.lists(item, max_size=2).map(tuple)
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return st.dictionaries(any_of(args[0], depth), any_of(args[1], depth), max_size=2).map(frozen_mapping)
    if hint is type or origin in (Callable, type):
        return st.just(Decimal)
    if args and origin is not typing.Literal:
        return st.one_of([any_of(part, depth) for part in args])
    anything = isinstance(hint, typing.TypeVar) or getattr(hint, "_is_protocol", False)
    return JSON if anything else st.from_type(hint)


@cache
def instances(cls: type, depth: int = 0) -> st.SearchStrategy[Any]:
    """Generate instances of an attrs class, field by field: what it checks of them is not what is tested here."""
    hints = typing.get_type_hints(cls, include_extras=True)

    def made(values: Mapping[str, Any]) -> Any:
        value = object.__new__(cls)
        for name, part in values.items():
            object.__setattr__(value, name, part)
        return value

    return st.fixed_dictionaries({f.name: any_of(hints[f.name], depth) for f in attrs.fields(cls)}).map(made)


def parts(value: Any) -> Any:
    """Take a value apart, down to what can be compared: a condition of a query makes another of `==`."""
    if attrs.has(type(value)):
        return type(value), [parts(getattr(value, f.name)) for f in attrs.fields(type(value))]
    if isinstance(value, Mapping):
        return {key: parts(part) for key, part in value.items()}
    return [parts(part) for part in value] if isinstance(value, tuple | list) else value


def pickled(value: object) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.slow
@pytest.mark.parametrize("cls", VALUES, ids=lambda cls: cls.__name__)
def test_values_come_back_equal(cls: type) -> None:
    @examples(5, suppress_health_check=[HealthCheck.too_slow])
    @given(instances(cls))
    def check(value: object) -> None:
        for copied in (pickled(value), copy.deepcopy(value), copy.copy(value)):
            assert parts(copied) == parts(value)

    check()


def test_a_copied_mapping_cannot_be_changed() -> None:
    copied = pickled(Trajectory((), reward=1.0, metrics={"a": 1.0})).metrics
    assert type(copied) is MappingProxyType
    assert copied == {"a": 1.0}


PROBLEM = errors.Problem(("messages", 0), "is wrong")
ARGUMENTS: Mapping[type[Exception], tuple[Any, ...]] = {
    errors.InvalidInput: ([PROBLEM, errors.Problem((), "is bad", "missing")],),
    errors.NotFound: ("model", "x", "see the catalogue"),
    errors.ObjectDeleted: ("object", "x", datetime(2026, 1, 1, tzinfo=UTC)),
    errors.RateLimited: ("slowly", 2.5),
    errors.Overloaded: ("slowly", 2.5),
    errors.BodyTooLarge: (10,),
    errors.MissingExtra: ("torch", "torch"),
    errors.JobFailed: ("1", "failed", "out of memory"),
    http_errors.MethodNotAllowed: (["GET", "HEAD"],),
}


def _exceptions() -> Iterator[type[errors.ModelyardError]]:
    waiting = [errors.ModelyardError]
    while waiting:
        cls = waiting.pop()
        if cls.__module__ in (errors.__name__, http_errors.__name__):
            yield cls
            waiting += cls.__subclasses__()


def example(cls: type[errors.ModelyardError]) -> errors.ModelyardError:
    return cls(*next((ARGUMENTS[base] for base in cls.__mro__ if base in ARGUMENTS), ("something is wrong",)))


def test_exceptions_come_back_equal() -> None:
    def check(cls: type[errors.ModelyardError]) -> None:
        failure = example(cls)
        failure.add_note("seen in row 3")
        for copied in (pickled(failure), copy.deepcopy(failure)):
            assert type(copied) is cls
            assert str(copied) == str(failure)
            assert copied.args == failure.args
            assert vars(copied) == vars(failure)

    check_each({str(cls): cls for cls in _exceptions()}, check)


@pytest.mark.slow
def test_what_the_platform_returns_crosses_to_another_process_and_back() -> None:
    with open_platform() as platform, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        model = platform.models.create("support", base_model="tabular-mini")
        values = [model, platform.chat.complete(model="echo", messages="hi"), *platform.catalogue.list()]
        assert list(pool.map(copy.copy, values)) == values
        with pytest.raises(errors.ModelNotFound) as expected:
            platform.chat.complete(model="nope", messages="hi")
        with pytest.raises(errors.ModelNotFound) as caught:
            pool.submit(exec, "raise failure", {"failure": expected.value}).result()
        assert vars(caught.value).items() >= {"kind": "model", "id": "nope"}.items()


def test_every_error_has_the_http_status_that_its_response_has() -> None:
    assert {cls.__name__: cls.status for cls in (errors.BudgetExceeded, errors.Unauthenticated, errors.QueueFull)} == {
        "BudgetExceeded": 402,
        "Unauthenticated": 401,
        "QueueFull": 429,
    }

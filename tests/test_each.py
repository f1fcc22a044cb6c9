"""A test of many cases under one id fails for each that fails, and says which."""

import inspect

import pytest

from each import each_case


def test_all_that_fail_are_named_and_the_others_are_tried() -> None:
    tried = []

    @each_case("left, right", [(1, 1), pytest.param(1, 2, id="unequal"), (3, 3), (3, 4)])
    def check(left: int, right: int) -> None:
        tried.append((left, right))
        assert left == right

    with pytest.raises(ExceptionGroup, match="2 of 4 cases failed") as failed:
        check()
    assert tried == [(1, 1), (1, 2), (3, 3), (3, 4)]
    assert [error.__notes__ for error in failed.value.exceptions] == [["case unequal"], ["case 3, 4"]]


def test_what_was_not_raised_is_a_failure_of_its_case() -> None:
    @each_case("word", ["a", "b"], ids=str.upper)
    @each_case("text", ["1", "x"])
    def check(word: str, text: str) -> None:
        with pytest.raises(ValueError, match="invalid literal"):
            int(text if word == "b" else "x")

    with pytest.raises(pytest.fail.Exception) as failed:
        check()
    assert failed.value.__notes__ == ["case '1'", "case B"]


def test_fixtures_and_the_instance_are_left_to_pytest() -> None:
    class Tests:
        @each_case("number", range(3))
        def check(self, platform: object, number: int) -> None:
            seen.append((platform, number))

    seen: list[tuple[object, int]] = []
    assert [*inspect.signature(Tests.check).parameters] == ["self", "platform"]
    Tests().check(platform="p")
    assert seen == [("p", 0), ("p", 1), ("p", 2)]


def test_a_list_without_cases_is_a_failure() -> None:
    with pytest.raises(AssertionError, match="there is no case"):
        each_case("number", [])(lambda number: None)()

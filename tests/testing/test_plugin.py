"""The pytest plugin: a platform for each test, with the real client wired to it."""

import asyncio
from typing import Any

import pytest

from modelyard import Platform
from modelyard.backends.scripted import ScriptedBackend

HELLO: Any = [{"role": "user", "content": "hello from the other side"}]


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_a_fresh_platform(yard: Platform, turn: int) -> None:
    assert yard.chat.complete(model="echo", messages="hello").text == "hello"
    assert len(yard.usage.entries().items) == 1


def test_the_client_asks_the_platform_of_the_same_test(yard: Platform, yard_openai: Any) -> None:
    answer = yard_openai.chat.completions.create(model="echo", messages=HELLO)
    assert answer.choices[0].message.content == "hello from the other side"
    assert [entry.entity for entry in yard.usage.entries().items] == [yard.principal.entity]


def test_the_asynchronous_client_asks_the_platform_of_the_same_test(yard: Platform, yard_async_openai: Any) -> None:
    answer = asyncio.run(yard_async_openai.chat.completions.create(model="echo", messages=HELLO))
    assert answer.choices[0].message.content == "hello from the other side"
    assert len(yard.usage.entries().items) == 1


class TestABackendOfOnesOwn:
    @pytest.fixture
    def yard_backend(self) -> ScriptedBackend:
        return ScriptedBackend(["Paris."])

    def test_what_overrides_yard_backend_answers(self, yard_openai: Any, yard_backend: ScriptedBackend) -> None:
        answer = yard_openai.chat.completions.create(model="scripted", messages=HELLO)
        assert answer.choices[0].message.content == "Paris."
        assert len(yard_backend.requests) == 1


def run(pytester: pytest.Pytester, code: str, *options: str) -> pytest.RunResult:
    """Run a test module with the plugin in a process of its own, where warnings are errors."""
    pytester.makepyfile(code)
    return pytester.runpytest_subprocess("-p", "pytest_modelyard", "-p", "no:cacheprovider", "-W", "error", *options)


def test_nothing_of_modelyard_is_imported_until_a_fixture_is_asked_for(pytester: pytest.Pytester) -> None:
    run(
        pytester,
        """
        import sys

        def loaded():
            return {name for name in sys.modules if name.split(".")[0] in ("modelyard", "openai", "httpx", "attrs")}

        def test_without_a_fixture():
            assert "pytest_modelyard" in sys.modules
            assert loaded() == set()

        def test_with_one(yard):
            assert "modelyard" in loaded()
            assert "openai" not in loaded()
        """,
    ).assert_outcomes(passed=2)

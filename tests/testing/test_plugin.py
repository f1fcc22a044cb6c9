"""The pytest plugin: a platform for each test, with the real client wired to it."""

import asyncio
import sys
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any

import openai
import pytest

from modelyard import Platform, Pricing, Settings
from modelyard.backends.echo import EchoBackend
from modelyard.parts.scripted.backend import ScriptedBackend
from modelyard.testing import Disconnect

pytestmark = pytest.mark.plugin

HELLO: Any = [{"role": "user", "content": "hello from the other side"}]


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_a_fresh_platform(yard: Platform, turn: int) -> None:
    assert yard.chat.complete(model="echo", messages="hello").text == "hello"
    assert len(yard.usage.list().page().items) == 1


def test_the_client_asks_the_platform_of_the_same_test(yard: Platform, yard_openai: Any) -> None:
    answer = yard_openai.chat.completions.create(model="echo", messages=HELLO)
    assert answer.choices[0].message.content == "hello from the other side"
    assert [entry.entity for entry in yard.usage.list().page().items] == [yard._principal.entity]


def test_the_asynchronous_client_asks_the_platform_of_the_same_test(yard: Platform, yard_async_openai: Any) -> None:
    answer = asyncio.run(yard_async_openai.chat.completions.create(model="echo", messages=HELLO))
    assert answer.choices[0].message.content == "hello from the other side"
    assert len(yard.usage.list().page().items) == 1


class TestABackendOfOnesOwn:
    @pytest.fixture
    def yard_backend(self) -> ScriptedBackend:
        return ScriptedBackend(["Paris."])

    def test_what_overrides_yard_backend_answers(self, yard_openai: Any, yard_backend: ScriptedBackend) -> None:
        answer = yard_openai.chat.completions.create(model="scripted", messages=HELLO)
        assert answer.choices[0].message.content == "Paris."
        assert len(yard_backend.requests) == 1


@pytest.mark.yard(project="desk", settings=Settings(max_queued_jobs=3))
class TestAPlatformThatIsMarked:
    def test_the_mark_of_a_class_opens_the_platform(self, yard: Platform) -> None:
        assert (yard._runtime.project, yard._runtime.settings.max_queued_jobs) == ("desk", 3)

    @pytest.mark.yard(project="lab", backend=EchoBackend(("dear",), pricing=Pricing(completion=Decimal(2))))
    def test_the_nearest_mark_decides_and_chooses_models_and_prices(self, yard: Platform, yard_clock: Any) -> None:
        assert (yard._runtime.project, yard._runtime.settings.max_queued_jobs) == ("lab", 3)
        assert yard._runtime.clock is yard_clock
        yard.chat.complete(model="dear", messages="one two three")
        assert [entry.cost for entry in yard.usage.list()] == [Decimal(6)]


def test_a_mark_without_names_or_with_a_wrong_one_fails_the_test(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        @pytest.mark.yard("desk")
        def test_positional(yard): pass

        @pytest.mark.yard(projct="desk")
        def test_misspelt(yard): pass
        """,
        "--strict-markers",
    )
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(
        ["*takes the arguments of open_platform by name*", "*unexpected keyword argument*projct*"]
    )


def run(pytester: pytest.Pytester, code: str, *options: str) -> pytest.RunResult:
    """Run a test module with the plugin and no other in a process of its own, where warnings are errors."""
    pytester.makepyfile(code)
    named = ("-p", "pytest_modelyard", "-p", "no:cacheprovider", "-W", "error")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # of others, of which some take longer than all the rest
        return pytester.runpytest_subprocess(*named, *options)


def test_modelyard_is_not_imported_until_a_fixture_is_requested(pytester: pytest.Pytester) -> None:
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


FAR = """
import contextlib
import socket
import threading
import unittest

import openai
import pytest
from modelyard.testing import LeftLoopback

def reach():
    socket.getaddrinfo("models.example.invalid", 443)
"""


def test_a_guarded_test_fails_where_it_leaves_loopback(pytester: pytest.Pytester) -> None:
    outcome = run(
        pytester,
        FAR
        + """
pytestmark = pytest.mark.usefixtures("loopback_only")

def test_plainly():
    reach()

def test_although_the_application_has_a_fallback():
    try:
        reach()
    except Exception:
        pass

def test_although_all_is_swallowed():
    with contextlib.suppress(BaseException):
        reach()

def test_in_a_thread_that_suppresses_errors():
    def quietly():
        with contextlib.suppress(BaseException):
            reach()
    thread = threading.Thread(target=quietly)
    thread.start()
    thread.join()

class TestInUnittest(unittest.TestCase):
    def test_it(self):
        with contextlib.suppress(BaseException):
            reach()

def test_that_stays_at_home():
    socket.getaddrinfo("localhost", 443)
""",
    )
    outcome.assert_outcomes(failed=5, passed=1)
    outcome.stdout.fnmatch_lines(["*LeftLoopback: something tried to reach models.example.invalid; only loopback*"])


def test_a_guard_is_over_with_its_test(pytester: pytest.Pytester) -> None:
    run(
        pytester,
        FAR
        + """
original = socket.getaddrinfo

def test_guarded(loopback_only):
    with pytest.raises(LeftLoopback):
        reach()
    assert loopback_only.attempts == ["models.example.invalid"]
    loopback_only.attempts.clear()

def test_unguarded():
    assert socket.getaddrinfo is original

@pytest.fixture
def late(loopback_only):
    yield
    with contextlib.suppress(BaseException):
        reach()

def test_whose_fixture_leaves_loopback_at_its_end(late):
    pass
""",
    ).assert_outcomes(passed=3, errors=1)


def test_a_served_platform_answers_a_client_that_needs_a_socket(
    yard: Platform, yard_url: str, loopback_only: Any
) -> None:
    key = yard.keys.create().secret
    with openai.OpenAI(base_url=f"{yard_url}/inference/v1", api_key=key) as client:
        answer = client.chat.completions.create(model="echo", messages=HELLO)
    assert answer.choices[0].message.content == "hello from the other side"
    assert len(yard.usage.list().page().items) == 1


def test_the_platform_uses_a_given_clock(pytester: pytest.Pytester) -> None:
    run(
        pytester,
        """
        import pytest
        from modelyard.testing.clock import ManualClock

        @pytest.fixture
        def yard_clock():
            return ManualClock()

        def test_requested_by_the_test(yard, yard_clock):
            assert yard._runtime.clock is yard_clock

        @pytest.fixture
        def app(yard_clock):
            return yard_clock

        def test_requested_by_another_fixture(yard, app):
            assert yard._runtime.clock is app

        def test_not_requested(yard):
            assert not isinstance(yard._runtime.clock, ManualClock)
        """,
    ).assert_outcomes(passed=3)


def test_a_missing_package_says_what_to_install_and_disturbs_no_other_fixture(pytester: pytest.Pytester) -> None:
    outcome = run(
        pytester,
        """
        import sys
        sys.modules["openai"] = sys.modules["uvicorn"] = None

        def test_openai(yard_openai): pass
        def test_async_openai(yard_async_openai): pass
        def test_url(yard_url): pass
        def test_yard(yard): pass
        """,
    )
    outcome.assert_outcomes(errors=3, passed=1)
    outcome.stdout.fnmatch_lines(["*openai is not installed; run: pip install openai"])
    outcome.stdout.fnmatch_lines(["*uvicorn is not installed; run: pip install 'modelyard?serve?'"])


@pytest.fixture
def installed(pytester: pytest.Pytester) -> pytest.Pytester:
    """modelyard as pytest finds it where it was installed: by its metadata."""
    metadata = pytester.mkdir("modelyard-0.dist-info")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: modelyard\nVersion: 0\n")
    (metadata / "RECORD").write_text("modelyard/__init__.py,,\npytest_modelyard.py,,\n")
    (metadata / "entry_points.txt").write_text(entry_points())
    pytester.syspathinsert()
    pytester.makepyfile("def test_yard(yard): pass")
    return pytester


def test_the_plugin_is_found_may_be_named_too_and_can_be_switched_off(installed: pytest.Pytester) -> None:
    for options, outcome in {
        (): "passed",
        ("-p", "pytest_modelyard"): "passed",
        ("-p", "no:modelyard"): "errors",
    }.items():
        installed.runpytest_subprocess("-W", "error", *options).assert_outcomes(**{outcome: 1})


def test_a_program_that_uses_modelyard_may_run_pytest(installed: pytest.Pytester) -> None:
    program = "import modelyard, pytest, sys; sys.exit(pytest.main(['-W', 'error']))"
    installed.run(sys.executable, "-c", program).assert_outcomes(passed=1)


def entry_points() -> str:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    ((name, module),) = project["entry-points"]["pytest11"].items()
    return f"[pytest11]\n{name} = {module}\n"


class TestAnApplicationWithAClientOfItsOwn:
    @pytest.fixture
    def yard_hosts(self) -> tuple[str, ...]:
        return ("models.example",)

    def test_its_hosts_are_answered_with_the_faults_of_the_test(
        self, yard: Platform, yard_intercepts: None, yard_faults: Any
    ) -> None:
        yard_faults.connection(Disconnect())
        with openai.OpenAI(api_key="sk-mine", base_url="https://models.example/v1") as client:
            answer = client.chat.completions.create(model="echo", messages=HELLO)
        assert answer.choices[0].message.content == "hello from the other side"


APPLICATION = """
import pytest
from modelyard import ScriptedBackend
from modelyard.backends import on
from openai import BadRequestError, OpenAI, OpenAIError

pytestmark = pytest.mark.usefixtures("yard_intercepts")


def reply(question, **options):
    client = OpenAI(api_key="sk-any")
    messages = [{"role": "user", "content": question}]
    try:
        return client.chat.completions.create(model="support", messages=messages, **options).choices[0].message.content
    except OpenAIError:
        return "We are busy."


@pytest.fixture
def yard_backend():
    return ScriptedBackend([on("refund").answer("Here.")], models=["support"])
"""


def test_a_failing_test_shows_its_requests_and_a_swallowed_refusal_fails_one(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        APPLICATION
        + """
def test_that_fails():
    assert reply("My refund?") == "Gone."

def test_that_swallows_a_miss():
    assert reply("Hello?") == "We are busy."

def test_that_swallows_a_refusal():
    assert reply("refund", response_format={"type": "json_object"}) == "We are busy."

def test_that_expects_it(yard_requests):
    assert reply("Hello?") == "We are busy."
    yard_requests.allow_refusals(400)

def test_that_is_fine(yard_requests):
    assert reply("refund") == "Here."
    assert [request.text for request in yard_requests] == ["refund"]

def test_that_fails_by_itself_first():
    assert reply("Hello?") == "Here."
""",
    )
    result.assert_outcomes(passed=2, failed=4)
    result.stdout.fnmatch_lines(
        [
            "*requests of this test*",
            "1. 200 POST /v1/chat/completions support 'My refund?'",
            "*AssertionError: the application swallowed what was refused*yard_requests.allow_refusals()*",
            "*- 400 POST /v1/chat/completions support 'Hello?'*",
            "*no rule of the script answers this request*",
            "*'messages' must contain the word 'json' in some form*",
            "*assert 'We are busy.' == 'Here.'*",
            "*requests of this test*",
        ]
    )


def test_a_failing_test_shows_what_was_refused_in_python_which_fails_none(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
import pytest
from modelyard.errors import InvalidInput, ModelNotFound

seen = []
pytestmark = pytest.mark.yard(observer=seen.append)

def test_that_fails(yard, yard_openai):
    with pytest.raises(ModelNotFound):
        yard.chat.complete(model="missing", messages="hello")
    assert [event.code for event in seen] == ["model_not_found"]
    with pytest.raises(InvalidInput):
        yard.chat.complete(model="missing", messages="hello", temperature=3)
    yard_openai.models.list()
    assert not seen

def test_that_is_fine(yard):
    with pytest.raises(ModelNotFound):
        yard.chat.complete(model="missing", messages="hello")
""",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*requests of this test*",
            "1. 200 GET *models*",
            "404 in Python: chat with 'missing': model_not_found",
            "422 in Python: chat with 'missing': invalid_input",
        ]
    )


def test_the_profile_of_a_module_is_a_fixture(pytester: pytest.Pytester) -> None:
    run(
        pytester,
        APPLICATION
        + """
@pytest.fixture
def yard_profile():
    return "vllm"

def test_lenient(yard):
    assert not yard.settings.strict_conversations
    assert reply("refund", tool_choice="auto") == "Here."

def test_its_errors(yard_requests):
    with pytest.raises(BadRequestError) as refused:
        OpenAI(api_key="sk-any").chat.completions.create(model="support", messages=[], temperature=9)
    assert refused.value.body["type"] == "BadRequestError"
    yard_requests.allow_refusals(400)
""",
    ).assert_outcomes(passed=2)


def test_requests_are_compared_with_a_readable_difference(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        APPLICATION
        + """
from modelyard.testing import expect

def test_equal(yard, yard_requests):
    reply("refund")
    expect(yard).requests("refund")
    assert yard_requests == [{"model": "support", "messages": ["refund"]}]

def test_differing(yard_requests):
    reply("refund")
    assert yard_requests == [{"model": "sales", "messages": ["refunds"]}]

def test_expected(yard):
    reply("refund")
    expect(yard).requests()
""",
    )
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*assert the requests differ:*",
            "*request 1, POST /v1/chat/completions:*",
            "*model: expected 'sales', sent 'support'*",
            "*messages?0?: expected 'refunds', sent 'refund'*",
            "*0 requests were expected, and 1 were sent:*",
        ]
    )


@pytest.mark.parametrize("fixture", ["", "yard_requests"])
def test_comparisons_of_others_are_left_alone(pytester: pytest.Pytester, fixture: str) -> None:
    result = run(
        pytester,
        f"""
import pytest
from unittest.mock import Mock, MagicMock, call

class Touchy:
    def __getattribute__(self, name):
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        raise SystemError("touched")

PAIRS = [(call(1), call(2)), (Mock(), [1]), (MagicMock(), (1,)), ([1], call.a), ([1], Touchy()), (Touchy(), [1])]

@pytest.mark.parametrize("at", range(len(PAIRS)))
def test_mocks({fixture or "at"}{", at" if fixture else ""}):
    left, right = PAIRS[at]
    assert left == right

def test_called({fixture}):
    m = Mock()
    m(1)
    assert m.call_args == call(2)
""",
    )
    result.assert_outcomes(failed=7)
    for wrong in ("INTERNALERROR", "AttributeError", "TypeError", "SystemError", "requests differ"):
        assert wrong not in result.stdout.str()


def test_a_profile_keeps_what_a_mark_sets_and_a_mark_what_a_profile_sets(pytester: pytest.Pytester) -> None:
    run(
        pytester,
        """
import pytest
from modelyard import Settings

@pytest.fixture
def yard_profile():
    return "vllm"

@pytest.mark.yard(settings=Settings(max_queued_jobs=3))
def test_marked(yard):
    settings = yard._runtime.settings
    assert (settings.strict_conversations, settings.max_queued_jobs) == (False, 3)

@pytest.mark.yard(project="desk")
def test_marked_otherwise(yard):
    assert (yard._runtime.settings.strict_conversations, yard._runtime.project) == (False, "desk")
""",
    ).assert_outcomes(passed=2)


def test_what_was_sent_is_an_inline_snapshot(pytester: pytest.Pytester) -> None:
    pytest.importorskip("inline_snapshot")
    code = (
        APPLICATION
        + """
from inline_snapshot import snapshot

def test_sent(yard_requests):
    reply("refund")
    assert yard_requests.sent == snapshot()
"""
    )
    pytester.makepyfile(test_sent=code)
    options = ("-p", "pytest_modelyard", "-p", "no:cacheprovider", "-p", "no:xdist")
    pytester.runpytest_subprocess(*options, "--inline-snapshot=create", "test_sent.py")
    written = (pytester.path / "test_sent.py").read_text()
    assert "'content': 'refund'" in written.replace('"content": "refund"', "'content': 'refund'")
    pytester.runpytest_subprocess(*options, "test_sent.py").assert_outcomes(passed=1)


def test_a_client_of_anthropic_is_connected_to_the_platform(yard: Platform, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("anthropic")
    asked: Any = {"model": "echo", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
    client = request.getfixturevalue("yard_anthropic")
    assert client.messages.create(**asked).content[0].text == "hello"
    answer = asyncio.run(request.getfixturevalue("yard_async_anthropic").messages.create(**asked))
    assert answer.content[0].text == "hello"
    assert len(yard.usage.list().page().items) == 2

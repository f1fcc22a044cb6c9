"""The fixture `yard_cassette` and its one switch."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.plugin

TESTS = """
import pytest
from modelyard import open_platform
from modelyard.parts.scripted.backend import ScriptedBackend

made = []

class Real(ScriptedBackend):
    def __init__(self, answers):
        super().__init__(answers)
        made.append(self)
        self.closed = 0

    def close(self):
        self.closed += 1

def said(backend, text="hello"):
    with open_platform(backend=backend) as platform:
        return platform.chat.complete(model="scripted", messages=text).text

def test_one(yard_cassette):
    assert said(yard_cassette(lambda: Real(["ONE"]))) == "ONE"

class TestMore:
    @pytest.fixture
    def yard_backend(self, yard_cassette):
        return yard_cassette(lambda: Real(["MORE"]), ignore=["temperature"])

    @pytest.mark.parametrize("place", ["a/b", "a-b", "x" * 300])
    def test_two(self, yard, place):
        assert yard.chat.complete(model="scripted", messages=place).text == "MORE"

def test_several(yard_cassette):
    backends = [yard_cassette(lambda text=text: Real([text])) for text in ("first", "second")]
    assert [said(backend) for backend in backends] == ["first", "second"]

def test_what_was_made(request):
    recording = request.config.getoption("--yard-record") != "none"
    assert [real.closed for real in made] == ([1] * 6 if recording else [])
"""


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-p", "pytest_modelyard", "-p", "no:cacheprovider", "-W", "error", *options)


def cassettes(pytester: pytest.Pytester) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(Path(pytester.path).rglob("cassettes/**/*.jsonl"))}


def test_each_test_has_its_own_cassette_which_is_recorded_once_and_replayed_afterwards(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_app=TESTS)
    without = run(pytester)
    without.assert_outcomes(failed=2, errors=3, passed=1)
    without.stdout.fnmatch_lines(["*NotFound: cassette '*test_one.jsonl' not found; record it once*--yard-record=new"])
    run(pytester, "--yard-record=new").assert_outcomes(passed=6)
    recorded = cassettes(pytester)
    names = [path.name for path in recorded]
    assert [name for name in names if name in ("test_one.jsonl", "test_several.jsonl", "test_several-2.jsonl")] == [
        "test_one.jsonl",
        "test_several-2.jsonl",
        "test_several.jsonl",
    ]
    assert len(names) == 6
    assert max(map(len, names)) < 130
    run(pytester).assert_outcomes(passed=6)
    run(pytester, "--yard-record=new").assert_outcomes(passed=6)
    assert cassettes(pytester) == recorded


def test_mode_all_records_again(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_app=TESTS)
    run(pytester, "--yard-record=all").assert_outcomes(passed=6)
    pytester.makepyfile(test_app=TESTS.replace("ONE", "CHANGED"))
    run(pytester).assert_outcomes(passed=5, failed=1)
    run(pytester, "--yard-record=all").assert_outcomes(passed=6)
    run(pytester).assert_outcomes(passed=6)


def test_a_replay_refuses_the_network_to_the_whole_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import contextlib
        import socket

        def test_quietly(yard_cassette):
            with contextlib.suppress(BaseException):
                socket.getaddrinfo("models.example.invalid", 443)
        """
    )
    outcome = run(pytester)
    outcome.assert_outcomes(failed=1)
    outcome.stdout.fnmatch_lines(["*LeftLoopback: something tried to reach models.example.invalid*"])
    run(pytester, "--yard-record=new").assert_outcomes(passed=1)


def test_another_word_for_the_switch_is_refused(pytester: pytest.Pytester) -> None:
    outcome = run(pytester, "--yard-record=once")
    outcome.stderr.fnmatch_lines(["*--yard-record: invalid choice: 'once'*"])

"""The file of a cassette: whole lines, by however many writers; and one that cannot be read is named by its line."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import recorded_echo
from modelyard.backends.echo import EchoBackend
from modelyard.errors import StoreCorrupt, StoreTooNew
from modelyard.parts.doubles.cassette.cassette import use_cassette
from modelyard.parts.doubles.cassette.file import CassetteFile
from recorded_echo import LONG, ask, record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c.jsonl"


def test_a_review_can_read_it(path: Path) -> None:
    record(path, "Größe 🌊?")
    header, offer, answer = path.read_text().splitlines()
    assert header == '{"modelyard_cassette": 1}'
    assert offer.startswith('{"model": "echo", "entry": {"id": "echo"')
    assert answer.startswith(
        '{"asked": {"model": "echo", "messages": [{"role": "user", "content": "Größe 🌊?"}], "max_tokens": 100000}, '
        '"prompt_tokens": 2, "deltas": [{"at": 0.0'
    )


def test_what_is_recorded_later_is_appended(path: Path) -> None:
    record(path, "a")
    before = path.read_bytes()
    record(path, "b")
    assert path.read_bytes().startswith(before)


def test_texts_that_have_no_utf_8_and_odd_line_ends_are_kept(path: Path) -> None:
    odd = ["\ud800 alone", LONG, "a\nb\r\n\0"]
    record(path, *odd)
    backend = use_cassette(path)
    assert [ask(backend, text) for text in odd] == odd


def test_a_torn_last_line_is_named_and_the_file_is_left_as_it_is(path: Path) -> None:
    record(path, "a", "b")
    whole = path.read_bytes()
    for cut in (2, 20, len(whole.splitlines()[-1])):
        path.write_bytes(whole[:-cut])
        with pytest.raises(StoreCorrupt, match=r"c\.jsonl, line 4, ends in its middle"):
            use_cassette(path)
        with pytest.raises(StoreCorrupt, match="line 4"):
            use_cassette(path, EchoBackend(), mode="new")
        assert path.read_bytes() == whole[:-cut]
    path.write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 1])
    assert ask(use_cassette(path), "a") == "a"


@pytest.mark.parametrize("end", [b"", b"\r\n", b"\n\n", b"\n  "])
def test_a_whole_last_line_is_read_however_an_editor_ends_it(path: Path, end: bytes) -> None:
    record(path, "a", "b")
    path.write_bytes(path.read_bytes()[:-1] + end)
    backend = use_cassette(path, EchoBackend(), mode="new")
    assert [ask(backend, text) for text in ("a", "b")] == ["a", "b"]
    assert ask(backend, "c") == "c"
    assert [ask(use_cassette(path), text) for text in ("a", "b", "c")] == ["a", "b", "c"]


def test_nothing_is_appended_to_a_line_that_another_process_left_torn(path: Path) -> None:
    record(path, "a")
    backend = use_cassette(path, EchoBackend(), mode="new")
    with path.open("ab") as file:
        file.write(b'{"asked": {"mod')
    torn = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="ends in the middle of a line"):
        ask(backend, "b")
    assert path.read_bytes() == torn


@pytest.mark.parametrize(
    "line",
    [
        b"no json",
        b"[]",
        b'{"asked": {"model": "echo"}}',
        b'{"asked": {}, "deltas": [{"text": "no time"}]}',
        b'{"asked": {}, "deltas": [{"at": 0, "txt": "misspelt"}]}',
        b'{"asked": {}, "deltas": [{"at": 0, "text": 5}]}',
        b'{"asked": {}, "deltas": [{"at": 0, "finish_reason": "bored"}]}',
        b'{"model": "m", "entry": {"id": "m"}, "capabilities": {}}',
        b'\xff{"asked": {}, "deltas": []}',
    ],
)
def test_a_line_that_cannot_be_read_is_named(path: Path, line: bytes) -> None:
    record(path, "a")
    with path.open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(StoreCorrupt, match=r"c\.jsonl, line 4, is not a line of a cassette"):
        use_cassette(path)


def test_a_foreign_file_and_a_newer_cassette_are_refused(path: Path) -> None:
    path.write_text('{"some": "json"}\n')
    with pytest.raises(StoreCorrupt, match="line 1, is not a line of a cassette: the header is missing"):
        use_cassette(path)
    path.write_text('{"modelyard_cassette": 2}\n')
    with pytest.raises(StoreTooNew, match="version 2; upgrade modelyard"):
        use_cassette(path)


@pytest.mark.slow
def test_threads_record_whole_lines_into_one_file(path: Path) -> None:
    backends = [use_cassette(path, EchoBackend(), mode="new") for _ in range(2)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: ask(backends[n % 2], f"{n} {LONG}"), range(40)))
    assert sorted(int(one.asked["messages"][0]["content"].split()[0]) for one in CassetteFile(path).recordings) == [
        *range(40)
    ]


def recorder(*arguments: object) -> list[str]:
    return [sys.executable, recorded_echo.__file__, *map(str, arguments)]


@pytest.mark.slow
def test_processes_record_whole_lines_into_one_file(path: Path) -> None:
    writers = [subprocess.Popen(recorder(path, writer)) for writer in range(3)]
    assert [writer.wait(100) for writer in writers] == [0, 0, 0]
    names = [one.asked["messages"][0]["content"].split()[0] for one in CassetteFile(path).recordings]
    assert sorted(names) == sorted(f"{writer}-{n}" for writer in range(3) for n in range(10))
    assert path.read_bytes().count(b"modelyard_cassette") == 1


@pytest.mark.slow
def test_a_killed_recorder_leaves_what_it_had_recorded(path: Path) -> None:
    assert subprocess.run(recorder(path, "w", "killed"), check=False).returncode == -9
    assert len(CassetteFile(path).recordings) == 10

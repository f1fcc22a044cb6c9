"""Logs of Inspect, read as runs and written of runs. The framework itself reads and writes them in a lane."""

import json
import re
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard import open_platform
from modelyard.cli import main
from modelyard.domain.evaluation.run import Prediction, RunState
from modelyard.errors import InvalidInput, Unauthenticated
from modelyard.parts.interchange import given_runs, inspect_logs
from modelyard.platform.platform import Platform


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform(project="demo") as opened:
        yield opened


def sample(number: int, epoch: int = 1, **changes: Any) -> dict[str, Any]:
    value = "C" if number % 2 else "I"
    return {
        "id": f"r{number}",
        "epoch": epoch,
        "input": f"say {number}",
        "target": str(number),
        "output": {"model": "m", "choices": [{"message": {"role": "assistant", "content": "x"}}], "completion": "x"},
        "scores": {"includes": {"value": value, "answer": "x", "explanation": "why"}},
        "model_usage": {"openai/gpt": {"input_tokens": 3, "output_tokens": 1, "total_tokens": 4}},
        "started_at": "2026-11-29T19:35:01+00:00",
        "working_time": 1.5,
        **changes,
    }


def log(*samples: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "version": 2,
        "status": "success",
        "eval": {"eval_id": "e1", "created": "2026-11-29T19:34:42+00:00", "task": "My Quiz", "model": "openai/gpt"},
        "stats": {"started_at": "2026-11-29T19:34:42+00:00", "completed_at": "2026-11-29T19:35:42+00:00"},
        "samples": list(samples),
        **changes,
    }


def saved(folder: Path, content: dict[str, Any], name: str = "log.json") -> Path:
    path = folder / name
    if path.suffix == ".json":
        path.write_text(json.dumps(content))
        return path
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.json", json.dumps({name: content[name] for name in content if name != "samples"}))
        for one in content["samples"]:
            archive.writestr(f"samples/{one['id']}_epoch_{one['epoch']}.json", json.dumps(one))
    return path


@pytest.mark.parametrize("step", range(4))
def test_nothing_is_left_of_an_entity_that_is_deleted_between_two_steps(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    store, steps = platform._runtime.store, list[bool]()
    transact = store.transact

    def deleting(*given: Any, **options: Any) -> Any:
        if not steps or steps[-1]:
            steps.append(len(steps) < step)
            if not steps[-1]:
                platform.delete_entity("local")
        return transact(*given, **options)

    monkeypatch.setattr(given_runs, "AT_ONCE", 2)
    monkeypatch.setattr(store, "transact", deleting)
    with pytest.raises(Unauthenticated):
        platform.evaluations.inspect.read(saved(tmp_path, log(*map(sample, range(4)))))
    assert store.read(lambda snapshot: snapshot.count(Prediction, "by_entity", "local")) == 0
    assert [*platform.evaluations.runs.list()] == []


@pytest.mark.parametrize("name", ["log.json", "log.eval"])
def test_a_log_is_a_run_with_its_rows_scores_usage_and_times(platform: Platform, tmp_path: Path, name: str) -> None:
    samples = [sample(n, epoch, metadata={"topic": "a"}) for epoch in (1, 2) for n in range(4)]
    run = platform.evaluations.inspect.read(saved(tmp_path, log(*samples), name))
    assert (run.state, run.summary and run.summary["mean"]) == (RunState.COMPLETED, 0.5)
    assert run.evaluation == "weave:///local/demo/object/my_quiz"
    assert run.model == "weave:///local/demo/object/openai_gpt"
    assert f"{run.started_at:%H:%M:%S} {run.finished_at:%H:%M:%S}" == "19:34:42 19:35:42"
    rows = platform.evaluations.result(run.id).rows
    assert len(rows) == 8
    assert sorted({row.trial for row in rows}) == [0, 1]
    one = next(row for row in rows if row.row["id"] == "r1")
    assert one.row == {"prompt": "say 1", "expected": "1", "id": "r1", "metadata": {"topic": "a"}}
    assert (one.output, one.scores, one.comments) == ("x", {"includes": True}, {"includes": "why"})
    assert (one.prompt_tokens, one.completion_tokens, one.latency) == (3, 1, 1.5)
    assert platform.evaluations.report(run).metric("includes").mean == 0.5


def test_the_same_log_is_the_same_run_and_another_score_is_another(platform: Platform, tmp_path: Path) -> None:
    first = platform.evaluations.inspect.read(saved(tmp_path, log(sample(1), sample(2))))
    again = platform.evaluations.inspect.read(saved(tmp_path, log(sample(1), sample(2)), "again.eval"))
    assert again.id == first.id
    assert len(platform.evaluations.result(first.id).rows) == 2
    changed = log(sample(1), sample(2, scores={"includes": {"value": "C"}}))
    assert platform.evaluations.inspect.read(saved(tmp_path, changed)).id != first.id


def test_two_models_on_one_data_set_are_compared(platform: Platform, tmp_path: Path) -> None:
    good = [sample(n, scores={"includes": {"value": "C"}}) for n in range(12)]
    bad = [sample(n, scores={"includes": {"value": "I"}}) for n in range(12)]
    named = {"eval_id": "e2", "task": "My Quiz", "model": "openai/other"}
    before = platform.evaluations.inspect.read(saved(tmp_path, log(*bad)))
    after = platform.evaluations.inspect.read(saved(tmp_path, log(*good, eval=named)))
    assert platform.evaluations.compare(before, after).metric("includes").verdict == "better"


def test_grades_numbers_and_objects_are_scores_and_lists_are_errors(platform: Platform, tmp_path: Path) -> None:
    values = ["C", "I", "N", "P", 0.25, True, "blue", {"a": 1, "b": "C"}, [1, 2], None]
    samples = [sample(n, scores={"s": {"value": value}}) for n, value in enumerate(values)]
    run = platform.evaluations.inspect.read(saved(tmp_path, log(*samples)))
    rows = {row.row["id"]: row for row in platform.evaluations.result(run.id).rows}
    found = [rows[f"r{n}"].scores.get("s") for n in range(8)]
    assert found == [True, False, False, 0.5, 0.25, True, "blue", {"a": 1, "b": "C"}]
    assert rows["r8"].scores.get("s") is None
    assert rows["r9"].scores.get("s") is None


def test_a_sample_that_failed_is_an_error_and_so_is_the_run(platform: Platform, tmp_path: Path) -> None:
    failed = sample(2, error={"message": "no connection", "traceback": ""}, scores={})
    content = log(sample(1), failed, status="error", error={"message": "gave up"})
    run = platform.evaluations.inspect.read(saved(tmp_path, content))
    assert (run.state, run.reason) == (RunState.FAILED, "gave up")
    (error,) = platform.evaluations.result(run.id).errors
    assert "no connection" in error.detail


def test_conversations_keep_their_turns_without_ids(platform: Platform, tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "s", "id": "x"}, {"role": "user", "content": "u", "source": "input"}]
    run = platform.evaluations.inspect.read(saved(tmp_path, log(sample(1, input=turns))))
    (row,) = platform.evaluations.result(run.id).rows
    assert [*map(dict, row.row["messages"])] == [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]


BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "log: is not JSON"),
    "words": (b"hello", "log: is not JSON"),
    "deep": (b"[" * 200_000, "log: is not JSON"),
    "array": (b"[1]", "eval: is missing"),
    "other": (b'{"a": 1}', "eval: is missing"),
    "no samples": (b'{"eval": {}}', "samples: there are none"),
    "samples": (b'{"eval": {}, "samples": [1]}', r"samples\.0: must be a sample"),
    "scores": (b'{"eval": {}, "samples": [{"input": "a", "scores": {"s": 1}}]}', r"samples\.0\.scores: must be scores"),
    "cut archive": (b"PK\x03\x04abc", "log: is not a whole archive"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_log_is_refused_by_name(platform: Platform, tmp_path: Path, what: str) -> None:
    content, words = BROKEN[what]
    path = tmp_path / "odd.json"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=f"odd.json.*{words}"):
        platform.evaluations.inspect.read(path)
    assert [*platform.evaluations.runs.list()] == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
ODD = ("id", "epoch", "input", "target", "output", "scores", "model_usage", "started_at", "working_time", "error")


@pytest.mark.slow
@examples(150)
@given(
    st.dictionaries(st.sampled_from([*ODD, "metadata"]), JSON),
    st.dictionaries(st.sampled_from(["stats", "results", "status", "error"]), JSON),
)
def test_a_log_with_odd_members_is_a_run_or_refused(
    tmp_path_factory: pytest.TempPathFactory, odd: dict[str, Any], head: dict[str, Any]
) -> None:
    path = saved(tmp_path_factory.mktemp("log"), log({**sample(1), **odd}, **head))
    with open_platform(project="demo") as platform:
        try:
            run = platform.evaluations.inspect.read(path)
        except InvalidInput as refused:
            assert "log.json" in str(refused)
        else:
            assert len(platform.evaluations.result(run.id).rows) == 1
            str(platform.evaluations.report(run))


ROWS = st.lists(
    st.fixed_dictionaries(
        {"prompt": st.text("ab ", min_size=1, max_size=3), "expected": st.text("ab ", max_size=3)},
        optional={"id": st.integers(0, 3), "topic": st.text("é{}", max_size=3)},
    ),
    min_size=1,
    max_size=6,
)


@examples(25)
@given(ROWS, st.sampled_from([".json", ".eval"]), st.integers(1, 2))
def test_a_run_that_is_written_is_read_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], ending: str, trials: int
) -> None:
    path = tmp_path_factory.mktemp("log") / f"log{ending}"
    with open_platform(project="demo") as platform:
        run = platform.evaluations.run("e", "echo", rows, ["exact_match", "fuzzy"], trials=trials, system="s {prompt}")
        platform.evaluations.inspect.write(run, path)
        read = platform.evaluations.inspect.read(path)

        def told(id: str) -> list[Any]:
            found = platform.evaluations.result(id).rows
            return sorted(
                (json.dumps(dict(one.row), sort_keys=True), one.output, json.dumps(dict(one.scores))) for one in found
            )

        assert told(read.id) == told(run.run.id)
        assert read.summary is not None
        assert read.summary["mean"] == run.score
        assert read.prompts == {"system": "s {prompt}"}


def test_a_run_that_is_read_again_is_of_the_same_model_and_scorers(platform: Platform, tmp_path: Path) -> None:
    platform.models.create("bot", base_model="tabular-mini")
    rows = [{"prompt": str(n), "expected": str(n % 2)} for n in range(4)]
    scorers = {"right": "exact_match", "in it": {"type": "contains", "ignore_case": True}}
    run = platform.evaluations.run("quiz", "demo/bot:step0", rows, scorers, max_tokens=2).run
    for name in ("log.json", "log.eval"):
        platform.evaluations.inspect.write(run, tmp_path / name)
        read = platform.evaluations.inspect.read(tmp_path / name)
        assert (read.evaluation, read.model) == (run.evaluation, run.model)
        compared = platform.evaluations.compare(run, read).comparison
        assert compared.uncompared == {}
        assert len(compared.metrics) == 2
    elsewhere = platform.evaluations.inspect.read(tmp_path / "log.json", project="other")
    assert elsewhere.model == "weave:///local/other/object/botstep0"


def test_a_log_that_is_refused_half_way_leaves_nothing(platform: Platform, tmp_path: Path) -> None:
    samples = [sample(n, output={"completion": 10**30} if n == 70 else {"completion": "x"}) for n in range(80)]
    for name in ("odd.json", "odd.eval"):
        with pytest.raises(InvalidInput, match=rf"{name}.*r70"):
            platform.evaluations.inspect.read(saved(tmp_path, log(*samples), name))
    assert [*platform.evaluations.runs.list()] == []


TORN = st.text(st.sampled_from("a\ud800\udfff\U0001f600\x00"), max_size=4)


@examples(60)
@given(st.sampled_from(["id", "input", "target", "output", "explanation", "scorer", "task", "model", "error"]), TORN)
def test_half_characters_of_a_log_are_replaced(tmp_path_factory: pytest.TempPathFactory, where: str, torn: str) -> None:
    one = sample(1)
    head = {"eval_id": "e1", "task": "quiz", "model": "m"}
    if where in head:
        head[where] = torn
    elif where == "output":
        one["output"] = {"completion": torn}
    elif where == "explanation":
        one["scores"]["includes"]["explanation"] = torn
    elif where == "scorer":
        one["scores"] = {torn: {"value": "C"}}
    elif where == "error":
        one["error"] = {"message": torn}
    else:
        one[where] = torn
    path = saved(tmp_path_factory.mktemp("log"), log(one, eval=head))
    with open_platform(project="demo") as platform:
        run = platform.evaluations.inspect.read(path)
        assert run.state is RunState.COMPLETED
        (row,) = platform.evaluations.result(run.id).rows
        if where == "output":
            assert row.output == re.sub(r"[\ud800-\udfff]", "\ufffd", json.loads(json.dumps(torn)))
        str(platform.evaluations.report(run))


@pytest.mark.parametrize("member", ["1e400", "NaN", "-1e999"])
def test_what_is_no_number_is_absent(platform: Platform, tmp_path: Path, member: str) -> None:
    path = saved(tmp_path, log(sample(1, working_time="?", scores={"s": {"value": "?"}}), extra="?"))
    path.write_text(path.read_text().replace('"?"', member).replace('"eval": {', f'"eval": {{"odd": {member}, '))
    (row,) = platform.evaluations.result(platform.evaluations.inspect.read(path).id).rows
    assert (row.latency, row.scores.get("s")) == (None, None)


METHODS = {
    "stored": zipfile.ZIP_STORED,
    "deflate": zipfile.ZIP_DEFLATED,
    "bzip2": zipfile.ZIP_BZIP2,
    "lzma": zipfile.ZIP_LZMA,
}


def archive(folder: Path, method: int = zipfile.ZIP_DEFLATED) -> Path:
    path = folder / "odd.eval"
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("header.json", json.dumps({name: one for name, one in log().items() if name != "samples"}))
        for n in range(3):
            file.writestr(f"samples/r{n}_epoch_1.json", json.dumps(sample(n, words=[*map(str, range(50))])))
    return path


@pytest.mark.slow
@examples(150)
@given(st.sampled_from([*METHODS]), st.data())
def test_a_damaged_archive_is_a_run_or_refused_by_the_name_of_its_file(
    tmp_path_factory: pytest.TempPathFactory, method: str, data: st.DataObject
) -> None:
    path = archive(tmp_path_factory.mktemp("log"), METHODS[method])
    whole = bytearray(path.read_bytes())
    for at in data.draw(st.lists(st.integers(2, len(whole) - 1), min_size=1, max_size=4)):
        whole[at] = data.draw(st.integers(0, 255))
    path.write_bytes(whole[: data.draw(st.sampled_from([len(whole), len(whole) // 2, len(whole) - 1]))])
    with open_platform(project="demo") as platform:
        try:
            platform.evaluations.inspect.read(path)
        except InvalidInput as refused:
            assert "odd.eval" in str(refused)
            assert [*platform.evaluations.runs.list()] == []


@pytest.mark.parametrize(
    ("offset", "changed", "words"),
    [
        (8, 1, r"samples/r0_epoch_1\.json: cannot be read: .*encrypted"),
        (10, 12, "another way"),
        (10, 77, "another way"),
        (10, 93, "Zstandard|cannot be read"),
    ],
)
def test_a_member_that_cannot_be_decoded_is_refused(
    platform: Platform, tmp_path: Path, offset: int, changed: int, words: str
) -> None:
    path = archive(tmp_path)
    raw = bytearray(path.read_bytes())
    entry = raw.index(b"PK\x01\x02", raw.index(b"PK\x01\x02") + 1)  # of the first sample
    raw[entry + offset] = changed
    path.write_bytes(raw)
    with pytest.raises(InvalidInput, match=rf"odd\.eval.*{words}"):
        platform.evaluations.inspect.read(path)


@pytest.mark.parametrize(
    ("bound", "least", "words"), [("LARGEST_ARCHIVE", 900, "together"), ("MOST_SAMPLES", 2, "more than 2")]
)
def test_an_archive_that_would_fill_the_memory_is_refused_before_it_is_read(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, least: int, words: str
) -> None:
    monkeypatch.setattr(inspect_logs, bound, least)
    path = archive(tmp_path)
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *args: pytest.fail("a member is read"))
    with pytest.raises(InvalidInput, match=rf"odd\.eval.*samples.*{words}"):
        platform.evaluations.inspect.read(path)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_no_more_than_the_size_of_a_member_is_decoded(platform: Platform, tmp_path: Path, method: str) -> None:
    path = tmp_path / "odd.eval"
    with zipfile.ZipFile(path, "w", METHODS[method]) as file:
        file.writestr("header.json", b" " * 100_000_000 if method != "stored" else b" " * 100_000)
    raw = bytearray(path.read_bytes())
    at = raw.rindex(b"PK\x01\x02") + 24
    raw[at : at + 4] = (1000).to_bytes(4, "little")
    path.write_bytes(raw)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match=r"odd\.eval"):
            platform.evaluations.inspect.read(path)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


def test_a_path_of_another_kind_and_a_file_for_a_tenant_are_refused(platform: Platform, tmp_path: Path) -> None:
    run = platform.evaluations.run("e", "echo", [{"prompt": "a", "expected": "a"}])
    with pytest.raises(InvalidInput, match=r"must end in \.json or \.eval"):
        platform.evaluations.inspect.write(run, tmp_path / "log.txt")
    with pytest.raises(FileNotFoundError):
        platform.evaluations.inspect.read(tmp_path / "missing.eval")
    with pytest.raises(InvalidInput, match="only the host may name a file"):
        platform.acting_as(platform.keys.authenticate(platform.keys.create("acme").secret)).evaluations.inspect.read(
            saved(tmp_path, log(sample(1)))
        )


def test_a_tenant_writes_no_file(platform: Platform, tmp_path: Path) -> None:
    tenant = platform.acting_as(platform.keys.authenticate(platform.keys.create("acme").secret))
    run = tenant.evaluations.run("e", "echo", [{"prompt": "a", "expected": "a"}])
    with pytest.raises(InvalidInput, match="only the host may name a file"):
        tenant.evaluations.inspect.write(run, tmp_path / "log.json")
    assert [*tmp_path.iterdir()] == []


def test_the_commands(yard_file: Path, tmp_path: Path) -> None:
    path = saved(tmp_path, log(sample(1), sample(2)))

    def call(*arguments: object, status: int = 0) -> str:
        told = CliRunner().invoke(main, [*map(str, arguments), "--store", str(yard_file)])
        assert told.exit_code == status, told.output
        return told.output

    with open_platform(yard_file, project="demo"):
        pass
    assert "my_quiz@openai_gpt is run …" in call("runs", "import", path)
    assert "openai_gpt, imported from a log of Inspect" in call("runs", "list")
    assert "openai_gpt, imported from a log of Inspect on my_quiz" in call("runs", "show", "my_quiz")
    assert json.loads(call("runs", "show", "my_quiz", "--json"))["summary"]["imported"] == "a log of Inspect"
    call("runs", "write-log", "my_quiz", tmp_path / "out.eval")
    assert zipfile.is_zipfile(tmp_path / "out.eval")
    assert "must end in .json or .eval" in call("runs", "write-log", "my_quiz", tmp_path / "out.txt", status=1)
    assert "missing.json" in call("runs", "import", tmp_path / "missing.json", status=1)
    odd = saved(tmp_path, log(sample(1, output={"completion": 10**30})), "odd.json")
    assert "odd.json" in call("runs", "import", path, odd, status=1)

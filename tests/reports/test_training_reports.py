"""What strangers reported of tools that train and evaluate, a row a report: what is given, and what must come out."""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from each import each_case
from modelyard import (
    EchoBackend,
    Message,
    Platform,
    Pricing,
    Role,
    ScriptedBackend,
    Trajectory,
    TrajectoryGroup,
    open_platform,
)
from modelyard.errors import InvalidInput
from modelyard.testing import openai_client

USER = {"role": "user", "content": "hello there"}
ANSWER = {"role": "assistant", "content": "I am fine."}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}
MARK = b"\xef\xbb\xbf"


@pytest.fixture
def yard() -> Iterator[Platform]:
    with open_platform() as platform:
        platform.models.create("m", project="d", base_model="tabular-mini")
        yield platform


def lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


# ---- rows to train on ------------------------------------------------------------------------------------------------

ROWS: dict[str, tuple[Any, str | int]] = {
    "a plain row": ([USER, ANSWER], 11),
    "an answer of weight 0": ([USER, {**ANSWER, "weight": 0}], "weight"),
    "one of two with weight 0": ([USER, {**ANSWER, "weight": 0}, USER, ANSWER], 11),
    "a weight between": ([USER, {**ANSWER, "weight": 0.5}], 11),
    "a weight beyond": ([USER, {**ANSWER, "weight": 1.5}], "weight"),
    "an image": ([IMAGE, ANSWER], "does not take image_url"),
    "an answer that says nothing": ([USER, {"role": "assistant", "content": None}], "is required"),
    "reasoning": ([USER, {**ANSWER, "reasoning_content": "hm"}], "writes no reasoning"),
    "members that are null": ([{**USER, "name": None}, {**ANSWER, "tool_calls": None, "weight": None}], 11),
}


@pytest.mark.parametrize("what", ROWS)
def test_a_row_is_trained_as_it_says_or_refused(yard: Platform, what: str) -> None:
    messages, outcome = ROWS[what]
    if isinstance(outcome, str):
        with pytest.raises(InvalidInput, match=outcome):
            yard.training.sft("d/m", [{"messages": messages}])
    else:
        plain = yard.training.sft("d/m", [{"messages": [USER, ANSWER]}]).result().metrics["num_trainable_tokens"]
        assert yard.training.sft("d/m", [{"messages": messages}]).result().metrics["num_trainable_tokens"] == plain


@pytest.mark.parametrize(("given", "mean"), [((True, False), 0.5), ((1.0, 0.5), 0.75), ((float("nan"), 1.0), None)])
def test_rewards_are_numbers(yard: Platform, given: Any, mean: float | None) -> None:
    answer = yard.chat.complete(model="tabular-mini", messages=[USER], n=2, max_tokens=4, logprobs=True, seed=1)
    asked = [Message(Role.USER, "hello there")]
    rewarded = [Trajectory.of(asked, one, reward) for one, reward in zip(answer.choices, given, strict=True)]
    if mean is None:
        with pytest.raises(InvalidInput, match="finite"):
            yard.training.rl("d/m", [TrajectoryGroup(tuple(rewarded))])
    else:
        assert yard.training.rl("d/m", [TrajectoryGroup(tuple(rewarded))]).result().metrics["reward"] == mean


def test_a_checkpoint_that_was_trained_on_nothing_is_not_the_best(yard: Platform) -> None:
    yard.models.set_retention("d/m", keep_best=("loss", 1), lower_is_better=True)
    silent = {"messages": [USER, ANSWER, USER, {**ANSWER, "weight": 0}]}
    yard.training.sft("d/m", [{"messages": [USER, ANSWER]}]).result()
    with suppress(InvalidInput):
        yard.training.sft("d/m", [{"messages": [USER, ANSWER]}, silent], batch_size=1, assistant_turns="last").result()
    worse = {"messages": [USER, {**ANSWER, "content": "zqx vjq xxq"}]}
    yard.training.sft("d/m", [worse], learning_rate=1e-9).result()
    kept = {one.step: one.metrics for one in yard.models.checkpoints("d/m") if one.step}
    assert kept[1]["loss"] < kept[max(kept)]["loss"]


# ---- files -----------------------------------------------------------------------------------------------------------

TABLES: dict[str, tuple[str, bytes, Any]] = {
    "a mark before a quoted header": (
        "a.csv",
        MARK + b'"prompt","expected"\r\n"a, b","x\ny"\r\n',
        {"prompt": "a, b", "expected": "x\ny"},
    ),
    "words for nothing": ("a.csv", b"a,b,c\nNA,null,None\n", {"a": "NA", "b": "null", "c": "None"}),
    "an ending in capitals": ("A.CSV", b"a,b\nx,y\n", {"a": "x", "b": "y"}),
    "a long cell": ("a.csv", b"a,b\n" + b"x" * 200_000 + b",y\n", {"a": "x" * 200_000, "b": "y"}),
    "line separators in a string": ("a.jsonl", '{"a": "x\u2028y\x85z"}\r\n\r\n'.encode(), {"a": "x\u2028y\x85z"}),
    "a byte that is no text": ("a.csv", b"a,b\n" + b"x,y\n" * 3000 + b"caf\xe9,z\n", "3002"),
}


@pytest.mark.parametrize("what", TABLES)
def test_a_file_of_rows_is_read_as_it_is(yard: Platform, tmp_path: Path, what: str) -> None:
    name, content, outcome = TABLES[what]
    (tmp_path / name).write_bytes(content)

    def read() -> list[dict[str, Any]]:
        found = yard.evaluations.run("e", lambda row: "x", tmp_path / name, lambda output, row: 1.0, project="d")
        return [dict(one.row) for one in found.rows]

    if isinstance(outcome, str):
        with pytest.raises(InvalidInput, match=outcome):
            read()
    else:
        assert read() == [outcome]


TUNING: dict[str, tuple[bytes, str]] = {
    "carriage returns": (lines({"messages": [USER, ANSWER]}).replace(b"\n", b"\r\n") * 10, "succeeded"),
    "no end of the last line": ((lines({"messages": [USER, ANSWER]}) * 10).rstrip(), "succeeded"),
    "empty tools": (lines({"messages": [USER, ANSWER], "tools": None}) * 10, "succeeded"),
    "only answers of weight 0": (lines({"messages": [USER, {**ANSWER, "weight": 0}]}), "weight"),
    "a byte order mark": (MARK + lines({"messages": [USER, ANSWER]}), "byte order mark"),
}


@pytest.mark.parametrize("what", TUNING)
def test_a_tuning_file_is_read_or_its_fault_is_named(what: str) -> None:
    content, outcome = TUNING[what]
    openai = pytest.importorskip("openai")
    with open_platform() as yard, openai_client(yard, base_url="https://yard.invalid/v1") as client:
        yard.worker().beat()
        file = client.files.create(file=("50%20 #1.jsonl", content), purpose="fine-tune")
        assert client.files.retrieve(file.id).filename == "50%20 #1.jsonl"
        if outcome != "succeeded":
            with pytest.raises(openai.BadRequestError, match=outcome):
                client.fine_tuning.jobs.create(model="tabular-mini", training_file=file.id)
            return
        job = client.fine_tuning.jobs.create(model="tabular-mini", training_file=file.id, integrations=[])
        yard.worker().run_until_idle()
        assert client.fine_tuning.jobs.retrieve(job.id).status == outcome
        events = list(client.fine_tuning.jobs.list_events(job.id, limit=7))
        assert len({event.id for event in events}) == len(events) > 7


def test_a_store_by_a_link_has_the_same_artifacts(tmp_path: Path, empty_yard: bytes) -> None:
    (tmp_path / "a %20#?'.db").write_bytes(empty_yard)
    (tmp_path / "link.db").symlink_to(tmp_path / "a %20#?'.db")
    with open_platform(tmp_path / "a %20#?'.db", durability="process") as yard:
        yard.models.create("m", project="d", base_model="tabular-mini")
        yard.training.sft("d/m", [{"messages": [USER, ANSWER]}]).result()
    with open_platform(tmp_path / "link.db", durability="process") as yard:
        assert yard.chat.complete(model="local/d/m", messages=[USER], max_tokens=2)


# ---- evaluations -----------------------------------------------------------------------------------------------------

SCORES: list[tuple[str, Any, Any, float]] = [
    ("token_f1", "\u0926\u093f\u0928", "\u0926\u093e\u0928", 0),
    ("token_f1", "!!", "??", 0),
    ("token_f1", "cafe\u0301", "caf\u00e9", 1),
    ("token_f1", "made in the U.S.", "made in the US", 1),
    ("numeric", "between 3-4", 4, 1),
    ("numeric", "x = \u22125", -5, 1),
    ("numeric", "x = \u22125", 5, 0),
    ("json_equal", '"Paris"', "Paris", 1),
]


@pytest.mark.parametrize(("scorer", "output", "expected", "score"), SCORES)
def test_an_output_is_scored(yard: Platform, scorer: str, output: Any, expected: Any, score: float) -> None:
    row = {"expected": expected}
    (found,) = yard.evaluations.run("e", lambda row: output, [row], scorer, project="d").rows
    assert found.score == score


JUDGES: list[tuple[str, str, Any]] = [
    ("The response claims it is true that Paris is in Spain. Verdict: No", "yes_no", False),
    ("Is it correct? No.", "yes_no", False),
    ("There are no issues. PASS", "yes_no", True),
    ("The statement is neither true nor false", "yes_no", None),
    ("4 (scale 1-5)", "number", 4),
    ("4, where 5 is best", "number", 4),
    (r"\frac{4}{5}", "number", 4),
]


@each_case(("said", "scale", "score"), JUDGES)
def test_a_judge_is_read(said: str, scale: str, score: Any) -> None:
    judge = {"type": "llm_judge", "model": "scripted", "prompt": "{output}", "scale": scale}
    with open_platform(backend=ScriptedBackend([said])) as yard:
        (found,) = yard.evaluations.run("e", lambda row: "out", [{"prompt": "q"}], judge, project="d").rows
    assert found.scores["llm_judge"] == score


def fails(row: Any) -> str:
    if row["i"] % 2:
        raise ValueError("down")
    return "x"


GATES: dict[str, tuple[Callable[[Any], Any], Any, float]] = {
    "a number for right, false for wrong": (lambda row: "x", lambda output, row: row["i"] < 6 and 1, 0.6),
    "true for right, 0 for wrong": (lambda row: "x", lambda output, row: row["i"] < 6 or 0, 0.6),
    "failures of the model": (fails, lambda output, row: True, 1.0),
}


@pytest.mark.parametrize("what", GATES)
def test_what_is_wrong_counts_and_a_gate_refuses_it(yard: Platform, what: str) -> None:
    model, scorer, score = GATES[what]
    logging.disable(logging.CRITICAL)
    try:
        result = yard.evaluations.run("e", model, [{"i": i} for i in range(10)], {"s": scorer}, project="d")
    finally:
        logging.disable(logging.NOTSET)
    assert result.score == pytest.approx(score)
    assert not yard.evaluations.gate(result.run, {"s": 0.9}).passed


def test_more_trials_than_there_are_are_not_drawn(yard: Platform) -> None:
    run = yard.evaluations.run("e", lambda row: "n", [{"expected": "y"}], "exact_match", project="d", trials=3).run
    assert yard.evaluations.report(run, reducer="pass@3").metric("exact_match").mean == 0
    with pytest.raises(InvalidInput, match="a row has 3"):
        yard.evaluations.report(run, reducer="pass@5")


def test_a_baseline_with_a_mark_is_read_or_the_mark_is_named(yard: Platform, tmp_path: Path) -> None:
    run = yard.evaluations.run("e", lambda row: "x", [{"expected": "x"}], "exact_match", project="d").run
    path = tmp_path / "baseline.jsonl"
    yard.evaluations.report(run).save(path)
    path.write_bytes(MARK + path.read_bytes())
    try:
        assert yard.evaluations.compare(baseline=path, candidate=run).metric("exact_match")
    except InvalidInput as refused:
        assert "byte order mark" in str(refused)


def test_prices_of_many_decimals_are_summed_exactly() -> None:
    prompt, completion = Decimal("0.00000012345"), Decimal("0.0000009876")
    with open_platform(backend=EchoBackend(["m"], pricing=Pricing(prompt=prompt, completion=completion))) as yard:
        for at in range(50):
            yard.chat.complete(model="m", messages="word " * (at % 17 + 1))
        (total,) = yard.usage.total(by=("model",))
    assert total.cost == total.prompt_tokens * prompt + total.completion_tokens * completion

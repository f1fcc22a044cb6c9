"""The public trace client of W&B Weave, unmodified, against a served platform: what its evaluation calls do.

Two releases run it, each in a lane of its own: the newer takes plain mappings, the older objects of classes.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

os.environ["WANDB_ERROR_REPORTING"] = "false"  # or the client would tell its makers of every refusal
pytest.importorskip("weave", reason="the trace client has lanes of its own: tests/clients/lanes.py weave weave-old")
from weave.trace_server_bindings.remote_http_trace_server import RemoteHTTPTraceServer
from weave.version import VERSION
from weave.wandb_interface.auth import ApiKeyCredentials

# How the older release hands its bodies to its own HTTP library, and how both ask their GraphQL.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Using variable_values:DeprecationWarning"),
]

OLD = VERSION.startswith("0.53.")
PROJECT = "acme/weave"
ROWS = [{"question": f"q{number}", "expected": str(number)} for number in range(3)]
SCORE = "def score(output, expected):\n    return output == expected\n"

Ask = Callable[..., Any]


@contextmanager
def client_of(root: str, key: str) -> Iterator[Ask]:
    """Makes one of the client's calls: `ask("dataset_create", name=..., rows=...)`. Lists are read to their end."""
    server = RemoteHTTPTraceServer(root)
    server.set_auth(ApiKeyCredentials(key) if OLD else ("api", key))

    def ask(call: str, **members: Any) -> Any:
        answer = getattr(server, call)(_request(call, {"project_id": PROJECT, **members}))
        return list(answer) if call.endswith("_list") else answer

    yield ask
    _close(server)


def _close(server: Any) -> None:
    """Close the client's connections, for which it has no call of its own."""
    if not OLD:
        server._stainless_client.close()
        return
    from weave.utils import http_requests

    http_requests._get_client().close()
    http_requests._build_client.cache_clear()


def _request(call: str, members: dict[str, Any]) -> Any:
    if not OLD:
        return members
    from weave.shared import trace_server_interface as interface

    return getattr(interface, "".join(map(str.capitalize, call.split("_"))) + "Req")(**members)


@pytest.fixture
def ask(served: Any) -> Iterator[Ask]:
    with client_of(served.root, served.key) as ask:
        yield ask


def refused(status: int, ask: Ask, call: str, **members: Any) -> Any:
    """The body of the answer to a call that must be refused with this status."""
    with pytest.raises(Exception, match=str(status)) as caught:
        ask(call, **members)
    response = caught.value.response
    assert response.status_code == status
    return response.json()


def published(ask: Ask, name: str) -> dict[str, str]:
    """References of a dataset, a scorer, a model and an evaluation that go by this name."""
    dataset = ask("dataset_create", name=f"{name}-rows", rows=ROWS)
    data = f"weave:///{PROJECT}/object/{dataset.object_id}:{dataset.digest}"
    scorer = ask("scorer_create", name=f"{name}-scorer", op_source_code=SCORE).scorer
    model = ask("model_create", name=f"{name}-model", source_code="class M: ...", attributes={"t": 0.2}).model_ref
    evaluation = ask("evaluation_create", name=name, dataset=data, scorers=[scorer], trials=1).evaluation_ref
    return {"dataset": data, "scorer": scorer, "model": model, "evaluation": evaluation}


def run_id(ask: Ask, refs: dict[str, str], **more: Any) -> str:
    made = ask("evaluation_run_create", evaluation=refs["evaluation"], model=refs["model"], **more)
    return str(made.evaluation_run_id)


def test_a_whole_evaluation_is_recorded_and_read_back(ask: Ask) -> None:
    refs = published(ask, "whole")
    run = run_id(ask, refs)
    predictions = []
    for row in ROWS:
        made = ask("prediction_create", model=refs["model"], inputs=row, output="1", evaluation_run_id=run)
        predictions.append(made.prediction_id)
        value = {"correct": row["expected"] == "1", "overlap": 0.5, "why": None}
        ask(
            "score_create",
            prediction_id=made.prediction_id,
            scorer=refs["scorer"],
            value=value,
            evaluation_run_id=run,
        )
    assert ask("prediction_finish", prediction_id=predictions[0]).success is True
    assert ask("evaluation_run_finish", evaluation_run_id=run, summary={"accuracy": 1 / 3}).success is True

    shown = ask("evaluation_run_read", evaluation_run_id=run)
    assert (shown.status, shown.summary, shown.model) == ("completed", {"accuracy": 1 / 3}, refs["model"])
    listed = ask("prediction_list", evaluation_run_id=run)
    assert [found.prediction_id for found in listed] == predictions
    assert [(found.inputs, found.output) for found in listed] == [(row, "1") for row in ROWS]
    assert ask("prediction_read", prediction_id=predictions[2]).output == "1"
    scores = ask("score_list", evaluation_run_id=run)
    assert [score.value["correct"] for score in scores] == [False, True, False]
    assert scores[0].value == {"correct": False, "overlap": 0.5, "why": None}
    assert scores[0].scorer == refs["scorer"]
    assert ask("score_read", score_id=scores[1].score_id).value == scores[1].value


def test_objects_read_back_as_they_were_published(ask: Ask) -> None:
    refs = published(ask, "kept")
    dataset = ask("dataset_read", object_id="kept-rows", digest="latest")
    assert dataset.rows.startswith(f"weave:///{PROJECT}/table/")
    assert ask("scorer_read", object_id="kept-scorer", digest="v0").score_op.startswith(f"weave:///{PROJECT}/op/")
    model = ask("model_read", object_id="kept-model", digest="latest")
    assert (model.source_code, model.attributes) == ("class M: ...", {"t": 0.2})
    evaluation = ask("evaluation_read", object_id="kept", digest=refs["evaluation"].rpartition(":")[2])
    assert (evaluation.dataset, evaluation.scorers, evaluation.trials) == (refs["dataset"], [refs["scorer"]], 1)


def test_a_scorer_of_the_platforms_own_is_listed_as_any_other(ask: Ask, served: Any) -> None:
    content = {"scorer": {"type": "exact_match"}}
    own = served.platform.evaluations.objects.publish("scorer", "own", content, project="weave", entity="acme")
    listed = {scorer.object_id: scorer.score_op for scorer in ask("scorer_list")}
    assert listed["own"] == ask("scorer_read", object_id="own", digest="latest").score_op == str(own.ref)


def test_equal_content_is_the_same_version_and_other_content_the_next(ask: Ask) -> None:
    first, same = (ask("dataset_create", name="Twice Told", rows=ROWS) for _ in range(2))
    other = ask("dataset_create", name="Twice Told", rows=[*ROWS, {"question": "x"}])
    assert (same.digest, same.version_index, first.object_id) == (first.digest, 0, "twice_told")
    assert (other.version_index, other.digest == first.digest) == (1, False)
    assert [one.version_index for one in ask("dataset_list") if one.object_id == "twice_told"] == [0, 1]


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("dataset", {"rows": ROWS}),
        ("scorer", {"op_source_code": SCORE}),
        ("model", {"source_code": "class M: ..."}),
        ("evaluation", {"dataset": f"weave:///{PROJECT}/object/rows"}),
        ("op", {"source_code": "x = 1"}),
    ],
)
def test_what_was_deleted_is_gone_and_says_since_when(ask: Ask, kind: str, content: dict[str, Any]) -> None:
    made = ask(f"{kind}_create", name=f"gone-{kind}", **content)
    version = {"object_id": made.object_id, "digest": made.digest}
    assert ask(f"{kind}_read", **version).digest == made.digest
    assert ask(f"{kind}_delete", object_id=made.object_id, digests=[made.digest]).num_deleted == 1
    gone = refused(404, ask, f"{kind}_read", **version)
    assert gone["deleted_at"] in gone["reason"]
    assert ask(f"{kind}_delete", object_id=made.object_id).num_deleted == 0
    if not (OLD and kind == "op"):  # that release fails in itself before it lists ops
        assert all(one.object_id != made.object_id for one in ask(f"{kind}_list"))


def test_listings_are_cut_and_filtered(ask: Ask) -> None:
    refs = published(ask, "cut")
    runs = [run_id(ask, refs) for _ in range(3)]
    by_evaluation = {"evaluations": [refs["evaluation"]]}
    found = ask("evaluation_run_list", filter=by_evaluation)
    assert [one.evaluation_run_id for one in found] == runs
    found = ask("evaluation_run_list", filter={**by_evaluation, "evaluation_run_ids": runs[1:]}, limit=1, offset=1)
    assert [one.evaluation_run_id for one in found] == runs[2:]
    assert ask("evaluation_run_list", filter=by_evaluation, limit=0) == []
    for number in range(3):
        ask("prediction_create", model=refs["model"], inputs={"n": number}, output=None, evaluation_run_id=runs[0])
    found = ask("prediction_list", evaluation_run_id=runs[0], limit=1, offset=1)
    assert [one.inputs for one in found] == [{"n": 1}]


def test_more_than_a_batch_of_predictions_is_listed_whole(served: Any, ask: Ask) -> None:
    refs = published(ask, "long")
    run = run_id(ask, refs)
    predictions = served.platform.acting_as(served.platform.keys.authenticate(served.key)).evaluations.predictions
    made = [
        predictions.create(refs["model"], {"n": number}, number, run_id=run, project="weave").id
        for number in range(1205)
    ]
    assert [one.prediction_id for one in ask("prediction_list", evaluation_run_id=run)] == made


def test_a_finished_run_is_frozen_and_a_new_one_names_it_as_its_source(ask: Ask) -> None:
    refs = published(ask, "frozen")
    run = run_id(ask, refs)
    made = ask("prediction_create", model=refs["model"], inputs={}, output="1", evaluation_run_id=run)
    assert ask("evaluation_run_finish", evaluation_run_id=run).success is True
    late = refused(400, ask, "prediction_create", model=refs["model"], inputs={}, output="2", evaluation_run_id=run)
    assert late["error_code"] == "RUN_ALREADY_FINISHED"
    score = {"prediction_id": made.prediction_id, "scorer": refs["scorer"], "value": 1.0}
    assert refused(400, ask, "score_create", **score)["error_code"] == "RUN_ALREADY_FINISHED"
    again = run_id(ask, refs, source_evaluation_run_id=run)
    assert ask("evaluation_run_read", evaluation_run_id=again).source_evaluation_run_id == run
    assert ask("evaluation_run_delete", evaluation_run_ids=[run, again, "unknown"]).num_deleted == 2
    refused(404, ask, "prediction_read", prediction_id=made.prediction_id)


def test_what_is_open_is_deleted_piece_by_piece(ask: Ask) -> None:
    refs = published(ask, "pieces")
    run = run_id(ask, refs)
    made = ask("prediction_create", model=refs["model"], inputs={}, output="1", evaluation_run_id=run)
    scores = [
        ask("score_create", prediction_id=made.prediction_id, scorer=refs["scorer"], value=value)
        for value in (True, None)
    ]
    assert [score.evaluation_run_id for score in ask("score_list", evaluation_run_id=run)] == [run, run]
    assert ask("score_delete", score_ids=[scores[0].score_id, "unknown"]).num_deleted == 1
    refused(404, ask, "score_read", score_id=scores[0].score_id)
    assert ask("prediction_delete", prediction_ids=[made.prediction_id]).num_deleted == 1
    refused(404, ask, "score_read", score_id=scores[1].score_id)


def test_wrong_references_unknown_objects_and_a_missing_key_are_reported_precisely(served: Any, ask: Ask) -> None:
    wrong = refused(422, ask, "evaluation_create", name="wrong", dataset="rows", scorers=["", "x"])
    places = [problem["loc"] for problem in wrong["detail"]]
    assert places == [["body", "dataset"], ["body", "scorers", "0"], ["body", "scorers", "1"]]
    score = {"prediction_id": "unknown", "scorer": f"weave:///{PROJECT}/object/s", "value": 1}
    assert "Prediction" in refused(404, ask, "score_create", **score)["reason"]
    assert refused(422, ask, "score_create", **{**score, "scorer": "bad"})["detail"][0]["loc"] == ["body", "scorer"]
    with client_of(served.root, "no-such-key") as nobody:
        assert refused(401, nobody, "dataset_read", object_id="x", digest="latest")["error_code"] == "invalid_api_key"


# ---- results -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(OLD, reason="the older release has no call for it")
def test_results_are_filtered_sorted_and_summed_up(ask: Ask) -> None:
    refs = published(ask, "results")
    run = run_id(ask, refs)
    for row, value in zip(ROWS, (0.2, 0.9, 0.6), strict=True):
        made = ask("prediction_create", model=refs["model"], inputs=row, output={"a": 1}, evaluation_run_id=run)
        ask("score_create", prediction_id=made.prediction_id, scorer=refs["scorer"], value={"overlap": value})
    field = "scores.results-scorer.overlap"
    found = ask(
        "eval_results_query",
        evaluation_run_ids=[run],
        include_raw_data_rows=True,
        include_summary=True,
        filters=[{"query": {"$expr": {"$gt": [{"$getField": field}, {"$literal": 0.5}]}}}],
        sort_by=[{"field": field, "direction": "desc"}],
        limit=1,
    )
    (row,) = found.rows
    (trial,) = row.evaluations[0].trials
    assert (row.raw_data_row, found.total_rows, found.warnings) == (ROWS[1], 2, [])
    assert (trial.scores, list(trial.scorer_call_ids)) == ({"results-scorer": {"overlap": 0.9}}, ["results-scorer"])
    (summary,) = found.summary.evaluations
    (stats,) = summary.scorer_stats
    assert (summary.trial_count, stats.path, stats.value_type, stats.numeric_count) == (2, "overlap", "continuous", 2)
    assert abs(stats.numeric_mean - 0.75) < 1e-9


# ---- work for workers ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(OLD, reason="the older release has no call for it")
def test_a_worker_evaluates_a_model_and_scores_it_again(ask: Ask, served: Any) -> None:
    evaluations, place = served.platform.evaluations, {"project": "weave", "entity": "acme"}
    served.platform.models.create("parrot", base_model="tabular-mini", **place)
    rows = [{"prompt": row["question"], "expected": row["expected"]} for row in ROWS]
    dataset = evaluations.objects.publish("dataset", "asked", {}, rows, **place).ref
    scorer = evaluations.objects.publish("scorer", "found", {"scorer": {"type": "contains"}}, **place).ref
    content = {"dataset": str(dataset), "scorers": [str(scorer)]}
    evaluation = str(evaluations.objects.publish("evaluation", "asking", content, **place).ref)

    assert ask("evaluation_status", call_id="unknown").status.code == "not_found"
    model = f"weave:///{PROJECT}/object/parrot:step0"
    call_id = ask("evaluate_model", evaluation_ref=evaluation, model_ref=model).call_id
    evaluations.wait(call_id, timeout=60)
    assert ask("evaluation_status", call_id=call_id).status.code == "complete"
    made = ask("rescore", source_evaluation_run_id=call_id, scorer_refs=[str(scorer)])
    assert made.call_id == made.evaluation_run_id
    evaluations.wait(made.call_id, timeout=60)
    assert ask("evaluation_status", call_id=made.call_id).status.output
    assert ask("evaluation_run_read", evaluation_run_id=made.call_id).source_evaluation_run_id == call_id
    wrong = refused(422, ask, "rescore", source_evaluation_run_id=call_id, scorer_refs=[])
    assert wrong["detail"][0]["loc"] == ["body", "scorer_refs"]


# ---- the page ------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(OLD, reason="the page speaks as the newer release does")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_the_page_about_this_client_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lane has no installed modelyard, so its command is made here. The page has a process of its own: the first
    address of the SDK in a process is where the spans of its conversations go.
    """
    command = tmp_path / "bin" / "modelyard"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m modelyard.cli "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    run = (
        "import runpy, sys; from pathlib import Path; import pytest; run, page, folder = sys.argv[1:]; "
        "runpy.run_path(run)['run_page'](Path(page), Path(folder), pytest.MonkeyPatch())"
    )
    page = ROOT / "docs" / "how-to" / "use-the-trace-client.md"
    asked = [sys.executable, "-c", run, str(ROOT / "tests" / "docs" / "test_docs.py"), str(page), str(tmp_path)]
    done = subprocess.run(asked, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

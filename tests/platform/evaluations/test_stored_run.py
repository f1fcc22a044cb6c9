"""Runs read back: each prediction with its scores, whatever the sizes of the pages."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from example_counts import examples
from modelyard import Platform, open_platform
from modelyard.domain.evaluation import number_rows_fast
from modelyard.domain.evaluation.metrics import ScoredPrediction, rows
from modelyard.domain.evaluation.pairing import compare, compare_pages
from modelyard.domain.evaluation.run import Prediction, PredictionView, Score, ScoreView
from modelyard.platform import paging as listing
from modelyard.platform.evaluations import stored_run as service
from modelyard.platform.evaluations.stored_run import RowFinder, StoredRun, scores_of
from modelyard.platform.paging import iter_index
from modelyard.protocols import Snapshot

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DIGESTS = "abcde"

Trials = Sequence[tuple[str, int, list[int]]]
"""For each prediction its row, its trial, and when each of its scores was made, in the order of their ids."""

TRIALS = st.lists(
    st.tuples(st.sampled_from(DIGESTS), st.integers(0, 2), st.lists(st.integers(0, 2), max_size=4)), max_size=12
)


@pytest.fixture(params=["memory", "sqlite"], scope="module")
def platform(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    path = None if request.param == "memory" else tmp_path_factory.mktemp("yard") / "yard.db"
    with open_platform(path) as platform:
        yield platform


def add_run(platform: Platform, trials: Trials) -> str:
    """A run of these trials, among the predictions and scores of another run with the same rows."""
    run, other = (
        platform.evaluations.runs.create("weave:///a/b/object/e", "weave:///a/b/object/m", project="p").id for _ in "ab"
    )
    records: list[Any] = []
    for at, (digest, trial, made) in enumerate(trials):
        for run_id in (run, other):
            id_ = f"{run_id}-{at:02}"
            output: Any = {"output": {"value": at}} if at % 4 else {"error": f"no answer {at}"}
            records.append(
                Prediction(id_, "local", "p", "m", {"row": digest}, digest, NOON, run_id, trial=trial, **output)
            )
            for number, seconds in enumerate(made):
                when = NOON + timedelta(seconds=seconds)
                place: Any = {"run_id": run_id, "row_digest": digest, "trial": trial}
                value: Any = {"error": f"no score {at}"} if at % 5 == 1 else {"value": {"value": (at + seconds) / 8}}
                records.append(Score(f"{id_}-{number}", "local", "p", id_, "s", when, **value, **place))
    platform._runtime.store.transact(lambda tx: [tx.add(record) for record in records])
    return run


def one_by_one(platform: Platform, run_id: str) -> list[ScoredPrediction]:
    """The same, by one look-up for each prediction."""

    def query(snapshot: Snapshot) -> list[ScoredPrediction]:
        found = iter_index(snapshot, Prediction, "by_row", run_id)
        scores = list(iter_index(snapshot, Score, "by_run", run_id))
        return [(one, [score for score in scores if score.prediction_id == one.id]) for one in found]

    return platform._runtime.store.read(query)


def read(found: Iterator[ScoredPrediction]) -> list[ScoredPrediction]:
    return [(prediction, list(scores)) for prediction, scores in found]


PAGES = st.integers(1, 5)
ONCE = examples(20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@ONCE
@given(TRIALS, PAGES)
def test_every_prediction_is_read_with_its_own_scores_in_their_order(
    platform: Platform, trials: Trials, size: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "BATCH", size)
        run = add_run(platform, trials)
        assert read(StoredRun(platform._runtime, run).full()) == one_by_one(platform, run)


@ONCE
@given(TRIALS, PAGES)
def test_views_say_what_the_records_say(platform: Platform, trials: Trials, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "BATCH", size)
        run = add_run(platform, trials)
        viewed = list(StoredRun(platform._runtime, run).columns())
        whole = one_by_one(platform, run)
        for (view, reply), (prediction, scores) in zip(viewed, whole, strict=True):
            for name in (*PredictionView._fields[:-1], "inputs", "output"):
                assert getattr(view, name) == getattr(prediction, name)
            expected = [tuple(getattr(score, name) for name in ScoreView._fields) for score in scores]
            assert list(reply) == expected


@ONCE
@given(TRIALS, PAGES)
def test_a_page_has_the_same_values_and_errors(platform: Platform, trials: Trials, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "BATCH", size)
        stored = StoredRun(platform._runtime, add_run(platform, trials))
        pages = list(stored.pages())
    assert all(len(page.digests) == size for page in pages[:-1])
    found = [(page, at) for page in pages for at in range(len(page.digests))]
    for (page, at), (view, reply) in zip(found, stored.columns(), strict=True):
        bare, seen = page.scored(at)
        assert (bare.id, bare.row_digest, bare.trial, bare.error) == (*view[:3], view.error)
        assert (bare.inputs, bare.output) == (view.inputs, view.output)
        assert [score[1:4] + score[5:8] for score in seen] == [score[1:4] + score[5:8] for score in reply]
        assert (page.digests[at], page.errors[at]) == (view.row_digest, view.error)
        only = [(score.scorer, score.value) for score in reply]
        assert [(page.scorers[at], page.values[at])] == (only if len(only) == 1 else [("", {})])


@ONCE
@given(TRIALS, TRIALS, PAGES, st.integers(1, 3))
def test_runs_compare_page_by_page_as_their_records_do(
    platform: Platform, one: Trials, other: Trials, size: int, many: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "BATCH", size)
        patch.setattr(number_rows_fast, "MANY", many)
        runs = [StoredRun(platform._runtime, add_run(platform, trials)) for trials in (one, other)]
        found = compare_pages(runs[0].pages(), runs[1].pages())
    whole = compare(runs[0].full(), runs[1].full())
    assert repr((found, found.metrics, found.uncompared)) == repr((whole, whole.metrics, whole.uncompared))


@pytest.mark.parametrize(("scores", "statements"), [([0], 3), ([], 5), ([0, 0], 6)])
def test_values_are_read_from_the_indexes_alone(tmp_path: Path, scores: list[int], statements: int) -> None:
    requested: list[str] = []
    with open_platform(tmp_path / "yard.db") as platform:
        run = StoredRun(platform._runtime, add_run(platform, [("a", 0, scores)]))
        readers = platform._runtime.store._readers  # type: ignore[attr-defined]
        reader = readers._borrow()
        reader.connection.set_trace_callback(requested.append)
        readers._give_back(reader)
        list(run.pages())
        reader.connection.set_trace_callback(None)
        selects = [sql for sql in requested if "SELECT" in sql and "run_id" in sql]
        reported = [str(line) for sql in selects for line in reader.execute(f"EXPLAIN QUERY PLAN {sql}")]
    assert len(reported) == statements  # the scores of a page that has not one each are read again
    assert all("USING COVERING INDEX" in line for line in reported)


def test_a_view_of_what_is_deleted_has_neither_inputs_nor_output(platform: Platform) -> None:
    run = add_run(platform, [("a", 0, [0])])
    ((view, _),) = StoredRun(platform._runtime, run).columns()
    platform.evaluations.runs.delete([run], project="p")
    assert (view.inputs, view.output) == ({}, {})


@pytest.mark.parametrize("full", [False, True])
def test_inputs_are_looked_up_one_by_one_unless_whole_records_are_read(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    run = add_run(platform, [(f"row {at:02}", 0, [0]) for at in range(50)])
    snapshots = type(platform._runtime.store.read(lambda snapshot: snapshot))
    requested: list[object] = []
    find = snapshots.find
    monkeypatch.setattr(snapshots, "find", lambda self, *what: requested.append(what) or find(self, *what))
    stored = StoredRun(platform._runtime, run)
    seen = [view.inputs["row"] for view, _ in (stored.full() if full else stored.columns())]
    assert seen == [f"row {at:02}" for at in range(50)]
    assert len(requested) == (0 if full else 50)


@ONCE
@given(TRIALS)
def test_each_digest_is_listed_once_and_each_score_by_its_scorer(platform: Platform, trials: Trials) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "MANY", 2)
        run = StoredRun(platform._runtime, add_run(platform, trials))
        assert list(run.digests()) == sorted({digest for digest, _, _ in trials})
        assert list(run.scorers()) == ["s"] * sum(len(made) for _, _, made in trials)


@ONCE
@given(TRIALS, PAGES, st.lists(st.sampled_from(f"{DIGESTS}0z"), max_size=8))
def test_rows_are_found_in_any_order_with_all_their_trials(
    platform: Platform, trials: Trials, size: int, requested: list[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "BATCH", size)
        run = add_run(platform, trials)
        there = {row.digest: row.trials for row in rows(one_by_one(platform, run))}
        finder = RowFinder(platform._runtime, run)
        for digest in requested:
            assert tuple(read(iter(finder.trials(digest)))) == there.get(digest, ())


@ONCE
@given(TRIALS)
def test_the_scores_of_one_prediction_are_found_in_their_order(platform: Platform, trials: Trials) -> None:
    run = add_run(platform, trials)
    for prediction, scores in one_by_one(platform, run):
        assert platform._runtime.store.read(partial(scores_of, prediction=prediction)) == scores


def test_a_run_is_read_by_few_queries_in_batches(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "BATCH", 10)
    run = add_run(platform, [(f"row {at:02}", 0, [0, 0, 0]) for at in range(50)])
    requested: list[int] = []
    snapshots = type(platform._runtime.store.read(lambda snapshot: snapshot))
    page = snapshots.page

    def counted(self: Any, *where: Any, **options: Any) -> list[Any]:
        found: list[Any] = page(self, *where, **options)
        requested.append(len(found))
        return found

    monkeypatch.setattr(snapshots, "page", counted)
    assert len(read(StoredRun(platform._runtime, run).full())) == 50
    assert len(requested) <= 50 / 10 * 4 + 1
    assert sum(requested) <= (50 + 150) * 1.2
    assert max(requested) <= 11


def test_a_score_is_kept_with_the_row_of_its_prediction(platform: Platform) -> None:
    evaluations = platform.evaluations
    run = evaluations.runs.create("weave:///a/b/object/e", "weave:///a/b/object/m", project="p")
    made = [
        evaluations.predictions.create("weave:///a/b/object/m", {"n": 1}, "x", run_id=run.id, project="p")
        for _ in range(2)
    ]
    scored = [evaluations.scores.create(one.id, "weave:///a/b/object/s", 1, project="p") for one in made]
    assert [(one.run_id, one.row_digest, one.trial) for one in scored] == [
        (run.id, made[0].row_digest, at) for at in (0, 1)
    ]
    assert evaluations.report(run).aggregate.metrics[0].scored == 2

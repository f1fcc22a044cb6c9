"""Results of runs joined by row: which rows, in which order, in pages, and in short."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard import Sort, field
from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.metrics import MetricKind
from modelyard.domain.evaluation.results import LeafStats
from modelyard.domain.evaluation.run import EvaluationRun, Prediction, Score
from modelyard.errors import CallerError, Forbidden, InvalidInput
from modelyard.platform.evaluations import stored_run as scored
from modelyard.platform.evaluations.query import Results
from modelyard.platform.evaluations.service import Evaluations

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
JUDGE = "weave:///acme/p/object/judge:v1"

Scores = Mapping[str, Any]


class World:
    """A yard with runs in it, each a list of (row number, scores by scorer)."""

    def __init__(self, yard: Any) -> None:
        self.yard = yard
        self.evaluations = Evaluations(yard.runtime, yard.principal)

    def run(self, run_id: str, rows: Sequence[tuple[int, Any]], project: str = "p", **fields: Any) -> str:
        """Make a run with these rows. A value that is not a mapping is the judge's."""
        records: list[Any] = [EvaluationRun(run_id, "acme", project, "evaluation", "model", NOON)]
        trials: dict[int, int] = {}
        for at, (number, reply) in enumerate(rows):
            trials[number] = trials.get(number, -1) + 1
            records += self._trial(run_id, project, f"{run_id}-{at}", number, trials[number], reply, fields)
        self.yard.runtime.store.transact(lambda tx: [tx.add(record) for record in records])
        return run_id

    def _trial(
        self, run_id: str, project: str, id_: str, number: int, trial: int, reply: Any, fields: Mapping[str, Any]
    ) -> Iterator[Any]:
        place = ("acme", project)
        yield Prediction(
            id_,
            *place,
            "model",
            {"n": number},
            row(number),
            NOON,
            run_id=run_id,
            trial=trial,
            output={"value": {"answer": f"text {number}"}},
            **fields,
        )
        for name, value in (reply if isinstance(reply, dict) else {JUDGE: reply}).items():
            at = {"row_digest": row(number), "trial": trial}
            yield Score(f"{id_}-{name}", *place, id_, name, NOON, run_id=run_id, value={"value": value}, **at)

    def ask(self, *run_ids: str, **options: Any) -> Results:
        return self.evaluations.results(run_ids, project="p", **options)

    def rows(self, *run_ids: str, **options: Any) -> list[int]:
        """The numbers of the rows that are found."""
        found = self.ask(*run_ids, **options)
        numbers = [next(iter(one.runs.values()))[0][0].inputs["n"] for one in found.rows]
        if "limit" not in options and "offset" not in options:
            assert found.total_rows == len(numbers)
        return numbers


@pytest.fixture
def world(yard: Any) -> World:
    return World(yard)


def row(number: int) -> str:
    return digest({"n": number})


def in_order(*numbers: int) -> list[int]:
    return sorted(numbers, key=row)


JUDGED = field("scores.judge")


# ---- joining -----------------------------------------------------------------------------------------------------


def test_rows_of_several_runs_are_joined_by_their_digests_in_the_order_of_these(world: World) -> None:
    world.run("a", [(1, 1), (2, 2), (3, 3), (2, 4)])
    world.run("b", [(3, 5), (4, 6)])
    found = list(world.ask("b", "a").rows)
    assert [one.digest for one in found] == [row(number) for number in in_order(1, 2, 3, 4)]
    by_row = {one.digest: {run: [t.trial for t, _ in trials] for run, trials in one.runs.items()} for one in found}
    assert by_row == {row(1): {"a": [0]}, row(2): {"a": [0, 1]}, row(3): {"b": [0], "a": [0]}, row(4): {"b": [0]}}
    assert all(list(one.runs) == sorted(one.runs, reverse=True) for one in found)


def test_only_rows_that_all_runs_have_are_kept_if_requested(world: World) -> None:
    world.run("a", [(1, 1), (2, 2), (2, 2)])
    world.run("b", [(2, 2), (3, 3)])
    assert world.rows("a", "b", in_all_runs=True) == [2]
    assert world.rows("a", "b", "gone", in_all_runs=True) == []


def test_a_missing_or_foreign_run_is_not_found(world: World) -> None:
    world.run("a", [(1, 1)])
    world.run("q", [(2, 2)], project="q")
    found = world.ask("q", "a", "never", "a")
    assert (found.missing, list(found.runs), found.total_rows) == (("q", "never"), ["a"], 1)
    held = Evaluations(world.yard.runtime, world.yard.as_tenant("acme", "q").principal)
    with pytest.raises(Forbidden):
        held.results(("a",), project="p")


def test_pages_are_cut_after_everything_else(world: World) -> None:
    world.run("a", [(number, number) for number in range(10)])
    whole = in_order(*range(10))
    assert world.rows("a", limit=3) == whole[:3]
    assert world.rows("a", limit=3, offset=8) == whole[8:]
    assert world.rows("a", offset=4) == whole[4:]
    assert world.rows("a", limit=0) == []
    assert world.rows("a", limit=2, offset=2, sort=(Sort("inputs.n", descending=True),)) == [7, 6]
    assert world.ask("a", limit=2, where=JUDGED > 3).total_rows == 6
    with pytest.raises(InvalidInput):
        world.ask("a", limit=-1)


def test_a_row_that_is_deleted_before_it_is_read_is_left_out(world: World) -> None:
    world.run("a", [(1, 1), (2, 2)])
    found = world.ask("a")
    world.evaluations.runs.delete(["a"], project="p")
    assert (found.total_rows, list(found.rows)) == (2, [])


def test_rows_are_read_a_few_at_a_time_with_all_their_trials(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scored, "BATCH", 4)
    world.run("a", [(number, number) for number in range(5) for _ in range(number + 1)])
    counts = {one.digest: len(one.runs["a"]) for one in world.ask("a").rows}
    assert counts == {row(number): number + 1 for number in range(5)}


# ---- filters -----------------------------------------------------------------------------------------------------


def test_a_row_fits_a_filter_of_a_run_when_one_of_its_trials_there_does(world: World) -> None:
    world.run("a", [(1, 1), (2, 5), (3, 1), (3, 5)])
    world.run("b", [(1, 5), (4, 5)])
    assert world.rows("a", "b", where={"a": JUDGED > 3}) == in_order(2, 3)
    assert world.rows("a", "b", where={"gone": JUDGED > 3}, check_names=False) == []


def test_a_row_matches_a_filter_in_some_run_or_on_request_in_every_run(world: World) -> None:
    world.run("a", [(1, 5), (2, 5), (3, 1)])
    world.run("b", [(1, 5), (2, 1), (4, 5)])
    assert world.rows("a", "b", where=JUDGED > 3, match="any") == in_order(1, 2, 4)
    assert world.rows("a", "b", where=JUDGED > 3) == [1]


def test_several_filters_are_combined_within_a_run_and_across_runs_as_requested(world: World) -> None:
    world.run("a", [(1, 5), (2, 9), (3, 1)])
    world.run("b", [(1, 5), (3, 5)])
    assert world.rows("a", "b", where={"a": (JUDGED > 3) & (JUDGED < 7)}) == [1]
    either = {"a": JUDGED > 7, "b": JUDGED > 3}
    assert world.rows("a", "b", where=either, match="any") == in_order(1, 2, 3)
    assert world.rows("a", "b", where=either) == []
    assert world.rows("a", "b", where={"a": JUDGED < 3, "b": JUDGED > 3}) == [3]
    assert world.rows("a", "b", where=(JUDGED < 3) & (JUDGED > 3), match="any") == []
    with pytest.raises(InvalidInput, match="'all' or 'any'"):
        world.rows("a", where=JUDGED > 3, match="some")


def test_inputs_and_outputs_can_be_requested_too(world: World) -> None:
    world.run("a", [(1, 1), (2, 2)])
    assert world.rows("a", where=field("inputs.n") >= 2) == [2]
    assert world.rows("a", where=field("output.answer") == "text 1") == [1]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"where": field("scores.judg") > 1}, "scores.judg: must be a score of these runs, such as scores.judge"),
        ({"where": field("scores.judge.tone") > 1, "sort": "inputs.m"}, "inputs.m: must be an input .* inputs.n"),
        ({"sort": ["inputs.n", "scores.other"]}, "scores.other: .* such as scores.judge"),
        ({"where": {"b": JUDGED > 1}}, "where.b: must be the id of one of the runs"),
        ({"where": True}, "where: must be a condition"),
        ({"sort": JUDGED > 1}, "sort: must be a field"),
    ],
)
def test_a_misspelt_name_is_named_with_the_nearest(world: World, options: Any, named: str) -> None:
    world.run("a", [(1, 1), (2, 2)])
    with pytest.raises(InvalidInput, match=named):
        world.ask("a", **options)


def test_a_misspelt_option_is_refused(world: World) -> None:
    with pytest.raises(TypeError, match="wher"):
        world.ask("a", wher=JUDGED > 1)
    with pytest.raises(CallerError, match=r"did you mean scores\.judge"):
        field("score.judge")


def test_a_filter_on_runs_without_rows_or_scores_matches_nothing(world: World) -> None:
    world.run("a", [])
    world.run("b", [(1, {})])
    assert world.rows("a", "b", where=(field("inputs.n") > 0) & (JUDGED > 1)) == []


# ---- sorting -----------------------------------------------------------------------------------------------------


def test_rows_are_sorted_by_the_mean_of_a_score_and_those_without_come_last_both_ways(world: World) -> None:
    world.run("a", [(1, 3), (2, True), (3, None), (4, 1), (4, 4), (5, "text")])
    world.run("b", [(2, 9)])
    sort = Sort("scores.judge", run_id="a")
    without = in_order(3, 5)
    assert world.rows("a", "b", sort=(sort,)) == [2, 4, 1, *without]
    assert world.rows("a", sort=(Sort("scores.judge", descending=True),)) == [1, 4, 2, *without]
    assert world.rows("a", "b", sort=(Sort("scores.judge"),))[:3] == [4, 1, 2]


def test_equal_rows_are_sorted_by_the_next_field_and_then_by_digest(world: World) -> None:
    world.run("a", [(1, 1), (2, 1), (3, 2), (4, 1)])
    same = in_order(1, 2, 4)
    for descending in (False, True):
        by_score = Sort("scores.judge", descending)
        assert world.rows("a", sort=(by_score,)) == ([3, *same] if descending else [*same, 3])
        by_input = Sort("inputs.n", not descending)
        assert world.rows("a", sort=(by_score, by_input)) == ([3, 1, 2, 4] if descending else [4, 2, 1, 3])


def test_inputs_are_sorted_numbers_before_texts(world: World) -> None:
    world.run("a", [(10, 1), (9, 1)])
    records = [
        Prediction(f"x{at}", "acme", "p", "model", {"n": value}, f"digest {at}", NOON, run_id="a")
        for at, value in enumerate(["b", "a", None])
    ]
    world.yard.runtime.store.transact(lambda tx: [tx.add(record) for record in records])
    assert world.rows("a", sort=(Sort("inputs.n"),)) == [9, 10, "a", "b", None]
    assert world.rows("a", sort=(Sort("inputs.n", descending=True),)) == [10, 9, "b", "a", None]


def test_rows_are_sorted_by_how_far_runs_lie_apart(world: World) -> None:
    world.run("a", [(1, 1), (2, 1), (3, 1), (4, 1)])
    world.run("b", [(1, 5), (2, 1.5), (3, None)])
    world.run("c", [(1, 2), (2, 9)])
    sort = Sort("scores.judge", descending=True, difference=True)
    assert world.rows("a", "b", "c", sort=(sort,)) == [2, 1, *in_order(3, 4)]
    with pytest.raises(CallerError, match="difference"):
        Sort("inputs.n", difference=True)


@pytest.mark.slow
@examples(30)
@given(data=st.data())
def test_a_sorted_page_is_the_page_of_what_is_sorted(build: Any, data: Any) -> None:
    world = World(build.build())
    values = st.none() | st.booleans() | st.integers(-3, 3)
    scores = {run: data.draw(st.lists(st.tuples(st.integers(0, 6), values), max_size=12)) for run in ("a", "b")}
    for run, rows in scores.items():
        world.run(run, rows)
    sorts = tuple(
        Sort("scores.judge", data.draw(st.booleans()), data.draw(st.sampled_from(["a", "b", None])))
        for _ in range(data.draw(st.integers(0, 2)))
    )
    intersect = data.draw(st.booleans())
    whole = world.rows("a", "b", sort=sorts, in_all_runs=intersect)
    present = [{number for number, _ in rows} for rows in scores.values()]
    assert set(whole) == (present[0] & present[1] if intersect else present[0] | present[1])
    assert len(whole) == len(set(whole))
    limit, offset = data.draw(st.integers(0, 8)), data.draw(st.integers(0, 8))
    page = world.rows("a", "b", sort=sorts, in_all_runs=intersect, limit=limit, offset=offset)
    assert page == whole[offset : offset + limit]
    window = {"in_all_runs": intersect, "limit": limit, "offset": offset}
    reported, counted = (world.ask("a", "b", **window, summarise=summarise) for summarise in (True, False))
    assert (counted.total_rows, counted.names) == (reported.total_rows, reported.names) == (len(whole), reported.names)
    assert [row.digest for row in counted.rows] == [row.digest for row in reported.rows]
    assert counted.summary == ()
    if sorts:
        means = [mean(scores, sorts[0].run_id, number) for number in whole]
        known = [value for value in means if value is not None]
        assert means == sorted(known, reverse=sorts[0].descending) + [None] * (len(means) - len(known))


def mean(scores: Mapping[str, list[tuple[int, Any]]], run: str | None, number: int) -> float | None:
    rows = [one for name, rows in scores.items() if run in (None, name) for one in rows]
    values = [value for at, value in rows if at == number and value is not None]
    return sum(values) / len(values) if values else None


# ---- in short ----------------------------------------------------------------------------------------------------


def stats(world: World, *run_ids: str, **options: Any) -> dict[str, LeafStats]:
    (summary,) = world.ask(*run_ids, **options).summary
    return {f"{one.scorer_key}/{one.path}": one for one in summary.stats}


def test_each_leaf_of_a_score_has_its_counts_and_a_bool_beside_a_number_is_0_or_1(world: World) -> None:
    values: list[Any] = [
        {"ok": True, "deep": {"n": 1}, "why": "good"},
        {"ok": False, "deep": {"n": 2.5}, "why": None},
        {"ok": True, "deep": {"n": None}, "list": [1, 2]},
        {"ok": 3},
    ]
    world.run("a", [(at, value) for at, value in enumerate({JUDGE: value} for value in values)])
    found = stats(world, "a")
    assert found == {
        "judge/ok": LeafStats("judge", "ok", MetricKind.CONTINUOUS, 4, 4, 1.25, 2, 3, 2 / 3, 0.75),
        "judge/deep.n": LeafStats("judge", "deep.n", MetricKind.CONTINUOUS, 2, 2, 1.75, 0, 0, None, 0),
        "judge/why": LeafStats("judge", "why", MetricKind.TEXT, 1, 0, None, 0, 0, None, 0),
    }
    assert (found["judge/ok"].pass_rate, found["judge/ok"].pass_signal_coverage) == (2 / 3, 3 / 4)
    assert (found["judge/deep.n"].pass_rate, found["judge/deep.n"].pass_signal_coverage) == (None, 0.0)


def test_ints_and_floats_are_one_kind_of_number(world: World) -> None:
    world.run("a", [(1, 1), (2, 0.0), (3, 1), (4, 0)])
    assert stats(world, "a") == {
        "judge/None": LeafStats("judge", None, MetricKind.CONTINUOUS, 4, 4, 0.5, 0, 0, None, 0)
    }


def test_two_versions_of_a_scorer_do_not_overwrite_each_other(world: World) -> None:
    other = JUDGE.replace("v1", "v2")
    world.run("a", [(1, {JUDGE: 1, other: 2}), (2, {JUDGE: 3})])
    world.run("b", [(1, {other: 5})])
    found = world.ask("a", "b")
    assert found.names == {"a": {JUDGE: "judge:v1", other: "judge:v2"}, "b": {other: "judge"}}
    assert [[(one.scorer_key, one.numeric_mean) for one in run.stats] for run in found.summary] == [
        [("judge:v1", 2.0), ("judge:v2", 2.0)],
        [("judge", 5.0)],
    ]


def test_the_summary_covers_the_matching_rows_and_on_request_those_of_all_runs(world: World) -> None:
    world.run("a", [(1, 1), (2, 2), (3, 3)])
    world.run("b", [(2, 4), (3, 6)])

    def means(**options: Any) -> tuple[int, list[Any]]:
        found = world.ask("a", "b", **options)
        return found.summary_rows, [run.stats[0].numeric_mean if run.stats else None for run in found.summary]

    assert means() == (3, [2.0, 5.0])
    assert means(limit=1) == (3, [2.0, 5.0])
    assert means(in_all_runs=True) == (2, [2.5, 5.0])
    assert means(in_all_runs=True, summary_in_all_runs=False) == (3, [2.0, 5.0])
    assert means(summary_in_all_runs=True) == (2, [2.5, 5.0])
    assert means(where={"a": JUDGED >= 3}) == (1, [3.0, 6.0])


def test_tokens_and_costs_are_summed_exactly_and_none_where_nothing_was_reported(world: World) -> None:
    world.run("a", [(1, 1), (2, 2), (3, 3)], prompt_tokens=2, completion_tokens=5, cost=Decimal("0.1"))
    world.run("b", [(1, 1)])
    first, second = world.ask("a", "b").summary
    assert (first.trial_count, first.tokens, first.cost) == (3, 21, Decimal("0.3"))
    assert (second.tokens, second.cost) == (None, None)


def test_a_run_without_rows_is_empty(world: World) -> None:
    world.run("a", [])
    found = world.ask("a")
    assert (list(found.rows), found.total_rows, found.summary[0].trial_count) == ([], 0, 0)

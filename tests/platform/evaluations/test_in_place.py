"""Rows that are called and scored in place come to the same as those that threads call and score."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard import Platform, open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.run import Prediction
from modelyard.domain.usage import LedgerEntry

ROWS = st.lists(
    st.fixed_dictionaries({"prompt": st.sampled_from(["yes", "no", "1", ""])}, optional={"expected": st.just("yes")}),
    min_size=1,
    max_size=6,
).map(lambda rows: [*rows, {"prompt": "no", "expected": "yes"}])  # a field that no row has is refused


def strict(output: Any, row: Mapping[str, Any]) -> Any:
    if output == "no":
        raise ValueError("no")
    return None if output == "1" else output == row.get("expected")


SCORERS = {
    "match": "exact_match",
    "strict": strict,
    "judge": {"type": "llm_judge", "model": "echo", "prompt": "{output}"},
}


def outcome_of(platform: Platform, rows: list[Any], names: list[str], **options: Any) -> Any:
    scorers: Any = {name: SCORERS[name] for name in names}
    result = platform.evaluations.run("e", "echo", rows, scorers, project="p", seed=1, **options)
    kept = [(row.index, row.outcome, row.output, row.score, row.detail, row.scores, row.cost) for row in result.rows]
    entries = platform._runtime.store.read(lambda snapshot: snapshot.page(LedgerEntry, "by_entity", "local", limit=100))
    booked = sorted((one.prompt_tokens, one.completion_tokens, one.cost) for one in entries)
    return kept, result.run.summary, booked, platform.usage.total()


@pytest.mark.slow
@examples(10)
@given(rows=ROWS, names=st.permutations(sorted(SCORERS)).map(lambda all: all[:2]), concurrency=st.sampled_from([1, 3]))
def test_in_place_and_in_threads_rows_come_to_the_same(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], names: list[str], concurrency: int
) -> None:
    file = tmp_path_factory.mktemp("yard") / "yard.db"  # usage waits for the commit of its rows in a store that blocks
    with (
        open_platform(file, durability="process", backend=EchoBackend()) as here,
        open_platform(backend=EchoBackend()) as threads,
    ):
        in_place = outcome_of(here, rows, names, concurrency=concurrency)
        # A time-out needs threads, and so do several scorers at a time that may wait.
        in_threads = outcome_of(threads, rows, names, concurrency=concurrency, timeout=600.0, scorer_concurrency=2)
    assert in_place == in_threads


@pytest.mark.parametrize("prompt", ["plain", "é and \\ and \n"])
@pytest.mark.parametrize("on_disk", [False, True])
def test_what_a_scorer_changes_in_a_row_is_not_what_is_stored(tmp_path: Path, prompt: str, on_disk: bool) -> None:
    def changing(output: Any, row: Any) -> bool:
        row["prompt"] = "changed"
        return True

    with open_platform(*([tmp_path / "yard.db"] if on_disk else [])) as platform:
        result = platform.evaluations.run("e", "echo", [{"prompt": prompt}], changing, project="p")
        (kept,) = platform._runtime.store.read(lambda snapshot: snapshot.page(Prediction, "by_run", result.run.id))
    assert (dict(kept.inputs), kept.row_digest) == ({"prompt": prompt}, digest({"prompt": prompt}))

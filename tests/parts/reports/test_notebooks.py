"""What a notebook shows of rows, of jobs that wait, and of listings."""

from collections.abc import Iterator
from typing import Any

import pytest

from modelyard import Example, Message, Role, ScriptedBackend, open_platform
from modelyard.backends import call
from modelyard.domain.usage import SummedUsage, UsageSum
from modelyard.platform.platform import Platform


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform(project="demo") as opened:
        yield opened


def test_rows_are_a_table_of_what_was_asked_its_output_and_scores(platform: Platform) -> None:
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "<b>hi</b>"}]
    rows = [{"messages": chat, "expected": "x"}, {"question": 1, "prompt": "ask me"}]
    result = platform.evaluations.run("e", "echo", rows)
    shown = result.rows._repr_html_()
    assert "&lt;b&gt;hi&lt;/b&gt;" in shown
    assert "ask me" in shown
    assert "exact_match" in shown
    assert "<b>hi" not in shown
    assert repr(result.rows) == f"<rows of run {result.run.id}>"


def test_more_rows_than_are_shown_say_so(platform: Platform) -> None:
    rows = [{"prompt": f"n{number}", "expected": ""} for number in range(60)]
    result = platform.evaluations.run("e", "echo", rows)
    assert "and more" in result.rows._repr_html_()
    assert "n59" not in result.rows._repr_html_()
    assert "There are no rows." in result.errors._repr_html_()


def test_a_job_that_waits_shows_where_it_stands_and_then_its_plot(platform: Platform) -> None:
    model = platform.models.create("m", base_model="tabular-mini")
    job = platform.training.sft(model, [Example((Message(Role.USER, "a"), Message(Role.ASSISTANT, "b")))])
    waiting = job._repr_html_()
    assert "<svg" not in waiting
    assert "queued" in waiting
    assert "demo/m" in waiting
    job.wait()
    assert "<svg" in job._repr_html_()


def test_times_of_the_catalogue_are_dates_and_digests_are_cut(platform: Platform) -> None:
    created = next(iter(platform.catalogue.list())).created
    table = platform.catalogue.list()._repr_html_()
    assert str(created) not in table
    assert "2026-01-01 00:00:00" in table
    model = platform.models.create("m", base_model="tabular-mini")
    (checkpoint,) = platform.models.checkpoints(model).page(1).items
    assert f">{checkpoint.digest}<" not in platform.models.checkpoints(model)._repr_html_()


def test_checkpoints_show_what_was_measured(platform: Platform) -> None:
    model = platform.models.create("m", base_model="tabular-mini")
    platform.training.sft(model, [Example((Message(Role.USER, "a"), Message(Role.ASSISTANT, "b")))]).wait()
    *_, trained = platform.models.checkpoints(model)
    assert trained.metrics
    shown = platform.models.checkpoints(model)._repr_html_()
    for name, value in trained.metrics.items():
        assert name.replace("_", " ") in shown
        assert f"{value:.4g}" in shown


HOSTILE = "<script>alert(1)</script>"
CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": HOSTILE}]


def test_a_value_is_shown_with_what_it_holds(platform: Platform) -> None:
    model = platform.models.create("bot", base_model="tabular-mini")
    made = platform.chat.complete(model="echo", messages=HOSTILE, store=True)
    split = platform.datasets.split(
        [{"messages": [{**CHAT[0], "content": str(n)}, CHAT[1]]} for n in range(9)], name="d"
    )
    platform.training.sft(model, split.train.url).wait()
    platform.models.promote(model, 1)
    first = platform.evaluations.run("quiz", "demo/bot:step1", [{"prompt": HOSTILE, "expected": "x"}]).run
    again = platform.evaluations.rescore(first.id, "token_f1").run
    usage = platform.usage.total(by=["model"])
    shown: Any = [
        (model, "demo", "tabular-mini"),
        (made, "&lt;script&gt;", "stop", "prompt tokens"),
        (platform.models.checkpoint(model, 1), "loss", "digest"),
        (platform.jobs.list().page().items[0], "sft", "succeeded"),
        (platform.catalogue.get("tabular-mini"), "tabular-mini", "pricing"),
        (split.train, split.train.url, "rows"),
        (platform.evaluations.report(again).metric("token_f1"), "token_f1", "scored"),
        (split, split.train.url, split.held_out.url, "rows"),
        (platform.models.lineage(model, 1), "prod", "sft", "quiz", split.train.url),
        (platform.evaluations.runs.lineage(again.id), "sources", "quiz"),
        (platform.chat.lineage(made.id), "echo", "cost"),
    ]
    for value, *words in shown:
        html = value._repr_html_()
        assert html.startswith("<style>")
        assert HOSTILE not in html
        for word in words:
            assert word in html, (type(value), word)
    assert "<th" in usage._repr_html_()
    assert "echo" in usage._repr_html_()
    assert type(usage)([])._repr_html_().count("Nothing is listed.") == 1


def test_many_sums_say_how_many_more_there_are() -> None:
    assert "and 10 more" in SummedUsage([UsageSum(model=f"m{number}") for number in range(60)])._repr_html_()


def test_calls_of_tools_are_shown() -> None:
    tools: Any = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]
    with open_platform(backend=ScriptedBackend([call("find", q=HOSTILE)], models=["m"])) as platform:
        html = platform.chat.complete(model="m", messages="a", tools=tools)._repr_html_()
    assert "find({" in html
    assert "tool_calls" in html
    assert HOSTILE not in html

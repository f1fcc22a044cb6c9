"""Listings in a notebook: a table of what can be shown in a cell, with ids in short."""

from modelyard import open_platform
from modelyard.parts.reports.records import records_table

ROWS = [{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}]


def test_a_listing_is_a_table_in_a_notebook() -> None:
    with open_platform() as platform:
        platform.models.create("polite", project="demo", base_model="tabular-mini")
        job = platform.training.sft("demo/polite", ROWS)
        shown = platform.training.list()._repr_html_()
        assert f'<span title="{job.id}">…{job.id[-8:]}</span>' in shown
        assert "<th>kind</th>" in shown
        assert ">sft</td>" in shown
        assert "config" not in shown  # a mapping
        assert "error message" not in shown  # None everywhere
        assert platform.evaluations.runs.list(project="demo")._repr_html_().count("<table>") == 0


def test_what_is_not_a_record_is_text_and_hostile_text_is_escaped() -> None:
    shown = records_table(["<script>" + "x" * 200], more=True)
    assert "&lt;script&gt;" in shown
    assert "and more" in shown
    assert "<script>" not in shown

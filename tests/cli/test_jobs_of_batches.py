"""`modelyard jobs` shows a batch, and the dashboard lists it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from batch_files import asking, uploaded
from modelyard import open_platform
from modelyard.cli import main


@pytest.mark.parts
def test_a_batch_is_shown_and_not_followed(tmp_path: Path) -> None:
    store = str(tmp_path / "yard.db")
    with open_platform(store) as platform:
        batch = platform.compat.batches.create(uploaded(platform, [asking("a")])).id
        platform.worker().run_until_idle()
    shown = CliRunner().invoke(main, ["jobs", "show", "--store", store, batch, "--json"])
    assert shown.exit_code == 0, shown.output
    assert (json.loads(shown.output)["kind"], json.loads(shown.output)["status"]) == ("batch", "succeeded")
    listed = CliRunner().invoke(main, ["jobs", "list", "--store", store])
    assert "batch" in listed.output
    followed = CliRunner().invoke(main, ["jobs", "watch", "--store", store, batch])
    assert followed.exit_code == 1
    assert "no steps to follow" in followed.output

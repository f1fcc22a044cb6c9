import fcntl
import os
import re
import shutil

import pytest

from modelyard.compose import open_platform
from modelyard.parts.quickstart import story as quickstart

pytestmark = [pytest.mark.docs, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """The folder, and what one run has said: one of all processes of these tests, which no test changes."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder, said = shared / "quickstart", shared / "quickstart.txt"
    with (shared / "quickstart.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            reply = []
            quickstart.run(folder, reply.append)
            said.write_text("\n".join(reply), encoding="utf-8")
    return folder, said.read_text(encoding="utf-8")


def curves(text, word):
    """Where each curve of this name begins and ends."""
    found = re.findall(rf"^  {word} ([\d.]+) \S+ ([\d.]+)$", text, re.MULTILINE)
    return [(float(first), float(last)) for first, last in found]


def score(text, row):
    return float(re.search(rf"^{row} +([\d.]+) +[\d.]+ to [\d.]+$", text, re.MULTILINE)[1])


def test_the_loss_falls(reported):
    ((first, last),) = curves(reported[1], "loss")
    assert last < first / 2


def test_held_out_questions_are_answered_better_after_each_step(reported):
    text = reported[1]
    assert score(text, "after SFT") > 2 * score(text, "tabular-mini")
    assert score(text, "after RL") > score(text, "after SFT") + 0.03


def test_the_tempting_reward_rises_while_the_evaluation_falls(reported):
    _, (first, last) = curves(reported[1], "reward")
    assert last > 1.4 * first
    assert score(reported[1], "after RL for short answers") < score(reported[1], "after RL") / 2


def test_what_helps_is_promoted_and_what_does_not_is_refused(reported):
    last, tempted = 1 + quickstart.HELPFUL.rounds, 1 + quickstart.HELPFUL.rounds + quickstart.TEMPTING.rounds
    assert f"step {last} is promoted" in reported[1]
    assert f"step {tempted} is not promoted, the candidate is worse" in reported[1]
    with open_platform(reported[0] / "yard.db", project=quickstart.PROJECT) as platform:
        assert [alias.step for alias in platform.models.aliases("quickstart/support")] == [last]
        assert platform.models.get("quickstart/support").last_step == tempted


def test_what_it_shows_is_stored(reported):
    with open_platform(reported[0] / "yard.db") as platform:
        assert platform.models.find("support", project=quickstart.PROJECT)
        assert all(row.requests > 0 for row in platform.usage.total(by=("model",), project=quickstart.PROJECT))


def test_a_second_run_takes_a_new_name(reported):
    with open_platform(reported[0] / "yard.db", project=quickstart.PROJECT) as platform:
        assert quickstart._new_name(platform) == "support-2"

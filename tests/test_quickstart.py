import re

import pytest

from modelyard import quickstart
from modelyard.compose import open_platform

pytestmark = pytest.mark.docs


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """The folder, and what one run has said."""
    folder, reply = tmp_path_factory.mktemp("quickstart"), []
    quickstart.run(folder, reply.append)
    return folder, "\n".join(reply)


def numbers_around_the_curve(text, word):
    first, last = re.search(rf"^  {word} ([\d.]+) \S+ ([\d.]+)$", text, re.MULTILINE).groups()
    return float(first), float(last)


def test_the_loss_falls(reported):
    first, last = numbers_around_the_curve(reported[1], "loss")
    assert last < first / 2


def test_the_reward_rises(reported):
    first, last = numbers_around_the_curve(reported[1], "reward")
    assert last > 1.2 * first


def test_held_out_questions_are_answered_better_after_sft_and_not_worse_after_rl(reported):
    def score(row):
        return float(re.search(rf"^{row} +([\d.]+)$", reported[1], re.MULTILINE).group(1))

    assert score("support after SFT") > 2 * score("tabular-mini")
    assert score("support after RL") >= score("support after SFT") - 0.03


def test_what_it_shows_is_stored(reported):
    with open_platform(reported[0] / "yard.db") as platform:
        assert platform.models.find("support", project=quickstart.PROJECT)
        assert all(row.requests > 0 for row in platform.usage.total(by=("model",), project=quickstart.PROJECT))


def test_a_second_run_takes_a_new_name(reported):
    with open_platform(reported[0] / "yard.db") as platform:
        assert quickstart._new_name(platform) == "support-2"

"""A job in which nothing is trained fails and says why; a client that counts steps, and a loop, go on."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from modelyard import Platform, Rollout, gather, open_platform
from modelyard.errors import JobFailed
from modelyard.formats.training_data import GROUPS


def rollout(platform: Platform, reward: float) -> Any:
    one = Rollout(platform.chat, model="local/d/m", project="d", max_tokens=4, logprobs=True)
    one.ask("hello")
    return one.trajectory(reward)


def crash(platform: Platform, seed: int) -> Any:
    raise ZeroDivisionError(f"seed {seed}")


ATTEMPTS: dict[str, tuple[Callable[[Platform, int], Any], int, str]] = {
    "all crash": (crash, 3, "3 of 3 attempts failed, the first with ZeroDivisionError: seed 0"),
    "all return nothing": (
        lambda *_: None,
        2,
        "2 of 2 attempts failed, the first with TypeError: the attempt returned",
    ),
    "equal": (lambda platform, _: rollout(platform, 1.0), 3, "in none of 1 groups do the rewards differ"),
    "one alone": (lambda platform, _: rollout(platform, 1.0), 1, "gather several"),
    "none": (crash, 0, "there is no attempt"),
    "equal but for a crash": (
        lambda platform, seed: rollout(platform, 1.0) if seed else crash(platform, seed),
        3,
        "1 of 3 attempts failed, the first with ZeroDivisionError: seed 0; an attempt is measured",
    ),
}


@pytest.mark.parametrize("case", ATTEMPTS)
def test_rl_without_a_difference_of_rewards_fails_and_says_why(case: str) -> None:
    attempt, count, why = ATTEMPTS[case]
    with open_platform(project="d") as platform:
        platform.models.create("m", base_model="tabular-mini")
        group = gather(lambda seed: attempt(platform, seed), range(count))
        job = platform.training.rl("d/m", [group])
        with pytest.raises(JobFailed, match="nothing was trained") as failed:
            job.result()
        assert why in str(failed.value)
        assert [one.step for one in platform.models.checkpoints("d/m")] == [0]
        assert [event.type for event in job.events()][-1] == "training_failed"


def test_a_client_that_counts_steps_goes_on_unless_every_attempt_crashed() -> None:
    with open_platform(project="d") as platform:
        model = platform.models.create("m", base_model="tabular-mini")
        equal = gather(lambda _: rollout(platform, 1.0), range(2))
        crashed = gather(lambda seed: crash(platform, seed), range(2))
        statuses = []
        for groups in ([equal, crashed], [crashed]):
            stored = platform._runtime.artifacts.put(map(GROUPS.dump, groups))
            job = platform.training.submit("rl", model, stored, advances=True)
            with suppress(JobFailed):
                job.wait()
            statuses.append(job.status)
        assert statuses == ["succeeded", "failed"]

"""What this part brings to the tests of all parts."""

from modelyard import Platform
from rolled_out import trained

TABLES: dict[str, str] = {}

KEYED = ("/v1/rollouts",)


def fill(platform: Platform) -> None:
    trained(platform, "of-theirs")
    rollout = platform.rollouts.start("of-theirs/support", 1, least=1, canary=[0.5, 1])
    for user in ("ann", "bob", "eve", "joe"):
        answer = platform.chat.complete(
            model="of-theirs/support:prod", messages="hello", project="of-theirs", user=user, max_tokens=2
        )
        platform.rollouts.score(answer.id, True)
    platform.rollouts.look(rollout.id)


def clear(platform: Platform) -> None:
    for one in [*platform.rollouts.list()]:
        platform.rollouts.stop(one.id)
        platform.rollouts.delete(one.id)

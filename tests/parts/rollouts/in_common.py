"""What this part brings to the tests of all parts."""

from typing import Any

from modelyard import Platform
from modelyard.domain.identity import Principal, Scope
from rolled_out import trained

TABLES = {
    "rollouts": "9830d98380a017ca",
    "running_rollouts": "5fe442ec92e7ebfe",
    "rollout_answers": "c1f829031a47405b",
    "rollout_scores": "4bc0da4fe2e3ed00",
    "rollout_users": "dd7197c5ce86427e",
    "rollout_tallies": "9412fb88fcb5d8f3",
    "rollout_cursors": "cd6321cf21890380",
    "rollout_steps": "09e21c89027f0019",
}

KEYED = ("/v1/rollouts",)

NOT_CREATING = {"/v1/rollouts/{rollout}/stop": "what has ended stays as it is"}


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
        platform.models.remove_alias(one.model_id, one.alias)
        platform.models.delete(one.model_id)


def record(yard: Any, platform: Platform) -> None:
    acme = platform.acting_as(Principal("ann", "acme", Scope("acme")))
    trained(acme, "help", platform)
    body = {
        "model": "help/support",
        "step": 1,
        "canary": [0.5, 1.0],
        "guard": {"margin": 0.1},
        "also": {"errors": 0.05},
    }
    made = yard.send("POST", "/v1/rollouts", body)["id"]
    asked = {"model": "help/support:prod", "messages": "hello", "project": "help", "max_tokens": 2}
    answer = acme.chat.complete(**asked, user="ann")
    of = f"/v1/rollouts/{made}"
    yard.send("PUT", f"/v1/rollouts/answers/{answer.id}/scores/thumbs", {"value": True})
    acme.rollouts.look(made)
    yard.send("GET", "/v1/rollouts", limit=1)
    yard.send("GET", of)
    yard.send("GET", f"{of}/standing")
    yard.send("GET", f"{of}/steps", limit=1)
    yard.send("GET", f"{of}/answers", limit=1)
    yard.send("POST", f"{of}/stop", {"reason": "The help page moves."})
    yard.send("DELETE", of)

"""What this part brings to the tests of all parts."""

from typing import Any

from modelyard import Platform
from modelyard.domain.identity import Principal, Scope

TABLES = {"kept_calls": "3d1dc2d9a99740f8", "prompt_proposals": "d3156464dd455931"}

KEYED = ("/v1/preview/prompt-jobs", "/v1/improvements")

NOT_CREATING = {"/v1/improvements/{improvement}/cancel": "what has ended stays as it is"}

TASKS = [{"prompt": f"Where is order {number}?", "expected": "On Friday."} for number in range(1, 7)]


def fill(platform: Platform) -> None:
    """Store a prompt job, which has ended."""
    platform.variants.publish("p/prompted", model="echo", system="Begin.")
    tasks = [{"prompt": "Where is my order?", "expected": "Where"}]
    platform.training.prompt("p/prompted", tasks, "token_f1", reflection="echo", calls=6).wait()


def clear(platform: Platform) -> None:
    platform.variants.delete("p/prompted")


def record(yard: Any, platform: Platform) -> None:
    acme = platform.acting_as(Principal("ann", "acme", Scope("acme")))
    acme.variants.publish("prompted/support", model="echo", system="Answer the customer.")
    platform.worker().beat()
    variant = "acme/prompted/support@1"
    asked = {"variant": variant, "tasks": TASKS, "reward": "token_f1", "reflection": "echo"}
    job = yard.send("POST", "/v1/preview/prompt-jobs", {**asked, "config": {"calls": 18, "budget": "5.00"}})["id"]
    roads = [{"road": "prompt", "reflection": "echo", "calls": 12}]
    asked = {"target": variant, "tasks": TASKS, "reward": "token_f1", "roads": roads, "budget": "5.00"}
    made = yard.send("POST", "/v1/improvements", {**asked, "name": "autumn"})["id"]
    platform.worker().run_until_idle()
    yard.send("GET", "/v1/preview/prompt-jobs", project="prompted", limit=1)
    yard.send("GET", f"/v1/preview/prompt-jobs/{job}")
    yard.send("GET", f"/v1/preview/prompt-jobs/{job}/proposals", limit=1)
    of = f"/v1/improvements/{made}"
    yard.send("GET", "/v1/improvements", limit=1)
    yard.send("GET", of)
    yard.send("GET", f"{of}/events")
    yard.send("POST", f"{of}/cancel")

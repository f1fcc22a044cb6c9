"""What this part brings to the tests of all parts."""

from modelyard import Platform

TABLES = {"kept_calls": "3d1dc2d9a99740f8", "prompt_proposals": "d3156464dd455931"}


def fill(platform: Platform) -> None:
    """Store a prompt job, which has ended."""
    platform.variants.publish("p/prompted", model="echo", system="Begin.")
    tasks = [{"prompt": "Where is my order?", "expected": "Where"}]
    platform.training.prompt("p/prompted", tasks, "token_f1", reflection="echo", calls=6).wait()


def clear(platform: Platform) -> None:
    platform.variants.delete("p/prompted")

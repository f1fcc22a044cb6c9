"""What this part brings to the tests of all parts."""

from typing import Any

from modelyard import Platform

TABLES = {
    "variants": "64b0f6bfceaab601",
    "variant_versions": "28c7b75380baa884",
    "variant_aliases": "77ebd47760594f3f",
    "variant_moves": "239f4b482be07ca7",
}

NOT_CREATING = {
    "/v1/variants": "what the newest version is already makes none",
}

KEYED = ("/v1/variants/{project}/{name}/aliases/{alias}/rollback",)


def fill(platform: Platform) -> None:
    made = platform.variants.publish(
        "desk/support-of-theirs", model="echo", system="secret of theirs", note="a note of theirs"
    )
    platform.variants.promote("desk/support-of-theirs", made.number)


def clear(platform: Platform) -> None:
    for one in [*platform.variants.list()]:
        name = f"{one.project}/{one.name}"
        for alias in platform.variants.aliases(name):
            platform.variants.remove_alias(name, alias.name)
        platform.variants.delete(name)


def record(yard: Any, platform: Platform) -> None:
    of = "/v1/variants/desk/support"
    first = {"model": "echo", "system": "You help customers of a shop.", "note": "The first."}
    yard.send("POST", f"{of}/versions", first)
    asked = {
        "model": "echo",
        "system": "You help customers of a shop. Be brief.",
        "template": "Customer: {question}",
        "examples": [{"inputs": {"question": "Where is it?"}, "assistant": "On its way."}],
        "parameters": {"max_tokens": 100},
    }
    yard.send("POST", f"{of}/versions", asked)
    written = yard.send("GET", f"{of}/versions/latest/file")
    yard.send("POST", "/v1/variants", {"file": written["file"], "name": "desk/other"})
    yard.send("GET", "/v1/variants", limit=1)
    yard.send("GET", of)
    yard.send("GET", f"{of}/versions", limit=1)
    yard.send("GET", f"{of}/versions/2")
    yard.send("GET", f"{of}/diff", before="1", after="2")
    yard.send("PUT", f"{of}/aliases/prod", {"number": 1})
    yard.send("PUT", f"{of}/aliases/prod", {"number": 2})
    yard.send("GET", f"{of}/aliases")
    yard.send("POST", f"{of}/aliases/prod/rollback")
    yard.send("GET", f"{of}/versions/1/lineage")
    yard.send("GET", f"{of}/aliases/prod/moves", limit=1)
    yard.send("DELETE", f"{of}/aliases/prod")
    yard.send("DELETE", of)

"""What this part brings to the tests of all parts."""

from modelyard import Platform


def fill(platform: Platform) -> None:
    model = platform.models.create("support", base_model="tabular-mini")
    platform.annotations.set(model.id, tags=["baseline of theirs"], note="the rate of the paper")


def clear(platform: Platform) -> None:
    for one in platform.annotations.list(kind="model"):
        platform.annotations.set(one.subject, tags=[], note="")

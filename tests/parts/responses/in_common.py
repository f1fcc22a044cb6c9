"""What this part brings to the tests of all parts."""

from modelyard import Platform

NOT_CREATING = {"/input_tokens": "nothing is kept"}


def fill(platform: Platform) -> None:
    platform.compat.responses.create(model="echo", input="a question of theirs")
    platform.compat.responses.create(model="echo", input="another one", background=True)
    platform.worker().run_until_idle()


def clear(platform: Platform) -> None:
    for one in [*platform.compat.responses.list()]:
        platform.compat.responses.delete(one.id)

"""What this part brings to the tests of all parts."""

from modelyard import Platform


def fill(platform: Platform) -> None:
    platform.chat.complete(model="echo", messages="a question of theirs", store=True)
    platform.traffic.submit("answers")
    platform.worker().run_until_idle()

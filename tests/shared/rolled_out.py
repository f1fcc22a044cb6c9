"""A model with two steps, of which one is rolled out."""

from modelyard import NotWorse, Platform

NAME = "desk/support"
ALIAS = f"{NAME}:prod"
ROWS = [{"messages": [{"role": "user", "content": "ping"}, {"role": "assistant", "content": "pong"}]}] * 4
GUARD = NotWorse("thumbs", margin=0.3)


def trained(platform: Platform, project: str = "desk", host: Platform | None = None) -> None:
    """Make a model whose alias points to step 0, and which has a step 1."""
    platform.models.create("support", project=project, base_model="tabular-mini")
    platform.training.sft(f"{project}/support", ROWS, epochs=1)
    (host or platform).worker().run_until_idle()
    platform.models.promote(f"{project}/support", 0)

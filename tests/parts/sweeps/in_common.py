"""What this part brings to the tests of all parts."""

from modelyard import Platform


def row(number: int) -> dict[str, object]:
    """Return a short example; those of other numbers differ."""
    said = [{"role": "user", "content": f"{number}"}, {"role": "assistant", "content": "ab"}]
    return {"messages": said}


def fill(platform: Platform) -> None:
    """Store a sweep of two trials, which has ended."""
    model = platform.models.create("swept", project="p", base_model="tabular-mini")
    sweep = platform.training.sweep(model, [row(0), row(1)], validation=[row(2)], learning_rate=[1e-5, 1e-4], name="s")
    sweep.wait()


TABLES = {"sweeps": "4486ef009e349d4c"}

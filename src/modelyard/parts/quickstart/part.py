"""The first thing to run: `modelyard quickstart`."""

from modelyard.part import Command, Part

PART = Part(
    "quickstart",
    commands={
        "quickstart": Command(
            "Start",
            "modelyard.parts.quickstart.commands:quickstart",
            "Fine-tune, reinforce and evaluate a small model, in seconds.",
        )
    },
)
"""One command, which tells its story as it goes."""

"""A first look: train and evaluate a small model from end to end."""

from modelyard.part import Command, Part

PART = Part(
    "quickstart",
    commands={
        "quickstart": Command(
            "Start",
            "modelyard.parts.quickstart.story:quickstart",
            "Fine-tune, reinforce and evaluate a small model, in seconds.",
        )
    },
)

"""The commands that back up and restore."""

from modelyard.part import Command, Part

PART = Part(
    "backups",
    commands={
        "backup": Command(
            "Store", "modelyard.parts.backups.commands:backup", "Write a consistent copy while others work on."
        ),
        "restore": Command("Store", "modelyard.parts.backups.commands:restore", "Copy a backup back, and check it."),
    },
)

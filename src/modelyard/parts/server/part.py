"""A server for the platform and its dashboard: the commands `serve` and `ui`, on uvicorn."""

from modelyard.part import Command, Part

PART = Part(
    "server",
    commands={
        "serve": Command(
            "Start", "modelyard.parts.server.commands:serve", "Serve the platform over HTTP until interrupted."
        ),
        "ui": Command(
            "Start",
            "modelyard.parts.server.commands:ui",
            "Show the dashboard of a store on this machine, to read only.",
        ),
    },
)

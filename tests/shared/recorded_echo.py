"""A cassette of echoes, recorded here or, by `python recorded_echo.py FILE NAME [killed]`, in a process of its own."""

import os
import signal
import sys
from pathlib import Path

from modelyard.backends.echo import EchoBackend
from modelyard.domain.completion import CompletionRequest, Message, Role
from modelyard.parts.doubles.cassette.cassette import use_cassette
from modelyard.protocols import Backend, ServedModel

SERVED = ServedModel("echo", EchoBackend().entries()[0])
LONG = "много слов 🌊\u2028\u0085 " * 500


def ask(backend: Backend, prompt: str) -> str:
    request = CompletionRequest("echo", (Message(Role.USER, prompt),), max_tokens=100_000)
    return "".join(delta.text for delta in backend.stream(request, SERVED))


def record(path: Path, *prompts: str) -> None:
    backend = use_cassette(path, EchoBackend(), mode="new")
    backend.entries()
    for prompt in prompts:
        ask(backend, prompt)


if __name__ == "__main__":
    record(Path(sys.argv[1]), *(f"{sys.argv[2]}-{number} {LONG}" for number in range(10)))
    if sys.argv[3:] == ["killed"]:
        os.kill(os.getpid(), signal.SIGKILL)

"""A server in a process of its own, for the benchmarks of what is served; its CPU is read from /proc."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def serve(app: Any, key: str, port: int, **options: Any) -> None:
    """Serve an application in this process; prints the key when it is ready."""
    import uvicorn

    config = uvicorn.Config(app, port=port, log_level="error", lifespan="off", **{"access_log": False, **options})
    server = uvicorn.Server(config)

    async def main() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        print(key, flush=True)
        await serving

    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(main())


@contextmanager
def served(script: str, *arguments: object) -> Iterator[tuple[int, str]]:
    """The process of a script that serves when it is started with "serve" and these: its pid and key."""
    command = [sys.executable, script, "serve", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.terminate()


def cpu(pid: int) -> tuple[float, float]:
    """Seconds of CPU that a process has used: in all, and outside of the kernel."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    user, system = (int(field) / os.sysconf("SC_CLK_TCK") for field in fields[11:13])
    return user + system, user

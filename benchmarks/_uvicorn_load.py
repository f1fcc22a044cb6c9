"""An application on uvicorn in this process, and its clients in another, so that the CPU of this one is the server's.

python benchmarks/_uvicorn_load.py PORT REQUEST     sends so many requests as each line says, over CONNECTIONS sockets
"""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

CONNECTIONS = 16
_LENGTH = b"content-length: "


def through_uvicorn(
    app: Any, path: str, headers: Sequence[tuple[bytes, bytes]], body: bytes
) -> Callable[[int], object]:
    """Serve an application, and return what lets the clients send so many requests and serves them."""
    import uvicorn

    config = uvicorn.Config(app, log_level="error", access_log=False, lifespan="off", timeout_keep_alive=3600)
    listening = socket.create_server(("127.0.0.1", 0))
    runner = asyncio.Runner(loop_factory=config.get_loop_factory())
    serving = runner.get_loop().create_task(uvicorn.Server(config).serve([listening]))
    head = b"".join(b"%s: %s\r\n" % header for header in headers)
    request = b"POST %s HTTP/1.1\r\n%s\r\n%s" % (path.encode(), head, body)
    command = [sys.executable, __file__, str(listening.getsockname()[1]), request.hex()]
    clients = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    stdin, stdout = clients.stdin, clients.stdout
    assert stdin is not None
    assert stdout is not None

    async def answered(calls: int) -> None:
        stdin.write(b"%d\n" % calls)
        stdin.flush()
        done = asyncio.get_running_loop().run_in_executor(None, stdout.readline)
        await asyncio.wait([serving, done], return_when=asyncio.FIRST_COMPLETED)
        assert done.result() == b"ok\n"

    return lambda calls: runner.run(answered(calls))


def exchange(connections: Sequence[socket.socket], request: bytes) -> None:
    """Send the request over each connection, then read the answer of each."""
    for connection in connections:
        connection.sendall(request)
    for connection in connections:
        got = b""
        while b"\r\n\r\n" not in got:
            got += connection.recv(65536) or sys.exit("the server has closed the connection")
        head, _, rest = got.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), got
        begin = head.lower().index(_LENGTH) + len(_LENGTH)
        left = int(head[begin:].partition(b"\r")[0]) - len(rest)
        while left > 0:
            left -= len(connection.recv(left))


def main() -> None:
    port, request = int(sys.argv[1]), bytes.fromhex(sys.argv[2])
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
    for line in sys.stdin:
        for at in range(0, int(line), CONNECTIONS):
            exchange(connections[: int(line) - at], request)
        print("ok", flush=True)


if __name__ == "__main__":
    main()

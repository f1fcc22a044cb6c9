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
_LENGTH, _CHUNKED = b"content-length: ", b"transfer-encoding: chunked"
_LAST_CHUNK = b"0\r\n\r\n"


class Clients:
    """A process that sends a request over several sockets to a port of this machine."""

    def __init__(self, port: int, request: bytes) -> None:
        command = [sys.executable, __file__, str(port), request.hex()]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    def send(self, calls: int) -> None:
        """Have the request sent so many times."""
        self._stdin.write(b"%d\n" % calls)
        self._stdin.flush()

    def wait(self) -> None:
        """Return when all are answered."""
        assert self._stdout.readline() == b"ok\n"


def request_of(path: str, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bytes:
    """A request as it is sent."""
    head = b"".join(b"%s: %s\r\n" % header for header in headers)
    return b"POST %s HTTP/1.1\r\n%s\r\n%s" % (path.encode(), head, body)


def through_uvicorn(
    app: Any, path: str, headers: Sequence[tuple[bytes, bytes]], body: bytes, **options: Any
) -> Callable[[int], object]:
    """Serve an application, and return what lets the clients send so many requests and serves them."""
    import uvicorn

    given = {"access_log": False, "timeout_keep_alive": 3600, **options}
    config = uvicorn.Config(app, log_level="error", lifespan="off", **given)
    listening = socket.create_server(("127.0.0.1", 0))
    runner = asyncio.Runner(loop_factory=config.get_loop_factory())
    serving = runner.get_loop().create_task(uvicorn.Server(config).serve([listening]))
    clients = Clients(listening.getsockname()[1], request_of(path, headers, body))

    async def answered(calls: int) -> None:
        clients.send(calls)
        done = asyncio.get_running_loop().run_in_executor(None, clients.wait)
        await asyncio.wait([serving, done], return_when=asyncio.FIRST_COMPLETED)
        done.result()

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
        if _CHUNKED in head.lower():
            while not rest.endswith(_LAST_CHUNK):
                rest += connection.recv(65536) or sys.exit("the server has closed the connection")
            continue
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

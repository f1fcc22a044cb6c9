"""What `warm_python` starts in the place of an interpreter: python -IS warm_caller.py SOCKET [ARGUMENT...]."""

import json
import os
import signal
import socket
import sys
from contextlib import suppress

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def call(address: str, *words: str) -> None:
    """Have a program run with these arguments, send it what signals come, and end as it ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # what comes before it knows whom to send it waits
        connection.connect(address)
        request = json.dumps({"words": words, "folder": os.getcwd(), "environment": dict(os.environ)})
        socket.send_fds(connection, [request.encode()], [0, 1, 2])
        pid = int(connection.recv(64))
        for number in FORWARDED:
            signal.signal(number, lambda number, _: os.killpg(pid, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        status = int(connection.recv(64) or -signal.SIGKILL)
    if status >= 0:
        os._exit(status)
    with suppress(OSError):
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)


if __name__ == "__main__":
    call(*sys.argv[1:])

"""A server of the chat-completion format that always gives the same answer: 32 tokens, whole or as a stream.

It prints its base URL and serves on a free port of the loopback until it is ended. It does next to nothing itself, so
that what asks it is measured.
"""

import asyncio
import json
from typing import Any

TOKENS = 32
WORD = " word"
USAGE = {"prompt_tokens": 2, "completion_tokens": TOKENS, "total_tokens": TOKENS + 2}
COMMON = {"id": "c", "created": 1, "model": "m"}


def event(choices: list[Any], **more: Any) -> bytes:
    """A chunk of a stream as a server-sent event."""
    value = {**COMMON, "object": "chat.completion.chunk", "choices": choices, **more}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def choice(finish: str | None = None, **delta: Any) -> list[Any]:
    """The choice of a chunk."""
    return [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]


def whole() -> bytes:
    """The answer to a request that is not streamed, with its head."""
    message = {"role": "assistant", "content": WORD * TOKENS}
    choices = [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}]
    body = json.dumps({**COMMON, "object": "chat.completion", "choices": choices, "usage": USAGE}).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def pieces() -> list[bytes]:
    """A stream: its head, a chunk of HTTP for each event, and the end."""
    events = [event(choice(role="assistant", content="")), *[event(choice(content=WORD))] * TOKENS]
    events += [event(choice("stop")), event([], usage=USAGE), b"data: [DONE]\n\n"]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return [head, *(b"%x\r\n%b\r\n" % (len(one), one) for one in events), b"0\r\n\r\n"]


WHOLE, PIECES = whole(), pieces()


class Connection(asyncio.Protocol):
    """Answers one request after another."""

    def connection_made(self, transport: Any) -> None:
        self.transport, self.buffer = transport, b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, body = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        if len(body) < length:
            return
        self.buffer = body[length:]
        if json.loads(body[:length]).get("stream"):
            for piece in PIECES:
                self.transport.write(piece)
        else:
            self.transport.write(WHOLE)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())

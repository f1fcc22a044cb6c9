"""The work of other libraries that is measured next to ours: python benchmarks/_peer_workloads.py NAME.

It runs in the environment of the library, without modelyard, and takes requests as `_workloads.py` does.
"""

import asyncio
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Call = Callable[[int], object]

PROMPT = "hello there"
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "echo",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": PROMPT}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4},
}
BODY = json.dumps({"model": "echo", "messages": [{"role": "user", "content": PROMPT}], "stream": False}).encode()


# ---- answers in process ------------------------------------------------------------------------------------------


def langchain() -> Call:
    """langchain-core's fake chat model."""
    from langchain_core.language_models.fake_chat_models import FakeListChatModel

    model = FakeListChatModel(responses=[PROMPT])
    return lambda calls: [model.invoke(PROMPT) for _ in range(calls)]


def pydantic_ai() -> Call:
    """An agent of pydantic-ai with its TestModel."""
    from pydantic_ai import Agent
    from pydantic_ai.models.test import TestModel

    agent = Agent(TestModel(custom_output_text=PROMPT))
    return lambda calls: [agent.run_sync(PROMPT) for _ in range(calls)]


def llm() -> Call:
    """A model of `llm` that repeats the prompt; nothing is logged."""
    import llm as library

    class Echo(library.Model):  # type: ignore[misc]
        model_id = "echo"

        def execute(self, prompt: Any, stream: Any, response: Any, conversation: Any) -> Any:
            yield prompt.prompt

    model = Echo()
    return lambda calls: [model.prompt(PROMPT).text() for _ in range(calls)]


# ---- ASGI applications, without a server -------------------------------------------------------------------------


def through_asgi(app: Any) -> Call:
    """Requests to an ASGI application, one after another."""
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]
    scope = {"type": "http", "method": "POST", "path": "/chat", "raw_path": b"/chat", "query_string": b""}
    runner = asyncio.Runner()

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200, message

    async def requests(calls: int) -> None:
        for _ in range(calls):
            pending = [{"type": "http.request", "body": BODY, "more_body": False}]

            async def receive() -> Any:
                return pending.pop() if pending else await asyncio.Event().wait()  # noqa: B023 - awaited in its turn

            await app({**scope, "root_path": "", "scheme": "http", "headers": headers}, receive, send)

    return lambda calls: runner.run(requests(calls))


def bare_asgi() -> Call:
    """An ASGI callable that parses the request and answers a constant."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        json.loads((await receive())["body"])
        body = json.dumps(ANSWER).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})

    return through_asgi(app)


def starlette() -> Call:
    """Starlette with a route that parses the request and answers a constant."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def chat(request: Any) -> Any:
        await request.json()
        return JSONResponse(ANSWER)

    return through_asgi(Starlette(routes=[Route("/chat", chat, methods=["POST"])]))


def fastapi() -> Call:
    """FastAPI with a route that checks the request by a model and answers a constant."""
    from fastapi import FastAPI
    from pydantic import BaseModel

    class Message(BaseModel):
        role: str
        content: str

    class Asked(BaseModel):
        model: str
        messages: list[Message]
        stream: bool = False

    app = FastAPI()

    async def chat(asked: Asked) -> Any:
        return ANSWER

    app.post("/chat")(chat)
    return through_asgi(app)


# ---- what is kept on disk ----------------------------------------------------------------------------------------


def raw_sqlite() -> Call:
    """A row of fifteen columns in raw sqlite3, committed by itself without a sync."""
    connection = sqlite3.connect(Path(tempfile.mkdtemp()) / "raw.db", isolation_level=None)
    connection.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;")
    columns = ", ".join(f"c{at} TEXT" for at in range(14))
    connection.execute(f"CREATE TABLE ledger (id INTEGER PRIMARY KEY, {columns}) STRICT")
    sql, row = f"INSERT INTO ledger VALUES (NULL, {', '.join('?' * 14)})", ("x" * 12,) * 14
    return lambda calls: [connection.execute(sql, row) for _ in range(calls)]


def mlflow() -> Call:
    """MLflow's `log_metric` into SQLite."""
    import mlflow as library

    library.set_tracking_uri(f"sqlite:///{tempfile.mkdtemp()}/mlflow.db")
    library.start_run()
    return lambda calls: [library.log_metric("loss", 0.5, step=step) for step in range(calls)]


def optuna() -> Call:
    """An intermediate value of a trial in Optuna's storage on SQLite."""
    import optuna as library

    library.logging.set_verbosity(library.logging.ERROR)
    study = library.create_study(storage=f"sqlite:///{tempfile.mkdtemp()}/optuna.db")
    trial, done = study.ask(), [0]

    def call(calls: int) -> None:
        for step in range(done[0], done[0] + calls):
            trial.report(0.5, step)
        done[0] += calls

    return call


WORKLOADS: dict[str, Callable[[], Call]] = {
    "langchain": langchain,
    "pydantic-ai": pydantic_ai,
    "llm": llm,
    "bare": bare_asgi,
    "starlette": starlette,
    "fastapi": fastapi,
    "sqlite3": raw_sqlite,
    "mlflow": mlflow,
    "optuna": optuna,
}


def main() -> None:
    call = WORKLOADS[sys.argv[1]]()
    output, sys.stdout = sys.stdout, sys.stderr  # some libraries print
    print("ready", file=output, flush=True)
    for line in sys.stdin:
        begun = time.process_time_ns()
        call(int(line))
        print(time.process_time_ns() - begun, file=output, flush=True)


if __name__ == "__main__":
    main()

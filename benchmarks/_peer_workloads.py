"""The work of other libraries that is measured next to ours: python benchmarks/_peer_workloads.py NAME.

It runs in the environment of the library and takes requests as `_workloads.py` does. Two use
modelyard, too: raw sqlite3 its tables, and `generate()` of transformers a module that also asks our engine.
"""

import asyncio
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from _peer_models import ROWS, engine, generate, llama_cpp, vllm
from _peer_servers import Server, aimock, litellm_proxy
from _uvicorn_load import through_uvicorn

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


HEADERS = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]


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


def litellm() -> Call:
    """LiteLLM's library, which answers itself."""
    import litellm as library

    asked = {"model": "gpt-4o", "messages": [{"role": "user", "content": PROMPT}], "mock_response": PROMPT}
    return lambda calls: [library.completion(**asked) for _ in range(calls)]


def llm() -> Call:
    """A model of `llm` that repeats the prompt; nothing is logged."""
    import llm as library

    class Echo(library.Model):  # type: ignore[misc]
        model_id = "echo"

        def execute(self, prompt: Any, stream: Any, response: Any, conversation: Any) -> Any:
            yield prompt.prompt

    model = Echo()
    return lambda calls: [model.prompt(PROMPT).text() for _ in range(calls)]


# ---- ASGI applications, with a server and without --------------------------------------------------------------------


def through_asgi(app: Any) -> Call:
    """Requests to an ASGI application, one after another."""
    scope = {"type": "http", "method": "POST", "path": "/chat", "raw_path": b"/chat", "query_string": b""}
    runner = asyncio.Runner()

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200, message

    async def requests(calls: int) -> None:
        for _ in range(calls):
            pending = [{"type": "http.request", "body": BODY, "more_body": False}]

            async def receive() -> Any:
                return pending.pop() if pending else await asyncio.Event().wait()  # noqa: B023 - awaited in its turn

            await app({**scope, "root_path": "", "scheme": "http", "headers": HEADERS}, receive, send)

    return lambda calls: runner.run(requests(calls))


def bare_app() -> Any:
    """An ASGI callable that parses the request and answers a constant."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        json.loads((await receive())["body"])
        body = json.dumps(ANSWER).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


def starlette_app() -> Any:
    """Starlette with a route that parses the request and answers a constant."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def chat(request: Any) -> Any:
        await request.json()
        return JSONResponse(ANSWER)

    return Starlette(routes=[Route("/chat", chat, methods=["POST"])])


def fastapi_app() -> Any:
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
    return app


# ---- evaluations -------------------------------------------------------------------------------------------------

EVALUATED = 200
"""Rows of one evaluation run, as of ours."""


def inspect() -> Call:
    """Evaluation runs of 200 rows by Inspect, whose model repeats the question and gives the usage of that."""
    from inspect_ai import Task
    from inspect_ai import eval as evaluate
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import exact
    from inspect_ai.solver import generate as generating

    def repeated(messages: Any, *_: Any) -> Any:
        output = ModelOutput.from_content("mockllm/model", messages[-1].text)
        output.usage = ModelUsage(input_tokens=3, output_tokens=3, total_tokens=6)
        return output

    model = get_model("mockllm/model", custom_outputs=repeated)
    questions = [f"question number {at}" for at in range(EVALUATED)]
    rows = MemoryDataset([Sample(input=question, target=question) for question in questions])
    options = {"max_samples": 8, "max_connections": 8, "display": "none", "log_level": "error"}
    logs = tempfile.mkdtemp()

    def call(calls: int) -> None:
        for _ in range(calls):
            task = Task(dataset=rows, solver=generating(), scorer=exact())
            (log,) = evaluate(task, model=model, log_dir=logs, **options)
            assert log.results.scores[0].metrics["mean"].value == 1, log.error

    return call


# ---- what is kept on disk ----------------------------------------------------------------------------------------


def raw_sqlite() -> Call:
    """A row of fifteen columns in raw sqlite3, committed by itself without a sync."""
    connection = sqlite3.connect(Path(tempfile.mkdtemp()) / "raw.db", isolation_level=None)
    connection.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;")
    columns = ", ".join(f"c{at} TEXT" for at in range(14))
    connection.execute(f"CREATE TABLE ledger (id INTEGER PRIMARY KEY, {columns}) STRICT")
    sql, row = f"INSERT INTO ledger VALUES (NULL, {', '.join('?' * 14)})", ("x" * 12,) * 14
    return lambda calls: [connection.execute(sql, row) for _ in range(calls)]


def raw_events() -> Call:
    """The same step by hand in raw sqlite3, on the tables of modelyard."""
    from store import Raw, fill, take

    from modelyard.domain.schema import RECORDS
    from modelyard.stores.sqlite import SqliteStore

    path = Path(tempfile.mkdtemp()) / "raw.db"
    with closing(SqliteStore(path, RECORDS, "process")) as store:
        fill(store, 1)
        job_id = take(store).job_id
    raw = Raw(str(path), "process", job_id)
    return lambda calls: [raw.append() for _ in range(calls)]


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
    "litellm": litellm,
    "bare": lambda: through_asgi(bare_app()),
    "starlette": lambda: through_asgi(starlette_app()),
    "fastapi": lambda: through_asgi(fastapi_app()),
    "bare-served": lambda: through_uvicorn(bare_app(), "/chat", HEADERS, BODY),
    "starlette-served": lambda: through_uvicorn(starlette_app(), "/chat", HEADERS, BODY),
    "fastapi-served": lambda: through_uvicorn(fastapi_app(), "/chat", HEADERS, BODY),
    "aimock": lambda: aimock(BODY, PROMPT),
    "litellm-proxy": lambda: litellm_proxy(streamed=False),
    "litellm-proxy-stream": lambda: litellm_proxy(streamed=True),
    "inspect": inspect,
    "sqlite3": raw_sqlite,
    "sqlite3-events": raw_events,
    "mlflow": mlflow,
    "optuna": optuna,
    **{f"engine-{rows}": partial(engine, rows) for rows in ROWS},
    **{f"generate-{rows}": partial(generate, rows) for rows in ROWS},
    **{f"vllm-{rows}": partial(vllm, rows) for rows in ROWS},
    **{f"llama.cpp-{rows}": partial(llama_cpp, rows) for rows in ROWS},
}


def main() -> None:
    output, sys.stdout = sys.stdout, sys.stderr  # some libraries print
    call = WORKLOADS[sys.argv[1]]()
    spent = call.spent if isinstance(call, Server) else time.process_time_ns
    print("ready", file=output, flush=True)
    for line in sys.stdin:
        begun = spent()
        call(int(line))
        print(spent() - begun, file=output, flush=True)


if __name__ == "__main__":
    main()

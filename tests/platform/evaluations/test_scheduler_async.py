"""The engine and event loops: what can be awaited runs together on the caller's loop, and goes with its task."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from modelyard import Settings, open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.domain.completion import CompletionRequest, Delta
from modelyard.domain.evaluation.run import EvaluationRun, Outcome
from modelyard.platform.evaluations.result import EvaluationResult
from modelyard.platform.platform import Platform
from modelyard.protocols import ServedModel

ROWS = [{"prompt": f"question {at}", "expected": f"question {at}", "number": at} for at in range(9)]


async def arun(platform: Platform, model: Any, scorers: Any = "exact_match", **options: Any) -> EvaluationResult:
    result = await platform.evaluations.arun("e", model, ROWS, scorers, project="red", **options)
    assert isinstance(result, EvaluationResult)
    return result


def runs(platform: Platform) -> list[EvaluationRun]:
    return list(platform.evaluations.runs.list(project="red"))


def test_rows_are_requested_concurrently_on_the_callers_loop() -> None:
    together = 0

    async def main() -> EvaluationResult:
        loop, here = asyncio.get_running_loop(), threading.current_thread()
        arrived = asyncio.Condition()

        async def model(row: Mapping[str, Any]) -> str:
            nonlocal together
            assert (asyncio.get_running_loop(), threading.current_thread()) == (loop, here)
            async with arrived:
                together += 1
                arrived.notify_all()
                await arrived.wait_for(lambda: together % 3 == 0)
            return str(row["prompt"])

        async def scorer(output: str, row: Mapping[str, Any]) -> bool:
            await asyncio.sleep(0)
            return output == row["expected"]

        with open_platform() as platform:
            return await arun(platform, model, scorer, concurrency=3)

    result = asyncio.run(main())
    assert (result.run.state, result.score) == ("completed", 1.0)
    assert together == 9


def test_several_models_are_evaluated_on_the_callers_loop_in_one_run_each() -> None:
    async def main() -> list[float | None]:
        async def model(row: Mapping[str, Any]) -> str:
            await asyncio.sleep(0)
            return str(row["expected"])

        with open_platform() as platform:
            results = await platform.evaluations.arun_each("e", [model, lambda row: "no"], iter(ROWS), project="red")
            assert [result.run.id for result in results] == [run.id for run in runs(platform)]
            return [result.score for result in results]

    assert asyncio.run(main()) == [1.0, 0.0]


def test_functions_that_block_do_not_block_the_loop() -> None:
    async def main() -> float | None:
        free = threading.Event()

        def model(row: Mapping[str, Any]) -> str:
            assert free.wait(60)
            return "x"

        with open_platform() as platform:
            evaluation = asyncio.ensure_future(arun(platform, model, lambda output, row: 0.5, concurrency=2))
            await asyncio.sleep(0)
            free.set()
            return (await evaluation).score

    assert asyncio.run(main()) == 0.5


def test_a_cancelled_task_breaks_its_run_off_and_what_was_stored_stays() -> None:
    async def main() -> None:
        requested: list[int] = []
        forever = asyncio.Event()

        async def model(row: Mapping[str, Any]) -> str:
            requested.append(row["number"])
            if row["number"] == 4:
                task.cancel()
            if row["number"] >= 4:
                await forever.wait()
            return str(row["prompt"])

        with open_platform(settings=Settings(lease=3600)) as platform:  # it does not wait for a part of it
            task = asyncio.ensure_future(arun(platform, model, concurrency=1))
            with pytest.raises(asyncio.CancelledError):
                await task
            (run,) = runs(platform)
            assert (run.state, run.reason) == ("failed", "interrupted")
            assert len(platform.evaluations.result(run.id).rows) == 4
            forever.set()
            result = await asyncio.to_thread(lambda: platform.evaluations.resume(run.id, model=model))
            assert (result.score, len(result.rows)) == (1.0, 9)
            assert requested == [0, 1, 2, 3, 4, 4, 5, 6, 7, 8]

    asyncio.run(main())


def test_an_asynchronous_model_is_called_concurrently_without_a_loop_of_the_caller() -> None:
    class Gathering(EchoBackend):
        """Answers when three are asking; asynchronous only."""

        stream = None  # type: ignore[assignment]

        def __init__(self) -> None:
            super().__init__()
            self.asking = 0

        def __getattribute__(self, name: str) -> Any:
            if name == "stream":
                raise AttributeError(name)
            return super().__getattribute__(name)

        async def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Delta]:
            self.asking += 1
            while self.asking % 3:
                await asyncio.sleep(0)
            for delta in EchoBackend.stream(self, request, model):
                yield delta

    with open_platform(backend=Gathering()) as platform:
        result = platform.evaluations.run("e", "echo", ROWS, project="red", concurrency=3)
    assert result.run.summary is not None
    assert result.run.summary["mean"] == 1.0


def test_coroutine_functions_work_without_a_loop_of_the_callers() -> None:
    async def model(row: Mapping[str, Any]) -> str:
        await asyncio.sleep(0)
        if row["number"] == 3:
            raise LookupError("three")
        return str(row["prompt"])

    with open_platform() as platform:
        result = platform.evaluations.run("e", model, ROWS, project="red")
        assert [row.outcome for row in result.rows].count(Outcome.MODEL_ERROR) == 1
        assert result.score == 1.0
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("modelyard-evaluation")]


def test_events_are_awaited() -> None:
    async def main() -> list[str]:
        with open_platform() as platform:
            run = platform.evaluations.submit("e", "echo", ROWS, project="red")
            return [event.type async for event in platform.evaluations.aevents(run.id)]

    types = asyncio.run(main())
    assert (types[0], types[-1]) == ("evaluation_started", "evaluation_ended")

"""A platform's life: opening, views, closing, forking, backups, erasure, observers."""

import asyncio
import multiprocessing
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from modelyard import Example, Message, Platform, Role, open_platform
from modelyard.domain.events import CompletionBooked, JobChanged
from modelyard.domain.schema import RECORDS
from modelyard.errors import Forbidden, NotFound, StoreClosed, UsedAfterFork
from modelyard.testing.clock import ManualClock


def example(question: str, answer: str) -> Example:
    return Example((Message(Role.USER, question), Message(Role.ASSISTANT, answer)))


DATA = [example(f"question {number}", f"answer {number}") for number in range(4)]


def trained(platform: Platform, project: str = "p", entity: str | None = None) -> str:
    model = platform.models.create("m", project=project, base_model="tabular-mini", entity=entity)
    platform.training.sft(model.id, DATA).wait()
    return model.id


def everything(platform: Platform, entity: str) -> list[object]:
    return [
        row
        for record in RECORDS
        if "by_entity" in record.indexes
        for row in platform._runtime.store.read(lambda s, record=record: s.page(record.cls, "by_entity", entity))  # type: ignore[misc]
    ]


def test_what_a_file_holds_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    with open_platform(tmp_path / "yard.db") as platform:
        model = trained(platform)
    with open_platform(tmp_path / "yard.db") as platform:
        assert platform.models.get(model).last_step == 1
        answer = platform.chat.complete(model="local/p/m:step1", messages="question 1", max_tokens=5)
        assert answer.usage.prompt_tokens > 0
    assert (tmp_path / "yard.db-artifacts").is_dir()


def test_platforms_in_one_process_share_nothing() -> None:
    with open_platform() as one, open_platform() as other:
        one.models.create("m", project="p", base_model="tabular-mini")
        assert other.models.find("m", project="p") is None


def test_an_asynchronous_platform_is_a_context_manager_too() -> None:
    async def main() -> str:
        async with open_platform() as platform:
            return (await platform.chat.acomplete(model="echo", messages="hello")).text

    assert asyncio.run(main()) == "hello"


def test_a_closed_platform_refuses_and_closing_twice_is_fine(tmp_path: Path) -> None:
    platform = open_platform(tmp_path / "yard.db")
    view = platform.acting_as(platform.keys.create("acme").key.principal())
    platform.close()
    platform.close()
    for dead in (platform, view):
        with pytest.raises(StoreClosed):
            _ = dead.chat


def in_fork(work: Callable[[], object]) -> int:
    """Run `work` in a forked child. Returns its exit status: 0, 42 where it was refused after the fork, else 1."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except UsedAfterFork:
            status = 42
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def completes(platform: Platform) -> None:
    assert platform.chat.complete(model="echo", messages="still here").text == "still here"


@pytest.mark.parametrize("path", [None, "yard.db"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_may_not_use_its_parent_s_platform(tmp_path: Path, path: str | None) -> None:
    with open_platform(tmp_path / path if path else None) as platform:
        assert in_fork(lambda: completes(platform)) == 42
        assert in_fork(platform.close) == 0  # and closes nothing of the parent's
        completes(platform)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_of_multiprocessing_may_not_use_its_parent_s_platform() -> None:
    with open_platform() as platform:

        def refused() -> None:
            with pytest.raises(UsedAfterFork):
                completes(platform)
            os._exit(42)

        process = multiprocessing.get_context("fork").Process(target=refused)
        process.start()
        process.join()
        assert process.exitcode == 42


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_may_use_a_platform_of_its_own_and_its_own_fork_may_not() -> None:
    def opens() -> None:
        with open_platform() as platform:
            completes(platform)
            assert in_fork(lambda: completes(platform)) == 42
            completes(platform)

    assert in_fork(opens) == 0


def test_only_the_host_hands_out_views_workers_backups_and_erasure(tmp_path: Path) -> None:
    with open_platform() as platform:
        view = platform.acting_as(platform.keys.create("acme").key.principal())
        for refused in (
            lambda: view.acting_as(platform._principal),
            view.worker,
            lambda: view.backup(tmp_path / "copy.db"),
            lambda: view.delete_entity("acme"),
        ):
            with pytest.raises(Forbidden):
                refused()


def test_a_backup_is_a_whole_platform_with_its_checkpoints(tmp_path: Path) -> None:
    with open_platform(tmp_path / "yard.db") as platform:
        trained(platform)
        reply = platform.chat.complete(model="local/p/m", messages="question 1", temperature=0, max_tokens=8).text
        platform.backup(tmp_path / "copy.db")
        platform.models.delete(platform.models.find("m", project="p").id)  # type: ignore[union-attr]
    with open_platform(tmp_path / "copy.db") as copy:
        assert copy.chat.complete(model="local/p/m", messages="question 1", temperature=0, max_tokens=8).text == reply


def test_a_backup_refuses_a_place_that_is_taken(tmp_path: Path) -> None:
    with open_platform(tmp_path / "yard.db") as platform:
        (tmp_path / "copy.db").write_text("mine")
        with pytest.raises(FileExistsError):
            platform.backup(tmp_path / "copy.db")
    assert (tmp_path / "copy.db").read_text() == "mine"


@pytest.mark.slow
def test_deleting_an_entity_leaves_no_record_and_no_file_of_it_and_all_of_the_others() -> None:
    with open_platform() as platform:
        gone, kept = platform.keys.create("gone").key.principal(), platform.keys.create("kept").key.principal()
        for principal in (gone, kept):
            view = platform.acting_as(principal)
            trained(view)
            view.chat.complete(model="echo", messages="hi", store=True)
            view.evaluations.runs.create("weave:///a/b/object/e:v0", "weave:///a/b/object/m:v0", project="p")
            view.training.upload("data", DATA, project="p")
            platform.usage.set_budget(5, entity=principal.entity)
        files = len(list(platform._runtime.artifacts.names()))
        kept_before = everything(platform, "kept")
        assert platform.delete_entity("gone") > 0
        assert everything(platform, "gone") == []
        assert everything(platform, "kept") == kept_before
        assert len(list(platform._runtime.artifacts.names())) == files // 2
        assert platform.delete_entity("gone") == 0
        with pytest.raises(NotFound):
            platform.acting_as(gone).models.get("018f0000-0000-7000-8000-000000000000")


def test_an_observer_sees_typed_events_and_its_faults_change_nothing() -> None:
    seen: list[object] = []

    def observe(event: object) -> None:
        seen.append(event)
        raise RuntimeError("a faulty observer")

    with open_platform(observer=observe) as platform:
        platform.chat.complete(model="echo", messages="hi")
        trained(platform)
    assert any(isinstance(event, CompletionBooked) and event.model == "echo" for event in seen)
    assert [event.status.value for event in seen if isinstance(event, JobChanged)] == ["queued", "running", "succeeded"]


def test_a_clock_and_randomness_alone_give_one_history() -> None:
    def history() -> list[str]:
        with open_platform(clock=ManualClock(), randomness=random.Random(1).randbytes) as platform:
            key = platform.keys.create()
            model = platform.models.create("m", base_model="tabular-mini")
            answers = [platform.chat.complete(model="tabular-mini", messages="x", max_tokens=9) for _ in range(2)]
            return [key.key.id, key.secret, model.id, *(text for one in answers for text in (one.id, one.text))]

    assert history() == history()

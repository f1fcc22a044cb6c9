"""Saved weights: paths never change, a state continues as if nothing had stopped, and what expires goes."""

from datetime import timedelta

import pytest

from driven_runs import Driven
from modelyard.errors import InvalidInput, NotFound
from modelyard.parts.tinker.records import CommandKind, FutureStatus


def test_a_path_is_saved_again_only_with_overwrite(driven: Driven) -> None:
    first = driven.save(1, "a")
    driven.learn(2, "text")
    driven.step(3)
    again, over = driven.save(4, "a"), driven.save(5, "a", overwrite=True)
    driven.work()
    answers = driven.answers(first, again, over)
    assert [one.status for one in answers] == [FutureStatus.DONE, FutureStatus.FAILED, FutureStatus.DONE]
    assert "exists already" in answers[1].error
    assert answers[0].result["path"] == answers[2].result["path"]
    assert [one.step for one in driven.platform.compat.training_runs.weights.of_run(driven.run)] == [2]
    report = driven.platform.remove_orphans(grace=0.0)
    assert (report.removed, report.missing) == (0, ())


def test_a_state_with_its_optimizer_continues_as_if_nothing_had_stopped(driven: Driven) -> None:
    runs = driven.platform.compat.training_runs
    driven.learn(1, "one")
    driven.step(2)
    driven.save(3, "half")
    driven.learn(4, "two")
    driven.step(5)
    driven.save(6, "end")
    driven.work()
    path = f"tinker://{driven.run}/weights/half"
    digests = {}
    for number, optimizer in ((1, True), (2, False)):
        run = runs.create_from(driven.session, number, path, optimizer=optimizer).rpartition(":")[0]
        driven.learn(1, "two", run=run)
        driven.step(2, run=run)
        driven.save(3, "end", run=run)
        driven.work()
        digests[optimizer] = driven.digest("end", run)
    driven.learn(7, "astray")
    driven.step(8)
    runs.load(driven.run, 9, path, optimizer=True)
    driven.learn(10, "two")
    driven.step(11)
    driven.save(12, "back")
    driven.work()
    assert driven.digest("end") == digests[True] == driven.digest("back") != digests[False]


def test_a_state_and_its_checkpoint_share_the_adapter(driven: Driven) -> None:
    before = len(list(driven.platform._runtime.artifacts.names()))
    driven.save(1, "kept")
    driven.work()
    runs = driven.platform.compat.training_runs
    weights = runs.weights.get(f"tinker://{driven.run}/weights/kept")
    files = driven.platform.models.checkpoint(runs.get(driven.run).model_id, weights.step).files
    assert not files.keys() & weights.state.keys()
    assert len(list(driven.platform._runtime.artifacts.names())) == before + len(files) + len(weights.state)
    assert weights.size == sum(file["size"] for file in (*files.values(), *weights.state.values()))


def test_weights_for_a_sampler_have_no_optimizer(driven: Driven) -> None:
    runs = driven.platform.compat.training_runs
    saved = runs.save(driven.run, 1, CommandKind.SAVE_FOR_SAMPLER, "s")
    driven.work()
    path = driven.answers(saved)[0].result["path"]
    assert path == f"tinker://{driven.run}/sampler_weights/s"
    with pytest.raises(InvalidInput, match="no optimizer's state"):
        runs.create_from(driven.session, 1, path, optimizer=True)
    run = runs.create_from(driven.session, 1, path, optimizer=False)
    driven.work()
    assert driven.answers(run)[0].status is FutureStatus.DONE


def test_weights_are_deleted_with_their_checkpoint_unless_that_is_pinned(driven: Driven) -> None:
    runs, models = driven.platform.compat.training_runs, driven.platform.models
    for number, name in ((1, "a"), (2, "b")):
        driven.save(number, name)
    driven.work()
    model = runs.get(driven.run).model_id
    models.pin(model, 2)
    for name in ("a", "b"):
        runs.weights.delete(f"tinker://{driven.run}/weights/{name}")
        with pytest.raises(NotFound):
            runs.weights.get(f"tinker://{driven.run}/weights/{name}")
    assert [one.step for one in models.checkpoints(model)] == [0, 2]
    report = driven.platform.remove_orphans(grace=0.0)
    assert (report.removed, report.missing) == (0, ())


def test_weights_that_have_expired_are_not_there_and_go(driven: Driven) -> None:
    runs = driven.platform.compat.training_runs
    driven.save(1, "short", ttl_seconds=60)
    driven.save(2, "long")
    driven.work()
    path = f"tinker://{driven.run}/weights/short"
    assert runs.weights.get(path).expires_at - runs.weights.get(path).created_at == timedelta(seconds=60)
    runs.weights.set_expiry(f"tinker://{driven.run}/weights/long", 60)
    runs.weights.set_expiry(f"tinker://{driven.run}/weights/long", None)
    driven.platform.clock.advance(61)
    with pytest.raises(NotFound):
        runs.weights.get(path)
    driven.save(3, "other")
    driven.work()
    model = runs.get(driven.run).model_id
    assert [one.step for one in driven.platform.models.checkpoints(model)] == [0, 2, 3]


@pytest.mark.parametrize("path", ["", "x", "tinker://a/b/c", "tinker://a/weights/", "tinker://a/weights/b/c"])
def test_what_is_not_a_path_is_refused(driven: Driven, path: str) -> None:
    with pytest.raises(InvalidInput, match="must be the path of saved weights"):
        driven.platform.compat.training_runs.weights.get(path)


def test_all_of_an_entity_is_erased(driven: Driven) -> None:
    driven.learn(1, "text" * 20000)
    driven.step(2)
    driven.save(3, "a")
    driven.work()
    driven.platform.delete_entity("local")
    assert driven.platform.compat.training_runs.list(0, 10).total == 0
    assert [*driven.platform._runtime.artifacts.names()] == []

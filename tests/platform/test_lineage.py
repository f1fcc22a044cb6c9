"""Lineage: where a run, a checkpoint and a completion come from, walked both ways."""

from decimal import Decimal
from typing import Any

import attrs
import pytest

from modelyard.domain.catalogue import Pricing
from modelyard.domain.job import Job, JobKind
from modelyard.domain.promotion import TrainedStep
from modelyard.errors import NotFound
from modelyard.platform import lineage as service
from modelyard.platform.catalogue.service import Catalogue
from modelyard.platform.chat.service import Chat
from modelyard.platform.evaluations.service import Evaluations

EVALUATION = "weave:///acme/p/object/e:v0"
MODEL = "weave:///acme/p/object/other:v0"


def evaluations(yard: Any) -> Evaluations:
    return Evaluations(yard.runtime, yard.principal)


def run(yard: Any, source: str | None = None, model: str = MODEL, project: str = "p") -> str:
    yard.clock.advance(1)
    return evaluations(yard).runs.create(EVALUATION, model, source, project=project).id


# ---- runs --------------------------------------------------------------------------------------------------------


def chain(yard: Any, run_id: str) -> tuple[list[str], list[str], str | None]:
    found = evaluations(yard).runs.lineage(run_id)
    assert found.run.id == run_id
    assert not found.more
    return [one.id for one in found.sources], [one.id for one in found.derived], found.missing_source


def test_the_chain_of_runs_is_walked_both_ways_from_wherever_one_begins(yard: Any) -> None:
    first = run(yard)
    second = run(yard, first)
    third, other = run(yard, second), run(yard, second)
    last = run(yard, third)
    run(yard)
    assert chain(yard, first) == ([], [second, third, other, last], None)
    assert chain(yard, second) == ([first], [third, other, last], None)
    assert chain(yard, last) == ([third, second, first], [], None)
    assert chain(yard, other) == ([second, first], [], None)


def test_a_chain_that_ends_at_a_missing_run_names_it(yard: Any) -> None:
    lost = run(yard, "never-was")
    assert chain(yard, run(yard, lost))[::2] == ([lost], "never-was")
    first = run(yard)
    second = run(yard, first)
    evaluations(yard).runs.delete([first], project="p")
    assert chain(yard, second) == ([], [], first)


def test_runs_outside_of_the_scope_look_as_if_they_were_not_there(yard: Any) -> None:
    hidden = run(yard, project="q")
    seen = run(yard, hidden)
    below = run(yard, seen, project="q")
    run(yard, below)
    held = yard.as_tenant("acme", "p")
    assert chain(held, seen) == ([], [], hidden)
    with pytest.raises(NotFound):
        evaluations(held).runs.lineage(hidden)
    with pytest.raises(NotFound):
        evaluations(yard).runs.lineage(seen, project="q")


def test_a_run_that_names_itself_or_its_own_descendant_ends_the_walk(yard: Any) -> None:
    first = run(yard)
    second = run(yard, first)
    looped = attrs.evolve(evaluations(yard).runs.get(first), source_evaluation_run_id=second)
    yard.runtime.store.transact(lambda tx: tx.replace(looped))
    found = evaluations(yard).runs.lineage(first)
    assert ([one.id for one in found.sources], [one.id for one in found.derived]) == ([second], [second])


def test_a_long_chain_is_cut_and_marked_as_cut(yard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MOST", 3)
    runs = [run(yard)]
    for _ in range(4):
        runs.append(run(yard, runs[-1]))
    found = evaluations(yard).runs.lineage(runs[4])
    assert ([one.id for one in found.sources], found.more, found.missing_source) == (runs[3:0:-1], True, None)
    exact = evaluations(yard).runs.lineage(runs[3])
    assert ([one.id for one in exact.sources], exact.more) == (runs[2::-1], False)


# ---- checkpoints -------------------------------------------------------------------------------------------------


@pytest.fixture
def trained(yard: Any) -> Any:
    """A yard whose model has the steps 0 to 2, trained on examples and then on a dataset."""
    yard.sft(2, tag="first")
    yard.training.upload("d", yard.examples(3), project="p")
    yard.training.sft(yard.model(), "modelyard:///acme/p/d:v0")
    yard.worker().run_until_idle()
    return yard


def test_the_lineage_of_a_checkpoint_names_its_job_its_data_and_its_parent(trained: Any) -> None:
    first, second = trained.training.list().page().items
    dataset = trained.runtime.store.read(lambda snapshot: snapshot.get(Job, second.id)).spec
    found = trained.models.lineage("p/m", 2)
    assert (found.job_id, found.data_digest, found.parent_step) == (second.id, dataset["digest"], 1)
    kinds = [(step.step, step.job_id, step.kind, step.data_url) for step in found.steps]
    assert kinds == [
        (2, second.id, JobKind.SFT, "modelyard:///acme/p/d:v0"),
        (1, first.id, JobKind.SFT, None),
        (0, None, None, None),
    ]
    weights = [trained.models.checkpoint(trained.model().id, step).digest for step in (2, 1, 0)]
    assert [step.digest for step in found.steps] == weights
    assert len({step.data_digest for step in found.steps}) == 3


def test_the_untouched_base_has_no_job(trained: Any) -> None:
    found = trained.models.lineage(trained.model(), 0)
    assert (found.job_id, found.data_digest, found.parent_step, len(found.steps)) == (None, None, None, 1)


def test_a_parent_that_was_deleted_ends_the_walk_and_is_named_by_its_step(trained: Any) -> None:
    trained.models.delete_checkpoints(trained.model().id, [1])
    found = trained.models.lineage(trained.model(), 2)
    assert found.steps[1:] == (TrainedStep(1, deleted=True),)
    assert found.parent_step == 1


def test_the_lineage_of_a_checkpoint_names_its_evaluation_runs_and_aliases(trained: Any) -> None:
    ref = "weave:///acme/p/object/m:step"
    scored = [run(trained, model=f"{ref}1"), run(trained, model=f"modelyard:{ref.removeprefix('weave:')}1")]
    run(trained, model=f"{ref}2")
    hidden = run(trained, model=f"{ref}1", project="q")
    trained.models.promote("p/m", 1)
    trained.models.promote("p/m", 1, "canary")
    found = trained.models.lineage("p/m", 1)
    assert [one.id for one in found.runs] == [hidden, *scored[::-1]]
    assert found.aliases == ("canary", "prod")
    held = trained.as_tenant("acme", "p").models.lineage("p/m", 1)
    assert [one.id for one in held.runs] == scored[::-1]


def test_a_run_names_the_checkpoint_that_it_evaluated_if_that_exists(trained: Any) -> None:
    def scored(model: str, yard: Any = trained) -> int | None:
        found = evaluations(yard).runs.lineage(run(trained, model=model)).checkpoint
        return None if found is None else found.checkpoint.step

    assert scored("weave:///acme/p/object/m:step2") == 2
    for elsewhere in ("m:step9", "m:latest", "m", "n:step1"):
        assert scored(f"weave:///acme/p/object/{elsewhere}") is None
    assert scored("weave:///acme/p/op/m:step2") is None
    assert scored("weave:///acme/p/object/m:step2", trained.as_tenant("acme", "p")) == 2
    model = trained.models.create("s", project="secret", base_model="base-model")
    assert scored("weave:///acme/secret/object/s:step0", trained.as_tenant("acme", "p")) is None
    assert scored(f"weave:///acme/secret/object/{model.name}:step0") == 0


def test_a_checkpoint_that_is_not_there_is_not_found(trained: Any) -> None:
    for ask in (
        lambda: trained.models.lineage("p/m", 7),
        lambda: trained.models.lineage("p/n", 0),
        lambda: trained.as_tenant("other").models.lineage(trained.model().id, 0),
    ):
        with pytest.raises(NotFound):
            ask()


# ---- completions -------------------------------------------------------------------------------------------------


def test_a_stored_completion_names_the_model_that_answered_and_its_price(trained: Any) -> None:
    catalogue, chat = Catalogue(trained.runtime, trained.principal), Chat(trained.runtime, trained.principal)
    entry = attrs.evolve(catalogue.get("base-model"), pricing=Pricing(Decimal("0.01"), Decimal("0.25")))
    catalogue.register(entry)
    trained.models.promote("p/m", 1)
    made = chat.complete(model="acme/p/m:prod", messages="hello you", store=True, project="p")
    trained.models.promote("p/m", 2)
    catalogue.unregister("base-model")
    found = chat.lineage(made.id)
    assert (found.model, found.base_model, found.checkpoint_step) == ("acme/p/m", "base-model", 1)
    assert found.price == {"prompt": "0.01", "completion": "0.25"}
    assert (
        found.cost
        == made.usage.prompt_tokens * entry.pricing.prompt + made.usage.completion_tokens * entry.pricing.completion
    )
    assert found.checkpoint is not None
    assert found.checkpoint.parent_step == 0
    trained.models.delete_checkpoints(trained.model().id, [1])
    assert attrs.evolve(found, checkpoint=None) == chat.lineage(made.id)


def test_a_completion_of_an_offered_entry_names_the_checkpoint_that_answered_it_then(trained: Any) -> None:
    catalogue, chat = Catalogue(trained.runtime, trained.principal), Chat(trained.runtime, trained.principal)
    entry = attrs.evolve(catalogue.get("base-model"), id="support")
    trained.models.promote("p/m", 1)
    catalogue.register(entry, answers_as="p/m:prod")
    stranger = trained.as_tenant("other")
    first, of_stranger = (
        Chat(yard.runtime, yard.principal).complete(model="support", messages="hi", store=True).id
        for yard in (trained, stranger)
    )
    trained.models.promote("p/m", 2)
    second = chat.complete(model="support", messages="hi", store=True).id
    catalogue.unregister("support")
    for completion, step in ((first, 1), (second, 2)):
        found = chat.lineage(completion)
        assert (found.model, found.checkpoint_step) == ("support", step)
        assert found.checkpoint is not None
        assert (found.checkpoint.model.name, found.checkpoint.checkpoint.step) == ("m", step)
    hidden = Chat(stranger.runtime, stranger.principal).lineage(of_stranger)
    assert (hidden.checkpoint_step, hidden.checkpoint) == (1, None)


def test_a_completion_of_a_catalogue_model_has_no_checkpoint(yard: Any) -> None:
    chat = Chat(yard.runtime, yard.principal)
    made = chat.complete(model="echo", messages="hi", store=True)
    found = chat.lineage(made.id)
    assert (found.model, found.checkpoint_step, found.checkpoint, dict(found.price)) == ("echo", None, None, {})


def test_a_completion_that_was_not_stored_or_is_another_s_is_not_found(yard: Any) -> None:
    chat = Chat(yard.runtime, yard.principal)
    stored = chat.complete(model="echo", messages="hi", store=True, project="p").id
    unstored = chat.complete(model="echo", messages="hi", project="p").id
    assert Chat(yard.runtime, yard.as_tenant("acme", "p").principal).lineage(stored).id == stored
    for reader, completion in (
        (yard, unstored),
        (yard.as_tenant("other"), stored),
        (yard.as_tenant("acme", "q"), stored),
    ):
        with pytest.raises(NotFound):
            Chat(reader.runtime, reader.principal).lineage(completion)

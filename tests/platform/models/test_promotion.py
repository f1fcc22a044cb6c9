"""Aliases of checkpoints: what they point to, who moved them and back, and that what they point to stays."""

from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from each import each_case
from modelyard.domain.evaluation.objects import ObjectKind, ObjectRef, RefKind
from modelyard.domain.identity import host
from modelyard.domain.models import Model, ModelName
from modelyard.domain.promotion import MAX_ALIASES, Alias, Change, Promotion, check_alias
from modelyard.errors import Conflict, InvalidInput, ModelNotFound, NotFound
from modelyard.platform.catalogue.service import resolve
from modelyard.platform.evaluations.references import References
from modelyard.platform.operations.erasure import erase_entity


@pytest.fixture
def trained(yard: Any) -> Any:
    """A yard whose model has the steps 0 to 4."""
    train(yard, 4)
    return yard


def train(yard: Any, jobs: int) -> None:
    for number in range(jobs):
        yard.sft(2, tag=f"{number} {yard.clock.now()}")
    yard.worker().run_until_idle()


def served_step(yard: Any, version: str) -> int:
    checkpoint = resolve(yard.runtime, f"acme/p/m:{version}", yard.principal).checkpoint
    assert checkpoint is not None
    return int(checkpoint.step)


def story(yard: Any, alias: str = "prod") -> list[tuple[str, int | None, int | None]]:
    page = list(yard.models.promotions(yard.model(), alias))
    assert [one.number for one in page] == list(range(1, len(page) + 1))
    return [(one.change.value, one.from_step, one.step) for one in page]


# ---- names -------------------------------------------------------------------------------------------------------


@each_case("name", ["prod", "canary", "a", "step", "v", "vnext", "step1b", "latest-1", "x" * 64])
def test_an_alias_is_a_lower_case_word_and_parses_as_one_in_a_model_s_name(name: str) -> None:
    assert check_alias(name) == name
    parsed = ModelName.parse(f"acme/p/m:{name}")
    assert parsed is not None
    assert (parsed.alias, parsed.step) == (name, None)


@pytest.mark.parametrize(
    "name", ["", "latest", "step1", "step007", "v0", "v12", "Prod", "1a", "-a", "a:b", "a b", "ä", "x" * 65, "prod\n"]
)
def test_a_reserved_or_invalid_word_cannot_be_an_alias(yard: Any, name: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        yard.models.promote(yard.model(), 0, name)
    assert [problem.loc for problem in refused.value.problems] == [("alias",)]


@given(st.from_regex(r"[a-z0-9_-]{1,70}", fullmatch=True))
def test_an_alias_never_reads_as_a_step(name: str) -> None:
    try:
        check_alias(name)
    except InvalidInput:
        return
    parsed = ModelName.parse(f"e/p/m:{name}")
    assert parsed is not None
    assert parsed.alias == name


# ---- pointing ----------------------------------------------------------------------------------------------------


def test_a_promoted_checkpoint_is_served_by_the_alias_until_another_is_promoted(trained: Any) -> None:
    model = trained.model()
    trained.models.promote(model, 2)
    assert served_step(trained, "prod") == 2
    trained.models.promote(model.id, 4, "canary")
    trained.models.promote(model, 3)
    assert [(alias.name, alias.step) for alias in trained.models.aliases(model)] == [("canary", 4), ("prod", 3)]
    assert (served_step(trained, "prod"), served_step(trained, "canary")) == (3, 4)
    train(trained, 1)
    assert (served_step(trained, "prod"), served_step(trained, "latest")) == (3, 5)


def test_the_untouched_base_can_be_promoted(trained: Any) -> None:
    trained.models.promote(trained.model(), 0)
    assert served_step(trained, "prod") == 0


def test_an_unset_alias_serves_nothing(trained: Any) -> None:
    with pytest.raises(ModelNotFound):
        resolve(trained.runtime, "acme/p/m:prod", trained.principal)


def test_each_change_is_recorded_with_who_made_it_when_and_from_where(trained: Any) -> None:
    model = trained.model()
    trained.models.promote(model, 1)
    noon = trained.clock.now()
    made = trained.as_tenant("acme").models.promote(model.id, 2)
    assert attrs.asdict(made) | {"id": "", "verdict": {}} == {
        "id": "",
        "model_id": model.id,
        "entity": "acme",
        "project": "p",
        "alias": "prod",
        "number": 2,
        "change": Change.PROMOTED,
        "step": 2,
        "from_step": 1,
        "by": "key-id",
        "created_at": noon,
        "below": 1,
        "verdict": {},
    }
    assert [one.by for one in trained.models.promotions(model)] == ["host", "key-id"]


def test_promoting_what_is_there_already_changes_nothing(trained: Any) -> None:
    first = trained.models.promote(trained.model(), 2)
    assert trained.models.promote(trained.model(), 2) == first
    assert story(trained) == [("promoted", None, 2)]


def test_the_history_is_read_in_pages_both_ways(trained: Any) -> None:
    model = trained.model()
    made = [trained.models.promote(model, step) for step in (1, 2, 3, 4)]
    trained.models.promote(model, 1, "canary")
    page = trained.models.promotions(model).page(after=made[0].id, limit=2)
    assert (page.items, page.has_more) == ((made[1], made[2]), True)
    assert trained.models.promotions(model, order="desc").page().items == tuple(reversed(made))
    with pytest.raises(NotFound):
        trained.models.promotions(model, "canary").page(after=made[0].id)


def test_what_is_not_there_or_not_the_caller_s_is_not_found(trained: Any) -> None:
    model, stranger = trained.model(), trained.as_tenant("other").models
    trained.models.promote(model, 1)
    for ask in (
        lambda: trained.models.promote(model, 9),
        lambda: trained.models.rollback(model, "canary"),
        lambda: trained.models.remove_alias(model, "canary"),
        lambda: stranger.promote(model.id, 1),
        lambda: stranger.rollback(model.id),
        lambda: stranger.remove_alias(model.id, "prod"),
        lambda: stranger.aliases(model.id),
        lambda: stranger.promotions(model.id),
    ):
        with pytest.raises(NotFound):
            ask()
    assert story(trained) == [("promoted", None, 1)]


def test_a_model_has_a_bounded_number_of_aliases(trained: Any) -> None:
    for number in range(MAX_ALIASES):
        trained.models.promote(trained.model(), 1, f"a{number}")
    trained.models.promote(trained.model(), 2, "a0")
    with pytest.raises(Conflict, match="100 aliases"):
        trained.models.promote(trained.model(), 1, "one-more")
    assert story(trained, "one-more") == []


@pytest.mark.parametrize(
    ("version", "there"), [("prod", True), ("canary", False), ("step2", True), ("step9", False), ("latest", True)]
)
def test_a_reference_with_an_alias_is_that_of_a_model_that_is_here(trained: Any, version: str, there: bool) -> None:
    trained.models.promote(trained.model(), 2)
    references = References("resolve", trained.principal)
    text = f"weave:///acme/p/object/m:{version}"
    problem = trained.runtime.store.read(
        lambda snapshot: references.problem(snapshot, ("model",), ObjectKind.MODEL, text)
    )
    assert (problem is None) is there


# ---- and back ----------------------------------------------------------------------------------------------------


def test_a_rollback_returns_to_where_the_alias_pointed_before_and_another_one_further(trained: Any) -> None:
    model = trained.model()
    for step in (1, 2, 3):
        trained.models.promote(model, step)
    assert trained.models.rollback(model).step == 2
    assert next(iter(trained.models.aliases(model))).previous_step == 1
    assert trained.models.rollback(model).step == 1
    assert served_step(trained, "prod") == 1
    with pytest.raises(Conflict, match="nothing before"):
        trained.models.rollback(model)
    trained.models.promote(model, 4)
    assert trained.models.rollback(model).step == 1
    assert story(trained) == [
        ("promoted", None, 1),
        ("promoted", 1, 2),
        ("promoted", 2, 3),
        ("rolled_back", 3, 2),
        ("rolled_back", 2, 1),
        ("promoted", 1, 4),
        ("rolled_back", 4, 1),
    ]


def test_a_rollback_to_a_deleted_checkpoint_is_refused_and_changes_nothing(trained: Any) -> None:
    model = trained.model()
    trained.models.promote(model, 1)
    trained.models.promote(model, 2)
    trained.models.delete_checkpoints(model.id, [1])
    with pytest.raises(Conflict, match=r"step 1, .* was deleted"):
        trained.models.rollback(model)
    assert served_step(trained, "prod") == 2


def test_a_removed_alias_serves_nothing_keeps_its_history_and_begins_again(trained: Any) -> None:
    model = trained.model()
    trained.models.promote(model, 1)
    trained.models.remove_alias(model, "prod")
    assert not trained.models.aliases(model)
    with pytest.raises(ModelNotFound):
        served_step(trained, "prod")
    trained.models.promote(model, 3)
    assert story(trained) == [("promoted", None, 1), ("removed", 1, None), ("promoted", None, 3)]
    with pytest.raises(Conflict, match="nothing before"):
        trained.models.rollback(model)


# ---- what keeps a checkpoint -------------------------------------------------------------------------------------


def test_an_aliased_checkpoint_cannot_be_deleted_nor_its_model_until_it_is_unaliased(trained: Any) -> None:
    model = trained.model()
    trained.models.promote(model, 2)
    for delete in (
        lambda: trained.models.delete_checkpoints(model.id, [1, 2]),
        lambda: trained.models.delete(model.id),
    ):
        with pytest.raises(Conflict, match="'prod' points to step 2"):
            delete()
    assert [one.step for one in trained.models.checkpoints(model.id)] == [0, 1, 2, 3, 4]
    trained.models.remove_alias(model, "prod")
    assert trained.models.delete_checkpoints(model.id, [1, 2]).deleted_count == 2
    trained.models.delete(model.id)
    assert left(trained) == (0, 0)


def left(yard: Any) -> tuple[int, int]:
    read = yard.runtime.store.read
    return read(
        lambda snapshot: (snapshot.count(Alias, "by_entity", "acme"), snapshot.count(Promotion, "by_entity", "acme"))
    )


def test_retention_keeps_what_an_alias_points_to_and_what_a_rollback_would_lead_to(trained: Any) -> None:
    model = trained.model()
    trained.models.promote(model, 1)
    trained.models.promote(model, 3)
    trained.models.set_retention(model, keep_last=1)
    assert trained.models.apply_retention(model) == (2,)
    trained.models.rollback(model)
    assert trained.models.apply_retention(model) == (3,)
    assert served_step(trained, "prod") == 1


def test_all_data_of_an_entity_can_be_deleted_with_its_aliases(trained: Any) -> None:
    trained.models.promote(trained.model(), 1)
    trained.models.promote(trained.model(), 2)
    erase_entity(trained.runtime, "acme")
    assert left(trained) == (0, 0)
    assert trained.files() == set()


# ---- as a machine ------------------------------------------------------------------------------------------------

STEPS = st.integers(0, 3)


class Pointing(RuleBasedStateMachine):
    """An alias is a stack of steps: promoting pushes, a rollback pops."""

    yard_class: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.yard = self.yard_class.build()
        self.yard.principal = host("acme")
        self.stack: list[int] = []
        train(self.yard, 3)

    @rule(step=STEPS)
    def promote(self, step: int) -> None:
        self.yard.models.promote(self.yard.model(), step)
        if self.stack[-1:] != [step]:
            self.stack.append(step)

    @rule()
    def roll_back(self) -> None:
        if len(self.stack) > 1:
            self.stack.pop()
            assert self.yard.models.rollback(self.yard.model()).step == self.stack[-1]
        else:
            with pytest.raises((Conflict, NotFound)):
                self.yard.models.rollback(self.yard.model())

    @rule()
    def remove(self) -> None:
        if self.stack:
            self.yard.models.remove_alias(self.yard.model(), "prod")
            self.stack = []

    @invariant()
    def points_where_the_stack_says(self) -> None:
        aliases = list(self.yard.models.aliases(self.yard.model()))
        assert [alias.step for alias in aliases] == self.stack[-1:]
        assert [alias.previous_step for alias in aliases] == (self.stack[-2:-1] or [None])[: len(aliases)]

    @invariant()
    def each_change_begins_where_the_one_before_ended(self) -> None:
        changes = story(self.yard)
        assert [one[1] for one in changes[1:]] == [one[2] for one in changes[:-1]]


@pytest.mark.slow
def test_an_alias_is_a_stack_of_steps(build: Any) -> None:
    Pointing.yard_class = build
    machine = Pointing.TestCase()
    machine.settings = machine.settings.__class__(max_examples=15, stateful_step_count=15, deadline=None)
    machine.runTest()


def test_a_checkpoint_is_referred_to_as_an_object_is() -> None:
    model = Model("id", "acme", "desk", "support", "tabular-mini", datetime(2026, 1, 1, tzinfo=UTC))
    assert model.ref_of(7) == str(ObjectRef("acme", "desk", RefKind.OBJECT, "support", "step7"))

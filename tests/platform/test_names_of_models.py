"""A model has one name: whatever takes a model takes each form of it, and means the same one."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from modelyard import Platform, open_platform
from modelyard.domain.models import Model
from modelyard.errors import InvalidInput, ModelNotFound, NotFound

ROWS = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}] * 2
ASKED = [{"prompt": "a", "expected": "b"}] * 2
GROUP = {"trajectories": [{"messages_and_choices": [{"role": "user", "content": "a"}], "reward": 1.0}]}

FORMS: dict[str, Callable[[Model], Model | str]] = {
    "value": lambda model: model,
    "id": lambda model: model.id,
    "project/name": lambda model: f"{model.project}/{model.name}",
    "entity/project/name": lambda model: f"{model.entity}/{model.project}/{model.name}",
    "modelyard:///": lambda model: f"modelyard:///{model.entity}/{model.project}/{model.name}",
    "wandb-artifact:///": lambda model: f"wandb-artifact:///{model.entity}/{model.project}/{model.name}",
}

TAKE_A_MODEL: dict[str, Callable[[Platform, Any], object]] = {
    "models.get": lambda p, m: p.models.get(m),
    "models.checkpoints": lambda p, m: [one.id for one in p.models.checkpoints(m)],
    "models.checkpoint": lambda p, m: p.models.checkpoint(m, 1).id,
    "models.lineage": lambda p, m: p.models.lineage(m, 1).checkpoint.id,
    "models.open_file": lambda p, m: p.models.open_file(m, 1, "adapter.safetensors").read(),
    "models.promote": lambda p, m: p.models.promote(m, 1).step,
    "models.aliases": lambda p, m: [one.step for one in p.models.aliases(m)],
    "models.promotions": lambda p, m: [one.step for one in p.models.promotions(m)],
    "models.set_retention": lambda p, m: p.models.set_retention(m, keep_last=3),
    "models.get_retention": lambda p, m: p.models.get_retention(m),
    "models.apply_retention": lambda p, m: p.models.apply_retention(m),
    "models.pin": lambda p, m: p.models.pin(m, 1).id,
    "models.unpin": lambda p, m: p.models.unpin(m, 1).id,
    "models.log_trajectories": lambda p, m: p.models.log_trajectories(m, [GROUP]).model_id,
    "models.trajectory_logs": lambda p, m: {one.model_id for one in p.models.trajectory_logs(m)},
    "training.sft": lambda p, m: p.training.sft(m, ROWS).refresh().model_id,
    "training.list": lambda p, m: {one.model_id for one in p.training.list(model=m)},
}
"""What is done with the model that is named, as something equal however it was named."""

OF_NAMES = [form for form in FORMS if form != "id"]
"""Forms of what completions and evaluations take: a catalogue id is a name, so the id of a record is none."""


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform(project="desk") as platform:
        platform.training.sft(platform.models.create("support", base_model="tabular-mini"), ROWS).wait()
        yield platform


def model_of(platform: Platform) -> Model:
    return platform.models.get("desk/support")


@pytest.mark.parametrize("use", TAKE_A_MODEL)
def test_each_form_of_a_name_means_the_same_model(platform: Platform, use: str) -> None:
    model = model_of(platform)
    TAKE_A_MODEL[use](platform, model)
    first, *others = [TAKE_A_MODEL[use](platform, form(model)) for form in FORMS.values()]
    assert others == [first] * len(others)


@pytest.mark.parametrize("version", ["", ":step1", ":latest"])
@pytest.mark.parametrize("form", OF_NAMES)
def test_an_evaluation_is_one_of_the_checkpoint_by_whatever_name(platform: Platform, form: str, version: str) -> None:
    model = model_of(platform)
    named = FORMS[form](model)
    given = named + version if isinstance(named, str) else named
    run = platform.evaluations.run("e", given, ASKED, "token_f1").run
    assert run.model.endswith("/support:step1")
    assert [one.id for one in platform.models.lineage(model, 1).runs] == [run.id]


@pytest.mark.parametrize("form", OF_NAMES)
def test_a_completion_is_of_the_checkpoint_by_whatever_name(platform: Platform, form: str) -> None:
    platform.chat.complete(model=FORMS[form](model_of(platform)), messages="a")
    assert [entry.model for entry in platform.usage.list()][-1] == "local/desk/support"


@pytest.mark.parametrize("use", TAKE_A_MODEL)
@pytest.mark.parametrize("version", [":step1", ":prod"])
def test_the_name_of_one_checkpoint_is_not_taken_for_the_model(platform: Platform, use: str, version: str) -> None:
    platform.models.promote("desk/support", 1)
    with pytest.raises(InvalidInput, match="names one checkpoint; name the whole model, desk/support"):
        TAKE_A_MODEL[use](platform, f"desk/support{version}")


def test_a_name_without_its_project_is_not_found_and_the_whole_one_is_named(platform: Platform) -> None:
    for use in (TAKE_A_MODEL["models.get"], TAKE_A_MODEL["training.sft"]):
        with pytest.raises(NotFound, match="did you mean 'desk/support'"):
            use(platform, "support")
    with pytest.raises(ModelNotFound, match="did you mean 'desk/support'"):
        platform.evaluations.run("e", "support", ASKED, "token_f1")

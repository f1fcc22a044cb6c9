"""The model of a version: found, pinned to a checkpoint, and checked against the parameters."""

from collections.abc import Iterator
from functools import partial

import attrs

from modelyard.domain.identity import Principal
from modelyard.domain.models import ModelName
from modelyard.errors import InvalidInput, ModelNotFound, Problem, UnsupportedParameter
from modelyard.part import Named
from modelyard.parts.variants.content import VariantContent
from modelyard.platform.catalogue.service import find_served, offered
from modelyard.platform.chat.capability_checks import check_supported
from modelyard.platform.chat.plan import make_plan
from modelyard.platform.runtime import Runtime
from modelyard.protocols import ServedModel, Snapshot


def full_name(entity: str, model: str) -> str:
    """Return the name of the model of a version for every caller: a checkpoint has the entity."""
    named = ModelName.within(entity, model)
    if named is None or named.step is None:
        return model
    return f"{named.entity}/{named.project}/{named.name}:step{named.step}"


def with_pinned_model(
    runtime: Runtime, principal: Principal, entity: str, project: str, content: VariantContent
) -> VariantContent:
    """Return the content with a trained model pinned to its checkpoint of now. Raises `ModelNotFound`, `Forbidden`,
    `InvalidInput`, and `UnsupportedParameter` for what the model cannot honour."""
    pinned = attrs.evolve(content, model=_pinned(runtime, principal, entity, content.model))
    name = full_name(entity, pinned.model)
    plan = make_plan(runtime, principal, principal.attribution(entity, project), name)
    try:
        check_supported(content.settings(), plan.served.entry, plan.backend.capabilities(plan.served.base_model))
    except UnsupportedParameter as error:
        raise UnsupportedParameter(
            [attrs.evolve(one, loc=("parameters", *one.loc)) for one in error.problems]
        ) from None
    return pinned


def _pinned(runtime: Runtime, principal: Principal, entity: str, model: str) -> str:
    missing: ModelNotFound | None = None
    for name in _candidates(principal, entity, model):
        try:
            found, called, named = runtime.store.read(partial(_found, runtime, principal, name))
        except ModelNotFound as error:
            missing = missing or error
            continue
        if named is not None:
            raise InvalidInput.at(
                "model", msg="names a variant; name a catalogue entry, a trained model or a step of it"
            )
        trained = None if called == found.entry.id else ModelName.within(entity, called)
        if trained is None:
            return model
        if found.checkpoint is None:
            raise InvalidInput.at("model", msg="has no checkpoint yet; name its base model, or train it first")
        of = "" if trained.entity == entity else f"{trained.entity}/"
        return f"{of}{trained.project}/{trained.name}:step{found.checkpoint.step}"
    raise missing or InvalidInput([Problem(("model",), "is not the name of a model")])


def _found(
    runtime: Runtime, principal: Principal, name: str, snapshot: Snapshot
) -> tuple[ServedModel, str, Named | None]:
    return find_served(runtime, snapshot, offered(runtime), name, principal)


def _candidates(principal: Principal, entity: str, model: str) -> Iterator[str]:
    """Yield the names that a model may have: one without an entity is of the variant's."""
    if entity != principal.entity and ModelName.parse(model) is None and ModelName.parse(f"{entity}/{model}"):
        yield f"{entity}/{model}"
    yield model

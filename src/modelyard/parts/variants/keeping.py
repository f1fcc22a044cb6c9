"""The checkpoints that versions ask, and which of them stay (`Part.keeps`).

Nothing is stored of that: an alias keeps the checkpoint of its version while it points there.
"""

from collections.abc import Mapping

from modelyard.domain.models import Checkpoint, Model, ModelName
from modelyard.errors import Conflict
from modelyard.parts.variants.records import Variant, VariantAlias, VariantVersion
from modelyard.platform.paging import iter_index
from modelyard.protocols import Snapshot


def kept_by_aliases(snapshot: Snapshot, model: Model) -> Mapping[int, str]:
    """Return why steps of a model stay: what an alias points to, and for retention ("") where a rollback leads."""
    kept = dict[int, str]()
    for variant in iter_index(snapshot, Variant, "all"):
        for alias in iter_index(snapshot, VariantAlias, "by_variant", variant.id):
            why = f"{alias.name!r} of {called(variant, model)} points to version {alias.number}"
            keep(kept, snapshot, variant, alias.number, model, f"{why}; promote another version, or remove the alias")
            if alias.previous is not None:
                keep(kept, snapshot, variant, alias.previous, model, "")
    return kept


def called(variant: Variant, model: Model) -> str:
    """Return what a variant is called to somebody who may delete steps of a model."""
    same = variant.entity == model.entity
    return f"the variant {variant.project}/{variant.name}" if same else "a variant of another entity"


def keep(kept: dict[int, str], snapshot: Snapshot, variant: Variant, number: int, model: Model, why: str) -> None:
    """Note why a step of a model is kept, if this version asks it and no reason is known."""
    version = snapshot.find(VariantVersion, "number", variant.id, number)
    named = None if version is None else checkpoint_asked(version)
    if named is None or named.step is None:
        return
    if (named.entity, named.project, named.name) == (model.entity, model.project, model.name):
        kept[named.step] = kept.get(named.step) or why


def checkpoint_asked(version: VariantVersion) -> ModelName | None:
    """Return the name of the checkpoint that a version asks; None for a model that was not trained here."""
    named = ModelName.within(version.entity, version.body["model"])
    return None if named is None or named.step is None else named


def refuse_gone(snapshot: Snapshot, variant: Variant, version: VariantVersion) -> None:
    """Raise `Conflict` for a version whose checkpoint was deleted."""
    named = checkpoint_asked(version)
    if named is None:
        return
    model = snapshot.find(Model, "name", named.entity, named.project, named.name)
    if model is not None and snapshot.find(Checkpoint, "step", model.id, named.step) is not None:
        return
    of = f"version {version.number} of {variant.project}/{variant.name}"
    raise Conflict(f"{of} asks {version.body['model']}, which was deleted; name another version, or publish one")

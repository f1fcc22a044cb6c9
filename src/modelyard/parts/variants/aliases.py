"""The versions that aliases point to, and how they move, as functions of a transaction."""

import attrs

from modelyard.domain.promotion import MAX_ALIASES
from modelyard.errors import Conflict, NotFound
from modelyard.parts.variants.keeping import refuse_gone
from modelyard.parts.variants.records import Variant, VariantAlias, VariantMove, VariantVersion
from modelyard.platform.paging import get_or_none
from modelyard.protocols import Snapshot, Tx


def aliases_of(snapshot: Snapshot, variant_id: str) -> list[VariantAlias]:
    return snapshot.page(VariantAlias, "by_variant", variant_id, limit=MAX_ALIASES)


def promote(tx: Tx, asked: VariantMove) -> VariantMove:
    """Point an alias at a version. If it points there already, nothing changes and the change in force is returned.
    `asked` has the version, and as `before` the one against which its requirement was checked. Raises `NotFound`, and
    `Conflict` if the alias has moved since, or the checkpoint of the version was deleted."""
    version = tx.find(VariantVersion, "number", asked.variant_id, asked.number)
    if version is None:
        raise NotFound("Version", str(asked.number))
    now = get_or_none(tx, VariantAlias, asked.variant_id, asked.alias)
    if now is not None and now.number == asked.number:
        return _counted(tx, now, now.change)
    if asked.verdict and asked.before != (None if now is None else now.number):
        raise Conflict(f"{asked.alias!r} was moved while the promotion was being checked; promote again")
    refuse_gone(tx, tx.get(Variant, asked.variant_id), version)
    return _change(tx, attrs.evolve(asked, below=None if now is None else now.change), now)


def roll_back(tx: Tx, asked: VariantMove) -> VariantMove:
    """Point an alias back to its target before the change in force. Raises `NotFound`, and `Conflict` for none,
    or one whose checkpoint was deleted."""
    now = _found(tx, asked)
    below = _counted(tx, now, now.change).below
    if below is None:
        text = f"{asked.alias!r} has pointed to version {now.number} from the beginning; there is nothing before it"
        raise Conflict(text)
    target = _counted(tx, now, below)
    version = tx.find(VariantVersion, "number", asked.variant_id, target.number)
    assert version is not None, "a version goes only with its variant"
    refuse_gone(tx, tx.get(Variant, asked.variant_id), version)
    return _change(tx, attrs.evolve(asked, number=target.number, below=target.below), now)


def remove_alias(tx: Tx, asked: VariantMove) -> VariantMove:
    """Remove an alias; its history stays. Raises `NotFound`."""
    return _change(tx, asked, _found(tx, asked))


def refuse_aliased(snapshot: Snapshot, variant: Variant) -> None:
    found = aliases_of(snapshot, variant.id)
    if found:
        raise Conflict(f"{found[0].name!r} points to version {found[0].number} of it; remove its aliases first")


def _found(snapshot: Snapshot, asked: VariantMove) -> VariantAlias:
    found = get_or_none(snapshot, VariantAlias, asked.variant_id, asked.alias)
    if found is None:
        raise NotFound("Alias", asked.alias)
    return found


def _change(tx: Tx, asked: VariantMove, now: VariantAlias | None) -> VariantMove:
    last = tx.page(VariantMove, "by_alias", asked.variant_id, asked.alias, limit=1, descending=True)
    made = attrs.evolve(
        asked,
        count=last[0].count + 1 if last else 1,
        before=None if now is None else now.number,
        created_at=max([asked.created_at, *(one.created_at for one in last)]),
    )
    tx.add(made)
    _point(tx, made, now)
    return made


def _point(tx: Tx, made: VariantMove, now: VariantAlias | None) -> None:
    if made.number is None:
        tx.remove(VariantAlias, made.variant_id, made.alias)
        return
    below = None if made.below is None else tx.find(VariantMove, "count", made.variant_id, made.alias, made.below)
    place = (made.variant_id, made.alias, made.entity, made.project)
    alias = VariantAlias(*place, made.number, made.count, below.number if below else None, made.created_at)
    if now is not None:
        tx.replace(alias)
    elif tx.count(VariantAlias, "by_variant", made.variant_id) >= MAX_ALIASES:
        raise Conflict(f"the variant has {MAX_ALIASES} aliases already; remove one first")
    else:
        tx.add(alias)


def _counted(snapshot: Snapshot, alias: VariantAlias, count: int) -> VariantMove:
    found = snapshot.find(VariantMove, "count", alias.variant_id, alias.name, count)
    assert found is not None, "a move goes only with its variant"
    return found

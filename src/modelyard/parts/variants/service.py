"""`platform.variants`: what one serves under a name, in versions, with aliases."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

import attrs

from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.identity import Principal
from modelyard.domain.models import Checkpoint, Model, ModelName
from modelyard.domain.promotion import Change, CheckpointLineage, NotWorse, check_alias
from modelyard.domain.record import EMPTY, Order
from modelyard.errors import InvalidInput, NotFound
from modelyard.parts.variants import aliases, file, naming
from modelyard.parts.variants.content import VariantContent, VariantExample, checked_content
from modelyard.parts.variants.differences import unified
from modelyard.parts.variants.models import full_name, with_pinned_model
from modelyard.parts.variants.records import Variant, VariantAlias, VariantMove, VariantVersion
from modelyard.platform.lineage import checkpoint_lineage, runs_on
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.models.promotion import PROD, promotion_evidence
from modelyard.platform.owned import remove_owned, store_texts
from modelyard.platform.paging import cursor_at, get_or_none, index_listing, listed_entity, listed_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

MAX_NOTE = 10_000
MOST_RUNS = 100
MOST_PARENTS = 1000

Examples = Iterable[VariantExample | Mapping[str, Any]]


@attrs.frozen
class VariantDiff:
    """How two versions differ: the members that do, and their files as a unified diff, "" if they are the same."""

    before: VariantVersion
    after: VariantVersion
    changed: tuple[str, ...]
    text: str


@attrs.frozen
class VariantLineage:
    """Where a version comes from, and what was made of it. `parents` begins with the version that it was made from, the
    nearest first. `checkpoint` is that of a trained model, if it is there and may be seen. `runs` evaluated the
    version, the newest first."""

    variant: Variant
    version: VariantVersion
    parents: tuple[VariantVersion, ...]
    checkpoint: CheckpointLineage | None
    aliases: tuple[str, ...]
    runs: tuple[EvaluationRun, ...]


class Variants:
    """The variants that a principal may see: models with a prompt and parameters, in versions.

    platform.variants.publish("desk/support", model="desk/agent", system="Be brief.", parameters={"temperature": 0})
    platform.variants.promote("desk/support", 1)
    platform.chat.complete(model="variants/desk/support@prod", messages="Where is my order?")

    A variant is named "project/name", with its entity before that if it is another one's. A version is named by its
    number, an alias or neither, which is the newest: "desk/support@3", "desk/support@prod", "desk/support".
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    # ---- versions

    def publish(
        self,
        name: str,
        *,
        model: str,
        system: str = "",
        template: str = "",
        examples: Examples = (),
        parameters: Mapping[str, Any] = EMPTY,
        note: str = "",
        parent: int | None = None,
    ) -> VariantVersion:
        """Publish the next version of a variant, and the variant itself with the first.

        `model` is a catalogue entry or a trained model, which is pinned to its checkpoint of this moment. `template` is
        the first message of the user, with inputs such as `{question}` in it. `examples` are shown before it: each has
        `user`, or the `inputs` of the template, and `assistant`. `parameters` are some of those of a completion.
        `parent` is the version that it was made from, by default the newest.

        What the newest version is already makes none: that one is returned. Raises `InvalidInput` at the place of what
        is wrong, `ModelNotFound`, `Forbidden`, `UnsupportedParameter` for what the model cannot honour.
        """
        content = checked_content(model, system, template, examples, parameters)
        return self._publish(naming.new_name(name, self._principal.entity), content, note, parent)

    def read_file(self, text: str, *, name: str | None = None, note: str = "") -> VariantVersion:
        """Publish what a file says (`file`), under the name in it or another one. Raises as `publish` does."""
        found = file.read(text)
        named = naming.new_name(found.name if name is None else name, self._principal.entity)
        return self._publish(named, found.content, note, None)

    def _publish(
        self, name: naming.VariantName, content: VariantContent, note: str, parent: int | None
    ) -> VariantVersion:
        principal, runtime = self._principal, self._runtime
        principal.require(name.entity, name.project)
        if not isinstance(note, str) or len(note) > MAX_NOTE or "\0" in note:
            raise InvalidInput.at("note", msg=f"must be a text of at most {MAX_NOTE} characters, without NUL")
        content = with_pinned_model(runtime, principal, name.entity, name.project, content)
        if (size := len(file.written(str(name), content))) > file.MAX_FILE:
            raise InvalidInput.at(msg=f"is too large: its file has {size} characters, of at most {file.MAX_FILE}")
        ids, now, by = (runtime.ids(), runtime.ids()), runtime.clock.now(), principal.key_id or principal.name
        place = (name.entity, name.project)

        def step(tx: Tx) -> VariantVersion:
            found = tx.find(Variant, "name", *place, name.name)
            variant = found or Variant(ids[0], *place, name.name, now)
            if parent is not None and tx.find(VariantVersion, "number", variant.id, parent) is None:
                raise NotFound("Version", f"{name}@{parent}")
            if found is None:
                tx.add(variant)
            return next_version(tx, variant, content, ids[1], parent, note, by, now)

        return store_texts(runtime, name.entity, step)

    def version(self, name: str) -> VariantVersion:
        """Return the version that a name means. Raises `NotFound`, `InvalidInput`, `Forbidden`."""
        return self._runtime.store.read(lambda snapshot: self._version(snapshot, name)[1])

    def versions(self, name: str, *, order: Order = "asc") -> Listing[VariantVersion]:
        """List the versions of a variant by number. Raises `NotFound`."""
        variant = self.get(name)
        place = partial(self._place, VariantVersion, "by_variant", variant)
        return index_listing(self._runtime, VariantVersion, "by_variant", variant.id, place=place, order=order)

    def file(self, name: str) -> str:
        """Return the version that a name means as TOML, to be reviewed and read again (`read_file`): a file that was
        written here is written again byte by byte. Raises as `version` does."""
        variant, version = self._runtime.store.read(lambda snapshot: self._version(snapshot, name))
        return file.written(f"{variant.project}/{variant.name}", version.content)

    def diff(self, before: str, after: str) -> VariantDiff:
        """Return how two versions differ, also of two variants. Raises as `version` does."""
        old, new = self.version(before), self.version(after)
        changed = [name for name in old.body if old.content.data[name] != new.content.data[name]]
        one, other = (file.written("-", at.content).splitlines(keepends=True)[1:] for at in (old, new))
        text = unified(one, other, f"{before} (version {old.number})", f"{after} (version {new.number})")
        return VariantDiff(old, new, tuple(sorted(changed)), text)

    def lineage(self, name: str) -> VariantLineage:
        """Return where a version comes from: its parents, its checkpoint; and its aliases and runs. Raises as `version`
        does."""
        return self._runtime.store.read(lambda snapshot: self._lineage(snapshot, name))

    # ---- variants

    def get(self, name: str) -> Variant:
        """Return a variant by its name or its id. Raises `NotFound`, `InvalidInput`, `Forbidden`."""
        return self._runtime.store.read(lambda snapshot: self._variant(snapshot, name))

    def list(self, *, project: str | None = None, entity: str | None = None, order: Order = "asc") -> Listing[Variant]:
        """List variants, the oldest first. Raises `Forbidden`."""
        entity = listed_entity(self._principal, entity, project)
        index, *where = listed_index(entity, project)
        place = partial(self._listed, index)
        return index_listing(self._runtime, Variant, index, *where, place=place, order=order, keep=self._sees)

    def delete(self, name: str) -> Variant:
        """Delete a variant with all of its versions. Raises `NotFound`, and `Conflict` while an alias points to one."""

        def step(tx: Tx) -> Variant:
            variant = self._variant(tx, name)
            aliases.refuse_aliased(tx, variant)
            remove_owned(tx, self._runtime.records, variant)
            tx.remove(Variant, variant.id)
            return variant

        return self._runtime.store.transact(step)

    # ---- aliases

    def promote(self, name: str, number: int, alias: str = PROD, *, require: NotWorse | None = None) -> VariantMove:
        """Point an alias at a version, which is then served as `variants/<project>/<name>@<alias>`.

        With `require`, only if the newest evaluation runs of it and of the version that the alias points to do not show
        it to be worse. The change is recorded, with who made it and the evidence. Repeating it changes nothing. Raises
        `NotFound`, `InvalidInput`, `PromotionRefused`, and `Conflict` if the alias was moved meanwhile.
        """
        check_alias(alias)
        if require is not None and not isinstance(require, NotWorse):
            raise InvalidInput.at("require", msg='must be NotWorse("<evaluation>"), or nothing')
        variant, pointed = self._runtime.store.read(lambda snapshot: self._pointed(snapshot, name, number, alias))
        verdict: Mapping[str, Any] = EMPTY
        if require is not None:
            verdict = promotion_evidence(self._runtime, self._principal, variant, number, pointed, require)
        return self._change(variant.id, alias, Change.PROMOTED, aliases.promote, number, pointed, verdict)

    def rollback(self, name: str, alias: str = PROD) -> VariantMove:
        """Point an alias back to its target before the last promotion; each further call goes back one more. Raises
        `NotFound`, and `Conflict` if it pointed to nothing before."""
        return self._change(name, alias, Change.ROLLED_BACK, aliases.roll_back)

    def remove_alias(self, name: str, alias: str) -> VariantMove:
        """Remove an alias; its history stays. Raises `NotFound`."""
        return self._change(name, alias, Change.REMOVED, aliases.remove_alias)

    def aliases(self, name: str) -> "tuple[VariantAlias, ...]":
        """Return the aliases of a variant by name. Raises `NotFound`."""
        return self._runtime.store.read(
            lambda snapshot: tuple(aliases.aliases_of(snapshot, self._variant(snapshot, name).id))
        )

    def moves(self, name: str, alias: str = PROD, *, order: Order = "asc") -> Listing[VariantMove]:
        """List every change of an alias in order, also of one that was removed. Raises `NotFound`."""
        variant = self.get(name)
        place = partial(self._place, VariantMove, "by_alias", variant)
        return index_listing(self._runtime, VariantMove, "by_alias", variant.id, alias, place=place, order=order)

    def _change(
        self,
        name: str,
        alias: str,
        change: Change,
        make: Callable[[Tx, VariantMove], VariantMove],
        number: int | None = None,
        before: int | None = None,
        verdict: Mapping[str, Any] = EMPTY,
    ) -> VariantMove:
        check_alias(alias)
        id_, now, by = self._runtime.ids(), self._runtime.clock.now(), self._principal.key_id or self._principal.name

        def step(tx: Tx) -> VariantMove:
            variant = self._variant(tx, name)
            place = (id_, variant.id, variant.entity, variant.project, alias)
            made = make(tx, VariantMove(*place, 0, change, number, before, by, now, verdict=verdict))
            if made.id == id_:
                self._runtime.tell(tx, made)
            return made

        return self._runtime.store.transact(step)

    # ---- what is seen

    def _variant(self, snapshot: Snapshot, name: str) -> Variant:
        found = get_or_none(snapshot, Variant, name) if isinstance(name, str) and "/" not in name else None
        if found is not None and self._sees(found):
            return found
        if isinstance(name, str) and "/" not in name:
            raise NotFound("Variant", name, 'a name is such as "project/name"')
        return naming.found_variant(snapshot, self._principal, naming.named(name, self._principal.entity))

    def _version(self, snapshot: Snapshot, name: str) -> tuple[Variant, VariantVersion]:
        named = naming.named(name, self._principal.entity)
        variant = naming.found_variant(snapshot, self._principal, named)
        return variant, naming.found_version(snapshot, variant, named)

    def _pointed(self, snapshot: Snapshot, name: str, number: int, alias: str) -> tuple[Variant, int | None]:
        variant = self._variant(snapshot, name)
        if snapshot.find(VariantVersion, "number", variant.id, number) is None:
            raise NotFound(
                "Version", f"{variant.project}/{variant.name}@{number}", f"the newest is {variant.last_number}"
            )
        now = get_or_none(snapshot, VariantAlias, variant.id, alias)
        return variant, None if now is None else now.number

    def _lineage(self, snapshot: Snapshot, name: str) -> VariantLineage:
        variant, version = self._version(snapshot, name)
        parents, at = list[VariantVersion](), version
        while at.parent is not None and len(parents) < MOST_PARENTS:
            found = snapshot.find(VariantVersion, "number", variant.id, at.parent)
            assert found is not None, "a version goes only with its variant"
            parents.append(at := found)
        scope = self._principal.scope
        runs = (run for run in runs_on(snapshot, variant, version.number) if scope.covers(run.entity, run.project))
        pointing = tuple(one.name for one in aliases.aliases_of(snapshot, variant.id) if one.number == version.number)
        checkpoint = self._checkpoint(snapshot, full_name(variant.entity, version.content.model))
        return VariantLineage(variant, version, tuple(parents), checkpoint, pointing, tuple(islice(runs, MOST_RUNS)))

    def _checkpoint(self, snapshot: Snapshot, name: str) -> CheckpointLineage | None:
        named = ModelName.parse(name)
        if named is None or named.step is None or not self._principal.scope.covers(named.entity, named.project):
            return None
        model = snapshot.find(Model, "name", named.entity, named.project, named.name)
        found = None if model is None else snapshot.find(Checkpoint, "step", model.id, named.step)
        return None if model is None or found is None else checkpoint_lineage(snapshot, self._principal, model, found)

    def _sees(self, variant: Variant) -> bool:
        return self._principal.scope.covers(variant.entity, variant.project)

    def _listed(self, index: str, id: str, snapshot: Snapshot) -> Cursor:
        found = get_or_none(snapshot, Variant, id)
        if found is None or not self._sees(found):
            raise NotFound("Variant", id)
        return cursor_at(Variant, index, found)

    def _place(self, cls: type[Any], index: str, variant: Variant, id: str, snapshot: Snapshot) -> Cursor:
        found = get_or_none(snapshot, cls, id)
        if found is None or found.variant_id != variant.id:
            raise NotFound(cls.__name__, id)
        return cursor_at(cls, index, found)


def next_version(
    tx: Tx, variant: Variant, content: VariantContent, id: str, parent: int | None, note: str, by: str, now: datetime
) -> VariantVersion:
    """Add the next version of a variant, whose model is pinned, unless its newest is just that: then return this."""
    newest = tx.find(VariantVersion, "number", variant.id, variant.last_number)
    if newest is not None and newest.digest == content.digest:
        return newest
    number, of = variant.last_number + 1, parent or variant.last_number or None
    place = (variant.entity, variant.project)
    made = VariantVersion(id, variant.id, *place, number, content.digest, content.data, of, note, by, now)
    tx.replace(attrs.evolve(variant, last_number=number))
    tx.add(made)
    return made

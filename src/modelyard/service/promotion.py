"""Promoting checkpoints: letting an alias such as `prod` point to one, and taking that back."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from modelyard.domain.alias import Alias, Change, NotWorse, Promotion, check_alias
from modelyard.domain.page import DEFAULT_LIMIT, Order, Page
from modelyard.domain.record import EMPTY
from modelyard.domain.training import Model
from modelyard.errors import InvalidInput, NotFound
from modelyard.protocols import Snapshot, Tx
from modelyard.service import verdict
from modelyard.service.alias_rules import aliases_of, promote, remove_alias, roll_back
from modelyard.service.listing import Cursor, cursor_at, maybe, read_page
from modelyard.service.model_view import ModelView, found_checkpoint

PROD = "prod"
"""The alias that is meant where none is named."""


class _Judged(NamedTuple):
    """A step that is to be promoted: where the alias pointed when it was judged, and the numbers of that."""

    step: int | None = None
    current: int | None = None
    verdict: Mapping[str, Any] = EMPTY


class Promotions(ModelView):
    """The part of `platform.models` that is about aliases.

    platform.models.promote("bots/support", step=3)
    platform.chat.complete(model="acme/bots/support:prod", messages="hello")
    platform.models.rollback("bots/support")

    A model is given by value, by its id or by its name ("project/name", "entity/project/name").
    """

    def promote(
        self, model: Model | str, step: int, alias: str = PROD, *, require: NotWorse | None = None
    ) -> Promotion:
        """Let an alias point to the checkpoint of a step; it is served as `<entity>/<project>/<name>:<alias>`.

        The change is kept: who made it, when, from which step, and the numbers with which it met what was required.
        Doing it again changes nothing. Raises `NotFound`, `InvalidInput`, `PromotionRefused`, and `Conflict` where the
        alias was moved while that was judged.
        """
        check_alias(alias)
        judged = self._judged(model, step, alias, require)
        return self._changed(model, alias, Change.PROMOTED, lambda tx, _, asked: promote(tx, asked), judged)

    def rollback(self, model: Model | str, alias: str = PROD) -> Promotion:
        """Let an alias point to where it pointed before its last promotion; again, to where before that.

        The history grows by this change. Raises `NotFound`, and `Conflict` where nothing was before.
        """
        return self._changed(model, alias, Change.ROLLED_BACK, lambda tx, model, asked: roll_back(tx, asked, model))

    def unalias(self, model: Model | str, alias: str) -> Promotion:
        """Let an alias point to nothing; its history stays. Raises `NotFound`."""
        return self._changed(model, alias, Change.REMOVED, lambda tx, model, asked: remove_alias(tx, asked, model))

    def aliases(self, model: Model | str) -> tuple[Alias, ...]:
        """The aliases of a model, by name, with the steps that they point to. Raises `NotFound`."""
        return self.ports.store.read(lambda snapshot: tuple(aliases_of(snapshot, self._named(snapshot, model).id)))

    def promotions(
        self,
        model: Model | str,
        alias: str = PROD,
        *,
        after: str | None = None,
        limit: int = DEFAULT_LIMIT,
        order: Order = "asc",
    ) -> Page[Promotion]:
        """Every change of an alias, in order, also of one that was removed. `after` is the id of one."""
        found = self.ports.store.read(lambda snapshot: self._named(snapshot, model))
        cursor = None if after is None else partial(_place, found.id, alias, after)
        return read_page(self.ports, Promotion, "by_alias", found.id, alias, after=cursor, limit=limit, order=order)

    def _judged(self, model: Model | str, step: int, alias: str, require: NotWorse | None) -> "_Judged":
        """What is to be promoted, with the numbers with which it meets what is required."""
        if require is None:
            return _Judged(step)
        if not isinstance(require, NotWorse):
            raise InvalidInput.at("require", msg='must be NotWorse("<evaluation>"), or nothing')
        found, now = self.ports.store.read(lambda snapshot: self._pointed(snapshot, model, step, alias))
        if now is not None and now.step == step:
            return _Judged(step)
        current = None if now is None else now.step
        return _Judged(step, current, verdict.verdict(self.ports, self.principal, found, step, current, require))

    def _pointed(self, snapshot: Snapshot, model: Model | str, step: int, alias: str) -> tuple[Model, Alias | None]:
        found = self._named(snapshot, model)
        found_checkpoint(snapshot, found, step)
        return found, maybe(snapshot, Alias, found.id, alias)

    def _changed(
        self,
        model: Model | str,
        alias: str,
        change: Change,
        make: Callable[[Tx, Model, Promotion], Promotion],
        judged: "_Judged | None" = None,
    ) -> Promotion:
        check_alias(alias)
        id_, now, by = self.ports.ids(), self.ports.clock.now(), self.principal.key_id or self.principal.name

        def act(tx: Tx) -> Promotion:
            found = self._named(tx, model)
            step, current, numbers = judged or _Judged()
            place = (found.id, found.entity, found.project, alias)
            return make(tx, found, Promotion(id_, *place, 0, change, step, current, by, now, verdict=numbers))

        return self.ports.store.transact(act)


def _place(model_id: str, alias: str, promotion_id: str, snapshot: Snapshot) -> Cursor:
    """The cursor behind a change of an alias. Raises `NotFound`."""
    promotion = maybe(snapshot, Promotion, promotion_id)
    if promotion is None or (promotion.model_id, promotion.alias) != (model_id, alias):
        raise NotFound("Promotion", promotion_id)
    return cursor_at(Promotion, "by_alias", promotion)

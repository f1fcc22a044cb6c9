"""Trained models that the host offers to every tenant as catalogue entries, and what may not be removed meanwhile."""

from collections.abc import Callable, Collection, Iterator

from modelyard.domain import models
from modelyard.domain.catalogue import RegisteredEntry
from modelyard.errors import Conflict
from modelyard.protocols import Snapshot

OFFER = "public"
_PAGE = 1000
_SCHEME = "modelyard:///"  # no backend's model is stored with it


def answer_name(named: "models.ModelName") -> str:
    version = named.alias or ("latest" if named.step is None else f"step{named.step}")
    return f"{_SCHEME}{named.entity}/{named.project}/{named.name}:{version}"


def trained_answer(record: RegisteredEntry) -> "models.ModelName | None":
    return models.ModelName.parse(record.answers_as) if record.answers_as.startswith(_SCHEME) else None


def registered(snapshot: Snapshot) -> Iterator[RegisteredEntry]:
    after = None
    while page := snapshot.page(RegisteredEntry, "listed", OFFER, after=after, limit=_PAGE):
        yield from page
        after = (page[-1].id,)


def trained_offers(snapshot: Snapshot) -> "Iterator[tuple[str, models.ModelName]]":
    for record in registered(snapshot):
        named = trained_answer(record)
        if named is not None:
            yield record.id, named


def offers_of(snapshot: Snapshot, model: "models.Model") -> "Iterator[tuple[str, models.ModelName]]":
    place = (model.entity, model.project, model.name)
    for entry_id, named in trained_offers(snapshot):
        if (named.entity, named.project, named.name) == place:
            yield entry_id, named


def entries_answered(snapshot: Snapshot, model: "models.Model", step: int, aliases: Collection[str]) -> tuple[str, ...]:
    def answers(named: "models.ModelName") -> bool:
        if named.alias:
            return named.alias in aliases
        return step == (model.last_step if named.step is None else named.step)

    return tuple(entry_id for entry_id, named in offers_of(snapshot, model) if answers(named))


def refuse_offered(
    snapshot: Snapshot, model: "models.Model", needs: "Callable[[models.ModelName], bool]" = lambda named: True
) -> None:
    for entry_id, named in offers_of(snapshot, model):
        if needs(named):
            raise Conflict(f"the catalogue offers it as {entry_id!r}; the host must unregister that entry first")

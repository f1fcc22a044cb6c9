"""Several backends as one: each model is answered by the backend that offers it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import is_not
from typing import Any

from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import CompletionRequest
from modelyard.errors import BackendError, InvalidInput, ModelNotFound
from modelyard.protocols import AsyncBackend, Backend, Capabilities, Deltas, ServedModel

AnyBackend = Backend | AsyncBackend


class Router:
    """Sends each request to the backend that offers its model.

    Given a mapping from model id to backend, only the named models are offered. Backends may be synchronous or
    asynchronous: a caller that can drive both uses `backend_of` and bypasses the router. Driven as a plain backend, the
    router serves its synchronous backends only. The offered models may change: a backend signals a change by returning
    another tuple of entries. Raises `InvalidInput` for an id that is offered twice, or not at all.
    """

    def __init__(self, backends: Sequence[AnyBackend] | Mapping[str, AnyBackend]) -> None:
        self._given = backends
        members = backends.values() if isinstance(backends, Mapping) else backends
        self._list = tuple(backend.entries for backend in members)
        self._listings: list[Sequence[CatalogueEntry]] = []
        self._entries: tuple[CatalogueEntry, ...] = ()
        self._backends: dict[str, AnyBackend] = {}
        self.entries()

    @property
    def blocking(self) -> bool:
        """Whether any backend may wait."""
        return any(getattr(backend, "blocking", True) for backend in self._backends.values())

    @property
    def retries(self) -> int:
        """How many attempts the backends have made again, as far as they count them."""
        members = self._given.values() if isinstance(self._given, Mapping) else self._given
        return retries_of(members)

    def backend_of(self, model: str) -> AnyBackend:
        """Return the backend of the model with this catalogue id, never a router. Raises `ModelNotFound`."""
        found = self._backends.get(model)
        if found is None:
            raise ModelNotFound("model", model)
        return found.backend_of(model) if isinstance(found, Router) else found

    def entries(self) -> Sequence[CatalogueEntry]:
        """Return the entries of all backends, in the given order."""
        listings = [entries() for entries in self._list]
        if any(map(is_not, listings, self._listings)) or not self._listings:
            given = self._given
            offers = _named(given) if isinstance(given, Mapping) else _all(given)
            self._backends = {entry.id: backend for entry, backend in offers}
            self._entries, self._listings = tuple(entry for entry, _ in offers), listings
        return self._entries

    def capabilities(self, model: str) -> Capabilities:
        return self.backend_of(model).capabilities(model)

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int | None:
        return self.backend_of(model.base_model).prompt_tokens(request, model)

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Deltas]:
        """Stream the answer of the model's backend. Raises `BackendError` if that backend is asynchronous only."""
        backend = self.backend_of(model.base_model)
        if not hasattr(backend, "stream"):
            raise BackendError(f"{model.base_model!r} can be answered asynchronously only; use `backend_of` instead")
        yield from backend.stream(request, model)


def retries_of(backends: Iterable[AnyBackend]) -> int:
    counting: Iterable[Any] = {
        id(backend): backend for backend in backends if hasattr(type(backend), "retries")
    }.values()
    return sum(backend.retries for backend in counting)


Offer = tuple[CatalogueEntry, AnyBackend]


def _all(backends: Sequence[AnyBackend]) -> list[Offer]:
    offers: list[Offer] = []
    seen: set[str] = set()
    for at, backend in enumerate(backends):
        for entry in backend.entries():
            if entry.id in seen:
                raise InvalidInput.at("backends", at, msg=f"{entry.id!r} is already offered by an earlier backend")
            seen.add(entry.id)
            offers.append((entry, backend))
    return offers


def _named(backends: Mapping[str, AnyBackend]) -> list[Offer]:
    return [(_entry(model, backend), backend) for model, backend in backends.items()]


def _entry(model: str, backend: AnyBackend) -> CatalogueEntry:
    for entry in backend.entries():
        if entry.id == model:
            return entry
    raise InvalidInput.at("backends", model, msg=f"{type(backend).__name__} does not offer this model")

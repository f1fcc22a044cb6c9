"""LoRA adapters on a vLLM server: a requested checkpoint is loaded there, and unloaded when others need room.

    adapters = LoraAdapters("http://localhost:8000", "/srv/adapters", max_loaded=8)
    backend = UpstreamBackend("http://localhost:8000/v1", adapters=adapters)

vLLM must run with `--enable-lora` and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, with a `--max-lora-rank` as high as the
adapters', and must see the folder. `modelyard.parts.upstream.adapters.slots` decides what to load and unload.
"""

import json
import os
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from modelyard.clock import SystemClock
from modelyard.errors import BackendError, InvalidInput, ModelyardError, Overloaded
from modelyard.flow import Call, Flow, arun, run
from modelyard.parts.upstream.adapters import slots
from modelyard.parts.upstream.adapters.calls import Server, ServerAnswer, wait_for_bell
from modelyard.parts.upstream.adapters.files import OURS, adapter_name, materialise, remove, sweep
from modelyard.parts.upstream.address import Address
from modelyard.protocols import Clock, ServedModel
from modelyard.threads import FairPool

MODELS, LOAD, UNLOAD = "/v1/models", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


class LoraAdapters:
    """The adapters of one vLLM server at `url`, with or without /v1, at most `max_loaded` at a time. Thread-safe.

    `folder` is this object's alone: an adapter's files lie there as long as the server holds it. If the server sees it
    under another path, give that as `path_seen_by_server`. A request waits at most `patience` seconds for room; a call
    of the server may take `timeout` seconds. No thread is started and no connection kept.
    """

    def __init__(
        self,
        url: str,
        folder: str | os.PathLike[str],
        *,
        max_loaded: int = 8,
        api_key: str | None = None,
        path_seen_by_server: str | None = None,
        patience: float = 30.0,
        timeout: float = 60.0,
        clock: Clock | None = None,
    ) -> None:
        if max_loaded < 1:
            raise InvalidInput.at("max_loaded", msg="must be at least 1")
        self._server = Server(Address(url.rstrip("/").removesuffix("/v1"), api_key), timeout)
        self._folder = Path(folder)
        self._seen = (path_seen_by_server or os.path.abspath(folder)).rstrip("/")
        self._patience, self._clock = patience, clock or SystemClock()
        self._slots = slots.Slots(max_loaded)
        self._lock, self._files = threading.Lock(), threading.Lock()
        self._pool = FairPool("modelyard-adapters", 8)

    # ---- one request

    @contextmanager
    def serving(self, model: ServedModel) -> Iterator[str]:
        """Yield the name under which the server answers with the model's checkpoint, which stays loaded meanwhile.

        It is the name of the base if the model has no other weights. Raises `Overloaded` when no room came free in
        time, `BackendError` when the server refused the adapter or did not answer, `ArtifactMissing`.
        """
        claim = self._new_claim(model)
        try:
            if claim is not None:
                run(self._serve(claim, model))
            yield model.base_model if claim is None else claim.name
        finally:
            self._leave(claim)

    @asynccontextmanager
    async def aserving(self, model: ServedModel) -> AsyncIterator[str]:
        """Yield the name that the server answers under, as `serving` does, without blocking the event loop."""
        claim = self._new_claim(model)
        try:
            if claim is not None:
                await arun(self._serve(claim, model), model.threads or self._pool.of(""))
            yield model.base_model if claim is None else claim.name
        finally:
            self._leave(claim)

    def lost(self, name: str) -> None:
        """Note that the server did not know the adapter of this name: its list is read before it is trusted again.

        To be called while the adapter is served; then serve it again.
        """
        with self._lock:
            self._slots.suspect = True

    # ---- all of them

    def reconcile(self, models: Iterable[ServedModel]) -> None:
        """Unload every adapter of ours except the adapters of `models`, and load these, as many as there is room for,
        in order.

        Adapters in use are unloaded when they are no longer in use. Files of other adapters are removed from the
        folder. To be called by the host when a model or checkpoint was deleted, or to have adapters ready before they
        are requested.
        """
        run(self._reconcile(tuple(models)))

    async def areconcile(self, models: Iterable[ServedModel]) -> None:
        """Do what `reconcile` does, without blocking the event loop."""
        await arun(self._reconcile(tuple(models)), self._pool.of(""))

    @property
    def loaded(self) -> tuple[str, ...]:
        """The names of the adapters that are believed to be loaded, the least recently used first."""
        with self._lock:
            there = [slot for slot in self._slots.slots.values() if slot.state is slots.AdapterState.LOADED]
        return tuple(slot.name for slot in sorted(there, key=lambda slot: slot.used))

    # ---- flows

    def _new_claim(self, model: ServedModel) -> slots.SlotClaim | None:
        """Return a claim, which must be left; None if the model has the weights of its base."""
        if not _has_weights(model):
            return None
        name = _name(model)
        return slots.SlotClaim(name, f"{self._seen}/{name}")

    def _leave(self, claim: slots.SlotClaim | None) -> None:
        if claim is not None:
            with self._lock:
                self._slots.leave(claim)

    def _serve(self, claim: slots.SlotClaim, model: ServedModel) -> Flow[None]:
        """Have the adapter loaded, and pinned for the claim."""
        deadline = self._clock.monotonic() + self._patience
        while True:
            with self._lock:
                step = self._slots.next(claim)
            if isinstance(step, slots.Serve):
                return
            if isinstance(step, slots.Load):
                yield from self._load(step.slot, model)
            elif not (yield from self._do(step, deadline)):
                raise Overloaded(self._no_room())

    def _reconcile(self, models: tuple[ServedModel, ...]) -> Flow[None]:
        wanted = {_name(model): model for model in models if _has_weights(model)}
        with self._lock:
            self._slots.suspect = True
        yield from self._remove(slots.Removal(lambda name: name not in wanted))
        yield Call(self._sweep)
        for model in list(wanted.values())[: self._slots.capacity]:
            claim = self._new_claim(model)
            assert claim is not None
            try:
                yield from self._serve(claim, model)
            finally:
                self._leave(claim)

    def _remove(self, removal: slots.Removal) -> Flow[None]:
        deadline = self._clock.monotonic() + self._patience
        try:
            while True:
                with self._lock:
                    step = self._slots.next_removal(removal)
                if isinstance(step, slots.Done) or not (yield from self._do(step, deadline)):
                    return
        finally:
            with self._lock:
                self._slots.leave(removal)

    # ---- their steps

    def _do(self, step: slots.List | slots.Unload | slots.Wait, deadline: float) -> Flow[bool]:
        """Do a step, or return False when it is too late to wait."""
        if isinstance(step, slots.List):
            yield from self._list()
        elif isinstance(step, slots.Unload):
            yield from self._unload(step.slot)
        else:
            left = deadline - self._clock.monotonic()
            if left <= 0:
                return False
            yield wait_for_bell(step.bell, self._clock, left)
        return True

    def _list(self) -> Flow[None]:
        try:
            found = _adapters_in((yield self._server.call("GET", MODELS)))
        except BaseException:
            with self._lock:
                self._slots.not_listed()
            raise
        with self._lock:
            self._slots.listed(found)

    def _load(self, slot: slots.Slot, model: ServedModel) -> Flow[None]:
        """Load an adapter; its waiting claims learn the outcome in any case."""
        error: Exception | None
        try:
            error = yield Call(lambda: self._materialise(model))
            if error is None:
                answer = yield self._server.call("POST", LOAD, {"lora_name": slot.name, "lora_path": slot.path})
                error = None if _is_loaded(answer) else _refusal(answer, slot.path)
        except BaseException:
            with self._lock:
                self._slots.unsure(slot)
            raise
        with self._lock:
            if error is None:
                self._slots.loaded(slot)
            else:
                self._slots.refused(slot, error)

    def _unload(self, slot: slots.Slot) -> Flow[None]:
        try:
            answer = yield self._server.call("POST", UNLOAD, {"lora_name": slot.name})
            if answer.status not in (200, 404):
                raise _refusal(answer, slot.path)
            yield Call(lambda: self._remove_files(slot.name))
        except BaseException:
            with self._lock:
                self._slots.unsure(slot)
            raise
        with self._lock:
            self._slots.unloaded(slot)

    # ---- files; one at a time, so that none is removed that has just become wanted

    def _materialise(self, model: ServedModel) -> Exception | None:
        """Write the files; return the error if that fails."""
        with self._files:
            try:
                materialise(model, self._folder / _name(model))
            except ModelyardError as error:
                return error
            except OSError as error:
                return BackendError(f"the folder of the adapters cannot be written: {error.strerror}")
        return None

    def _remove_files(self, name: str) -> None:
        with self._files:
            remove(self._folder / name)

    def _sweep(self) -> None:
        with self._files:
            with self._lock:
                there = frozenset(self._slots.slots)
            sweep(self._folder, keep=there)

    def _no_room(self) -> str:
        return (
            f"no room for one more adapter within {self._patience:g} seconds: all {self._slots.capacity} are in use; "
            "try again, or raise max_loaded and the server's --max-loras"
        )


def _has_weights(model: ServedModel) -> bool:
    return model.checkpoint is not None and bool(model.checkpoint.files)


def _name(model: ServedModel) -> str:
    assert model.checkpoint is not None
    return adapter_name(model.checkpoint)


# ---- answers of the server ------------------------------------------------------------------------------------------


def _adapters_in(answer: ServerAnswer) -> Mapping[str, str]:
    if answer.status != 200:
        raise _refusal(answer, "")
    try:
        cards = json.loads(answer.body)["data"]
        return {card["id"]: str(card.get("root")) for card in cards if OURS.fullmatch(card["id"])}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BackendError(f"the server's {MODELS} is not a list of models") from None


def _is_loaded(answer: ServerAnswer) -> bool:
    return answer.status == 200 or (answer.status == 400 and b"already been loaded" in answer.body)


def _refusal(answer: ServerAnswer, path: str) -> BackendError:
    message = _message(answer)
    if answer.status == 401:
        hint = "give its api_key"
    elif answer.status == 404 and message is None:
        hint = "start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
    elif answer.status == 404:
        hint = f"it must be able to read {path}; if it sees the folder elsewhere, set path_seen_by_server"
    else:
        hint = "see its message"
    shown = f": {message[:500]}" if message else ""
    return BackendError(f"the server refused {answer.path} with status {answer.status}; {hint}{shown}")


def _message(answer: ServerAnswer) -> str | None:
    """Return the message of an error, as newer or older releases send it; None for an error that is not vLLM's own."""
    try:
        body: Any = json.loads(answer.body)
        error = body.get("error", body)
        return str(error["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None

"""The messages that a response answers: its own input after the messages of the responses before it."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from modelyard.domain.completion import Message, Role
from modelyard.domain.identity import Principal
from modelyard.domain.job import Job
from modelyard.errors import InvalidInput, NotFound
from modelyard.parts.responses.formats.items import ItemReference, ResponseItem, messages_of, stored_items
from modelyard.parts.responses.formats.request import ParsedResponse
from modelyard.parts.responses.records import RESPONSE, ModelResponse, response_of_item
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

MOST_TURNS = 1000
"""How many responses may continue one another."""

REMOVED_AT_ONCE = 4
"""How many responses that have expired are removed when one is stored."""


def find_response(runtime: Runtime, snapshot: Snapshot, principal: Principal, id: str) -> ModelResponse:
    found = get_or_none(snapshot, ModelResponse, id)
    if found is None or not principal.scope.covers(found.entity, found.project) or is_expired(runtime, found):
        raise NotFound("response", id)
    return found


def is_expired(runtime: Runtime, response: ModelResponse) -> bool:
    kept = timedelta(days=runtime.settings.response_days)
    return response.ended and response.created_at + kept <= runtime.clock.now()


def remove_expired(runtime: Runtime, tx: Tx, entity: str) -> None:
    """Remove a few of the oldest responses of an entity, if they have expired."""
    for old in tx.page(ModelResponse, "by_entity", entity, limit=REMOVED_AT_ONCE):
        if is_expired(runtime, old):
            tx.remove(ModelResponse, old.id)


class Conversation:
    """The responses and items that a principal's requests refer to, in one snapshot of the store."""

    def __init__(self, runtime: Runtime, snapshot: Snapshot, principal: Principal) -> None:
        self._runtime, self._snapshot, self._principal = runtime, snapshot, principal

    def of_request(self, parsed: ParsedResponse) -> tuple[Message, ...]:
        before = [] if parsed.previous_id is None else self._before(parsed.previous_id)
        return with_instructions(parsed, messages_of([*before, *self._resolved(parsed.items)]))

    def of_response(self, response: ModelResponse) -> tuple[Message, ...]:
        """Return the messages of a response, its answer last. Raises `InvalidInput` if an earlier response is gone."""
        return messages_of(self._items(response.previous_id, [response]))

    def _before(self, id: str) -> list[ResponseItem]:
        response = self._find(id)
        if not response.ended:
            raise InvalidInput.at("previous_response_id", msg="names a response that has not ended yet; wait for it")
        return self._items(response.previous_id, [response])

    def _items(self, previous_id: str, turns: list[ModelResponse]) -> list[ResponseItem]:
        """Return the items of responses, the last first, and of all before them."""
        size = _size(turns[0])
        while previous_id:
            turns.append(self._find(previous_id))
            previous_id, size = turns[-1].previous_id, size + _size(turns[-1])
            longest = self._runtime.settings.max_chat_body
            if len(turns) > MOST_TURNS or size > longest:
                limit = f"{MOST_TURNS} responses or {longest} characters"
                msg = f"continues more than {limit}: send what matters of them as input"
                raise InvalidInput.at("previous_response_id", msg=msg, type="too_long")
        items: list[ResponseItem] = []
        for turn in reversed(turns):
            items += [*self._resolved(stored_items(turn.input)), *stored_items(turn.output)]
        return items

    def _find(self, id: str) -> ModelResponse:
        try:
            return find_response(self._runtime, self._snapshot, self._principal, id)
        except NotFound:
            msg = f"names, or continues, the response {id!r}, which does not exist: it was not stored, or was deleted"
            raise InvalidInput.at("previous_response_id", msg=msg) from None

    def _resolved(self, items: Sequence[ResponseItem]) -> Iterator[ResponseItem]:
        for at, item in enumerate(items):
            yield self._referred(item, at) if isinstance(item, ItemReference) else item

    def _referred(self, reference: ItemReference, at: int) -> ResponseItem:
        """Return the item that a reference names: it is in the response that its id names."""
        found: Mapping[str, Any] | None = None
        try:
            response = find_response(self._runtime, self._snapshot, self._principal, response_of_item(reference.id))
            found = next((one for one in (*response.output, *response.input) if one["id"] == reference.id), None)
        except NotFound:
            pass
        if found is None or found.get("type") == "item_reference":
            msg = f"names the item {reference.id!r}, which does not exist: its response was not stored, or was deleted"
            raise InvalidInput.at("input", at, "id", msg=msg)
        return stored_items([found])[0]


def read_by(snapshot: Snapshot, job: Job) -> Iterator[tuple[type, str]]:
    """Yield the responses that a response in the background continues, or takes items of, and itself."""
    left, seen = [job.spec[RESPONSE]], set[str]()
    while left:
        found = get_or_none(snapshot, ModelResponse, left.pop())
        if found is not None and found.id not in seen:
            seen.add(found.id)
            yield ModelResponse, found.id
            left += [found.previous_id, *(response_of_item(item["id"]) for item in found.input)]


def with_instructions(parsed: ParsedResponse, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    return messages if parsed.instructions is None else (Message(Role.SYSTEM, parsed.instructions), *messages)


def _size(response: ModelResponse) -> int:
    return sum(len(str(item)) for item in (*response.input, *response.output))

"""Responses: answers of models that the platform keeps, so that the next request can continue after one."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

import attrs

from modelyard.domain.record import EMPTY, Index, Record, frozen_mapping, sequence_field

RESPONSE_JOB = "response"
"""The kind of the jobs of this part."""
RESPONSE = "response_id"
"""The member of a job's spec that names its response."""


class ResponseStatus(StrEnum):
    """The states of a response. A response in the background is first queued."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    CANCELLED = "cancelled"


RUNNING = (ResponseStatus.QUEUED, ResponseStatus.IN_PROGRESS)


@attrs.frozen
class ModelResponse:
    """The answer of a model to a list of items, as a list of items.

    `input` and `output` are items as JSON data, each with an `id`; `input` has the items of this request only, and
    `previous_id` names the response that it continues ("" for none). `parameters` is what else was requested, as JSON
    data; of one that has ended, its `model` is the version of a variant that answered. `reason` is why it is
    incomplete. `error` has a `code` and a `message` if it failed. `usage` is empty until it has ended. `completion_id`
    is the id of the ledger entry. `price` holds the prices in force, in USD as decimal text. `checkpoint_id` is the
    checkpoint of a trained model that answered. `job_id` is the job of a response in the background.
    """

    id: str
    entity: str
    project: str
    model: str
    created_at: datetime
    status: ResponseStatus
    input: tuple[Mapping[str, Any], ...] = ()
    output: tuple[Mapping[str, Any], ...] = ()
    parameters: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    metadata: Mapping[str, str] = attrs.field(converter=frozen_mapping, default=EMPTY)
    usage: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    previous_id: str = ""
    completed_at: datetime | None = None
    reason: str = ""
    error: Mapping[str, str] = attrs.field(converter=frozen_mapping, default=EMPTY)
    completion_id: str = ""
    price: Mapping[str, str] = attrs.field(converter=frozen_mapping, default=EMPTY)
    checkpoint_id: str | None = None
    job_id: str = ""
    seq: int = sequence_field()

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.status not in RUNNING

    @property
    def text(self) -> str:
        """The text of the output."""
        parts = [part for item in self.output if item["type"] == "message" for part in item["content"]]
        return "".join(part["text"] for part in parts)

    @property
    def reasoning(self) -> str:
        """The text of the output's reasoning."""
        parts = [part for item in self.output if item["type"] == "reasoning" for part in item["content"]]
        return "".join(part["text"] for part in parts)

    @property
    def calls(self) -> tuple[Mapping[str, Any], ...]:
        """The function calls of the output, each with its `call_id`, `name` and `arguments`."""
        return tuple(item for item in self.output if item["type"] == "function_call")


PREFIX = "resp_"
"""How the id of a response begins."""


def item_id(prefix: str, response_id: str, place: int) -> str:
    """Return the id of an item of a response, from which `response_of_item` finds the response."""
    return f"{prefix}_{response_id.removeprefix(PREFIX)}_{place}"


def response_of_item(id: str) -> str:
    """Return the id of the response that an item with this id would belong to."""
    return PREFIX + id.partition("_")[2].rpartition("_")[0]


RECORDS = (
    Record(
        ModelResponse,
        "responses",
        ("id",),
        indexes={
            "by_entity": Index(("entity",)),
            "by_project": Index(("entity", "project")),
            "by_age": Index((), ("created_at",)),
        },
        sequence="seq",
        domain=("entity", "entity"),
        texts="created_at",
    ),
)

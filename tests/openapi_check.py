"""Whether what goes over the wire is what the OpenAPI document says."""

import json
import re
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator


class Document:
    """An OpenAPI document, to check requests and answers against."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        # A parameter may take several segments, so the path that says more itself comes first.
        most_exact_first = sorted(document["paths"], key=lambda path: (-path.count("/"), path.count("{")))
        self._patterns = [(_pattern(path), path) for path in most_exact_first]

    def operation(self, method: str, path: str) -> Mapping[str, Any] | None:
        """The operation that answers a request, or None."""
        for pattern, template in self._patterns:
            if pattern.fullmatch(path):
                operation: Mapping[str, Any] | None = self.document["paths"][template].get(method.lower())
                return operation
        return None

    def check_request(self, method: str, path: str, body: Any) -> None:
        """A body that was accepted is one that is described."""
        operation = self.operation(method, path)
        assert operation is not None, f"{method} {path} is not described"
        if "requestBody" in operation:
            self._validate(operation["requestBody"]["content"]["application/json"]["schema"], body)

    def check_answer(self, method: str, path: str, status: int, media: str, raw: bytes) -> None:
        """An answer has a status, a media type and a body that are described."""
        operation = self.operation(method, path)
        if operation is None or status == 304 or (status == 204 and method == "OPTIONS"):
            return
        responses = operation["responses"]
        said = responses.get(str(status)) or responses["default"]
        media = media.partition(";")[0]
        assert media in said["content"], f"{method} {path} answered {status} with {media}"
        for value in _values(media, raw):
            self._validate(said["content"][media]["schema"], value)

    def _validate(self, schema: Mapping[str, Any], value: Any) -> None:
        assert schema, "an empty schema says nothing"
        Draft202012Validator({**schema, "components": self.document["components"]}).validate(value)


def _pattern(path: str) -> re.Pattern[str]:
    escaped = "".join("[^/].*" if part.startswith("{") else re.escape(part) for part in re.split(r"({\w+})", path))
    return re.compile(escaped)


def _values(media: str, raw: bytes) -> list[Any]:
    if media == "application/json":
        return [json.loads(raw)]
    if media == "application/jsonl":
        return [json.loads(line) for line in raw.splitlines()]
    if media == "text/event-stream":
        events = [event[6:] for event in raw.split(b"\n\n") if event.startswith(b"data: ")]
        return [value for event in events if event != b"[DONE]" and "error" not in (value := json.loads(event))]
    return []

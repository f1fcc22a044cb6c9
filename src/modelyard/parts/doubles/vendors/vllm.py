"""What vLLM refuses beyond what the platform does."""

from collections.abc import Iterator, Mapping
from typing import Any

from modelyard.parts.doubles.vendors.refusal import Refusal, member, objects

SCHEMES = ("http:", "https:", "data:", "file:")


def of_any(body: Mapping[str, Any]) -> Iterator[Refusal]:
    """Yield what is refused of the body of a request in any format."""
    for turn in objects(body.get("messages")):
        for part in objects(turn.get("content")):
            url = member(part, "image_url", "url")
            if isinstance(url, str) and not url.lower().startswith(SCHEMES):
                yield Refusal("The URL must be either a HTTP, data or file URL.")

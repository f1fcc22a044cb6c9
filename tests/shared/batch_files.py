"""Input files of batches, and what is in their output files."""

import json
from collections.abc import Iterable
from typing import Any

from modelyard import Platform

CHAT = "/v1/chat/completions"


def asking(custom_id: str, content: str = "hi", url: str = CHAT, **body: Any) -> bytes:
    """The line of a request."""
    asked = {"model": "echo", "messages": [{"role": "user", "content": content}], **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": asked}).encode() + b"\n"


def uploaded(platform: Platform, lines: Iterable[bytes], **options: Any) -> str:
    """The id of an input file of these lines."""
    return platform.compat.files.create("requests.jsonl", lines, purpose="batch", **options).id


def lines_of(platform: Platform, file_id: str | None) -> list[Any]:
    """What a file of a batch says."""
    if file_id is None:
        return []
    with platform.compat.files.open(file_id) as file:
        return [json.loads(line) for line in file]

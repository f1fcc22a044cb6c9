"""Record any server of the chat-completion format in three lines, and replay it without the server."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from modelyard.domain.catalogue import Pricing
from modelyard.parts.doubles.cassette.cassette import AnyBackend, use_cassette
from modelyard.parts.upstream.backend import UpstreamBackend
from modelyard.parts.upstream.models import VLLM, offer


@contextmanager
def record(
    base_url: str,
    api_key: str | None,
    path: str | os.PathLike[str],
    *,
    models: Iterable[str],
    context_length: int = 16_384,
    **options: Any,
) -> Iterator[AnyBackend]:
    """Yield a backend that answers from the cassette `path`, and asks the server for what is missing there.

    With no `api_key` (None) nothing is asked and nothing is recorded, as in CI; a server without keys takes any. The
    `models` are free of charge, and everything that a request asks for is passed on: the server refuses what it cannot
    do. `context_length` is in tokens, prompt and answer together. `options` are those of `use_cassette`.

        with record("https://api.example.com/v1", key, "cassettes/desk.jsonl", models=["small"]) as backend:
            with open_platform(backend=backend) as platform:
                platform.chat.complete(model="small", messages="Is anybody there?")

    Raises `MissingExtra` to record without the extra `upstream`, and what `use_cassette` raises.
    """
    if api_key is None:
        yield use_cassette(path, **options)
        return
    offers = [offer(model, context_length=context_length, pricing=Pricing(), capabilities=VLLM) for model in models]
    with UpstreamBackend(base_url, api_key, models=offers) as server:
        yield use_cassette(path, server, **{"mode": "new", **options})

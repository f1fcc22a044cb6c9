"""The operations of the API as a page for people."""

import re

from modelyard import open_platform
from modelyard.asgi import Endpoint, Request


def test_the_operations_are_a_page_for_people_that_loads_nothing_from_elsewhere() -> None:
    with open_platform() as platform:
        found = Endpoint(platform).handle(Request("GET", "/docs", "", [], iter(())))
    assert (found.status, dict(found.headers)["content-type"]) == (200, "text/html; charset=utf-8")
    assert isinstance(found.body, bytes)
    text = found.body.decode()
    assert "<code>POST /inference/v1/chat/completions</code> Create a chat completion." in text
    assert 'href="openapi.json"' in text
    assert not re.search(r"<script|https?://", text)

"""What a server remembers of the requests of an entity goes with the entity."""

from http_client import Client
from modelyard import open_platform
from modelyard.formats.chat.kept_fast import KeptMembers
from modelyard.http.endpoint import Endpoint
from modelyard.testing import ManualClock

TOOLS = [{"type": "function", "function": {"name": "of_ada", "parameters": {"type": "object"}}}]


def test_what_an_entity_sent_is_forgotten_with_it() -> None:
    with open_platform(clock=ManualClock()) as platform:
        kept = platform._runtime.cache.slot(KeptMembers)
        for entity in ("acme", "globex"):
            body = {"model": "echo", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
            client = Client(platform, Endpoint(platform), platform.keys.create(entity).secret)
            assert client.send("POST", "/inference/v1/chat/completions", body).status == 200
        assert {*kept._kept} == {"acme", "globex"}
        platform.delete_entity("acme")
        assert {*kept._kept} == {"globex"}

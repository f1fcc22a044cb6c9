"""The pages of rollouts, with the sequence and its boundary drawn."""

import re
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from modelyard import Platform, open_platform
from modelyard.http.message import Request, Response
from modelyard.parts.dashboard.app import Dashboard
from modelyard.parts.dashboard.exchange import COOKIE
from rolled_out import ALIAS, GUARD, NAME, trained


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform(entity="acme") as platform:
        trained(platform)
        yield platform


class Reader:
    """Reads pages, and sends their forms, as a browser does that has logged in."""

    def __init__(self, platform: Platform) -> None:
        self.dashboard, self.cookie = Dashboard(platform), ""
        self.send("POST", "login", key=platform.keys.create("acme").secret)

    def send(self, method: str, path: str, **form: str) -> Response:
        headers = [("host", "yard.example"), ("cookie", f"{COOKIE}={self.cookie}")]
        answer = self.dashboard.handle(
            Request(method, f"/dashboard/{path}", "", headers, iter([urlencode(form).encode()]))
        )
        for name, value in answer.headers:
            if name == "set-cookie":
                self.cookie = value.split(";")[0].split("=", 1)[1]
        return answer

    def page(self, path: str) -> str:
        answer = self.send("GET", path)
        assert answer.status == 200, path
        assert isinstance(answer.body, bytes)
        return answer.body.decode()


def test_a_rollout_is_shown_with_its_sequence_and_stopped(platform: Platform) -> None:
    reader = Reader(platform)
    assert "modelyard rollouts start desk/support 7" in reader.page("rollouts")
    rollout = platform.rollouts.start(NAME, 1, canary=[0.5, 1], guard=GUARD, least=500, also={"errors": 0.5})
    for user in range(40):
        answer = platform.chat.complete(model=ALIAS, messages="hello", user=f"user {user}", max_tokens=2)
        platform.rollouts.score(answer.id, True)
        if user % 8 == 7:
            platform.rollouts.look(rollout.id)
    assert "desk/support:prod" in reader.page("rollouts")
    page = reader.page(f"rollouts/{rollout.id}")
    for text in ("The sequence", "<svg ", "boundary", "at least", "at most", "thumbs, 50% of the users", "Limits"):
        assert text in page, text
    token = re.search(r'name="token" value="([0-9a-f]+)"', page)
    assert token is not None
    assert reader.send("POST", f"rollouts/{rollout.id}/stop", token=token[1]).status == 303
    assert platform.rollouts.get(rollout.id).state == "stopped"

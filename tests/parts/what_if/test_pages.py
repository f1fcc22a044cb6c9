"""The pages of questions to stored traffic."""

from collections.abc import Iterator

import pytest

from modelyard import Platform, ScriptedBackend, open_platform
from modelyard.domain.catalogue import Pricing
from modelyard.http.message import Request
from modelyard.parts.dashboard.app import Dashboard
from modelyard.parts.dashboard.exchange import COOKIE

JUDGE = {"type": "llm_judge", "model": "judge", "prompt": "{output}"}


@pytest.fixture
def platform() -> Iterator[Platform]:
    def answer(request: object) -> str:
        return "yes" if "new" in str(request) else "no"

    backend = ScriptedBackend(answer, models=["old", "new", "judge"], pricing=Pricing("0.001", "0.002"))
    with open_platform(entity="acme", backend=backend) as platform:
        yield platform


class Reader:
    """Reads pages as a browser does that has logged in."""

    def __init__(self, platform: Platform) -> None:
        self.dashboard, self.cookie = Dashboard(platform), ""
        self.send("POST", "login", f"key={platform.keys.create('acme').secret}")

    def send(self, method: str, path: str, form: str = "") -> str:
        headers = [("host", "yard.example"), ("cookie", f"{COOKIE}={self.cookie}")]
        answer = self.dashboard.handle(Request(method, f"/dashboard/{path}", "", headers, iter([form.encode()])))
        for name, value in answer.headers:
            if name == "set-cookie":
                self.cookie = value.split(";")[0].split("=", 1)[1]
        assert isinstance(answer.body, bytes)
        return answer.body.decode()


def test_a_question_is_shown_with_coverage_and_what_differs_most(platform: Platform) -> None:
    reader = Reader(platform)
    assert "modelyard what-if ask desk/support:step7" in reader.send("GET", "what-ifs")
    for at in range(4):
        platform.chat.complete(model="old", messages=f"question {at}", store=True)
    platform.clock.sleep(0.001)
    found = platform.traffic.what_if(model="new", judge=JUDGE, budget="20")
    assert found.id is not None
    assert "new" in reader.send("GET", "what-ifs")
    page = reader.send("GET", f"what-ifs/{found.id}")
    for text in ("coverage", "effective users", "Rows that differ most", "4 rows", "instead of", "no estimate"):
        assert text in page, text

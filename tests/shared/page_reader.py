"""A reader of dashboard pages who has logged in."""

import re
from urllib.parse import urlencode

from modelyard import Platform
from modelyard.http.message import Request, Response
from modelyard.parts.dashboard.app import Dashboard
from modelyard.parts.dashboard.exchange import COOKIE


class Reader:
    """Reads pages, and sends their forms, as a browser does that has logged in."""

    def __init__(self, platform: Platform) -> None:
        self.dashboard, self.cookie = Dashboard(platform), ""
        self.send("POST", "login", key=platform.keys.create("acme").secret)

    def send(self, method: str, path: str, **form: str) -> Response:
        path, _, query = path.partition("?")
        headers = [("host", "yard.example"), ("cookie", f"{COOKIE}={self.cookie}")]
        body = iter([urlencode(form).encode()])
        answer = self.dashboard.handle(Request(method, f"/dashboard/{path}", query, headers, body))
        for name, value in answer.headers:
            if name == "set-cookie":
                self.cookie = value.split(";")[0].split("=", 1)[1]
        return answer

    def page(self, path: str) -> str:
        answer = self.send("GET", path)
        assert answer.status == 200, path
        assert isinstance(answer.body, bytes)
        return answer.body.decode()

    def post(self, path: str, **form: str) -> str:
        """Send a form, and return where it leads, or the page that says what is wrong."""
        found = re.search(r'name="token" value="([0-9a-f]+)"', self.page("reviews"))
        assert found is not None
        answer = self.send("POST", path, token=found[1], **form)
        text = answer.body.decode() if isinstance(answer.body, bytes) else ""
        return dict(answer.headers).get("location", text).removeprefix("/dashboard/")

"""What people see of variants: pages and commands."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner, Result

from modelyard import Platform, open_platform
from modelyard.cli import main
from modelyard.http.message import Request, Response
from modelyard.parts.dashboard.app import Dashboard
from modelyard.parts.dashboard.exchange import COOKIE

NAME = "desk/support"
FILE = """name = "desk/support"
model = "echo"
system = "Be <b>brief</b>."
"""


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform(entity="acme") as platform:
        yield platform


class Reader:
    """Reads pages, and sends their forms, as a browser does that has logged in."""

    def __init__(self, platform: Platform) -> None:
        self.dashboard, self.cookie = Dashboard(platform), ""
        self.send("POST", "login", key=platform.keys.create("acme").secret)

    def send(self, method: str, path: str, query: str = "", **form: str) -> Response:
        headers = [("host", "yard.example"), ("cookie", f"{COOKIE}={self.cookie}")]
        body = iter([urlencode(form).encode()])
        answer = self.dashboard.handle(Request(method, f"/dashboard/{path}", query, headers, body))
        for name, value in answer.headers:
            if name == "set-cookie":
                self.cookie = value.split(";")[0].split("=", 1)[1]
        return answer

    def page(self, path: str, query: str = "") -> str:
        answer = self.send("GET", path, query)
        assert answer.status == 200, path
        assert isinstance(answer.body, bytes)
        return answer.body.decode()

    def post(self, path: str, **form: str) -> str:
        """Send a form, and return where it leads."""
        found = re.search(r'name="token" value="([0-9a-f]+)"', self.page("variants"))
        assert found is not None
        answer = self.send("POST", path, token=found[1], **form)
        text = answer.body.decode() if isinstance(answer.body, bytes) else ""
        return dict(answer.headers).get("location", text).removeprefix("/dashboard/")


def test_pages_show_versions_how_they_differ_and_what_points_to_them(platform: Platform) -> None:
    reader = Reader(platform)
    assert ">Variants<" not in reader.page("models")
    assert "No variant yet" in reader.page("variants")
    platform.variants.read_file(FILE)
    platform.variants.publish(NAME, model="echo", system="Be <i>long</i>.", note="<script>")
    for number in (1, 2):
        platform.variants.promote(NAME, number)
    platform.evaluations.run("quiz", f"variants/{NAME}", [{"prompt": "a", "expected": "a"}])
    assert ">Variants<" in reader.page("models")
    assert "prod → 2" in reader.page("variants")
    of = f"variants/{platform.variants.get(NAME).id}"
    shown = reader.page(of)
    assert "Back to 1" in shown
    assert "&lt;script&gt;" in shown
    assert "<script>" not in shown
    differs = reader.page(f"{of}/diff", "before=1&after=2")
    assert "<del>-system = &quot;Be &lt;b&gt;brief&lt;/b&gt;.&quot;\n</del>" in differs
    assert "<ins>+system = &quot;Be &lt;i&gt;long&lt;/i&gt;.&quot;\n</ins>" in differs
    one = reader.page(f"{of}/2")
    assert "quiz" in one
    assert platform.variants.version(NAME).digest in one
    assert reader.send("GET", f"{of}/9").status == 404


def test_forms_publish_promote_and_go_back(platform: Platform) -> None:
    reader = Reader(platform)
    first = reader.post("variants", file=FILE.replace("\n", "\r\n"), note="the first")
    assert platform.variants.file(NAME) == FILE
    assert reader.post("variants", file=FILE.replace("brief", "long")).endswith("/2")
    assert "the first" in reader.page(first)
    of = first.rpartition("/")[0]
    assert reader.post(f"{of}/1/promote", alias="prod", evaluation="") == of
    reader.post(f"{of}/2/promote", alias="prod")
    assert platform.variants.version(f"{NAME}@prod").number == 2
    reader.post(f"{of}/rollback", alias="prod")
    assert platform.variants.version(f"{NAME}@prod").number == 1
    assert "no completed run" in reader.post(f"{of}/2/promote", alias="prod", evaluation="quiz")
    assert "line 1, column 1" in reader.post("variants", file=FILE + 'template = "{a.b}"')
    assert reader.send("POST", f"{of}/2/promote", alias="prod").status == 403


# ---- commands


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "yard.db"
    open_platform(path=path).close()
    return path


def run(store: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["variants", *words, "--store", str(store)])


def out(store: Path, *words: str) -> str:
    result = run(store, *words)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
def test_a_file_is_imported_compared_promoted_and_exported(store: Path, tmp_path: Path) -> None:
    written = tmp_path / "support.toml"
    written.write_text(FILE)
    assert out(store, "import", str(written)).startswith("version 1, ")
    assert out(store, "export", NAME) == FILE
    written.write_text(FILE.replace("brief", "long"))
    assert out(store, "import", str(written), "--note", "longer").startswith("version 2, ")
    assert out(store, "import", str(written)).startswith("version 2, ")
    assert '+system = "Be <b>long</b>."\n' in out(store, "diff", f"{NAME}@1", NAME)
    assert out(store, "promote", NAME, "1") == "prod points to version 1\n"
    assert out(store, "promote", NAME, "2") == "prod points to version 2, before to version 1\n"
    assert out(store, "rollback", NAME) == "prod points to version 1, before to version 2\n"
    assert "longer" in out(store, "show", NAME)
    assert "prod" in out(store, "show", NAME)
    assert '"last_number": 2' in out(store, "list", "--json")
    refused = run(store, "promote", NAME, "2", "--not-worse", "quiz")
    assert refused.exit_code == 1
    assert "no completed run" in refused.output
    assert run(store, "delete", NAME).exit_code == 1
    assert out(store, "unalias", NAME, "prod") == "removed prod\n"
    assert out(store, "delete", NAME) == "deleted desk/support\n"
    assert run(store, "export", NAME).exit_code == 1


@pytest.mark.slow
def test_a_file_that_does_not_fit_is_refused_at_its_place(store: Path, tmp_path: Path) -> None:
    written = tmp_path / "support.toml"
    for content, place in ((b"model = 1", "file.name"), (b"\xff\xfe", "file"), (b"template = '{x.y}'", "file")):
        written.write_bytes(content)
        refused = run(store, "import", str(written))
        assert refused.exit_code == 1
        assert place in refused.output

"""What pages tell: where to begin, one table of usage, jobs of a kind, a row's trials, a whole conversation."""

import re
from html import escape, unescape
from typing import Any

import pytest

from modelyard import Pricing, Rollout, ScriptedBackend, Trajectory, gather, open_platform
from modelyard.backends import EchoBackend
from modelyard.domain.identity import Principal, host
from modelyard.domain.job import JobSummary
from modelyard.errors import JobFailed
from modelyard.http.message import Request
from modelyard.parts.dashboard.app import Dashboard
from modelyard.parts.dashboard.pages import jobs
from modelyard.parts.reports.operations import operations
from modelyard.platform.listing import Listing
from modelyard.platform.platform import Platform
from modelyard.platform.usage.service import Ledger

ROWS = [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok"}]}]


def page(platform: Platform, path: str = "", query: str = "", reader: Principal | None = None) -> str:
    dashboard = Dashboard(platform, reader=reader or host())
    body: Any = dashboard.handle(Request("GET", f"/dashboard/{path}", query, [("host", "127.0.0.1")], iter([b""]))).body
    return (body if isinstance(body, bytes) else b"".join(body)).decode()


def test_an_empty_store_says_how_to_begin_until_something_was_done() -> None:
    with open_platform() as platform:
        first = page(platform)
        assert first.count("<pre><code>modelyard ") == 3
        assert "No job is running" not in first
        platform.chat.complete(model="echo", messages="x")
        assert "Begin here" not in page(platform)


def test_usage_is_one_table_by_what_is_chosen() -> None:
    with open_platform() as platform:
        platform.chat.complete(model="echo", messages="x", entity="acme", project="support")
        assert "Begin here" not in page(platform)
        for by, shown in (("", platform.clock.now().strftime("%Y-%m-%d")), ("by=model", "echo"), ("by=entity", "acme")):
            found = page(platform, "usage", by)
            table, *others = re.findall("<table.*?</table>", found, re.DOTALL)
            assert shown in table
            assert len(others) == 1, "the ledger"
        platform.usage.set_budget("5", entity="acme")
        assert "warns at" not in page(platform, "usage")
        platform.usage.set_budget("6", entity="acme", warn_at="0.5")
        assert "warns at" in page(platform, "usage")
        assert page(platform, "usage", "by=nothing") == page(platform, "usage")


def test_jobs_are_chosen_by_kind_and_status() -> None:
    with open_platform() as platform:
        model = platform.models.create("m", project="p", base_model="tabular-mini")
        platform.training.sft(model, ROWS).wait()
        platform.evaluations.run("quiz", "echo", [{"prompt": "a", "expected": "a"}], "exact_match", project="p")
        names = {kind: re.findall(r">(sft|evaluate) <small", page(platform, "jobs", kind)) for kind in _KINDS}
        assert names == _KINDS
        assert "kind=sft" in page(platform, "jobs", "kind=sft&status=queued")
        assert 'name="kind" value="sft"' in page(platform, "jobs", "kind=sft")


_KINDS = {
    "": ["evaluate", "sft"],
    "kind=sft": ["sft"],
    "kind=evaluate": ["evaluate"],
    "kind=sft&status=succeeded": ["sft"],
    "kind=sft&status=failed": [],
    "kind=rl": [],
    "kind=sft&q=p/m": ["sft"],
    "kind=evaluate&q=p/m": [],
}


def test_what_a_row_asked_is_shown_once_and_each_trial_has_its_address() -> None:
    rows = [{"prompt": f"question {at}", "expected": "a"} for at in range(2)]
    with open_platform(backend=ScriptedBackend(lambda _: "an answer", models=["m"])) as platform:
        run = platform.evaluations.run("quiz", "m", rows, "exact_match", project="p", trials=3).run
        found = page(platform, f"runs/{run.id}/rows")
        assert found.count("<pre>question 1</pre>") == 1
        assert re.findall(">Row ([0-9]+)<", found) == ["0", "1"]
        assert re.findall(">Trial ([0-9]+)<", found) == ["0", "1", "2"] * 2
        addresses = re.findall(r'href="[^"]*rows\?([^"]*)">(?:Row|Trial) ', found)
        assert len(set(addresses)) == 8
        one = page(platform, f"runs/{run.id}/rows", "row=1&trial=2")
        assert re.findall(">Trial ([0-9]+)<", one) == ["2"]
        assert ", from row" not in found
        assert ", from row 1</h1>" in page(platform, f"runs/{run.id}/rows", "from=1")


@pytest.mark.parametrize("turns", [1, 2], ids=["one turn", "several"])
def test_a_trajectory_shows_every_turn_before_its_answer(turns: int) -> None:
    with open_platform() as platform:
        model = platform.models.create("m", project="p", base_model="tabular-mini")

        def attempt(seed: int) -> Trajectory:
            rollout = Rollout(platform.chat, model=model, max_tokens=5, seed=seed)
            answers = [rollout.ask(words).message.text for words in ("one", "three")[:turns]]
            said.append(answers[0])
            return rollout.trajectory(reward=len(said))

        said: list[str] = []
        job = platform.training.rl(model, [gather(attempt, range(2))])
        job.wait()
        found = page(platform, f"jobs/{job.id}")
    assert "1 group;" in found
    assert said
    asked = ["one"] if turns == 1 else [f"user: one\nassistant: {words}\nuser: three" for words in said]
    for words in asked:
        assert f"<pre>{escape(words)}</pre>" in found


def test_commands_to_begin_with_are_for_whoever_has_the_machine_and_pages_for_who_has_a_key() -> None:
    with open_platform() as platform:
        tenant = platform.keys.authenticate(platform.keys.create("acme").secret)
        shown = page(platform, reader=tenant)
        assert re.findall('[0-9]. [A-Z][^<]*<a href="/dashboard/([a-z]+)"', shown) == ["catalogue", "models", "runs"]
        assert "modelyard serve" not in shown
        assert "No job is running" not in shown
        platform.acting_as(tenant).chat.complete(model="echo", messages="x")
        assert "Begin here" not in page(platform, reader=tenant)


def test_usage_is_not_summed_to_find_out_whether_there_is_any(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_platform() as platform:
        platform.chat.complete(model="echo", messages="x")
        sums: list[Any] = []
        total = Ledger.total
        monkeypatch.setattr(Ledger, "total", lambda self, **period: sums.append(period) or total(self, **period))
        assert "Begin here" not in page(platform)
        assert sums
        assert all(period.get("since") for period in sums)


def test_the_kinds_of_jobs_are_listed_without_reading_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_platform() as platform:
        platform.evaluations.run("quiz", "echo", [{"prompt": "a", "expected": "a"}], "exact_match", project="p")
        assert "found among the newest 1,000." in page(platform, "jobs", "q=evaluate")
        assert "found among the newest 1,000 of evaluate." in page(platform, "jobs", "q=evaluate&kind=evaluate")
        read: list[Any] = []
        iterate = Listing.__iter__
        monkeypatch.setattr(Listing, "__iter__", lambda self: (read.append(one) or one for one in iterate(self)))
        shown = page(platform, "jobs")
        assert "The newest first." in page(platform, "jobs", "kind=evaluate")
        assert not [one for one in read if isinstance(one, JobSummary)]
        assert set(re.findall(r"jobs\?kind=(\w+)", shown)) == {*platform.job_types}
        assert "The newest first." in shown


def test_the_jobs_of_a_kind_are_read_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "PAGE", 2)
    with open_platform() as platform:
        model = platform.models.create("m", project="p", base_model="tabular-mini")
        platform.training.sft(model, ROWS).wait()
        for _ in range(5):
            platform.evaluations.run("quiz", "echo", [{"prompt": "a", "expected": "a"}], "exact_match", project="p")
        query, found = "kind=evaluate&status=succeeded", list[str]()
        while True:
            shown = page(platform, "jobs", query)
            found += re.findall(r"/jobs/([^\"?/]+)\">evaluate ", shown)
            older = re.findall(r'jobs\?([^"]*)">Older jobs<', shown)
            if not older:
                break
            query = unescape(older[0])
        assert found == [job.id for job in platform.jobs.list(kind="evaluate", order="desc")]
        assert page(platform, "jobs", "kind=nothing") == page(platform, "jobs")


@pytest.mark.parametrize("trial", [0, 1])
def test_the_one_trial_that_is_asked_for_is_named(trial: int) -> None:
    with open_platform(backend=ScriptedBackend(lambda _: "an answer", models=["m"])) as platform:
        rows = [{"prompt": "question", "expected": "a"}]
        run = platform.evaluations.run("quiz", "m", rows, "exact_match", project="p", trials=2).run
        shown = page(platform, f"runs/{run.id}/rows", f"row=0&trial={trial}")
        assert re.findall(">Trial ([0-9]+)<", shown) == [str(trial)]


def test_a_price_has_its_unit_on_both_pages_of_the_catalogue() -> None:
    price = Pricing(prompt="0.0000001", completion="0.00001", request="0.5", input_cache_read="0.00000005")
    with open_platform(backend=EchoBackend(("m",), pricing=price)) as platform:
        listed, entry = page(platform, "catalogue"), page(platform, "catalogue/m")
    assert "Prices are in USD for a million tokens." in listed
    assert ">0.1<" in listed
    for name, said in (
        ("prompt", "0.1 USD for a million tokens"),
        ("completion", "10 USD for a million tokens"),
        ("request", "0.5 USD for a request"),
        ("input cache read", "0.05 USD for a million tokens"),
    ):
        assert re.search(f">{name}<.{{0,40}}>{said}<", entry), name


def test_tags_notes_and_messages_take_no_column_of_their_own() -> None:
    with open_platform() as platform:
        model = platform.models.create("m", project="p", base_model="tabular-mini")
        platform.annotations.set(model.id, tags=["shop"], note="of the shop")
        failed = platform.training.sft(model, ROWS, learning_rate=1e30)
        with pytest.raises(JobFailed):
            failed.wait()
        platform.annotations.set(failed.id, tags=["too fast"])
        run = platform.evaluations.run("quiz", "echo", [{"prompt": "a", "expected": "a"}], "exact_match", project="p")
        platform.annotations.set(run.run.id, tags=["first"])
        for path, said, among in (
            ("models", ("shop", "of the shop"), "model"),
            ("jobs?q=sft", ("too fast", "diverged"), "works on"),
            ("runs", ("first",), "evaluation"),
        ):
            found = page(platform, *path.split("?"))
            headings = re.findall(r"<th[^>]*>([^<]*)</th>", found)
            assert not {"tags", "message"} & {*headings}, path
            cells = re.findall(rf'<td[^>]*data-label="{among}">(.*?)</td>', found)
            assert any(all(words in cell for words in said) for cell in cells), path


def test_a_field_whose_values_are_long_has_no_table_of_slices() -> None:
    with open_platform() as platform:
        run = platform.evaluations.run("quiz", "echo", [{"prompt": "a", "expected": "a" * 81}], project="p").run
        found = page(platform, f"runs/{run.id}/rows", "field=expected")
        assert "No value of expected is short enough: at most 80 characters." in found
        assert "mean score" not in found
        assert "mean score" in page(platform, f"runs/{run.id}/rows", "field=prompt")


def test_data_is_named_with_a_link_to_what_it_has() -> None:
    with open_platform() as platform:
        model = platform.models.create("m", project="p", base_model="tabular-mini")
        data = platform.training.upload("answers", ROWS * 12, project="p")
        platform.training.sft(model, data.url).wait()
        link = '<a href="/dashboard/datasets/local/p/answers%3Av0">p/answers:v0</a>'
        for path in (f"models/{model.id}", f"models/{model.id}/1"):
            found = page(platform, path)
            assert link in found, path
            assert "modelyard:///" not in found, path
        shown = page(platform, "datasets/local/p/answers%3Av0")
        assert "<h1>p/answers:v0</h1>" in shown
        assert f"<dd><code>{data.url}</code></dd>" in shown
        assert "<dt>rows</dt><dd>12</dd>" in shown
        assert shown.count("&quot;assistant&quot;") == 10
        assert "not found" in page(platform, "datasets/local/p/other%3Av0")


def test_what_is_code_in_the_words_of_an_operation_is_shown_as_code() -> None:
    operation = {"summary": "Send `file` and <b>."}
    found = operations({"paths": {"/v1/files": {"post": operation}}})
    assert "<code>POST /v1/files</code> Send <code>file</code> and &lt;b&gt;." in found


def test_a_job_is_not_said_to_work_on_itself() -> None:
    with open_platform() as platform:
        platform.chat.complete(model="echo", messages="hi", store=True, project="p")
        job = platform.traffic.submit("answers", project="p")
        job.wait()
        assert '<td class="brief" data-label="works on">–</td>' in page(platform, "jobs")
        shown = page(platform, f"jobs/{job.id}")
        assert "<dt>works on</dt><dd>–</dd>" in shown
        assert '<a href="/dashboard/datasets/local/p/answers%3Av0">p/answers:v0</a>, 1 row</dd>' in shown

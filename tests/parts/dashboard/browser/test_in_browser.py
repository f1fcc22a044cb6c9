"""The dashboard in a real browser: every page, every action, live pages, and what accessibility tools find."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from dashboard_browser import Yard, log_in, new_context
from dashboard_pages import FIRST, LISTS, OF_PARTS, REFUSED
from dashboard_pages import addresses as every_page
from modelyard import open_platform
from modelyard.asgi import asgi_app
from modelyard.domain.identity import Principal, Scope
from modelyard.parts.dashboard import view as views
from modelyard.parts.doubles.clients.server import asgi_server
from sampled import in_campaign

PAGES = (*LISTS, *OF_PARTS)
WIDTHS = (400, 1280, 2000)
ZOOMED = 640
"""What 1280 pixels are at 200 %."""
NO_BREAK = re.compile("[^ ]{60}")
"""What takes several lines by itself."""

PARTS = 6
"""So many tests look at the pages, each at its part."""


def one_of(page: Page, yard: Yard, kind: str) -> str:
    """The address of the first thing of a kind."""
    page.goto(yard.page(kind))
    found = page.locator(f"main a[href^='/dashboard/{kind}/']").first.get_attribute("href")
    assert found is not None
    return yard.url + found


def addresses(yard: Yard) -> dict[str, str]:
    """Every page with something on it, one of each kind, and what is refused, by what they are."""
    names = re.compile("[0-9a-f]{8}-[0-9a-f-]{27}|(?<=ID/)[0-9]+|(?<=models/.{36}/)[0-9]+")
    found = {names.sub("ID", path): yard.page(path) for path in every_page(yard.platform)}
    return found | {path: yard.page(path) for path in REFUSED}


@pytest.mark.timeout(600)  # the tools read every element of a page, which takes a busy machine long
@pytest.mark.parametrize(
    ("scheme", "part"),
    [
        (scheme, part) if part % 2 == at else in_campaign((scheme, part))
        for at, scheme in enumerate(("light", "dark"))
        for part in range(PARTS)
    ],
)
def test_no_page_has_a_fault_that_accessibility_tools_find(
    chromium: Browser, yard: Yard, scheme: str, part: int
) -> None:
    """Each page is looked at in one scheme, and by the campaign in both. Widths take turns."""
    context = new_context(chromium, color_scheme=scheme)
    page = context.new_page()
    log_in(page, yard, yard.key)
    for at, (what, address) in [*enumerate(addresses(yard).items())][part::PARTS]:
        width = WIDTHS[(at + (scheme == "dark")) % len(WIDTHS)]
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(address)
        found = Axe().run(page).response["violations"]
        faults = [(one["id"], one["impact"], [node["target"] for node in one["nodes"]][:3]) for one in found]
        assert faults == [], (what, width)
    context.close()


FAULTS = """() => {
  const root = document.documentElement, found = [], width = root.clientWidth;
  if (root.scrollWidth > width) found.push(`the page is ${root.scrollWidth} wide`);
  for (const one of document.querySelectorAll("header *, main *")) {
    const box = one.getBoundingClientRect();
    if (!box.width || !box.height || one.closest("title") || one.matches(".skip, .fold")) continue;
    const name = `${one.tagName} ${one.getAttribute("class")}`;
    if (box.right > width + 1) found.push(`${name} ends at ${Math.round(box.right)}`);
    if (one.matches(".wide") && one.scrollWidth > one.clientWidth + 1) found.push(`a table of ${one.scrollWidth}`);
  }
  for (const text of document.querySelectorAll("main svg text")) {
    const svg = text.ownerSVGElement, around = svg.getBoundingClientRect(), box = text.getBoundingClientRect();
    if (!box.width) continue;
    const size = (parseFloat(getComputedStyle(text).fontSize) * around.width) / svg.viewBox.baseVal.width;
    if (size < 11) found.push(`${text.textContent} is ${size.toFixed(1)} high`);
    if (box.left < around.left - 1 || box.right > around.right + 1) found.push(`${text.textContent} is cut`);
  }
  return found.slice(0, 5);
}"""
"""What does not fit: something wider than the page, a table wider than its place, a chart's text cut or too small."""


@pytest.mark.parametrize("part", range(PARTS))
def test_every_page_fits_from_400_to_2000_pixels(page: Page, yard: Yard, part: int) -> None:
    found = {}
    for what, address in [*addresses(yard).items()][part::PARTS]:
        if what in REFUSED:
            continue  # the console complains of the status
        page.goto(address)
        for width in (*WIDTHS, ZOOMED):
            page.set_viewport_size({"width": width, "height": 800})
            if faults := page.evaluate(FAULTS):
                found[what, width] = faults
    assert found == {}


@pytest.mark.parametrize("part", range(PARTS))
def test_the_first_pages_of_an_empty_store_fit_and_have_no_fault(chromium: Browser, part: int) -> None:
    with open_platform() as platform, asgi_server(asgi_app(platform, dashboard=True), log_level="warning") as server:
        yard = Yard(platform, server.url, platform.keys.create("acme", name="ann").secret)
        context = new_context(chromium)
        page = context.new_page()
        log_in(page, yard, yard.key)
        first = [path for path in FIRST if path != "api"]  # the same as in a store that is filled, and long
        for at, path in [*enumerate(first)][part::PARTS]:
            page.set_viewport_size({"width": WIDTHS[(at // PARTS) % len(WIDTHS)], "height": 800})
            page.goto(yard.page(path))
            assert page.evaluate(FAULTS) == [], path
            assert [one["id"] for one in Axe().run(page).response["violations"]] == [], path
        context.close()


def test_header_and_content_begin_at_one_line(page: Page, yard: Yard) -> None:
    page.goto(yard.page("models"))
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        brand, title = page.locator("header .brand").bounding_box(), page.locator("h1").bounding_box()
        assert brand is not None
        assert title is not None
        assert abs(brand["x"] - title["x"]) < 1, width


def test_every_page_is_read_without_script(chromium: Browser, yard: Yard) -> None:
    context = new_context(chromium, java_script_enabled=False)
    page = context.new_page()
    log_in(page, yard, yard.key)
    for address in map(yard.page, PAGES):
        page.goto(address)
        expect(page.locator("h1")).to_have_count(1)
    context.close()


def test_a_job_is_watched_while_it_runs_also_after_a_reload_and_in_two_tabs(page: Page, yard: Yard) -> None:
    rows = [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok"}]}] * 40
    job = yard.platform.training.sft("acme/bots/desk", rows, learning_rate=1e-5, batch_size=1)
    page.goto(yard.page(f"jobs/{job.id}"))
    other = page.context.new_page()
    other.goto(yard.page(f"jobs/{job.id}"))
    expect(page.locator("main")).to_contain_text("queued")
    page.reload()
    with yard.platform.worker():
        for one in (page, other):
            expect(one.locator("main")).to_contain_text("succeeded")
            expect(one.locator("figure").first).to_be_visible()
    expect(page.locator("main")).not_to_have_attribute("data-live", "")


def test_a_job_is_cancelled_after_a_question(page: Page, yard: Yard) -> None:
    rows = [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok"}]}]
    job = yard.platform.training.sft("acme/bots/desk", rows)
    page.goto(yard.page(f"jobs/{job.id}"))
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.get_by_role("button", name="Cancel the job").click()
    assert job.status == "queued"
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.locator("main")).to_contain_text("cancelled")


def test_a_key_is_made_and_revoked_and_its_session_ends(page: Page, yard: Yard, chromium: Browser) -> None:
    page.goto(yard.page("keys"))
    page.get_by_label("Name").fill("for a moment")
    page.get_by_role("button", name="Make a key").click()
    secret = page.locator(".secret code").inner_text()
    context = new_context(chromium)
    theirs = context.new_page()
    log_in(theirs, yard, secret)
    page.goto(yard.page("keys"))
    page.once("dialog", lambda dialog: dialog.accept())
    page.locator("tr", has_text="for a moment").get_by_role("button", name="Revoke").click()
    expect(page.locator("tr", has_text="for a moment")).to_contain_text("revoked")
    theirs.goto(yard.page("jobs"))
    expect(theirs.get_by_label("API key")).to_be_visible()
    context.close()


def test_a_checkpoint_is_promoted_and_rolled_back(page: Page, yard: Yard) -> None:
    page.goto(one_of(page, yard, "models"))
    page.get_by_label("at step").fill("0")
    page.get_by_role("button", name="Promote").click()
    expect(page.locator("tr", has_text="prod").first).to_contain_text("step 0")
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Roll back").first.click()
    expect(page.locator("tr", has_text="prod").first).to_contain_text("step 2")


def test_two_runs_are_picked_and_compared(page: Page, yard: Yard) -> None:
    page.goto(yard.page("runs"))
    page.get_by_role("row", name="quiz echo completed").get_by_label("echo as baseline").check()
    page.get_by_label("tabular-mini as candidate").check()
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("h1")).to_contain_text("tabular-mini compared with echo")
    page.get_by_role("link", name="Rows side by side").click()
    expect(page.locator("article del").first).to_be_visible()


def test_a_model_is_tried_and_its_answer_streams(page: Page, yard: Yard) -> None:
    page.goto(yard.page("catalogue/echo"))
    page.get_by_label("Message").fill("Good morning to you")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#answer")).to_have_text("Good morning to you")


def test_the_log_out_ends_the_session(page: Page, yard: Yard) -> None:
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url(yard.page("login"))
    page.goto(yard.page("jobs"))
    expect(page.get_by_label("API key")).to_be_visible()


def test_times_are_the_readers_own_and_the_keyboard_reaches_everything(page: Page, yard: Yard) -> None:
    page.goto(yard.page("jobs"))
    expect(page.locator("time").first).to_contain_text("ago")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()


def test_a_long_run_is_shown_at_once_and_the_rest_of_its_report_follows(
    page: Page, yard: Yard, chromium: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "AT_ONCE", 3)
    tasks = [{"prompt": f"say {at}", "expected": "say 1"} for at in range(6)]
    context = new_context(chromium, java_script_enabled=False)
    unscripted = context.new_page()
    log_in(unscripted, yard, yard.key)
    first, second, third = (
        yard.platform.evaluations.run("long", "echo", tasks, project="bots", entity="acme").run.id for _ in range(3)
    )
    unscripted.goto(yard.page(f"runs/{first}"))
    expect(unscripted.locator("main")).to_contain_text("There is more, from 6 trials.")
    unscripted.get_by_role("link", name="Show it").click()
    expect(unscripted.locator("main")).to_contain_text("Rows, the worst first")
    context.close()
    page.goto(yard.page(f"runs/{second}"))
    expect(page.locator("main")).to_contain_text("Rows, the worst first")
    expect(page.locator("main [role=status]")).to_have_count(0)
    assert page.url == yard.page(f"runs/{second}")
    context = new_context(chromium)
    offline = context.new_page()
    log_in(offline, yard, yard.key)
    offline.route("**/*whole=1", lambda route: route.abort())
    offline.goto(yard.page(f"runs/{third}"))
    expect(offline.locator("main [role=status]")).to_have_text("This failed. Show it")
    serious = [
        one["id"] for one in Axe().run(offline).response["violations"] if one["impact"] in ("serious", "critical")
    ]
    assert serious == []
    offline.unroute("**/*whole=1")
    offline.get_by_role("link", name="Show it").click()
    expect(offline.locator("main")).to_contain_text("Rows, the worst first")
    context.close()


def test_the_report_of_a_long_run_follows_when_the_run_ends(
    page: Page, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "AT_ONCE", 1)
    place = {"project": "bots", "entity": "acme"}
    evaluation, model = (f"weave:///acme/bots/object/{name}:v0" for name in ("quiz", "mine"))
    run = yard.platform.evaluations.runs.create(evaluation, model, **place)
    for at in range(2):
        yard.platform.evaluations.predictions.create(model, {"at": at}, "b", run_id=run.id, **place)
    page.goto(yard.page(f"runs/{run.id}"))
    expect(page.locator("main")).to_contain_text("running")
    yard.platform.evaluations.runs.finish(run.id, {}, **place)
    expect(page.locator("main")).to_contain_text("Nothing was scored.")
    expect(page.locator("main")).not_to_have_attribute("data-live", "")


def test_on_a_small_screen_the_menu_is_folded_and_a_run_takes_few_lines(chromium: Browser, yard: Yard) -> None:
    context = new_context(chromium, java_script_enabled=False)
    page = context.new_page()
    page.set_viewport_size({"width": 400, "height": 800})
    log_in(page, yard, yard.key)
    page.goto(yard.page("runs"))
    link = page.get_by_role("link", name="Usage", exact=True)
    expect(link).to_be_hidden()
    page.get_by_text("Menu", exact=True).click()
    expect(link).to_be_visible()
    page.get_by_text("Menu", exact=True).click()
    expect(link).to_be_hidden()
    for kind in ("runs", "jobs", "keys", "reviews", "models"):
        page.goto(yard.page(kind))
        rows = page.locator(".cards").first.locator("tbody tr").filter(has_not_text=NO_BREAK)
        heights = [rows.nth(at).bounding_box()["height"] for at in range(rows.count())]  # type: ignore[index]
        assert max(heights) < 150, kind
    context.close()


@pytest.mark.parametrize(("kind", "most"), [("episodes", 2), ("variants", 2), ("webhooks", 2), ("tinker", 6)])
def test_a_card_with_long_names_takes_few_lines_besides_these(
    chromium: Browser, yard: Yard, kind: str, most: int
) -> None:
    """What is in one line of the text may begin at two heights, as a drawing does."""
    context = new_context(chromium)
    page = context.new_page()
    page.set_viewport_size({"width": 400, "height": 800})
    log_in(page, yard, yard.key)
    page.goto(yard.page(kind))
    cells = page.locator(".cards").first.locator("tbody tr").first.locator("td")
    tops = {round(cell.bounding_box()["y"]) for cell in cells.all() if not NO_BREAK.search(cell.inner_text())}  # type: ignore[index]
    assert len(tops) <= most
    context.close()


def test_the_lines_of_a_text_stay_apart_on_a_small_screen(chromium: Browser, yard: Yard) -> None:
    context = new_context(chromium)
    page = context.new_page()
    page.set_viewport_size({"width": 400, "height": 800})
    log_in(page, yard, yard.key)
    run = next(
        one
        for one in yard.platform.evaluations.runs.list_all()
        if one.evaluation.startswith("weave:///acme/bots/object/quiz")
    )
    page.goto(yard.page(f"runs/{run.id}"))
    expect(page.locator(".cards td.text").first).to_have_css("white-space", "pre-wrap")
    context.close()


def test_what_stands_beside_a_button_is_at_its_height(page: Page, yard: Yard) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(yard.page("keys"))
    row = page.locator("tr", has=page.get_by_role("button", name="Revoke")).last
    boxes = [row.locator(one).first.bounding_box() for one in (".chip", "button")]
    middles = [box["y"] + box["height"] / 2 for box in boxes if box]
    assert abs(middles[0] - middles[1]) < 4


def test_a_card_has_no_heading_without_a_value(chromium: Browser, yard: Yard) -> None:
    context = new_context(chromium)
    page = context.new_page()
    page.set_viewport_size({"width": 400, "height": 800})
    log_in(page, yard, yard.key)
    page.goto(one_of(page, yard, "episodes"))
    empty = page.locator(".cards td:empty")
    assert empty.count() > 0
    assert [empty.nth(at).is_visible() for at in range(empty.count())] == [False] * empty.count()
    context.close()


def test_a_link_within_text_is_underlined(page: Page, yard: Yard) -> None:
    group = one_of(page, yard, "episodes")
    page.goto(group)
    for path, width, link in (("", 400, ".cards td.choice a"), ("/", 1280, "main p a")):
        page.set_viewport_size({"width": width, "height": 800})
        if path:
            page.goto(yard.url + str(page.locator("main td a").first.get_attribute("href")))
        expect(page.locator(link).first).to_have_css("text-decoration-line", "underline")


def test_navigation_and_filters_take_one_line(page: Page, yard: Yard) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(yard.page("jobs"))
    for lines in ("header nav", "main .filters >> nth=1"):
        tops = page.locator(lines).locator("a").evaluate_all("all => all.map(one => Math.round(one.offsetTop))")
        assert len({*tops}) == 1, lines


def test_rows_are_labelled_one_key_each(chromium: Browser, yard: Yard) -> None:
    acme = yard.platform.acting_as(Principal("ann", "acme", Scope("acme")))
    rows = [{"prompt": word, "expected": "yes"} for word in ("yes", "no", "perhaps")]
    run = acme.evaluations.run("keys", "echo", rows, "exact_match", project="bots")
    review = acme.review.start(run, rows=3, seed=9)
    page = new_context(chromium).new_page()
    log_in(page, yard, yard.key)
    page.goto(yard.page(f"reviews/{review.id}"))
    page.get_by_label("Your name").fill("kim")
    page.keyboard.press("Enter")
    expect(page.get_by_text("row 1 of 3")).to_be_visible()
    page.get_by_label("Note").fill("yes, why not")
    page.locator("h1").click()
    page.keyboard.press("y")
    expect(page.get_by_text("row 2 of 3")).to_be_visible()
    page.keyboard.press("n")
    expect(page.get_by_text("row 3 of 3")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_text("You have labelled every row.")).to_be_visible()
    given = [(row.value, row.note) for row in acme.review.rows(review.id, "kim")]
    assert given == [(1.0, "yes, why not"), (0.0, ""), (None, "")]
    page.context.close()

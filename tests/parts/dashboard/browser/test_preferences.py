"""What a reader's system asks for: the keyboard, forced colours, no motion, paper."""

import pytest
from playwright.sync_api import Browser, Page

from dashboard_browser import Yard, log_in, new_context

PAGES = ("", "jobs", "models", "runs", "keys", "traces", "catalogue/echo")

FOCUS = """() => {
  const one = document.activeElement, style = getComputedStyle(one);
  const light = (colour) => {
    const [r, g, b] = colour.match(/[0-9.]+/g).map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const [low, high] = [style.outlineColor, getComputedStyle(document.body).backgroundColor].map(light).sort();
  return { on: one === document.body ? "" : one.outerHTML.slice(0, 80),
    line: style.outlineStyle, width: parseFloat(style.outlineWidth), contrast: (high + 0.05) / (low + 0.05) };
}"""
"""The element with the focus, and how its outline stands out from the page."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_the_keyboard_reaches_is_seen(chromium: Browser, yard: Yard, scheme: str) -> None:
    context = new_context(chromium, color_scheme=scheme)
    page = context.new_page()
    log_in(page, yard, yard.key)
    for path in PAGES:
        page.goto(yard.page(path))
        seen = set()
        for _ in range(30):
            page.keyboard.press("Tab")
            found = page.evaluate(FOCUS)
            seen.add(found["on"])
            if found["on"]:
                seen_as = (found["line"] != "none", found["width"] >= 2, found["contrast"] >= 3)
                assert seen_as == (True, True, True), (path, found)
        assert len(seen) > 15, path
    context.close()


def style(page: Page, selector: str, *names: str) -> list[str]:
    return page.locator(selector).first.evaluate(
        "(one, names) => names.map((name) => getComputedStyle(one)[name])", names
    )


def test_with_forced_colours_a_page_says_where_it_is_and_what_was_added(chromium: Browser, yard: Yard) -> None:
    context = new_context(chromium, forced_colors="active")
    page = context.new_page()
    log_in(page, yard, yard.key)
    page.goto(yard.page("jobs"))
    assert style(page, "header nav a[aria-current]", "outlineStyle") == ["solid"]
    assert style(page, "header nav a:not([aria-current])", "outlineStyle") == ["none"]
    assert style(page, "main .chip", "borderTopStyle") == ["solid"]
    variant = next(iter(yard.platform.variants.list()))
    page.goto(yard.page(f"variants/{variant.id}/diff?before=1&after=2"))
    assert style(page, "main ins", "textDecorationLine") == ["underline"]
    context.close()


def test_nothing_moves(page: Page, yard: Yard) -> None:
    moving = """() => [...document.querySelectorAll("*")].filter((one) => {
      const style = getComputedStyle(one);
      return style.animationName !== "none" || style.transitionDuration !== "0s";
    }).map((one) => one.tagName)"""
    for path in PAGES:
        page.goto(yard.page(path))
        assert page.evaluate(moving) == [], path


def test_paper_is_white_and_has_no_menu_in_the_dark_too(chromium: Browser, yard: Yard) -> None:
    context = new_context(chromium, color_scheme="dark")
    page = context.new_page()
    log_in(page, yard, yard.key)
    page.set_viewport_size({"width": 720, "height": 1000})  # a sheet of A4 within its margins
    page.emulate_media(media="print")
    for path in PAGES:
        page.goto(yard.page(path))
        assert style(page, "body", "backgroundColor", "color") == ["rgb(255, 255, 255)", "rgb(26, 29, 33)"], path
        assert page.locator("header").is_hidden()
        assert page.evaluate("document.documentElement.scrollWidth") <= 720, path
    context.close()

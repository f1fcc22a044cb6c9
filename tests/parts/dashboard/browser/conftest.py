"""A browser, and a served platform with something in it. Without Playwright nothing of this folder is collected."""

from importlib.util import find_spec

if find_spec("playwright") is None or find_spec("axe_playwright_python") is None:
    collect_ignore = ["test_in_browser.py", "test_preferences.py"]
else:
    from dashboard_browser import chromium, page, yard  # noqa: F401 - fixtures

"""Make the pictures of the docs: the pages of the dashboard over what the quickstart leaves. Run by hand.

    python docs/make_pictures.py FOLDER_OF_A_QUICKSTART

It needs Playwright and a Chromium, which the lane `browser` of tests/clients/lanes.py has.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from modelyard.asgi import dashboard_app
from modelyard.compose import open_platform
from modelyard.domain.identity import host
from modelyard.domain.job import JobKind
from modelyard.parts.doubles.clients.server import asgi_server
from modelyard.platform.platform import Platform

PICTURES = Path(__file__).parent / "pictures"
SIZE = {"width": 1280, "height": 860}


def main(folder: Path) -> None:
    """Open the store of the quickstart, and keep a picture of each kind of page."""
    with (
        open_platform(folder / "yard.db") as platform,
        asgi_server(dashboard_app(platform, reader=host()), log_level="warning") as server,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)  # type: ignore[arg-type]
        model = next(iter(platform.models.list(order="desc")))
        jobs = {one.kind: one for one in platform.training.list()}  # the last of each kind
        runs = list(platform.evaluations.runs.list_all(order="desc"))
        after, before = runs[0], runs[1]  # the reward that tempted, and the one that helped
        for name, path in (
            ("trace", f"traces/{'/'.join(traced(platform, f'{model.project}/{model.name}'))}"),
            ("home", ""),
            ("job", f"jobs/{jobs[JobKind.SFT].id}"),
            *([("loop", f"jobs/{jobs[JobKind.LOOP].id}")] if JobKind.LOOP in jobs else []),
            ("model", f"models/{model.id}"),
            ("runs", "runs"),
            ("comparison", f"compare?baseline={before.id}&candidate={after.id}"),
            ("rows", f"runs/{after.id}/rows?baseline={before.id}&show=changed"),
            ("usage", "usage"),
            ("catalogue", "catalogue/tabular-mini"),
        ):
            shoot(page, f"{server.url}/dashboard/{path}", PICTURES / f"{name}.png")
        browser.close()


def traced(platform: Platform, model: str) -> tuple[str, str, str]:
    """Trace a program that asks a model, and return where its call is."""
    calls, question = platform.compat.traces.calls, "Where is my parcel?"
    outer = calls.start("answer", {"question": question})
    found = calls.start("search", {"words": ["parcel"], "most": 3}, parent=outer)
    calls.end(found.id, ["It arrives on Friday.", "Parcels are brought to the door."])
    messages = [{"role": "user", "content": question}]
    asked = calls.start("chat", {"model": model, "messages": messages}, parent=outer)
    answer = platform.chat.complete(model=model, messages=question)
    usage = {"prompt_tokens": answer.usage.prompt_tokens, "completion_tokens": answer.usage.completion_tokens}
    message = {"role": "assistant", "content": answer.text}
    output = {"object": "chat.completion", "id": answer.id, "choices": [{"index": 0, "message": message}]}
    calls.end(asked.id, output, summary={"usage": {model: usage}})
    calls.end(outer.id, answer.text)
    platform.compat.traces.feedback.add(asked.ref, "thumbs", {"up": True}, creator="ann")
    return asked.entity, asked.project, asked.id


def shoot(page: Page, address: str, to: Path) -> None:
    """Keep a picture of the page at an address."""
    page.goto(address)
    page.wait_for_load_state("load")
    page.screenshot(path=to)
    print(to.name, f"{to.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

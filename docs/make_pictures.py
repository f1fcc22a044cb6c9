"""Make the pictures of the docs: the dashboard over what the quickstart leaves, light and dark. Run by hand.

    python docs/make_pictures.py [FOLDER_OF_A_QUICKSTART]

Without a folder, a quickstart is run first. A picture is 1280 pixels wide; of the main pages there are some of 400
and 2000, too (`job-400.png`). It needs Playwright and a Chromium, which the lane `browser` of tests/clients/lanes.py
has, and Pillow.
"""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from modelyard import examples
from modelyard.asgi import dashboard_app
from modelyard.compose import open_platform
from modelyard.domain.identity import host
from modelyard.domain.job import JobKind
from modelyard.parts.doubles.clients.server import asgi_server
from modelyard.parts.quickstart.story import run as quickstart
from modelyard.platform.platform import Platform

PICTURES = Path(__file__).parent / "pictures"
SIZES = {1280: 860, 400: 860, 2000: 1240}
"""The widths, and how much of a page is seen at each."""

WIDTH = 1280
"""Of the pictures that have no width in their name."""

MAIN = ("home", "runs", "job", "model", "comparison")
"""Of which there are pictures at every width."""

COLOURS = 128
"""Enough for smooth letters, in a third of the bytes."""


def main(folder: Path) -> None:
    """Open the store of the quickstart, and keep a picture of each kind of page."""
    with (
        open_platform(folder / "yard.db") as platform,
        asgi_server(dashboard_app(platform, reader=host()), log_level="warning") as server,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        model = next(iter(platform.models.list(order="desc")))
        jobs = {one.kind: one for one in platform.training.list()}  # the last of each kind
        runs = list(platform.evaluations.runs.list_all(order="desc"))
        after, before = runs[0], runs[1]  # the reward that tempted, and the one that helped
        rounds = loop(platform, model.project)
        pages = (
            ("trace", f"traces/{'/'.join(traced(platform, f'{model.project}/{model.name}'))}"),
            ("home", ""),
            ("job", f"jobs/{jobs[JobKind.SFT].id}"),
            ("loop", f"jobs/{rounds}"),
            ("model", f"models/{model.id}"),
            ("runs", "runs"),
            ("comparison", f"compare?baseline={before.id}&candidate={after.id}"),
            ("rows", f"runs/{after.id}/rows?baseline={before.id}&show=changed"),
            ("usage", "usage"),
            ("catalogue", "catalogue/tabular-mini"),
        )
        for scheme, ending in (("light", ""), ("dark", "-dark")):
            page = browser.new_page(color_scheme=scheme)  # type: ignore[arg-type]
            for width, height in SIZES.items():
                page.set_viewport_size({"width": width, "height": height})
                for name, path in pages:
                    if width == WIDTH or name in MAIN:
                        of = name if width == WIDTH else f"{name}-{width}"
                        shoot(page, f"{server.url}/dashboard/{path}", PICTURES / f"{of}{ending}.png")
        browser.close()


def loop(platform: Platform, project: str) -> str:
    """Train a model in rounds, as the page on training does, and return the id of the job."""
    data = examples.support()
    learner = platform.models.create("learner", project=project, base_model="tabular-mini")
    platform.training.sft(learner, data.train).wait()
    held_out = examples.tasks(data.held_out)[:12]
    options = {"tasks_per_round": 6, "samples": 6, "temperature": 0.4, "max_tokens": 60, "learning_rate": 1e-5}
    job = platform.training.loop(
        learner, examples.tasks(data.train), "token_f1", held_out=held_out, rounds=12, **options
    )
    return job.wait().id


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
    Image.open(to).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(to, optimize=True)
    print(to.name, f"{to.stat().st_size:,} bytes")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with TemporaryDirectory() as made:
            quickstart(Path(made))
            main(Path(made))

"""What MkDocs does besides: `llms.txt`, the list of all pages for language models, is written next to the site."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

OPENING = """\
# modelyard

> The model platform that you import: a model catalogue, chat completions, models with checkpoints, SFT and RL training
> jobs with events, and evaluation runs, in one Python object. `pip install modelyard`, then
> `from modelyard import open_platform`.

Facts for writing code: public names are imported from the modules listed under API and from no other.
`open_platform()` is in memory, `open_platform("yard.db")` in one SQLite file. Chat asks for
`local/<project>/<model>`; training takes `<project>/<model>`. A parameter that a backend cannot honour is an error,
never ignored.
"""


def listed(items: Any) -> Iterator[str]:
    """Yield a line for each section of the navigation and each page in it."""
    for item in items:
        if item.is_section:
            yield f"\n## {item.title}\n"
            yield from listed(item.children)
        elif item.is_page:
            yield f"- [{item.title}]({item.canonical_url})"


class _Seen:
    nav: Any = None


def on_env(env: Any, config: Any, files: Any) -> None:
    """Write the list once every page has its title."""
    lines = "\n".join(listed(_Seen.nav.items))
    path = Path(config["site_dir"]) / "llms.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{OPENING}{lines}\n", encoding="utf-8")


def on_nav(nav: Any, config: Any, files: Any) -> None:
    """Keep the navigation."""
    _Seen.nav = nav

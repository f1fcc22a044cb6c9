"""The guard of `.ci/run`: no request in its table, and no event, may execute 2 % more instructions than is kept.

    python -m benchmarks guard           fails when it does; reports when the figure can be lowered
    python -m benchmarks guard --keep    counts, and writes the figures of this Python and platform into the repository

The figures are in `benchmarks/instructions.json`, by the interpreter and platform that they were counted on. On one
that has none there, those of the last commit that changed the file are counted in the same run.
"""

import json
import platform
import sqlite3
import sys
import sysconfig
from pathlib import Path

from benchmarks._instructions import install, per_call
from benchmarks._revisions import WORKING_TREE, git, source_of

KEPT = Path(__file__).parent / "instructions.json"
COUNTED = (
    "completion",
    "completion-sqlite",
    "asgi",
    "asgi-user",
    "asgi-tools",
    "asgi-schema",
    "asgi-n8",
    "asgi-history",
    "asgi-stream-options",
    "asgi-training",
    "asgi-messages",
    "asgi-responses",
    "asgi-rate-limit",
    "asgi-store",
    "asgi-sqlite",
    "asgi-sqlite-store",
    "events-sqlite",
)
"""An echo completion, priced and booked: in process, in memory and in SQLite; through the ASGI application plain, with
what agents send, streamed, with details, in two other formats, limited, stored and on SQLite; and a step of a training
run in SQLite."""
ALLOWED, NOTICED = 1.02, 0.98
KEEP = "python -m benchmarks guard --keep"


def interpreter() -> str:
    """What counts depend on besides the code: the interpreter, how it was built, SQLite, and the platform."""
    optimised = "optimised" if "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "") else "plain"
    python = f"{platform.python_implementation()} {platform.python_version()} {optimised}"
    return f"{python}, SQLite {sqlite3.sqlite_version}, {sysconfig.get_platform()}"


def counted(revision: str) -> dict[str, int]:
    """Instructions a call in a commit or the working tree."""
    with source_of(revision) as source:
        return per_call(source, COUNTED)


def kept() -> dict[str, dict[str, int]]:
    """The kept figures by interpreter."""
    return dict(json.loads(KEPT.read_text()))


def reference() -> dict[str, int]:
    """The figures that hold for this interpreter."""
    if interpreter() in kept():
        return kept()[interpreter()]
    print(f"no figures are kept for {interpreter()}: counting those of the commit that changed the others last")
    return counted(git("log", "-1", "--format=%H", "--", str(KEPT)).decode().strip())


def keep(figures: dict[str, int]) -> None:
    """Write the figures of this interpreter."""
    KEPT.write_text(json.dumps(dict(sorted({**kept(), interpreter(): figures}.items())), indent=2) + "\n")
    print(f"kept for {interpreter()}: {figures}")


def check(figures: dict[str, int], allowed: dict[str, int]) -> None:
    """Print a line for each. Raises `SystemExit` when one is above what is allowed."""
    worse, better = [], []
    for name, count in figures.items():
        if name not in allowed:
            print(f"{name:20} {count:>9,} instructions a call, none kept")
            continue
        ratio = count / allowed[name]
        print(f"{name:20} {count:>9,} instructions a call, kept {allowed[name]:>9,}: {ratio:.3f}")
        worse += [name] if ratio > ALLOWED else []
        better += [name] if ratio < NOTICED else []
    if better and not worse:
        print(f"fewer instructions than kept: lower the figure with `{KEEP}`")
    if worse:
        raise SystemExit(
            f"more than {ALLOWED - 1:.0%} more instructions: {', '.join(worse)}. "
            f"Look with `python -m benchmarks compare HEAD . {' '.join(worse)}`; "
            f"where the gain is worth it, keep the new figure with `{KEEP}` and say so in the commit."
        )


def main(*arguments: str) -> None:
    """Check or keep."""
    install()
    figures = counted(WORKING_TREE)
    if "--keep" in arguments:
        keep(figures)
    else:
        check(figures, reference())


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The commands that ask a model, and list the models that can be asked."""

import json
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import click

from modelyard.cli.lazy_group import parts_of
from modelyard.cli.terminal import DEFAULT_STORE, StoreName, json_option, named_factory, opened, show, store_option
from modelyard.compose import open_platform
from modelyard.domain.completion import Message, Role
from modelyard.formats.chat.bounds import is_unicode
from modelyard.formats.converter import unstructure
from modelyard.parts.asked_models import is_named_like_a_hub, offer_named, refuse_path
from modelyard.platform.chat.request import ChatOptions
from modelyard.platform.platform import Platform
from modelyard.report.table import printable


@click.command()
@store_option
@click.argument("model")
@click.argument("prompt", nargs=-1)
@click.option("--system", help="The instructions that the model gets first.")
@click.option("--max-tokens", type=click.IntRange(1), help="How long the answer may be.")
@click.option("--temperature", type=click.FloatRange(0, 2), help="How random it is; 0 is always the same.")
@click.option("--seed", type=int, help="Repeat an answer.")
@json_option
def ask(
    store: StoreName,
    model: str,
    prompt: tuple[str, ...],
    system: str | None,
    max_tokens: int | None,
    temperature: float | None,
    seed: int | None,
    as_json: bool,
) -> None:
    """Ask MODEL for one completion, shown as it is made. Without PROMPT, it is read from standard input.

    A model in the cache of a hub is asked by its name, as in org/name.
    """
    text = _checked(" ".join(prompt)) or _standard_input().rstrip("\n")
    messages = (
        [Message(Role.USER, text)] if system is None else [Message(Role.SYSTEM, system), Message(Role.USER, text)]
    )
    options: ChatOptions = {"model": model, "messages": messages}
    if max_tokens is not None:
        options["max_tokens"] = max_tokens
    if temperature is not None:
        options["temperature"] = temperature
    if seed is not None:
        options["seed"] = seed
    with opened_or_empty(store) as platform:
        if named_factory() is None and is_named_like_a_hub(model):
            offer_named(platform, model)
        refuse_path(platform, model)
        if as_json:
            click.echo(json.dumps(unstructure(platform.chat.complete(**options)), default=str))
            return
        for delta in platform.chat.stream(**options):
            sys.stdout.write("\n".join(map(printable, delta.text.split("\n"))))
            sys.stdout.flush()
    click.echo()


def opened_or_empty(store: StoreName) -> AbstractContextManager[Platform]:
    """Open the platform in `store` or, where there is none yet, one in memory: no file is made."""
    if named_factory() is not None or not isinstance(store, Path) or not _is_missing(store):
        return opened(store)
    if store != DEFAULT_STORE:
        click.echo(f"there is no store at {store}: this is without one", err=True)
    return open_platform(parts=parts_of(click.get_current_context()))


def _is_missing(store: Path) -> bool:
    try:
        store.lstat()
    except OSError as wrong:  # such as a name that is too long
        return isinstance(wrong, FileNotFoundError) and store.parent.is_dir()
    return False


def _checked(text: str) -> str:
    if not is_unicode(text):
        raise click.BadParameter("is not text: it has bytes that are not UTF-8; convert it, as `iconv` does")
    return text


def _standard_input() -> str:
    """Read standard input, in its encoding. Raises an error that names the first byte that is not text."""
    data = sys.stdin.buffer.read()
    try:
        return data.decode(sys.stdin.encoding)
    except UnicodeDecodeError as wrong:
        says = f"standard input is not {sys.stdin.encoding}: byte {wrong.start} is {data[wrong.start]:#04x}"
        raise click.ClickException(f"{says}; convert it, as `iconv -f latin1 -t utf-8` does") from None


@click.command()
@store_option
@json_option
def catalogue(store: StoreName, as_json: bool) -> None:
    """List the models that can be asked, with their prices in USD for a million tokens."""
    columns = ("id", "name", "context_length", "prompt", "completion", "features")
    with opened_or_empty(store) if store == DEFAULT_STORE else opened(store) as platform:
        rows = [
            (
                entry.id,
                entry.name,
                entry.context_length,
                f"{entry.pricing.prompt * 1_000_000:f}",
                f"{entry.pricing.completion * 1_000_000:f}",
                ", ".join(sorted(entry.supported_features)),
            )
            for entry in platform.catalogue.list()
        ]
    show(as_json, columns, rows)

"""Commands for base models in local folders and of hubs."""

from decimal import Decimal, InvalidOperation
from typing import Any

import click

from modelyard.cli.lazy_group import Group
from modelyard.cli.terminal import StoreName, json_option, not_empty, opened, printable_store, show_values, store_option
from modelyard.domain.catalogue import Pricing
from modelyard.parts.torch.model_folder import Progress
from modelyard.parts.torch.records import Tuning, weight_format
from modelyard.parts.torch.sources import BaseSource, read_source

COLUMNS = (
    "id",
    "name",
    "architecture",
    "quantization",
    "weights",
    "parameters",
    "context_length",
    "tool_format",
    "tuning",
    "path",
)


def usd(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise click.BadParameter(f"{text!r} is not a decimal number") from None


@click.group("base-models", cls=Group)
def base_models() -> None:
    """Add base models from folders, GGUF files and hubs, and list them."""


@base_models.command("add")
@store_option
@click.argument("path", metavar="PATH|ORG/NAME", callback=not_empty)
@click.option(
    "--id", "model_id", callback=not_empty, help="How requests name it; by default its name, or that of its folder."
)
@click.option(
    "--revision", callback=not_empty, help="The branch, tag or commit of a model of a hub.  [default: its main branch]"
)
@click.option("--name", help="Its name in the catalogue; its id by default.")
@click.option("--price-prompt", type=usd, default="0", help="Per token of a prompt.")
@click.option("--price-completion", type=usd, default="0", help="Per token of an answer.")
@click.option("--full", is_flag=True, help="Train the weights themselves, not an adapter: for small models.")
@click.option("--weights", metavar="FORMAT", help="In memory: float32, bfloat16, int8.  [default: by device]")
def add_base_model(
    store: StoreName,
    path: str,
    model_id: str | None,
    revision: str | None,
    name: str | None,
    price_prompt: Decimal,
    price_completion: Decimal,
    full: bool,
    weights: str | None,
) -> object:
    """Offer a model under an id, and train on it.

    It is in a folder (transformers format, safetensors), or a GGUF file, of which such a folder is made beside it,
    or is fetched from a hub by its name. Every file is read once, for its digest.
    """
    tuning = Tuning.FULL if full else Tuning.LORA
    form = weight_format(weights, tuning)
    with click.progressbar(length=1, label=f"reading {path}") as bar:
        found = read_source(path, revision, shown_on(bar))  # before the store is opened: a refusal leaves none behind
    with opened(store, must_exist=False) as platform:
        entry = platform.add_base_model.record(
            found,
            id=model_id,
            name=name,
            pricing=Pricing(prompt=price_prompt, completion=price_completion),
            tuning=tuning,
            weights=form,
        )
    show_source(found)
    click.echo(f"{entry.id} is offered from now on by every process that opens {printable_store(store)}")
    return {"id": entry.id, "name": entry.name, "source": found.source}


def shown_on(bar: Any) -> Progress:
    """Return what moves a bar to the bytes that are done: in steps of half a percent, as the first bytes say nothing of
    the time that is left.
    """

    def read(done: int, total: int) -> None:
        bar.length = total
        if done == total or done - bar.pos >= max(total // 200, 1):
            bar.update(done - bar.pos)

    return read


def show_source(found: BaseSource) -> None:
    """Say at which commit a model of a hub is, and what a conversion has lost."""
    if "revision" in found.source:
        click.echo(f"{found.id} is at commit {found.source['revision']} of {found.source['endpoint']}")
    if lost := found.source.get("lost"):
        click.echo(f"written to {found.folder.path}; lost: {lost}", err=True)


@base_models.command("list")
@store_option
@json_option
def list_base_models(store: StoreName, as_json: bool) -> None:
    """List base models, their folders, and where they are from."""
    with opened(store) as platform:
        show_values(as_json, (*COLUMNS, "source") if as_json else COLUMNS, platform.base_models())

"""Commands for base models in local folders."""

from decimal import Decimal, InvalidOperation
from pathlib import Path

import click

from modelyard.cli.lazy_group import Group
from modelyard.cli.terminal import StoreName, json_option, opened, printable_store, show_values, store_option
from modelyard.domain.catalogue import Pricing
from modelyard.parts.torch.records import Tuning

COLUMNS = (
    "id",
    "name",
    "architecture",
    "quantization",
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
    """Manage base models in local folders."""


@base_models.command("add")
@store_option
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--id", "model_id", required=True, help="How requests name it.")
@click.option("--name", help="Its name in the catalogue; its id by default.")
@click.option("--price-prompt", type=usd, default="0", help="Per token of a prompt.")
@click.option("--price-completion", type=usd, default="0", help="Per token of an answer.")
@click.option("--full", is_flag=True, help="Train the weights themselves, not an adapter: for small models.")
def add_base_model(
    store: StoreName,
    path: Path,
    model_id: str,
    name: str | None,
    price_prompt: Decimal,
    price_completion: Decimal,
    full: bool,
) -> None:
    """Offer the model in the folder PATH (transformers format, safetensors) under an id, and train on it.

    Every file is read once, for its digest.
    """
    with (
        opened(store, must_exist=False) as platform,
        click.progressbar(length=1, label=f"reading {path}") as bar,
    ):

        def read(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        entry = platform.add_base_model(
            path,
            id=model_id,
            name=name,
            pricing=Pricing(prompt=price_prompt, completion=price_completion),
            tuning=Tuning.FULL if full else Tuning.LORA,
            progress=read,
        )
    click.echo(f"{entry.id} is offered from now on by every process that opens {printable_store(store)}")


@base_models.command("list")
@store_option
@json_option
def list_base_models(store: StoreName, as_json: bool) -> None:
    """List base models and their folders."""
    with opened(store) as platform:
        show_values(as_json, COLUMNS, platform.base_models())

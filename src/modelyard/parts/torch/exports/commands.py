"""Commands that take checkpoints elsewhere, and adapters in: `modelyard models export`, `push` and `import`."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import click

from modelyard.cli.terminal import StoreName, in_own_name, not_empty, opened, store_option
from modelyard.parts.torch.commands import shown_on
from modelyard.parts.torch.exports.service import ExportForm
from modelyard.report.table import printable

C = TypeVar("C", bound=Callable[..., Any])


def _checkpoint_options(command: C) -> C:
    """Add what names a checkpoint and its form."""
    for option in reversed(
        (
            click.option(
                "--step", type=click.IntRange(min=0), help="The step of the checkpoint.  [default: the latest]"
            ),
            click.option("--alias", callback=not_empty, help="The alias of the checkpoint, such as prod."),
            click.option("--merged", is_flag=True, help="All weights in the transformers format, not the adapter."),
            click.option(
                "--gguf",
                type=click.Choice(["f16", "q8_0", "bf16", "f32"]),
                help="All weights in one file, as llama.cpp reads it.",
            ),
            click.option(
                "--dtype",
                type=click.Choice(["float32", "bfloat16", "float16"]),
                help="The numbers of merged weights.  [default: those of the base model]",
            ),
            click.option("--license", callback=not_empty, help="Its id for the model card, such as apache-2.0."),
        )
    ):
        command = option(command)
    return command


@click.command()
@store_option
@click.argument("model")
@click.option("--to", required=True, callback=not_empty, help="The new folder or file; or s3://bucket/prefix.")
@_checkpoint_options
def export_model(store: StoreName, model: str, to: str, **options: Any) -> object:
    """Write a checkpoint of MODEL where others load it.

    As an adapter folder for peft and vLLM, merged into its base model, or as a GGUF file.
    """
    with opened(store) as platform, click.progressbar(length=1, label=f"writing {printable(to)}") as bar:
        in_own_name(platform).models.export(model, to, progress=shown_on(bar), **options)
    click.echo(f"wrote {printable(to)}")
    return {"model": model, "to": to}


@click.command()
@store_option
@click.argument("model")
@click.argument("name", metavar="ORG/NAME")
@click.option("--public", is_flag=True, help="Let everybody see a model that is new on the hub.  [default: private]")
@click.option("--revision", callback=not_empty, help="The branch to commit to.  [default: the main branch]")
@_checkpoint_options
def push_model(store: StoreName, model: str, name: str, public: bool, revision: str | None, **options: Any) -> object:
    """Send a checkpoint of MODEL to a hub.

    As one commit, with the token of HF_TOKEN or of `hf auth login`.
    """
    step, alias = options.pop("step"), options.pop("alias")
    with opened(store) as platform, ExitStack() as held:
        push, form = in_own_name(platform).models.push, ExportForm(**options)
        with click.progressbar(length=1, label=f"writing {printable(model)}") as bar:
            send = held.enter_context(push.written(model, name, step, alias, form, shown_on(bar)))
        made = send(private=not public, revision=revision, shown=sys.stderr.isatty())
    click.echo(f"{made.url} is at commit {made.commit}")
    return made


@click.command()
@store_option
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("model")
@click.option("--project", help="The project of a model that is new.")
@click.option("--base-model", callback=not_empty, help="The base model of a new model.  [default: the adapter's own]")
def import_adapter(store: StoreName, folder: Path, model: str, project: str | None, base_model: str | None) -> object:
    """Add the adapter in FOLDER to MODEL.

    It was saved by peft, and becomes the next checkpoint of MODEL, which is made if it is new.
    """
    with opened(store) as platform:
        made = in_own_name(platform).models.import_adapter(folder, model, project=project, base_model=base_model)
    click.echo(f"{printable(model)} has it as step {made.step}, {made.digest}")
    return {"model": model, "step": made.step, "digest": made.digest}

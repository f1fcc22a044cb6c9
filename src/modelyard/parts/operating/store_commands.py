"""`modelyard migrate` and `modelyard copy`: stores of older versions, and stores of another kind."""

from contextlib import ExitStack, closing
from pathlib import Path

import click

from modelyard.cli.lazy_group import parts_of
from modelyard.cli.terminal import (
    StoreName,
    StoreType,
    made_whole,
    named_factory,
    printable_store,
    require_store,
    store_option,
)
from modelyard.compose import open_store, store_address
from modelyard.domain.schema import records_of
from modelyard.parts import copying
from modelyard.stores import schema_changes


@click.command()
@store_option
def migrate(store: StoreName) -> None:
    """Bring the tables of an older version to this one. A file is also migrated when it is opened.

    A database without tables is left as it is, so that this may run before the first server.
    """
    if named_factory() is not None:
        raise click.UsageError("name the store itself with --store: a factory may open any")
    parts = parts_of(click.get_current_context())
    if isinstance(store, Path):
        require_store(store)
        open_store(store, parts=parts).close()
        click.echo(f"{store} is up to date")
        return
    address = store_address(store, parts)
    assert address is not None
    if not address.exists(store):
        click.echo(f"{printable_store(store)} has no tables yet; `modelyard serve` makes them")
        return
    for name in address.migrate(store, records_of(parts), schema_changes.changes_of(parts)):
        click.echo(name)
    click.echo(
        f"{printable_store(store)} is up to date; servers of an older version refuse to write until they restart"
    )


@click.command()
@click.argument("source", type=StoreType(), metavar="SOURCE")
@click.argument("target", type=StoreType(), metavar="TARGET")
def copy(source: StoreName, target: StoreName) -> None:
    """Copy every record from SOURCE to TARGET, each a file or the address of a database, and compare the two.

    What is written to SOURCE after the beginning is not copied: stop everything that writes to it first. Until the end
    nothing else opens TARGET, which must be new; a copy that was interrupted continues. Files of checkpoints and
    training data are not in the store: copy the folder or the bucket of artifacts, too.
    """
    require_store(source)
    parts = parts_of(click.get_current_context())
    declared = records_of(parts)
    with ExitStack() as stores:
        kept = stores.enter_context(closing(open_store(source, parts=parts)))
        stores.enter_context(made_whole(target))
        copied = stores.enter_context(closing(copying.open_for_copy(target, parts)))
        records = copying.size_of(kept, declared)
        to_do = 3 * records - copying.size_of(copied, declared)  # read from one, written to the other, compared
        with click.progressbar(length=to_do, label=f"{records} records") as bar:
            copying.copy_store(kept, copied, declared, bar.update)
    click.echo(f"{printable_store(target)} has the {records} records of {printable_store(source)}")

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
from modelyard.domain.worker import ProcessRecord, WorkerProcess
from modelyard.parts import copying
from modelyard.platform.jobs.announced import forget_all
from modelyard.process_identity import died_here
from modelyard.protocols import Store
from modelyard.stores import schema_changes


@click.command()
@store_option
def migrate(store: StoreName) -> object:
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
        return {"store": store, "changes": []}
    address = store_address(store, parts)
    assert address is not None
    if not address.exists(store):
        click.echo(f"{printable_store(store)} has no tables yet; `modelyard serve` makes them")
        return {"store": printable_store(store), "changes": []}
    made = address.migrate(store, records_of(parts), schema_changes.changes_of(parts))
    for name in made:
        click.echo(name)
    click.echo(
        f"{printable_store(store)} is up to date; servers of an older version refuse to write until they restart"
    )
    return {"store": printable_store(store), "changes": made}


@click.command()
@click.argument("source", type=StoreType(), metavar="SOURCE")
@click.argument("target", type=StoreType(), metavar="TARGET")
def copy(source: StoreName, target: StoreName) -> object:
    """Copy every record from SOURCE to TARGET, each a file or the address of a database, and compare the two.

    What is written to SOURCE after the beginning is not copied: stop everything that writes to it first. If it has
    another number of records in the end, the copy fails. Until the end nothing else opens TARGET, which must be new; a
    copy that was interrupted continues. Files of checkpoints and
    training data are not in the store: copy the folder or the bucket of artifacts, too.
    """
    require_store(source)
    parts = parts_of(click.get_current_context())
    declared = records_of(parts)
    with ExitStack() as stores:
        kept = stores.enter_context(closing(open_store(source, parts=parts)))
        stores.enter_context(made_whole(target))
        copied = stores.enter_context(closing(copying.open_for_copy(target, parts)))
        _say_who_has_it_open(kept, source)
        records = copying.size_of(kept, declared)
        to_do = 3 * records - copying.size_of(copied, declared)  # read from one, written to the other, compared
        bar = stores.enter_context(click.progressbar(length=to_do, label=f"{records} records"))
        with copying.unfinished(copied, declared, again=True):
            copying.copy_records(kept, copied, declared, bar.update)
            there, here = copying.size_of(copied, declared), copying.size_of(kept, declared)
            if there != here:
                raise click.ClickException(
                    f"{printable_store(source)} was written to meanwhile: it has {here} records, and the copy {there}."
                    f" Stop what writes to it, remove {printable_store(target)}, and copy again"
                )
            copied.transact(forget_all)
    click.echo(f"{printable_store(target)} has the {records} records of {printable_store(source)}")
    return {"source": printable_store(source), "target": printable_store(target), "records": records}


def _say_who_has_it_open(store: Store, name: StoreName) -> None:
    """Write a line to standard error if processes that have not died may write to a store."""
    records = (WorkerProcess, ProcessRecord)
    found = [one for cls in records for one in store.read(lambda snapshot, cls=cls: snapshot.page(cls, "all"))]  # type: ignore[misc]
    numbers = {one.process.rpartition("/")[2].partition("-")[0] for one in found if not died_here(one.process)}
    if numbers:
        who = f"seems to be open in {', '.join(sorted(numbers))}: what these processes write from now on is not copied"
        click.echo(f"note: {printable_store(name)} {who}; stop them first", err=True)

"""The commands of variants and of their aliases."""

from pathlib import Path

import click

from modelyard.cli.lazy_group import Group
from modelyard.cli.names import verdict_text
from modelyard.cli.terminal import (
    StoreName,
    entity_option,
    in_own_name,
    json_option,
    opened,
    show,
    show_fields,
    show_values,
    store_option,
)
from modelyard.domain.promotion import NotWorse
from modelyard.parts.variants.records import VariantMove, VariantVersion
from modelyard.parts.variants.service import Variants
from modelyard.platform.models.promotion import PROD

LISTED = ("entity", "project", "name", "last_number", "created_at")
VERSION = ("number", "digest", "parent", "by", "note", "created_at")
ALIAS = ("name", "number", "previous", "updated_at")

_alias_option = click.option("--alias", default=PROD, show_default=True, help="The alias that moves.")


@click.group(cls=Group)
def variants() -> None:
    """Publish, compare and promote what you serve."""


@variants.command("list")
@store_option
@entity_option
@json_option
def list_variants(store: StoreName, entity: str | None, as_json: bool) -> None:
    """List variants."""
    with opened(store) as platform:
        show_values(as_json, LISTED, list(platform.part(Variants).list(entity=entity)))


@variants.command("show")
@store_option
@click.argument("variant")
@json_option
def show_variant(store: StoreName, variant: str, as_json: bool) -> None:
    """List the versions of VARIANT (project/name), and its aliases."""
    with opened(store) as platform:
        versions, aliases = list(platform.part(Variants).versions(variant)), platform.part(Variants).aliases(variant)
    if as_json:
        named = [[alias.name for alias in aliases if alias.number == one.number] for one in versions]
        values = [
            [*(getattr(one, column) for column in VERSION), names] for one, names in zip(versions, named, strict=True)
        ]
        show(True, (*VERSION, "aliases"), values)
        return
    show_values(False, VERSION, versions)
    if aliases:
        click.echo()
        show_values(False, ALIAS, aliases)


@variants.command("import")
@store_option
@click.argument("file", type=click.Path(dir_okay=False, exists=True, path_type=Path))
@click.option("--as", "name", help="Under this name (project/name) instead of the one in the file.")
@click.option("--note", default="", help="Why it was made.")
@json_option
def import_variant(store: StoreName, file: Path, name: str | None, note: str, as_json: bool) -> None:
    """Publish what FILE says as the next version. The same again makes none."""
    text = file.read_bytes().decode(errors="surrogateescape")
    with opened(store) as platform:
        made = in_own_name(platform).part(Variants).read_file(text, name=name, note=note)
    _say(made, as_json)


def _say(made: VariantVersion, as_json: bool) -> None:
    if as_json:
        show_fields([(name, getattr(made, name)) for name in ("id", *VERSION)], as_json=True)
    else:
        click.echo(f"version {made.number}, {made.digest}")


@variants.command("export")
@store_option
@click.argument("version")
def export_variant(store: StoreName, version: str) -> object:
    """Print VERSION (project/name@3, project/name@prod, project/name) as a file to review."""
    with opened(store) as platform:
        written = platform.part(Variants).file(version)
    click.echo(written.encode(), nl=False)
    return {"version": version, "file": written}


@variants.command("diff")
@store_option
@click.argument("before")
@click.argument("after")
def diff_variants(store: StoreName, before: str, after: str) -> object:
    """Show how the versions BEFORE and AFTER differ."""
    with opened(store) as platform:
        found = platform.part(Variants).diff(before, after)
    click.echo(found.text, nl=False)
    return {"before": found.before.number, "after": found.after.number, "changed": found.changed, "diff": found.text}


@variants.command("promote")
@store_option
@click.argument("variant")
@click.argument("number", type=click.IntRange(min=1))
@_alias_option
@click.option("--not-worse", metavar="EVALUATION", help="Only if its run of this is not worse than the current one's.")
def promote_variant(store: StoreName, variant: str, number: int, alias: str, not_worse: str | None) -> object:
    """Point an alias of VARIANT at the version NUMBER."""
    require = None if not_worse is None else NotWorse(not_worse)
    with opened(store) as platform:
        return _moved(in_own_name(platform).part(Variants).promote(variant, number, alias, require=require))


@variants.command("rollback")
@store_option
@click.argument("variant")
@_alias_option
def roll_back_variant(store: StoreName, variant: str, alias: str) -> object:
    """Point an alias of VARIANT back to where it pointed before."""
    with opened(store) as platform:
        return _moved(in_own_name(platform).part(Variants).rollback(variant, alias))


def _moved(made: VariantMove) -> VariantMove:
    before = "" if made.before is None else f", before to version {made.before}"
    click.echo(f"{made.alias} points to version {made.number}{before}{verdict_text(made.verdict)}")
    return made


@variants.command("unalias")
@store_option
@click.argument("variant")
@click.argument("alias")
def remove_variant_alias(store: StoreName, variant: str, alias: str) -> object:
    """Remove ALIAS of VARIANT; its history stays."""
    with opened(store) as platform:
        made = in_own_name(platform).part(Variants).remove_alias(variant, alias)
    click.echo(f"removed {made.alias}")
    return made


@variants.command("delete")
@store_option
@click.argument("variant")
def delete_variant(store: StoreName, variant: str) -> object:
    """Delete VARIANT with all of its versions, if no alias points to one."""
    with opened(store) as platform:
        found = platform.part(Variants).delete(variant)
    click.echo(f"deleted {found.project}/{found.name}")
    return found

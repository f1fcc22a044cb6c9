"""Changes of the tables of `episodes` between versions, oldest first."""

from modelyard.parts.episodes.records import Episode, EpisodeGroup, EpisodeTurn
from modelyard.stores.table_changes import AddColumn, AddTable, SchemaChange

CHANGES: tuple[SchemaChange, ...] = (
    SchemaChange("episodes/0001_tables", [AddTable(EpisodeGroup), AddTable(Episode), AddTable(EpisodeTurn)]),
    SchemaChange("episodes/0002_packed_turns", ()),  # versions before it cannot read what turns keep since then
    SchemaChange("episodes/0003_seeds", [AddColumn(EpisodeGroup, "seed", int)]),
)

"""The contract of every part, to run on your own:

    class TestNotes(PartContract):
        @pytest.fixture
        def part(self):
            return NOTES

        def fill(self, platform):
            platform.part(Notes).add("call them back")

        def clear(self, platform):
            for note in platform.part(Notes).list():
                platform.part(Notes).delete(note.id)

`fill` stores at least one record of every class of the part. It gets the platform as the host sees it whose own entity
is one tenant, and is called for a second tenant too. `clear` deletes what it has stored, where a user can do that.
`shared` are names that it takes next to others on purpose, such as "route POST /graphql".
`of_host` are the classes whose records belong to the host and to no entity. `home` is the module with the part, where
its functions do not say it.
"""

from modelyard.parts.contracts.part_names import PartNameLaws
from modelyard.parts.contracts.part_records import PartRecordLaws
from modelyard.parts.contracts.part_routes import PartRouteLaws
from modelyard.parts.contracts.part_tenants import TenantLaws

__all__ = ["PartContract"]


class PartContract(PartRecordLaws, TenantLaws, PartRouteLaws, PartNameLaws):
    """The laws of `modelyard.parts.Part`, for the fixture `part` and what `fill` stores."""

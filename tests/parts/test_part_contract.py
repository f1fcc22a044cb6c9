"""Every standard part keeps the contract of parts."""

from collections.abc import Callable, Mapping

import pytest

from modelyard import Platform
from modelyard.part import Part
from modelyard.parts import STANDARD
from modelyard.parts.routers.records import RouterListing
from modelyard.parts.torch.records import BaseModel
from modelyard.testing import PartContract
from part_tests import in_common

pytestmark = pytest.mark.slow

FILLED: Mapping[str, Callable[[Platform], None]] = in_common("fill")
CLEARED: Mapping[str, Callable[[Platform], None]] = in_common("clear")


@pytest.fixture(params=STANDARD, ids=lambda part: part.name)
def standard(request: pytest.FixtureRequest) -> Part:
    part: Part = request.param
    return part


class TestStandardParts(PartContract):
    of_host = (BaseModel, RouterListing)
    shared = ("route POST /graphql",)  # what uploads answer there, traces ask too: a platform may have one or both

    @pytest.fixture
    def part(self, standard: Part) -> Part:
        self.name, self.home = standard.name, f"modelyard.parts.{standard.name}.part"
        return standard

    def fill(self, platform: Platform) -> None:
        if self.name not in FILLED:
            pytest.skip("this part keeps nothing")
        FILLED[self.name](platform)

    def clear(self, platform: Platform) -> None:
        if self.name not in CLEARED:
            pytest.skip("nothing is deleted")
        CLEARED[self.name](platform)

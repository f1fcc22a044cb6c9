"""Requests for embeddings ask the budget of their project, too."""

from decimal import Decimal

import attrs
import pytest

from modelyard import open_platform
from modelyard.domain.catalogue import Pricing
from modelyard.errors import BudgetExceeded


def test_embeddings_are_bounded_by_the_budget_of_their_project() -> None:
    with open_platform() as platform:
        echo = platform.catalogue.get("echo")
        platform.catalogue.register(attrs.evolve(echo, pricing=Pricing(request=Decimal(1))))
        platform.usage.set_budget(1, project="a")
        platform.embeddings.create(model="echo", input="x", project="b")
        platform.embeddings.create(model="echo", input="x", project="a")
        with pytest.raises(BudgetExceeded, match="project a"):
            platform.embeddings.create(model="echo", input="x", project="a")

"""No completion costs more than what its budget was asked for."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.domain.catalogue import Pricing
from modelyard.domain.completion import Usage
from modelyard.domain.usage import cost

prices = st.integers(0, 9).map(lambda digit: Decimal(digit).scaleb(-7))
tokens = st.integers(0, 1000)


@pytest.mark.slow
@given(st.builds(Pricing, prices, prices, prices, prices, prices), tokens, tokens, tokens)
def test_the_dearest_prices_bound_the_cost_however_many_tokens_are_cached(
    pricing: Pricing, prompt: int, cached: int, completion: int
) -> None:
    bound = cost(Usage(prompt, completion), pricing.dearest())
    costs = [cost(Usage(prompt, completion, part), pricing) for part in (0, min(cached, prompt), prompt)]
    assert max(costs) <= bound
    assert bound in (costs[0], costs[-1])

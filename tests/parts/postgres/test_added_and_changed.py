"""A record that has a number in the order of appearance is added and changed in one transaction."""

import attrs

from modelyard import ScriptedBackend, open_platform
from modelyard.parts.variants.records import Variant
from modelyard.protocols import Tx


def test_a_record_is_changed_in_the_transaction_that_adds_it(yard_address: str) -> None:
    with open_platform(yard_address, backend=ScriptedBackend("yes", ["assistant"])) as platform:
        made = [platform.variants.publish("desk/support", model="assistant", system=text) for text in ("one", "two")]
        assert [one.number for one in made] == [1, 2]

        def step(tx: Tx) -> None:
            variant = attrs.evolve(tx.get(Variant, made[0].variant_id), id="other", name="other", seq=0)
            tx.add(variant)
            for number in (7, 8):
                tx.replace(attrs.evolve(variant, last_number=number))

        platform._runtime.store.transact(step)
        assert platform.variants.get("other").last_number == 8
        first, other = platform.variants.list(order="asc")
        assert first.seq < other.seq

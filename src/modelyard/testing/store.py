"""The contract of every store, to be run on your own:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self, tmp_path):
            store = MyStore(tmp_path / "records", CONTRACT_RECORDS)
            yield store
            store.close()

A store that outlives its object also overrides `reopen(self, store)`: close it and open the same records anew.
`machine_over` adds a search for histories in which a store and a plain dictionary disagree; `RunTwiceStore` runs any
of it, or a whole service, with every step repeated.
"""

from modelyard.testing.run_twice import RunTwiceStore
from modelyard.testing.store_machine import StoreMachine, machine_over
from modelyard.testing.store_records import RecordLaws
from modelyard.testing.store_steps import StepLaws
from modelyard.testing.store_values import CONTRACT_RECORDS

__all__ = ["CONTRACT_RECORDS", "RunTwiceStore", "StoreContract", "StoreMachine", "machine_over"]


class StoreContract(RecordLaws, StepLaws):
    """The laws of `modelyard.protocols.Store`. The fixture `store` is opened with `CONTRACT_RECORDS` and empty."""

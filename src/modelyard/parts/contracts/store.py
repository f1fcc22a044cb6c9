"""The contract of every store, to run on your own implementation:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self, tmp_path):
            store = MyStore(tmp_path / "records", CONTRACT_RECORDS)
            yield store
            store.close()

A store that outlives its object also overrides `reopen(self, store)`: close it and open the same records again. If
several objects may share the records, it overrides `another(self, store)`, which returns a function that opens another.
`machine_over` searches longer than the contract does for histories in which a store and a plain dictionary disagree;
`RunTwiceStore` runs any of it, or a whole service, with every step repeated; `DomainStore` fails a step that leaves its
declared domains.
"""

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from modelyard.parts.contracts.store_additions import AdditionLaws
from modelyard.parts.contracts.store_domains import DomainLaws
from modelyard.parts.contracts.store_machine import StoreMachine, machine_on, machine_over
from modelyard.parts.contracts.store_order import OrderLaws
from modelyard.parts.contracts.store_queues import QueueLaws
from modelyard.parts.contracts.store_records import RecordLaws
from modelyard.parts.contracts.store_settings import SettingsLaws
from modelyard.parts.contracts.store_steps import StepLaws
from modelyard.parts.contracts.store_totals import TotalLaws
from modelyard.parts.contracts.store_values import CONTRACT_RECORDS
from modelyard.protocols import Store
from modelyard.testing.run_twice_store import RunTwiceStore

__all__ = ["CONTRACT_RECORDS", "RunTwiceStore", "StoreContract", "StoreMachine", "machine_over"]

_quick = settings(
    max_examples=15,
    stateful_step_count=15,
    deadline=None,
    database=None,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)


class StoreContract(RecordLaws, TotalLaws, AdditionLaws, StepLaws, OrderLaws, DomainLaws, SettingsLaws, QueueLaws):
    """The laws of `modelyard.protocols.Store`. The fixture `store` is opened with `CONTRACT_RECORDS` and empty."""

    def test_no_history_tells_it_from_a_dictionary(self, store: Store) -> None:
        run_state_machine_as_test(machine_on(store), settings=_quick)

"""The contract of each protocol, as a class of tests that an implementation runs."""

import sys

if "pytest" in sys.modules:
    # So that a law that is broken shows by which values, as in a test of one's own.
    sys.modules["pytest"].register_assert_rewrite(
        *(
            f"{__name__}.{module}"
            for module in (
                "artifacts",
                "authenticator",
                "backend",
                "executor",
                "part_contract",
                "part_names",
                "part_records",
                "part_routes",
                "part_tenants",
                "part_trial",
                "step_trainer",
                "store",
                "store_domains",
                "store_machine",
                "store_records",
                "store_steps",
                "store_values",
                "trainer",
            )
        )
    )

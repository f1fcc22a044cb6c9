"""From an agent's traffic to a promoted prompt, as the example has it."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "from_traffic_to_promotion.py"


def test_the_example_comes_from_traffic_to_a_promoted_version() -> None:
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    said = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    assert {"live", "improved", "estimate", "what", "thumbs,", "cost"} <= {*said}
    assert "promoted, 100% of the users have version 2" in done.stdout
    assert "hours: nine to five." in done.stdout

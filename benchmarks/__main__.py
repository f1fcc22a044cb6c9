"""Every figure beside its floor, as one JSON object: python -m benchmarks [name ...] [> figures.json].

    python -m benchmarks compare REV_A REV_B [workload ...]    two commits in turns; "." is the working tree
    python -m benchmarks guard [--keep]                        instructions a completion, against the kept figure

Each benchmark runs in a process of its own and prints JSON; progress goes to standard error. Ratios are measured in
turns within one run, because an absolute time says more about the machine and the hour than about the code.
"""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks import _compare, _guard

HERE = Path(__file__).parent


def main() -> None:
    match sys.argv[1:]:
        case ["compare", first, second, *names]:
            _compare.main(first, second, *names)
        case ["guard", *arguments]:
            _guard.main(*arguments)
        case names:
            print(json.dumps(figures(names), indent=2))


def figures(names: list[str]) -> dict[str, object]:
    """What the benchmarks of these names print, or all but `peers`, which installs other libraries."""
    scripts = [
        path for path in sorted(HERE.glob("[a-z]*.py")) if path.stem in names or not (names or path.stem == "peers")
    ]
    found = {}
    for number, script in enumerate(scripts, 1):
        print(f"[{number}/{len(scripts)}] {script.stem}", file=sys.stderr, flush=True)
        done = subprocess.run([sys.executable, script], check=True, stdout=subprocess.PIPE, text=True)
        found[script.stem] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()

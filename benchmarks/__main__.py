"""Every figure beside its floor, as one JSON object: python -m benchmarks [name ...] [> figures.json].

Each benchmark runs in a process of its own and prints JSON; progress goes to standard error. Ratios are measured in
turns within one run, because an absolute time says more about the machine and the hour than about the code.
"""

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    named = sys.argv[1:]
    scripts = [path for path in sorted(HERE.glob("[a-z]*.py")) if not named or path.stem in named]
    figures = {}
    for number, script in enumerate(scripts, 1):
        print(f"[{number}/{len(scripts)}] {script.stem}", file=sys.stderr, flush=True)
        done = subprocess.run([sys.executable, script], check=True, stdout=subprocess.PIPE, text=True)
        figures[script.stem] = json.loads(done.stdout)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()

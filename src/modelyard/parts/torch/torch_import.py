"""The import of torch: its threads sleep while they wait for each other.

By default they spin, which doubles the processor time of a program whose cores have other work, too. The policy is read
when the library is loaded, and never again.
"""

import os
import sys
from importlib import import_module

_POLICY, _OTHERS = "OMP_WAIT_POLICY", ("GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def load_torch() -> None:
    """Import torch, unless the host has: its threads are the host's then, and wait as it wants.

    A policy that the environment has stays, and none is left in it.
    """
    if "torch" in sys.modules:
        return
    chosen = any(name in os.environ for name in (_POLICY, *_OTHERS))
    if not chosen:
        os.environ[_POLICY] = "PASSIVE"
    try:
        import_module("torch")
    finally:
        if not chosen:
            os.environ.pop(_POLICY, None)

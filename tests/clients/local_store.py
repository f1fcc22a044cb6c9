"""Make a store that lists a tiny local model as `local-mini`, where torch is: python local_store.py STORE."""

import sys
from pathlib import Path

from modelyard import open_platform
from modelyard.parts.torch.tiny_model import build_tiny_model


def main(store: str) -> None:
    folder = build_tiny_model(Path(store).with_name("local-mini"), "mini")
    with open_platform(store) as platform:
        platform.add_base_model(folder, id="local-mini")


if __name__ == "__main__":
    main(*sys.argv[1:])

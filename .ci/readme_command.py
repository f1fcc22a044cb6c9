"""Print one of the README's two commands: `quickstart` or `test`. Each is the only line of an `sh` block of its own."""

import re
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def commands(text: str) -> dict[str, str]:
    """Return the README's single-line shell blocks, by what they do."""
    blocks = [block.strip() for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)]
    single = [block for block in blocks if "\n" not in block]
    return {
        "quickstart": next(block for block in single if block.endswith("modelyard quickstart")),
        "test": next(block for block in single if "bin/pytest" in block),
    }


if __name__ == "__main__":
    print(commands(README.read_text())[sys.argv[1]])

"""`python -m modelyard.cli`."""

from modelyard.cli import main

main()

"""`python -m modelyard.cli` is the `modelyard` command."""

from modelyard.cli import main

if __name__ == "__main__":
    main()

"""The `modelyard` command, also `python -m modelyard`. An interrupt during its imports ends it without a traceback."""

import signal


def main() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from modelyard.cli import main as command  # noqa: PLC0415 - only now an interrupt is quiet

    signal.signal(signal.SIGINT, before)
    command()


if __name__ == "__main__":
    main()

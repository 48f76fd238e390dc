"""``python -m planner`` and the ``shardplan`` command."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line of this process; the exit code."""
    try:
        from planner.cli.run import run

        return run()
    except KeyboardInterrupt:  # before the command line was up to handle it
        sys.stderr.write("shardplan: stopped by Ctrl-C\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())

"""``python -m planner`` and the ``shardplan`` command."""

import gc
import signal
import sys
from typing import Final

from planner.cli.interrupt import EXIT_STOPPED, interrupt_in, signals_interrupt

_NEW_OBJECTS: Final = 50_000
"""After so many the collector looks for cycles. Python's own number is 700: while modules load it
would look many times and find nothing, in a tenth of the time that a short command takes."""


def main() -> int:
    """Run the command line of this process; the exit code, which no signal changes any more."""
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
    code = run_guarded()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    return code


def run_guarded() -> int:
    """Run the command line; Ctrl-C and SIGTERM are answered from here on, also while it loads."""
    with signals_interrupt():
        try:
            from planner.cli.run import run

            return run()
        except (KeyboardInterrupt, Exception) as error:
            interrupt = interrupt_in(error)
            if interrupt is None:
                raise
            sys.stderr.write(f"shardplan: stopped by {str(interrupt) or 'Ctrl-C'}\n")
            return EXIT_STOPPED


if __name__ == "__main__":
    sys.exit(main())

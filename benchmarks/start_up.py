"""How long the command line takes before it does anything, in new processes.

    python -m benchmarks.start_up

Prints, for some command lines, the best and the median seconds of several starts, with the start
of Python itself for comparison. That help imports nothing heavy is tested; how long that takes
depends on the machine, and is measured here.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

COMMANDS = (
    (),
    ("-m", "planner", "--version"),
    ("-m", "planner", "--help"),
    ("-m", "planner", "plan", "--help"),
    ("-m", "planner", "systems"),
    ("-m", "planner", "check", "small_demo"),
)


def seconds(words: tuple[str, ...]) -> float:
    """Of one start."""
    command = [sys.executable, *(words or ("-c", "pass"))]
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begun


def main() -> None:
    """Print a line per command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7, metavar="N")
    options = parser.parse_args()
    for words in COMMANDS:
        times = [seconds(words) for _ in range(options.repeats)]
        name = " ".join(("shardplan", *words[2:])) if words else "python"
        print(f"{name:28} best {min(times):.3f} s   median {statistics.median(times):.3f} s")


if __name__ == "__main__":
    main()

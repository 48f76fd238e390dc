"""How close the controller of plans in use comes to an oracle, on streams whose laws move.

    python -m benchmarks.search.drift --seeds 100-119 --looks 4

A line per stream: the time of the controller, of never and of always moving, over that of an oracle
that knows the future; the last lines are their medians, geometric means and worst.
"""

from __future__ import annotations

import argparse

import numpy as np

from tests.planner.drift.replay import LOOKS, replayed

WAYS = ("controlled", "never", "always")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="100-119", help="first and last seed of the streams")
    parser.add_argument("--looks", type=int, default=LOOKS, help="looks at the data in a period")
    asked = parser.parse_args()
    first, last = map(int, asked.seeds.split("-"))
    rows = []
    print("seed", *WAYS, "moves")
    for seed in range(first, last + 1):
        found = replayed(seed, asked.looks)
        rows.append([getattr(found, way) / found.oracle for way in WAYS])
        print(seed, *(f"{ratio:.4f}" for ratio in rows[-1]), found.moves, flush=True)
    table = np.array(rows)
    for name, row in (
        ("median", np.median(table, axis=0)),
        ("mean", np.exp(np.log(table).mean(axis=0))),
        ("worst", table.max(axis=0)),
    ):
        print(name, *(f"{ratio:.4f}" for ratio in row))


if __name__ == "__main__":
    main()

"""Fits constants that ship to the measured rows of configs/published, and prints them.

    python -m benchmarks.fit_published transformers    shares of rates: costmodels/sustained.py
    python -m benchmarks.fit_published attention       work of HSTU's attention: the same file
    python -m benchmarks.fit_published dense           kernels of dense parts: dense/_constants.py

``shardplan validate published`` says how far predictions with these constants are from the rows,
and from rows that a fit leaves out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict

from planner.validation import attention, dense_kernels, transformers
from planner.validation.dense_kernels import fit_kernels
from planner.validation.transformers import fitted_shares, unmeasured


def lines_of(what: str) -> list[str]:
    """The constants of a kind, a line for each device or constant."""
    if what == "dense":
        constants = asdict(fit_kernels(dense_kernels.points()))
        return [f"{name:26} {value:.3g}" for name, value in constants.items()]
    if what == "attention":
        return [
            f"{name + ' ' + passed:18} products {work.product_ratio:.3f}   FLOP of a score "
            f"{work.score_flops:.0f}   us of a block {work.block_s * 1e6:.2f}   of the start "
            f"{work.start_s * 1e6:.2f}"
            for name, both in attention.fit(attention.load_cases()).items()
            for passed, work in zip(("forward", "backward"), both, strict=True)
        ]
    shares = fitted_shares(transformers.load_cases())
    rest = {f"other devices {x}": unmeasured(shares, x) for x in ("fp32", "half")}
    return [
        f"{name:20} products {s.product_ratio:.3f}   memory {s.memory_ratio:.3f}   "
        f"flash 1 {s.flash_1_ratio:.3f}"
        for name, s in {**shares, **rest}.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the constants of the kind that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("transformers", "attention", "dense"))
    print("\n".join(lines_of(parser.parse_args(arguments).what)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

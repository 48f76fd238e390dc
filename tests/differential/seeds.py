"""The command that draws problem after problem and tells which ones break a promise."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Iterable

from rich.console import Console


def seed_parser(description: str | None, *, count: int) -> ArgumentParser:
    """Flags of such a command: how many problems, and the seed of the first.

    Args:
        description: of the module; its first line is shown.
        count: of problems where none is given.
    """
    parser = ArgumentParser(description=(description or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=count, help="number of problems")
    parser.add_argument("--start", type=int, default=0, help="seed of the first")
    return parser


def look_at(seeds: range, faults: Callable[[int], Iterable[str]], kept: str) -> int:
    """Print the faults of every seed and how many had none; 1 if any had one.

    Args:
        seeds: of the problems.
        faults: lines about the problem of a seed.
        kept: what the problems without faults do, such as ``problems keep every law``.
    """
    out, broken = Console(highlight=False, soft_wrap=True, markup=False), 0
    for seed in seeds:
        lines = list(faults(seed))
        broken += bool(lines)
        for line in lines:
            out.print(line)
    out.print(f"{len(seeds) - broken} of {len(seeds)} {kept}")
    return 1 if broken else 0

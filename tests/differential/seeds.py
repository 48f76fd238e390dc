"""The command that draws problem after problem and tells which ones break a promise."""

from __future__ import annotations

import warnings
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console

from tests.differential.case import Case
from tests.differential.drawing.problems import DRAWINGS


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


def look_at_drawn(
    arguments: Sequence[str] | None,
    description: str | None,
    faults_of: Callable[[Case, int], Iterable[str]],
    *,
    count: int,
    draw: str,
    kept: str,
) -> int:
    """Run such a command for problems of a kind that ``--draw`` names; 1 if any had a fault.

    Args:
        arguments: of the command; None for those it was started with.
        description: of the module; its first line is shown.
        faults_of: lines about a problem and its seed; warnings are errors meanwhile.
        count: of problems where none is given.
        draw: kind where none is given.
        kept: what the problems without faults do, such as ``problems keep every law``.
    """
    parser = seed_parser(description, count=count)
    parser.add_argument("--draw", choices=[*DRAWINGS], default=draw, help="kind of problems")
    flags = parser.parse_args(arguments)

    def faults(seed: int) -> list[str]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            lines = list(faults_of(DRAWINGS[flags.draw](seed), seed))
        return [f"seed {seed}: {line}" for line in lines]

    return look_at(range(flags.start, flags.start + flags.count), faults, kept)


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

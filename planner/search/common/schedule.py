"""How one search shares out its work, when its phases end, and up to which size methods are used.

Work is counted in nominal seconds (:mod:`planner.space.effort`), which are the same on every
machine. *All work* is what the search plans with (``Meter.planned_s``), *the work left* is what it
has not spent yet (``Meter.left_s``). A share of work is a number from 0 to 1.

One number serves every place where the same thing is weighed: there were 79, and random factors
between 1/2 and 2 on all of them made plans from 0.54 % better to 0.12 % worse.

Numerical tolerances, and numbers that belong to one algorithm, stand beside the algorithm.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The numbers behind the phases of :class:`planner.search.auto.Auto`."""

    # -- shares of the work -----------------------------------------------------------------------

    turn_share: float = 0.3
    """Share of the work that one method may take before the others have had their turn: the chain
    of moves from the plan in use, each of the first cycles, boxes while these run, and the packing
    bound."""
    start_share: float = 0.06
    """Share of all work for what only prepares: packings, greedy plans, plans rounded from bounds,
    an early cycle, and each row of boxes."""
    further_s: float = 2.0
    """Nominal seconds of work left from which on a second search is worth its process, and the
    bound under a limit on moves comes before the first cycle."""

    # -- sizes up to which methods are used -------------------------------------------------------

    exhaustive_s: float = 1.0
    """Nominal seconds within which every plan is priced instead of searched for. The answer is then
    optimal; with a larger value small problems would take longer."""
    most_entries: int = 5_000_000
    """Most numbers of an array that one method keeps in memory or sends to another process: the
    work of all choices of all tables, that of all options, or what every option would move to every
    rank."""
    program_entries: int = 400_000
    """Most coefficients of the rows about ranks in the program of the bound under a limit on moves.
    The ranks of least load are left out beyond it: the program is smaller, and its bound lower."""
    few_tables: int = 150
    """Tables up to which single ones matter to bounds, so that each set of sharding types says
    whether tables are replicated."""
    type_sets: int = 32
    """Most sets of sharding types that each get a bound of their own. With more sets, cuts hold for
    fewer plans and bounds are higher, but each set takes linear programs of its own."""
    second_size: int = 200
    """Tables times ranks from which on a second search runs beside the first. In a smaller problem
    it takes longer to start a process than such a search is worth."""

    # -- how much at a time -----------------------------------------------------------------------

    boxes: int = 25
    """Most boxes in a row, after which plans are improved again."""
    starts: int = 3
    """Plans of a batch that cycles begin with, the best ones, and sets of sharding types that
    prices are sampled for. Each takes work from cycles around the best plan."""
    steps_per_table: int = 4
    """Steps in each stage of a cycle of effort 1, for each table. A step takes out one to five
    tables, or shares out the pieces of two ranks or hosts, so that every table is taken out a few
    times in a stage."""
    most_steps: int = 300
    """Most steps in each stage of a cycle of effort 1. Longer cycles go further, and fewer of them
    fit into the budget."""
    samples: int = 12
    """Prices that are sampled at a time, with effort 1, for each set of sharding types, before the
    other methods get their turn. A sample takes about as long as ten steps of a cycle."""

    # -- until nothing helps ----------------------------------------------------------------------

    effort_factor: float = 2.0
    """Factor by which the effort of a method grows if it has helped, or if none has; it falls by
    this factor if only others have helped. One below 1 is the least effort, and that of cycles that
    begin with other plans than the best one."""
    most_effort: float = 4.0
    """Most effort of a method, so that the others get their turn; the effort of the first sampling
    of prices where no second search samples too, and each time the search begins anew."""
    idle_rounds: int = 2
    """Rounds of cycles and sampled prices in a row without a better plan after which these
    rounds end. With a larger number searches end later, with plans that may be better."""
    fresh_starts: int = 3
    """Times that the search for plans begins anew, with other prices and plans, while the gap is
    wide."""
    wide_gap_ratio: float = 0.01
    """Gap, as a share of the plan's value, above which the search begins anew. A narrower gap
    leaves little to find."""

    @property
    def least_effort(self) -> float:
        """Effort of a method that has not helped, and of cycles from other plans than the best."""
        return 1.0 / self.effort_factor

    def steps(self, num_tables: int) -> int:
        """Steps in each stage of a cycle of effort 1."""
        return min(self.steps_per_table * num_tables, self.most_steps)


USUAL: Final = Schedule()
"""The schedule of every search."""

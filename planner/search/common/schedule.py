"""How one search shares out its work, when its phases end, and up to which size methods are used.

Work is counted in nominal seconds (:mod:`planner.space.effort`), which are the same on every
machine. *All work* is what the search plans with (``Meter.planned_s``), *the work left* is what it
has not spent yet (``Meter.left_s``). A share of work is a number from 0 to 1.

Each number says what it decides and what it trades against what. Where a test shows the effect of
a value, the test is named; no other value is claimed to be the best one. What each part of the
search contributes is printed by ``python -m benchmarks.search.ablation``.

Numerical tolerances, and numbers that belong to one algorithm, stand beside the algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The numbers behind the phases of :class:`planner.search.auto.Auto`, about in their order."""

    # -- instead of a search ----------------------------------------------------------------------

    exhaustive_s: float = 1.0
    """Nominal seconds within which every plan is priced instead of searched for. The answer is then
    optimal; with a larger value small problems would take longer."""
    exhaustive_entries: int = 5_000_000
    """Numbers in the work of all choices of all tables, up to which every plan is priced. All of
    them are kept in memory at once, eight bytes each."""

    # -- plans under rules that couple tables -----------------------------------------------------

    chains_share: float = 0.4
    """Share of all work for a chain of moves away from the plan in use, under a limit on moves. It
    comes first, since few plans keep such a limit; the rest is for bounds and other plans."""
    packing_share: float = 0.1
    """Share of all work for packings before the search. They look at memory and rules alone, so
    that they find plans where others find none, but no fast ones."""

    # -- plans before bounds ----------------------------------------------------------------------

    long_search_s: float = 1.0
    """Nominal seconds of all work above which the bound under a limit on moves is computed before
    the first plans are improved. A shorter search needs this work for its plan."""
    early_cycle_share: float = 0.3
    """Share of the work left that one early cycle may take. Small budgets end with a better plan if
    it is large, and with a better bound if it is small."""

    # -- the second search ------------------------------------------------------------------------

    second_size: int = 200
    """Tables times ranks from which on a second search runs beside the first. In a smaller problem
    it takes longer to start a process than such a search is worth."""
    second_bytes: float = 3e8
    """Most bytes of work rows that are copied to the process of the second search."""
    second_work_s: float = 2.0
    """Nominal seconds of work left from which on a second search begins. With less work left it is
    not worth the start of a process."""

    # -- the first bounds and their plans ---------------------------------------------------------

    type_sets: int = 16
    """Most sets of sharding types that each get a bound of their own. With more sets, cuts hold for
    fewer plans and bounds are higher, but each set takes linear programs of its own."""
    type_sets_of_few: int = 64
    """The same number where there are at most ``few_options`` options, since programs are small."""
    few_options: int = 300
    """Options of all tables together up to which programs count as small."""
    replicated_tables: int = 150
    """Tables above which every set of sharding types leaves open whether tables are replicated.
    That halves the number of sets, and gives up the start of one more kernel in the bound."""
    shrunk_tables: int = 1000
    """Tables above which a solution that needs too much device memory is changed table by table,
    not by a further linear program, which takes seconds at this size."""
    least_phase_tables: int = 400
    """Tables above which the least maximum of a phase is read off the options instead of computed
    by a linear program for each phase. Boxes then begin a little larger."""
    move_places: int = 1_000_000
    """Options times ranks above which a limit on moves is given no bound, because it takes too long
    to count what every option would move to every rank."""
    move_entries: int = 400_000
    """Most numbers (options that move nothing, times ranks, times tangents) of that bound. The
    ranks of least load are left out beyond it: the program is smaller, and its bound lower."""
    move_whole_tables: int = 150
    """Tables up to which that bound also moves whole tables, by a mixed-integer program. It is
    higher then; with many tables the program takes long, and a share of one table matters
    little."""
    move_nodes: int = 60
    """Most nodes of that mixed-integer program, which is solved for each set of sharding types."""
    greedy_share: float = 0.03
    """Share of all work for plans of greedy planners as starts, once there is any plan. More of
    these plans would take work from rounding and from cycles."""
    rounding_share: float = 0.06
    """Share of all work for plans rounded from the bounds of sets of sharding types, once one of
    them is rounded. Rounding fewer sets leaves more work for cycles from the best ones."""

    # -- boxes ------------------------------------------------------------------------------------

    first_boxes_share: float = 0.06
    """Share of all work for boxes before the first cycles. They raise the bound, and plans are
    rounded from them; the first cycles wait meanwhile."""
    boxes_share: float = 0.3
    """Share of the work done so far that all boxes may have taken while the first cycles run. A
    larger share gives higher bounds, a smaller one better plans."""
    boxes_times_options: int = 50_000
    """Boxes in a row, times the number of options. The work of a box is in proportion to the number
    of options, so that a row takes about the same work in every problem."""
    least_boxes: int = 4
    """Fewest boxes in a row, however many options there are."""
    most_boxes: int = 60
    """Most boxes in a row, so that plans are improved in between also where boxes take little
    work."""
    few_boxes: int = 25
    """Boxes in a row below which a row follows each way of improving plans, and the first cycles;
    otherwise a row follows the last way alone. Short rows need more turns for their part of the
    work."""
    boxes_gain_ratio: float = 1e-4
    """Share of the plan's value by which a row of boxes has to raise the bound; otherwise the rows
    after it are left out, ever more of them. It is the gap at which a plan counts as optimal. With
    26 tables on 16 and 64 ranks, rows that gained nothing took a quarter of all work."""
    boxes_per_rounding: int = 8
    """Of so many boxes in a row, the options of the first are rounded to plans. Rounding more of
    them takes work from splitting."""
    whole_tables: int = 400
    """Tables up to which mixed-integer programs raise the bound. With more tables the share that
    any of them is cut by matters little: the linear bound is within about 0.1 % of the other."""
    whole_box_options: int = 2_500
    """Options up to which a box is also solved by a mixed-integer program. With more of them such a
    program takes long, and splitting boxes is the only way."""
    whole_box_share: float = 0.1
    """Share of the time left by the clock that one such program of a box may take."""
    whole_share: float = 0.5
    """Share of the time left by the clock for one mixed-integer program where there are no boxes.
    The other half is for plans."""

    # -- cycles and sampled prices ----------------------------------------------------------------

    first_cycles: int = 5
    """Sets of sharding types whose best start gets a first cycle. More sets are more likely to
    contain that of the best plan, and leave less work for each."""
    first_cycle_factor: float = 1.05
    """Factor on the objective of the best plan, up to which a first cycle begins with the best
    start of a set of sharding types. Cycles from worse starts hardly ever come near the best plan:
    with 100 tables on 64 ranks they took half of all work for nothing."""
    first_cycle_share: float = 0.25
    """Share of the work left that one of the first cycles may take, so that boxes still raise the
    bound where cycles take long."""
    other_cycle_effort: float = 0.5
    """Effort of a cycle that begins with another plan than the best one. Cycles around the best
    plan begin with effort 1 and get more of it while they help."""
    short_cycle_effort: float = 0.25
    """Most effort of a cycle before there is a bound for each set of sharding types."""
    cycle_steps_per_table: int = 4
    """Steps in each stage of a cycle of effort 1, for each table. A step takes out one to five
    tables, or shares out the pieces of two ranks or hosts, so that every table is taken out a few
    times in a stage."""
    least_cycle_steps: int = 60
    """Fewest steps in each stage of a cycle of effort 1, however few tables there are."""
    most_cycle_steps: int = 300
    """Most steps in each stage of a cycle of effort 1. Longer cycles go further, and fewer of them
    fit into the budget."""
    samples: int = 24
    """Prices that are sampled at a time, with effort 1, for each set of sharding types, before the
    other ways get their turn. A sample takes about as long as a few steps of a cycle."""
    sampled_type_sets: int = 3
    """Sets of sharding types that prices are sampled for: that of the best plan, and those with the
    least bounds. With one set, 100 tables on 64 ranks get plans that are 6 % worse."""
    sampled_cycles: int = 2
    """Plans from sampled prices that cycles begin with, where the effort is more than usual."""
    first_samples_effort: float = 4.0
    """Effort of the first sampling of prices where no second search samples too, and of the first
    sampling each time the search begins anew. Sampling needs some points before it draws others
    around the best one."""

    # -- until nothing helps ----------------------------------------------------------------------

    idle_rounds: int = 2
    """Rounds of cycles and sampled prices in a row without a better plan after which these
    rounds end. With a larger number searches end later, with plans that may be better."""
    idle_rounds_beside: int = 1
    """The same number where a second search looks for plans and this one has boxes: its work is
    then worth more for the bound."""
    gain_ratio: float = 1e-5
    """Share of the objective by which a plan has to be better for a round to have helped. It is a
    tenth of the gap at which a plan counts as optimal (``OPTIMALITY_GAP``)."""
    effort_factor: float = 2.0
    """Factor by which the effort of a way of improving plans grows if the way has helped, or if no
    way has; it falls by this factor if only other ways have helped. A larger factor follows sooner
    what helps, also where that was luck."""
    least_effort: float = 0.5
    """Least effort of a way, so that it can still help later."""
    most_effort: float = 4.0
    """Most effort of a way, so that the others get their turn."""
    fresh_starts: int = 3
    """Times that the search for plans begins anew, with other prices and plans, while the gap is
    wide. With a larger number searches end later, with plans that may be better."""
    fresh_start_gap_ratio: float = 0.01
    """Gap, as a share of the plan's value, above which the search begins anew. A narrower gap
    leaves little to find."""

    # -- bounds from packings, for objectives that are sums of largest loads ----------------------

    packing_rounds: int = 3
    """Times that the packing bound is asked for other choices of options once nothing else helps;
    each time the plans of these choices are refined."""
    packing_whole_tables: int = 150
    """Tables up to which the packing bound chooses whole options; shares of options are as good
    with more tables."""
    packing_others_tables: int = 60
    """Tables up to which plans are also made of choices that the packing bound has ruled out
    together with what every rank carries."""

    # -- the bound by patterns, where ranks hold few pieces ----------------------------------------

    pattern_ranks: int = 32
    """Fewest ranks for the bound by patterns. With fewer ranks it proves less than boxes."""
    pattern_tables_per_rank: float = 2.0
    """Most tables for each rank. Where ranks hold many pieces, every phase can be balanced, and the
    linear bound is close already."""
    pattern_options: int = 300
    """Most options with pieces on single ranks or hosts. With more of them a target takes longer to
    prove than most searches last."""
    pattern_work_s: float = 2.0
    """Nominal seconds of work left from which on the bound by patterns is worth its process."""
    pattern_gap_ratio: float = 1e-3
    """Gap, as a share of the plan's value, from which on the bound by patterns begins."""


USUAL: Final = Schedule()
"""The schedule of every search that is not given another one."""

"""Rules that no plan can keep, whatever memory there is; named when a search finds no plan."""

from __future__ import annotations

from collections.abc import Sequence

from costmodels.sharding import ShardingOption, Spread
from planner.problem import Level
from planner.rules.placement_rules import Cap, PlacementRules


def unmet_rules(
    rules: PlacementRules, options: Sequence[Sequence[ShardingOption]]
) -> tuple[str, ...]:
    """One line for each limit that tables exceed even with their smallest options.

    Args:
        rules: the rules of the problem.
        options: the options of each table, in the order of the rules' tables.
    """
    lines = []
    for cap in rules.caps:
        members = (own for own, is_member in zip(options, cap.members, strict=True) if is_member)
        least = sum(min(_taken(cap, option, rules) for option in own) for own in members)
        places = rules.world_size if cap.level is Level.RANK else rules.num_hosts
        if least > cap.most * places:
            what = "tables" if cap.distinct else "shards"
            lines.append(
                f"{cap.text} leaves room for {cap.most * places:,} {what} over {places:,} "
                f"{cap.level.value}s, and the ways in which its tables may be cut take {least:,}"
            )
    return tuple(lines)


def rule_names(rules: PlacementRules) -> tuple[str, ...]:
    """Every rule that couples tables, in words."""
    moves = ("the limit on what moves",) if rules.budget is not None else ()
    return (*(cap.text for cap in rules.caps), *(union.text for union in rules.unions), *moves)


def _taken(cap: Cap, option: ShardingOption, rules: PlacementRules) -> int:
    """How much an option uses of a cap at least: places if tables count, otherwise shards."""
    local = rules.local_world_size
    if option.is_uniform:
        return rules.num_hosts if cap.distinct and cap.level is Level.HOST else rules.world_size
    block = local if option.spread is Spread.HOSTS else 1
    if cap.distinct:
        return block if cap.level is Level.RANK else 1
    return option.num_pieces * block

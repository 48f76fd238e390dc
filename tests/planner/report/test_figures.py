"""Whole tables are called whole, and abbreviations are explained where they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodels.sharding import ComputeKernel, Plan, ShardingOption, ShardingType, place
from planner.report import figures
from planner.report.sections.base import build_sections
from planner.result import PlanningResult

ROOT = Path(__file__).resolve().parents[3]
_RANKS, _DIM = 4, 64


def plan(*cuts: tuple[ShardingType, tuple[int, ...], tuple[int, ...]]) -> Plan:
    """One table for each (type, column widths, ranks), on one host of four ranks."""
    return Plan(
        placements=tuple(
            place(
                ShardingOption(
                    table=f"table_{i}",
                    sharding_type=kind,
                    kernel=ComputeKernel.DENSE
                    if kind is ShardingType.DATA_PARALLEL
                    else ComputeKernel.FUSED,
                    column_widths=widths,
                ),
                1000,
                ranks,
                world_size=_RANKS,
                local_world_size=_RANKS,
            )
            for i, (kind, widths, ranks) in enumerate(cuts)
        )
    )


MIXED = plan(
    (ShardingType.TABLE_WISE, (_DIM,), (0,)),
    (ShardingType.COLUMN_WISE, (_DIM,), (1,)),
    (ShardingType.TABLE_COLUMN_WISE, (_DIM,), (2,)),
    (ShardingType.COLUMN_WISE, (32, 32), (1, 2)),
    (ShardingType.DATA_PARALLEL, (_DIM,), ()),
)


def test_a_table_with_one_column_piece_is_whole() -> None:
    assert figures.sharding_kinds(MIXED) == ("TW 3", "CW 1", "DP 1")
    assert [figures.short_name(p) for p in MIXED.placements] == ["TW", "TW", "TW", "CW", "DP"]


def test_kinds_in_words_and_abbreviations_agree() -> None:
    assert figures.kinds_in_words(MIXED) == (
        "3 tables whole on one rank (TW)",
        "1 cut by columns (CW)",
        "1 copied to every rank (DP)",
    )
    assert figures.abbreviations((MIXED,)) == (
        "TW: whole on one rank; CW: cut by columns; DP: copied to every rank."
    )
    one = plan((ShardingType.ROW_WISE, (_DIM,), ()))
    assert figures.kinds_in_words(one) == ("1 table cut by rows over all ranks (RW)",)


def test_the_glossary_explains_every_abbreviation() -> None:
    rows = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    for kind, short in figures.SHORT_NAMES.items():
        assert any(row.startswith(f"| {short} | `{kind.value}` |") for row in rows), short


@pytest.mark.parametrize("name", ["summary", "tables", "alternatives"])
def test_every_abbreviation_of_a_section_is_explained_in_it(
    name: str, large_result: PlanningResult
) -> None:
    (section,) = build_sections(large_result, (name,))
    told = " ".join([*section.notes, *(part for fact in section.facts for part in fact.parts)])
    for short in ("TW", "RW", "DP"):
        assert f"({short})" in told or f"{short}: " in told

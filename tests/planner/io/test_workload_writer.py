"""What is written reads back as exactly what it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.training.communication import Codec, Codecs, Communication, Precision
from costmodels.workload import Feature, Pipeline, Table, Workload
from planner import io
from planner.errors import InvalidInputError
from planner.io.workload.workload_file import workload_text
from planner.problem import (
    Constraints,
    CountLimit,
    Level,
    MemoryLimit,
    TableConstraint,
    TableGroup,
)
from tests.counted import law_of_counts
from tests.strategies import laws, make_table, make_workload, workloads

NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\n"), min_size=1, max_size=20
).filter(lambda text: text.strip() == text)
TRICKY = (
    "no", "null", "1e6", "0x1f", "1_000", "a: b", "- x", "#c", "x #y", "'q'", '"', "{a}", "[b]",
    "*", "&a", "!t", "%", "@", "`", "~", "true", ".inf", "2024-01-01", "é", "x\u2028y",
    "\U0001f600", "a\tb", "\x07", "\ufeffx", "\u00a0".join("ab"), "back\\slash", "x" * 498, "|",
    ">",
)  # fmt: skip


def read_back(text: str, folder: Path) -> io.WorkloadFile:
    """What the file of that text holds."""
    path = folder / "written.yaml"
    path.write_text(text, encoding="utf-8")
    return io.load_workload_file(path)


@st.composite
def measured_laws(draw: DrawFn, rows: int) -> Empirical:
    """A law from counts, or with ranges and a measured curve."""
    counts = draw(st.lists(st.integers(0, 5000), min_size=1, max_size=min(rows, 30)))
    counts = [*counts[:-1], max(counts[-1], 1)]
    law = law_of_counts(counts, rows)
    if draw(st.booleans()):
        return law
    bins = np.array(law.num_rows_per_bin)
    return replace(
        law,
        num_rows_per_range=(tuple((bins / 2).tolist()), tuple((bins / 2).tolist())),
        num_ids_in_ranges=draw(st.integers(1, rows)),
        num_unique_curve=((2.0, 1.5), (10.0, draw(st.floats(1.5, 10.0)))),
        hot_share_ratio=draw(st.sampled_from([(), (0.01, 0.7)])),
    )


@st.composite
def any_law(draw: DrawFn, rows: int) -> AbstractIndexDistribution:
    """Every kind of law, with odd numbers."""
    kind = draw(st.integers(0, 2))
    if kind == 0:
        return draw(measured_laws(rows))
    if kind == 1:
        return draw(laws(rows))
    return Zipf(
        num_embeddings=rows,
        exponent=draw(st.floats(0, 10)),
        shift=draw(st.floats(0, 1e11)),
        scattered=draw(st.booleans()),
        ids_per_draw=draw(st.integers(1, 1000)),
    )


_FP16 = Codec(precision=Precision.FP16)
COMMUNICATIONS = (
    None,
    None,
    Communication(),
    Communication.of(Precision.INT8, Precision.BF16),
    Communication.of(Precision.FP8, Precision.MX4),
    Communication(reduce_scatter=Codecs(forward=_FP16)),
    Communication(all_to_all=Codecs(), sequence=Codecs(backward=_FP16)),
)


@st.composite
def any_workload(draw: DrawFn) -> Workload:
    """A workload of odd names and numbers."""
    plain = draw(workloads(max_tables=3))
    names = draw(st.lists(NAMES | st.sampled_from(TRICKY), min_size=3, max_size=3, unique=True))
    changed = []
    for name, table in zip(names, plain.tables, strict=False):
        features = tuple(
            Feature(name=f"{name[:490]}.{i}", pooling_factor=draw(st.floats(0, 1e6)))
            for i, _ in enumerate(table.features)
        )
        changed.append(
            replace(
                table,
                name=name,
                features=features,
                distribution=draw(any_law(table.num_embeddings)),
                module=draw(NAMES | st.sampled_from(["", *TRICKY])),
                communication=draw(st.sampled_from(COMMUNICATIONS)),
            )
        )
    return replace(
        plain,
        name=draw(NAMES | st.sampled_from(TRICKY)),
        tables=tuple(changed),
        reserved_bytes=draw(st.floats(0, 1e15)),
        input_samples_per_s=draw(st.none() | st.floats(1e-3, 1e12)),
    )


@given(workload=any_workload(), note=st.text(max_size=40))
def test_what_is_written_is_read_back(
    workload: Workload, note: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every field, every law, every name; comments of any text change nothing."""
    keys = ("training", "dense", "tables", "memory", f"tables.{workload.tables[0].name}")
    text = workload_text(workload, header=[note], notes=dict.fromkeys(keys, note))
    read = read_back(text, tmp_path_factory.getbasetemp())
    assert read.workload == workload
    assert read.constraints == Constraints()


@pytest.mark.parametrize("name", TRICKY)
def test_names_that_yaml_takes_for_something_else(name: str, tmp_path: Path) -> None:
    table = make_table(name, module=name)
    assert read_back(workload_text(make_workload(table)), tmp_path).workload.tables == (table,)


def test_shipped_workloads_survive(tmp_path: Path) -> None:
    for name in io.names("workloads"):
        workload = io.load_workload(name)
        assert read_back(workload_text(workload), tmp_path).workload == workload, name


def test_constraints_are_read_back(tmp_path: Path) -> None:
    workload = make_workload()
    rules = Constraints(
        tables=(
            TableConstraint(pattern="t0"),
            TableConstraint(
                pattern="[tT]*",
                sharding_types=(ShardingType.ROW_WISE, ShardingType.TABLE_WISE),
                kernels=(ComputeKernel.FUSED,),
                ranks=(0, 3),
                hosts=(0,),
                min_column_width=32,
                cache_load_factors=(0.1, 0.25),
                pairs=(
                    (ShardingType.ROW_WISE, ComputeKernel.FUSED_UVM_CACHING),
                    (ShardingType.TABLE_WISE, ComputeKernel.FUSED),
                    (ShardingType.ROW_WISE, ComputeKernel.FUSED),
                ),
            ),
        ),
        together=(TableGroup(patterns=("t0", "t1"), level=Level.HOST),),
        apart=(TableGroup(patterns=("t*",)),),
        counts=(
            CountLimit(most=3, level=Level.HOST),
            CountLimit(most=2, counts_shards=True, patterns=("t0", "t1")),
        ),
        memory=(
            MemoryLimit(most_bytes=123456789.5, level=Level.RANK, places=(1, 2)),
            MemoryLimit(most_bytes=2.0**40, level=Level.HOST),
        ),
    )
    read = read_back(workload_text(workload, rules), tmp_path)
    assert (read.workload, read.constraints) == (workload, rules)


def test_limits_of_all_tables_become_a_rule(tmp_path: Path) -> None:
    """Kernels that no table may have: the same limit, said as a rule for every table."""
    rules = Constraints(kernels=(ComputeKernel.FUSED, ComputeKernel.DENSE))
    read = read_back(workload_text(make_workload(), rules), tmp_path).constraints
    assert read.tables == (TableConstraint(pattern="*", kernels=rules.kernels),)


def test_an_unknown_law_is_left_out(tmp_path: Path) -> None:
    """So that every later command says that it had to be assumed."""
    table = make_table(distribution=Uniform(num_embeddings=10_000))
    workload = make_workload(table)
    for law_is_known, warned in ((True, False), (False, True)):
        read = read_back(workload_text(workload, law_is_known=law_is_known), tmp_path)
        assert any("no distribution" in w for w in read.warnings) is warned
        assert read.workload == workload


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": " t"}, r"tables\[0\].name: value ' t': must match"),
        ({"name": "a\nb"}, r"tables\[0\].name: value 'a.+b': must match"),
        ({"name": "x" * 501}, "at most 500 characters"),
        ({"name": "\ud800"}, "surrogate"),
        ({"module": "m\udfff"}, "surrogate"),
        (
            {"features": (Feature(name="", pooling_factor=1.0),)},
            r"features\[0\]: value '': must not be empty",
        ),
        ({"features": (Feature(name="f", pooling_factor=1.0),) * 2}, "is there twice"),
    ],
)
def test_names_that_no_file_holds_are_refused(changes: dict[str, object], words: str) -> None:
    table = replace(make_table(), **changes)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=words):
        workload_text(make_workload(table))


@pytest.mark.parametrize(
    ("law", "words"),
    [
        ("{kind: bins, rows: [10_000]}", "'probability' is missing"),
        ("{kind: bins, rows: [10_000], probability: [0.5]}", "must sum to 1"),
        ("{kind: bins, rows: [9], probability: [0.1]}", "must sum to 10000"),
        (
            "{kind: bins, rows: [10_000], probability: [0.0001], exponent: 1}",
            "exponent: value 1: unknown key",
        ),
        ("{kind: bins, rows: [1, 9_999], probability: [0, 0.0001]}", "hottest first"),
        ("{kind: zipf, exponent: 1, rows: [10_000]}", r"rows: value \[10000\]: unknown key"),
    ],
)
def test_broken_bins_are_refused(law: str, words: str, tmp_path: Path) -> None:
    text = (
        "name: w\ntraining: {batch_size_per_rank: 8}\ntables:\n"
        f"  - {{name: t, num_embeddings: 10_000, embedding_dim: 8, distribution: {law}}}\n"
    )
    with pytest.raises(InvalidInputError, match=words):
        read_back(text, tmp_path)


def test_a_pipeline_that_no_file_holds_is_refused() -> None:
    """The reader wants a number of batches, so that the writer may not leave it out."""
    with pytest.raises(InvalidInputError, match="lookahead needs lookahead, the number of batches"):
        workload_text(make_workload(pipeline=Pipeline.LOOKAHEAD))


def test_a_table_is_one_line() -> None:
    """Diffs of a workload file stay readable."""
    tables = tuple(make_table(f"t{i}") for i in range(5))
    lines = workload_text(make_workload(*tables)).splitlines()
    assert sum(line.startswith("  - {name: t") for line in lines) == len(tables)
    assert isinstance(tables[0], Table)

"""Operators of a dense part on a CPU core: counts worked out by hand, and constants found again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodels.calibration.fit_machine import CHAIN, fit_operators
from costmodels.calibration.points import OperatorPoint
from costmodels.cpu import dense as cpu
from costmodels.cpu.dense import CpuDense
from costmodels.measured.cpu_constants import OPERATOR_COUNTS, OperatorConstants
from costmodels.operators import Operator, OperatorKind
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan
from costmodels.system_models import cpu_models
from costmodels.workload import DenseArch, Interaction, OperatorList, Workload
from tests.costmodels.cpu.machines import MACHINE, cpu_topology
from tests.strategies import make_table

LINEAR = Operator(
    name="linear",
    kind=OperatorKind.MATMUL,
    shape=(1, 100, 20, 30),
    num_parameters=600,
    parameter_bytes=2400.0,
)
GELU = Operator(
    name="gelu",
    kind=OperatorKind.ELEMENTWISE,
    function="gelu",
    shape=(100, 30),
    read_bytes=12e3,
    written_bytes=12e3,
)
ATTENTION = Operator(
    name="attention", kind=OperatorKind.ATTENTION, shape=(8, 50, 40, 16, 24), is_causal=True
)
NAMES = ("matmul", "matmul left", "matmul right", "attention", "gelu", "elementwise", "once")


SMALL = 1e5
"""Bytes that stay in a core's own cache."""


def constants(seed: int) -> OperatorConstants:
    rng = np.random.default_rng(seed)
    forward, backward = (
        tuple((n, tuple(10 ** rng.uniform(-12, -9, OPERATOR_COUNTS))) for n in NAMES)
        for _ in range(2)
    )
    update = (1e-5, 1e-6, 1e-10, 2e-5, 3e-5, 1e-10, 2e-10)
    return OperatorConstants(
        forward_s=forward, backward_s=backward, update_s=update, sigma_ratio=0.4
    )


def drawn(rng: np.random.Generator) -> tuple[Operator, ...]:
    """A few operators of random sizes."""

    def size(low: int, high: int) -> int:
        return int(rng.integers(low, high))

    found = []
    for _ in range(size(1, 6)):
        rows, columns = size(10, 2000), size(4, 600)
        num_bytes = 4.0 * rows * columns
        kinds = (
            replace(
                LINEAR, shape=(1, rows, columns, size(4, 600)), left_gradient=rng.random() < 0.7
            ),
            replace(GELU, shape=(rows, columns), read_bytes=num_bytes, written_bytes=num_bytes),
            replace(GELU, function="relu", shape=(rows, columns), read_bytes=num_bytes),
            replace(ATTENTION, shape=(size(1, 99), size(4, 99), size(4, 99), 16, size(8, 64))),
        )
        found.append(kinds[size(0, len(kinds))])
    return tuple(found)


def timed(name: str, listed: tuple[Operator, ...], own: OperatorConstants) -> OperatorPoint:
    return OperatorPoint(
        name=name,
        operators=listed,
        forward_s=cpu.forward_s(listed, own, cpu.held_bytes(listed)),
        backward_s=cpu.backward_s(listed, own, cpu.held_bytes(listed)),
        update_s=float(cpu.optimizer_counts(listed) @ np.array(own.update_s)),
    )


def test_counts_of_a_product_and_of_its_gradients() -> None:
    forward = cpu.forward_counts([LINEAR], SMALL)["matmul"]
    assert forward.tolist() == [1, 1, 60_000, 3000, 2000, 600, 0, 0]
    backward = cpu.backward_counts([LINEAR], SMALL)
    assert backward["matmul left"].tolist() == [1, 1, 60_000, 2000, 3000, 600, 0, 0]
    assert backward["matmul right"].tolist() == [1, 1, 60_000, 600, 2000, 3000, 0, 0]
    first = replace(LINEAR, left_gradient=False)
    assert set(cpu.backward_counts([first], SMALL)) == {"once", "matmul right"}


def test_counts_of_an_attention_and_of_a_function() -> None:
    attention = cpu.forward_counts([ATTENTION], SMALL)["attention"]
    assert attention.tolist() == [1, 8, 640_000, 320_000, 16_000, 6400, 400, 0]
    gelu = cpu.forward_counts([GELU], SMALL)["gelu"]
    assert gelu.tolist() == [1, 24e3, 0, 0, 0, 0, 0, 0]
    large = replace(GELU, read_bytes=40e6, written_bytes=40e6)
    assert cpu.forward_counts([large], SMALL)["gelu"].tolist() == [1, 80e6, 0, 0, 0, 64e6, 0, 40e6]


def test_what_starts_anew_at_every_row_counts_its_rows() -> None:
    softmax = replace(GELU, function="_softmax", kind=OperatorKind.SOFTMAX)
    counts = cpu.forward_counts([softmax], SMALL)["_softmax"]
    assert counts.tolist() == [1, 24e3, 0, 0, 100, 0, 0, 0]
    short = replace(softmax, shape=(300, 10))
    assert cpu.forward_counts([short], SMALL)["_softmax"][6] == 3000
    assert cpu.forward_counts([replace(GELU, shape=(300, 10))], SMALL)["gelu"][6] == 0


def test_bytes_come_from_farther_away_the_more_a_step_holds() -> None:
    # 8 MB hold 1 MB of a core's own cache and 4 MB of the shared one: 7/8 and 1/2 are missed.
    gelu = cpu.forward_counts([GELU], 8e6)["gelu"]
    assert gelu[1:4].tolist() == [24e3, 21e3, 12e3]
    assert cpu.forward_counts([LINEAR], 8e6)["matmul"][6] == 4 * 5600 / 2
    moved = replace(ATTENTION, read_bytes=1000.0, written_bytes=200.0)
    assert cpu.forward_counts([moved], 8e6)["attention"][7] == 600
    assert cpu.backward_counts([GELU], 8e6)["gelu"][1:4].tolist() == [24e3, 21e3, 12e3]


def test_a_step_holds_results_parameters_and_its_largest_input() -> None:
    listed = [replace(GELU, num_repeats=3), replace(LINEAR, written_bytes=12e3, read_bytes=8e3)]
    assert cpu.held_bytes(listed) == 3 * 12e3 + 12e3 + 2400 + 12e3
    assert cpu.held_bytes([]) == 0


def test_an_update_counts_what_the_passes_have_driven_out_of_the_caches() -> None:
    big = replace(GELU, read_bytes=3_988_800.0, written_bytes=4_008_800.0)
    assert cpu.held_bytes([LINEAR, big]) == 8e6
    counts = cpu.optimizer_counts([LINEAR, big])
    assert counts.tolist() == [1, 1, 2400, 7 / 8, 1 / 2, 2100, 1200]
    assert len(counts) == len(constants(1).update_s)
    assert cpu.optimizer_counts([replace(LINEAR, num_repeats=2)]).tolist() == [
        1,
        2,
        4800,
        0,
        0,
        0,
        0,
    ]


def test_repeats_are_added_up_and_a_pass_starts_once() -> None:
    counts = cpu.forward_counts([replace(GELU, num_repeats=3), GELU], SMALL)
    assert counts["gelu"][0] == 4
    assert counts["once"][0] == 1
    assert cpu.forward_counts([], SMALL) == {}


@pytest.mark.parametrize(
    ("function", "kind", "expected"),
    [
        ("silu", OperatorKind.ELEMENTWISE, "silu"),
        ("mul", OperatorKind.ELEMENTWISE, "elementwise"),
        ("_safe_softmax", OperatorKind.SOFTMAX, "_softmax"),
        ("amax", OperatorKind.REDUCTION, "sum"),
        ("", OperatorKind.NORM, "native_layer_norm"),
        ("roll", OperatorKind.OTHER, "elementwise"),
    ],
)
def test_a_function_counts_as_itself_or_as_one_typical_of_its_kind(
    function: str, kind: OperatorKind, expected: str
) -> None:
    assert cpu.class_of(replace(GELU, function=function, kind=kind)) == expected


@pytest.mark.parametrize(
    ("second", "expected"),
    [(0, ""), (30, " row"), (100, " column"), (3000, ""), (1, "")],
)
def test_what_is_spread_over_rows_or_columns_is_a_class_of_its_own(
    second: int, expected: str
) -> None:
    read = 4.0 * (3000 + second)
    operator = replace(GELU, function="mul", read_bytes=read)
    assert cpu.class_of(operator) == f"elementwise{expected}"
    assert cpu.class_of(replace(operator, function="relu")) == "elementwise"
    # A calibration that did not measure the class prices it as elementwise.
    own = constants(1)
    counts = cpu.forward_counts([operator], SMALL)[f"elementwise{expected}"]
    expected_s = counts @ np.array(dict(own.forward_s)["elementwise"])
    once_s = dict(own.forward_s)["once"][0]
    assert cpu.forward_s([operator], own, SMALL) == pytest.approx(expected_s + once_s)


def test_large_products_of_a_batch_are_priced_as_products_alone() -> None:
    batched = replace(LINEAR, kind=OperatorKind.BATCHED_MATMUL, shape=(8, 100, 100, 99))
    assert cpu.class_of(batched) == "batched_matmul"
    assert cpu.class_of(replace(batched, shape=(8, 100, 100, 100))) == "matmul"


def test_what_is_computed_again_costs_its_forward_pass_once_more() -> None:
    own = constants(1)
    again = cpu.backward_s([replace(ATTENTION, is_recomputed=True)], own, 8e6)
    forward = cpu.forward_s([ATTENTION], own, 8e6)
    once = dict(own.forward_s)["once"][0]
    assert again == pytest.approx(cpu.backward_s([ATTENTION], own, 8e6) + forward - once)


def test_the_fit_predicts_operators_that_it_has_not_seen() -> None:
    rng, own = np.random.default_rng(3), constants(3)
    points = [timed(CHAIN if i % 3 else "single", drawn(rng), own) for i in range(150)]
    found, errors = fit_operators(points)
    assert found is not None
    assert [e.name for e in errors] == [
        "operators, forward",
        "operators, backward",
        "optimizer step",
    ]
    for _ in range(20):
        listed = drawn(rng)
        expected = timed("new", listed, own)
        held = cpu.held_bytes(listed)
        assert cpu.forward_s(listed, found, held) == pytest.approx(expected.forward_s, rel=0.02)
        assert cpu.backward_s(listed, found, held) == pytest.approx(expected.backward_s, rel=0.02)
    assert found.sigma_ratio < 0.01
    assert fit_operators(()) == (None, ())


def test_intervals_are_as_wide_as_chains_that_were_held_out_say() -> None:
    rng, own = np.random.default_rng(4), constants(4)
    points = [timed(CHAIN, drawn(rng), own) for _ in range(120)]
    noise = np.exp(rng.normal(0.0, 0.3, 120)).tolist()
    points = [
        replace(p, forward_s=p.forward_s * x, backward_s=p.backward_s * x)
        for p, x in zip(points, noise, strict=True)
    ]
    found, _ = fit_operators(points)
    assert found is not None
    assert 0.25 < found.sigma_ratio < 0.5
    listed = OperatorList(batch_size_per_rank=64, after_tables=(LINEAR, ATTENTION))
    alone = Workload(
        name="alone", tables=(), batch_size_per_rank=64, dense=DenseArch(operators=listed)
    )

    def width(sigma_ratio: float) -> float:
        machine = replace(MACHINE, operators=replace(own, sigma_ratio=sigma_ratio))
        models = cpu_models(machine)
        pipeline = CostPipeline(alone, cpu_topology(), models)
        time = pipeline.estimate(Plan(placements=())).time
        return time.high_s / time.low_s

    assert width(0.3) > 1.5 * width(0.05)


def test_only_dense_parts_like_those_of_steps_keep_the_constants_of_steps() -> None:
    old, new = (
        CpuDense(constants=MACHINE),
        CpuDense(constants=replace(MACHINE, operators=constants(5))),
    )
    plain = Workload(
        name="plain",
        tables=(make_table(),),
        batch_size_per_rank=64,
        dense=DenseArch(
            num_dense_features=13, bottom_mlp=(32,), top_mlp=(16, 1), interaction=Interaction.CAT
        ),
    )
    assert new.times(plain, cpu_topology()) == old.times(plain, cpu_topology())
    listed = OperatorList(batch_size_per_rank=64, after_tables=(LINEAR, ATTENTION, GELU))
    other = replace(plain, dense=DenseArch(operators=listed))
    own = constants(5)
    times = new.times(other, cpu_topology())
    held = cpu.held_bytes(listed.after_tables)
    forward_s = cpu.forward_s(listed.after_tables, own, held)
    step = MACHINE.dense.forward_s[0]
    assert times.top_forward_s == pytest.approx(forward_s + step)
    assert old.times(other, cpu_topology()) != times
    alone = new.times(replace(other, tables=()), cpu_topology())
    assert alone.top_forward_s == pytest.approx(forward_s)
    assert alone.optimizer_s == pytest.approx(1e-5 + 1e-6 + 2400 * 1e-10)

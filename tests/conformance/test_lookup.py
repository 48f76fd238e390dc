"""What every lookup model must satisfy; new files in the folder are tested at once."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodels.lookup
from costmodels import discovery
from costmodels.datatypes import FloatArray
from costmodels.distribution.uniform import Uniform
from costmodels.distribution.zipf import Zipf
from costmodels.lookup.base import NUM_LOOKUP_WORK, AbstractLookupModel, LookupWork
from costmodels.lookup.fbgemm import Fbgemm
from costmodels.measured.fbgemm_constants import FbgemmConstants
from costmodels.sharding import ComputeKernel
from costmodels.topology import Topology
from costmodels.training.optimizers import RowUpdate
from costmodels.workload import DataType, Optimizer, Table
from tests.conformance.instances import build
from tests.lookups import OneShard, work_of_one
from tests.strategies import make_device, make_host, make_table, make_topology

MODELS = discovery.names(costmodels.lookup)
KERNELS = list(ComputeKernel)
IN_HOST_MEMORY = (ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING)
TOPOLOGY = make_topology()
NO_LONG_SEGMENTS = FbgemmConstants(long_segment_s=0.0, long_segment_chunk_s=0.0)
"""FBGEMM gives a row with over 32 indices a block of its threads. Without that, hot rows cost no
more than others."""
CHEAP_INSERTS = FbgemmConstants(cache_insert_s=FbgemmConstants().link_row_s)
"""FBGEMM takes longer to insert a row into a cache than to read it over the link, if it is narrow.
Here both take equally long."""


@pytest.fixture(params=MODELS, scope="module")
def model(request: pytest.FixtureRequest) -> AbstractLookupModel:
    """Every model in the folder."""
    return build(costmodels.lookup, request.param, AbstractLookupModel)


def shard_of(
    table: Table,
    num_indices: float,
    kernel: ComputeKernel = ComputeKernel.FUSED,
    **changes: Any,
) -> OneShard:
    """The whole table on one rank, one bag per eight indices."""
    values: dict[str, Any] = {
        "table": table,
        "kernel": kernel,
        "row_offset": 0,
        "num_rows": table.num_embeddings,
        "num_cols": table.embedding_dim,
        "num_indices": num_indices,
        "num_table_indices": num_indices,
        "num_bags": num_indices / 8,
        "output_element_bytes": 4,
        "index_bytes": 8,
        "optimizer": Optimizer.ROWWISE_ADAGRAD,
        "cache_load_factor_ratio": 0.2 if kernel is ComputeKernel.FUSED_UVM_CACHING else None,
    }
    return OneShard(**{**values, **changes})


def zipf_table(rows: int, dim: int, exponent: float = 1.05, **changes: Any) -> Table:
    law = Zipf(num_embeddings=rows, exponent=exponent)
    return make_table(num_embeddings=rows, embedding_dim=dim, distribution=law, **changes)


def seconds(
    model: AbstractLookupModel, shard: OneShard, topology: Topology = TOPOLOGY
) -> tuple[float, float]:
    """(forward, backward) of a shard alone in its call."""
    work = work_of_one(model, shard, topology)
    return float(model.forward_time(work, topology)), float(model.backward_time(work, topology))


def both(model: AbstractLookupModel, shard: OneShard, topology: Topology = TOPOLOGY) -> float:
    return sum(seconds(model, shard, topology))


@st.composite
def shards(draw: st.DrawFn) -> OneShard:
    """A range of rows and columns of any table."""
    rows = draw(st.one_of(st.integers(1, 50), st.integers(1, 10**8)))
    dim = draw(st.sampled_from([4, 64, 128, 512]))
    table = zipf_table(
        rows,
        dim,
        draw(st.sampled_from([0.0, 0.8, 1.05, 1.6])),
        dtype=draw(st.sampled_from([DataType.FP32, DataType.FP16])),
        is_weighted=draw(st.booleans()),
        row_update=draw(st.sampled_from(list(RowUpdate))),
    )
    indices = draw(st.floats(0, 1e7))
    offset = draw(st.integers(0, rows - 1))
    size = draw(st.integers(0, rows - offset))
    return shard_of(
        table,
        indices * size / rows,
        draw(st.sampled_from(KERNELS)),
        num_table_indices=indices,
        row_offset=offset,
        num_rows=size,
        num_cols=draw(st.integers(1, dim)),
        num_bags=draw(st.floats(0, 1e6)),
        optimizer=draw(st.sampled_from(list(Optimizer))),
    )


# ------------------------------------------------------------------ work


@given(shard=shards())
def test_work_is_finite_and_not_negative(model: AbstractLookupModel, shard: OneShard) -> None:
    work = work_of_one(model, shard, TOPOLOGY)
    assert work.shape == (NUM_LOOKUP_WORK,)
    assert np.all(np.isfinite(work))
    assert np.all(work >= 0)
    np.testing.assert_array_equal(work, work_of_one(model, shard, TOPOLOGY))


def test_no_indices_or_no_rows_is_no_work(model: AbstractLookupModel) -> None:
    table = zipf_table(1000, 64)
    for kernel in KERNELS:
        assert not work_of_one(model, shard_of(table, 0.0, kernel), TOPOLOGY).any()
        empty = shard_of(table, 0.0, kernel, num_table_indices=100.0, num_rows=0, row_offset=1000)
        assert not work_of_one(model, empty, TOPOLOGY).any()


@pytest.mark.parametrize("kernel", [k for k in KERNELS if k is not ComputeKernel.DENSE])
@given(rows=st.integers(1, 10**7), indices=st.floats(1, 1e7), part=st.floats(0.05, 0.95))
def test_a_batch_is_no_more_work_than_its_parts(
    model: AbstractLookupModel,
    kernel: ComputeKernel,
    rows: int,
    indices: float,
    part: float,
) -> None:
    """Indices and outputs add up; rows are shared, so they add up to no more.

    Of FBGEMM this holds without long segments, and without a second-level cache, which the
    gradients of a larger batch do not fit. Rows of a larger batch also find no place in a cache in
    front of host memory, and every index reads them over the link.
    """
    topology = TOPOLOGY
    shared = np.ones(NUM_LOOKUP_WORK, dtype=bool)
    if isinstance(model, Fbgemm):
        uncached = make_device(l2_capacity_bytes=0.0)
        topology = make_topology(device=uncached, lookup_constants=NO_LONG_SEGMENTS)
        links = [LookupWork.FORWARD_HOST_LINK, LookupWork.BACKWARD_HOST_LINK]
        shared[links] = kernel is not ComputeKernel.FUSED_UVM_CACHING
    table = zipf_table(rows, 64)
    whole = work_of_one(model, shard_of(table, indices, kernel), topology)
    parts = work_of_one(model, shard_of(table, indices * part, kernel), topology)
    parts = parts + work_of_one(model, shard_of(table, indices * (1 - part), kernel), topology)
    assert np.all((whole <= parts * (1 + 1e-9) + 1e-6)[shared])
    for column in (LookupWork.INDICES, LookupWork.STREAM_DRAM):
        assert whole[column] == pytest.approx(parts[column], rel=1e-9)


@pytest.mark.parametrize("kernel", [ComputeKernel.FUSED, ComputeKernel.FUSED_UVM])
@given(rows=st.integers(2, 10**7), indices=st.floats(1, 1e7), data=st.data())
def test_row_shards_of_a_hashed_table_move_what_the_table_does(
    model: AbstractLookupModel,
    kernel: ComputeKernel,
    rows: int,
    indices: float,
    data: st.DataObject,
) -> None:
    """Up to the second-level cache, of which every rank has one of its own."""
    cut = data.draw(st.integers(1, rows - 1))
    uncached = make_topology(device=make_device(l2_capacity_bytes=0.0))
    table = zipf_table(rows, 64)
    bags = {"num_table_indices": indices, "num_bags": 0.0}
    whole = work_of_one(model, shard_of(table, indices, kernel, **bags), uncached)
    parts = sum(
        work_of_one(
            model,
            shard_of(table, indices * n / rows, kernel, row_offset=a, num_rows=n, **bags),
            uncached,
        )
        for a, n in ((0, cut), (cut, rows - cut))
    )
    np.testing.assert_allclose(parts, whole, rtol=1e-6)


@given(rows=st.integers(1, 10**7), indices=st.floats(1, 1e7))
def test_two_half_columns_move_the_whole_plus_the_indices_again(
    model: AbstractLookupModel, rows: int, indices: float
) -> None:
    table = zipf_table(rows, 128)
    plain = make_topology(device=make_device(l2_capacity_bytes=0.0, row_half_bytes=0.0))
    sgd = {"optimizer": Optimizer.SGD}
    whole = work_of_one(model, shard_of(table, indices, **sgd), plain)
    halves = 2.0 * work_of_one(model, shard_of(table, indices, num_cols=64, **sgd), plain)
    again = np.zeros(NUM_LOOKUP_WORK)
    again[LookupWork.INDICES] = indices
    if isinstance(model, Fbgemm):  # each index and bag again; of the backward, each distinct row
        c = FbgemmConstants()
        read_s = indices * (c.forward_index_s + c.forward_bag_s / 8)
        again[LookupWork.FORWARD_ROWS_L2] = read_s * c.l2_bandwidth_bytes_per_s
        updated = LookupWork.BACKWARD_GRADIENTS_L2
        most_s = min(rows, indices) * c.updated_row_s + indices / 32 * c.long_segment_s
        more = (halves - whole)[updated]
        assert 0 < more <= most_s * c.l2_bandwidth_bytes_per_s * (1 + 1e-9)
        again[updated] = more
    else:
        again[LookupWork.STREAM_DRAM] = indices * 8 + indices / 8 * 8
    np.testing.assert_allclose(halves, whole + again, rtol=1e-9)


@given(shard=shards(), kernel=st.sampled_from(IN_HOST_MEMORY))
def test_rows_in_device_memory_are_no_slower_where_a_model_says_so(
    model: AbstractLookupModel, shard: OneShard, kernel: ComputeKernel
) -> None:
    """However its rows are updated."""
    if not model.prefers_device(TOPOLOGY):
        return
    ratio = 0.2 if kernel is ComputeKernel.FUSED_UVM_CACHING else None
    there = dataclasses.replace(shard, kernel=kernel, cache_load_factor_ratio=ratio)
    here = dataclasses.replace(shard, kernel=ComputeKernel.FUSED, cache_load_factor_ratio=None)
    assert both(model, here) <= both(model, there) * (1 + 1e-9)


# ------------------------------------------------------------------ time is monotone


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("exponent", [0.0, 1.05, 1.6])
def test_more_of_anything_never_takes_less_time(
    model: AbstractLookupModel, kernel: ComputeKernel, exponent: float
) -> None:
    """Indices, rows of the table, columns, bags, bytes per element and weights."""
    rows, dims = [10, 10**3, 10**5, 10**7], [4, 32, 64, 128, 256]
    indices = [10.0, 1e3, 1e5, 1e7]

    def of(r: int = 10**5, d: int = 64, n: float = 1e5, **changes: Any) -> float:
        weighted = changes.pop("is_weighted", False)
        dtype = changes.pop("dtype", DataType.FP16)
        table = zipf_table(r, d, exponent, is_weighted=weighted, dtype=dtype)
        return both(model, shard_of(table, n, kernel, **changes))

    series = [
        [of(n=n) for n in indices],
        [of(d=d) for d in dims],
        [of(num_bags=b) for b in (0.0, 1e3, 1e5)],
        [of(), of(dtype=DataType.FP32)],
        [of(index_bytes=4), of(), of(is_weighted=True)],
        [of(output_element_bytes=2), of()],
        [of(optimizer=o) for o in (Optimizer.SGD, Optimizer.ROWWISE_ADAGRAD, Optimizer.ADAM)],
    ]
    if kernel is not ComputeKernel.FUSED_UVM_CACHING:  # whose cache grows with the table
        series.append([of(r=r) for r in rows])
    for values in series:
        assert all(v > 0 for v in values)
        assert values == sorted(values)


@pytest.mark.parametrize("kernel", KERNELS)
def test_better_devices_are_never_slower(model: AbstractLookupModel, kernel: ComputeKernel) -> None:
    shard = shard_of(zipf_table(10**6, 64), 1e6, kernel)
    usual = both(model, shard)
    for field in (
        "hbm_bandwidth_bytes_per_s",
        "l2_bandwidth_bytes_per_s",
        "l2_capacity_bytes",
        "update_efficiency_ratio",
        "sort_rate_per_s",
    ):
        better = make_device(**{field: 1.5 * getattr(TOPOLOGY.device, field)})
        assert both(model, shard, make_topology(device=better)) <= usual * (1 + 1e-12)
    link = 2 * TOPOLOGY.host.device_link_bandwidth_bytes_per_s
    faster = make_topology(host=make_host(device_link_bandwidth_bytes_per_s=link))
    on_host = kernel in (ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING)
    assert (both(model, shard, faster) < usual) == on_host


@pytest.mark.parametrize("kernel", KERNELS)
@given(
    rows=st.integers(1, 10**8),
    indices=st.floats(1, 1e7),
    exponent=st.floats(0.01, 3.0),
    dim=st.sampled_from([4, 64, 256]),
)
def test_a_skewed_law_is_never_slower_than_a_uniform_one(
    model: AbstractLookupModel,
    kernel: ComputeKernel,
    rows: int,
    indices: float,
    exponent: float,
    dim: int,
) -> None:
    """Except that a block of threads per hot row takes longer than warps for rare ones."""
    topology = make_topology(lookup_constants=NO_LONG_SEGMENTS)
    skewed = zipf_table(rows, dim, exponent)
    uniform = dataclasses.replace(skewed, distribution=Uniform(num_embeddings=rows))
    fast = seconds(model, shard_of(skewed, indices, kernel), topology)
    slow = seconds(model, shard_of(uniform, indices, kernel), topology)
    for a, b in zip(fast, slow, strict=True):
        assert a <= b * (1 + 1e-3)


@given(
    rows=st.integers(1, 10**8),
    indices=st.floats(1, 1e7),
    exponent=st.sampled_from([0.0, 1.05, 1.6]),
    dim=st.sampled_from([4, 64, 256]),
    optimizer=st.sampled_from(list(Optimizer)),
    ratios=st.lists(st.floats(0.001, 0.999), min_size=2, max_size=2).map(sorted),
)
def test_host_memory_is_slower_than_device_memory_and_a_cache_lies_between(
    model: AbstractLookupModel,
    rows: int,
    indices: float,
    exponent: float,
    dim: int,
    optimizer: Optimizer,
    ratios: list[float],
) -> None:
    """A cache costs at most what asking it does more than having none, but for insertions."""
    table = zipf_table(rows, dim, exponent)
    cheap = make_topology(lookup_constants=CHEAP_INSERTS)

    def of(kernel: ComputeKernel, ratio: float | None = None, topology: Topology = cheap) -> float:
        shard = shard_of(table, indices, kernel, optimizer=optimizer)
        return both(model, dataclasses.replace(shard, cache_load_factor_ratio=ratio), topology)

    asked = np.zeros(NUM_LOOKUP_WORK)
    asked[LookupWork.CACHE_INDICES] = indices
    asking = model.forward_time(asked, TOPOLOGY) + model.backward_time(asked, TOPOLOGY)
    device, host = of(ComputeKernel.FUSED), of(ComputeKernel.FUSED_UVM)
    small, large = (of(ComputeKernel.FUSED_UVM_CACHING, r) for r in ratios)
    assert device * (1 - 1e-9) <= large <= small * (1 + 1e-9)
    if isinstance(model, Fbgemm):  # each index reads a row without a place, and passes the device
        uncached = make_device(l2_capacity_bytes=0.0)
        host = of(ComputeKernel.FUSED_UVM, None, dataclasses.replace(cheap, device=uncached))
        host += device
    assert small <= (host + float(asking)) * (1 + 1e-9)
    as_it_is = [of(ComputeKernel.FUSED_UVM_CACHING, ratio, TOPOLOGY) for ratio in ratios]
    assert device * (1 - 1e-9) <= min(as_it_is)


# ------------------------------------------------------------------ time of a fused call


def works(seed: int) -> tuple[FloatArray, FloatArray]:
    """Two random works, ``[40, NUM_LOOKUP_WORK]``, some entries zero."""
    rng = np.random.default_rng(seed)
    size = (2, 40, NUM_LOOKUP_WORK)
    one, other = 10 ** rng.uniform(0, 11, size) * (rng.random(size) < 0.7)
    return one, other


@pytest.mark.parametrize("direction", ["forward_time", "backward_time"])
@pytest.mark.parametrize("seed", range(5))
def test_time_is_homogeneous_convex_and_monotone_in_work(
    model: AbstractLookupModel, direction: str, seed: int
) -> None:
    time = getattr(model, direction)
    one, other = works(seed)
    f, g = time(one, TOPOLOGY), time(other, TOPOLOGY)
    assert f.shape == (40,)
    assert np.all(f >= 0)
    np.testing.assert_allclose(time(7.5 * one, TOPOLOGY), 7.5 * f, rtol=1e-12)
    assert np.all(time((one + other) / 2, TOPOLOGY) <= (f + g) / 2 * (1 + 1e-12))
    together = time(one + other, TOPOLOGY)
    assert np.all(together >= np.maximum(f, g) * (1 - 1e-12))
    assert np.all(together <= (f + g) * (1 + 1e-12))
    assert np.all(time(np.zeros_like(one), TOPOLOGY) == 0)


def test_every_model_names_its_sources(model: AbstractLookupModel) -> None:
    assert "\n    Sources:\n        " in (type(model).__doc__ or "")

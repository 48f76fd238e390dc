"""Models on which proven gaps are measured: ``tables x ranks``, tables drawn as documented here.

Real per-table statistics of large models are not public; these follow what is. Rows are log-normal
(median 3e5, sigma 2.2, clipped to 1e3..1e8: long tails as in the 856 tables of Meta's
``dlrm_datasets``); pooling factors are log-normal (sigma 1.3), scaled to the mean 15.81 of its 2021
file and clipped to 1..200; widths are uniform over {16, 32, 64, 96, 128, 192, 256}; each table has
a Zipf law with an exponent uniform in 0..1.2. Batches are 1024 samples per rank, outputs fp16, the
dense part is small, so that almost all of an iteration depends on the plan.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from costmodels.distribution.zipf import Zipf
from costmodels.workload import DataType, DenseArch, Feature, Table, Workload
from planner import load_workload

CASES: Final = (
    *("dcnv2x8", "dcnv2x16", "dcnv2x64"),
    *(f"{tables}x{ranks}" for tables in (26, 100, 300, 856) for ranks in (8, 16, 64, 128)),
)
"""What ``benchmarks.search.gaps`` runs unless told otherwise."""

_WIDTHS: Final = (16, 32, 64, 96, 128, 192, 256)
_MEAN_POOLING: Final = 15.81
_DENSE: Final = DenseArch(num_dense_features=13, bottom_mlp=(64, 32), top_mlp=(64, 1))


def workload_of(case: str) -> tuple[Workload, int]:
    """Workload and number of ranks of ``TABLESxRANKS``; ``dcnv2`` are MLPerf's 26 tables."""
    tables, _, ranks = case.partition("x")
    if tables == "dcnv2":
        return load_workload("dlrm_dcnv2_mlperf"), int(ranks)
    return drawn(int(tables)), int(ranks)


def drawn(
    count: int,
    *,
    seed: int = 0,
    batch: int = 1024,
    widths: tuple[int, ...] = _WIDTHS,
    exponents: tuple[float, float] = (0.0, 1.2),
    dense: DenseArch = _DENSE,
) -> Workload:
    """``count`` tables drawn as above, or with other widths, exponents and dense part."""
    rng = np.random.default_rng([seed, count])
    rows = np.clip(np.exp(rng.normal(np.log(3e5), 2.2, count)), 1e3, 1e8).astype(int)
    dims = rng.choice(widths, count)
    lengths = np.exp(rng.normal(0.0, 1.3, count))
    pooling = np.clip(lengths * _MEAN_POOLING / lengths.mean(), 1.0, 200.0)
    skews = rng.uniform(*exponents, count)
    tables = tuple(
        Table(
            name=f"t{i}",
            num_embeddings=int(rows[i]),
            embedding_dim=int(dims[i]),
            features=(Feature(name=f"f{i}", pooling_factor=round(float(pooling[i]), 2)),),
            distribution=Zipf(num_embeddings=int(rows[i]), exponent=round(float(skews[i]), 3)),
        )
        for i in range(count)
    )
    return Workload(
        name=f"drawn{count}",
        tables=tables,
        batch_size_per_rank=batch,
        dense=dense,
        output_dtype=DataType.FP16,
        gradient_dtype=DataType.FP16,
    )

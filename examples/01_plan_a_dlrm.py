"""Plan a DLRM on one host of eight H100 and read the answer.

Run it with ``python examples/01_plan_a_dlrm.py``. Everything is printed with its unit; inside the
library, times are seconds and sizes are bytes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from costmodels.units import GIB, MS
from planner import load_system, load_workload, plan

WORKLOAD = """
name: small_dlrm
training: {batch_size_per_rank: 16_384, optimizer: rowwise_adagrad, output_dtype: fp16}
dense:
  num_dense_features: 13
  bottom_mlp: [512, 256, 128]
  top_mlp: [1024, 512, 1]
  interaction: dot
  dtype: fp16
memory: {reserve: 6 GiB}
tables:
  - name: user_id
    num_embeddings: 40_000_000
    embedding_dim: 128
    pooling_factor: 3
    distribution: {kind: zipf, exponent: 1.05}
  - name: item_id
    num_embeddings: 3_067_956
    embedding_dim: 128
    features: [clicked, bought]
    pooling_factor: [20, 4]
    distribution: {kind: zipf, exponent: 1.05}
  - name: country
    num_embeddings: 200
    embedding_dim: 128
    pooling_factor: 1
"""


def main() -> None:
    """Load, plan, and print what there is to know about the plan."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small_dlrm.yaml"
        path.write_text(WORKLOAD)
        workload = load_workload(path)
    topology = load_system("h100_sxm", gpus=8)

    result = plan(workload, topology, time_limit_s=5.0, seed=0)

    time = result.estimate.time
    print(
        f"iteration  {time.time_s / MS:.2f} ms, 90 % in {time.low_s / MS:.2f} .. "
        f"{time.high_s / MS:.2f} ms, resting on {time.source} numbers"
    )
    print(f"throughput {result.estimate.samples_per_s / 1e6:.1f} M samples/s")
    gap = result.gap_ratio
    proof = "no bound" if gap is None else f"at most {100 * gap:.2f} % from the best there is"
    print(f"search     {result.solver.status}, {proof}")
    fullest = result.best.memory.fullest
    print(
        f"memory     rank {fullest.rank}: {fullest.used_bytes / GIB:.1f} of "
        f"{fullest.capacity_bytes / GIB:.0f} GiB"
    )
    for placement in result.plan.placements:
        ranks = ", ".join(map(str, placement.ranks))
        print(f"  {placement.table:<8} {placement.sharding_type:<13} {placement.kernel:<6} {ranks}")
    for baseline in result.baselines:
        ratio = baseline.estimate.time.time_s / time.time_s
        print(f"  {baseline.name}: {ratio:.2f} times as long")


if __name__ == "__main__":
    main()

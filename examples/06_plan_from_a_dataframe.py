"""Plan three clusters for the tables of a pandas DataFrame.

Run it with ``python examples/06_plan_from_a_dataframe.py``.
"""

from __future__ import annotations

import pandas as pd

from planner import load_system, plan, workload_from_dataframe

TABLES = pd.DataFrame(
    {
        "name": ["user", "item", "query", "country"],
        "rows": [40_000_000, 3_000_000, 800_000, 200],
        "dim": [128, 128, 64, 16],
        "pooling_factor": [1, 24.5, 6, 1],
        "zipf_exponent": [1.05, 1.1, 0.9, None],
    }
)

workload = workload_from_dataframe(TABLES, batch_size_per_rank=8192, reserved_bytes=6 * 2**30)
for system, gpus in (("a100_80gb_sxm", 8), ("h100_sxm", 8), ("h100_sxm", 16)):
    result = plan(workload, load_system(system, gpus=gpus), with_baselines=False)
    print(f"{gpus} x {system}: {1e3 * result.estimate.time.time_s:.2f} ms per iteration")
    print(result.to_dataframe()[["table", "sharding_type", "num_shards", "ranks"]])
